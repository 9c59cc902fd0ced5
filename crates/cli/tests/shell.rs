//! `tiderace lab shell`: programs behind an emulated network, and what is left of them.
#![cfg(target_os = "linux")]

mod program;

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

use program::{refused, run};

/// True if this system permits emulated networks; otherwise the refusal has to be a clear one.
fn permitted() -> bool {
    let output = run(&["lab", "shell", "mobile", "--quiet", "--", "true"]);
    if output.status.code() != Some(2) {
        return true;
    }
    let (error, _) = refused(&["lab", "shell", "mobile", "--quiet", "--", "true"]);
    eprintln!("not tested, since this system refuses: {error}");
    false
}

fn shell(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["lab", "shell", "mobile"]).args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    if !permitted() {
        return;
    }
    let code = |script: &str| shell(&["--quiet", "--", "sh", "-c", script]).status().unwrap().code();
    assert_eq!(code("exit 0"), Some(0));
    assert_eq!(code("exit 42"), Some(42));
    assert_eq!(code("kill -TERM $$"), Some(128 + 15));
    let missing = shell(&["--quiet", "--", "./there-is-no-such-program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    let stderr = String::from_utf8_lossy(&missing.stderr);
    assert!(stderr.contains("cannot start ./there-is-no-such-program") && stderr.contains("\nhint: "), "{stderr}");
    let addresses = shell(&["--quiet", "--", "sh", "-c", "echo $TIDERACE_SERVER $TIDERACE_CLIENT"]).output().unwrap();
    assert_eq!(addresses.stdout, b"10.2.0.1 10.1.0.1\n");
}

#[test]
fn a_client_meets_the_path_to_the_server() {
    if !permitted() {
        return;
    }
    let program = env!("CARGO_BIN_EXE_tiderace");
    let server = format!("exec {program} perf server --listen 10.2.0.1:4433");
    // Beside other programs a second can pass before the first round trip is known.
    let client = ["perf", "client", "10.2.0.1:4433", "--insecure", "--duration", "3 s", "--json"];
    let output = shell(&["--server", &server, "--", program]).args(client).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // 25 ms each way: less is impossible, more is the queue and this machine.
    assert!(report["sender"]["rtt"]["p50_ms"].as_f64().unwrap() >= 50.0, "{report}");
    assert!(stderr.contains("10.2.0.1 is the server behind the path of `mobile`"), "{stderr}");
    assert!(stderr.contains("(loss)"), "the path loses 5 %: {stderr}");
}

#[test]
fn the_totals_name_the_devices() {
    for (kind, name, missing) in [("tun", "TUN devices", "/dev/net/tun"), ("veth", "veth pairs", "veth pair")] {
        let output = shell(&["--device", kind, "--", "true"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(2) {
            assert!(stderr.contains("network namespaces") || stderr.contains(missing), "{stderr}");
            assert!(stderr.contains("hint: "), "{stderr}");
            eprintln!("not tested, since this system refuses: {stderr}");
            continue;
        }
        assert!(output.status.success() && stderr.contains(&format!("0 packets dropped by {name}")), "{stderr}");
    }
}

/// Command that hides /dev/net from a program and its arguments; `None` where the system does not permit that.
fn without_tun_devices() -> Option<Vec<&'static str>> {
    let script = "[ ! -d /dev/net ] || mount -t tmpfs none /dev/net; exec \"$0\" \"$@\"";
    for options in ["-m", "-rm"] {
        let hidden = vec!["unshare", options, "sh", "-c", script];
        let tried = Command::new(hidden[0]).args(&hidden[1..]).args(["test", "!", "-e", "/dev/net/tun"]).status();
        if tried.is_ok_and(|status| status.success()) {
            return Some(hidden);
        }
    }
    eprintln!("not tested, since this system does not let /dev/net be hidden");
    None
}

#[test]
fn without_tun_devices_there_are_veth_pairs() {
    let Some(hidden) = without_tun_devices() else { return };
    let run = |options: &[&str]| {
        let program = env!("CARGO_BIN_EXE_tiderace");
        let mut command = Command::new(hidden[0]);
        command.args(&hidden[1..]).args([program, "lab", "shell", "mobile"]).args(options);
        let output = command.args(["--", "true"]).env_remove("RUST_LOG").stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stderr) = run(&["--device", "veth"]);
    if code == Some(2) {
        assert!(stderr.contains("network namespaces") || stderr.contains("veth pair"), "{stderr}");
        eprintln!("not tested, since this system refuses: {stderr}");
        return;
    }
    let (code, stderr) = run(&[]);
    assert!(code == Some(0) && stderr.contains("packets dropped by veth pairs"), "{stderr}");
    let (code, stderr) = run(&["--device", "tun"]);
    assert!(code == Some(2) && stderr.contains("cannot open /dev/net/tun"), "{stderr}");
    assert!(stderr.contains("hint: ") && stderr.contains("modprobe tun"), "{stderr}");
}

#[test]
fn a_server_that_ends_before_it_listens_is_named() {
    if !permitted() {
        return;
    }
    let (error, hint) = refused(&["lab", "shell", "mobile", "--quiet", "--server", "exit 3", "--", "true"]);
    assert_eq!(error, "the server has ended with code 3 before it listened");
    assert!(hint.contains("above"), "{hint}");
}

/// Leaves a process behind in each way a program can, says that it is ready, and waits.
const LITTER: &str = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; echo ready";

/// Starts it; returns when it has left its processes behind.
fn littering(device: &str, last: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let script = format!("{LITTER}; {last}");
    let mut command = shell(&["--quiet", "--device", device, "--", "sh", "-c", &script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, stdout)
}

#[test]
fn everything_is_gone_after_success_failure_interruption_and_kill() {
    if !permitted() {
        return;
    }
    for (device, last, signal, code) in [
        ("auto", "exit 0", None, Some(0)),
        ("auto", "exit 9", None, Some(9)),
        ("auto", "exec sleep 1000", Some("-INT"), Some(130)),
        ("auto", "exec sleep 1000", Some("-KILL"), None),
        ("veth", "exit 9", None, Some(9)),
        ("veth", "exec sleep 1000", Some("-KILL"), None),
    ] {
        let (mut child, mut stdout) = littering(device, last);
        if let Some(signal) = signal {
            assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        }
        assert_eq!(child.wait().unwrap().code(), code, "{last} {signal:?}");
        // Every process behind the path holds the other end of this pipe, and with it the namespace: it ends when the last one has.
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
    }
}

#[test]
fn bad_input_is_refused_before_anything_starts() {
    let (error, _) = refused(&["lab", "shell", "no-such-path", "--", "true"]);
    assert!(error.contains("no-such-path"), "{error}");
}
