//! `tiderace edge compare` over several gateways: replayed clients, assigned and recorded by the gateway's own code.
#![cfg(target_os = "linux")]

mod gateway;
mod program;
mod scratch;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use edge::trial::{Arm, NetworkType, ObservedRequest, Trials, Withholding};
use program::{refused, run, run_json};
use scratch::Scratch;
use serde_json::{Value, json};

/// Gateways that share the clients.
const GATEWAYS: usize = 3;
/// Clients of all gateways together.
const CLIENTS: u32 = 3_000;

/// Random numbers of a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / 2_f64.powi(53)
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Policy that withholds HTTP/3 from half of the clients.
fn policy(share: u32, key: &str) -> Withholding {
    let text = format!(
        "listen = \"127.0.0.1:443\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[policy]]\nname = \"live\"\nhttp3 = false\n\
         share = \"{share} %\"\nkey = \"{key}\"\n[[route]]\nto = \"http://127.0.0.1:8080\"\n"
    );
    Withholding::new(&edge::config::parse(&text, "edge.toml").unwrap())
}

/// Files with the records of gateways, between which the clients are divided. One in ten moves between two of them. `ratio` is the time of
/// requests in the QUIC arm over that in the TCP arm.
fn replay(scratch: &Scratch, name: &str, seed: u64, ratio: f64) -> Vec<String> {
    let withholding = policy(50, "one for all");
    let gateways: Vec<_> = (0..GATEWAYS).map(|_| Trials::new(&Default::default())).collect();
    let mut random = Random(seed);
    let listener = SocketAddr::from(([127, 0, 0, 1], 443));
    for number in 0..CLIENTS {
        let address = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number * 37));
        let assignment = withholding.assign(listener, address, None).unwrap();
        let (own, requests) = ((0.5 * random.normal()).exp(), (2.0 / random.uniform().powf(0.7)).min(100.0) as usize);
        let moves = random.uniform() < 0.1;
        let factor = if assignment.arm == Arm::Quic { ratio } else { 1.0 };
        for request in 0..requests {
            let seconds = Some(0.1 * own * factor * (0.4 * random.normal()).exp());
            let gateway = (number as usize + if moves { request } else { 0 }) % GATEWAYS;
            let is_quic = assignment.arm == Arm::Quic && request > 0;
            let request = ObservedRequest { is_quic, network_type: NetworkType::Unreported, seconds };
            gateways[gateway].note(&assignment, &request);
        }
    }
    let save = |(place, trials): (usize, &std::sync::Arc<Trials>)| {
        let file = scratch.0.join(format!("{name}-{place}.json"));
        save(&file, &format!("{name}-{place}"), &trials.to_json());
        file.to_str().unwrap().to_owned()
    };
    gateways.iter().enumerate().map(save).collect()
}

fn save(file: &std::path::Path, instance: &str, trials: &Value) {
    let value = json!({"schema": "tiderace-edge-records/1", "gateway": instance, "arms": {}, "trials": trials});
    std::fs::write(file, value.to_string()).unwrap();
}

/// The comparison of these files.
fn compared(files: &[String]) -> Value {
    let records = files.iter().flat_map(|file| ["--records", file]);
    run_json(&["edge", "compare"].into_iter().chain(records).chain(["--json"]).collect::<Vec<_>>())
}

/// Verdicts on the quantiles.
fn verdicts(report: &Value) -> Vec<String> {
    let report = &report["clients"]["live"];
    assert_eq!(report["not_comparable"], json!([]), "{report}");
    let figures = report["tables"][0]["rows"][0]["figures"].as_array().unwrap();
    figures.iter().map(|row| row["result"]["verdict"].as_str().unwrap_or("none").to_owned()).collect()
}

#[test]
fn a_difference_that_no_gateway_can_show_alone_is_found_in_all_together() {
    let scratch = Scratch::new("compare-planted");
    let files = replay(&scratch, "planted", 7, 0.91);
    for file in &files {
        let alone = verdicts(&compared(std::slice::from_ref(file)));
        assert!(alone.iter().all(|verdict| verdict != "better" && verdict != "worse"), "{file}: {alone:?}");
    }
    let report = compared(&files);
    assert_eq!(report["gateways"], GATEWAYS);
    assert_eq!(verdicts(&report)[0], "better", "{report}");
    let report = &report["clients"]["live"];
    // Clients that moved between gateways are there once.
    let clients = report["clients"]["tcp"].as_u64().unwrap() + report["clients"]["quic"].as_u64().unwrap();
    assert_eq!((clients, &report["in_both"]), (CLIENTS.into(), &0.into()));
    let text: Vec<&str> =
        ["edge", "compare"].into_iter().chain(files.iter().flat_map(|file| ["--records", file])).collect();
    let text = String::from_utf8(run(&text).stdout).unwrap();
    assert!(text.starts_with("3 gateways together\n") && text.contains("QUIC is better"), "{text}");
}

