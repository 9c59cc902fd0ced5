//! Files and sentences of the laboratory and of `perf`, `get` and `relay`, opened by other programs.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{qlog::schema, scenario::PRESETS};

use super::{
    Case, Context,
    command::{Running, cargo},
    row::{Row, Target},
};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("qlog", "qlog 0.3 of `lab run`, `perf` and `get` against its schema", qlog),
        case("pcapng", "packets of `lab run`, `perf`, `get` and `relay` decrypt in tshark", pcapng),
        case("presets", "each preset ends with a sentence that names a winner or says undecided", presets),
    ]
}

const BUILD: Duration = Duration::from_secs(3_600);
const RUN: Duration = Duration::from_secs(600);

/// The program, built, and a directory for what it writes.
struct Program<'a> {
    context: &'a Context,
    path: PathBuf,
    scratch: PathBuf,
}

impl<'a> Program<'a> {
    fn build(context: &'a Context, case: &str) -> Result<Self> {
        let build = &mut cargo(&context.root, ["build", "--release"]);
        context.commands.run("face-build", build, BUILD)?.ok()?;
        let path = context.commands.target().join("release/tiderace");
        Ok(Self { context, path, scratch: context.commands.scratch(&format!("face-{case}"))? })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.scratch).args(arguments).env_remove("SSLKEYLOGFILE");
        command
    }

    /// Runs it to its end, well.
    fn run(&self, name: &str, arguments: &[&str]) -> Result<String> {
        Ok(self.context.commands.run(name, &mut self.command(arguments), RUN)?.ok()?.stdout)
    }

    /// Starts a server, and returns the address that it prints.
    fn start(&self, name: &str, command: &mut Command) -> Result<(Running, String)> {
        let mut server = self.context.commands.start(name, command)?;
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let printed = server.printed();
            let mut words = printed.split(|c: char| c.is_whitespace() || "\"/,".contains(c));
            let address =
                words.find(|word| word.parse::<std::net::SocketAddr>().is_ok_and(|address| address.port() > 0));
            if let Some(address) = address {
                return Ok((server, address.to_owned()));
            }
            ensure!(server.alive() && Instant::now() < limit, "`{name}` does not listen: {printed}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has a server end as Ctrl-C would.
    fn interrupt(&self, mut server: Running) -> Result<()> {
        let mut kill = Command::new("kill");
        kill.args(["-INT", &server.id().to_string()]);
        self.context.commands.run("face-interrupt", &mut kill, RUN)?.ok()?;
        let limit = Instant::now() + Duration::from_secs(60);
        while server.alive() {
            ensure!(Instant::now() < limit, "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// A transfer of `perf` with these options at the client.
    fn perf(&self, options: &[&str]) -> Result<()> {
        let serve = ["perf", "server", "--listen", "127.0.0.1:0"];
        let (server, address) = self.start("face-perf-server", &mut self.command(&serve))?;
        let ask = ["perf", "client", &address, "--insecure", "--bytes", "1M"];
        self.run("face-perf-client", &[&ask[..], options].concat())?;
        self.interrupt(server)
    }

    /// A server of files for `get`, with a certificate of its own.
    fn serve(&self) -> Result<(Running, String)> {
        let files = self.scratch.join("files");
        std::fs::create_dir_all(&files)?;
        std::fs::write(files.join("index.html"), "a page\n".repeat(1_000))?;
        let files = files.to_str().context("the target directory is not UTF-8")?.to_owned();
        self.start("face-serve", &mut self.command(&["serve", &files, "--listen", "127.0.0.1:0"]))
    }
}

/// Files below a directory whose names end so.
fn files(directory: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| format!("{}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, end)?);
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    Ok(found)
}

const LAB: [&str; 9] = ["lab", "run", "mobile", "--seeds", "1", "--connections", "2", "--duration", "2s"];

/// Files of qlog 0.3.
fn qlog(context: &Context) -> Result<Vec<Row>> {
    let program = Program::build(context, "qlog")?;
    let into = |directory| ["--qlog", directory, "--qlog-format", "0.3"];
    program.run("face-qlog-lab", &[&LAB[..], &into("lab")].concat())?;
    program.perf(&into("perf"))?;
    let (server, address) = program.serve()?;
    let url = format!("https://{address}/index.html");
    program.run("face-qlog-get", &[&["get", "-k", "--http3", &url][..], &into("get")].concat())?;
    program.interrupt(server)?;
    let rows = ["lab", "perf", "get"].into_iter().map(|command| {
        let files = files(&program.scratch.join(command), ".sqlog")?;
        ensure!(!files.is_empty(), "`{command}` has written no qlog file");
        let mut events = 0;
        let mut faults = Vec::new();
        for file in &files {
            match schema::check(BufReader::new(File::open(file)?)) {
                Ok(counts) => events += counts.values().sum::<usize>(),
                Err(error) => faults.push(format!("{}: {error}", file.display())),
            }
        }
        let detail = format!("{} files, {events} events {}", files.len(), faults.join("; "));
        let what = format!("`{command}`: files that violate qlog 0.3");
        Ok(Row::new(what, count(faults.len()), "", Target::Exactly(0.0)).detail(detail))
    });
    rows.collect()
}

/// Files of packets with keys.
fn pcapng(context: &Context) -> Result<Vec<Row>> {
    let program = Program::build(context, "pcapng")?;
    program.run("face-pcapng-lab", &[&LAB[..], &["--cc", "cubic", "--qlog", "lab", "--pcapng"]].concat())?;
    program.perf(&["--pcapng", "perf.pcapng"])?;
    let (server, address) = program.serve()?;
    let url = format!("https://{address}/index.html");
    let get = ["get", "-k", "--http3", &url];
    program.run("face-pcapng-get", &[&get[..], &["--pcapng", "get.pcapng"]].concat())?;
    let relay = ["relay", "--path", "production", "--listen", "127.0.0.1:0", "--to", &address];
    let keys = ["--pcapng", "relay.pcapng", "--keys", "keys.log"];
    let (relay, at) = program.start("face-relay", &mut program.command(&[&relay[..], &keys].concat()))?;
    let mut through = program.command(&[&get[..], &["--udp", &at]].concat());
    through.env("SSLKEYLOGFILE", program.scratch.join("keys.log"));
    context.commands.run("face-pcapng-relay", &mut through, RUN)?.ok()?;
    program.interrupt(relay)?;
    program.interrupt(server)?;
    let of_lab = files(&program.scratch.join("lab"), "packets.pcapng")?;
    let [of_lab] = of_lab.as_slice() else { anyhow::bail!("{} files of packets of `lab run`", of_lab.len()) };
    let all = [
        ("lab run", of_lab.clone()),
        ("perf", program.scratch.join("perf.pcapng")),
        ("get", program.scratch.join("get.pcapng")),
        ("relay", program.scratch.join("relay.pcapng")),
    ];
    let mut rows = Vec::new();
    for (command, file) in all {
        let packets = shown(context, &file, "quic.short")?;
        let opened = shown(context, &file, "quic.short && quic.frame_type")?;
        let share = f64::from(opened) / f64::from(packets.max(1));
        let what = format!("`{command}`: 1-RTT packets that tshark decrypts");
        rows.push(
            Row::new(what, share * 100.0, "%", Target::AtLeast(100.0))
                .detail(format!("{opened} of {packets} packets have frames; {}", file.display())),
        );
    }
    Ok(rows)
}

/// Packets that tshark shows by a filter.
fn shown(context: &Context, file: &Path, filter: &str) -> Result<u32> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-Y", filter, "-T", "fields", "-e", "frame.number"]);
    let ended = context.commands.run("face-tshark", &mut tshark, RUN).context("it takes tshark")?.ok()?;
    u32::try_from(ended.stdout.lines().count()).context("too many packets")
}

/// Conclusions of presets.
fn presets(context: &Context) -> Result<Vec<Row>> {
    let program = Program::build(context, "presets")?;
    let mut faults = Vec::new();
    let mut decided = 0;
    for preset in PRESETS {
        let seeds: &[&str] = if context.long { &[] } else { &["--seeds", "1"] };
        let limit = Duration::from_secs(7_200);
        let mut command = program.command(&[&["lab", "run", preset.name][..], seeds].concat());
        let printed = context.commands.run(&format!("face-{}", preset.name), &mut command, limit)?.ok()?.stdout;
        match conclusion(&printed) {
            Ok(sentence) => decided += usize::from(!sentence.contains("undecided")),
            Err(why) => faults.push(format!("{}: {why}", preset.name)),
        }
    }
    let detail = format!("{} presets, {decided} name a winner or say even {}", PRESETS.len(), faults.join("; "));
    let what = "presets without a conclusion in 80 columns";
    Ok(vec![Row::new(what, count(faults.len()), "", Target::Exactly(0.0)).detail(detail)])
}

/// The sentence before the names of files, or what is wrong with the report.
fn conclusion(printed: &str) -> Result<String> {
    let widest = printed.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    ensure!(widest <= 80, "a line of {widest} columns");
    let (report, _) = printed.split_once("\nRecords: ").context("no records are named")?;
    let last = report.trim_end().rsplit("\n\n").next().unwrap_or_default().replace('\n', " ");
    let verdicts = [" wins ", "undecided", " is even", " even"];
    ensure!(verdicts.iter().any(|verdict| last.contains(verdict)), "no verdict in: {last}");
    ensure!(last.trim_end().ends_with('.'), "no sentence: {last}");
    Ok(last)
}

fn count(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_ends_with_a_verdict() {
        let report = |sentence: &str| format!("a table\n\n{sentence}\n\nRecords: a.jsonl\nAll figures: …\n");
        assert!(conclusion(&report("With 1 connection, cubic wins\nwith goodput 3 Mbit/s.")).is_ok());
        assert!(conclusion(&report("With 1 connection, undecided, because 1 seed decides nothing.")).is_ok());
        for other in ["One contender alone.", "cubic wins with", &format!("cubic wins {}.", "x".repeat(80))] {
            assert!(conclusion(&report(other)).is_err(), "{other}");
        }
        assert!(conclusion("cubic wins.").is_err());
    }
}
