//! The driver and every contender, end to end over loopback, at a size that takes no time.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).output().expect("the binary runs")
}

/// Two CPUs this process may use; `None` where there are not two.
fn cpus() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let mut cpus = list.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap_or(0)..=last.parse().unwrap_or(0)
    });
    Some(format!("{},{}", cpus.next()?, cpus.next()?))
}

#[test]
fn every_contender_moves_every_byte() {
    let Some(cpus) = cpus() else { return eprintln!("skipped: needs two CPUs") };
    let output = bench(&["bulk", "--rounds", "1", "--size", "3 MB", "--patience", "0", "--cpus", &cpus, "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let runs = document["runs"].as_array().expect("runs");
    let peers: Vec<_> = runs.iter().filter_map(|run| run["peer"].as_str()).collect();
    assert_eq!(peers, ["floor", "tiderace", "quinn", "tcp-rustls"], "{errors}");
    for run in runs {
        for side in ["sender", "receiver"] {
            assert_eq!(run[side]["bytes"], 3_000_000, "{run}");
            let (transfer, process) = (&run[side]["transfer_cpu_ns"], &run[side]["process_cpu_ns"]);
            assert!(transfer.as_u64().unwrap() > 0 && transfer.as_u64() <= process.as_u64(), "{run}");
        }
        // One place per 64 KiB.
        assert_eq!(run["receiver"]["content_samples"], 46, "{run}");
    }
    let floor = &runs[0]["sender"]["datagrams"];
    // 1,452-byte packets carry 1,423 bytes; 44 of them leave per call.
    assert_eq!((floor["sent"].as_u64(), floor["send_calls"].as_u64()), (Some(2_109), Some(48)), "{floor}");
    assert_eq!(document["summary"][2]["sum"]["to_quinn"], 1.0);
}

#[test]
fn a_wrong_setting_is_one_clear_message() {
    for (arguments, says) in [
        (&["bulk", "--peers", "floor,nobody"][..], "nobody"),
        (&["bulk", "--size", "much"], "a size"),
        (&["bulk", "--cpus", "1,1"], "hint:"),
        (&["bulk", "--rounds", "0"], "--rounds"),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(says), "{errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_failed_run_is_reported_as_failed() {
    // No machine has this CPU.
    let output = bench(&["bulk", "--rounds", "1", "--size", "1 MB", "--patience", "0", "--cpus", "0,1000"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("CPU 1000") && errors.contains("no run succeeded"), "{errors}");
}