#[test]
fn equal_arms_of_several_gateways_show_no_difference() {
    let scratch = Scratch::new("compare-same");
    for seed in 0..5 {
        let files = replay(&scratch, &format!("same-{seed}"), 100 + seed, 1.0);
        let all = verdicts(&compared(&files));
        assert!(all.iter().all(|verdict| verdict != "better" && verdict != "worse"), "{seed}: {all:?}");
    }
}

#[test]
fn gateways_that_cannot_be_compared_together_are_named() {
    let scratch = Scratch::new("compare-refused");
    let files = replay(&scratch, "one", 3, 1.0);
    let [first, second, ..] = &files[..] else { unreachable!("there are three") };
    let compare = |more: &[&str]| refused(&[&["edge", "compare", "--records", first], more].concat());
    // The same gateway twice, also under another name.
    let copy = scratch.0.join("copy.json");
    std::fs::copy(first, &copy).unwrap();
    let (error, hint) = compare(&["--records", second, "--records", copy.to_str().unwrap()]);
    assert!(error.ends_with("copy.json are of the same gateway, whose clients would count twice"), "{error}");
    assert_eq!(hint, "name each gateway once; of files of one gateway, the newest");
    // One that does not answer.
    let nobody = scratch.0.join("nobody.sock");
    let (error, hint) = compare(&["--socket", nobody.to_str().unwrap()]);
    assert!(error.starts_with(nobody.to_str().unwrap()) && hint == "is the gateway running?", "{error} {hint}");
    // Other shares and keys.
    let client = IpAddr::from([10, 0, 0, 0]);
    for (withholding, expected) in [
        (policy(20, "one for all"), "the share is 50 % at "),
        (policy(50, "another"), "assign clients by different keys"),
    ] {
        let trials = Trials::new(&Default::default());
        let assignment = withholding.assign(SocketAddr::from(([127, 0, 0, 1], 443)), client, None).unwrap();
        let request = ObservedRequest { is_quic: false, network_type: NetworkType::Unreported, seconds: Some(0.1) };
        trials.note(&assignment, &request);
        let other = scratch.0.join("other.json");
        save(&other, "other", &trials.to_json());
        let (error, _) = compare(&["--records", other.to_str().unwrap()]);
        assert!(error.starts_with("policy `live`: ") && error.contains(expected), "{error}");
    }
    // What is no file of records.
    let file = scratch.0.join("run.jsonl");
    std::fs::write(&file, r#"{"schema": "tiderace-lab-experiment/1"}"#).unwrap();
    let (error, hint) = compare(&["--records", file.to_str().unwrap()]);
    assert!(error.ends_with("expected records (tiderace-edge-records/1), found tiderace-lab-experiment/1"), "{error}");
    assert!(hint.contains("--save FILE"), "{hint}");
}

#[test]
fn a_running_gateway_is_saved_and_counts_once() {
    let scratch = Scratch::new("compare-running");
    scratch.certificate("localhost");
    let config = scratch.0.join("edge.toml");
    let text = "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[admin]\nsocket = \"edge.sock\"\n\
                [[route]]\nto = \"http://127.0.0.1:9\"\n";
    std::fs::write(&config, text).unwrap();
    let _gateway = gateway::Gateway::start(&config);
    let (config, file) = (config.to_str().unwrap(), scratch.0.join("gw.json"));
    let (file, socket) = (file.to_str().unwrap(), scratch.0.join("edge.sock"));
    assert!(run(&["edge", "compare", "--config", config, "--save", file]).status.success());
    let printed = run_json(&["edge", "compare", "--config", config, "--save", "-"]);
    assert_eq!(printed, serde_json::from_str::<Value>(&std::fs::read_to_string(file).unwrap()).unwrap());
    assert_eq!(run_json(&["edge", "compare", "--records", file, "--json"])["gateways"], 1);
    for twice in [["--socket", socket.to_str().unwrap()], ["--records", file], ["--config", config]] {
        let (error, _) = refused(&["edge", "compare", "--config", config, twice[0], twice[1]]);
        assert!(error.contains("are of the same gateway, whose clients would count twice"), "{error}");
    }
}
