//! Endpoint: finds the connection of a datagram, and answers datagrams without a connection.
//!
//! A received datagram is demultiplexed by connection ID (`routes`) and processed by its connection, or answered without state
//! (`stateless`), or begins a connection (`admission`). Sent datagrams are stateless answers first, then those of connections with data to
//! send, in turn.

mod admission;
mod attempts;
mod books;
mod closed;
mod early;
mod machines;
mod migration;
mod misrouted;
mod pending;
mod relief;
mod renewal;
mod routes;
mod siblings;
mod stateless;
mod stats;
mod tls_steps;

use std::{
    collections::{BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use rand_core::RngCore;
use units::{Duration, Instant, RandomStream, Seed};
use wire::{ConnectionId, Header, LongType, ResetToken, Side};

pub use self::attempts::{AttemptEvent, AttemptLog};
pub use self::books::{Carried, DirectionBooks, EndpointBooks};
pub use self::machines::Machines;
pub use self::pending::HandshakeWaker;
pub use self::renewal::IdLengthError;
pub use self::siblings::{SiblingShard, Siblings};
pub use self::stats::EndpointStats;
pub use self::tls_steps::{TlsDone, TlsStep};
use self::{
    admission::FirstPacket, closed::ClosedConnections, early::EarlyPackets, machines::Elsewhere, misrouted::Misrouted,
    relief::Relief, routes::Routes, siblings::Foreign, stateless::Stateless, tls_steps::StepQueue,
};
use crate::{
    cid::{ConnectionIdGenerator, Holder},
    config::{ClientConfig, ConnectError, EndpointConfig, ServerConfig},
    connection::{Connection, Setup},
    events::{CloseReason, Event},
    timers::Timer,
    token::Tokens,
    udp::{Datagram, Transmit},
};

/// Name of a connection of one endpoint. A name is not used again for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    index: u32,
    generation: u32,
}

/// Destination of a payload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Connection(u32),
    /// Another endpoint of the same address.
    Shard(u8),
    /// An endpoint of another process that serves the same address.
    Sibling(SiblingShard),
    /// Another machine that serves the same address.
    Machine(Holder),
    Nobody,
}

struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
    /// In the queue of connections that have to be looked at.
    dirty: bool,
    /// Wake-up of this connection in `wakeups`.
    wakeup: Option<Instant>,
    /// The peer's reset token in `routes`.
    reset_token: Option<ResetToken>,
}

/// Endpoint: all connections of one socket.
///
/// Contract: call [`handle_datagram`](Self::handle_datagram), [`handle_timeout`](Self::handle_timeout) or commands of a connection
/// ([`connection_mut`](Self::connection_mut)); then drain [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event) until
/// they return nothing; then wait for a datagram or for [`poll_timeout`](Self::poll_timeout). There is no activity between calls. A driver
/// that runs TLS elsewhere ([`hand_out_tls`](Self::hand_out_tls)) also drains [`poll_tls_step`](Self::poll_tls_step).
///
/// Instants are the caller's; with the Unix epoch as their origin, tokens outlive the process.
pub struct Endpoint {
    ids: Box<dyn ConnectionIdGenerator>,
    tokens: Arc<Tokens>,
    seed: Seed,
    random: RandomStream,
    server: Option<Arc<ServerConfig>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
    /// Connections whose handshake is not complete.
    half_open: usize,
    routes: Routes,
    dirty: VecDeque<u32>,
    wakeups: BTreeSet<(Instant, u32)>,
    events: VecDeque<(Handle, Event)>,
    accepted: VecDeque<Handle>,
    stateless: Stateless,
    early: EarlyPackets,
    closed: ClosedConnections,
    tls_steps: StepQueue,
    /// Waker that learns which handshakes are worth resuming.
    handshake_waker: Option<Arc<dyn HandshakeWaker>>,
    misrouted: Misrouted,
    foreign: Foreign,
    elsewhere: Elsewhere,
    /// Number of connection attempts, those of forged packets included: each has a separate seed.
    setups: u64,
    stats: EndpointStats,
    ledger: books::Ledger,
    /// Receiver of the events of connection attempts.
    attempts: Option<Arc<dyn AttemptLog>>,
    /// Budget of all connections, and when to look which of them holds most.
    relief: Relief,
    /// Size of the receive buffers in bytes; 0 if each has the size of its content.
    receive_buffer: usize,
    /// Deadlines that may come late come at multiples of this.
    timer_slack: Duration,
}

