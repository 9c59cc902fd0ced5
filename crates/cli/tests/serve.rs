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

/// Serves the folder. Returns the server and the words of the command that it says to try: `get --ca FILE URL`.
fn serve(folder: &Scratch, options: &[&str]) -> (Program, Vec<String>) {
    serve_by(Command::new(env!("CARGO_BIN_EXE_tiderace")), folder, options)
}

/// Like [`serve`], with a command that begins with the program.
fn serve_by(mut command: Command, folder: &Scratch, options: &[&str]) -> (Program, Vec<String>) {
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(options).arg(&folder.0).env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Program(command.spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let url = line.rsplit_once(" at ").unwrap_or_else(|| panic!("{line}")).1.to_owned();
    let trust = lines.next().unwrap().unwrap();
    let words: Vec<String> =
        trust.strip_prefix("trust it with: tiderace ").unwrap().split(' ').map(str::to_owned).collect();
    assert_eq!(words[3], url);
    (server, words)
}

#[test]
fn a_directory_without_an_index_is_listed_unless_it_is_not_wanted() {
    let folder = Scratch::new("listing");
    std::fs::create_dir_all(folder.0.join("sub/deep")).unwrap();
    std::fs::create_dir(folder.0.join("site")).unwrap();
    for name in ["b<i>.txt", "a.txt", ".secret", "site/index.html"] {
        std::fs::write(folder.0.join(name), "content\n").unwrap();
    }
    let get = |words: &[String], path: &str| {
        let url = format!("{}{path}", words[3]);
        // Sizes and rates are read with units, too.
        let options = ["get", "-s", "--ca", &words[2], "--slowest", if path.is_empty() { "64Ki" } else { "1.5Mbit" }];
        let output = tiderace(&[&options[..], &["-L", &url]].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (_server, words) = serve(&folder, &[]);
    let (code, page) = get(&words, "");
    assert_eq!(code, Some(0));
    let places = ["./site/\"", "./sub/\"", ">a.txt</a><td>8", "href=\"./b%3Ci%3E.txt\">b&lt;i&gt;.txt</a>"];
    let places: Vec<usize> =
        places.iter().map(|text| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"))).collect();
    assert!(places.is_sorted() && !page.contains("secret") && !page.contains("../"), "{page}");
    assert!(get(&words, "sub").1.contains("<a href=\"../\">"), "a redirect leads to the list");
    assert_eq!(get(&words, "b%3Ci%3E.txt"), (Some(0), "content\n".to_owned()));
    assert_eq!(get(&words, "site/"), (Some(0), "content\n".to_owned()));
    assert_eq!(get(&words, "none/").0, Some(1));

    let (_server, words) = serve(&folder, &["--no-listing"]);
    assert_eq!(get(&words, "").0, Some(1));
    assert_eq!(get(&words, "site/"), (Some(0), "content\n".to_owned()));
}

#[test]
fn a_directory_is_served_over_every_version_until_the_program_is_ended() {
    let folder = Scratch::new("serve");
    std::fs::write(folder.0.join("index.html"), "hello\n").unwrap();
    let (mut server, words) = serve(&folder, &[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (certificate, url) = (words[2].to_owned(), words[3]);
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
fn the_next_server_removes_the_key_of_a_killed_one() {
    let [folder, temporary] = ["killed", "killed-temporary"].map(Scratch::new);
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.env("TMPDIR", &temporary.0);
        let (server, words) = serve_by(command, &folder, &[]);
        (server, std::path::PathBuf::from(&words[2]))
    };
    let (_running, kept) = start();
    let (mut killed, left_over) = start();
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    assert!(left_over.starts_with(&temporary.0) && left_over.exists(), "{}", left_over.display());
    let (_next, own) = start();
    assert!(!left_over.parent().unwrap().exists() && kept.exists() && own.exists());
}

#[test]
fn errors_name_the_option() {
    let folder = Scratch::new("errors");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    folder.certificate("localhost");
    let path = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    std::fs::write(path("empty.pem"), "").unwrap();
    let cases: [(&[&str], &str); 5] = [
        (&["--listen", &address], &format!("error: --listen: cannot listen on {address}: ")),
        (&["--prometheus", &address], &format!("error: --prometheus: cannot listen on {address}: ")),
        (&["--cert", &path("empty.pem"), "--key", &key], "error: --cert: "),
        (&["--cert", &cert, "--key", &path("empty.pem")], "error: --key: "),
        (&["--cert", &cert, "--key", &path("none.pem")], "error: --key: cannot read "),
    ];
    for (options, beginning) in cases {
        let listen = if options[0] == "--listen" { &[][..] } else { &["--listen", "127.0.0.1:0"] };
        let output = tiderace(&[&["serve", folder.0.to_str().unwrap()], options, listen].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(beginning) && !stderr.contains("edge.toml"), "{stderr}");
        assert!(!stderr.contains("tiderace edge") && !stderr.contains("configuration"), "{stderr}");
    }
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
