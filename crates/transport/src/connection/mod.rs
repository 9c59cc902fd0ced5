//! One connection: in what order the parts see a datagram, an acknowledgement, a timeout.
//!
//! The parts own their state: `handshake` and `keys`, `spaces` (what was sent, what to acknowledge), `paths` (RTT,
//! congestion control, pacing, address validation), `streams`, `datagrams`, `cid`, `lifecycle`. What stands here is
//! the composition, in files by direction: [`receive`](self) a datagram in, `transmit` a datagram out, `timeouts`,
//! `commands` of the application.

mod commands;
mod control;
mod early;
mod fec;
mod frames;
mod header_bits;
mod idle;
mod lifecycle;
mod memory;
mod migration;
mod mtu;
mod path_probe;
mod progress;
mod receive;
mod recover;
mod rekey;
mod report;
mod rest;
mod silence;
mod spaces;
mod timeouts;
mod transmit;
mod verdicts;
mod versions;
mod watch;

pub use self::migration::MigrateError;
pub use self::rekey::KeyUpdatePolicy;
pub(crate) use self::versions::select as select_version;

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::Waker,
};

use rand_core::RngCore;
use units::{Duration, Instant, RandomStream, Seed};
use wire::{ConnectionId, PreferredAddress, ResetToken, Side, TransportParameters};

use self::{
    control::Control,
    early::Early,
    header_bits::RandomBits,
    lifecycle::{CloseFrame, Lifecycle},
    memory::Memory,
    receive::Unopened,
    rekey::Rekey,
    spaces::Spaces,
    transmit::Skip,
    versions::Versions,
    watch::Unwatched,
};
use crate::{
    ack_frequency::AckRequests,
    cid::{LocalIds, RemoteIds},
    crypto::Labels,
    datagrams::{DatagramEvent, Datagrams},
    endpoint::{ClientConfig, ConnectError, Epitaph, PreferredAddresses, ServerConfig, TokenOwner, TokenStore},
    error::TransportError,
    events::{CloseReason, Event},
    fec::Fec,
    handshake::{Done, ExpectedIds, Handshake, Step, Unstarted, Upgrade},
    keys::{KeyLimits, Keys},
    memory::ProcessBudget,
    observe::Ending,
    path::{AmplificationLimit, EcnMarks, Path, PathList, Spin},
    profile::Profile,
    recovery::Recovery,
    stats::Stats,
    streams::Streams,
    timers::{Timer, Timers},
    token::Tokens,
};

/// What the endpoint gives to every connection.
pub(crate) struct Setup {
    pub(crate) scid: ConnectionId,
    pub(crate) reset_token: ResetToken,
    pub(crate) remote: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) seed: Seed,
    pub(crate) tokens: Arc<Tokens>,
    /// What all connections of the process may hold.
    pub(crate) memory: ProcessBudget,
    /// The ID that goes with a server's preferred address; its sequence number is 1.
    pub(crate) preferred: Option<(ConnectionId, ResetToken)>,
}

