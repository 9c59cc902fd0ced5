//! Answers.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::hmac;
use quiche::{ConnectionId, Header, PathEvent, RecvInfo, Type};
use real_interop::contract::{Digest, Figures, Pattern, Request, Server};
use tokio::io::AsyncReadExt;

use crate::{ID_LEN, PIECE, config, give_ids, new_id, random, utf8, wires::Wires};

/// Bytes of the shortest datagram that can open a connection (RFC 9000 §14.1).
const SHORTEST_INITIAL: usize = 1_200;

pub(crate) async fn serve(arguments: Server) -> Result<Figures> {
    let mut wires = Wires::default();
    let address = wires.open(arguments.listen).await?;
    println!("{}", serde_json::json!({ "ready": true, "address": address.to_string() }));
    let mut endpoint = Endpoint::new(&arguments, wires)?;
    let (mut stdin, mut ignored) = (tokio::io::stdin(), vec![]);
    tokio::select! {
        ended = endpoint.run() => ended?,
        _ = stdin.read_to_end(&mut ignored) => {}
    }
    Ok(Figures::default())
}

/// Work on a stream.
enum Work {
    /// The line is not whole.
    Reading(Vec<u8>),
    /// Bytes of the pattern: how many, and how many were sent.
    Getting(u64, u64),
    /// Digest of what the client sends.
    Putting(Digest),
    /// The answer, and how much of it was sent.
    Telling(Vec<u8>, usize),
    Over,
}

/// A connection and its streams.
struct Guest {
    quic: quiche::Connection,
    work: HashMap<u64, Work>,
}

struct Endpoint {
    wires: Wires,
    config: quiche::Config,
    guests: HashMap<u64, Guest>,
    /// By connection ID.
    routes: HashMap<Vec<u8>, u64>,
    born: u64,
    /// Clients have to prove their address; tokens are signed with it.
    retry: Option<hmac::Key>,
    pattern: Pattern,
}

impl Endpoint {
    fn new(arguments: &Server, wires: Wires) -> Result<Self> {
        let mut config = config(arguments.early)?;
        config.load_cert_chain_from_pem_file(utf8(&arguments.cert)?)?;
        config.load_priv_key_from_pem_file(utf8(&arguments.key)?)?;
        let retry = arguments.retry.then(|| hmac::Key::new(hmac::HMAC_SHA256, &random::<32>()));
        let (guests, routes) = (HashMap::new(), HashMap::new());
        Ok(Self { wires, config, guests, routes, born: 0, retry, pattern: Pattern::default() })
    }

    async fn run(&mut self) -> Result<()> {
        loop {
            let timer = self.guests.values().filter_map(|guest| guest.quic.timeout()).min();
            self.wires.wait(timer).await;
            let mut arrived = Vec::new();
            self.wires.receive(|datagram, info| arrived.push((datagram.to_vec(), info)))?;
            for (mut datagram, info) in arrived {
                // What cannot be read, or comes from nowhere, has no answer.
                if let Err(error) = self.take(&mut datagram, info) {
                    eprintln!("{}: {error:#}", info.from);
                }
            }
            for (number, guest) in &mut self.guests {
                if guest.quic.timeout().is_some_and(|left: Duration| left.is_zero()) {
                    guest.quic.on_timeout();
                }
                if guest.quic.is_established() {
                    give_ids(&mut guest.quic, |id| {
                        self.routes.insert(id.to_vec(), *number);
                    })?;
                }
                if let Err(error) = guest.follow() {
                    eprintln!("connection {number}: {error:#}");
                }
                guest.work(&self.pattern);
                if let Err(error) = self.wires.send_all(&mut guest.quic) {
                    eprintln!("connection {number}: {error:#}");
                }
            }
            self.guests.retain(|_, guest| !guest.quic.is_closed());
            self.routes.retain(|_, number| self.guests.contains_key(number));
        }
    }

    /// One datagram, to the connection that it is for.
    fn take(&mut self, datagram: &mut [u8], info: RecvInfo) -> Result<()> {
        let header = Header::from_slice(datagram, ID_LEN)?;
        let number = match self.routes.get(header.dcid.as_ref()) {
            Some(number) => *number,
            None => match self.welcome(&header, datagram.len(), info)? {
                Some(number) => number,
                None => return Ok(()),
            },
        };
        let guest = self.guests.get_mut(&number).context("routes lead to guests")?;
        guest.quic.recv(datagram, info)?;
        Ok(())
    }