impl Endpoint {
    /// Makes an endpoint that can connect, and that accepts connections when `server` is given.
    pub fn new(config: EndpointConfig, server: Option<Arc<ServerConfig>>) -> Self {
        let EndpointConfig { seed, ids, ring, used_tokens, memory } = config;
        Self {
            tokens: Arc::new(Tokens::new(ring, used_tokens)),
            random: seed.stream("endpoint"),
            routes: Routes::new(&seed),
            ids,
            seed,
            server,
            slots: Vec::new(),
            free: Vec::new(),
            open: 0,
            half_open: 0,
            dirty: VecDeque::new(),
            wakeups: BTreeSet::new(),
            events: VecDeque::new(),
            accepted: VecDeque::new(),
            stateless: Stateless::default(),
            early: EarlyPackets::new(&memory),
            closed: ClosedConnections::default(),
            tls_steps: StepQueue::default(),
            handshake_waker: None,
            misrouted: Misrouted::default(),
            foreign: Foreign::default(),
            elsewhere: Elsewhere::default(),
            setups: 0,
            stats: EndpointStats::default(),
            ledger: books::Ledger::default(),
            attempts: None,
            relief: Relief::new(memory),
            receive_buffer: 0,
            timer_slack: Duration::ZERO,
        }
    }

    /// Starts a connection to `remote`.
    ///
    /// # Errors
    /// When TLS refuses the server name or the configuration.
    pub fn connect(
        &mut self,
        now: Instant,
        config: &ClientConfig,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<Handle, ConnectError> {
        let scid = self.ids.generate();
        // RFC 9000 §7.2 MUST-1: the first destination ID is unpredictable and has at least 8 bytes.
        let mut dcid = [0; 8];
        self.random.fill_bytes(&mut dcid);
        let dcid = ConnectionId::new(&dcid).expect("eight bytes fit");
        let setup = self.setup(now, scid, remote, None);
        let connection = Connection::connect(now, setup, config, dcid, server_name)?;
        let handle = self.insert(connection);
        self.mark_dirty(handle.index);
        Ok(handle)
    }

    fn setup(&mut self, now: Instant, scid: ConnectionId, remote: SocketAddr, local: Option<IpAddr>) -> Setup {
        self.setups += 1;
        Setup {
            scid,
            reset_token: self.tokens.reset_token(now, &scid),
            remote,
            local,
            seed: self.seed.child("connection", self.setups),
            tokens: self.tokens.clone(),
            memory: self.relief.budget().clone(),
            preferred: None,
        }
    }

    fn insert(&mut self, connection: Connection) -> Handle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None, dirty: false, wakeup: None, reset_token: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 connections")
        });
        for id in connection.local_ids() {
            self.routes.insert(id, index);
        }
        let slot = &mut self.slots[index as usize];
        slot.connection = Some(Box::new(connection));
        self.open += 1;
        self.half_open += 1;
        self.stats.connections += 1;
        Handle { index, generation: slot.generation }
    }

    /// Sets the size of the receive buffers. A connection that keeps part of a datagram keeps its whole buffer in memory, and is charged
    /// for it.
    pub fn set_receive_buffer(&mut self, bytes: usize) {
        self.receive_buffer = bytes;
    }

    /// Lets deadlines for which no peer waits (idle timeouts, ends of closing periods, rest) come late by up to `slack`, so that those of
    /// many connections come together. The default is not to.
    pub fn set_timer_slack(&mut self, slack: Duration) {
        self.timer_slack = slack;
    }

    /// Takes datagrams that a socket has read.
    pub fn handle_datagram(&mut self, now: Instant, mut datagram: Datagram) {
        let segment = datagram.segment_size.max(1);
        let buffer = datagram.payload.len().max(self.receive_buffer);
        self.ledger.on_received(datagram.payload.len(), segment);
        // All segments of a read come from one address, and nearly always belong to one connection: hand over runs.
        while !datagram.payload.is_empty() {
            let target = self.route(&datagram.payload[..segment.min(datagram.payload.len())]);
            let nobody = target == Target::Nobody;
            let mut run = segment;
            while run < datagram.payload.len() {
                let end = (run + segment).min(datagram.payload.len());
                if nobody || self.route(&datagram.payload[run..end]) != target {
                    break;
                }
                run = end;
            }
            let payload = if run >= datagram.payload.len() {
                std::mem::take(&mut datagram.payload)
            } else {
                datagram.payload.split_to(run)
            };
            let part = Datagram { payload, segment_size: segment, ..datagram };
            match target {
                Target::Connection(index) => self.deliver(now, index, part, buffer),
                Target::Shard(shard) => {
                    self.ledger.on_stateless_received(part.payload.len(), segment);
                    if !self.take_reset(now, &part) {
                        self.forward(shard, part);
                    }
                }
                Target::Sibling(shard) => {
                    self.ledger.on_stateless_received(part.payload.len(), segment);
                    if !self.take_reset(now, &part) {
                        self.hand_to_sibling(shard, part);
                    }
                }
                Target::Machine(holder) => {
                    self.ledger.on_stateless_received(part.payload.len(), segment);
                    if !self.take_reset(now, &part) {
                        self.send_elsewhere(holder, part);
                    }
                }
                Target::Nobody => {
                    self.ledger.on_stateless_received(part.payload.len(), segment);
                    self.handle_unrouted(now, part, buffer);
                }
            }
        }
        self.relieve(now);
    }

    /// Length of the connection ID in a short header.
    #[inline]
    fn id_len(&self, payload: &[u8]) -> usize {
        payload.get(1).map_or(self.ids.len(), |first| self.ids.len_of(*first))
    }

    /// Finds the destination of a single payload.
    #[inline]
    fn route(&mut self, payload: &[u8]) -> Target {
        let id = match payload.first() {
            None => None,
            Some(first) if first & wire::bits::LONG_FORM == 0 => wire::short_dcid(payload, self.id_len(payload)),
            Some(_) => wire::long_dcid(payload),
        };
        let Some(id) = id else { return Target::Nobody };
        match self.routes.find(id) {
            Some(index) => Target::Connection(index),
            None => self.sibling_of(payload, id).unwrap_or_else(|| match self.ids.shard_of(id) {
                Some(shard) if self.misrouted.is_other(shard) => Target::Shard(shard),
                Some(_) => Target::Nobody,
                None => self.machine_of(id).unwrap_or(Target::Nobody),
            }),
        }
    }

    fn deliver(&mut self, now: Instant, index: u32, datagram: Datagram, buffer: usize) {
        if let Some(connection) = &mut self.slots[index as usize].connection {
            connection.handle_datagram(now, datagram, buffer);
        }
        self.mark_dirty(index);
    }

    /// Returns whether a payload without a known connection is a stateless reset of one.
    // RFC 9000 §10.3.1 MUST-1: a datagram that belongs to no connection may be a peer's way to say that it has lost its
    // state; the peer does not know our ID any more.
    fn take_reset(&mut self, now: Instant, datagram: &Datagram) -> bool {
        let token = ResetToken::at_end_of(&datagram.payload);
        let Some(index) = token.and_then(|token| self.routes.find_reset(&token)) else { return false };
        let connection = self.slots[index as usize].connection.as_mut();
        let ends = connection.is_some_and(|c| c.handle_reset(now, datagram.remote, datagram.payload.len()));
        if ends {
            self.mark_dirty(index);
        }
        ends
    }

    /// Handles a payload that belongs to no connection.
    fn handle_unrouted(&mut self, now: Instant, datagram: Datagram, buffer: usize) {
        if self.take_reset(now, &datagram) {
            return;
        }
        let payload = &datagram.payload[..];
        let Ok(header) = Header::parse(payload, self.id_len(payload)) else {
            self.stats.dropped += 1;
            return;
        };
        match header {
            Header::Long { ty: LongType::Initial, version, dcid, scid, token, .. } if self.speaks(version) => {
                self.admit(now, datagram, buffer, &FirstPacket { version, dcid, scid, token });
            }
            Header::Long { ty: LongType::ZeroRtt, version, dcid, .. }
                if self.server.is_some() && self.speaks(version) =>
            {
                self.keep_early(now, dcid, datagram);
            }
            Header::Long { version, .. } if self.server.is_some() && !self.speaks(version) => {
                self.negotiate_version(&datagram);
            }
            // RFC 9368 §2.1 MUST NOT-1: a client sends no Version Negotiation
            Header::UnknownVersion { .. } if self.server.is_some() => self.negotiate_version(&datagram),
            Header::Short { dcid, .. } => self.maybe_reset(now, &datagram, &dcid),
            Header::Long { ty: LongType::Handshake, dcid, .. } => self.repeat_close(now, &datagram, &dcid),
            // RFC 9000 §5.2.2 MUST-2: whatever else fits no connection is dropped
            _ => self.stats.dropped += 1,
        }
    }

    /// Returns whether connections of this version are accepted.
    fn speaks(&self, version: u32) -> bool {
        self.server.as_ref().is_some_and(|server| server.versions.contains(&version))
    }

    /// Lets connections act whose deadline has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, index)) = self.wakeups.first() {
            if at > now {
                break;
            }
            self.wakeups.pop_first();
            let slot = &mut self.slots[index as usize];
            slot.wakeup = None;
            if let Some(connection) = &mut slot.connection {
                connection.handle_timeout(now);
            }
            self.mark_dirty(index);
        }
    }

    /// Returns the earliest deadline: time, connection and reason.
    pub fn poll_timeout(&self) -> Option<(Instant, Handle, Timer)> {
        let &(at, index) = self.wakeups.first()?;
        let slot = &self.slots[index as usize];
        // A deadline may have moved to later since it was noted, or gone: then the wake-up only notes the later one.
        let timer = slot.connection.as_ref()?.poll_timeout().map_or(Timer::Idle, |(_, timer)| timer);
        Some((at, Handle { index, generation: slot.generation }, timer))
    }

    /// Fills `buffer` with payloads for one address. Returns `None` if no connection has data to send at `now`.
    ///
    /// Up to 64 payloads of the same size are put into one buffer, as far as it has room and pacing permits.
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        if let Some(transmit) = self.stateless.poll(buffer) {
            self.ledger.on_stateless_sent(transmit.len);
            return Some(transmit);
        }
        while let Some(&index) = self.dirty.front() {
            self.issue_ids(now, index);
            let connection = self.slots[index as usize].connection.as_mut();
            if let Some(transmit) = connection.and_then(|c| c.poll_transmit(now, buffer)) {
                self.ledger.on_sent(transmit.len, transmit.segment_size);
                // The others get their turn before this one fills another buffer.
                self.dirty.rotate_left(1);
                return Some(transmit);
            }
            self.dirty.pop_front();
            self.settle(index);
        }
        None
    }

    /// Returns the next event for the application, with its connection. Poll it before [`poll_transmit`](Self::poll_transmit) if the
    /// application can react at once: its data is then sent together with the connection's.
    pub fn poll_event(&mut self) -> Option<(Handle, Event)> {
        if self.events.is_empty() {
            for at in 0..self.dirty.len() {
                self.hear(self.dirty[at]);
            }
        }
        self.events.pop_front()
    }

    /// Takes the next connection that a peer opened. It is reported at once, before its handshake is complete; its first event
    /// is [`Event::Connected`] or [`Event::Closed`].
    pub fn poll_accept(&mut self) -> Option<Handle> {
        self.accepted.pop_front()
    }

    /// Returns a connection for queries. `None` once it has ended.
    pub fn connection(&self, handle: Handle) -> Option<&Connection> {
        let slot = self.slots.get(handle.index as usize)?;
        slot.connection.as_deref().filter(|_| slot.generation == handle.generation)
    }

    /// Returns a connection for commands. Drain [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn connection_mut(&mut self, handle: Handle) -> Option<&mut Connection> {
        if self.slots.get(handle.index as usize)?.generation != handle.generation {
            return None;
        }
        self.mark_dirty(handle.index);
        self.slots[handle.index as usize].connection.as_deref_mut()
    }

    /// Number of connections, closing ones included.
    pub fn open_connections(&self) -> usize {
        self.open
    }

    /// Returns the counters that no connection reports.
    pub fn stats(&self) -> EndpointStats {
        self.stats
    }

    /// Stops accepting connections, or accepts them with another configuration from here on.
    pub fn set_server_config(&mut self, server: Option<Arc<ServerConfig>>) {
        self.server = server;
    }

    fn mark_dirty(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !std::mem::replace(&mut slot.dirty, true) {
            self.dirty.push_back(index);
        }
    }

    /// Collects the events of a connection for the application.
    #[inline]
    fn hear(&mut self, index: u32) {
        if self.slots[index as usize].connection.as_ref().is_some_and(|connection| connection.may_have_event()) {
            self.collect_events(index);
        }
    }

    #[inline(never)]
    fn collect_events(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let handle = Handle { index, generation: slot.generation };
        let Some(connection) = &mut slot.connection else { return };
        while let Some(event) = connection.poll_event() {
            let outcome = match &event {
                Event::Connected => {
                    self.half_open -= 1;
                    Some(AttemptEvent::Completed)
                }
                Event::Closed(reason) => {
                    if let CloseReason::Memory { process } = reason {
                        self.stats.closed_for_process += u64::from(*process);
                        self.stats.closed_over_budget += u64::from(!*process);
                    }
                    Some(attempts::ended(connection, reason))
                }
                _ => None,
            };
            if let (Some(outcome), Some(log)) = (outcome, &self.attempts)
                && connection.side() == Side::Server
            {
                log.note(connection.first_remote(), outcome);
            }
            self.events.push_back((handle, event));
        }
    }

    /// Gives a connection the IDs that its peer may use, before it fills datagrams: they are sent with its first ones.
    #[inline]
    fn issue_ids(&mut self, now: Instant, index: u32) {
        let Some(connection) = &mut self.slots[index as usize].connection else { return };
        while connection.ids_wanted() > 0 {
            let id = self.ids.generate();
            self.routes.insert(id, index);
            connection.local_ids_mut().issue(id, self.tokens.reset_token(now, &id));
        }
    }

    /// Collects a connection's reports to the endpoint, once it has no more data to send.
    fn settle(&mut self, index: u32) {
        self.hear(index);
        self.find_step(index);
        let slot = &mut self.slots[index as usize];
        slot.dirty = false;
        let Some(connection) = &mut slot.connection else { return };
        connection.release_memory(false);
        let wants_ids = connection.ids_wanted() > 0;
        while let Some(id) = connection.local_ids_mut().poll_retired() {
            self.routes.remove(&id, index);
        }
        if connection.reset_token().map(|token| token.0) != slot.reset_token.map(|token| token.0) {
            let new = connection.reset_token().copied();
            self.routes.replace_reset(index, std::mem::replace(&mut slot.reset_token, new), new);
        }
        // RFC 9000 §10.2 SHOULD-2: afterwards nothing of the connection is kept
        if connection.is_drained() {
            self.remove(index);
            return;
        }
        let next = connection.wake_up(self.timer_slack);
        // A later deadline is noted when the earlier wake-up comes: acknowledgements move it with every batch.
        let keep = slot.wakeup.is_some_and(|old| next.is_none_or(|new| old <= new));
        if !keep && slot.wakeup != next {
            if let Some(old) = slot.wakeup.take() {
                self.wakeups.remove(&(old, index));
            }
            if let Some(at) = next {
                self.wakeups.insert((at, index));
                slot.wakeup = Some(at);
            }
        }
        if wants_ids {
            self.mark_dirty(index);
        }
    }

    fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(mut connection) = slot.connection.take() else { return };
        self.ledger.on_ended(&connection);
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(at) = slot.wakeup.take() {
            self.wakeups.remove(&(at, index));
        }
        for id in connection.local_ids() {
            self.routes.remove(&id, index);
        }
        self.routes.replace_reset(index, slot.reset_token.take(), None);
        self.open -= 1;
        if !connection.was_connected() {
            self.half_open -= 1;
        }
        if let Some(close) = connection.take_retained_close() {
            self.closed.keep(*close);
        }
        self.free.push(index);
    }
}
