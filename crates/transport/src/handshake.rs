//! Handshake: the TLS session, its CRYPTO streams, and the peer's transport parameters.

mod later;
mod step;

use std::task::Waker;

use units::Instant;
use wire::{ConnectionId, Side, TransportParameters};

use crate::{
    crypto_stream::CryptoStream,
    error::{Code, TransportError},
    tls::{HandshakeFault, Level, Progress, Session, TicketVersions, TlsEvent, Waiting, client_hello},
};

pub(crate) use self::step::{Done, Step, Unstarted, Upgrade};
use self::{later::LaterBytes, step::Worker};

/// The connection IDs that the peer has to name in its parameters (RFC 9000 §7.3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpectedIds {
    /// Source ID of the peer's first packet.
    pub(crate) initial_source: Option<ConnectionId>,
    /// Client only: the source ID of the Retry that it followed.
    pub(crate) retry_source: Option<ConnectionId>,
}

/// Owns the handshake.
pub(crate) struct Handshake {
    side: Side,
    version: u32,
    /// A server's, until the first handshake bytes; boxed, because connections outlive it.
    unstarted: Option<Box<Unstarted>>,
    session: Option<Box<dyn Session>>,
    /// Initial, Handshake, 1-RTT.
    crypto: [Option<Box<CryptoStream>>; 3],
    waiting: Option<Waiting>,
    /// Cause that the session failed for.
    fault: Option<HandshakeFault>,
    confirmed: bool,
    /// Set once a Handshake packet was acknowledged: the peer has validated the local address (RFC 9002 §A.6).
    acked: bool,
    /// Handshake bytes arrived that the session has not seen.
    unread: bool,
    /// The level at which the peer's next handshake bytes are due: the session's answer, for when it is away.
    read_level: Level,
    /// Steps of the session run elsewhere.
    hand_out: Option<Box<HandOut>>,
    /// The beginning of a client's first message whose end has not arrived, where it is wanted as a whole.
    held: Vec<u8>,
    later: LaterBytes,
}

