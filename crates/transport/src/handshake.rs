//! The handshake: the TLS session, the CRYPTO streams that carry it, and what the peer promised in it.

use wire::{ConnectionId, Side, TransportParameters};

use crate::{
    crypto_stream::CryptoStream,
    error::{Code, TransportError},
    tls::{Level, Progress, ServerTls, Session, TlsEvent, Waiting},
};

/// What a server needs to start TLS, kept until the first handshake bytes are authenticated: a forged first packet
/// costs no session.
pub(crate) struct Unstarted {
    pub(crate) tls: std::sync::Arc<dyn ServerTls>,
    pub(crate) parameters: Vec<u8>,
}

/// The connection IDs that the peer has to name in its parameters (RFC 9000 §7.3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpectedIds {
    /// Source ID of the peer's first packet.
    pub(crate) initial_source: Option<ConnectionId>,
    /// Client only: the destination ID of its very first packet.
    pub(crate) original_destination: Option<ConnectionId>,
    /// Client only: the source ID of the Retry that it followed.
    pub(crate) retry_source: Option<ConnectionId>,
}

/// Owns the handshake.
pub(crate) struct Handshake {
    side: Side,
    version: u32,
    unstarted: Option<Unstarted>,
    session: Option<Box<dyn Session>>,
    /// Initial, Handshake, 1-RTT.
    crypto: [Option<Box<CryptoStream>>; 3],
    waiting: Option<Waiting>,
    confirmed: bool,
    /// Handshake bytes arrived that the session has not seen.
    unread: bool,
}

fn place(level: Level) -> usize {
    match level {
        Level::Initial => 0,
        Level::Handshake => 1,
        Level::OneRtt | Level::ZeroRtt => 2,
    }
}

impl Handshake {
    pub(crate) fn client(version: u32, session: Box<dyn Session>) -> Self {
        Self::new(Side::Client, version, None, Some(session))
    }

    pub(crate) fn server(version: u32, unstarted: Unstarted) -> Self {
        Self::new(Side::Server, version, Some(unstarted), None)
    }

    fn new(side: Side, version: u32, unstarted: Option<Unstarted>, session: Option<Box<dyn Session>>) -> Self {
        Self {
            side,
            version,
            unstarted,
            session,
            crypto: [Some(Box::default()), Some(Box::default()), Some(Box::default())],
            waiting: None,
            confirmed: false,
            unread: false,
        }
    }

    /// Both ends know that the other has the keys (RFC 9001 §4.1.2).
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// `true` when that is news.
    pub(crate) fn confirm(&mut self) -> bool {
        !std::mem::replace(&mut self.confirmed, true)
    }

    /// What the session waits for outside of the connection.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        self.waiting
    }

    pub(crate) fn session(&self) -> Option<&dyn Session> {
        self.session.as_deref()
    }

    /// Handshake bytes from the peer.
    pub(crate) fn on_crypto(&mut self, level: Level, offset: u64, data: &[u8]) -> Result<(), TransportError> {
        // Late copies of a level that is done with carry nothing new.
        let Some(stream) = &mut self.crypto[place(level)] else { return Ok(()) };
        stream.on_frame(offset, data)?;
        // RFC 9001 §4.1.3 MUST: once TLS reads another level, nothing new may come at this one.
        if stream.has_unread() && self.session.as_ref().is_some_and(|session| session.read_level() > level) {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "handshake bytes at a level that is over"));
        }
        self.unread = true;
        Ok(())
    }

    /// Handshake bytes wait for the session.
    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        self.unread
    }

    /// The session may go on: an answer from outside has arrived.
    pub(crate) fn resume(&mut self) {
        self.unread = true;
    }

    /// Lets TLS work on what arrived. Each call returns the next thing that the connection has to do for it.
    pub(crate) fn advance(&mut self) -> Result<Option<TlsEvent>, TransportError> {
        if self.session.is_none() {
            let Some(unstarted) = self.unstarted.take_if(|_| self.unread) else { return Ok(None) };
            self.session = Some(unstarted.tls.start(self.version, unstarted.parameters)?);
        }
        let Some(session) = &mut self.session else { return Ok(None) };
        loop {
            while let Some(event) = session.next_event() {
                match event {
                    TlsEvent::Write { level, data } => {
                        if let Some(stream) = &mut self.crypto[place(level)] {
                            stream.write(&data);
                        }
                    }
                    other => return Ok(Some(other)),
                }
            }
            if !self.unread {
                return Ok(None);
            }
            let progress = if self.waiting.is_some() {
                session.resume()?
            } else {
                let level = session.read_level();
                let Some(data) = self.crypto[place(level)].as_mut().and_then(|s| s.read()) else {
                    self.unread = false;
                    continue;
                };
                let progress = session.read(level, &data)?;
                // RFC 9001 §4.1.3 MUST: bytes left over at a level that TLS has left are an error.
                let next = session.read_level();
                if next != level && self.crypto[place(level)].as_ref().is_some_and(|s| s.has_unread()) {
                    return Err(TransportError::new(
                        Code::PROTOCOL_VIOLATION,
                        "handshake bytes beyond the end of their encryption level",
                    ));
                }
                progress
            };
            self.waiting = match progress {
                Progress::Ready => None,
                Progress::Pending(what) => {
                    self.unread = false;
                    Some(what)
                }
            };
        }
    }

    /// The CRYPTO stream of a level, unless the level is done with.
    pub(crate) fn crypto(&mut self, level: Level) -> Option<&mut CryptoStream> {
        self.crypto[place(level)].as_deref_mut()
    }

    pub(crate) fn wants_to_send(&self, level: Level) -> bool {
        self.crypto[place(level)].as_ref().is_some_and(|s| s.wants_to_send())
    }

    /// Forgets a level with its keys.
    pub(crate) fn discard(&mut self, level: Level) {
        self.crypto[place(level)] = None;
    }

    /// Reads the peer's parameters and checks them against what was seen on the wire.
    pub(crate) fn check_parameters(
        &self,
        raw: &[u8],
        expected: &ExpectedIds,
    ) -> Result<TransportParameters, TransportError> {
        let bad = |reason: String| TransportError::new(Code::TRANSPORT_PARAMETER_ERROR, reason);
        let peer = TransportParameters::decode(self.side.peer(), raw).map_err(|e| bad(e.to_string()))?;
        // RFC 9000 §7.3 MUST: the IDs in the parameters are those of the packets, so that nobody on the path can have
        // chosen them.
        if peer.initial_source_cid != expected.initial_source {
            return Err(bad("initial_source_connection_id is not the one in the packets".to_owned()));
        }
        if self.side == Side::Client {
            if peer.original_dcid != expected.original_destination {
                return Err(bad("original_destination_connection_id is not the one we chose".to_owned()));
            }
            if peer.retry_source_cid != expected.retry_source {
                return Err(bad("retry_source_connection_id does not match the Retry".to_owned()));
            }
        }
        Ok(peer)
    }
}