/// How a connection that a peer started began.
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
/// Contract: after each `handle_…` and after commands, drain `poll_transmit` and `poll_event` until they return
/// nothing, then sleep until a datagram arrives or the time that `poll_timeout` names. An [`Endpoint`](crate::Endpoint)
/// does this for all of its connections.
pub struct Connection {
    side: Side,
    version: u32,
    /// Until the handshake is confirmed.
    versions: Option<Box<Versions>>,
    profile: Arc<Profile>,
    random: RandomStream,
    tokens: Arc<Tokens>,
    local_ids: LocalIds,
    remote_ids: RemoteIds,
    /// What clients send to before they know the server's ID. It routes here to the end: a copy of the first packet that
    /// the network delivers late must not start another connection.
    first_dcid: Option<ConnectionId>,
    expected: ExpectedIds,
    /// The token that a client shows in its Initial packets.
    token: Vec<u8>,
    /// Where a client keeps the tokens that it is given, and for which server.
    token_store: Option<Box<(Arc<dyn TokenStore>, String)>>,
    handshake: Handshake,
    keys: Keys,
    /// What a peer makes this connection hold, in all layers.
    memory: Memory,
    key_update_wanted: bool,
    rekey: Rekey,
    random_bits: RandomBits,
    /// How long nothing happens before the connection counts as at rest.
    rest_after: Duration,
    early: Early,
    spaces: Spaces,
    paths: PathList,
    /// The path that is sent on.
    active: usize,
    /// Where the handshake found the server.
    handshake_remote: SocketAddr,
    /// Where the server would rather be reached, unless the client came there anyway.
    preferred_address: Option<Box<PreferredAddress>>,
    /// A client that goes there.
    follows: bool,
    /// It has yet to try.
    preferred_due: bool,
    /// The path to fall back to when the one in use turns out not to lead to the peer.
    last_validated: usize,
    /// Boxed, as the others that few connections have.
    newcomer: Option<Box<migration::Newcomer>>,
    streams: Streams,
    datagrams: Datagrams,
    control: Control,
    ack_requests: AckRequests,
    fec: Fec,
    lifecycle: Lifecycle,
    timers: Timers,
    /// Packets whose keys are not there yet.
    unopened: Vec<Unopened>,
    /// Reused between batches: what a batch carried for streams and datagrams.
    deferred: Vec<frames::Deferred>,
    idle_timeout: Duration,
    peer: PeerPromises,
    silence: silence::Silence,
    /// An ack-eliciting packet was sent since the last packet was received: the idle timer was restarted for it.
    sent_since_received: bool,
    /// A Retry or a packet of the server was accepted.
    heard: bool,
    /// A Handshake packet of ours was acknowledged.
    handshake_acked: bool,
    send_token: bool,
    original_dcid: Option<ConnectionId>,
    /// Number of paths there ever were: the seed of the next one.
    paths_seen: u64,
    /// Number of changes of congestion control: the seed of the next controller.
    controllers: u64,
    skip: Skip,
    seed: Seed,
    /// A packet could not be sealed: the connection ends.
    seal_failed: Option<Box<TransportError>>,
    connected: bool,
    /// An observer knows by what name key logs know this connection.
    client_random_told: bool,
    events: VecDeque<Event>,
    /// `Closed` was told: nothing follows.
    closed_told: bool,
    /// What arrived may be read although the connection is over.
    readable_after_end: bool,
    stats: Stats,
    observer: Option<Box<dyn crate::observe::Observer>>,
    /// Who is asked for an observer once a packet has proved authentic.
    unwatched: Option<Box<Unwatched>>,
}

/// What remains of interest in the peer's transport parameters.
#[derive(Clone, Copy, Debug)]
struct PeerPromises {
    ack_delay_exponent: u8,
    active_connection_id_limit: u64,
    max_udp_payload_size: u16,
    disable_active_migration: bool,
}

impl Connection {
    pub(crate) fn connect(
        now: Instant,
        setup: Setup,
        config: &ClientConfig,
        dcid: ConnectionId,
        server_name: &str,
    ) -> Result<Self, ConnectError> {
        let profile = config.profile.clone();
        let mut random = setup.seed.stream("connection");
        let grease = random.next_u64();
        let parameters = local_parameters(&profile, setup.scid, &mut random, Side::Client, |p| {
            p.version_information = Some(versions::information(config.version, &config.versions, grease));
        });
        let unwatched = Unwatched::new(config.observe.as_ref(), &parameters);
        let session = config.tls.start(config.version, server_name, parameters)?;
        let path = new_path(now, &profile, &setup, true);
        let mut connection = Self::assemble(
            now,
            Side::Client,
            config.version,
            profile,
            random,
            setup,
            Handshake::client(config.version, session),
            initial_keys(Side::Client, config.version, &dcid, config.profile.key_limits),
            RemoteIds::new(dcid),
            path,
        );
        connection.versions = Versions::new(config.version, &config.versions, dcid, config.reacts);
        connection.expected.original_destination = Some(dcid);
        connection.original_dcid = Some(dcid);
        // RFC 9000 §8.1.3 SHOULD-2: a client that has a token for the server shows it
        // RFC 9000 §8.1.3 MUST NOT-3: and to no other server
        connection.token.clone_from(&config.token);
        if let (true, Some(store)) = (config.token.is_empty(), &config.tokens) {
            let owner = TokenOwner { server_name, version: config.version };
            connection.token = store.take(owner).unwrap_or_default();
        }
        connection.token_store = config.tokens.clone().map(|store| Box::new((store, server_name.to_owned())));
        connection.follows = config.follow_preferred_address;
        connection.unwatched = unwatched;
        connection.start_watching(now);
        connection.progress_handshake(now);
        Ok(connection)
    }

