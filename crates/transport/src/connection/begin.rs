//! Beginning of a connection, at the client and at the server.

use std::sync::Arc;

use rand_core::RngCore;
use units::{Instant, RandomStream};
use wire::{ConnectionId, PreferredAddress, ResetToken, Side, TransportParameters};

use super::{
    Connection, Origin, PeerPromises, Setup,
    early::Early,
    events::Events,
    identity::Identity,
    idle::Idle,
    initial_keys,
    key_updates::KeyUpdates,
    lifecycle::Lifecycle,
    memory::Memory,
    packets::Packets,
    randomness::Randomness,
    recover,
    silence::Silence,
    sources::Sources,
    spaces::Spaces,
    unopened::Reception,
    versions,
    watch::{Observation, Unwatched},
};
use crate::{
    cid::{LocalIds, RemoteIds},
    config::{ClientConfig, ConnectError, PreferredAddresses, ServerConfig},
    crypto::Labels,
    handshake::{Handshake, Unstarted, Upgrade},
    keys::Keys,
    path::{AmplificationLimit, EcnMarks, Path, Paths, Spin},
    profile::Profile,
    recovery::Recovery,
    stats::Counts,
    streams::Streams,
    timers::{Timer, Timers},
};

/// Room for the encoded transport parameters with all extensions, in bytes.
const ENCODED: usize = 256;

/// Transport parameters of a server, for any version of QUIC.
struct ServerParameters<'a> {
    config: &'a ServerConfig,
    profile: &'a Profile,
    origin: &'a Origin,
    scid: ConnectionId,
    reset_token: ResetToken,
    preferred: Option<PreferredAddress>,
    /// Random bits for the reserved version.
    grease: u64,
}

impl ServerParameters<'_> {
    /// Encoded parameters of a connection of this `version`.
    fn encode(&self, version: u32, random: &mut RandomStream) -> Vec<u8> {
        let Self { config, profile, origin, .. } = self;
        local_parameters(profile, self.scid, random, Side::Server, |p| {
            p.version_information = Some(versions::information(version, &config.versions, self.grease));
            // RFC 9369 §4.1 MUST-2: so they do when the version has changed after a Retry
            // RFC 9000 §7.3 MUST-1: the ID parameters that an end sends are those of the packets that it sent
            p.original_dcid = Some(origin.original_dcid);
            p.stateless_reset_token = Some(self.reset_token);
            p.retry_source_cid = origin.retried.then_some(origin.initial_dcid);
            p.disable_active_migration = !config.migration;
            p.preferred_address = self.preferred;
        })
    }

    /// The version that the server would rather speak, with its parameters.
    fn upgrade(&self, random: &mut RandomStream) -> Option<Upgrade> {
        let spoken = self.origin.version;
        // RFC 9368 §2.2 MUST NOT-1: only where a standard says that the versions are compatible: 1 and 2 (RFC 9369 §4).
        let to = self.config.upgrade_to.filter(|version| *version != spoken && Labels::of(*version).is_some())?;
        Some(Upgrade { version: to, parameters: self.encode(to, random) })
    }
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
        let mut connection = Beginning {
            side: Side::Client,
            version: config.version,
            profile,
            random,
            setup,
            handshake: Handshake::client(config.version, session),
            keys: initial_keys(Side::Client, config.version, &dcid, config.profile.key_limits),
            remote_ids: RemoteIds::new(dcid),
            path,
        }
        .connection(now);
        connection.packets.identity.begin_client(config, dcid, server_name);
        connection.paths.follow_preferred_address(config.follow_preferred_address);
        connection.observation.unwatched = unwatched;
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
        let parameters = ServerParameters {
            config,
            profile: &profile,
            origin,
            scid: setup.scid,
            reset_token: setup.reset_token,
            preferred,
            grease: random.next_u64(),
        };
        let upgrade = parameters.upgrade(&mut random);
        let parameters = parameters.encode(origin.version, &mut random);
        let unwatched = Unwatched::new(config.observe.as_ref(), &parameters);
        let handshake = Handshake::server(
            origin.version,
            Unstarted { tls: config.tls.clone(), parameters, original: origin.version, upgrade, waker: None },
        );
        let keys = initial_keys(Side::Server, origin.version, &origin.initial_dcid, profile.key_limits);
        let path = new_path(now, &profile, &setup, origin.validated);
        let local = setup.local;
        let mut connection = Beginning {
            side: Side::Server,
            version: origin.version,
            profile,
            random,
            setup,
            handshake,
            keys,
            remote_ids: RemoteIds::new(origin.peer),
            path,
        }
        .connection(now);
        if let Some(PreferredAddress { cid, reset_token, .. }) = preferred {
            connection.packets.identity.local_ids.issue_in_parameters(cid, reset_token);
        }
        connection.paths.offer_preferred_address(preferred, local);
        connection.packets.identity.begin_server(config, origin);
        connection.lifecycle.on_answered();
        connection.observation.unwatched = unwatched;
        connection
    }
}

/// The parts in which the two sides differ.
struct Beginning {
    side: Side,
    version: u32,
    profile: Arc<Profile>,
    random: RandomStream,
    setup: Setup,
    handshake: Handshake,
    keys: Keys,
    remote_ids: RemoteIds,
    path: Path,
}

impl Beginning {
    /// Connection before its first packet.
    fn connection(self, now: Instant) -> Connection {
        let mut timers = Timers::default();
        timers.set(Timer::Idle, Some(now + self.profile.handshake_timeout));
        let Self { side, version, profile, random, setup, handshake, keys, remote_ids, path } = self;
        let mut connection = Connection {
            side,
            packets: Packets {
                random: Randomness::new(random, setup.seed),
                identity: Identity::new(
                    version,
                    LocalIds::new(setup.scid, setup.reset_token),
                    remote_ids,
                    setup.tokens,
                ),
                keys,
                key_updates: KeyUpdates::new(profile.key_update),
                spaces: Spaces::new(&profile),
                sources: Sources::new(side, &profile, handshake),
                has_elicited: false,
            },
            lifecycle: Lifecycle::new(),
            early: Early::new(),
            peer: PeerPromises::DEFAULT,
            paths: Paths::new(path),
            reception: Reception::default(),
            timers,
            idle: Idle::new(profile.idle_timeout),
            silence: Silence::default(),
            memory: Memory::new(&profile, &setup.memory),
            events: Events::default(),
            stats: Counts::default(),
            observation: Observation::default(),
            profile,
        };
        connection.packets.sources.set_slack(connection.memory.slack());
        connection
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
    let mut encoded = Vec::with_capacity(ENCODED);
    parameters.encode(&mut encoded, side, Some(random.next_u64()));
    encoded
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
