//! A client of HTTP/3 that says what a program of bytes wants: frames, fields, instructions of QPACK, capsules, datagrams, resets and
//! priorities, mostly right and then damaged.

use std::{task::Poll, time::Duration};

use bytes::Bytes;
use tiderace::{Connection, Dir, RecvStream, SendStream};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::site;

/// Streams that a program may use, so that each one ends soon.
const STREAMS: usize = 60;
const BYTES: usize = 1 << 20;

/// Reach of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    /// Requests whose fields have left.
    pub(crate) requests: usize,
    /// Streams that ended after an answer had begun, and bytes of answers.
    pub(crate) answers: usize,
    pub(crate) bytes: usize,
    /// Streams that were given up by the gateway.
    pub(crate) resets: usize,
    /// The gateway had closed the connection before the program did.
    pub(crate) closed: bool,
}

enum Say {
    Bytes(Vec<u8>),
    Finish,
    Reset(u64),
}

#[derive(Clone, Copy)]
enum Listens {
    NotYet,
    Yes,
    Stop(u64),
}

/// End of a stream.
enum Ended {
    /// After so many bytes, which begin with fields.
    Answer(usize),
    /// By a reset, or without a word.
    Reset,
    /// With the connection, or because nobody listened.
    Gone,
}

struct Exchange {
    say: mpsc::UnboundedSender<Say>,
    listens: watch::Sender<Listens>,
    ended: JoinHandle<Ended>,
}

