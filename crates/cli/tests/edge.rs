//! DNS records that `tiderace edge check` and `tiderace edge run` print for the publisher of the site.

mod gateway;
mod scratch;

use std::{
    io::Read as _,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use gateway::{Gateway, edge};
use scratch::Scratch;

/// A site of two names, of which one is no single name, at `listen`; and the file that says so.
fn site(name: &str, listen: &str, extra: &str) -> (Scratch, PathBuf) {
    let folder = Scratch::new(&format!("edge-dns-{name}"));
    std::fs::create_dir_all(folder.0.join("www")).unwrap();
    folder.certificate("example.org");
    let file = folder.0.join("edge.toml");
    let text = format!(
        "{listen}certificate = \"cert.pem\"\nkey = \"key.pem\"\n{extra}[[route]]\nhost = [\"example.org\", \"*.example.net\"]\n\
         files = \"www\"\n[[route]]\nhost = \"example.org\"\npath = \"/more\"\nfiles = \"www\"\n"
    );
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

/// Records that `check` prints. Ports are not opened: other programs of this machine may have them.
fn checked(name: &str, listen: &str, extra: &str) -> Vec<String> {
    let (_folder, file) = site(name, listen, extra);
    let output = edge("check", &file).arg("--no-addresses").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| Some(line.strip_prefix("publish in DNS: ")?.to_owned())).collect()
}

#[test]
fn check_prints_the_record_of_each_name() {
    assert_eq!(checked("443", "", ""), ["example.org. 3600 IN HTTPS 1 . alpn=\"h3,h2\""]);
    // RFC 9460 §9.1: another port is in the name, and the target is the host.
    let other = "_8443._https.example.org. 3600 IN HTTPS 1 example.org. alpn=\"h3,h2\" port=8443";
    assert_eq!(checked("8443", "listen = \"[::]:8443\"\n", ""), [other]);
    // Each port once, whichever addresses have it.
    let listen = "listen = [\"127.0.0.1:8443\", \"[::1]:8443\", \"[::]:443\"]\n";
    assert_eq!(checked("both", listen, ""), ["example.org. 3600 IN HTTPS 1 . alpn=\"h3,h2\"", other]);
    let without = checked("off", "", "[http3]\nenabled = false\n");
    assert_eq!(without, ["example.org. 3600 IN HTTPS 1 . alpn=\"h2\""], "nobody is sent to what is not served");
}

#[test]
fn run_prints_the_record_with_the_port_that_is_served() {
    let (_folder, file) = site("run", "listen = \"127.0.0.1:0\"\n", "");
    let mut gateway = Gateway::start(&file);
    let port = gateway.address.port();
    let record = format!("_{port}._https.example.org. 3600 IN HTTPS 1 example.org. alpn=\"h3,h2\" port={port}");
    assert_eq!(gateway.lines.next().unwrap().unwrap(), format!("publish in DNS: {record}"));
}

/// Asks the gateway for `name`; the answer's size.
fn get(folder: &Scratch, port: u16, name: &str) -> usize {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    program.args(["get", "--only", "quic", "--ca"]).arg(folder.0.join("cert.pem"));
    program.arg(format!("https://127.0.0.1:{port}/{name}")).env_remove("RUST_LOG").stdin(Stdio::null());
    let output = program.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.len()
}

#[test]
fn a_capture_is_taken_and_shown() {
    let folder = Scratch::new("edge-capture");
    std::fs::create_dir_all(folder.0.join("www")).unwrap();
    std::fs::write(folder.0.join("www/large"), vec![b'x'; 2_000_000]).unwrap();
    folder.certificate("127.0.0.1");
    let file = folder.0.join("edge.toml");
    let text = "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[admin]\nsocket = \"edge.sock\"\n\
                [capture]\nenabled = true\n[[route]]\nfiles = \"www\"\n";
    std::fs::write(&file, text).unwrap();
    let gateway = Gateway::start(&file);
    let capture = edge("capture", &file)
        .args(["--client", "127.0.0.1", "--for", "8 s", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    while std::fs::read_dir(folder.0.join("captures")).map_or(0, Iterator::count) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(get(&folder, gateway.address.port(), "large"), 2_000_000);
    let output = capture.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let about: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bundle = about["bundle"].as_str().unwrap();
    let show = |json: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        let output = program.args(["qlog", "show", bundle]).args(json).env_remove("RUST_LOG").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let shown: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    let diagnosis = &shown["connections"][0]["diagnosis"];
    assert_eq!(diagnosis["vantage"], "server");
    assert!(diagnosis["totals"]["bytes_sent"].as_u64().unwrap() > 2_000_000, "{diagnosis}");
    assert!(diagnosis["min_rtt_ms"].as_f64().unwrap() > 0.0);
    let limits = diagnosis["limited_s"].as_object().unwrap();
    let known = ["application", "flow_control", "congestion_window", "pacing", "amplification"];
    assert!(limits.keys().all(|limit| known.contains(&limit.as_str())), "{limits:?}");
    // Slow start and the peer's windows hold 2 MB back for a while, and before and after there is nothing to send.
    assert!(limits.contains_key("application") && limits.len() >= 2, "{limits:?}");
    assert_eq!(diagnosis["timeline"].as_array().unwrap().len(), 20);
    let text = show(&[]);
    for part in ["what limited the sender", "timeline", "losses: ", "stalls: ", "closed: application"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let nothing = Command::new(env!("CARGO_BIN_EXE_tiderace")).args(["qlog", "show"]).arg(&folder.0).output().unwrap();
    assert!(!nothing.status.success());
}

#[test]
fn the_state_is_for_people_and_for_programs() {
    let (_folder, file) = site("status", "listen = \"127.0.0.1:0\"\n", "[admin]\nsocket = \"edge.sock\"\n");
    let gateway = Gateway::start(&file);
    let status = |options: &[&str]| {
        let output = edge("status", &file).args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = status(&[]);
    assert!(text.lines().any(|line| line == format!("listen        {}", gateway.address)), "{text}");
    assert!(text.contains("certificate   ") && text.contains("cert.pem, "), "{text}");
    let json: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_eq!(json["listen"][0], gateway.address.to_string());
    assert!(json["certificates"][0]["days"].as_f64().unwrap() > 0.0, "{json}");
    // Again and again, until its end.
    let mut watching = edge("status", &file);
    watching.args(["--json", "--watch", "100 ms"]).stdout(Stdio::piped());
    let mut watching = watching.spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(watching.stdout.take().unwrap()));
    let seen: Vec<String> = lines.take(3).map(Result::unwrap).collect();
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert!(seen.iter().all(|line| line.starts_with('{')) && seen.len() == 3, "{seen:?}");
}

#[test]
fn a_check_knows_the_gateway_that_runs_and_other_programs() {
    let (_folder, file) = site("check", "listen = \"127.0.0.1:0\"\nworkers = 2\n", "[admin]\nsocket = \"edge.sock\"\n");
    let gateway = Gateway::start(&file);
    let text = std::fs::read_to_string(&file).unwrap();
    let listen = format!("listen = \"{}\"", gateway.address);
    std::fs::write(&file, text.replace("listen = \"127.0.0.1:0\"", &listen)).unwrap();
    let check = |options: &[&str]| {
        let output = edge("check", &file).args(options).output().unwrap();
        let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        (output.status.code(), out, error)
    };
    let (code, out, error) = check(&[]);
    assert_eq!(code, Some(0), "{error}");
    // The certificate is for one of the two names.
    assert!(out.contains("1 warning") && error.contains("is not for `*.example.net`"), "{out}{error}");
    let alone = text.replace("listen = \"127.0.0.1:0\"", &listen).replace("[admin]\nsocket = \"edge.sock\"\n", "");
    let named = "[[route]]\npath = \"/named\"\nto = \"http://nothing.invalid:1\"\n";
    std::fs::write(&file, format!("{alone}{named}")).unwrap();
    let (code, _, error) = check(&[]);
    assert_eq!(code, Some(2), "{error}");
    assert!(
        error.contains("edge.toml:1: listen: cannot listen at") && error.contains("hint: another program"),
        "{error}"
    );
    // The kernel would let several workers of the same user join those that run, and each gateway would get a share of all clients.
    let mut second = edge("run", &file).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        match second.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > Duration::from_secs(20) => {
                second.kill().unwrap();
                panic!("a second gateway runs at the address of the first");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut said = String::new();
    second.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.code() == Some(2) && said.contains("cannot listen at"), "{status} {said}");
    let (code, out, error) = check(&["--no-addresses"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("2 warnings") && error.contains("`nothing.invalid` cannot be resolved"), "{out}{error}");
    let (code, out, error) = check(&["--no-addresses", "--no-names"]);
    assert!(code == Some(0) && !error.contains("resolved"), "{out}{error}");
}

#[test]
fn the_schema_is_json() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    let output = program.args(["edge", "config", "schema"]).env_remove("RUST_LOG").output().unwrap();
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["properties"]["route"]["items"]["properties"]["retries"]["default"], 1);
}
