//! Check of a written scenario: the same probe on the emulated path, whose figures have to be those of the real one.

use std::{
    fmt::Write as _,
    io::Write as _,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    ProbeArgs,
    client::Direction,
    estimate::ecn::Ecn,
    results::{Figure, Results},
    scenario,
};
use crate::{address::plain, failure::Failure, interrupt::Interrupt};

/// Time between two looks at the emulation.
const LOOK: Duration = Duration::from_millis(20);

/// Figure of the path beside that of its scenario.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Check {
    name: &'static str,
    direction: Option<Direction>,
    unit: &'static str,
    /// A number, or the fate of marks; null if it was not measured.
    measured: Value,
    /// As above; a number that is null: the emulated path has no such figure.
    emulated: Value,
    tolerance: &'static str,
    /// `None`: not measured on one of the paths, which is no difference.
    agrees: Option<bool>,
}

/// All figures that a scenario has to reproduce.
#[derive(Debug, Serialize)]
pub(super) struct ScenarioCheck {
    pub(super) agrees: bool,
    /// Reason not to trust the emulation: late or lost packets on this machine.
    doubt: Option<String>,
    checks: Vec<Check>,
}

/// Probes the scenario of `results` behind the emulator and compares.
///
/// # Errors
/// When there is no scenario, this system does not permit emulated networks, or the probe fails there.
pub(super) async fn run(results: &Results, args: &ProbeArgs) -> Result<ScenarioCheck, Failure> {
    if results.is_partial {
        return Err(Failure::new("the scenario is not checked: the run was interrupted").hint("run it again"));
    }
    let text = scenario::text(results, "checked", "the same host").ok_or_else(|| {
        Failure::new("the scenario is not checked: that needs a round trip and a rate of downloads")
            .hint("load the path: without `--idle`, with `--yes`")
    })?;
    let mut interrupt = Interrupt::listen()?;
    eprintln!("checking the scenario: the same measurement on an emulated path, for about {} s", args.time.as_secs());
    let failed = |error: std::io::Error| Failure::new(format_args!("cannot check the scenario: {}", plain(&error)));
    let mut child = start(args).map_err(failed)?;
    // The scenario comes over standard input: no file is left behind.
    child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes())).map_err(failed)?;
    let [stdout, stderr] = [pipe(child.stdout.take()), pipe(child.stderr.take())];
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        tokio::select! {
            () = interrupt.wait() => {
                // Its network ends with it.
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                return Err(Failure::new("the scenario is not checked: the run was interrupted").hint("run it again"));
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    };
    let [stdout, stderr] = [stdout, stderr].map(|thread| thread.join().unwrap_or_default());
    judge(results, &Output { status, stdout, stderr })
}

/// Starts the emulated path with both ends of a probe.
fn start(args: &ProbeArgs) -> std::io::Result<Child> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    // The shell's variable spares quoting.
    let server = "exec \"$TIDERACE_PROGRAM\" probe --serve 10.2.0.1:4433 --open --json";
    command.env("TIDERACE_PROGRAM", &program);
    command.args(["lab", "shell", "/dev/stdin", "--quiet", "--server", server, "--"]).arg(&program);
    command.args(["probe", "10.2.0.1:4433", "--insecure", "--yes", "--json"]);
    command.args(["--time", &format!("{} ms", args.time.as_millis())]);
    command.args(["--bytes", &format!("{} B", args.bytes.as_bytes())]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(target_os = "linux")]
    emu::network::die_with_this_thread(&mut command);
    command.spawn()
}

/// Reads all of a pipe on a thread of its own.
fn pipe(source: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = source.map(|mut source| source.read_to_end(&mut bytes));
        bytes
    })
}

fn judge(results: &Results, output: &Output) -> Result<ScenarioCheck, Failure> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let line = |start: &str| stderr.lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned);
    let report = serde_json::from_slice::<Value>(&output.stdout).ok().filter(|_| output.status.success());
    let Some(report) = report else {
        let why = line("error: ").unwrap_or_else(|| output.status.to_string());
        let failure = Failure::new(format_args!("the scenario is not checked: {why}"));
        return Err(match line("hint: ") {
            Some(hint) => failure.hint(hint),
            None => failure,
        });
    };
    Ok(ScenarioCheck::new(results, &report, line("do not trust this run: ")))
}