async fn write(mut send: SendStream, mut what: mpsc::UnboundedReceiver<Say>) {
    while let Some(say) = what.recv().await {
        match say {
            Say::Bytes(bytes) => {
                if send.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Say::Finish => return drop(send.finish()),
            Say::Reset(code) => return drop(send.reset(code)),
        }
    }
    let _ = send.finish();
}

async fn read(mut recv: RecvStream, mut listens: watch::Receiver<Listens>) -> Ended {
    let (mut length, mut is_answer) = (0, false);
    loop {
        let how = *listens.borrow_and_update();
        match how {
            Listens::Stop(code) => {
                let _ = recv.stop(code);
                return Ended::Gone;
            }
            Listens::NotYet => {
                if listens.changed().await.is_err() {
                    return Ended::Gone;
                }
                continue;
            }
            Listens::Yes => {}
        }
        let chunk = tokio::select! {
            chunk = recv.read_chunk(65_536) => chunk,
            Ok(()) = listens.changed() => continue,
        };
        match chunk {
            Ok(Some(data)) => {
                // HEADERS (RFC 9114 §7.2.2).
                is_answer |= length == 0 && data.first() == Some(&1);
                length += data.len();
            }
            Ok(None) if is_answer => return Ended::Answer(length),
            Ok(None) | Err(tiderace::ReadError::Reset(_)) => return Ended::Reset,
            Err(_) => return Ended::Gone,
        }
    }
}

/// An integer with a prefix of so many bits (RFC 9204 §4.1.1).
fn prefixed(out: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let most = (1_usize << bits) - 1;
    if value < most {
        return out.push(first | value as u8);
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A field as a literal (RFC 9204 §4.5.6).
fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    prefixed(out, 0x20, 3, name.len());
    out.extend_from_slice(name);
    prefixed(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&(value & 0x3fff_ffff_ffff_ffff | 3 << 62).to_be_bytes());
}

fn frame(ty: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    h3_quic::capsule::write(&mut out, ty, payload);
    out
}

const METHODS: [&[u8]; 8] = [b"GET", b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"G T"];
const PATHS: [&[u8]; 16] = [
    b"/mirror",
    b"/echo",
    b"/echo",
    b"/big",
    b"/files/small",
    b"/files/large",
    b"/tunnel",
    b"/trailers",
    b"/none",
    b"/late",
    b"/files/../mirror",
    b"/files/%2e%2e/x",
    b"//mirror",
    b"*",
    b"",
    b"/mirror?a=b#c",
];
/// Fields beside those that a request has to have: right, wrong, and such as mean something to a gateway.
const FIELDS: [(&[u8], &[u8]); 40] = [
    (b"content-length", b"0"),
    (b"content-length", b"16"),
    (b"content-length", b"160"),
    (b"content-length", b"18446744073709551616"),
    (b"te", b"trailers"),
    (b"te", b"gzip"),
    (b"expect", b"100-continue"),
    (b"range", b"bytes=0-9"),
    (b"range", b"bytes=5-1,9-,-3"),
    (b"if-none-match", b"*"),
    (b"if-modified-since", b"Mon, 01 Jan 2024 00:00:00 GMT"),
    (b"accept-encoding", b"gzip, br"),
    (b"priority", b"u=1, i"),
    (b"priority", b"u=9, i=?7, x"),
    (b"connection", b"close"),
    (b"transfer-encoding", b"chunked"),
    (b"Upper", b"case"),
    (b"host", b"elsewhere"),
    (b"host", b"localhost"),
    (b"cookie", b"a=b"),
    (b"cookie", b""),
    (b"x-forwarded-for", b"192.0.2.1"),
    (b"forwarded", b"for=192.0.2.1"),
    (b"", b"nothing"),
    (b"x-nul", b"a\0b"),
    (b"x-line", b"a\r\nb: c"),
    (b"x space", b"a"),
    (b"x-long", &[b'l'; 3_000]),
    (b"upgrade", b"websocket"),
    (b":path", b"/mirror"),
    (b":status", b"200"),
    (b":protocol", b"websocket"),
    (b":protocol", b"connect-udp"),
    (b":scheme", b"http"),
    (b"capsule-protocol", b"?1"),
    (b"early-data", b"1"),
    (b"sec-websocket-version", b"13"),
    (b"keep-alive", b"timeout=5"),
    (b"trailer", b"x-sum"),
    (b"x-short", b"s"),
];

/// A connection of the program's.
pub(crate) struct Client<'a> {
    quic: Connection,
    program: std::slice::Iter<'a, u8>,
    requests: Vec<Exchange>,
    control: Option<mpsc::UnboundedSender<Say>>,
    encoder: Option<mpsc::UnboundedSender<Say>>,
    /// The last bytes of a stream.
    last: Vec<u8>,
    written: usize,
    reached: Reached,
}

impl<'a> Client<'a> {
    pub(crate) async fn new(quic: Connection, program: &'a [u8]) -> Self {
        let mut client = Self {
            quic,
            program: program.iter(),
            requests: Vec::new(),
            control: None,
            encoder: None,
            last: Vec::new(),
            written: 0,
            reached: Reached::default(),
        };
        let first = client.byte();
        if first & 1 == 0 {
            client.begin(first).await;
        }
        client
    }

    fn byte(&mut self) -> u8 {
        self.program.next().copied().unwrap_or(0)
    }

    fn take(&mut self) -> Vec<u8> {
        let len = self.byte();
        self.program.by_ref().take(len.into()).copied().collect()
    }

    /// Opens a stream if the gateway allows it now.
    async fn open(&self, dir: Dir) -> Option<(SendStream, Option<RecvStream>)> {
        for _ in 0..3 {
            let polled = std::future::poll_fn(|cx| {
                Poll::Ready(match dir {
                    Dir::Bi => self.quic.poll_open_bi(cx).map_ok(|(send, recv)| (send, Some(recv))),
                    Dir::Uni => self.quic.poll_open_uni(cx).map_ok(|send| (send, None)),
                })
            });
            match polled.await {
                Poll::Ready(opened) => return opened.ok(),
                Poll::Pending => tokio::task::yield_now().await,
            }
        }
        None
    }

    async fn uni(&mut self, ty: u64) -> Option<mpsc::UnboundedSender<Say>> {
        let (send, _) = self.open(Dir::Uni).await?;
        let (say, what) = mpsc::unbounded_channel();
        tokio::spawn(write(send, what));
        let mut kind = Vec::new();
        varint(&mut kind, ty);
        let _ = say.send(Say::Bytes(kind));
        Some(say)
    }

    /// Opens the streams of every client: the control stream with settings, and the streams of QPACK.
    async fn begin(&mut self, first: u8) {
        self.control = self.uni(0).await;
        let mut settings = Vec::new();
        // RFC 9204 §5, RFC 9297 §2.1.1, RFC 9220 §3.
        for (name, value) in [(1, u64::from(first) << 4), (7, 0), (0x33, u64::from(first >> 1 & 1)), (8, 1)] {
            varint(&mut settings, name);
            varint(&mut settings, value);
        }
        Self::say(self.control.as_ref(), frame(4, &settings));
        self.encoder = self.uni(2).await;
    }

    fn say(to: Option<&mpsc::UnboundedSender<Say>>, bytes: Vec<u8>) {
        if let Some(to) = to {
            let _ = to.send(Say::Bytes(bytes));
        }
    }

    /// Bytes for a request's stream, with what was said kept to be damaged.
    fn write(&mut self, on: u8, bytes: Vec<u8>) {
        if self.requests.is_empty() || self.written > BYTES {
            return;
        }
        self.written += bytes.len();
        let at = self.requests.len() - 1 - usize::from(on) % self.requests.len();
        self.last.clone_from(&bytes);
        Self::say(Some(&self.requests[at].say), bytes);
    }

    async fn request(&mut self, listens: bool) -> bool {
        if self.requests.len() >= STREAMS {
            return false;
        }
        let Some((send, Some(recv))) = self.open(Dir::Bi).await else { return false };
        let (say, what) = mpsc::unbounded_channel();
        let (listening, heard) = watch::channel(if listens { Listens::Yes } else { Listens::NotYet });
        tokio::spawn(write(send, what));
        self.requests.push(Exchange { say, listens: listening, ended: tokio::spawn(read(recv, heard)) });
        true
    }

    /// A field section: method and path from tables, and fields as the program says.
    fn section(&mut self) -> Vec<u8> {
        let (method, path, count) = (self.byte(), self.byte(), self.byte());
        let mut out = vec![0, 0];
        let path = PATHS[usize::from(path) % PATHS.len()];
        let method = METHODS[usize::from(method) % METHODS.len()];
        let mut pseudo: Vec<(&[u8], &[u8])> =
            vec![(b":method", method), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path)];
        if count & 0x80 != 0 {
            // An extended CONNECT that is right.
            pseudo[0].1 = b"CONNECT";
            pseudo[3].1 = b"/tunnel";
            pseudo.push((b":protocol", if count & 0x40 == 0 { b"connect-udp" } else { b"websocket" }));
        } else if count & 0x40 != 0 {
            // One of them is missing.
            pseudo.remove(usize::from(count >> 4 & 3));
        }
        for (name, value) in pseudo {
            field(&mut out, name, value);
        }
        for _ in 0..count & 7 {
            let (name, value) = FIELDS[usize::from(self.byte()) % FIELDS.len()];
            field(&mut out, name, value);
        }
        out
    }

    /// Follows the next instruction; `false` at the end of the program.
    pub(crate) async fn step(&mut self) -> bool {
        let instruction = self.program.next().copied();
        if let Some(instruction) = instruction {
            self.follow(instruction).await;
        }
        instruction.is_some()
    }

    async fn follow(&mut self, instruction: u8) {
        let on = instruction >> 5;
        match instruction & 0x1f {
            0..=4 => {
                let section = self.section();
                if !self.request(instruction & 0x80 == 0).await {
                    return;
                }
                self.reached.requests += 1;
                self.write(0, frame(1, &section));
                if instruction & 0x60 == 0 {
                    let _ = self.requests.last().expect("it was opened").say.send(Say::Finish);
                }
            }
            5 | 6 => {
                let amount = usize::from(self.byte()) * if instruction & 1 == 0 { 1 } else { 64 };
                self.write(on, frame(0, &vec![b'd'; amount]));
            }
            7 => {
                // Trailers, or fields again.
                let mut section = vec![0, 0];
                let choice = usize::from(self.byte());
                let (name, value) = FIELDS[choice % FIELDS.len()];
                field(&mut section, name, value);
                self.write(on, frame(1, &section));
            }
            8 => self.tell(on, Say::Finish),
            9 => {
                let code = 0x100 + u64::from(self.byte() & 0x1f);
                self.tell(on, Say::Reset(code));
            }
            10 => {
                let code = 0x100 + u64::from(self.byte() & 0x1f);
                self.listen(on, Listens::Stop(code));
            }
            11 => self.listen(on, Listens::Yes),
            12 => {
                // Settings again, GOAWAY, MAX_PUSH_ID, CANCEL_PUSH, what is not known, or reserved from HTTP/2.
                let (choice, value) = (self.byte(), self.byte());
                let ty = [4, 7, 13, 3, 0x21, 0xf0700, 2, 0][usize::from(choice & 7)];
                let mut payload = Vec::new();
                varint(&mut payload, u64::from(value) << (choice >> 3));
                Self::say(self.control.as_ref(), frame(ty, &payload));
            }
            13 => {
                let (stream, choice) = (self.byte(), self.byte());
                let mut payload = Vec::new();
                varint(&mut payload, u64::from(stream) * if choice & 0x80 == 0 { 4 } else { 1 << 20 });
                let text: [&[u8]; 4] = [b"u=1, i", b"u=7", b"u=0;x=\"y\", i=?0, z=(1 2)", b"u=-1, ="];
                payload.extend_from_slice(text[usize::from(choice & 3)]);
                Self::say(self.control.as_ref(), frame(0xf0700 + u64::from(choice >> 2 & 1), &payload));
            }
            14 => {
                // Instructions of an encoder (RFC 9204 §4.3).
                let (choice, value) = (self.byte(), self.byte());
                let mut out = Vec::new();
                match choice & 3 {
                    0 => prefixed(&mut out, 0x20, 5, usize::from(value) << 4),
                    1 => {
                        prefixed(&mut out, 0xc0, 6, usize::from(value & 0x3f));
                        prefixed(&mut out, 0, 7, 3);
                        out.extend_from_slice(b"abc");
                    }
                    2 => {
                        out.extend_from_slice(b"\x43x-a");
                        prefixed(&mut out, 0, 7, value.into());
                        out.resize(out.len() + usize::from(value), b'v');
                    }
                    _ => prefixed(&mut out, 0, 5, value.into()),
                }
                Self::say(self.encoder.as_ref(), out);
            }
            15 => {
                // A request with references to the dynamic table.
                let (count, base, index) = (self.byte(), self.byte(), self.byte());
                let mut section = vec![count, base];
                for (name, value) in
                    [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/mirror")]
                {
                    field(&mut section, name.as_bytes(), value.as_bytes());
                }
                prefixed(
                    &mut section,
                    if index & 0x40 == 0 { 0x80 } else { 0x10 },
                    if index & 0x40 == 0 { 6 } else { 4 },
                    usize::from(index & 0x3f),
                );
                if self.request(true).await {
                    self.reached.requests += 1;
                    self.write(0, frame(1, &section));
                }
            }
            16 | 17 => {
                // Capsules in DATA (RFC 9297 §3.2).
                let (ty, len) = (self.byte(), self.byte());
                let ty = [0, 0, 0x17, 0x29, 0x2843, 0x190b_4d39][usize::from(ty) % 6];
                let capsule = frame(ty, &vec![0; usize::from(len) * if instruction & 1 == 0 { 1 } else { 30 }]);
                self.write(on, frame(0, &capsule));
            }
            18 | 19 => {
                // Datagrams, for a request that there is or not.
                let (quarter, len) = (self.byte(), self.byte());
                let mut payload = vec![quarter & 0x3f, 0];
                payload.resize(2 + usize::from(len) * 4, 7);
                payload.truncate(if quarter & 0xc0 == 0xc0 { usize::from(len & 1) } else { 1_100 });
                for _ in 0..if instruction & 1 == 0 { 1 } else { 1 + u16::from(len) } {
                    let _ = self.quic.send_datagram(Bytes::copy_from_slice(&payload));
                }
            }
            20 => {
                let (ty, len) = (self.byte(), self.byte());
                let ty = if ty & 1 == 0 { 0x21 + 0x1f * u64::from(ty) } else { u64::from(ty >> 1) };
                self.write(on, frame(ty, &vec![7; len.into()]));
            }
            21 => {
                let raw = self.take();
                self.write(on, raw);
            }
            22 => {
                // A frame that is longer than what comes of it.
                let (ty, len) = (self.byte(), self.byte());
                let mut out = Vec::new();
                varint(&mut out, u64::from(ty & 7));
                varint(&mut out, u64::from(len) << (ty >> 2));
                out.resize(out.len() + usize::from(len), 0);
                self.write(on, out);
            }
            23 => {
                let ty = self.byte();
                let ty = [0, 1, 2, 3, 0x54, 0x21, 0x40, u64::from(ty) << 20][usize::from(ty & 7)];
                let raw = self.take();
                if self.written < BYTES {
                    let say = self.uni(ty).await;
                    Self::say(say.as_ref(), raw);
                    // Some stay open for a while.
                    if instruction & 0x80 == 0 {
                        self.encoder = say.or(self.encoder.take());
                    }
                }
            }
            24 | 25 => {
                // The last bytes again, on a stream of their own, damaged.
                let (kind, place) = (self.byte(), usize::from(self.byte()));
                let mut bytes = self.last.clone();
                if bytes.is_empty() || !self.request(true).await {
                    return;
                }
                let place = place % bytes.len();
                match kind & 3 {
                    0 => bytes.truncate(place),
                    1 => bytes[place] ^= 1 << (kind >> 5),
                    2 => bytes.insert(place, kind),
                    _ => bytes.extend_from_within(place..),
                }
                self.write(0, bytes);
            }
            26 => {
                let raw = self.take();
                Self::say(self.control.as_ref(), raw);
            }
            27 => {
                let raw = self.take();
                Self::say(self.encoder.as_ref(), raw);
            }
            28 => drop(self.control.take()),
            29 => {
                let times = self.byte();
                for _ in 0..times / 4 {
                    tokio::task::yield_now().await;
                }
            }
            30 => tokio::time::sleep(Duration::from_millis(u64::from(self.byte() & 3))).await,
            _ => self.quic.ping(),
        }
    }

    fn tell(&self, on: u8, say: Say) {
        if let Some(at) = self.requests.len().checked_sub(1) {
            let _ = self.requests[at - usize::from(on).min(at)].say.send(say);
        }
    }

    fn listen(&self, on: u8, how: Listens) {
        if let Some(at) = self.requests.len().checked_sub(1) {
            self.requests[at - usize::from(on).min(at)].listens.send_replace(how);
        }
    }

    /// The client has said all, and listens: every stream ends.
    pub(crate) async fn end(mut self) -> Reached {
        // All of them first: what nobody reads of one answer takes the connection's flow-control credit from the others.
        for exchange in &self.requests {
            let _ = exchange.say.send(Say::Finish);
            if !matches!(*exchange.listens.borrow(), Listens::Stop(_)) {
                exchange.listens.send_replace(Listens::Yes);
            }
        }
        for (number, exchange) in self.requests.drain(..).enumerate() {
            let ended = tokio::time::timeout(site::LIMIT, exchange.ended).await;
            let ended = ended.unwrap_or_else(|_| panic!("request {number} has no end")).expect("no panic");
            match ended {
                Ended::Answer(bytes) => {
                    self.reached.answers += 1;
                    self.reached.bytes += bytes;
                }
                Ended::Reset => self.reached.resets += 1,
                Ended::Gone => {}
            }
        }
        self.reached.closed = self.quic.close_reason().is_some();
        self.quic.close(0x100, b"");
        self.reached
    }
}
