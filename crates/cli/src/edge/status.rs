//! `tiderace edge status`: the state of a running gateway, as text and JSON.

use std::{fmt::Write, io::IsTerminal, process::ExitCode, time::Duration};

use clap::Args;
use edge::config::{Size, Span};
use serde_json::Value;

use super::{Running, ask, refusal};
use crate::{
    failure::Failure,
    printable::printable,
    stdout::{write_json_line, write_out},
};

/// Moves to the top left, and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";
/// Days before the end of a certificate from which on it is marked.
const SOON: f64 = 14.0;

#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    running: Running,
    /// Print one line of JSON each time
    #[arg(long)]
    json: bool,
    /// Repeat after this time, until Ctrl-C
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2 s")]
    watch: Option<Span>,
}

/// Prints the state, once or repeatedly.
pub(super) fn run(args: &Status) -> Result<ExitCode, Failure> {
    let clears = args.watch.is_some() && !args.json && std::io::stdout().is_terminal();
    let mut is_first = true;
    loop {
        let answer = ask(&args.running, "status")?;
        if answer["error"].is_string() {
            return Err(refusal(&answer));
        }
        if args.json {
            write_json_line(&answer)?;
        } else {
            let text = render(&answer);
            write_out(&match (clears, is_first) {
                (true, _) => format!("{CLEAR}{text}"),
                (false, true) => text,
                (false, false) => format!("\n{text}"),
            })?;
        }
        let Some(every) = args.watch else { return Ok(ExitCode::SUCCESS) };
        is_first = false;
        std::thread::sleep(every.0.max(Duration::from_millis(100)));
    }
}

