//! One connection: the order in which its parts process datagrams, acknowledgements and timeouts.
//!
//! The parts own their state: `packets` (packet number spaces, keys, connection IDs, sources of frames), `paths` (RTT, congestion control,
//! pacing, address validation), `lifecycle`, `memory`. This module composes them, in files by direction: [`receive`](self) for a datagram
//! in, `transmit` for a datagram out, `timeouts`, `commands` of the application.

mod ack_requests;
mod begin;
mod close;
mod coalesced;
mod commands;
mod control;
mod copies;
mod early;
mod events;
mod fec;
mod frames;
mod identity;
mod idle;
mod key_updates;
mod lifecycle;
mod memory;
mod migration;
mod mtu;
mod packet;
mod packets;
mod path_probe;
mod progress;
mod quiet;
mod randomness;
mod receive;
mod recover;
mod report;
mod silence;
mod sources;
mod spaces;
mod timeouts;
mod transmit;
mod unopened;
mod verdicts;
mod versions;
mod watch;

pub(crate) use self::close::RetainedClose;
pub(crate) use self::migration::move_state;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::Waker,
};

use units::{Duration, Instant, Seed};
use wire::{ConnectionId, ResetToken, Side, TransportParameters};

use self::{
    early::Early,
    events::Events,
    idle::Idle,
    lifecycle::{CloseFrame, Lifecycle},
    memory::Memory,
    packets::Packets,
    silence::Silence,
    sources::Sources,
    unopened::Reception,
    watch::Observation,
};
use crate::{
    crypto::Labels,
    error::{Code, TransportError},
    events::{CloseReason, Event},
    handshake::{Done, Step},
    keys::{KeyLimits, Keys},
    memory::ProcessBudget,
    observe::Ending,
    path::Paths,
    profile::Profile,
    stats::Counts,
    timers::{Timer, Timers},
    token::Tokens,
};

/// Setup that the endpoint gives to every connection.
pub(crate) struct Setup {
    pub(crate) scid: ConnectionId,
    pub(crate) reset_token: ResetToken,
    pub(crate) remote: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) seed: Seed,
    pub(crate) tokens: Arc<Tokens>,
    /// Budget of all connections of the process.
    pub(crate) memory: ProcessBudget,
    /// The ID that goes with a server's preferred address; its sequence number is 1.
    pub(crate) preferred: Option<(ConnectionId, ResetToken)>,
}

/// The beginning of a connection that a peer started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) version: u32,
    /// Destination of the first packet that the server saw: the keys of Initial packets follow from it.
    pub(crate) initial_dcid: ConnectionId,
    /// Destination of the client's very first packet, before a Retry.
    pub(crate) original_dcid: ConnectionId,
    /// The peer's own ID.
    pub(crate) peer: ConnectionId,
    /// A Retry was answered: `initial_dcid` is its source ID.
    pub(crate) retried: bool,
    /// A token proved the address.
    pub(crate) validated: bool,
}

/// A QUIC connection, client or server.
///
/// Contract: after each `handle_…` and after commands, drain `poll_transmit` and `poll_event` until they return nothing. Then sleep until a
/// datagram arrives or the time of `poll_timeout`. An [`Endpoint`](crate::Endpoint) does this for all of its connections.
pub struct Connection {
    side: Side,
    profile: Arc<Profile>,
    packets: Packets,
    lifecycle: Lifecycle,
    early: Early,
    /// Promises of the peer that remain of interest.
    peer: PeerPromises,
    paths: Paths,
    reception: Reception,
    timers: Timers,
    idle: Idle,
    silence: Silence,
    /// Account of the memory that a peer makes this connection hold, in all layers.
    memory: Memory,
    events: Events,
    stats: Counts,
    observation: Observation,
}

/// Values of the peer's transport parameters that are needed after the handshake.
#[derive(Clone, Copy, Debug)]
struct PeerPromises {
    ack_delay_exponent: u8,
    active_connection_id_limit: u64,
    max_udp_payload_size: u16,
    disable_active_migration: bool,
}

impl PeerPromises {
    /// The values of RFC 9000 §18.2 for parameters that the peer does not send.
    const DEFAULT: Self = Self {
        ack_delay_exponent: 3,
        active_connection_id_limit: 2,
        max_udp_payload_size: u16::MAX,
        disable_active_migration: false,
    };

    fn of(peer: &TransportParameters) -> Result<Self, TransportError> {
        Ok(Self {
            ack_delay_exponent: u8::try_from(peer.ack_delay_exponent)
                .map_err(|_| TransportError::new(Code::TRANSPORT_PARAMETER_ERROR, "ack_delay_exponent is too large"))?,
            active_connection_id_limit: peer.active_connection_id_limit,
            disable_active_migration: peer.disable_active_migration,
            max_udp_payload_size: u16::try_from(peer.max_udp_payload_size).unwrap_or(u16::MAX),
        })
    }
}

