//! Back ends of ill will, addresses and protocols in disguise: the gateway answers, and serves others.

use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::site::{BackEnd, Directory, Site, connect_tls, full, get, get1, text, wire::raw_h1};
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Bytes of a back end on a connection, once it has been asked something.
#[derive(Clone, Default)]
struct Script {
    once: Vec<u8>,
    /// Again and again, as long as somebody takes it.
    again: Vec<u8>,
    /// Then it closes; otherwise it waits.
    closes: bool,
}

fn once(text: impl AsRef<[u8]>) -> Script {
    Script { once: text.as_ref().to_vec(), ..Script::default() }
}

impl Script {
    fn again(mut self, text: impl AsRef<[u8]>) -> Self {
        self.again = text.as_ref().to_vec();
        self
    }

    fn and_closes(mut self) -> Self {
        self.closes = true;
        self
    }
}

struct Hostile {
    address: SocketAddr,
    /// Connections, and those of them that have ended.
    begun: Arc<AtomicUsize>,
    over: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hostile {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (begun.clone(), over.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, over) = (script.clone(), counts.1.clone());
                counts.0.fetch_add(1, Ordering::SeqCst);
                connections.spawn(async move {
                    let _ = Self::say(stream, script).await;
                    over.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, begun, over, task }
    }

    async fn say(mut stream: TcpStream, script: Script) -> std::io::Result<()> {
        let mut asked = vec![0; 4_096];
        if stream.read(&mut asked).await? == 0 {
            return Ok(());
        }
        stream.write_all(&script.once).await?;
        let (mut reading, mut writing) = stream.split();
        let listens = async {
            while reading.read(&mut asked).await? > 0 {}
            Ok::<_, std::io::Error>(())
        };
        let says = async {
            while !script.again.is_empty() {
                writing.write_all(&script.again).await?;
            }
            if !script.closes {
                std::future::pending::<()>().await;
            }
            writing.shutdown().await
        };
        tokio::select! {
            done = listens => done,
            done = says => done,
        }
    }

    /// Waits until no connection is left.
    async fn is_left_alone(&self) {
        while self.over.load(Ordering::SeqCst) < self.begun.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Outcome that a client may see.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sees {
    Status(u16),
    /// An answer whose content breaks off.
    Broken,
    Whole,
}

async fn sees<B, E>(answer: Result<Response<B>, E>) -> Sees
where
    B: http_body::Body<Error: std::fmt::Debug> + Send,
{
    // A reset may overtake the fields that came before it.
    let Ok(answer) = answer else { return Sees::Broken };
    match answer.status().as_u16() {
        200 if answer.into_body().collect().await.is_ok() => Sees::Whole,
        200 => Sees::Broken,
        status => Sees::Status(status),
    }
}

/// A gateway with one route for each back end, and `/good`.
fn site_for(name: &str, scheme: &str, back_ends: &[(&str, Hostile)], good: &BackEnd) -> Site {
    let mut config = format!("[[route]]\npath = \"/good\"\nto = \"{}\"\n", good.url());
    for (name, back_end) in back_ends {
        config += &format!(
            "[[route]]\npath = \"/{name}\"\nto = \"{scheme}://{}\"\ntimeout = \"1 s\"\nretries = 0\n",
            back_end.address
        );
    }
    Site::start(name, &config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_back_end_is_a_bad_gateway_and_others_are_served() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let chunked = format!("{ok}transfer-encoding: chunked\r\n\r\n");
    let long = "a".repeat(1_000);
    let cases = [
        ("close", once("").and_closes(), Sees::Status(502)),
        ("garbage", once("\x16\x03\x01 what\r\n\r\n"), Sees::Status(502)),
        ("status", once("HTTP/1.1 99999 X\r\n\r\n"), Sees::Status(502)),
        ("nul", once(format!("{ok}x: a\0b\r\n\r\n")), Sees::Status(502)),
        ("name", once(format!("{ok}x y: a\r\n\r\n")), Sees::Status(502)),
        ("lengths", once(format!("{ok}content-length: 2\r\ncontent-length: 3\r\n\r\nokk")), Sees::Status(502)),
        ("length", once(format!("{ok}content-length: -1\r\n\r\nok")), Sees::Status(502)),
        ("unasked", once("HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"), Sees::Status(502)),
        ("head", once(ok).again(format!("x-a: {long}\r\n")), Sees::Status(502)),
        ("cookie", once(format!("{ok}set-cookie: ")).again(&long), Sees::Status(502)),
        ("alt-svc", once(format!("{ok}alt-svc: {}\r\n\r\n", "h3=\":1\", ".repeat(200_000))), Sees::Status(502)),
        ("silent", once(""), Sees::Status(504)),
        ("half", once(ok), Sees::Status(504)),
        ("hints", once("").again("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"), Sees::Status(504)),
        ("continue", once("").again("HTTP/1.1 100 Continue\r\n\r\n"), Sees::Status(504)),
        ("short", once(format!("{ok}content-length: 100\r\n\r\nabcde")).and_closes(), Sees::Broken),
        ("chunk", once(format!("{chunked}zz\r\n")), Sees::Broken),
        ("extension", once(format!("{chunked}5;")).again(&long), Sees::Broken),
        ("extensions", once(&chunked).again("1;a=b\r\nx\r\n").and_closes(), Sees::Broken),
        ("trailers", once(format!("{chunked}2\r\nok\r\n0\r\n")).again(format!("x-t: {long}\r\n")), Sees::Broken),
        ("unended", once(format!("{chunked}2\r\nok\r\n")).and_closes(), Sees::Broken),
    ];
    let good = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let mut back_ends = Vec::new();
    for (name, script, _) in &cases {
        back_ends.push((*name, Hostile::start(script.clone()).await));
    }
    let site = site_for("hostile", "http", &back_ends, &good);
    let (_endpoint, mut h3) = site.h3().await;
    let mut h2 = site.h2().await;
    for ((name, _, expected), (_, back_end)) in cases.iter().zip(&back_ends) {
        let url = format!("https://localhost/{name}");
        assert_eq!(sees(h3.send(get(&url)).await).await, *expected, "h3 {name}");
        assert_eq!(sees(h2.send_request(get(&url)).await).await, *expected, "h2 {name}");
        let answer = site.h1().await.send_request(get1(&format!("/{name}"))).await;
        assert_eq!(sees(answer).await, *expected, "h1 {name}");
        // Nobody continues listening to it.
        back_end.is_left_alone().await;
        assert_eq!(text(h3.send(get("https://localhost/good")).await.unwrap()).await, "ok");
    }
}

/// Bytes behind an answer on a kept connection are the answer to no other request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_hides_behind_another() {
    let evil = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    for (name, method, first) in [
        ("length", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        ("chunks", "GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
        ("none", "GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("known", "GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 52\r\n\r\n"),
        ("head", "HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 52\r\n\r\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let said = format!("{first}{evil}");
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let said = said.clone();
                connections.spawn(async move {
                    let mut asked = vec![0; 4_096];
                    while stream.read(&mut asked).await.is_ok_and(|length| length > 0) {
                        if stream.write_all(said.as_bytes()).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let site = Site::start(&format!("behind-{name}"), &format!("[[route]]\nto = \"http://{address}\"\n"));
        let (_endpoint, mut h3) = site.h3().await;
        for _ in 0..60 {
            let request = Request::builder().method(method).uri("https://localhost/").body(full("")).unwrap();
            let answer = h3.send(request).await.unwrap();
            let status = answer.status().as_u16();
            let content = answer.into_body().collect().await.map(|content| content.to_bytes()).unwrap_or_default();
            assert!(
                content != "evil" && !(status == 200 && content.is_empty() && method == "GET"),
                "{name}: {status} {content:?}"
            );
        }
        task.abort();
    }
}

/// Chunks say how long the content is; a length that contradicts them is not handed on (RFC 9112 §6.3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_beside_chunks_goes_no_further() {
    for length in [1, 2, 5] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ntransfer-encoding: chunked\r\n\r\n");
        let back_end = Hostile::start(once(format!("{head}2\r\nok\r\n0\r\n\r\n")).and_closes()).await;
        let site = Site::start("two-lengths", &format!("[[route]]\nto = \"http://{}\"\n", back_end.address));
        let (_endpoint, mut h3) = site.h3().await;
        let answer = h3.send(get("https://localhost/")).await.unwrap();
        assert!(!answer.headers().contains_key("content-length"), "{:?}", answer.headers());
        assert_eq!(text(answer).await, "ok");
        let answer = site.h1().await.send_request(get1("/")).await.unwrap();
        assert!(!answer.headers().contains_key("content-length"), "{:?}", answer.headers());
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_becomes_what_was_asked_for_or_nothing() {
    for (says, expected) in
        [("websocket", 101), ("WebSocket", 101), ("other", 502), ("websocket, other", 502), ("", 502)]
    {
        let field = if says.is_empty() { String::new() } else { format!("upgrade: {says}\r\n") };
        let back_end = Hostile::start(once(format!("HTTP/1.1 101 X\r\nconnection: upgrade\r\n{field}\r\n"))).await;
        let site = Site::start("becomes", &format!("[[route]]\nto = \"http://{}\"\n", back_end.address));
        let mut request = get1("/");
        request.headers_mut().insert("connection", "upgrade".parse().unwrap());
        request.headers_mut().insert("upgrade", "websocket".parse().unwrap());
        let answer = site.h1().await.send_request(request).await.unwrap();
        assert_eq!(answer.status(), expected, "{says:?}");
        drop(answer);
        back_end.is_left_alone().await;
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_http2_frames_from_a_back_end_end_with_an_error() {
    let settings = frame(4, 0, 0, b"");
    let begin = |rest: Vec<u8>| once([settings.clone(), rest].concat());
    // RFC 7541: `:status` as a literal with a name from the static table.
    let status = |code: &[u8; 3]| [&[0x08, 3][..], code].concat();
    let cases = [
        ("goaway", begin(frame(7, 0, 0, &[0; 8])).and_closes(), Sees::Status(502)),
        ("reset", begin(vec![]).again(frame(3, 0, 1, &[0, 0, 0, 2])), Sees::Status(502)),
        (
            "continuation",
            begin(frame(1, 0, 1, &status(b"200"))).again(frame(9, 0, 1, &[0x10, 1, b'a', 1, b'b'])),
            Sees::Status(502),
        ),
        ("empty-continuation", begin(frame(1, 0, 1, &status(b"200"))).again(frame(9, 0, 1, b"")), Sees::Status(502)),
        ("window", begin(vec![]).again(frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff])), Sees::Status(502)),
        ("data-first", begin(frame(0, 0, 1, b"early")), Sees::Status(502)),
        ("large", begin(vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]), Sees::Status(502)),
        ("push", begin(frame(5, 4, 1, &[0, 0, 0, 2, 0x82])), Sees::Status(502)),
        ("no-frames", once("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), Sees::Status(502)),
        (
            "connection",
            begin(frame(1, 5, 1, &[&status(b"200")[..], b"\x10\x0aconnection\x05close"].concat())),
            Sees::Status(502),
        ),
        ("pings", begin(vec![]).again(frame(6, 0, 0, &[7; 8])), Sees::Status(504)),
        ("settings", begin(vec![]).again(frame(4, 0, 0, b"")), Sees::Status(504)),
        ("hints", begin(vec![]).again(frame(1, 4, 1, &status(b"103"))), Sees::Status(504)),
        ("unknown", begin(vec![]).again(frame(0xfe, 0, 1, b"what")), Sees::Status(504)),
    ];
    let good = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let mut back_ends = Vec::new();
    for (name, script, _) in &cases {
        back_ends.push((*name, Hostile::start(script.clone()).await));
    }
    let site = site_for("hostile-h2", "h2c", &back_ends, &good);
    let (_endpoint, mut h3) = site.h3().await;
    for (name, _, expected) in &cases {
        let seen = sees(h3.send(get(&format!("https://localhost/{name}"))).await).await;
        assert_eq!(seen, *expected, "{name}");
        assert_eq!(text(h3.send(get("https://localhost/good")).await.unwrap()).await, "ok", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_of_http2_that_is_gone_without_a_word_is_left() {
    // It takes what it gets, answers no PING, and has all the time in the world.
    let gone = Hostile::start(once(frame(4, 0, 0, b""))).await;
    let config = format!("[[route]]\nto = \"h2c://{}\"\ntimeout = \"1 h\"\nretries = 0\n", gone.address);
    let site = Site::start("gone-h2", &config);
    let (_endpoint, mut h3) = site.h3().await;
    let answer = crate::site::within(h3.send(get("https://localhost/"))).await.unwrap();
    assert_eq!(answer.status(), 502);
    crate::site::within(gone.is_left_alone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocols_are_what_was_agreed_on() {
    let back_end = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = back_end.local_addr().unwrap();
    let stream =
        format!("[[stream]]\nalpn = \"private\"\nqmux = \"private-qx\"\nsni = \"localhost\"\nto = \"tcp://{to}\"\n");
    let other = format!("[[stream]]\nalpn = \"elsewhere\"\nsni = \"other.example\"\nto = \"tcp://{to}\"\n");
    let site = Site::start("alpn", &format!("{stream}{other}[[route]]\nfiles = \".\"\n"));
    // RFC 7301 §3.2, RFC 9001 §8.1: nothing in common is an error.
    for alpn in [&b"h2"[..], b"http/1.1", b"private-qx", b"acme-tls/1", b"h3-29", b"H3", b"nothing"] {
        assert!(site.try_quic(alpn).await.is_err(), "{}", String::from_utf8_lossy(alpn));
    }
    for alpn in [&b"h3"[..], b"private", b"elsewhere", b"acme-tls/1", b"nothing"] {
        assert!(
            connect_tls(site.address, &site.certificate, &[alpn]).await.is_err(),
            "{}",
            String::from_utf8_lossy(alpn)
        );
    }
    // The protocol of another name: nobody answers.
    let reason = match site.try_quic(b"elsewhere").await {
        Ok((_endpoint, quic)) => quic.closed().await,
        // The refusal may come before the client knows that the handshake is complete.
        Err(error) => match *error.downcast().unwrap() {
            tiderace::ConnectError::Closed(reason) => reason,
            other => panic!("{other}"),
        },
    };
    assert!(matches!(reason, tiderace::CloseReason::PeerApplication { code: 1, .. }), "{reason}");
    // Who names nothing speaks HTTP/1.1, and who names HTTP/2 does not speak HTTP/1.1.
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answers = Vec::new();
    for alpn in [&[][..], &[&b"h2"[..]]] {
        let mut stream = site.tls(alpn).await;
        stream.write_all(request).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answers.push(answer.starts_with(b"HTTP/1.1 "));
    }
    assert_eq!(answers, [true, false]);
    // What a private protocol says is for its back end, however much it looks like HTTP/3.
    let (_endpoint, quic) = site.quic(b"private").await;
    let (mut send, _recv) = quic.open_bi().await.unwrap();
    send.write_all(b"\x01\x05\0\0\xd1\xd7\xc1").await.unwrap();
    let (mut carried, _) = back_end.accept().await.unwrap();
    let mut got = [0; 7];
    carried.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"\x01\x05\0\0\xd1\xd7\xc1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_name_no_shard_disturb_nobody() {
    let good = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let site = Site::start("shards", &format!("[[route]]\nto = \"{}\"\n", good.url()));
    let (_endpoint, mut h3) = site.h3().await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let flood = async |rounds: u32| {
        for number in 0..rounds {
            // Short headers, and long ones of all types, with an ID whose first byte names any shard.
            let mut datagram = vec![number as u8; if number % 3 == 0 { 1_200 } else { 60 }];
            datagram[0] = [0x40, 0xc0, 0xd0, 0xe0, 0xf0][number as usize % 5];
            if datagram[0] >= 0xc0 {
                datagram[1..6].copy_from_slice(&[0, 0, 0, 1, 8]);
                datagram[14] = 0;
            }
            let _ = socket.send_to(&datagram, site.address).await;
        }
    };
    for _ in 0..10 {
        flood(1_000).await;
        assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
    }
    let (_second, mut fresh) = site.h3().await;
    assert_eq!(text(fresh.send(get("https://localhost/")).await.unwrap()).await, "ok");
    assert!(
        site.figure("tiderace_edge_quic_endpoint{reason=\"dropped\"}")
            + site.figure("tiderace_edge_quic_endpoint{reason=\"resets\"}")
            > 0.0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_have_one_name_over_both_families() {
    let back_end = BackEnd::start(crate::site::mirror).await;
    let directory = Directory::new("families");
    let certificate = crate::site::write_certificate(&directory, "localhost");
    let config = crate::site::TOP.replace("127.0.0.1:0", "[::]:0");
    let rest = format!("[log]\naccess = \"access.log\"\n[[route]]\nto = \"{}\"\n", back_end.url());
    let file = directory.write("edge.toml", format!("{config}{rest}"));
    let process = match tiderace_edge::Process::start(&file) {
        Ok(process) => process,
        Err(error) => return println!("skipped: {error}"),
    };
    let port = process.addresses()[0].port();
    let mut names = Vec::new();
    for address in ["127.0.0.1", "::1"] {
        let address = SocketAddr::new(address.parse().unwrap(), port);
        let books = crate::site::books::Books::of(&process, None);
        let site = Site { address, ..Site::of(process.clone(), certificate.clone(), books, Directory::new("unused")) };
        let (_endpoint, mut h3) = site.h3().await;
        let mut h2 = site.h2().await;
        for literal in ["localhost", "[::1]:443", "127.0.0.1"] {
            let request = || Request::get(format!("https://{literal}/")).body(full("")).unwrap();
            names.push(text(h3.send(request()).await.unwrap()).await);
            names.push(text(h2.send_request(request()).await.unwrap()).await);
        }
        // RFC 6874 §1: a zone means something on one machine only.
        let zone = b"GET / HTTP/1.1\r\nHost: [fe80::1%25lo]\r\nConnection: close\r\n\r\n";
        assert!(raw_h1(&site, zone).await.starts_with("HTTP/1.1 400"));
    }
    for (number, said) in names.iter().enumerate() {
        let said: serde_json::Value = serde_json::from_str(said).unwrap();
        assert_eq!(said["fields"]["x-forwarded-for"], if number < 6 { "127.0.0.1" } else { "::1" }, "{said}");
    }
    let log = directory.0.join("access.log");
    let lines = loop {
        let text = crate::site::read(&log);
        if text.lines().count() >= 14 {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(
        !lines.contains("::ffff:")
            && lines.contains("\"client\":\"127.0.0.1:")
            && lines.contains("\"client\":\"[::1]:"),
        "{lines}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn captures_go_where_nobody_else_writes() {
    let config = "[admin]\nsocket = \"edge.sock\"\n[capture]\nenabled = true\n[[route]]\nfiles = \".\"\n";
    let site = Site::start("capture-folder", config);
    let folder = site.directory.0.join("captures");
    let socket = site.directory.0.join("edge.sock");
    let capture = async |order: &'static str| {
        let socket = socket.clone();
        let asked =
            tokio::task::spawn_blocking(move || tiderace_edge::admin::ask(&socket, &format!("capture {order}")));
        asked.await.unwrap().unwrap()
    };
    std::fs::create_dir(&folder).unwrap();
    for (mode, good) in [(0o777, false), (0o1777, false), (0o770, false), (0o755, true)] {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        let answer = capture(r#"{"client": "192.0.2.1", "seconds": 0.01}"#).await;
        assert_eq!(answer["error"].is_null(), good, "{mode:o}: {answer}");
    }
    // What an operator writes becomes no path.
    for order in [r#"{"cid": "../../x"}"#, r#"{"client": "../x"}"#, r#"{"cid": ""}"#, r#"{"client": "192.0.2.1/../x"}"#]
    {
        assert!(capture(order).await["error"].is_string(), "{order}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}
