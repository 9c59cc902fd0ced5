//! Requests whose header sections are refused are in the books, too, over each version of HTTP; and settings of QUIC that clients notice
//! in the handshake.

use crate::site::{BackEnd, Site, full, get, text, wire::raw_h1};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BIG: usize = 40_000;

async fn site(name: &str) -> (Site, BackEnd) {
    let back_end = BackEnd::start(|_| async { http::Response::new(full("ok")) }).await;
    let site = Site::start(name, &format!("[limits]\nfields = \"16 KiB\"\n[[route]]\nto = \"{}\"\n", back_end.url()));
    (site, back_end)
}

/// Log entries of so many requests: protocol, status, whose doing, and why, in alphabetical order.
async fn ends(site: &Site, count: usize) -> Vec<(String, u64, String, String)> {
    let path = site.directory.0.join("access.log");
    crate::site::until(|| crate::site::read(&path).lines().count() >= count, true).await;
    let said = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("protocol"), line["status"].as_u64().unwrap(), text("ended_by"), text("reason"))
    };
    let mut all: Vec<_> = crate::site::read(&path).lines().map(said).collect();
    all.sort();
    all
}

fn expected(protocol: &str) -> Vec<(String, u64, String, String)> {
    [(200, "answer", "complete"), (400, "client", "malformed"), (431, "limit", "fields-too-large")]
        .map(|(status, by, why)| (protocol.to_owned(), status, by.to_owned(), why.to_owned()))
        .to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http1() {
    let (site, _back_end) = site("refused-h1").await;
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    for (rest, status) in
        [(String::new(), "200"), ("no field\r\n".to_owned(), "400"), (format!("x-l: {}\r\n", "x".repeat(BIG)), "431")]
    {
        let answer = raw_h1(&site, format!("{head}{rest}\r\n").as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    assert_eq!(ends(&site, 3).await, expected("http/1.1"));
}

/// A number with a prefix of seven bits (RFC 7541 §5.1), of 127 or more.
fn number(value: usize) -> Vec<u8> {
    let (mut rest, mut bytes) = (value - 127, vec![0x7f]);
    while rest >= 128 {
        bytes.push((rest % 128) as u8 | 0x80);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http2() {
    let (site, _back_end) = site("refused-h2").await;
    let mut stream = site.tls(&[b"h2"]).await;
    let frame = |kind: u8, flags: u8, id: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags][..], &id.to_be_bytes(), payload].concat()
    };
    // RFC 7541: GET and https from the static table; `:authority` as a literal. There is no path.
    let without_path = b"\x82\x87\x01\x09localhost".to_vec();
    let good = [&without_path[..], b"\x84"].concat();
    // A field that goes into the table, and ten times from there: larger than its frame.
    let large = [&good[..], b"\x40\x03x-l", &number(4_000), &[b'x'; 4_000], &[0xbe; 10]].concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend(frame(1, 5, 1, &without_path));
    bytes.extend(frame(1, 1, 3, &large[..2_000]));
    bytes.extend(frame(9, 4, 3, &large[2_000..]));
    bytes.extend(frame(1, 5, 5, &good));
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    let mut open = vec![1, 3, 5];
    while !open.is_empty() {
        let mut head = [0; 9];
        crate::site::within(stream.read_exact(&mut head)).await.unwrap();
        let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        let id = u32::from_be_bytes(head[5..].try_into().unwrap());
        // RST_STREAM, or the end of the stream.
        if head[3] == 3 || matches!(head[3], 0 | 1) && head[4] & 1 == 1 {
            open.retain(|open| *open != id);
        }
    }
    drop(stream);
    assert_eq!(ends(&site, 3).await, expected("h2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http3() {
    let (site, _back_end) = site("refused-h3").await;
    let (_endpoint, quic) = site.quic(b"h3").await;
    // RFC 9204: no dynamic table; GET and https from the static one; `:authority` as a literal. There is no path.
    let without_path = b"\0\0\xd1\xd7\x50\x09localhost".to_vec();
    let good = [&without_path[..], b"\xc1"].concat();
    let large = [&good[..], b"\x23x-l", &number(20_000), &[b'x'; 20_000]].concat();
    for section in [without_path, large, good] {
        let (mut send, mut recv) = quic.open_bi().await.unwrap();
        let length = (0x8000_0000 | u32::try_from(section.len()).unwrap()).to_be_bytes();
        send.write_all(&[&[1][..], &length, &section].concat()).await.unwrap();
        let _ = send.finish();
        while let Ok(Some(_)) = recv.read_chunk(65_536).await {}
    }
    assert_eq!(ends(&site, 3).await, expected("h3"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_handshakes_than_none_is_always_a_retry() {
    for (setting, retries) in [("0", 3.0..f64::MAX), ("1", 0.0..1.0)] {
        let (back_end, _) = BackEnd::counting().await;
        let config = format!("[transport]\nretry-above = {setting}\n[[route]]\nto = \"{}\"\n", back_end.url());
        let site = Site::start(&format!("retry-{setting}"), &config);
        for _ in 0..3 {
            let (_endpoint, mut h3) = site.h3().await;
            assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
        }
        // A first flight of two datagrams may get one for each.
        let sent = site.figure("tiderace_edge_quic_endpoint{reason=\"retries\"}");
        assert!(retries.contains(&sent), "{setting}: {sent}");
        let [datagrams, reads] = ["datagrams", "reads"]
            .map(|what| site.figure(&format!("tiderace_edge_quic_received{{reason=\"{what}\"}}")));
        assert!(datagrams >= reads && reads >= 6.0, "{setting}: {datagrams} in {reads} reads, of three connections");
    }
}

/// RFC 9368 §2.3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_offer_version_2_are_answered_in_it_when_asked_for() {
    for (setting, version) in [("true", 0x6b33_43cf), ("false", 1)] {
        let (back_end, _) = BackEnd::counting().await;
        let config = format!("[transport]\nupgrade-to-version-2 = {setting}\n[[route]]\nto = \"{}\"\n", back_end.url());
        let site = Site::start(&format!("version-{setting}"), &config);
        let (_endpoint, quic) = site.quic(b"h3").await;
        assert_eq!(quic.version(), Some(version));
        let mut h3 = h3_quic::client::begin(quic).await.unwrap();
        assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
        let name = if setting == "true" { "2" } else { "1" };
        assert_eq!(site.figure(&format!("tiderace_edge_quic_versions_total{{version=\"{name}\"}}")), 1.0);
    }
}
