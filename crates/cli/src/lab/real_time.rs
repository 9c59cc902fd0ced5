//! V14 of the self-test: the same path, stack and transfer in virtual and in real time. This program starts itself as server, relay
//! and client over loopback.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use lab::{
    figure::Figure, run::run_one, scenario::parse, selftest::Check, stats::quantile::median, tiderace::contender,
};
use serde_json::Value;

/// Real transfers; their median counts.
const TRANSFERS: u64 = 3;
/// Seconds of each.
const SECONDS: u64 = 8;
/// A path on which a controller, and not the machine, decides.
const PATH: &str = r#"
name = "both-clocks"
title = "One download over 20 Mbit/s and 50 ms"
about = "The same path in real and in virtual time."
[path.down]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"
[path.up]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "100 ms"
duration = "8 s"
seeds = 1
"#;

/// Goodput within 5 %, median RTT within 2 ms.
pub(super) fn checks() -> Vec<Check> {
    const NAMES: [&str; 2] = ["V14 goodput in real time", "V14 RTT in real time"];
    let failed = |reason: &str| NAMES.map(|name| Check { name, passed: false, detail: reason.to_owned() }).to_vec();
    let ((goodput, rtt), real) = match (simulated(), real()) {
        (Ok(simulated), Ok(real)) => (simulated, real),
        (Err(reason), _) | (_, Err(reason)) => return failed(&reason),
    };
    let middle = |read: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = real.iter().map(read).collect();
        values.sort_by(f64::total_cmp);
        median(&values).unwrap_or(f64::NAN)
    };
    let (real_goodput, real_rtt) = (middle(|one| one.0), middle(|one| one.1));
    let ratio = real_goodput / goodput;
    vec![
        Check {
            name: NAMES[0],
            passed: (0.95..=1.05).contains(&ratio),
            detail: format!("{real_goodput:.2} Mbit/s, simulated {goodput:.2}: × {ratio:.3} (0.95 to 1.05)"),
        },
        Check {
            name: NAMES[1],
            passed: (real_rtt - rtt).abs() <= 2.0,
            detail: format!("p50 {real_rtt:.2} ms, simulated {rtt:.2}: {:+.2} ms (± 2)", real_rtt - rtt),
        },
    ]
}

/// Mbit/s and milliseconds in virtual time.
fn simulated() -> Result<(f64, f64), String> {
    let scenario = parse(PATH, "the self-test").map_err(|error| error.to_string())?;
    let stack = contender("cubic").ok_or("there is no cubic")?;
    let record = run_one(&scenario, stack.as_ref(), 1, None);
    let value = |figure: Figure| record.figures.get(&figure).and_then(|reading| reading.value);
    let (goodput, rtt) = value(Figure::Goodput).zip(value(Figure::RttP50)).ok_or("the simulated run has no figures")?;
    Ok((goodput / 1e6, rtt * 1e3))
}

/// The same of each real transfer.
fn real() -> Result<Vec<(f64, f64)>, String> {
    let directory = std::env::temp_dir().join(format!("tiderace-selftest-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot write to {}: {error}", directory.display()))?;
    let file = directory.join("both-clocks.toml");
    let written = std::fs::write(&file, PATH).map_err(|error| format!("cannot write {}: {error}", file.display()));
    let transfers = written.and_then(|()| (1..=TRANSFERS).map(|seed| transfer(&file, seed)).collect());
    // A directory that stays behind in the one for such things is no reason to fail.
    let _ = std::fs::remove_dir_all(&directory);
    transfers
}

fn transfer(file: &std::path::Path, seed: u64) -> Result<(f64, f64), String> {
    let server = Process::start(&["perf", "server", "--listen", "127.0.0.1:0", "--cc", "cubic", "--json"])?;
    let (path, number) = (file.display().to_string(), seed.to_string());
    let relay = Process::start(&[
        "relay",
        "--path",
        &path,
        "--listen",
        "127.0.0.1:0",
        "--to",
        &server.address,
        "--seed",
        &number,
        "--json",
    ])?;
    let duration = format!("{SECONDS} s");
    let client = ["perf", "client", &relay.address, "--insecure", "--duration", &duration, "--json"];
    let output = program()?.args(client).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("the transfer failed: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    let goodput = report["download"]["goodput_mbit_per_s"].as_f64();
    let rtt = report["sender"]["rtt"]["p50_ms"].as_f64();
    goodput.zip(rtt).ok_or_else(|| "the transfer reports no goodput or no RTT".to_owned())
}

fn program() -> Result<Command, String> {
    Ok(Command::new(std::env::current_exe().map_err(|error| error.to_string())?))
}

/// Child process of this program. Ended when dropped.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    /// Starts the server and waits for the line with its address.
    fn start(arguments: &[&str]) -> Result<Self, String> {
        let mut child = program()?
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (told, heard) = std::sync::mpsc::channel();
        let outputs: [Option<Box<dyn std::io::Read + Send>>; 2] =
            [child.stdout.take().map(|pipe| Box::new(pipe) as _), child.stderr.take().map(|pipe| Box::new(pipe) as _)];
        for pipe in outputs.into_iter().flatten() {
            let told = told.clone();
            // Reads on to the end, so that a full pipe never stops the process.
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    let address = serde_json::from_str::<Value>(&line).ok();
                    if let Some(address) = address.as_ref().and_then(|value| value["address"].as_str()) {
                        let _ = told.send(address.to_owned());
                    }
                }
            });
        }
        drop(told);
        let mut process = Self { child, address: String::new() };
        process.address = heard
            .recv_timeout(Duration::from_secs(60))
            .map_err(|_| format!("`{}` does not say where it listens", arguments[..2].join(" ")))?;
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
