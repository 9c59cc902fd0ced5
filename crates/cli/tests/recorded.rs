//! Records of connections that `perf` and `relay` write: qlog 0.3, and packets with their keys.

mod pcapng;
mod program;
mod scratch;

use std::{fs::File, io::BufReader};

use program::{Service, run, run_json};
use scratch::Scratch;

#[test]
fn a_transfer_is_recorded_at_the_client() {
    let scratch = Scratch::new("recorded-perf");
    let (logs, packets) = (scratch.0.join("logs"), scratch.0.join("packets.pcapng"));
    let server = Service::perf();
    let common = ["perf", "client", server.address(), "--insecure", "--bytes", "200k", "--ack-frequency", "fixed:50"];
    let records = ["--qlog", logs.to_str().unwrap(), "--qlog-format", "0.3", "--pcapng", packets.to_str().unwrap()];
    run_json(&[&common[..], &records, &["--json"]].concat());
    let mut files = 0;
    for entry in std::fs::read_dir(&logs).unwrap() {
        let path = entry.unwrap().path();
        let counts = lab::qlog::schema::check(BufReader::new(File::open(&path).unwrap()));
        let counts = counts.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(counts["transport:packet_received"] > 10, "{counts:?}");
        // ACK_FREQUENCY came after this version of qlog.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"raw_frame_type\":175"), "{}", path.display());
        files += 1;
    }
    assert_eq!(files, 1);
    let (labels, count) = pcapng::read(&packets);
    assert!(count > 100, "{count} packets");
    // The keys of a full handshake are known one after the other, those of the handshake before its packets.
    let file = std::fs::read(&packets).unwrap();
    for label in pcapng::ALL {
        assert!(file.windows(label.len()).any(|window| window == label.as_bytes()), "{label}: {labels:?}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&packets).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "for its owner alone: {mode:o}");
    }
}

#[test]
fn a_relay_writes_what_clients_send_and_the_keys_of_a_key_log() {
    let scratch = Scratch::new("recorded-relay");
    let (keys, packets) = (scratch.0.join("keys.log"), scratch.0.join("packets.pcapng"));
    std::fs::write(&keys, "CLIENT_TRAFFIC_SECRET_0 00 11\n").unwrap();
    let server = Service::perf();
    let common = ["relay", "--path", "production", "--listen", "127.0.0.1:0", "--to", server.address(), "--json"];
    let records = ["--pcapng", packets.to_str().unwrap(), "--keys", keys.to_str().unwrap()];
    let relay = Service::start(&[&common[..], &records].concat());
    let ask = ["perf", "client", relay.address(), "--insecure", "--bytes", "100k", "--json"];
    assert_eq!(run_json(&ask)["download"]["bytes"], 100_000);
    let (_, lines) = relay.interrupt();
    let total = lines.last().unwrap();
    let (labels, count) = pcapng::read(&packets);
    assert_eq!(labels, ["CLIENT_TRAFFIC_SECRET_0"]);
    // What came from clients and was offered to the link, and what left it towards them.
    let offered = total["up"]["offered_packets"].as_u64().unwrap();
    let delivered = total["down"]["delivered_packets"].as_u64().unwrap();
    let held = total["held_packets"].as_u64().unwrap();
    let count = count as u64;
    assert!(count <= offered + delivered && count + held >= offered + delivered, "{count}: {total}");
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let taken = ["perf", "client", "127.0.0.1:1", "--insecure", "--pcapng", "/nonexistent/x.pcapng"];
    let output = run(&taken);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("cannot write /nonexistent/x.pcapng") && error.contains("--pcapng FILE"), "{error}");
    for arguments in [
        &["perf", "client", "127.0.0.1:1", "--tcp", "--pcapng", "x"][..],
        &["perf", "client", "127.0.0.1:1", "--qlog-format", "0.3"],
        &["perf", "client", "127.0.0.1:1", "--qlog", "x", "--qlog-format", "0.4"],
        &["relay", "--path", "mobile", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--keys", "x"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
