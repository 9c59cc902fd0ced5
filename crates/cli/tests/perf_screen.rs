//! `tiderace perf client --screen`: at a terminal, and without one.
#![cfg(target_os = "linux")]

mod program;
mod terminal;

use program::{Service, run};
use terminal::AtTerminal;

#[test]
fn each_end_restores_the_terminal_and_keeps_the_results() {
    for end in ["q", "\x03", "terminate", "server"] {
        let server = Service::perf();
        let base = ["perf", "client", server.address(), "--pin", server.fingerprint()];
        let mut client = AtTerminal::start(&[&base[..], &["--duration", "600 s", "--cc", "bbr3", "--screen"]].concat());
        client.until(&["perf client 127.0.0.1", "connection 1", "goodput", "Mbit/s", "help"]);
        match end {
            "terminate" => {
                let id = client.id().to_string();
                assert!(std::process::Command::new("kill").arg(&id).status().unwrap().success());
            }
            "server" => drop(server.interrupt()),
            keys => client.press(keys),
        }
        let (code, rest) = client.ended();
        assert_eq!(code, Some(1), "{end:?}: {rest}");
        assert!(rest.contains("download") && rest.contains("Mbit/s"), "{end:?}: {rest}");
        assert_eq!(rest.contains("partial"), end != "server", "{end:?}: {rest}");
    }
}

#[test]
fn a_server_shows_its_connections_and_then_tells_of_those_that_have_ended() {
    let mut server = AtTerminal::start(&["perf", "server", "--listen", "127.0.0.1:0", "--screen"]);
    server.until(&["listening on 127.0.0.1:", "--pin", "help"]);
    let output = server.output();
    let word = |before: &str| {
        let rest = output.split(before).nth(1).unwrap();
        rest.split([' ', ',', '\r', '\n']).next().unwrap().to_owned()
    };
    let (address, pin) = (word("listening on "), word("--pin "));
    let run = run(&["perf", "client", &address, "--pin", &pin, "--duration", "2 s", "--json"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    server.until(&["Mbit/s"]);
    server.press("q");
    let (code, rest) = server.ended();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("127.0.0.1:") && rest.contains("1 connection"), "{rest}");
}

#[test]
fn the_log_waits_for_the_end_of_the_screen() {
    let server = Service::perf();
    let base = ["perf", "client", server.address(), "--pin", server.fingerprint(), "--duration", "600 s", "--screen"];
    let mut client = AtTerminal::with_log(&base, Some("trace"));
    client.until(&["connection 1", "goodput", "help"]);
    client.press("q");
    let whole = client.watched();
    let (_, rest) = client.ended();
    let on_screen = whole().split("\u{1b}[?1049h").nth(1).unwrap().split("\u{1b}[?1049l").next().unwrap().to_owned();
    assert!(!on_screen.contains("TRACE") && !on_screen.contains("DEBUG"), "{on_screen}");
    assert!(rest.contains("TRACE") || rest.contains("DEBUG"), "the log is lost: {rest}");
}

#[test]
fn a_second_request_ends_at_once() {
    let server = Service::perf();
    let arguments =
        ["perf", "client", server.address(), "--pin", server.fingerprint(), "--duration", "600 s", "--screen"];
    let mut client = AtTerminal::start(&arguments);
    client.until(&["help"]);
    client.press("qq");
    let (code, rest) = client.ended();
    // The first may have been enough.
    match code {
        Some(130) => assert_eq!(rest, ""),
        code => assert!(code == Some(1) && rest.contains("partial"), "{code:?} {rest}"),
    }
}

#[test]
fn a_transfer_ends_by_itself_and_its_report_stays() {
    let server = Service::perf();
    let base = ["perf", "client", server.address(), "--pin", server.fingerprint(), "--screen"];
    for options in [&["--bytes", "50 MB", "--upload"][..], &["--datagrams", "--rate", "2M", "--duration", "1 s"]] {
        let (code, rest) = AtTerminal::start(&[&base[..], options].concat()).ended();
        assert!(code == Some(0) && rest.contains("connections"), "{options:?} {code:?} {rest}");
    }
}

#[test]
fn without_a_terminal_there_are_plain_lines() {
    let server = Service::perf();
    let base = ["perf", "client", server.address(), "--pin", server.fingerprint(), "--duration", "6 s", "--screen"];
    let check = |form: &[&str]| {
        let output = run(&[&base[..], form].concat());
        assert!(output.status.success());
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(!stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'), "{stdout} {stderr}");
        assert!(stderr.contains("s left  connection 1  ") && stderr.contains(" Mbit/s  RTT "), "{stderr}");
        assert!(!stdout.contains(" left"), "{stdout}");
    };
    std::thread::scope(|scope| {
        for form in [&[][..], &["--json"]] {
            scope.spawn(move || check(form));
        }
    });
}
