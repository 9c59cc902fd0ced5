//! Hardening: what attacks make this end hold and compute, what they cost others, and tests that hold on every machine.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Case, Context,
    command::{Ended, cargo, load},
    fuzz,
    row::{Row, Target},
    tests::binary,
};

/// Attacks that print what they have held, by package and test binary.
const MEMORY: [(&str, &str, &str); 2] =
    [("attacks-transport", "tiderace-transport", "memory_attacks"), ("attacks-edge", "tiderace-edge", "attacks")];
const LIMIT: Duration = Duration::from_secs(3_600);

/// The cases in their order: those that need a machine for themselves come last.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("memory", "live heap of a connection under attack, beside its budget", memory),
        case("decoding", "operations of FEC per byte of attack and of conforming loss", decoding),
        case("rebinding", "NATs that forget the client in the middle of a transfer", rebinding),
        case("address", "addresses that are not validated, paths that go around a route, replays", addresses),
        case("hostile-server", "servers of ill will in front of the client", hostile_server),
        case(
            "fuzzing",
            "whole connections, HTTP/3 and QMux under mutated packets; 8 hours with --long",
            fuzz::connections,
        ),
        case("flaky", "every test binary over and over, also beside busy loops and on one core", flaky),
        case("instructions", "instructions per unit of work, beside the committed table", instructions),
        case("neighbours", "attackers at 100 Mbit/s beside 50 ordinary clients; needs an idle machine", neighbours),
    ]
}

/// The fields of lines `KIND: NAME | FIELD VALUE | FIELD VALUE …`, by name of the line.
pub(super) fn lines<'a>(stdout: &'a str, kind: &str) -> Vec<(&'a str, BTreeMap<&'a str, f64>)> {
    let parse = |line: &'a str| {
        // The test harness may have begun the line.
        let (_, rest) = line.split_once(kind)?;
        let mut parts = rest.split(" | ");
        let name = parts.next()?.trim();
        let field = |part: &'a str| {
            let mut words = part.trim().rsplitn(2, ' ');
            let (last, before) = (words.next()?, words.next()?);
            match last.parse() {
                Ok(value) => Some((before, value)),
                // The unit stands behind the value.
                Err(_) => before.rsplit_once(' ').and_then(|(name, value)| Some((name, value.parse().ok()?))),
            }
        };
        Some((name, parts.filter_map(field).collect()))
    };
    stdout.lines().filter_map(parse).collect()
}

pub(super) fn field(fields: &BTreeMap<&str, f64>, name: &str) -> Result<f64> {
    fields.get(name).copied().with_context(|| format!("no `{name}`"))
}

/// Runs the tests that `arguments` choose. With `--workspace` they are those that `cargo test` has built; `-p` chooses other features, and
/// builds what they depend on once more.
pub(super) fn test(context: &Context, name: &str, arguments: &[&str], after: &[&str]) -> Result<Ended> {
    let mut command = cargo(&context.root, ["test", "--locked", "--no-fail-fast"]);
    command.args(arguments).args(["--", "--nocapture"]).args(after);
    context.commands.run(name, &mut command, LIMIT)
}

/// An attack on memory, in bytes for each connection of the attacker.
struct Held {
    attack: String,
    package: &'static str,
    budget: f64,
    heap: f64,
}

/// Heap over budget, attack by attack, and whether docs/limits.md says the same.
fn memory(context: &Context) -> Result<Vec<Row>> {
    let mut seen = Vec::new();
    for (name, package, target) in MEMORY {
        let ended = test(context, name, &["--workspace", "--test", target], &[])?;
        ensure!(ended.succeeded(), "{package}, {target}: {}", ended.reason());
        let before = seen.len();
        for (attack, fields) in lines(&ended.stdout, "attack: ") {
            // What is there without any attack is no attack.
            if attack == "nothing" {
                continue;
            }
            let (Ok(budget), Ok(heap)) = (field(&fields, "budget"), field(&fields, "heap")) else { continue };
            seen.push(Held { attack: attack.to_owned(), package, budget, heap });
        }
        ensure!(seen.len() > before, "{package}, {target}: no attack was measured: {}", ended.reason());
    }
    let row = |held: &Held| {
        let row = Row::new(format!("heap / budget: {}", held.attack), held.heap / held.budget, "", Target::AtMost(2.0));
        row.detail(format!("{:.0} bytes of live heap, {:.0} stated ({})", held.heap, held.budget, held.package))
    };
    let mut rows: Vec<Row> = seen.iter().map(row).collect();
    rows.push(Row::new("attacks on memory", seen.len() as f64, "", Target::AtLeast(40.0)));
    rows.push(documented(context, &seen)?);
    Ok(rows)
}

