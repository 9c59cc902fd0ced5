//! Hostile servers over HTTP/2: floods of the frames that cost nothing to send.

use tiderace_client::{Leg, Timeouts};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tokio_rustls::server::TlsStream;

use crate::servers::{LIMIT, PATIENT, SHORT, ask, client, integer, read, tls};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

fn frame(ty: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([ty, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// Literal fields that are not indexed (RFC 7541 §6.2.2); 0x88 is `:status: 200`.
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0x88];
    for (name, value) in fields {
        out.push(0);
        integer(&mut out, 0, 7, name.len());
        out.extend(name.as_bytes());
        integer(&mut out, 0, 7, value.len());
        out.extend(value.as_bytes());
    }
    out
}

/// Reads the preface and the client's settings, and goes on to its request.
async fn greet(stream: &mut TlsStream<TcpStream>) -> Option<Vec<u8>> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.ok()?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.ok()?;
    stream.flush().await.ok()?;
    let mut settings = None;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.ok()?;
        match head[3] {
            SETTINGS if head[4] == 0 => settings = Some(payload),
            HEADERS => return settings,
            _ => {}
        }
    }
}

/// Asks a server that answers with `once`, and then with `again` until nobody listens; tells when that is.
async fn flooded(once: Vec<u8>, again: Vec<u8>) -> Result<usize, String> {
    let (told, mut tells) = mpsc::unbounded_channel();
    let (address, trust) = tls(b"h2", move |mut stream| {
        let (once, again, told) = (once.clone(), again.clone(), told.clone());
        async move {
            greet(&mut stream).await;
            let _ = stream.write_all(&once).await;
            let _ = stream.flush().await;
            while !again.is_empty() && stream.write_all(&again).await.is_ok() && stream.flush().await.is_ok() {
                tokio::task::yield_now().await;
            }
            let mut sink = [0; 4_096];
            while stream.read(&mut sink).await.is_ok_and(|length| length > 0) {}
            let _ = told.send(());
        }
    })
    .await;
    let timeouts = Timeouts { response: SHORT, ..PATIENT };
    let client = client(&trust, timeouts);
    let came = match ask(&client, address, Leg::Tcp).await {
        Ok(fetched) => read(fetched).await,
        Err(error) => Err(error.to_string()),
    };
    client.close().await;
    tokio::time::timeout(LIMIT, tells.recv()).await.expect("the connection ends").unwrap();
    came
}

/// Each of them ends: with an error of the client's HTTP/2, or with its timeouts; none with memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_end() {
    let ping = frame(PING, 0, 0, &[0; 8]).repeat(100);
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(100);
    let begun = frame(HEADERS, 0, 1, &[0x88]);
    let field = section(&[("a", &"b".repeat(16_000))]);
    for (what, once, again) in [
        ("CONTINUATION of fields", begun.clone(), frame(CONTINUATION, 0, 1, &field[1..])),
        ("CONTINUATION of nothing", begun, frame(CONTINUATION, 0, 1, &[]).repeat(100)),
        ("PING", Vec::new(), ping),
        ("SETTINGS", Vec::new(), settings),
        // `:status` 103, as a literal behind its index.
        ("interim responses", Vec::new(), frame(HEADERS, END_HEADERS, 1, &[0x08, 0x03, b'1', b'0', b'3']).repeat(20)),
        ("RST_STREAM of streams that never were", Vec::new(), frame(RST_STREAM, 0, 3, &[0; 4])),
        ("PUSH_PROMISE", Vec::new(), frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82, 0x84])),
        ("WINDOW_UPDATE beyond all bounds", Vec::new(), frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
    ] {
        let came = flooded(once, again).await;
        assert!(came.is_err(), "{what}: {came:?}");
    }
}

/// 64 KiB of fields, and no push.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limits_are_said_and_hold() {
    let (told, mut tells) = mpsc::unbounded_channel();
    let (address, trust) = tls(b"h2", move |mut stream| {
        let told = told.clone();
        async move {
            let _ = told.send(greet(&mut stream).await);
        }
    })
    .await;
    let _ = ask(&client(&trust, PATIENT), address, Leg::Tcp).await;
    let said = tokio::time::timeout(LIMIT, tells.recv()).await.unwrap().unwrap().unwrap();
    let value = |id: u16| {
        let found = said.chunks(6).find(|setting| setting[..2] == id.to_be_bytes())?;
        Some(u32::from_be_bytes(found[2..].try_into().unwrap()))
    };
    assert_eq!((value(2), value(4), value(6)), (Some(0), Some(2 << 20), Some(64 << 10)));
    let large = "b".repeat(10_000);
    let fields: Vec<_> = (0..7).map(|_| ("a", large.as_str())).collect();
    let split = |fields: &[(&str, &str)]| {
        let section = section(fields);
        let parts: Vec<_> = section.chunks(16_000).collect();
        let flag = |at: usize| if at + 1 == parts.len() { END_HEADERS } else { 0 };
        let frames = parts
            .iter()
            .enumerate()
            .map(|(at, part)| frame(if at == 0 { HEADERS } else { CONTINUATION }, flag(at), 1, part));
        [frames.flatten().collect(), frame(DATA, 1, 1, b"hello")].concat()
    };
    assert_eq!(flooded(split(&fields[..6]), Vec::new()).await, Ok(5));
    let error = flooded(split(&fields), Vec::new()).await.unwrap_err();
    assert!(!error.is_empty(), "{error}");
}