impl Connection {
    /// Earliest deadline, with its timer. Valid once `poll_transmit` has returned nothing.
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        self.timers.next()
    }

    /// Time to wake up for the earliest deadline, where those that the peer does not wait for may come late by up to `slack`.
    pub(crate) fn wake_up(&self, slack: Duration) -> Option<Instant> {
        self.timers.wake_up(slack)
    }

    /// Returns whether there may be an event for the application.
    #[inline]
    pub(crate) fn may_have_event(&self) -> bool {
        let Sources { streams, datagrams, .. } = &self.packets.sources;
        streams.has_event() || datagrams.may_have_event() || self.events.has_any()
    }

    /// Takes the next event for the application.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_over() {
            return None;
        }
        if let Some(event) = self.events.pop_before_end() {
            return Some(event);
        }
        if let Some(event) = self.packets.sources.poll_event() {
            return Some(event);
        }
        self.events.pop_end()
    }

    /// Resumes the TLS session: the result that it was waiting for is ready.
    pub fn resume_handshake(&mut self, now: Instant) {
        self.packets.sources.handshake.resume();
        self.progress_handshake(now);
        self.retry_unopened(now);
    }

    /// Returns the operation outside of the connection that the handshake waits for.
    pub fn handshake_waits_for(&self) -> Option<crate::tls::Waiting> {
        self.packets.sources.handshake.waiting()
    }

    /// The steps of the TLS session are run elsewhere from here on.
    pub(crate) fn hand_out_tls(&mut self) {
        self.packets.sources.handshake.hand_out_steps();
    }

    // What the endpoint asks.

    /// Sets the waker of a task that calls [`resume_handshake`](Self::resume_handshake). For a server's connection before its first
    /// datagram.
    pub(crate) fn set_handshake_waker(&mut self, waker: Waker) {
        self.packets.sources.handshake.set_waker(waker);
    }

    /// Returns, once, that a step waits to be run elsewhere, and whether it is not the first.
    pub(crate) fn new_tls_step(&mut self) -> Option<bool> {
        self.packets.sources.handshake.new_step()
    }

    /// The step that waits to be run elsewhere.
    pub(crate) fn take_tls_step(&mut self) -> Option<Step> {
        self.packets.sources.handshake.take_step()
    }

    /// A step of the TLS session is done.
    pub(crate) fn handle_tls_done(&mut self, now: Instant, done: Done) {
        if !self.lifecycle.is_open() {
            return;
        }
        match self.packets.sources.handshake.take_back(done) {
            Ok(()) => {
                self.progress_handshake(now);
                self.retry_unopened(now);
            }
            Err(error) => self.fail(now, error),
        }
    }

    /// Every ID that datagrams for this connection may be addressed to.
    pub(crate) fn local_ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.packets.identity.routed_ids()
    }

    pub(crate) fn ids_wanted(&self) -> usize {
        if self.lifecycle.is_open() { self.packets.identity.local_ids.wanted() } else { 0 }
    }

    pub(crate) fn local_ids_mut(&mut self) -> &mut crate::cid::LocalIds {
        &mut self.packets.identity.local_ids
    }

    /// Stateless reset token that ends this connection, at the end of a datagram with an unknown connection ID.
    #[inline]
    pub(crate) fn reset_token(&self) -> Option<&ResetToken> {
        if self.lifecycle.is_open() { self.packets.identity.remote_ids.reset_token() } else { None }
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.lifecycle.is_drained()
    }

    /// The CONNECTION_CLOSE packet that outlives the connection, if one is to.
    pub(crate) fn take_retained_close(&mut self) -> Option<Box<RetainedClose>> {
        self.lifecycle.take_retained()
    }

    pub(crate) fn was_connected(&self) -> bool {
        self.lifecycle.was_connected()
    }

    /// The peer's address at the beginning.
    pub(crate) fn first_remote(&self) -> SocketAddr {
        self.paths.handshake_remote()
    }

    /// Returns whether the peer has acknowledged a packet.
    pub(crate) fn is_reached(&self) -> bool {
        self.stats.packets_acked > 0
    }

    /// Returns whether there is activity: unacknowledged packets, or an unfinished bidirectional stream.
    pub(crate) fn is_busy(&self) -> bool {
        self.paths.is_in_flight() || self.packets.sources.streams.has_bidi()
    }

    /// Returns whether any packet from the peer was authentic.
    pub(crate) fn has_heard(&self) -> bool {
        self.stats.packets_received > 0
    }

    // The end.

    fn fail(&mut self, now: Instant, error: TransportError) {
        // RFC 9000 §10.3 MUST-1: who can still send CONNECTION_CLOSE does so and does not reset
        // RFC 9000 §11 SHOULD-1: the peer is told of an error
        // RFC 9000 §11 SHOULD-2: an error is told with the code that fits best
        let reason = lifecycle::close_reason(error.clone(), self.packets.sources.handshake.fault());
        self.close_with(now, CloseFrame::Transport(error), reason);
    }

    fn close_with(&mut self, now: Instant, frame: CloseFrame, reason: CloseReason) {
        if self.lifecycle.close(frame) {
            self.end(now, reason, Ending::Closing);
        }
    }

    /// Stops everything but the closing period.
    fn end(&mut self, now: Instant, reason: CloseReason, ending: Ending) {
        self.timers.clear_all();
        let end = lifecycle::end_of_closing(now, self.pto());
        self.timers.set(Timer::Close, Some(end));
        self.observation.tell(now, |observer, at| observer.closed(at, &reason, ending));
        if matches!(reason, CloseReason::PeerApplication { .. }) {
            self.lifecycle.keep_readable();
        }
        self.push(Event::Closed(reason));
    }

    /// Enters the draining state: the peer has ended the connection, and no further packet is sent.
    fn drain(&mut self, now: Instant, reason: CloseReason) {
        if self.lifecycle.drain() {
            self.end(now, reason, Ending::Draining);
        }
    }

    fn pto(&self) -> Duration {
        self.paths.active().recovery.pto()
    }
}

/// The labels of a version that this crate speaks.
pub(crate) fn labels(version: u32) -> &'static Labels {
    Labels::of(version).expect("only versions that are supported get this far")
}

fn initial_keys(side: Side, version: u32, dcid: &ConnectionId, limits: KeyLimits) -> Keys {
    let mut keys = Keys::new(side, labels(version), limits);
    keys.set_initial(dcid.as_slice());
    keys
}
