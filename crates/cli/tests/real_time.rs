//! `tiderace lab run --real-time`: the kernel's TCP beside our stacks in one report.
#![cfg(target_os = "linux")]

mod program;
mod scratch;
mod terminal;

use std::time::{Duration, Instant};

use program::{refused, run};
use scratch::Scratch;
use terminal::AtTerminal;

const SCENARIO: &str = r#"
name = "short"
title = "10 Mbit/s and 20 ms"
about = "A test."
[path.down]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "10 ms"
[path.up]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "10 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "500 ms"
duration = "1 s"
seeds = 1
"#;

#[test]
fn the_kernel_stands_beside_our_stacks() {
    for device in ["tun", "veth"] {
        stands_beside_our_stacks_over(device);
    }
}

fn stands_beside_our_stacks_over(device: &str) {
    let scratch = Scratch::new(&format!("real-time-{device}"));
    let (file, out) = (scratch.0.join("short.toml"), scratch.0.join("out"));
    std::fs::write(&file, SCENARIO).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let mut arguments = vec!["lab", "run", file, "--real-time", "--accept-busy", "--device", device];
    arguments.extend(["--cc", "cubic,kernel-cubic,kernel-reno", "--out", out]);
    let output = run(&[&arguments[..], &["--json"]].concat());
    if output.status.code() == Some(2) {
        let (error, _) = refused(&arguments);
        eprintln!("not tested, since this system refuses: {error}");
        return;
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> =
        report["contenders"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tiderace cubic", "kernel-cubic", "kernel-reno"]);
    let checks = report["self_test"].as_array().unwrap();
    let drops = checks.iter().find(|check| check["name"] == "nothing lost on this machine").unwrap();
    assert_eq!(drops["detail"], format!("0 packets dropped by devices ({device})"));
    // The kernel's TCP has no simulator. Runs that do not count are not compared.
    if report["contenders"][0]["runs"] == 1 {
        let both = report["both_clocks"].as_array().unwrap();
        assert_eq!((both.len(), &both[0]["contender"]), (1, &"tiderace cubic".into()));
        assert!(both[0]["goodput"]["simulated"].as_f64().unwrap() > 0.0 && both[0]["agrees"].is_boolean(), "{both:?}");
    }
    // The records of a machine that was too busy are there as well, and say why they do not count.
    let records = std::fs::read_dir(out).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(records).unwrap();
    let runs: Vec<serde_json::Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), 3);
    for run in &runs {
        let kernel = run["contender"]["name"].as_str().unwrap().starts_with("kernel-");
        assert!(run["figures"]["goodput"]["value"].as_f64().unwrap() > 0.0, "{run}");
        assert_eq!(run["figures"]["rtt_p50"]["value"].is_null(), kernel, "{run}");
        assert_eq!(run["figures"]["smoothed_rtt"]["value"].is_null(), !kernel, "{run}");
        assert_eq!(run["real_time"]["device"], device, "{run}");
        let cpu = |of: &str| run["real_time"][of].as_f64().unwrap();
        assert!(0.0 < cpu("cpu_receiving") && cpu("cpu_receiving") < cpu("cpu_emulator"), "{run}");
    }
}

