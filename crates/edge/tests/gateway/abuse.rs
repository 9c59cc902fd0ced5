//! Fields that no well-behaved client writes, over HTTP/2 and HTTP/3, byte by byte: none of them reaches a back end, and a second request
//! hidden in a value least of all. What HTTP/1.1 has of this is in `security`.

use std::sync::atomic::Ordering;

use crate::site::{BackEnd, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Field = (&'static str, &'static str);

const GET: [Field; 4] = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/")];

/// Faulty field lists, each with its name.
fn abuses() -> Vec<(&'static str, Vec<Field>)> {
    let with = |more: &[Field]| [&GET[..], more].concat();
    let post = |more: &[Field]| [&[(":method", "POST")], &GET[1..], more].concat();
    let path = |path: &'static str| [&GET[..3], &[(":path", path)]].concat();
    vec![
        ("a field of one connection", with(&[("connection", "keep-alive")])),
        ("a coding of HTTP/1.1", post(&[("transfer-encoding", "chunked")])),
        ("an upgrade", with(&[("upgrade", "h2c")])),
        ("capitals", with(&[("X-Capital", "1")])),
        ("a line in a value", with(&[("x-a", "b\r\nx-injected: 1")])),
        ("a request in a value", with(&[("x-a", "b\r\n\r\nGET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n")])),
        ("a NUL in a value", with(&[("x-a", "b\0c")])),
        ("a line in a name", with(&[("x-a\r\nx-injected", "1")])),
        ("a colon in a name", with(&[("x-a:", "1")])),
        ("an empty name", with(&[("", "1")])),
        ("a space in a path", path("/ HTTP/1.1\r\nx-injected: 1")),
        ("an empty path", path("")),
        ("two paths", with(&[(":path", "/second")])),
        ("two methods", with(&[(":method", "DELETE")])),
        ("an unknown pseudo-field", with(&[(":unknown", "1")])),
        ("a pseudo-field of answers", with(&[(":status", "200")])),
        ("a pseudo-field behind a field", [&[("x-a", "1")][..], &GET].concat()),
        ("no path", GET[..3].to_vec()),
        ("no method", GET[1..].to_vec()),
        ("a method that is none", [&[(":method", "GE T")][..], &GET[1..]].concat()),
        ("a host that contradicts", with(&[("host", "other.example")])),
        ("two hosts", with(&[("host", "localhost"), ("host", "localhost")])),
        ("two lengths", post(&[("content-length", "4"), ("content-length", "5")])),
        ("a length with a sign", post(&[("content-length", "+5")])),
        ("a length beside nothing", post(&[("content-length", "5")])),
        ("userinfo in the authority", [&GET[..2], &[(":authority", "user@localhost"), (":path", "/")]].concat()),
    ]
}

/// An integer with a prefix of `bits` bits (RFC 7541 §5.1), which QPACK uses, too.
fn integer(out: &mut Vec<u8>, first: u8, bits: u8, mut value: usize) {
    let most = (1_usize << bits) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    value -= most;
    while value >= 128 {
        out.push((value % 128) as u8 | 0x80);
        value /= 128;
    }
    out.push(value as u8);
}

/// A field section of literals: for HTTP/3 (RFC 9204 §4.5.6), or HTTP/2 (RFC 7541 §6.2.2).
fn section(fields: &[Field], h3: bool) -> Vec<u8> {
    let mut out = if h3 { vec![0, 0] } else { Vec::new() };
    for (name, value) in fields {
        if h3 {
            integer(&mut out, 0x20, 3, name.len());
        } else {
            out.push(0);
            integer(&mut out, 0, 7, name.len());
        }
        out.extend_from_slice(name.as_bytes());
        integer(&mut out, 0, 7, value.len());
        out.extend_from_slice(value.as_bytes());
    }
    out
}

async fn over_h2(site: &Site, fields: &[Field]) {
    let mut stream = site.tls(&[b"h2"]).await;
    let section = section(fields, false);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&(section.len() as u32).to_be_bytes()[1..]);
    // HEADERS on stream 1, which ends both the fields and the stream.
    bytes.extend_from_slice(&[1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(&section);
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    // Until the stream is answered or reset, or the connection is given up.
    let answered = async {
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            if stream.read_exact(&mut payload).await.is_err() || matches!((head[3], head[8]), (1 | 3, 1) | (7, _)) {
                return;
            }
        }
    };
    crate::site::within(answered).await;
}

async fn over_h3(site: &Site, fields: &[Field]) {
    let (_endpoint, quic) = site.quic(b"h3").await;
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    let section = section(fields, true);
    let mut bytes = vec![1];
    bytes.extend_from_slice(&(0x4000 | section.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&section);
    // A server that has seen enough may stop the stream.
    let _ = send.write_all(&bytes).await;
    let _ = send.finish();
    let reading = async { while let Ok(Some(_)) = recv.read_chunk(4_096).await {} };
    crate::site::within(reading).await;
}

/// RFC 9114 §4.1.2 MUST NOT-1, RFC 9114 §10.3 MUST-1, MUST-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_abuse_of_fields_reaches_a_back_end() {
    let (back_end, reached) = BackEnd::counting().await;
    let site = Site::start("abuse", &format!("[[route]]\nto = \"{}\"\n", back_end.url()));
    // The same bytes with nothing wrong in them do reach it.
    over_h2(&site, &GET).await;
    over_h3(&site, &GET).await;
    assert_eq!(reached.swap(0, Ordering::Relaxed), 2);
    for (what, fields) in abuses() {
        over_h2(&site, &fields).await;
        assert_eq!(reached.load(Ordering::Relaxed), 0, "{what}, over HTTP/2");
        over_h3(&site, &fields).await;
        assert_eq!(reached.load(Ordering::Relaxed), 0, "{what}, over HTTP/3");
    }
    println!("measured abuses of fields tried: {}", 2 * abuses().len());
    over_h2(&site, &GET).await;
    over_h3(&site, &GET).await;
    assert_eq!(reached.load(Ordering::Relaxed), 2, "others are served");
}
