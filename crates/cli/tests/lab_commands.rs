//! Commands as contenders of `tiderace lab run --real-time`: what is seen of them, how they fail, and what is left of them.
#![cfg(target_os = "linux")]

mod program;
mod scratch;

use std::{
    fs,
    process::{Command, Output},
    time::{Duration, Instant},
};

use program::{interrupt, refused, run, spawn};
use scratch::Scratch;
use serde_json::Value;

const TIDERACE: &str = env!("CARGO_BIN_EXE_tiderace");

/// A transfer of 200 kB over 10 Mbit/s and 40 ms.
fn scenario(scratch: &Scratch, workload: &str, duration: &str, commands: &str) -> String {
    let text = format!(
        r#"
        name = "commands"
        title = "10 Mbit/s and 40 ms"
        about = "A test."
        [path.down]
        rate = "10 Mbit/s"
        queue = "100 kB"
        delay = "20 ms"
        [traffic]
        {workload}
        [run]
        duration = "{duration}"
        seeds = 1
        [contenders]
        {commands}
        "#
    );
    let file = scratch.0.join("commands.toml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

const FLOWS: &str = "workload = \"flows\"\nconnections = 2\nstart-spread = \"200 ms\"\nresponse-size = \"200 kB\"";

/// Runs it; the records by the names of contenders. `None` where the system permits no emulated networks.
fn records(scratch: &Scratch, file: &str, options: &[&str]) -> Option<(Vec<Value>, Output)> {
    let out = scratch.0.join("out");
    let arguments = ["lab", "run", file, "--real-time", "--accept-busy", "--out", out.to_str().unwrap()];
    let output = run(&[&arguments[..], options].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("network namespaces") || error.contains("/dev/net/tun") {
        eprintln!("not tested, since this system refuses: {error}");
        return None;
    }
    let path = fs::read_dir(&out).unwrap_or_else(|_| panic!("{error}")).next().unwrap().unwrap().path();
    let text = fs::read_to_string(path).unwrap();
    Some((text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect(), output))
}

/// A machine that is too busy makes no run that fails for another reason.
fn reason(record: &Value) -> &str {
    record["outcome"]["failed"].as_str().unwrap_or_default()
}

#[test]
fn transfers_of_programs_are_measured_from_outside() {
    let scratch = Scratch::new("commands");
    let commands = format!(
        r#"
        [[contenders.commands]]
        name = "perf"
        server = "{TIDERACE} perf server --listen {{server}}:{{port}} --cert {{certificate}} --key {{key}}"
        client = "{TIDERACE} perf client {{server}}:{{port}} --bytes {{bytes}} --ca {{certificate}}"
        [[contenders.commands]]
        name = "curl"
        server = "exec python3 -m http.server {{port}} --directory {{directory}}"
        client = "curl -sf -o {{directory}}/got-{{connection}} http://{{server}}:{{port}}/{{file}} && cmp {{directory}}/{{file}} {{directory}}/got-{{connection}}"
        port = 8000
        "#
    );
    let file = scenario(&scratch, FLOWS, "8 s", &commands);
    let Some((records, output)) = records(&scratch, &file, &["--cc", "perf,curl"]) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = records.iter().map(|one| one["contender"]["name"].as_str().unwrap()).collect();

    assert_eq!(names[names.len() - 2..], ["perf", "curl"]);
    for record in &records[records.len() - 2..] {
        let why = reason(record);
        assert!(why.is_empty() || why.starts_with("not to be trusted"), "{why}\n{text}");
        let seen = &record["real_time"]["commands"];
        assert_eq!(seen["exit_codes"], serde_json::json!([0, 0]), "{record}");
        for took in seen["completion"].as_array().unwrap() {
            // Two of 200 kB take 320 ms at 10 Mbit/s together, each 160 ms alone, and a handshake takes 40 ms.
            assert!((0.2..8.0).contains(&took.as_f64().unwrap()), "{record}");
        }
        let bytes = |direction: usize| seen["link_bytes"][direction].as_u64().unwrap();
        assert!((400_000..600_000).contains(&bytes(1)) && (1_000..100_000).contains(&bytes(0)), "{record}");
        let value = |figure: &str| record["figures"][figure]["value"].as_f64();
        assert!((value("goodput").unwrap() - 8.0 * 400_000.0 / 8.0).abs() < 1.0, "{record}");
        // A process of Python or of ours takes more than a millisecond to start.
        for side in 0..2 {
            assert!(record["real_time"]["cpu"][side].as_f64().unwrap() > 0.002, "{record}");
        }
        for unseen in ["handshake", "rtt_p50", "overhead", "retransmitted"] {
            assert_eq!(value(unseen), None, "{unseen}");
        }
        let name = record["contender"]["name"].as_str().unwrap();
        let is_whole = |line: &str| line.starts_with(name) && line.contains("2 of 2");
        assert!(text.lines().any(is_whole) || !why.is_empty(), "{text}");
        assert!(!text.contains("never established"), "{text}");
    }
}

#[test]
fn without_a_size_only_the_link_is_seen() {
    let scratch = Scratch::new("commands-bulk");
    let file = scenario(&scratch, "workload = \"bulk\"\nconnections = 1", "2 s", "congestion = [\"cubic\"]");
    let server =
        format!("{TIDERACE} perf server --listen {{server}}:{{port}} --tcp --cert {{certificate}} --key {{key}}");
    let client = format!(
        "timeout 0.5 sh -c \"while :; do :; done\"; {TIDERACE} perf client {{server}}:{{port}} --tcp --duration 60s --ca {{certificate}}"
    );
    let options = ["--server", &server, "--client", &client, "--cc", "kernel-cubic"];
    let Some((records, _)) = records(&scratch, &file, &options) else { return };
    let names: Vec<&str> = records.iter().map(|one| one["contender"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kernel-cubic", "command"]);
    let (seen, value) = (&records[1]["real_time"]["commands"], &records[1]["figures"]["goodput"]["value"]);
    assert!(
        value.is_null() && reason(&records[1]).is_empty() | reason(&records[1]).starts_with("not to be"),
        "{}",
        records[1]
    );
    assert_eq!(seen["exit_codes"], serde_json::json!([null]));
    // 2 s of 10 Mbit/s are 2.5 MB.
    assert!((500_000..4_000_000).contains(&seen["link_bytes"][1].as_u64().unwrap()), "{seen}");
    // The CPU time of those that were ended is known as well, the half second before the transfer included.
    assert!(records[1]["real_time"]["cpu"][0].as_f64().unwrap() > 0.08, "{}", records[1]);
}

#[test]
fn failures_are_named() {
    let listens = "exec python3 -m http.server {port}";
    for (server, client, said) in [
        (
            listens,
            "echo no luck; exit 7",
            "the client 0 of `x` has ended with code 7 and only 0 counts; it said: no luck",
        ),
        (listens, "true && no-such-program", "ended with code 127 and only 0 counts (a command was not found"),
        ("true; exit 3", "true", "the server of `x` has ended with code 3 before it listened"),
        ("echo busy; exec sleep 600", "true", "does not listen on port 10000 within 10 s"),
        (
            "python3 -c \"import http.server as h, os; h.BaseHTTPRequestHandler.do_GET = lambda _: os.kill(os.getpid(), 9); \
             h.HTTPServer(('', {port}), h.BaseHTTPRequestHandler).serve_forever()\"; exit $?",
            "python3 -c \"import urllib.request as u; u.urlopen('http://{server}:{port}/')\"; exec sleep 600",
            "the server of `x` has ended with code 137 during the run",
        ),
    ] {
        let scratch = Scratch::new("commands-fail");
        let commands = format!(
            "congestion = []\n[[contenders.commands]]\nname = \"x\"\nserver = '''{server}'''\nclient = '''{client}'''"
        );
        let file = scenario(&scratch, &FLOWS.replace("connections = 2", "connections = 1"), "5 s", &commands);
        let Some((records, output)) = records(&scratch, &file, &["--cc", "x"]) else { return };
        assert!(reason(&records[0]).contains(said), "{said}: {}", records[0]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stdout).contains("of `x`"), "the report does not say why");
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    let scratch = Scratch::new("commands-refused");
    let command = |client: &str| format!("[[contenders.commands]]\nname = \"x\"\nserver = 'true'\nclient = '{client}'");
    let file = scenario(&scratch, FLOWS, "5 s", &command("no-such-program {port}"));
    let (error, hint) = refused(&["lab", "run", &file]);
    assert!(error.contains("`x` is a command, and runs in real time only") && hint.contains("--real-time"), "{error}");
    let (error, _) = refused(&["lab", "matrix", &file]);
    assert!(error.contains("`x` is a command"), "{error}");
    let (error, hint) = refused(&["lab", "run", &file, "--real-time", "--cc", "x"]);
    if !error.contains("network namespaces") && !error.contains("/dev/net/tun") {
        assert_eq!(error, "the client of `x`: there is no program `no-such-program`");
        assert!(hint.contains("install it"), "{hint}");
    }
    let file = scenario(&scratch, FLOWS, "5 s", &command("true {prot}"));
    let (error, hint) = refused(&["lab", "run", &file, "--real-time"]);
    assert!(error.contains("there is no placeholder `{prot}`") && hint.contains("`{port}`"), "{error} {hint}");
}

/// Number of processes with this argument.
fn alive(mark: &str) -> usize {
    let has_mark = |pid: &fs::DirEntry| {
        let line = fs::read(pid.path().join("cmdline")).unwrap_or_default();
        line.starts_with(b"sleep\0") && line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    fs::read_dir("/proc").unwrap().flatten().filter(has_mark).count()
}

/// Directories of runs of this process.
fn directories(id: u32) -> usize {
    let name = format!("tiderace-commands-{id}-");
    let is_own = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&name);
    fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(is_own).count()
}

fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    holds()
}

#[test]
fn everything_is_gone_after_success_failure_interruption_and_kill() {
    for (case, (last, signal)) in
        [("true", None), ("exit 9", None), ("exec sleep 600", Some("-INT")), ("exec sleep 600", Some("-KILL"))]
            .into_iter()
            .enumerate()
    {
        // No other process of this machine sleeps as long.
        let mark = format!("{}.{}", 600 + case, std::process::id());
        let litter = format!("sleep {mark} & setsid sleep {mark} & (setsid sleep {mark} &)");
        let scratch = Scratch::new("commands-gone");
        let commands = format!(
            "[[contenders.commands]]\nname = \"x\"\nserver = '{litter}; exec python3 -m http.server {{port}}'\nclient = '{litter}; sleep 1; {last}'"
        );
        let file = scenario(&scratch, &FLOWS.replace("connections = 2", "connections = 1"), "9 s", &commands);
        let out = scratch.0.join("out");
        let arguments =
            ["lab", "run", &file, "--real-time", "--accept-busy", "--cc", "x", "--out", out.to_str().unwrap()];
        let mut child = spawn(&arguments);
        // Three of each.
        if !within(Duration::from_secs(10), || alive(&mark) == 6 || child.try_wait().unwrap().is_some()) {
            panic!("{} processes", alive(&mark));
        }
        if child.try_wait().unwrap().is_some_and(|status| status.code() == Some(2)) {
            eprintln!("not tested, since this system refuses");
            return;
        }
        match signal {
            Some("-INT") => interrupt(&child),
            Some(signal) => {
                let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
                assert!(killed.success());
            }
            None => {}
        }
        let status = child.wait().unwrap();
        // A machine that was too busy makes a report that may not be used.
        let permitted: &[Option<i32>] = match (signal, last) {
            (Some("-KILL"), _) => &[None],
            (None, "true") => &[Some(0), Some(1)],
            _ => &[Some(1)],
        };
        assert!(permitted.contains(&status.code()), "{last} {signal:?}: {status:?}");
        // The kernel ends processes after those that they die with.
        assert!(within(Duration::from_secs(2), || alive(&mark) == 0), "{last} {signal:?}: {}", alive(&mark));
        if signal == Some("-KILL") {
            // Nobody was left to remove its files. The next run does.
            let commands =
                "[[contenders.commands]]\nname = \"x\"\nserver = 'exec python3 -m http.server {port}'\nclient = 'true'";
            scenario(&scratch, &FLOWS.replace("connections = 2", "connections = 1"), "9 s", commands);
            let status = run(&arguments).status;
            assert!([Some(0), Some(1)].contains(&status.code()), "{status:?}");
        }
        assert_eq!(directories(child.id()), 0, "{last} {signal:?}");
    }
}