#[test]
fn runs_beside_busy_programs_are_made_again() {
    let scratch = Scratch::new("real-time-again");
    let (file, out) = (scratch.0.join("short.toml"), scratch.0.join("out"));
    std::fs::write(&file, SCENARIO).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let cores = std::thread::available_parallelism().unwrap().get();
    let busy = |_| std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut busy: Vec<_> = (0..cores.div_ceil(2)).map(busy).collect();
    let options = ["--real-time", "--cc", "cubic,kernel-cubic", "--out", out];
    let outputs = [&["lab", "run", file][..], &["lab", "matrix", file, "--vary", "path.down.rate=9Mbit/s"]]
        .map(|command| run(&[command, &options].concat()));
    for child in &mut busy {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for output in outputs {
        let stderr = String::from_utf8(output.stderr).unwrap();
        if output.status.code() == Some(2) {
            eprintln!("not tested, since this system refuses: {stderr}");
            continue;
        }
        // Of two runs one may be repeated.
        let told = "tiderace cubic, seed 1: made again, the run before was not to be trusted: ";
        assert_eq!(stderr.matches(told).count(), 1, "{stderr}");
        assert_eq!(stderr.matches("made again").count(), 1, "{stderr}");
    }
}

/// A few round trips of requests, so that settings of the handshake and of HTTP are used.
#[test]
fn settings_of_the_kernels_tcp_are_at_work() {
    let scratch = Scratch::new("real-time-settings");
    let (file, out) = (scratch.0.join("settings.toml"), scratch.0.join("out"));
    let traffic = "workload = \"requests\"\nconnections = 2\nstreams = 4\nrequest-size = \"400 B\"\n\
                   response-size = \"20 kB\"\n";
    let bulk = SCENARIO.lines().find(|line| line.starts_with("workload")).unwrap();
    assert_eq!(bulk, "workload = \"bulk\"");
    let text: Vec<_> = SCENARIO.lines().filter(|line| !line.starts_with("connections")).collect();
    std::fs::write(&file, text.join("\n").replace(bulk, traffic)).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let names = [
        "kernel-cubic:http1:3",
        "kernel-cubic:fast-open:tls1.2",
        "kernel-reno:mptcp:buffer=64KiB",
        "kernel-cubic:http1:fast-open:x25519",
        "kernel-cubic:mss=1310",
    ];
    let cc = names.join(",");
    let arguments = ["lab", "run", file, "--real-time", "--accept-busy", "--cc", &cc, "--out", out];
    let output = run(&[&arguments[..], &["--json"]].concat());
    if output.status.code() == Some(2) {
        let (error, _) = refused(&arguments);
        // Not because of the scenario: every other is refused as well.
        assert_eq!(refused(&["lab", "run", "mobile", "--real-time", "--out", out]).0, error);
        eprintln!("not tested, since this system refuses: {error}");
        return;
    }
    let records = std::fs::read_dir(out).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(records).unwrap();
    let runs: Vec<serde_json::Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), names.len());
    for run in &runs {
        // The connections' own figures show each setting, or the run counts as failed.
        let failed = run["outcome"]["failed"].as_str().unwrap_or_default();
        assert!(failed.is_empty() || failed.contains("not to be trusted"), "{run}");
        assert!(run["figures"]["request_p50"]["value"].as_f64().unwrap() > 0.0, "{run}");
    }
    let shown = |run: &serde_json::Value, factor: &str| {
        let all = run["connections"][0]["evidence"].as_array().unwrap().iter();
        all.filter(|one| one["factor"] == factor).map(|one| one["value"].as_str().unwrap().to_owned()).next()
    };
    assert_eq!(shown(&runs[0], "http").as_deref(), Some("1.1"));
    assert_eq!(shown(&runs[0], "connections").as_deref(), Some("3"));
    assert_eq!(shown(&runs[1], "tls").as_deref(), Some("1.2"));
    assert_eq!(shown(&runs[3], "key-exchange").as_deref(), Some("x25519"));
    assert_eq!(shown(&runs[2], "mptcp").as_deref(), Some("on"));
    assert_eq!(shown(&runs[2], "buffer").as_deref(), Some("65536"));
    assert_eq!(shown(&runs[4], "mss").as_deref(), Some("1310"));
}

#[test]
fn the_screen_shows_contenders_and_q_keeps_complete_runs() {
    let scratch = Scratch::new("real-time-screen");
    let (file, out) = (scratch.0.join("short.toml"), scratch.0.join("out"));
    std::fs::write(&file, SCENARIO).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let base = ["lab", "run", file, "--real-time", "--accept-busy", "--cc", "cubic", "--screen", "--out", out];
    let output = run(&[&base[..], &["--seeds", "1", "--json"]].concat());
    if output.status.code() == Some(2) {
        let (error, _) = refused(&base);
        eprintln!("not tested, since this system refuses: {error}");
        return;
    }
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(!stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'), "{stdout} {stderr}");
    std::fs::remove_dir_all(out).unwrap();
    // So many seeds that the runs are not over by themselves.
    let mut lab = AtTerminal::start(&[&base[..], &["--seeds", "500"]].concat());
    lab.until(&["goodput", "tiderace", "cubic", "Mbit/s"]);
    // A line for the manifest, and one for each run.
    let complete = || {
        let stored =
            std::fs::read_dir(out).unwrap().find_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok());
        stored.is_some_and(|records| records.lines().count() > 2)
    };
    let begun = Instant::now();
    while !complete() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no run ends");
        std::thread::sleep(Duration::from_millis(50));
    }
    lab.press("q");
    let (code, rest) = lab.ended();
    assert_eq!(code, Some(1), "{rest}");
    assert!(rest.contains("interrupted: ") && rest.contains("of 500 runs are complete"), "{rest}");
    // The report is of the seeds that have run.
    assert!(rest.contains("In real time (medians)") && !rest.contains("500 seeds"), "{rest}");
}

#[test]
fn what_cannot_be_is_refused() {
    let (error, hint) = refused(&["lab", "run", "mobile", "--cc", "kernel-cubic"]);
    assert_eq!(
        (error.as_str(), hint.as_str()),
        ("`kernel-cubic` is the kernel's, and runs in real time only", "add --real-time")
    );
    let (error, hint) = refused(&["lab", "run", "mobile", "--real-time", "--cc", "kernel-vegas"]);
    assert!(error.contains("no contender `kernel-vegas`") && hint.contains("kernel-bbr"), "{error} {hint}");
    let (error, hint) = refused(&["lab", "run", "mobile", "--real-time", "--cc", "kernel-cubic:http4"]);
    assert!(error.contains("`http4` is no setting") && hint.contains(":http1"), "{error} {hint}");
}
