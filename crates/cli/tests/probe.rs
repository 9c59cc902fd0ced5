//! `tiderace probe` between real processes: over loopback, and behind an emulated path.
#![cfg(target_os = "linux")]

mod program;
mod scratch;
mod terminal;

use std::{
    io::Read,
    net::{TcpStream, UdpSocket},
    process::{Command, Stdio},
    time::Duration,
};

use program::{Service, refused, run, run_json};
use scratch::Scratch;
use serde_json::Value;
use terminal::AtTerminal;

fn serve(options: &[&str]) -> Service {
    Service::start(&[&["probe", "--serve", "127.0.0.1:0", "--json"], options].concat())
}

fn figure<'a>(report: &'a Value, name: &str, direction: Option<&str>) -> &'a Value {
    let mut figures = report["figures"].as_array().unwrap().iter();
    let found = figures.find(|figure| figure["name"] == name && figure["direction"].as_str() == direction);
    found.unwrap_or_else(|| panic!("there is no {name} {direction:?}: {report}"))
}

fn number(figure: &Value, name: &str) -> f64 {
    figure[name].as_f64().unwrap_or_else(|| panic!("{figure} has no {name}"))
}

#[test]
fn the_screen_shows_the_part_that_runs_and_q_keeps_the_figures() {
    let server = serve(&[]);
    let token = server.ready["token"].as_str().unwrap().to_owned();
    let base = ["probe", server.address(), "--pin", server.fingerprint(), "--token", &token, "--yes", "--screen"];
    let mut probe = AtTerminal::start(&[&base[..], &["--time", "600 s"]].concat());
    probe.until(&["probe", "datagrams", "Mbit/s", "rate", "down", "help"]);
    probe.press("q");
    let (code, rest) = probe.ended();
    assert_eq!(code, Some(1), "{rest}");
    assert!(rest.contains("rtt-idle") && rest.contains("since the run was interrupted"), "{rest}");
    // Without a terminal nothing moves a cursor.
    let output = run(&[&base[..], &["--time", "6 s", "--bytes", "2 MB"]].concat());
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && !stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'), "{stdout} {stderr}");
}

#[test]
fn loopback_is_measured_and_every_figure_has_its_cost() {
    let server = serve(&[]);
    let token = server.ready["token"].as_str().unwrap().to_owned();
    let arguments = [
        "probe",
        server.address(),
        "--pin",
        server.fingerprint(),
        "--token",
        &token,
        "--yes",
        "--json",
        "--bytes",
        "60 MB",
    ];
    // The bytes end this long before the time does, on a slow machine too.
    let report = run_json(&[&arguments[..], &["--time", "60 s"]].concat());
    for figure in report["figures"].as_array().unwrap() {
        assert!(number(figure, "seconds") > 0.0 && figure["method"].as_str().unwrap().len() > 10, "{figure}");
    }
    assert!(number(figure(&report, "rtt-idle", None), "value") > 0.0);
    for direction in [Some("up"), Some("down")] {
        // The loopback device takes packets of 64 kB: nothing that is tried is too large.
        assert_eq!(figure(&report, "mtu", direction)["high"], Value::Null);
        assert!(number(figure(&report, "mtu", direction), "value") >= 9_000.0);
        assert_eq!(number(figure(&report, "ecn", direction), "value"), 100.0);
        assert_eq!(number(figure(&report, "l4s", direction), "value"), 100.0);
        assert_eq!(report["ecn"][direction.unwrap()]["l4s"], "survives", "{}", report["ecn"]);
        assert!(number(figure(&report, "rate", direction), "value") > 0.0);
        assert_eq!(number(figure(&report, "reordering", direction), "value"), 0.0);
    }
    // Bytes have a limit; what is on its way when it is reached is little beside it.
    assert!(number(&report["cost"], "bytes") < 80e6, "{}", report["cost"]);
    let (code, lines) = server.interrupt();
    assert_eq!((code, lines.len()), (Some(0), 1), "{lines:?}");
    assert_eq!((&lines[0]["event"], &lines[0]["client"]), (&"session".into(), &"127.0.0.1".into()));
}