/// Ends of what a cell of the document says: a figure, or `A to B` where it differs from run to run.
fn range(cell: &str) -> Option<(f64, f64)> {
    let (least, most) = cell.split_once(" to ").unwrap_or((cell, cell));
    Some((least.parse().ok()?, most.parse().ok()?))
}

/// The table that docs/limits.md shows is in target/shows/attacks.md; there every attack has to stand, with what it holds within a
/// fifth and 16 KiB.
fn documented(context: &Context, seen: &[Held]) -> Result<Row> {
    let line = |held: &Held| {
        let kib = |bytes: f64| bytes / 1_024.0;
        let package = held.package.trim_start_matches("tiderace-");
        format!("| {} | {package} | {:.0} | {:.0} |", held.attack, kib(held.budget), kib(held.heap))
    };
    let head = "| attack | layer | budget (KiB) | live heap (KiB) |\n|---|---|---|---|";
    let table: Vec<String> = std::iter::once(head.to_owned()).chain(seen.iter().map(line)).collect();
    std::fs::write(context.commands.target().join("shows/attacks.md"), table.join("\n") + "\n")?;
    let document = std::fs::read_to_string(context.root.join("docs/limits.md"))?;
    let said: BTreeMap<&str, (f64, f64)> = document
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [attack, _, _, heap] = cells[..] else { return None };
            Some((attack, range(heap)?))
        })
        .collect();
    let is_true = |held: &&Held| {
        let now = held.heap / 1_024.0;
        let slack = 16.0 + 0.2 * now;
        said.get(held.attack.as_str()).is_some_and(|(least, most)| (least - slack..=most + slack).contains(&now))
    };
    let untrue: Vec<&str> = seen.iter().filter(|held| !is_true(held)).map(|held| held.attack.as_str()).collect();
    Ok(Row::new("attacks that docs/limits.md shows wrongly, or not", untrue.len() as f64, "", Target::Exactly(0.0))
        .detail(format!("table as measured: target/shows/attacks.md {}", untrue.join(", "))))
}

fn decoding(context: &Context) -> Result<Vec<Row>> {
    let ended = test(context, "decoding", &["--workspace", "--test", "protocol"], &["the_work_of_decoding_follows"])?;
    let mut rows = Vec::new();
    ensure!(ended.succeeded(), "{}", ended.reason());
    for (attack, fields) in lines(&ended.stdout, "attack: ") {
        let (work, conforming) = (field(&fields, "work per byte")?, field(&fields, "conforming")?);
        let what = format!("decoding work per byte, attack / conforming: {attack}");
        let detail = format!("{work} operations a byte under attack, {conforming} of a conforming transfer");
        rows.push(Row::new(what, work / conforming, "", Target::AtMost(3.0)).detail(detail));
    }
    ensure!(!rows.is_empty(), "no attack was measured: {}", ended.reason());
    Ok(rows)
}