/// Compares figures that a scenario has, as far as the path has shown them. Lower bounds say nothing.
fn compare(figures: &[Figure], emulated: &Value) -> Vec<Check> {
    let bounded = figures.iter().filter_map(|figure| Some((figure, figure.estimate.high?)));
    let checks = bounded.filter_map(|(figure, high)| {
        let direction = figure.direction.map(Direction::name);
        let found = emulated.as_array().into_iter().flatten();
        let found = found.into_iter().find(|one| one["name"] == figure.name && one["direction"].as_str() == direction);
        let of = |name: &str| found.and_then(|found| found[name].as_f64());
        let (value, measured) = (of("value"), figure.estimate.value);
        let within =
            |low: f64, high: f64| value.is_some_and(|value| (measured * low..=measured * high).contains(&value));
        let (tolerance, agrees) = match figure.name {
            "rtt-min" => {
                ("2 ms or 5 %", value.is_some_and(|value| (value - measured).abs() <= (measured * 0.05).max(2.0)))
            }
            "rate" => ("10 %", within(0.9, 1.1)),
            "queue" => ("25 %", within(0.75, 1.25)),
            "policer-burst" => ("factor 2", within(0.5, 2.0)),
            "mtu" => ("exact", within(1.0, 1.0)),
            "loss" => {
                let overlaps =
                    of("low").zip(of("high")).is_some_and(|(from, to)| from <= high && to >= figure.estimate.low);
                ("intervals overlap", overlaps)
            }
            _ => return None,
        };
        let (name, direction, unit) = (figure.name, figure.direction, figure.unit);
        let (measured, emulated) = (json!(measured), json!(value));
        Some(Check { name, direction, unit, measured, emulated, tolerance, agrees: Some(agrees) })
    });
    checks.collect()
}

/// Compares the fate of ECN marks in a direction: of ECT(0) and CE, and of ECT(1).
fn compare_marks(direction: Direction, marks: Option<&Ecn>, emulated: &Value) -> [Check; 2] {
    let measured = |fate: fn(&Ecn) -> Value| marks.map_or(Value::Null, fate);
    let classic = measured(|marks| json!(marks.classic_fate()));
    let l4s = measured(|marks| json!(marks.l4s()));
    [("ecn", classic, &emulated["classic"]), ("l4s", l4s, &emulated["l4s"])].map(|(name, measured, emulated)| {
        let agrees = (!measured.is_null() && !emulated.is_null()).then(|| measured == *emulated);
        let (direction, emulated) = (Some(direction), emulated.clone());
        Check { name, direction, unit: "", measured, emulated, tolerance: "same fate", agrees }
    })
}

impl ScenarioCheck {
    /// Compares results with the report of the emulated path.
    fn new(results: &Results, report: &Value, doubt: Option<String>) -> Self {
        let mut checks = compare(&results.figures(), &report["figures"]);
        for direction in Direction::BOTH {
            let marks = results.way(direction).ecn.as_ref().map(|ecn| &ecn.value);
            checks.extend(compare_marks(direction, marks, &report["ecn"][direction.name()]));
        }
        let differs = checks.iter().any(|check| check.agrees == Some(false));
        Self { agrees: doubt.is_none() && !differs, doubt, checks }
    }

    /// Lines below the report.
    pub(super) fn text(&self) -> String {
        let verdict =
            if self.agrees { "the scenario behaves like the path" } else { "the scenario differs from the path" };
        let mut out = format!("\nScenario on an emulated path: {verdict}\n");
        for check in &self.checks {
            let direction = check.direction.map_or("", Direction::name);
            let [measured, emulated] = [&check.measured, &check.emulated].map(|value| match (value, check.agrees) {
                (Value::Null, None) => "-".to_owned(),
                (Value::Null, Some(_)) => "none".to_owned(),
                (Value::String(fate), _) => fate.clone(),
                (number, _) => format!("{:.2}", number.as_f64().unwrap_or_default()),
            });
            let verdict = match check.agrees {
                Some(true) => "agrees",
                Some(false) => "differs",
                None => "-",
            };
            let _ = writeln!(
                out,
                "  {:<14} {direction:<5} {measured:>15} {emulated:>15} {:<8} {verdict} ({})",
                check.name, check.unit, check.tolerance
            );
        }
        if let Some(doubt) = &self.doubt {
            let _ = writeln!(out, "  does not count: {doubt}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            estimate::{
                Estimate,
                ecn::{CE, ECT0, ECT1, Marked, NOT_ECT},
            },
            results::{Cost, Measured},
        },
        *,
    };