    pub(crate) fn accept_from(now: Instant, setup: Setup, config: &ServerConfig, origin: &Origin) -> Self {
        let chosen = config.profiles.as_ref().and_then(|profiles| profiles.choose(setup.remote));
        let profile = chosen.unwrap_or_else(|| config.profile.clone());
        let mut random = setup.seed.stream("connection");
        let preferred = setup.preferred.map(|(cid, reset_token)| {
            let PreferredAddresses { ipv4, ipv6 } = config.preferred_address;
            PreferredAddress { ipv4, ipv6, cid, reset_token }
        });
        let grease = random.next_u64();
        let parameters = |version: u32, random: &mut RandomStream| {
            local_parameters(&profile, setup.scid, random, Side::Server, |p| {
                p.version_information = Some(versions::information(version, &config.versions, grease));
                // RFC 9369 §4.1 MUST-2: so they do when the version has changed after a Retry
                // RFC 9000 §7.3 MUST-1: the ID parameters that an end sends are those of the packets that it sent
                p.original_dcid = Some(origin.original_dcid);
                p.stateless_reset_token = Some(setup.reset_token);
                p.retry_source_cid = origin.retried.then_some(origin.initial_dcid);
                p.disable_active_migration = !config.migration;
                p.preferred_address = preferred;
            })
        };
        let upgrade = config.upgrade_to;
        // RFC 9368 §2.2 MUST NOT-1: only where a standard says that the versions are compatible: 1 and 2 (RFC 9369 §4).
        let upgrade = upgrade.filter(|version| *version != origin.version && Labels::of(*version).is_some());
        let upgrade = upgrade.map(|version| Upgrade { version, parameters: parameters(version, &mut random) });
        let parameters = parameters(origin.version, &mut random);
        let unwatched = Unwatched::new(config.observe.as_ref(), &parameters);
        let handshake = Handshake::server(
            origin.version,
            Unstarted { tls: config.tls.clone(), parameters, original: origin.version, upgrade, waker: None },
        );
        let keys = initial_keys(Side::Server, origin.version, &origin.initial_dcid, profile.key_limits);
        let path = new_path(now, &profile, &setup, origin.validated);
        let local = setup.local;
        let mut connection = Self::assemble(
            now,
            Side::Server,
            origin.version,
            profile,
            random,
            setup,
            handshake,
            keys,
            RemoteIds::new(origin.peer),
            path,
        );
        if let Some(PreferredAddress { cid, reset_token, .. }) = preferred {
            connection.local_ids.issue_in_parameters(cid, reset_token);
        }
        connection.preferred_address = preferred.map(Box::new);
        if connection.is_preferred_here(local) {
            connection.preferred_address = None;
        }
        connection.versions = Versions::new(origin.version, &config.versions, origin.initial_dcid, false);
        connection.expected.initial_source = Some(origin.peer);
        connection.first_dcid = Some(origin.initial_dcid);
        connection.send_token = config.send_token;
        connection.original_dcid = Some(origin.original_dcid);
        connection.heard = true;
        connection.unwatched = unwatched;
        connection
    }

    #[expect(clippy::too_many_arguments, reason = "the parts in which the two sides differ, used in two places")]
    fn assemble(
        now: Instant,
        side: Side,
        version: u32,
        profile: Arc<Profile>,
        random: RandomStream,
        setup: Setup,
        handshake: Handshake,
        keys: Keys,
        remote_ids: RemoteIds,
        path: Path,
    ) -> Self {
        let mut timers = Timers::default();
        timers.set(Timer::Idle, Some(now + profile.handshake_timeout));
        let mut connection = Self {
            side,
            version,
            versions: None,
            random,
            tokens: setup.tokens,
            local_ids: LocalIds::new(setup.scid, setup.reset_token),
            remote_ids,
            first_dcid: None,
            expected: ExpectedIds::default(),
            token: Vec::new(),
            token_store: None,
            handshake,
            keys,
            memory: Memory::new(&profile, &setup.memory),
            key_update_wanted: false,
            rekey: Rekey::new(profile.key_update),
            random_bits: RandomBits::default(),
            rest_after: rest::rest_after(profile.idle_timeout),
            early: Early::new(),
            spaces: Spaces::new(&profile),
            handshake_remote: path.remote,
            preferred_address: None,
            follows: false,
            preferred_due: false,
            paths: PathList(vec![path]),
            active: 0,
            last_validated: 0,
            newcomer: None,
            paths_seen: 1,
            controllers: 0,
            skip: Skip::new(),
            streams: Streams::new(side, &profile.streams),
            datagrams: Datagrams::new(&profile.datagrams_config()),
            control: Control::default(),
            ack_requests: AckRequests::new(profile.ack_frequency),
            fec: Fec::default(),
            lifecycle: Lifecycle::new(),
            timers,
            unopened: Vec::new(),
            deferred: Vec::new(),
            idle_timeout: profile.idle_timeout,
            peer: PeerPromises {
                ack_delay_exponent: 3,
                active_connection_id_limit: 2,
                max_udp_payload_size: u16::MAX,
                disable_active_migration: false,
            },
            silence: silence::Silence::default(),
            sent_since_received: false,
            heard: false,
            handshake_acked: false,
            send_token: false,
            original_dcid: None,
            seed: setup.seed,
            seal_failed: None,
            connected: false,
            client_random_told: false,
            events: VecDeque::new(),
            closed_told: false,
            readable_after_end: false,
            stats: Stats::default(),
            observer: None,
            unwatched: None,
            profile,
        };
        connection.set_slack();
        connection
    }

