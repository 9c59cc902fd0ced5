//! Requests, and the comparison of what comes back.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use quiche::PathEvent;
use real_interop::contract::{Client, Figures, Pattern, Request, SERVER_NAME};

use crate::{PIECE, config, give_ids, new_id, utf8, wires::Wires};

/// Time that a client that wants to come back waits for a ticket.
const TICKET: Duration = Duration::from_secs(5);
/// `ssl_early_data_accepted` of BoringSSL.
const EARLY_DATA_ACCEPTED: u32 = 2;

pub(crate) async fn request(arguments: Client) -> Result<Figures> {
    ensure!(
        !arguments.chacha20 && !arguments.v2 && !arguments.key_update,
        "quiche's clients cannot be told to do that"
    );
    let mut config = config(arguments.early)?;
    config.load_verify_locations_from_file(utf8(&arguments.ca)?)?;
    config.verify_peer(true);
    let start = Instant::now();
    let mut session: Option<Vec<u8>> = None;
    for number in 0..arguments.connections {
        let resumes = arguments.resume && number > 0;
        ensure!(!resumes || session.is_some(), "there is no session to resume");
        let mut wires = Wires::default();
        let here = Wires::address_towards(arguments.connect).await?;
        let local = wires.open(SocketAddr::new(here, 0)).await?;
        let mut quic = quiche::connect(Some(SERVER_NAME), &new_id(), local, arguments.connect, &mut config)?;
        if let Some(session) = session.take().filter(|_| resumes) {
            quic.set_session(&session)?;
        }
        let comes_back = arguments.resume && number + 1 < arguments.connections;
        let mut connection = ClientConnection::new(quic, wires, &arguments, resumes && arguments.early);
        connection.exchange().await?;
        ensure!(connection.quic.is_resumed() == resumes, "resumed: {}", connection.quic.is_resumed());
        let reason = connection.quic.early_data_reason();
        ensure!(!connection.early || reason == EARLY_DATA_ACCEPTED, "early data was not accepted: reason {reason}");
        if comes_back {
            session = Some(connection.ticket().await?);
        }
        connection.close().await?;
    }
    Ok(Figures {
        bytes_received: arguments.get * arguments.streams,
        bytes_sent: arguments.put * arguments.streams,
        seconds: start.elapsed().as_secs_f64(),
        ..Figures::default()
    })
}

/// One request on its stream.
struct Exchange {
    id: u64,
    request: Request,
    line: Vec<u8>,
    sent: u64,
    said_all: bool,
    received: u64,
    answer: Vec<u8>,
    over: bool,
}

impl Exchange {
    fn new(id: u64, request: Request) -> Self {
        let line = request.line().into_bytes();
        Self { id, request, line, sent: 0, said_all: false, received: 0, answer: Vec::new(), over: false }
    }

    fn total(&self) -> u64 {
        self.line.len() as u64 + if let Request::Put(len) = self.request { len } else { 0 }
    }

    /// Sends what the connection takes.
    fn send(&mut self, quic: &mut quiche::Connection, pattern: &Pattern) -> Result<()> {
        let (line, total) = (self.line.len() as u64, self.total());
        while !self.said_all {
            let piece = match self.line.get(usize::try_from(self.sent)?..).filter(|rest| !rest.is_empty()) {
                Some(rest) => rest,
                None => pattern.at(self.sent - line, total - self.sent),
            };
            let last = self.sent + piece.len() as u64 == total;
            match quic.stream_send(self.id, piece, last) {
                Ok(taken) => {
                    self.said_all = last && taken == piece.len();
                    self.sent += taken as u64;
                    if taken < piece.len() {
                        break;
                    }
                }
                Err(quiche::Error::Done) => break,
                Err(error) => return Err(error).context("send on a stream"),
            }
        }
        Ok(())
    }

    /// Takes what has arrived, and looks at all of it.
    fn receive(&mut self, quic: &mut quiche::Connection, pattern: &Pattern) -> Result<()> {
        let mut buffer = vec![0; PIECE];
        while !self.over {
            let (len, last) = match quic.stream_recv(self.id, &mut buffer) {
                Ok(read) => read,
                Err(quiche::Error::Done) => return Ok(()),
                // Nothing was sent on it yet.
                Err(quiche::Error::InvalidStreamState(_)) if self.sent == 0 => return Ok(()),
                Err(error) => return Err(error).context("read from a stream"),
            };
            match self.request {
                Request::Get(_) => pattern.check(self.received, &buffer[..len])?,
                Request::Put(_) => self.answer.extend_from_slice(&buffer[..len]),
            }
            self.received += len as u64;
            self.over = last;
        }
        match self.request {
            Request::Get(len) => ensure!(self.received == len, "got {} of {len} bytes", self.received),
            Request::Put(len) => {
                let said = String::from_utf8_lossy(&self.answer);
                ensure!(said == pattern.digest(len).answer(), "the server got something else: {}", said.trim());
            }
        }
        Ok(())
    }
}