    fn figure(name: &'static str, direction: Option<Direction>, estimate: Estimate) -> Figure {
        Figure { name, direction, estimate, unit: "", cost: Cost::default(), method: "" }
    }

    #[test]
    fn each_figure_has_its_tolerance() {
        let down = Some(Direction::Down);
        let measured = [
            figure("rtt-min", None, Estimate::new(20.0, 20.0, 20.0, 40)),
            figure("rate", down, Estimate::new(10.0, 9.9, 10.1, 500)),
            figure("loss", down, Estimate::new(1.0, 0.5, 2.0, 500)),
            figure("queue", down, Estimate::at_least(60.0, 500)),
            figure("ecn", down, Estimate::new(100.0, 100.0, 100.0, 9)),
        ];
        let emulated = |rtt: f64, rate: f64, low: f64| {
            json!([
                { "name": "rtt-min", "direction": null, "value": rtt },
                { "name": "rate", "direction": "up", "value": 10.0 },
                { "name": "rate", "direction": "down", "value": rate },
                { "name": "loss", "direction": "down", "value": low, "low": low, "high": low + 1.0 },
            ])
        };
        let agrees = |found: &Value| {
            compare(&measured, found).iter().map(|check| check.agrees == Some(true)).collect::<Vec<_>>()
        };
        assert_eq!(agrees(&emulated(21.9, 10.9, 1.9)), [true, true, true]);
        assert_eq!(agrees(&emulated(22.1, 11.1, 2.1)), [false, false, false]);
        assert_eq!(agrees(&json!([])), [false, false, false]);
    }

    /// Check of a path with these marks upwards.
    fn judged(up: Option<Ecn>, emulated: &Value) -> ScenarioCheck {
        let mut results = Results::default();
        results.up.ecn = up.map(|value| Measured { value, cost: Cost::default() });
        ScenarioCheck::new(&results, &json!({ "figures": [], "ecn": emulated }), None)
    }

    #[test]
    fn each_direction_has_its_marks() {
        let [ect0, ect1, ce] = [ECT0, ECT1, CE].map(|mark| Marked::new(8, [mark; 8]));
        let cleared = Marked::new(8, [NOT_ECT; 8]);
        let kept = Ecn { ect0, ect1, ce };
        let emulated = |classic: &str, l4s: &str| json!({ "up": { "classic": classic, "l4s": l4s }, "down": null });
        let same = judged(Some(kept), &emulated("survive", "survives"));
        assert!(same.agrees && same.checks.len() == 4, "{same:?}");
        for (marks, fates) in [
            (kept, ("cleared", "survives")),
            (kept, ("survive", "cleared")),
            (Ecn { ect1: cleared, ..kept }, ("survive", "survives")),
            (Ecn { ect1: Marked::new(8, []), ..kept }, ("survive", "survives")),
            (Ecn { ect0: cleared, ce: cleared, ..kept }, ("survive", "survives")),
        ] {
            let differs = judged(Some(marks), &emulated(fates.0, fates.1));
            let found: Vec<_> = differs.checks.iter().filter(|check| check.agrees == Some(false)).collect();
            assert!(!differs.agrees && found.len() == 1 && found[0].direction == Some(Direction::Up), "{differs:?}");
            assert!(differs.text().contains("differs (same fate)"), "{}", differs.text());
        }
    }

    #[test]
    fn marks_that_were_not_measured_are_no_difference() {
        let [ect0, ect1, ce] = [ECT0, ECT1, CE].map(|mark| Marked::new(8, [mark; 8]));
        let emulated = json!({ "up": { "classic": "cleared", "l4s": null }, "down": { "classic": "cleared" } });
        for (up, lines) in
            [(None, ["-", "cleared"]), (Some(Ecn { ect1, ..Ecn { ect0, ce, ..Ecn::default() } }), ["survives", "-"])]
        {
            let check = judged(up, &emulated);
            let text = check.text();
            let name = if up.is_none() { "ecn" } else { "l4s" };
            let line = text.lines().find(|line| line.contains(name) && line.contains(" up ")).unwrap();
            let columns: Vec<_> = line.split_whitespace().collect();
            assert_eq!(columns[..5], [name, "up", lines[0], lines[1], "-"], "{text}");
            assert_eq!(check.agrees, up.is_none(), "{text}");
        }
        assert!(judged(None, &Value::Null).agrees);
    }
}
