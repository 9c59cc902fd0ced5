//! `tiderace lab play`: the page runs what a scenario runs, within its limits, and answers nobody else.

mod program;
mod scratch;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use scratch::{Program, Scratch};
use serde_json::Value;

const SETTINGS: &str =
    "rate=4M&rtt=40ms&loss=1%25&queue=1BDP&connections=2&duration=2s&seed=3&contender=cubic&contender=auto%2Brepair";

/// The server, and the address that it prints.
fn start() -> (Program, String) {
    let mut child = program::spawn(&["lab", "play", "--listen", "127.0.0.1:0"]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_else(|| panic!("{line}"));
    (Program(child), address.to_owned())
}

/// Status, header and content of an answer.
fn ask(address: &str, request: &str, fields: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nconnection: close\r\n{fields}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (header, content) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    (header.split(' ').nth(1).unwrap().parse().unwrap(), header.to_owned(), content.to_owned())
}

fn at_home(address: &str) -> String {
    format!("host: {address}\r\nsec-fetch-site: same-origin\r\n")
}

#[test]
fn the_page_runs_what_the_scenario_that_it_shows_runs() {
    let (_server, address) = start();
    let (status, _, content) = ask(&address, &format!("GET /run?{SETTINGS}"), &at_home(&address));
    assert_eq!(status, 200, "{content}");
    let shown: Value = serde_json::from_str(&content).unwrap();
    let scratch = Scratch::new("play");
    std::fs::write(scratch.0.join("play.toml"), shown["scenario"].as_str().unwrap()).unwrap();
    let output = scratch.lab(&["run", "play.toml", "--seed", "3", "--seeds", "1", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let columns = report["contenders"].as_array().unwrap();
    assert_eq!(columns.len(), 2);
    for (run, column) in shown["contenders"].as_array().unwrap().iter().zip(columns) {
        assert_eq!(column["name"], format!("tiderace {}", run["name"].as_str().unwrap()));
        assert_eq!(run["failed"], Value::Null);
        let figure = |of: &Value, value: &str| {
            let figures = of["figures"].as_array().unwrap();
            figures.iter().find(|one| one["figure"] == "goodput").and_then(|one| one[value].as_f64()).unwrap()
        };
        let (shown, reported) = (figure(run, "value"), figure(column, "median") * 1e-6);
        assert!(shown > 0.0 && (shown - reported).abs() < 1e-9 * reported, "{shown} {reported}");
        let series = &run["series"];
        let moments = series["at"].as_array().unwrap().len();
        assert!(moments >= 230, "{moments}");
        for name in ["rate", "queue", "window", "flight"] {
            let values: Vec<f64> = series[name].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
            assert_eq!(series[name].as_array().unwrap().len(), moments);
            assert!(values.iter().all(|value| *value >= 0.0) && values.iter().any(|value| *value > 0.0), "{name}");
        }
        assert!(run["spread"]["RTT"][0].as_f64().unwrap() >= 40.0, "{}", run["spread"]);
    }
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let (_server, address) = start();
    let (status, header, page) = ask(&address, "GET /", &at_home(&address));
    assert_eq!(status, 200);
    assert!(header.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{header}");
    assert!(page.contains("play.js") && !page.contains("http"), "{page}");
    for (file, kind) in [("/play.js", "text/javascript"), ("/play.css", "text/css")] {
        let (status, header, content) = ask(&address, &format!("GET {file}"), &at_home(&address));
        assert!(status == 200 && header.contains(kind) && !content.is_empty(), "{header}");
    }
    assert_eq!(ask(&address, "GET /etc/passwd", &at_home(&address)).0, 404);
}

#[test]
fn others_are_refused_and_so_is_what_is_too_much() {
    let (_server, address) = start();
    let run = format!("GET /run?{SETTINGS}");
    // A name that an attacker makes lead here, and a page that asks from elsewhere.
    assert_eq!(ask(&address, &run, "host: rebound.example\r\n").0, 403);
    assert_eq!(ask(&address, &run, &format!("host: {address}\r\nsec-fetch-site: cross-site\r\n")).0, 403);
    assert_eq!(ask(&address, &run.replace("GET", "POST"), &at_home(&address)).0, 405);
    for (query, expected) in [("rate=1G&rtt=50ms", "too much"), ("rate=20M&rtt=50ms&out=/tmp", "`out`"), ("", "--rate")]
    {
        let (status, _, content) = ask(&address, &format!("GET /run?{query}"), &at_home(&address));
        let answer: Value = serde_json::from_str(&content).unwrap();
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(expected), "{content}");
    }
    let (error, hint) = program::refused(&["lab", "play", "--listen", "0.0.0.0:0"]);
    assert!(error.contains("no loopback address") && hint.contains("ssh -L"), "{error} {hint}");
}

/// A browser that goes away does not leave a run behind: the next one would wait for it.
#[test]
fn a_run_that_nobody_waits_for_ends() {
    let (_server, address) = start();
    // Unoptimised, this takes the 20 s of the limit, and more.
    let long = "GET /run?rate=60M&rtt=20ms&connections=50&duration=29s&contender=cubic&contender=bbr3&contender=auto&contender=newreno";
    let mut gone = TcpStream::connect(&address).unwrap();
    write!(gone, "{long} HTTP/1.1\r\n{}\r\n", at_home(&address)).unwrap();
    drop(gone);
    let (status, _, content) = ask(&address, &format!("GET /run?{SETTINGS}"), &at_home(&address));
    assert_eq!(status, 200, "{content}");
}
