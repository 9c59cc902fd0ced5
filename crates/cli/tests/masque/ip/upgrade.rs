//! Tunnels over upgrades of the gateway: those of older processes go on, and new ones open at once.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, TcpStream},
    process::{Command, Stdio},
};

use super::{CONTENT, QUERY, TARGET, TARGET_V6, Tunnel, download, exchange, folder};
use crate::LIMIT;

fn edge(command: &str) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    program.args(["edge", command, "--config"]).arg(folder().join("edge.toml")).stdin(Stdio::null());
    let output = program.current_dir(folder()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    said
}

/// The only address of a tunnel.
fn address(tunnel: &Tunnel) -> String {
    let addresses = tunnel.opened["addresses"].as_array().unwrap();
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    addresses[0].as_str().unwrap().to_owned()
}

fn carries(target: &str) {
    assert_eq!(exchange(target, QUERY).len(), QUERY.len());
    assert_eq!(download(target), CONTENT, "{target}");
}

pub(super) fn run() {
    let first = Tunnel::start_at("first", &["--http3", "--target", TARGET]);
    carries(TARGET);
    // A connection from before the upgrades, which asks behind them.
    let mut stream = TcpStream::connect((TARGET.parse::<IpAddr>().unwrap(), 80)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    edge("upgrade");
    carries(TARGET);
    let second = Tunnel::start_at("second", &["--http3", "--target", TARGET_V6]);
    carries(TARGET_V6);
    edge("upgrade");
    carries(TARGET);
    carries(TARGET_V6);
    let third = Tunnel::start_at("third", &["--http2", "--target", "93.184.216.0/24"]);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: target\r\n\r\n").unwrap();
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(answer.read_line(&mut line).unwrap() > 0);
    }
    let mut content = Vec::new();
    answer.read_to_end(&mut content).unwrap();
    assert_eq!(content.len(), CONTENT, "the connection goes on through two upgrades");
    let addresses: HashSet<_> = [&first, &second, &third].into_iter().map(address).collect();
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    // The third one has the target when the first is gone, which had it alone.
    first.end();
    carries(TARGET);
    second.end();
    third.end();
}
