//! What `tiderace edge check` and `tiderace edge run` print for whoever publishes the site in DNS.

mod scratch;

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use scratch::{Program, Scratch};

/// A site of two names, of which one is no single name, at `listen`; and the file that says so.
fn site(name: &str, listen: &str, extra: &str) -> (Scratch, PathBuf) {
    let folder = Scratch::new(&format!("edge-dns-{name}"));
    std::fs::create_dir_all(folder.0.join("www")).unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["example.org".to_owned()]).unwrap();
    std::fs::write(folder.0.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.0.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let file = folder.0.join("edge.toml");
    let text = format!(
        "{listen}certificate = \"cert.pem\"\nkey = \"key.pem\"\n{extra}[[route]]\nhost = [\"example.org\", \"*.example.net\"]\n\
         files = \"www\"\n[[route]]\nhost = \"example.org\"\npath = \"/more\"\nfiles = \"www\"\n"
    );
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

fn edge(command: &str, file: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    program.args(["edge", command, "--config"]).arg(file).env_remove("RUST_LOG").stdin(Stdio::null());
    program
}

/// The records that `check` prints.
fn checked(name: &str, listen: &str, extra: &str) -> Vec<String> {
    let (_folder, file) = site(name, listen, extra);
    let output = edge("check", &file).output().unwrap();
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
    let without = checked("off", "", "[http3]\nenabled = false\n");
    assert_eq!(without, ["example.org. 3600 IN HTTPS 1 . alpn=\"h2\""], "nobody is sent to what is not served");
}

#[test]
fn run_prints_the_record_with_the_port_that_is_served() {
    let (_folder, file) = site("run", "listen = \"127.0.0.1:0\"\n", "");
    let mut program = Program(edge("run", &file).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let serving = lines.next().unwrap();
    let address: SocketAddr = serving.strip_prefix("serving ").unwrap().parse().unwrap();
    let port = address.port();
    let record = format!("_{port}._https.example.org. 3600 IN HTTPS 1 example.org. alpn=\"h3,h2\" port={port}");
    assert_eq!(lines.next().unwrap(), format!("publish in DNS: {record}"));
}
