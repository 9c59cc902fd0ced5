//! `tiderace serve`, and what the program says about itself.

mod scratch;

use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

use scratch::{Program, Scratch};

fn tiderace(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_directory_is_served_over_every_version_until_the_program_is_ended() {
    let folder = Scratch::new("serve");
    std::fs::write(folder.0.join("index.html"), "hello\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["serve", "--listen", "127.0.0.1:0"]).arg(&folder.0).env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Program(command.spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let url = line.rsplit_once(" at ").unwrap_or_else(|| panic!("{line}")).1.to_owned();
    let trust = lines.next().unwrap().unwrap();
    let words: Vec<&str> = trust.strip_prefix("trust it with: tiderace ").unwrap().split(' ').collect();
    let certificate = words[2].to_owned();
    for version in ["--http1.1", "--http2", "--http3"] {
        let mut arguments = words.clone();
        arguments.push(version);
        let output = tiderace(&arguments);
        assert_eq!(output.stdout, b"hello\n", "{version}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let missing = tiderace(&["get", "-s", "--ca", &certificate, &format!("{url}missing")]);
    assert_eq!(missing.status.code(), Some(1));
    let ended = Command::new("kill").args(["-TERM", &server.0.id().to_string()]).status().unwrap();
    assert!(ended.success() && server.0.wait().unwrap().success());
    assert!(!std::path::Path::new(&certificate).exists(), "the key is gone with the server");
}

#[test]
fn what_cannot_be_served_is_refused() {
    for arguments in [&["serve", "/no/such/directory"][..], &["serve", "/etc/passwd"], &["serve", ".", "--cert", "x"]] {
        let output = tiderace(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: "), "{said}");
    }
}

#[test]
fn the_program_describes_itself() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = String::from_utf8(tiderace(&["completions", shell]).stdout).unwrap();
        assert!(said.contains("tiderace") && said.contains("relay"), "{shell}");
    }
    let page = String::from_utf8(tiderace(&["man"]).stdout).unwrap();
    assert!(page.contains(".TH tiderace 1") && page.contains(".SH SUBCOMMANDS"), "{page}");
    let folder = Scratch::new("man");
    let output = tiderace(&["man", "--out", folder.0.to_str().unwrap()]);
    assert!(output.status.success());
    for name in ["tiderace.1", "tiderace-get.1", "tiderace-lab-run.1"] {
        let page = std::fs::read_to_string(folder.0.join(name)).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}");
    }
    let version = String::from_utf8(tiderace(&["version"]).stdout).unwrap();
    assert_eq!(version, concat!("tiderace ", env!("CARGO_PKG_VERSION"), "\n"));
    let verbose = String::from_utf8(tiderace(&["version", "--verbose"]).stdout).unwrap();
    assert!(verbose.contains(std::env::consts::ARCH) && verbose.contains("bbr3"), "{verbose}");
}