/// State of a handshake whose session runs elsewhere.
#[derive(Default)]
struct HandOut {
    /// The session is away, or will be with the step that waits here.
    away: bool,
    step: Option<Step>,
    /// The step was not reported yet.
    untold: bool,
    /// A result that the session waited for became ready while the session was away.
    resumed: bool,
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
        Self::new(Side::Server, version, Some(Box::new(unstarted)), None)
    }

    fn new(side: Side, version: u32, unstarted: Option<Box<Unstarted>>, session: Option<Box<dyn Session>>) -> Self {
        Self {
            side,
            version,
            unstarted,
            session,
            crypto: [Some(Box::default()), Some(Box::default()), Some(Box::default())],
            waiting: None,
            fault: None,
            confirmed: false,
            acked: false,
            unread: false,
            read_level: Level::Initial,
            hand_out: None,
            held: Vec::new(),
            later: LaterBytes::default(),
        }
    }

    /// The version that the handshake is made for.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// From here on steps of the session are handed out ([`take_step`](Self::take_step)), until the handshake is
    /// confirmed.
    pub(crate) fn hand_out_steps(&mut self) {
        self.hand_out = Some(Box::default());
    }

    /// Returns whether the session works elsewhere. Its handshake bytes are due soon, so that acknowledgements can wait for
    /// them.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.hand_out.as_ref().is_some_and(|out| out.away)
    }

    /// Returns, once, that a step waits, and whether it is not the first.
    #[inline]
    pub(crate) fn new_step(&mut self) -> Option<bool> {
        let out = self.hand_out.as_mut()?;
        if std::mem::take(&mut out.untold) { out.step.as_ref().map(Step::has_begun) } else { None }
    }

    /// The step that waits to be run elsewhere.
    pub(crate) fn take_step(&mut self) -> Option<Step> {
        self.hand_out.as_mut()?.step.take()
    }

    /// Cause that the session failed for.
    pub(crate) fn fault(&self) -> Option<HandshakeFault> {
        self.fault
    }

    /// Both ends know that the other has the keys (RFC 9001 §4.1.2).
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Returns whether a Handshake packet was acknowledged.
    pub(crate) fn is_acked(&self) -> bool {
        self.acked
    }

    /// Records the acknowledgement of a Handshake packet.
    pub(crate) fn on_acked(&mut self) {
        self.acked = true;
    }

    /// `true` when that is news.
    pub(crate) fn confirm(&mut self) -> bool {
        self.hand_out = None;
        !std::mem::replace(&mut self.confirmed, true)
    }

    /// Event outside of the connection that the session waits for.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        self.waiting
    }

    /// Releases the memory that is only needed until the handshake is confirmed.
    pub(crate) fn settle(&mut self) {
        if let Some(settled) = self.session.as_mut().and_then(|session| session.settle()) {
            self.session = Some(settled);
        }
    }

    /// Sets the versions that tickets belong to. A session that works elsewhere is a server's, which knows them.
    pub(crate) fn set_ticket_versions(&mut self, versions: TicketVersions) {
        if let Some(session) = &mut self.session {
            session.set_ticket_versions(versions);
        }
    }

    pub(crate) fn session(&self) -> Option<&dyn Session> {
        self.session.as_deref()
    }

    /// Handshake bytes from the peer.
    pub(crate) fn on_crypto(
        &mut self,
        now: Instant,
        level: Level,
        offset: u64,
        data: &[u8],
    ) -> Result<(), TransportError> {
        if level == Level::OneRtt {
            self.later.take(now, data.len() as u64)?;
        }
        // Late copies of a level that is done with carry nothing new.
        let Some(stream) = &mut self.crypto[place(level)] else { return Ok(()) };
        stream.on_frame(offset, data)?;
        // RFC 9001 §4.1.3 MUST NOT-1, MUST-1: once TLS reads another level, nothing new may come at this one.
        if stream.has_unread() && self.read_level > level {
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

    /// Sets the waker of the task that resumes the session, which has not started.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        if let Some(unstarted) = &mut self.unstarted {
            unstarted.waker = Some(waker);
        }
    }

    /// The session may continue: an answer from outside has arrived.
    pub(crate) fn resume(&mut self) {
        self.unread = true;
        // The session may be told that it has to wait by a step that began before the answer was there.
        if let Some(out) = self.hand_out.as_mut().filter(|out| out.away) {
            out.resumed = true;
        }
    }

    /// Lets TLS process the bytes that have arrived. Each call returns the next event that the connection has to handle.
    pub(crate) fn advance(&mut self) -> Result<Option<TlsEvent>, TransportError> {
        loop {
            while let Some(event) = self.session.as_mut().and_then(|session| session.next_event()) {
                match event {
                    TlsEvent::Write { level, data } => {
                        if let Some(stream) = &mut self.crypto[place(level)] {
                            stream.write_owned(data);
                        }
                    }
                    other => return Ok(Some(other)),
                }
            }
            if !self.unread || self.is_away() {
                return Ok(None);
            }
            let Some(step) = self.next_step() else { return Ok(None) };
            match &mut self.hand_out {
                Some(out) => {
                    out.away = true;
                    out.step = Some(step);
                    out.untold = true;
                    return Ok(None);
                }
                None => self.take_back(step.run())?,
            }
        }
    }

    /// Next step of the session; `None` when it has seen everything.
    fn next_step(&mut self) -> Option<Step> {
        let level = self.read_level;
        let data = if self.waiting.is_some() { None } else { Some(self.next_bytes(level)?) };
        let worker = match (self.session.take(), self.unstarted.take()) {
            (Some(session), _) => Worker::Session(session),
            (None, Some(mut unstarted)) => {
                if let Some(version) = data.as_deref().and_then(|hello| unstarted.negotiate(hello)) {
                    self.version = version;
                }
                Worker::Unstarted(*unstarted)
            }
            (None, None) => return None,
        };
        Some(Step { version: self.version, worker, level, data })
    }

    /// Bytes for the session, if there are enough to be worth a step.
    fn next_bytes(&mut self, level: Level) -> Option<Vec<u8>> {
        let Some(data) = self.crypto[place(level)].as_mut().and_then(|s| s.read()) else {
            self.unread = false;
            return None;
        };
        // Not worth a step elsewhere, and not enough to choose a version from.
        let whole = self.hand_out.is_some() || self.unstarted.as_ref().is_some_and(|u| u.upgrade.is_some());
        if !whole || level != Level::Initial {
            return Some(data);
        }
        self.held.extend_from_slice(&data);
        if client_hello::is_partial(&self.held) {
            self.unread = false;
            return None;
        }
        Some(std::mem::take(&mut self.held))
    }

    /// Takes the session back after a step.
    pub(crate) fn take_back(&mut self, done: Done) -> Result<(), TransportError> {
        let mut resumed = false;
        if let Some(out) = &mut self.hand_out {
            out.away = false;
            resumed = std::mem::take(&mut out.resumed);
        }
        self.session = done.session;
        let progress = done.progress.inspect_err(|error| self.fault = Some(error.fault))?;
        if let Some(session) = &self.session {
            self.read_level = session.read_level();
        }
        // RFC 9001 §4.1.3 MUST-2: bytes left over at a level that TLS has left are an error.
        if let Some(level) = done.read.filter(|level| *level != self.read_level)
            && self.crypto[place(level)].as_ref().is_some_and(|s| s.has_unread())
        {
            return Err(TransportError::new(
                Code::PROTOCOL_VIOLATION,
                "handshake bytes beyond the end of their encryption level",
            ));
        }
        self.waiting = match progress {
            Progress::Ready => None,
            Progress::Pending(what) => {
                self.unread = resumed;
                Some(what)
            }
        };
        Ok(())
    }

    /// Bytes of memory that the peer's handshake bytes take until the session has read them.
    #[inline]
    pub(crate) fn received_memory(&self) -> usize {
        self.crypto.iter().flatten().map(|stream| stream.received_memory()).sum::<usize>() + self.held.capacity()
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

    /// Reads the peer's transport parameters and checks them against the packets that were received (RFC 9000 §7.3).
    pub(crate) fn check_parameters(
        &self,
        raw: &[u8],
        expected: &ExpectedIds,
        original_dcid: Option<ConnectionId>,
    ) -> Result<TransportParameters, TransportError> {
        let bad = |reason: String| TransportError::new(Code::TRANSPORT_PARAMETER_ERROR, reason);
        // RFC 9000 §7.4 MUST-1: a transport parameter with a value that may not be is TRANSPORT_PARAMETER_ERROR
        let peer = TransportParameters::decode(self.side.peer(), raw).map_err(|e| bad(e.to_string()))?;
        // RFC 9000 §7.3 MUST-2, MUST-3, MUST-4: the IDs in the parameters are those of the packets, so that nobody on
        // the path can have chosen them.
        if peer.initial_source_cid != expected.initial_source {
            return Err(bad("initial_source_connection_id is not the one in the packets".to_owned()));
        }
        if self.side == Side::Client {
            if peer.original_dcid != original_dcid {
                return Err(bad("original_destination_connection_id is not the one we chose".to_owned()));
            }
            if peer.retry_source_cid != expected.retry_source {
                return Err(bad("retry_source_connection_id does not match the Retry".to_owned()));
            }
        }
        Ok(peer)
    }
}