/// The state as text.
fn render(status: &Value) -> String {
    let text = |value: &Value| printable(value.as_str().unwrap_or("-")).to_string();
    let list = |value: &Value| {
        let texts: Vec<String> = value.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(text).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
    };
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let mut out = format!(
        "{}\n\nversion       {}\nconfiguration number {}, in use for {}\n",
        text(&status["config"]),
        text(&status["version"]),
        number(&status["generation"]),
        time(number(&status["uptime_s"])),
    );
    let mut line = |name: &str, value: String| {
        // Writing into a string does not fail.
        let _ = writeln!(out, "{name:<14}{value}");
    };
    line("listen", list(&status["listen"]));
    if status["redirect_from"].as_array().is_some_and(|list| !list.is_empty()) {
        line("redirect from", list(&status["redirect_from"]));
    }
    let (workers, sockets) = (number(&status["workers"]), status["sockets"].as_u64());
    line(
        "workers",
        match sockets.filter(|sockets| *sockets != workers) {
            Some(sockets) => format!("{workers}, with {sockets} UDP sockets at each address"),
            None => workers.to_string(),
        },
    );
    if number(&status["worker_panics"]) > 0 {
        line("panics", format!("{} of workers: see the standard error", number(&status["worker_panics"])));
    }
    let processes = status["processes"].as_array().map(Vec::as_slice).unwrap_or_default();
    for process in processes.iter().filter(|_| processes.len() > 1) {
        let role = if process["serving"] == true { "serves" } else { "ends its connections" };
        let (number, pid, left) =
            (number(&process["process"]), number(&process["pid"]), number(&process["connections"]));
        line("process", format!("{number} (pid {pid}) {role}: {left}"));
    }
    let steering = &status["kernel_steering"];
    if processes.len() > 1 && steering.is_object() {
        let forwarded = format!("{} reads forwarded to older processes", number(&steering["forwarded"]));
        line(
            "steering",
            match steering["on"].as_bool() {
                Some(true) => {
                    let steered: u64 = processes.iter().filter_map(|process| process["steered"].as_u64()).sum();
                    format!("by the kernel: {steered} reads; {forwarded}")
                }
                _ => format!("off: {}; {forwarded}", text(&steering["reason"])),
            },
        );
    }
    for machine in status["machines"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let state = if machine["state"] == "down" { "DOWN".to_owned() } else { text(&machine["state"]) };
        let counts = ["forwarded", "answered", "received"].map(|name| format!("{} {name}", number(&machine[name])));
        let (id, address) = (text(&machine["server_id"]), text(&machine["address"]));
        line("machine", format!("{id} at {address} {state}: {}", counts.join(", ")));
    }
    line("connections", number(&status["connections"]).to_string());
    let requests: Vec<String> = status["requests"]
        .as_object()
        .map(|requests| requests.iter().map(|(version, count)| format!("{version} {count}")).collect())
        .unwrap_or_default();
    line("requests", requests.join(", "));
    let memory = &status["memory"];
    let (held, limit) = (number(&memory["held"]), number(&memory["limit"]));
    let share = 100.0 * held as f64 / limit.max(1) as f64;
    line("memory", format!("{} of {} ({share:.0} %)", size(held), size(limit)));
    for certificate in status["certificates"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let days = certificate["days"].as_f64().unwrap_or(0.0);
        let mark = if days < 0.0 {
            "  EXPIRED"
        } else if days < SOON {
            "  ENDS SOON"
        } else {
            ""
        };
        line("certificate", format!("{}, {days:.1} days{mark}", text(&certificate["certificate"])));
    }
    let back_ends = status["back_ends"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !back_ends.is_empty() {
        let names: Vec<String> = back_ends.iter().map(|back_end| text(&back_end["to"])).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(8);
        let _ = writeln!(out, "\nback end{:pad$}  state  protocol  requests", "", pad = width - 8);
        for (back_end, name) in back_ends.iter().zip(names) {
            let state = if back_end["well"] == true { "up" } else { "DOWN" };
            let protocol = text(&back_end["protocol"]);
            let _ = writeln!(out, "{name:<width$}  {state:<5}  {protocol:<8}  {}", number(&back_end["requests"]));
            if back_end["fall_back"].is_string() {
                let _ = writeln!(out, "  QUIC fails: {}", text(&back_end["fall_back"]));
            }
        }
    }
    out
}

/// A time by its two largest units.
fn time(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Bytes by the unit that leaves the fewest digits.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => Size(bytes).to_string(),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_state_is_readable() {
        let status = json!({
            "config": "edge.toml", "version": "0.1.0", "generation": 3, "uptime_s": 93_784, "listen": ["[::]:443"],
            "processes": [
                {"process": 1, "pid": 17, "serving": false, "connections": 5, "steered": 41},
                {"process": 2, "pid": 18, "serving": true, "connections": 12},
            ],
            "kernel_steering": {"on": false, "reason": "it needs CAP_BPF", "forwarded": 7},
            "machines": [
                {"server_id": "0a02", "address": "10.0.0.2:443", "state": "up", "forwarded": 7, "answered": 9, "received": 2},
                {"server_id": "0a03", "address": "10.0.0.3:443", "state": "down", "forwarded": 0, "answered": 0, "received": 0},
            ],
            "redirect_from": ["[::]:80"], "workers": 2, "sockets": 3, "worker_panics": 1, "connections": 12, "requests": {"h2": 1, "h3": 2, "http/1.1": 0},
            "memory": {"held": 3_670_016, "limit": 2_147_483_648_u64},
            "certificates": [{"certificate": "cert.pem", "days": 61.25}, {"certificate": "old.pem", "days": -1.0}, {"certificate": "acme", "days": 13.0}],
            "back_ends": [
                {"to": "http://127.0.0.1:8080", "well": true, "protocol": "http/1.1", "tls": false, "requests": 4},
                {"to": "https://a\u{1b}[2J:1", "well": false, "protocol": "tls", "tls": true, "requests": 0},
                {"to": "h3://a:1", "well": true, "protocol": "h2", "tls": true, "requests": 0, "fall_back": "timeout: \u{1b}silent"},
            ],
        });
        let text = render(&status);
        for line in [
            "configuration number 3, in use for 1 d 2 h",
            "redirect from [::]:80",
            "workers       2, with 3 UDP sockets at each address",
            "panics        1 of workers: see the standard error",
            "process       1 (pid 17) ends its connections: 5",
            "process       2 (pid 18) serves: 12",
            "steering      off: it needs CAP_BPF; 7 reads forwarded to older processes",
            "machine       0a02 at 10.0.0.2:443 up: 7 forwarded, 9 answered, 2 received",
            "machine       0a03 at 10.0.0.3:443 DOWN: 0 forwarded, 0 answered, 0 received",
            "requests      h2 1, h3 2, http/1.1 0",
            "memory        3.5 MiB of 2.0 GiB (0 %)",
            "certificate   cert.pem, 61.2 days",
            "certificate   old.pem, -1.0 days  EXPIRED",
            "certificate   acme, 13.0 days  ENDS SOON",
            "http://127.0.0.1:8080  up     http/1.1  4",
            "h3://a:1               up     h2        0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(
            !text.contains('\u{1b}') && text.contains("DOWN") && text.contains("  QUIC fails: timeout: "),
            "{text}"
        );
        let mut steered = status;
        steered["kernel_steering"] = json!({"on": true, "reason": null, "forwarded": 7});
        let text = render(&steered);
        assert!(text.contains("by the kernel: 41 reads; 7 reads forwarded to older processes\n"), "{text}");
        // A gateway of another version may say less.
        assert!(render(&json!({})).contains("listen        -"));
        for (seconds, expected) in [(59, "59 s"), (61, "1 min 1 s"), (3_660, "1 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(time(seconds), expected);
        }
    }
}