/// NATs that change the mapping at 8 s and 12 s of a transfer, in virtual time and through the relay; the test beside it shows that the
/// PINGs are what helps.
fn rebinding(context: &Context) -> Result<Vec<Row>> {
    let after: &[&str] = if context.long {
        &["a_change_of_the_mapping_stalls_none_of_a_thousand", "--ignored"]
    } else {
        &["a_change_of_the_mapping_stalls_no_transfer"]
    };
    let arguments = ["--release", "-p", "tiderace-transport", "--test", "protocol"];
    let ended = test(context, "rebinding", &arguments, after)?;
    let mut rows = stalls(&ended)?;
    let mut command =
        cargo(&context.root, ["test", "--locked", "--release", "-p", "tiderace-cli", "--test", "rebinding"]);
    command.args(["--", "--ignored", "--nocapture"]);
    command.env("REBINDING_RELAY_RUNS", if context.long { "100" } else { "10" });
    let ended = context.commands.run("rebinding-relay", &mut command, LIMIT)?;
    rows.extend(stalls(&ended)?);
    rows.push(binary(context, "pings", &["--workspace", "--test", "protocol", "rebinding::"], LIMIT));
    Ok(rows)
}

/// Stalls of transfers that a test printed.
fn stalls(ended: &Ended) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in ended.stdout.lines().filter_map(|line| line.split_once("rebinding: ")) {
        let Some((_, role)) = line.1.rsplit_once(" | ") else { continue };
        let named = format!("rebinding: {role} | {}", line.1);
        let (_, fields) = &lines(&named, "rebinding: ")[0];
        let get = |name| field(fields, name);
        let detail = format!(
            "{} seeds, longest {} ms without data, {} ms allowed at most, {} PINGs",
            get("seeds")?,
            get("longest")?,
            get("limit")?,
            get("pings")?
        );
        let what = format!("transfers stalled beyond 3 PTO + 1 s: {role}");
        rows.push(Row::new(what, get("stalled")?, "", Target::Exactly(0.0)).detail(detail));
    }
    ensure!(!rows.is_empty(), "no run was measured: {}", ended.reason());
    Ok(rows)
}

fn addresses(context: &Context) -> Result<Vec<Row>> {
    let tests = |name, module| binary(context, name, &["--workspace", "--test", "gateway", module], LIMIT);
    Ok(vec![
        tests("edge-routing", "routing::"),
        tests("edge-security", "security::"),
        tests("edge-abuse", "abuse::"),
        tests("edge-hostile", "hostile::"),
        tests("edge-given-up", "given_up::"),
    ])
}

fn hostile_server(context: &Context) -> Result<Vec<Row>> {
    Ok(vec![binary(context, "hostile-server", &["--workspace", "--test", "hostile"], LIMIT)])
}

fn flaky(context: &Context) -> Result<Vec<Row>> {
    let rounds = if context.long { "100" } else { "4" };
    let mut command = cargo(&context.root, ["xtask", "flaky", "--rounds", rounds, "--json"]);
    let ended = context.commands.run("flaky", &mut command, Duration::from_secs(12 * 3_600))?;
    let lines: Vec<serde_json::Value> = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let sum = |name: &str| lines.iter().filter_map(|line| line[name].as_f64()).sum::<f64>();
    let (ran, asked) = (sum("rounds"), sum("asked"));
    let names: Vec<String> =
        lines.iter().filter(|line| line["red"] != 0).map(|line| line["failed"].to_string()).collect();
    Ok(vec![
        Row::new("rounds of test binaries that failed", sum("red"), "", Target::Exactly(0.0))
            .detail(format!("{ran} rounds, {rounds} of each binary under each condition {}", names.join(" "))),
        Row::new("rounds that ran, of those asked for", ran / asked, "", Target::Exactly(1.0)),
    ])
}

fn instructions(context: &Context) -> Result<Vec<Row>> {
    growth_of_instructions(context, 2.0)
}

/// Instructions beside the committed table, of which every line says what the work cost before. `percent` is the target.
pub(super) fn growth_of_instructions(context: &Context, percent: f64) -> Result<Vec<Row>> {
    let mut command = cargo(&context.root, ["xtask", "instructions", "--json"]);
    let ended = context.commands.run("growth-of-instructions", &mut command, LIMIT)?;
    let now: serde_json::Value = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let table = std::fs::read_to_string(context.root.join("bench/instructions.json"))?;
    let before: serde_json::Value = serde_json::from_str(&table)?;
    let mut rows = Vec::new();
    for (scenario, counts) in now.as_object().with_context(|| format!("no table: {}", ended.reason()))? {
        for side in ["client", "server"] {
            let count = |counts: &serde_json::Value| counts[side].as_f64().context("no count");
            let (now, before) = (count(counts)?, count(&before[scenario])?);
            let growth = 100.0 * (now / before - 1.0);
            rows.push(
                Row::new(format!("growth of instructions: {scenario}, {side}"), growth, "%", Target::AtMost(percent))
                    .detail(format!("{now} per unit of work, {before} in bench/instructions.json")),
            );
        }
    }
    Ok(rows)
}

