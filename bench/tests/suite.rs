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

fn measure(arguments: &[&str], cpus: &str) -> (Value, String) {
    let output = bench(&[arguments, &["--rounds", "1", "--patience", "0", "--cpus", cpus, "--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    (serde_json::from_slice(&output.stdout).expect("one JSON document"), errors)
}

/// The contenders that every build has.
const ALWAYS: &str = "floor,udp-gso,udp,tcp-rustls,tiderace,tiderace-in-place,tiderace-service,quinn";

#[test]
fn every_contender_moves_every_byte() {
    let Some(cpus) = cpus() else { return eprintln!("skipped: needs two CPUs") };
    let (document, errors) = measure(&["bulk", "--size", "3 MB", "--peers", "floor,tcp-rustls,tiderace,quinn"], &cpus);
    let runs = document["runs"].as_array().expect("runs");
    let peers: Vec<_> = runs.iter().filter_map(|run| run["peer"].as_str()).collect();
    assert_eq!(peers, ["floor", "tcp-rustls", "tiderace", "quinn"], "{errors}");
    for run in runs {
        for side in ["client", "server"] {
            assert_eq!(run[side]["units"], 3_000_000, "{run}");
            let (work, process) = (&run[side]["cpu_ns"], &run[side]["process_cpu_ns"]);
            assert!(work.as_u64().unwrap() > 0 && work.as_u64() <= process.as_u64(), "{run}");
        }
        // One place per 64 KiB.
        assert_eq!(run["server"]["content_samples"], 46, "{run}");
    }
    let floor = &runs[0]["client"]["datagrams"];
    // 1,452-byte packets carry 1,423 bytes; 44 of them leave per call.
    assert_eq!((floor["sent"].as_u64(), floor["send_calls"].as_u64()), (Some(2_109), Some(48)), "{floor}");
}

#[test]
fn every_mode_works_with_every_contender_that_can() {
    let Some(cpus) = cpus() else { return eprintln!("skipped: needs two CPUs") };
    // Without `bulk`, which has a test of its own.
    let modes = "bulk-streams,bulk-connections,hs,hsr,rr,dgram,idle,latency,hs-ml-kem";
    let arguments = ["all", "--no-write", "--modes", modes, "--size", "4MiB", "--scale", "0.01", "--peers", ALWAYS];
    let (document, errors) = measure(&arguments, &cpus);
    let runs = document["runs"].as_array().expect("runs");
    let of = |mode: &str| -> Vec<&Value> { runs.iter().filter(|run| run["mode"] == mode).collect() };
    let names = |mode: &str| -> Vec<&str> { of(mode).iter().filter_map(|run| run["peer"].as_str()).collect() };
    assert_eq!(names("bulk-streams"), ["floor", "tiderace", "quinn"], "{errors}");
    assert_eq!(names("bulk-connections"), ["floor", "tcp-rustls", "tiderace", "quinn"], "{errors}");
    for mode in ["hs", "hsr", "hs-ml-kem"] {
        assert_eq!(names(mode), ["tcp-rustls", "tiderace", "tiderace-in-place", "quinn"], "{errors}");
    }
    assert_eq!(names("idle"), ["tcp-rustls", "tiderace", "quinn"], "{errors}");
    assert_eq!(names("rr"), ["tiderace", "tiderace-service", "quinn"], "{errors}");
    assert_eq!(names("latency"), ["tiderace", "quinn"], "{errors}");
    for run in of("latency") {
        let latencies = run["client"]["latencies"].as_array().expect("latencies");
        assert_eq!(latencies.len(), 5, "{run}");
        for latency in latencies {
            let [p50, p99, p999] =
                ["p50_us", "p99_us", "p999_us"].map(|name| latency[name].as_f64().expect("a number"));
            assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{run}");
        }
    }
    assert_eq!(names("dgram"), ["floor", "udp-gso", "udp", "tiderace", "quinn"], "{errors}");
    // One signature and one key agreement make a full handshake; a resumed one is not signed.
    for run in [of("hs"), of("hs-ml-kem")].concat() {
        let server = &run["server"];
        assert_eq!((server["signatures"].as_u64(), server["key_agreements"].as_u64()), (Some(10), Some(10)), "{run}");
    }
    for run in of("hsr") {
        let server = &run["server"];
        assert_eq!((server["signatures"].as_u64(), server["key_agreements"].as_u64()), (Some(0), Some(10)), "{run}");
    }
    for run in of("hsr").into_iter().filter(|run| run["peer"] != "tcp-rustls") {
        assert_eq!(run["client"]["early"].as_u64(), Some(10), "early data is accepted: {run}");
    }
    for run in of("rr") {
        assert_eq!(run["server"]["units"], 2_000, "{run}");
    }
    for run in of("idle") {
        assert!(run["server"]["memory_growth"].as_u64().is_some_and(|bytes| bytes > 0), "{run}");
    }
}

/// The contenders that this build was asked for.
const ASKED_FOR: &[&str] = &[
    #[cfg(feature = "noq")]
    "noq",
    #[cfg(feature = "quiche")]
    "quiche",
    #[cfg(feature = "s2n")]
    "s2n-quic",
];

#[test]
fn every_mode_works_with_the_contenders_that_were_asked_for() {
    let Some(cpus) = cpus() else { return eprintln!("skipped: needs two CPUs") };
    let asked_for = ASKED_FOR.to_vec();
    if asked_for.is_empty() {
        return eprintln!("skipped: needs --features noq,quiche,s2n");
    }
    let peers = asked_for.join(",");
    let (document, errors) =
        measure(&["all", "--no-write", "--size", "4MiB", "--scale", "0.01", "--peers", &peers], &cpus);
    let runs = document["runs"].as_array().expect("runs");
    for mode in ["bulk", "bulk-streams", "bulk-connections", "hs", "hsr", "rr", "dgram", "idle", "latency", "hs-ml-kem"]
    {
        let ran = |peer: &str| runs.iter().find(|run| run["mode"] == mode && run["peer"] == peer);
        for &peer in &asked_for {
            let can = !matches!((mode, peer), ("hsr", "s2n-quic") | ("hs-ml-kem", "s2n-quic" | "quiche"));
            let Some(run) = ran(peer) else {
                assert!(!can, "{mode} with {peer} did not run: {errors}");
                continue;
            };
            assert!(can, "{run}");
            let (client, server) = (&run["client"], &run["server"]);
            match mode {
                "hs" | "hs-ml-kem" => assert!(server["signatures"] == 10 || client["resumed"] == 0, "{run}"),
                "hsr" => assert_eq!(client["early"], 10, "early data is accepted: {run}"),
                "idle" => assert!(server["memory_growth"].as_u64().is_some_and(|bytes| bytes > 0), "{run}"),
                _ => assert!(server["content_samples"].as_u64().is_some_and(|places| places > 0), "{run}"),
            }
        }
    }
}

#[test]
fn a_wrong_setting_is_one_clear_message() {
    for (arguments, says) in [
        (&["bulk", "--peers", "floor,nobody"][..], "nobody"),
        (&["bulk", "--size", "much"], "a size"),
        (&["bulk", "--cpus", "1,1"], "hint:"),
        (&["bulk", "--rounds", "0"], "--rounds"),
        (&["rr", "--scale", "0"], "hint:"),
        (&["all", "--modes", "bulk,sulk"], "sulk"),
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