#[test]
fn a_token_is_wanted_and_limits_hold() {
    let server = serve(&["--token", "right", "--client-bytes", "2 MB"]);
    let client = |options: &[&str]| -> Vec<String> {
        let all = [&["probe", server.address(), "--insecure", "--json", "--time", "5 s"], options].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let refusal = |options: &[&str]| {
        let arguments = client(options);
        refused(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (error, hint) = refusal(&["--idle"]);
    assert!(error.contains("wants a token") && hint.contains("--token"), "{error}: {hint}");
    assert!(refusal(&["--idle", "--token", "wrong"]).0.contains("wants a token"));
    let (error, hint) = refusal(&["--token", "right"]);
    assert!(error.contains("no terminal") && hint.contains("--yes") && hint.contains("--idle"), "{error}: {hint}");
    // Sessions use up what the client has for an hour; then there is no further one.
    let arguments = client(&["--token", "right", "--yes"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut bytes = 0.0;
    let error = loop {
        let output = run(&arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        if !output.status.success() {
            break stderr;
        }
        bytes += number(&serde_json::from_slice::<Value>(&output.stdout).unwrap()["cost"], "bytes");
        // Twice, for what this end counts and the server does not: headers, and what was on its way.
        assert!(bytes < 4e6, "{bytes} bytes of 2 MB: {stderr}");
    };
    assert!(error.contains("within an hour") && error.contains("--client-bytes"), "{error}");
}

#[test]
fn idle_measures_without_a_question_and_without_a_load() {
    let server = serve(&["--open"]);
    let report = run_json(&["probe", server.address(), "--insecure", "--idle", "--json", "--time", "5 s"]);
    assert!(number(figure(&report, "loss", Some("down")), "samples") > 20.0);
    // A loopback is a data centre, without a look at its rate.
    assert_eq!(report["recommendation"]["settings"], serde_json::json!([]), "{}", report["recommendation"]);
    assert!(number(&report["cost"], "bytes") < 1e6, "{}", report["cost"]);
    let scratch = Scratch::new("probe-idle");
    let file = scratch.0.join("path.toml");
    let output = run(&[
        "probe",
        server.address(),
        "--insecure",
        "--idle",
        "--time",
        "5 s",
        "--scenario",
        file.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs a round trip and a rate"));
    assert!(!file.exists());
}

#[test]
fn strangers_get_nothing() {
    // Another program may have the TCP port of the number that the UDP port got: then the next server is tried.
    let server =
        std::iter::repeat_with(|| serve(&["--open"])).take(10).find(|server| server.ready["tcp_port"].is_u64());
    let server = server.expect("one of ten servers gets a TCP port");
    let port = |name: &str| u16::try_from(server.ready[name].as_u64().unwrap()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port("udp_port"))).unwrap();
    // Pings with a key that no session has, too short, too long, empty.
    let mut ping = [7; 1_400];
    ping[16] = 1;
    for size in [48, 47, 1_400, 0, 1] {
        socket.send(&ping[..size]).unwrap();
    }
    let mut stranger = TcpStream::connect(("127.0.0.1", port("tcp_port"))).unwrap();
    std::io::Write::write_all(&mut stranger, &[9; 17]).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    stranger.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    // A client that is served afterwards shows that the server has read them all.
    run_json(&["probe", server.address(), "--insecure", "--idle", "--json", "--time", "5 s"]);
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut ping).is_err(), "a stranger was answered");
}

#[test]
fn a_closed_port_and_wrong_options_are_explained() {
    let (error, _) = refused(&["probe", "127.0.0.1:9", "--insecure", "--idle", "--timeout", "500 ms"]);
    assert!(error.contains("cannot connect"), "{error}");
    assert!(refused(&["probe", "127.0.0.1:9", "--idle", "--time", "1 s"]).0.contains("--time"));
    assert!(refused(&["probe", "127.0.0.1:9", "--idle", "--bytes", "5 kB"]).0.contains("--bytes"));
    let other = Service::perf();
    let (_, hint) = refused(&["probe", other.address(), "--insecure", "--idle"]);
    assert!(hint.contains("probe --serve"), "{hint}");
}

/// A path with everything that a probe looks for, but for reordering.
const PATH: &str = r#"
name = "probed"
title = "Path of a test"
about = "Path of a test."
[path.down]
rate = "8 Mbit/s"
queue = "60 kB"
delay = "20 ms"
loss = { burst = { mean = "2 %", length = 3 } }
changes = [{ at = "0 s", mtu = 1391 }]
[path.up]
rate = "4 Mbit/s"
queue = "30 kB"
delay = "20 ms"
changes = [{ at = "0 s", mtu = 1317 }]
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "1 s"
duration = "1 s"
"#;

/// Runs a client of the emulated network, which succeeds; `None` where the system does not permit one.
fn behind(path: &str, scratch: &Scratch, options: &[&str]) -> Option<Value> {
    let (code, report) = ended_behind(path, scratch, options)?;
    assert_eq!(code, Some(0), "{report}");
    Some(report)
}

/// Exit code and report of a client of the emulated network; `None` where the system does not permit one.
fn ended_behind(path: &str, scratch: &Scratch, options: &[&str]) -> Option<(Option<i32>, Value)> {
    let file = scratch.0.join("hidden.toml");
    std::fs::write(&file, path).unwrap();
    let program = env!("CARGO_BIN_EXE_tiderace");
    let server = format!("exec {program} probe --serve 10.2.0.1:4433 --open --json");
    let mut command = Command::new(program);
    command.args(["lab", "shell", file.to_str().unwrap(), "--server", &server, "--", program]);
    command.args(["probe", "10.2.0.1:4433", "--insecure", "--json"]).args(options);
    let output = command.env_remove("RUST_LOG").stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(2) && stderr.contains("network namespaces") || stderr.contains("/dev/net/tun") {
        assert!(stderr.contains("hint: "), "{stderr}");
        eprintln!("not tested, since this system refuses: {stderr}");
        return None;
    }
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    Some((output.status.code(), report))
}

#[test]
fn a_hidden_path_is_found_and_becomes_a_scenario() {
    let scratch = Scratch::new("probe-path");
    let file = scratch.0.join("My path.toml");
    let options = ["--yes", "--time", "20 s", "--scenario", file.to_str().unwrap()];
    let Some(report) = behind(PATH, &scratch, &options) else { return };
    // Less than the propagation is impossible.
    assert!(number(figure(&report, "rtt-min", None), "value") >= 40.0, "{report}");
    for (direction, mtu, rate) in [("down", 1_391.0, 8.0), ("up", 1_317.0, 4.0)] {
        // Four copies, apart: that all are lost by chance happens once in 100,000 steps.
        assert_eq!(number(figure(&report, "mtu", Some(direction)), "value"), mtu, "{report}");
        // More than the rate never leaves the link; how much less is seen depends on this machine.
        let found = number(figure(&report, "rate", Some(direction)), "value");
        assert!(found <= rate * 1.1 && found > rate / 4.0, "{direction}: {found} of {rate}: {report}");
    }
    assert!(number(figure(&report, "loss", Some("down")), "value") > 0.0, "{report}");
    assert!(number(figure(&report, "loss-burst", Some("down")), "value") > 1.0, "{report}");
    // The file is what the laboratory takes.
    let scenario = lab::scenario::load(file.to_str().unwrap()).unwrap();
    // The devices of an emulated network do not know either MTU, as those of the path did not.
    let [down, up] = [&scenario.path.down, scenario.path.up()].map(|link| (link.mtu, link.changes[0].mtu));
    assert_eq!((scenario.name.as_str(), down, up), ("my-path", (None, Some(1_391)), (None, Some(1_317))));
    let shell = Command::new(env!("CARGO_BIN_EXE_tiderace"))
        .args(["lab", "shell", file.to_str().unwrap(), "--quiet", "--", "true"])
        .output()
        .unwrap();
    assert!(shell.status.success(), "{}", String::from_utf8_lossy(&shell.stderr));
}

/// A path that rewrites ECN marks in the given ways.
fn marked_path(down: &str, up: &str) -> String {
    format!(
        r#"
name = "marked"
title = "Path of a test"
about = "Path of a test."
[path.down]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "5 ms"
ecn = "{down}"
[path.up]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "5 ms"
ecn = "{up}"
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "1 s"
duration = "1 s"
"#
    )
}

#[test]
fn the_fate_of_each_mark_is_found_in_each_direction() {
    // Shares of ECT(0) and CE that arrive, and the fate of ECT(1) with the field it arrives with.
    let bleach = ("bleach", 0.0, "cleared", "not_ect");
    let bleach_ect1 = ("bleach-ect1", 100.0, "cleared", "not_ect");
    let to_ect0 = ("ect1-to-ect0", 100.0, "changed-to-ect0", "ect0");
    let to_ce = ("ect1-to-ce", 100.0, "changed-to-ce", "ce");
    let pass = ("pass", 100.0, "survives", "ect1");
    // Each probe waits for most of its time: all paths at once take as long as one.
    std::thread::scope(|scope| {
        for (down, up) in [(pass, bleach), (bleach_ect1, to_ect0), (to_ce, pass), (bleach, bleach_ect1)] {
            scope.spawn(move || fates_are_found(down, up));
        }
    });
}

/// Treatment of ECN marks: its setting, the share of ECT(0) and CE that arrives, the fate of ECT(1), and the field it arrives with.
type Treatment = (&'static str, f64, &'static str, &'static str);

/// Probes a path that treats marks so, and checks what it finds.
fn fates_are_found(down: Treatment, up: Treatment) {
    let scratch = Scratch::new(&format!("probe-ecn-{}-{}", down.0, up.0));
    let path = marked_path(down.0, up.0);
    let Some(report) = behind(&path, &scratch, &["--idle", "--time", "5 s"]) else { return };
    for (direction, (treatment, classic, fate, field)) in [("down", down), ("up", up)] {
        let ecn = &report["ecn"][direction];
        assert_eq!(number(figure(&report, "ecn", Some(direction)), "value"), classic, "{treatment}: {ecn}");
        let share = if fate == "survives" { 100.0 } else { 0.0 };
        assert_eq!(number(figure(&report, "l4s", Some(direction)), "value"), share, "{treatment}: {ecn}");
        assert_eq!(ecn["l4s"], fate, "{treatment}: {ecn}");
        // All that arrived, arrived with this field.
        let ect1 = &ecn["marks"]["ect1"];
        let fields = ["not_ect", "ect0", "ect1", "ce"];
        let arrived: f64 = fields.iter().map(|field| number(ect1, field)).sum();
        assert!(arrived > 0.0 && arrived <= number(ect1, "sent"), "{treatment}: {ect1}");
        assert_eq!(number(ect1, field), arrived, "{treatment}: {ect1}");
    }
}

#[test]
fn a_written_scenario_is_measured_as_well() {
    let scratch = Scratch::new("probe-check-scenario");
    let file = scratch.0.join("loss-free.toml");
    let lines = PATH.lines().filter(|line| !line.starts_with("loss")).map(|line| match line {
        "[path.down]" => format!("{line}\necn = \"ect1-to-ect0\"\n"),
        "[path.up]" => format!("{line}\necn = \"bleach\"\n"),
        line => format!("{line}\n"),
    });
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    let program = env!("CARGO_BIN_EXE_tiderace");
    let server = format!("exec {program} probe --serve 10.2.0.1:4433 --open --json");
    let mut command = Command::new(program);
    command.args(["lab", "shell", file.to_str().unwrap(), "--server", &server, "--", program]);
    command.args(["probe", "10.2.0.1:4433", "--insecure", "--yes", "--json", "--time", "15 s", "--check-scenario"]);
    let output = command.env_remove("RUST_LOG").stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
        assert!(stderr.contains("hint: "), "{stderr}");
        eprintln!("not tested, since this system refuses: {stderr}");
        return;
    };
    let checks = report["scenario_check"]["checks"].as_array();
    let Some(checks) = checks else {
        // Of a network within a network: the report stands, and the reason as well.
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("the scenario is not checked") && report["figures"].is_array(), "{stderr}: {report}");
        return;
    };
    let check = |name: &str, direction: Option<&str>| {
        let found = checks.iter().find(|check| check["name"] == name && check["direction"].as_str() == direction);
        found.unwrap_or_else(|| panic!("no {name} {direction:?}: {report}"))
    };
    // Propagation and MTU of the emulated path do not depend on how busy this machine is.
    assert!(check("rtt-min", None)["emulated"].as_f64().unwrap() >= 40.0, "{report}");
    assert_eq!(check("mtu", Some("down"))["emulated"], 1_391.0, "{report}");
    assert_eq!(check("mtu", Some("up"))["agrees"], true, "{report}");
    for (direction, classic, l4s) in [("down", "survive", "changed-to-ect0"), ("up", "cleared", "cleared")] {
        for (name, fate) in [("ecn", classic), ("l4s", l4s)] {
            let check = check(name, Some(direction));
            let found = ["measured", "emulated"].map(|path| check[path].as_str().unwrap());
            assert_eq!((found, &check["agrees"]), ([fate; 2], &Value::Bool(true)), "{name} {direction}: {report}");
        }
    }
    let all_agree = checks.iter().all(|check| check["agrees"] == true) && report["scenario_check"]["doubt"].is_null();
    assert_eq!(report["scenario_check"]["agrees"], all_agree, "{report}");
    assert_eq!(output.status.code(), Some(i32::from(!all_agree)), "{stderr}");
    // With nothing that loads the path there is no scenario.
    let both = run(&["probe", "127.0.0.1:9", "--idle", "--check-scenario"]);
    assert_eq!(both.status.code(), Some(2), "{}", String::from_utf8_lossy(&both.stderr));
}

/// Takes longest by far: its name begins so that the harness, which goes by names, starts it early.
#[test]
fn a_better_recommendation_is_verified_over_the_path() {
    let scratch = Scratch::new("probe-verify");
    // Random losses, with which CUBIC gets a fraction of the rate; no black hole, in which the kernel's TCP stalls.
    let lines = PATH.lines().filter(|line| !line.starts_with("changes")).map(|line| match line {
        line if line.starts_with("loss") => "loss = \"3 %\"\n".to_owned(),
        line => format!("{line}\n"),
    });
    let path: String = lines.collect();
    let Some((code, report)) = ended_behind(&path, &scratch, &["--yes", "--time", "15 s", "--verify"]) else { return };
    let verification = &report["verification"];
    assert!(verification["recommended"] != "cubic" && verification["rounds"] == 6, "{report}");
    let contenders = verification["contenders"].as_array().unwrap();
    let names: Vec<_> = contenders.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cubic", "bbr3", "auto", "kernel TCP"]);
    for one in contenders {
        // Nobody is faster than the link, but for a gap that a retransmission fills, or sooner there than its propagation.
        assert!((1e4..12e6).contains(&number(one, "goodput_bps")), "{one}");
        assert!(number(one, "rtt_loaded_ms") >= 40.0, "{one}");
    }
    let against = verification["against"].as_array().unwrap();
    assert_eq!(against.len(), 3, "{verification}");
    let cubic = against.iter().find(|one| one["rival"] == "cubic").unwrap();
    assert!(number(&cubic["goodput"]["ratio"], "value") > 1.3, "{verification}");
    let is_beaten = [&verification["goodput"], &verification["latency"]].iter().any(|found| **found == "beaten");
    assert_eq!(code, Some(i32::from(is_beaten)), "{verification}");
}

#[test]
fn a_nat_that_forgets_is_found() {
    let scratch = Scratch::new("probe-nat");
    let path = format!("{PATH}[path.nat]\ntimeout = \"7 s\"\n");
    let Some(report) = behind(&path, &scratch, &["--idle", "--time", "5 s", "--nat-timeout", "15 s"]) else { return };
    let nat = figure(&report, "nat-timeout", None);
    // Packets that come after 5 s find their way, unless they are lost; those after 10 s and 15 s cannot.
    assert!(number(nat, "low") <= 5.0 && number(nat, "value") <= 10.0, "{nat}");
}
