//! Captures of single connections: what is in them, when they end, and who gets none.

use std::{
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::site::{Site, get};
use pcap_file::pcapng::{Block, PcapNgReader};
use serde_json::Value;

const ON: &str = "[admin]\nsocket = \"edge.sock\"\n[capture]\nenabled = true\n";

fn site(name: &str, settings: &str) -> Site {
    let site = Site::start(name, &format!("{settings}[[route]]\nfiles = \".\"\n"));
    site.directory.write("large.bin", crate::site::pattern(300_000));
    site
}

/// Asks for a capture; the answer comes when it has ended.
fn capture(site: &Site, order: &str) -> tokio::task::JoinHandle<Value> {
    let (socket, order) = (site.directory.0.join("edge.sock"), order.to_owned());
    tokio::task::spawn_blocking(move || tiderace_edge::admin::ask(&socket, &format!("capture {order}")).unwrap())
}

/// As [`capture`], by somebody who can hang up.
fn begin(site: &Site, order: &str) -> UnixStream {
    let mut stream = UnixStream::connect(site.directory.0.join("edge.sock")).unwrap();
    writeln!(stream, "capture {order}").unwrap();
    stream
}

async fn hang_up(mut stream: UnixStream) -> Value {
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    let read = tokio::task::spawn_blocking(move || stream.read_to_string(&mut answer).map(|_| answer));
    serde_json::from_str(&read.await.unwrap().unwrap()).unwrap()
}

/// Until the capture has its folder: from then on it listens.
async fn under_way(site: &Site, captures: usize) {
    let folder = site.directory.0.join("captures");
    let count = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    while count() < captures {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Payloads by direction, and the key log, of a file of packets.
fn packets(path: &Path, port: u16) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, String) {
    let file = std::fs::read(path).unwrap();
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let (mut to, mut from, mut keys) = (Vec::new(), Vec::new(), String::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::EnhancedPacket(packet) => {
                let sliced = etherparse::SlicedPacket::from_ip(&packet.data).unwrap();
                let Some(etherparse::TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
                if udp.destination_port() == port { &mut to } else { &mut from }.push(udp.payload().to_vec());
            }
            Block::Unknown(block) => {
                let length = u32::from_le_bytes(block.value[4..8].try_into().unwrap()) as usize;
                keys.push_str(std::str::from_utf8(&block.value[8..8 + length]).unwrap());
            }
            _ => {}
        }
    }
    (to, from, keys)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_captured_from_its_first_packet() {
    let site = site("capture-first", ON);
    let captured = begin(&site, r#"{"client": "127.0.0.1", "seconds": 120}"#);
    under_way(&site, 1).await;
    let second =
        tiderace_edge::admin::ask(&site.directory.0.join("edge.sock"), r#"capture {"client": "::1"}"#).unwrap();
    assert!(second["error"].as_str().unwrap().contains("under way"), "{second}");
    let (endpoint, mut h3) = site.h3().await;
    assert_eq!(length_of_answer(&mut h3).await, 300_000);
    drop(h3);
    endpoint.close(0, b"done");
    endpoint.wait_idle().await;
    let about = hang_up(captured).await;
    let bundle = PathBuf::from(about["bundle"].as_str().unwrap());
    let written: Value = serde_json::from_slice(&std::fs::read(bundle.join("capture.json")).unwrap()).unwrap();
    assert_eq!(written, about);
    // Whoever hangs up has seen enough.
    assert_eq!((about["ended_by"].as_str(), about["items_left_out"].as_u64()), (Some("request"), Some(0)), "{about}");
    let [connection] = &about["connections"].as_array().unwrap()[..] else { panic!("{about}") };
    assert_eq!(connection["from_its_start"], true);
    assert_eq!(mode(&bundle), 0o700);
    for file in std::fs::read_dir(&bundle).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
    let qlog = std::fs::read_to_string(bundle.join(connection["qlog"].as_str().unwrap())).unwrap();
    for part in ["quic:connection_started", "quic:connection_closed", "sender:limited", "\"server\""] {
        assert!(qlog.contains(part), "{part}");
    }
    let (to, from, keys) = packets(&bundle.join("packets.pcapng"), site.address.port());
    assert_eq!(about["packets"].as_u64().unwrap(), (to.len() + from.len()) as u64);
    // A long header of an Initial packet comes first, as large as the standard wants.
    assert!(to[0].len() >= 1200 && to[0][0] & 0xc0 == 0xc0, "{:?}", &to[0][..1]);
    assert!(from.iter().map(Vec::len).sum::<usize>() > 300_000);
    assert_eq!(keys, std::fs::read_to_string(bundle.join("keys.log")).unwrap());
    for label in ["CLIENT_HANDSHAKE_TRAFFIC_SECRET ", "SERVER_TRAFFIC_SECRET_0 ", "CLIENT_TRAFFIC_SECRET_0 "] {
        let lines: Vec<_> = keys.lines().filter(|line| line.starts_with(label)).collect();
        assert_eq!(lines.len(), 1, "{label}: {keys}");
        assert_eq!(lines[0].split(' ').nth(1).unwrap().len(), 64);
    }
}

async fn length_of_answer(h3: &mut h3_quic::client::SendRequest) -> usize {
    use http_body_util::BodyExt;
    let response = h3.send(get("https://localhost/large.bin")).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap().to_bytes().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_runs_is_captured_by_its_id_until_it_ends() {
    let site = site("capture-id", ON);
    let (endpoint, mut h3) = site.h3().await;
    assert_eq!(length_of_answer(&mut h3).await, 300_000);
    let list = site.process.connections();
    let id = list["connections"][0]["cid"].as_str().unwrap().to_owned();
    assert_eq!(list["connections"][0]["alpn"], "h3");
    let captured = capture(&site, &format!(r#"{{"cid": "{id}", "seconds": 120}}"#));
    under_way(&site, 1).await;
    assert_eq!(length_of_answer(&mut h3).await, 300_000);
    drop(h3);
    endpoint.close(0, b"done");
    let about = captured.await.unwrap();
    assert_eq!(about["ended_by"], "connection", "{about}");
    assert_eq!(
        (&about["connections"][0]["cid"], &about["connections"][0]["from_its_start"]),
        (&id.into(), &false.into())
    );
    // Nobody has kept its keys.
    assert_eq!(about["keys"], 0);
    let bundle = PathBuf::from(about["bundle"].as_str().unwrap());
    let (to, from, keys) = packets(&bundle.join("packets.pcapng"), site.address.port());
    assert!(!to.is_empty() && from.iter().map(Vec::len).sum::<usize>() > 300_000 && keys.is_empty());
    assert!(
        tokio::time::timeout(crate::site::LIMIT, capture(&site, r#"{"cid": "00"}"#)).await.unwrap().unwrap()["error"]
            .is_string()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_connections_and_number_are_bounded() {
    let limits = "max-size = \"200 kB\"\nkeep = 2\nmax-connections = 1\n";
    let site = site("capture-bounds", &format!("{ON}{limits}"));
    let captured = capture(&site, r#"{"client": "127.0.0.1", "seconds": 120}"#);
    under_way(&site, 1).await;
    let (_first, mut h3) = site.h3().await;
    let _second = site.h3().await;
    assert_eq!(length_of_answer(&mut h3).await, 300_000);
    let about = captured.await.unwrap();
    assert_eq!(about["ended_by"], "size", "{about}");
    assert_eq!(about["connections"].as_array().unwrap().len(), 1);
    let bundle = PathBuf::from(about["bundle"].as_str().unwrap());
    let files = std::fs::read_dir(&bundle).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
    // What is written beside payloads and records: the file's own header, and what it is.
    assert!(files.sum::<u64>() < 210_000);
    assert_eq!(capture(&site, r#"{"client": "192.0.2.1", "seconds": 0.05}"#).await.unwrap()["ended_by"], "time");
    let third = capture(&site, r#"{"client": "192.0.2.1", "seconds": 0.05}"#).await.unwrap();
    assert!(third["error"].as_str().unwrap().contains("2 captures already"), "{third}");
    // The connections have noticed nothing.
    assert_eq!(length_of_answer(&mut h3).await, 300_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_permission_there_is_no_capture() {
    let site = site("capture-off", "[admin]\nsocket = \"edge.sock\"\n");
    let refused = capture(&site, r#"{"client": "127.0.0.1", "seconds": 0.05}"#).await.unwrap();
    assert!(refused["error"].as_str().unwrap().contains("not allowed"), "{refused}");
    assert!(!site.directory.0.join("captures").exists());
    // Allowed, but asked for by somebody else: the mode of the socket keeps them out, and so does the gateway where it does not.
    site.configure(&format!("{ON}[[route]]\nfiles = \".\"\n"));
    site.process.reload().await.unwrap();
    let socket = site.directory.0.join("edge.sock");
    // SAFETY: the call has no arguments and cannot fail.
    #[expect(unsafe_code, reason = "libc has no safe form")]
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can be somebody else");
        return;
    }
    assert!(ask_as_nobody(&socket).is_none(), "the mode of the socket");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let answer = ask_as_nobody(&socket).expect("the mode lets everybody in");
    assert!(answer.contains("only the user of the gateway"), "{answer}");
    assert!(!site.directory.0.join("captures").exists());
}

/// Answer to a process of another user; `None` when it is not let in.
fn ask_as_nobody(socket: &Path) -> Option<String> {
    use std::os::unix::process::CommandExt;
    const ASK: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                       s.sendall(b'capture {\"client\": \"127.0.0.1\"}\\n')\nprint(s.makefile().readline())\n";
    // What anybody may start, from a place that anybody may be in.
    let mut python = std::process::Command::new("/usr/bin/python3");
    let output = python.args(["-c", ASK]).arg(socket).current_dir("/").uid(65_534).gid(65_534).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let denied = String::from_utf8_lossy(&output.stderr).contains("PermissionError");
    assert!(output.status.success() || denied, "{}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then_some(text)
}