/// One connection, from the first packet to the last.
struct ClientConnection<'a> {
    quic: quiche::Connection,
    wires: Wires,
    arguments: &'a Client,
    pattern: Pattern,
    /// Requests may leave before the handshake is complete.
    early: bool,
    /// A client that moves has opened its second socket.
    moved: bool,
}

impl<'a> ClientConnection<'a> {
    fn new(quic: quiche::Connection, wires: Wires, arguments: &'a Client, early: bool) -> Self {
        Self { quic, wires, arguments, pattern: Pattern::default(), early, moved: false }
    }

    /// Sends, waits, and takes in what has arrived.
    async fn turn(&mut self) -> Result<()> {
        self.wires.send_all(&mut self.quic)?;
        self.wires.wait(self.quic.timeout()).await;
        let quic = &mut self.quic;
        self.wires.receive(|datagram, info| {
            // A datagram that is no use is the connection's own business.
            let _ = quic.recv(datagram, info);
        })?;
        if quic.timeout().is_some_and(|left| left.is_zero()) {
            quic.on_timeout();
        }
        self.wires.send_all(&mut self.quic)
    }

    /// Each stream gets first, and puts when it has got.
    async fn exchange(&mut self) -> Result<()> {
        let (mut waiting, mut open, mut next) = (self.arguments.streams, Vec::<Exchange>::new(), 0);
        let (get, put) = (self.arguments.get, self.arguments.put);
        let mut puts = 0;
        if self.early {
            // Only with its first packet written does it take early data.
            self.wires.send_all(&mut self.quic)?;
        }
        loop {
            let ready = self.quic.is_established() || (self.early && self.quic.is_in_early_data());
            while ready && self.quic.peer_streams_left_bidi() > open.iter().filter(|one| one.sent == 0).count() as u64 {
                let request = if puts > 0 {
                    puts -= 1;
                    Request::Put(put)
                } else if waiting > 0 {
                    waiting -= 1;
                    if get > 0 { Request::Get(get) } else { Request::Put(put) }
                } else {
                    break;
                };
                open.push(Exchange::new(next * 4, request));
                next += 1;
            }
            for one in &mut open {
                one.send(&mut self.quic, &self.pattern)?;
                one.receive(&mut self.quic, &self.pattern)?;
                if let (true, Request::Get(_), true) = (one.over, one.request, put > 0) {
                    puts += 1;
                }
            }
            open.retain(|one| !one.over);
            if open.is_empty() && puts == 0 && waiting == 0 {
                return Ok(());
            }
            if open.first().is_some_and(|one| one.received >= get / 4) {
                self.go_elsewhere().await?;
            }
            ensure!(!self.quic.is_closed(), "the connection is over: {:?}", self.end());
            self.turn().await?;
        }
    }

    /// A client that is to move asks the server on a path from another socket, and goes there when that is answered.
    async fn go_elsewhere(&mut self) -> Result<()> {
        if !self.arguments.migrate || !self.quic.is_established() {
            return Ok(());
        }
        give_ids(&mut self.quic, |_| {})?;
        let peer = self.arguments.connect;
        if !self.moved && self.quic.available_dcids() > 0 {
            let here = Wires::address_towards(peer).await?;
            let local = self.wires.open(SocketAddr::new(here, 0)).await?;
            self.quic.probe_path(local, peer)?;
            self.moved = true;
        }
        while let Some(event) = self.quic.path_event_next() {
            if let PathEvent::Validated(local, peer) = event {
                self.quic.migrate(local, peer)?;
            }
        }
        Ok(())
    }

    async fn ticket(&mut self) -> Result<Vec<u8>> {
        let until = Instant::now() + TICKET;
        loop {
            if let Some(session) = self.quic.session() {
                return Ok(session.to_vec());
            }
            ensure!(Instant::now() < until && !self.quic.is_closed(), "the server gave no ticket");
            self.turn().await?;
        }
    }

    async fn close(&mut self) -> Result<()> {
        // Fails only where it is closed already.
        let _ = self.quic.close(true, 0, b"done");
        self.wires.send_all(&mut self.quic)
    }

    fn end(&self) -> (Option<&quiche::ConnectionError>, Option<&quiche::ConnectionError>, bool) {
        (self.quic.local_error(), self.quic.peer_error(), self.quic.is_timed_out())
    }
}