    /// The earliest deadline, and what it is for. Valid once `poll_transmit` has returned nothing.
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        self.timers.next()
    }

    /// The next thing that the application may want to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.closed_told {
            return None;
        }
        // The end is told last, after what arrived with it.
        if let Some(event) = self.events.pop_front_if(|event| !matches!(event, Event::Closed(_))) {
            return Some(event);
        }
        if let Some(event) = self.streams.poll_event() {
            return Some(Event::Stream(event));
        }
        if let Some(event) = self.datagrams.poll_event() {
            return Some(match event {
                DatagramEvent::Readable => Event::DatagramsReadable,
                DatagramEvent::Writable => Event::DatagramsWritable,
                DatagramEvent::SendDropped { count, .. } => Event::DatagramsDropped { count },
                DatagramEvent::ReceiveDropped { count, .. } => Event::DatagramsUnread { count },
            });
        }
        let last = self.events.pop_front();
        self.closed_told = last.is_some();
        last
    }

    /// The TLS session may go on: what it was waiting for is there.
    pub fn resume_handshake(&mut self, now: Instant) {
        self.handshake.resume();
        self.progress_handshake(now);
        self.retry_unopened(now);
    }

    /// What the handshake waits for outside of the connection.
    pub fn handshake_waits_for(&self) -> Option<crate::tls::Waiting> {
        self.handshake.waiting()
    }

    /// The steps of the TLS session are run elsewhere from here on.
    pub(crate) fn hand_out_tls(&mut self) {
        self.handshake.hand_out_steps();
    }

    // What the endpoint asks.

    /// Whoever is woken calls [`resume_handshake`](Self::resume_handshake). For a server's connection that has read nothing.
    pub(crate) fn set_handshake_waker(&mut self, waker: Waker) {
        self.handshake.set_waker(waker);
    }

    /// Tells once that a step waits to be run elsewhere, and whether it is not the first.
    pub(crate) fn new_tls_step(&mut self) -> Option<bool> {
        self.handshake.new_step()
    }

    /// The step that waits to be run elsewhere.
    pub(crate) fn take_tls_step(&mut self) -> Option<Step> {
        self.handshake.take_step()
    }

    /// A step of the TLS session is done.
    pub(crate) fn handle_tls_done(&mut self, now: Instant, done: Done) {
        if !self.lifecycle.is_open() {
            return;
        }
        match self.handshake.take_back(done) {
            Ok(()) => {
                self.progress_handshake(now);
                self.retry_unopened(now);
            }
            Err(error) => self.fail(now, error),
        }
    }

    /// Every ID that datagrams for this connection may be addressed to.
    pub(crate) fn local_ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.local_ids.iter().chain(self.first_dcid)
    }

    pub(crate) fn ids_wanted(&self) -> usize {
        if self.lifecycle.is_open() { self.local_ids.wanted() } else { 0 }
    }

    pub(crate) fn issue_id(&mut self, id: ConnectionId, reset_token: ResetToken) {
        self.local_ids.issue(id, reset_token);
    }

    pub(crate) fn poll_retired_id(&mut self) -> Option<ConnectionId> {
        self.local_ids.poll_retired()
    }

    /// What ends this connection when a datagram that names no ID of ours ends with it.
    #[inline]
    pub(crate) fn reset_token(&self) -> Option<&ResetToken> {
        if self.lifecycle.is_open() { self.remote_ids.reset_token() } else { None }
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.lifecycle.is_drained()
    }

    /// What is to be kept of it when it is forgotten.
    pub(crate) fn take_epitaph(&mut self) -> Option<Box<Epitaph>> {
        self.lifecycle.take_epitaph()
    }

    pub(crate) fn was_connected(&self) -> bool {
        self.connected
    }

    /// The peer's address at the beginning.
    pub(crate) fn first_remote(&self) -> SocketAddr {
        self.handshake_remote
    }

    /// Whether the peer has acknowledged a packet.
    pub(crate) fn is_reached(&self) -> bool {
        self.stats.packets_acked > 0
    }

    /// Whether something is under way: packets without acknowledgement, or a bidirectional stream that is not at its end.
    pub(crate) fn is_busy(&self) -> bool {
        self.paths.0.iter().any(|path| path.recovery.bytes_in_flight() > 0) || self.streams.has_bidi()
    }

    /// Whether any packet from the peer was authentic.
    pub(crate) fn has_heard(&self) -> bool {
        self.stats.packets_received > 0
    }

    // The end.

    fn fail(&mut self, now: Instant, error: TransportError) {
        // RFC 9000 §10.3 MUST-1: who can still send CONNECTION_CLOSE does so and does not reset
        // RFC 9000 §11 SHOULD-1: the peer is told of an error
        // RFC 9000 §11 SHOULD-2: an error is told with the code that fits best
        let reason = lifecycle::close_reason(error.clone());
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
        self.observe(now, |observer, at| observer.closed(at, &reason, ending));
        self.readable_after_end = matches!(reason, CloseReason::PeerApplication { .. });
        self.push(Event::Closed(reason));
    }

    fn is_readable_after_end(&self) -> bool {
        self.readable_after_end
    }

    /// The peer ended the connection: nothing more is sent.
    fn drain(&mut self, now: Instant, reason: CloseReason) {
        if self.lifecycle.drain() {
            self.end(now, reason, Ending::Draining);
        }
    }

    fn pto(&self) -> Duration {
        self.paths[self.active].recovery.pto()
    }
}