    /// A datagram that belongs to no connection: perhaps it opens one.
    fn welcome(&mut self, header: &Header<'_>, len: usize, RecvInfo { from, to }: RecvInfo) -> Result<Option<u64>> {
        let mut out = [0; 1_500];
        if header.ty == Type::Short || len < SHORTEST_INITIAL {
            return Ok(None);
        }
        if !quiche::version_is_supported(header.version) {
            let len = quiche::negotiate_version(&header.scid, &header.dcid, &mut out)?;
            self.wires.send(&out[..len], to, from);
            return Ok(None);
        }
        if header.ty != Type::Initial {
            return Ok(None);
        }
        let token = header.token.as_deref().unwrap_or_default();
        let (id, original) = match &self.retry {
            None => (new_id(), None),
            Some(key) if token.is_empty() => {
                let id = new_id();
                let token = seal(key, from, &header.dcid);
                let len = quiche::retry(&header.scid, &header.dcid, &id, &token, header.version, &mut out)?;
                self.wires.send(&out[..len], to, from);
                return Ok(None);
            }
            // The ID that the Retry gave is the one to continue with.
            Some(key) => (header.dcid.clone().into_owned(), Some(open(key, from, token)?)),
        };
        let quic = quiche::accept(&id, original.as_ref(), to, from, &mut self.config)?;
        self.born += 1;
        for known in [id.to_vec(), header.dcid.to_vec()] {
            self.routes.insert(known, self.born);
        }
        self.guests.insert(self.born, Guest { quic, work: HashMap::new() });
        Ok(Some(self.born))
    }
}

/// Content of a token: its client, and the first destination connection ID.
fn claims(from: SocketAddr, original: &[u8]) -> Vec<u8> {
    let mut claims = from.to_string().into_bytes();
    claims.push(b' ');
    claims.extend_from_slice(original);
    claims
}

fn seal(key: &hmac::Key, from: SocketAddr, original: &ConnectionId<'_>) -> Vec<u8> {
    let mut token = hmac::sign(key, &claims(from, original)).as_ref().to_vec();
    token.extend_from_slice(original);
    token
}

fn open(key: &hmac::Key, from: SocketAddr, token: &[u8]) -> Result<ConnectionId<'static>> {
    let (tag, original) =
        token.split_at_checked(hmac::HMAC_SHA256.digest_algorithm().output_len()).context("a short token")?;
    ensure!(hmac::verify(key, &claims(from, original), tag).is_ok(), "a token of somebody else");
    Ok(ConnectionId::from_vec(original.to_vec()))
}

impl Guest {
    /// A client that comes from another address is asked there: quiche leaves that to the application.
    fn follow(&mut self) -> Result<()> {
        while let Some(event) = self.quic.path_event_next() {
            if let PathEvent::New(local, peer) = event {
                self.quic.probe_path(local, peer)?;
            }
        }
        Ok(())
    }

    /// Goes on with all streams.
    fn work(&mut self, pattern: &Pattern) {
        if !self.quic.is_established() && !self.quic.is_in_early_data() {
            return;
        }
        for id in self.quic.readable() {
            self.work.entry(id).or_insert_with(|| Work::Reading(Vec::new()));
        }
        for (&id, work) in &mut self.work {
            if let Err(error) = work.go_on(&mut self.quic, id, pattern) {
                eprintln!("stream {id}: {error:#}");
                *work = Work::Over;
            }
        }
        self.work.retain(|_, work| !matches!(work, Work::Over));
    }
}

impl Work {
    fn go_on(&mut self, quic: &mut quiche::Connection, id: u64, pattern: &Pattern) -> Result<()> {
        let mut buffer = vec![0; PIECE];
        while matches!(self, Self::Reading(_) | Self::Putting(_)) {
            let (len, last) = match quic.stream_recv(id, &mut buffer) {
                Ok(read) => read,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            self.read(&buffer[..len], last)?;
        }
        loop {
            let (piece, last) = match self {
                Self::Getting(len, sent) => {
                    let piece = pattern.at(*sent, *len - *sent);
                    (piece, *sent + piece.len() as u64 == *len)
                }
                Self::Telling(answer, sent) => (&answer[*sent..], true),
                _ => return Ok(()),
            };
            let whole = piece.len();
            let taken = match quic.stream_send(id, piece, last) {
                Ok(taken) => taken,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            match self {
                Self::Getting(_, sent) => *sent += taken as u64,
                Self::Telling(_, sent) => *sent += taken,
                _ => {}
            }
            if taken < whole {
                return Ok(());
            }
            if last {
                *self = Self::Over;
            }
        }
    }

    /// More of what the client says.
    fn read(&mut self, data: &[u8], last: bool) -> Result<()> {
        let mut rest = data.to_vec();
        if let Self::Reading(line) = self {
            line.extend_from_slice(data);
            let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
                ensure!(!last && line.len() <= Request::MAX_LINE, "the request is no line");
                return Ok(());
            };
            rest = line.split_off(end + 1);
            *self = match Request::parse(&line[..end])? {
                Request::Get(len) => Self::Getting(len, 0),
                Request::Put(_) => Self::Putting(Digest::default()),
            };
        }
        if let Self::Putting(digest) = self {
            digest.update(&rest);
            if last {
                let answer = std::mem::take(digest).answer().into_bytes();
                *self = Self::Telling(answer, 0);
            }
        }
        Ok(())
    }
}