/// Cost of attackers to their neighbours, and to the gateway.
fn neighbours(context: &Context) -> Result<Vec<Row>> {
    let mut command = cargo(
        &context.root,
        [
            "test",
            "--locked",
            "--profile",
            "dist",
            "-p",
            "tiderace-cli",
            "--test",
            "attacks",
            "--",
            "--ignored",
            "--nocapture",
        ],
    );
    if !context.long {
        command.env("ATTACK_SECONDS", "5");
    }
    let ended = context.commands.run("neighbours", &mut command, LIMIT)?;
    let seen = lines(&ended.stdout, "attacked: ");
    let download = seen.iter().find(|(name, _)| *name == "download");
    let (_, download) = download.with_context(|| format!("no download was measured: {}", ended.reason()))?;
    let download = field(download, "cpu per Mbit/s")?;
    let mut rows = Vec::new();
    for (attack, fields) in seen.iter().filter(|(name, _)| *name != "download") {
        let get = |name| field(fields, name);
        let (before, during) = (get("p99 before")?, get("p99 during")?);
        let detail = format!(
            "{before:.2} ms before, {during:.2} ms during {:.1} Mbit/s of attack; {} answers; {}",
            get("Mbit/s")?,
            get("answers")?,
            load()
        );
        rows.push(
            Row::new(format!("p99 of others: {attack}"), during / before, "x", Target::AtMost(2.0)).detail(detail),
        );
        let failures = get("failures")? + get("failures after")?;
        rows.push(Row::new(format!("failures of others: {attack}"), failures, "", Target::Exactly(0.0)));
        let cost = get("cpu per Mbit/s")?;
        rows.push(
            Row::new(format!("CPU per Mbit/s over a download's: {attack}"), cost / download, "x", Target::AtMost(3.0))
                .detail(format!("{:.1} % of a core; download: {:.3} %/Mbit/s", get("cpu")? * 100.0, download * 100.0)),
        );
        let (first, peak, last) = (get("rss before")?, get("rss peak")?, get("rss after")?);
        rows.push(
            Row::new(format!("memory 10 s after over before: {attack}"), last / first, "x", Target::AtMost(1.2))
                .detail(format!("{first:.0} KiB before, {peak:.0} at most, {last:.0} after")),
        );
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_say_a_figure_or_two() {
        assert_eq!((range("12"), range("12 to 20")), (Some((12.0, 12.0)), Some((12.0, 20.0))));
        assert_eq!((range("live heap (KiB)"), range("12 to")), (None, None));
    }

    #[test]
    fn lines_of_attacks() {
        let text = "test x ... attack: holes in one stream | budget 1048576 | heap 900\nattack: fec | work per byte 3.5 | conforming 2\n\
                    rebinding: client | seeds 40 | stalled 0 | longest 12.5 ms | limit 1900 ms | pings 3\nnothing\n";
        let attacks = lines(text, "attack: ");
        assert_eq!(attacks.len(), 2);
        assert_eq!(
            (attacks[0].0, attacks[0].1["budget"], attacks[0].1["heap"]),
            ("holes in one stream", 1_048_576.0, 900.0)
        );
        assert_eq!((attacks[1].1["work per byte"], attacks[1].1["conforming"]), (3.5, 2.0));
        let rebinding = lines(text, "rebinding: ");
        assert_eq!((rebinding[0].0, rebinding[0].1["longest"], rebinding[0].1["pings"]), ("client", 12.5, 3.0));
        assert!(field(&rebinding[0].1, "nothing").is_err());
    }
}