/// The parameters of this end, encoded.
fn local_parameters(
    profile: &Profile,
    scid: ConnectionId,
    random: &mut RandomStream,
    side: Side,
    server: impl FnOnce(&mut TransportParameters),
) -> Vec<u8> {
    let mut parameters = TransportParameters {
        // RFC 9000 §7.3 MUST-1: the ID parameters that an end sends are those of the packets that it sent
        initial_source_cid: Some(scid),
        max_idle_timeout_ms: u64::try_from(profile.idle_timeout.as_millis()).unwrap_or(u64::MAX >> 2),
        max_ack_delay_ms: u64::try_from(profile.acks.max_delay.as_millis()).unwrap_or(25).min((1 << 14) - 1),
        min_ack_delay_us: profile.acks.min_delay().and_then(|delay| u64::try_from(delay.as_micros()).ok()),
        max_receive_timestamps_per_ack: (profile.receive_times() > 0).then_some(profile.receive_times() as u64),
        receive_timestamps_exponent: if profile.receive_timestamps > 0 { recover::RECEIVE_TIMES_EXPONENT } else { 0 },
        active_connection_id_limit: crate::cid::ACTIVE_LIMIT,
        max_datagram_frame_size: profile.datagrams_config().max_frame_size,
        grease_quic_bit: profile.grease,
        fec_window: profile.fec.is_on().then_some(crate::fec::WINDOW),
        ..TransportParameters::default()
    };
    Streams::new(side, &profile.streams).local_parameters(&mut parameters);
    server(&mut parameters);
    let mut encoded = Vec::with_capacity(128);
    parameters.encode(&mut encoded, side, Some(random.next_u64()));
    encoded
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

fn new_path(now: Instant, profile: &Profile, setup: &Setup, validated: bool) -> Path {
    let limit = if validated { AmplificationLimit::validated() } else { AmplificationLimit::unvalidated() };
    let discovery = profile.mtu_discovery();
    let spin = Spin::new(profile.spin, setup.seed.stream("spin").next_u64());
    let recovery = Recovery::new(&profile.recovery_config(), discovery.current(), setup.seed.child("path", 0), now);
    let path = Path::new(setup.remote, setup.local, limit, recovery, discovery, EcnMarks::new(profile.ecn), spin);
    // RFC 9000 §8.1: the handshake proves it, with datagrams of 1,200 bytes in both directions.
    Path { proven: true, ..path }
}
