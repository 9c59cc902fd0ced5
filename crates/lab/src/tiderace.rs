//! Our stack as a contender: `tiderace` with one of its congestion controllers.
//!
//! Each end is an endpoint with one connection.

mod host;
mod samples;

use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use sim::{Datagram, Ecn, Outbox};
use transport::{
    ClientConfig, Connection, Endpoint, EndpointConfig, Handle, Profile, RetryPolicy, ServerConfig,
    ack_frequency::AckFrequency, fec::FecPolicy, observe::ObserverFactory, qlog::Vantage, tls::EarlyData,
};
use units::{Duration, Instant};

use self::samples::{Samples, Watch};
use crate::{
    books::EndBooks,
    contender::{BuildError, ConnectionSpec, Contender, Evidence, Factor, Identity, RepairCounters, RunSpec},
    qlog::{Packets, QlogDir},
    settings::Setup,
    stack::{SansIo, Stack, StackBuilder, StackCounters},
    tls::{self, SERVER_NAME, TLS},
    tunnel::{InTunnel, QUEUE},
    tunnelling::Tunnel,
    view::{SenderCounters, SenderView},
};

pub use crate::settings::controllers;

/// Our stack with this congestion controller; `None` when there is none of this name.
pub fn contender(controller: &str) -> Option<Box<dyn Contender>> {
    contender_asking(controller, AckFrequency::Off)
}

/// Our stack with this congestion controller, and acknowledgement frequency requests by the policy.
pub fn contender_asking(controller: &str, ack_frequency: AckFrequency) -> Option<Box<dyn Contender>> {
    let congestion = controller.parse().ok()?;
    let name = match ack_frequency {
        AckFrequency::Off => controller.to_owned(),
        asking => format!("{controller} ack={asking}"),
    };
    Some(with_profile(Profile { name, congestion, ack_frequency, ..Profile::default() }))
}

/// Our stack with a profile of one's own, under the profile's name.
pub fn with_profile(profile: Profile) -> Box<dyn Contender> {
    with_setup(Setup { profile, ..Setup::default() })
}

/// As [`with_profile`], with everything that can be set.
pub(crate) fn with_setup(setup: Setup) -> Box<dyn Contender> {
    let inner = Tiderace { profile: Arc::new(setup.profile), early_data: setup.early_data };
    if setup.tunnel == Tunnel::None {
        return Box::new(SansIo(inner));
    }
    let around = Profile { datagram_queue: QUEUE, ..(*inner.profile).clone() };
    let outer = Tiderace { profile: Arc::new(around), early_data: false };
    Box::new(SansIo(InTunnel { inner, outer, tunnel: setup.tunnel }))
}

/// Builds both ends with one profile.
#[derive(Debug)]
struct Tiderace {
    profile: Arc<Profile>,
    early_data: bool,
}

/// A batch: as much as one send with segmentation offload takes.
const BATCH: usize = 64 * 1024;

impl Tiderace {
    fn end(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec, client: bool) -> Result<End, BuildError> {
        let side = if client { "client" } else { "server" };
        let seed = spec.seed.child(side, connection.index as u64);
        let samples = Samples::default();
        let watch: Arc<dyn ObserverFactory> = Arc::new(self.watch(samples.clone(), spec, connection, client)?);
        let failed = |error: &String| BuildError(format!("TLS: {error}"));
        let (client_tls, server_tls) = TLS.as_ref().map_err(failed)?;
        let mut endpoint = EndpointConfig::from_seed(seed);
        let (mut as_client, mut as_server) = (None, None);
        // At the clients: a server has the same packets and keys.
        let packets = spec.qlog.and_then(QlogDir::packets).filter(|_| client).cloned();
        if client {
            let keys = packets.clone().map(|packets| Arc::new(packets) as Arc<dyn rustls::KeyLog>);
            let config = match (self.early_data, keys) {
                (true, keys) => {
                    let seed = seed.child("visit", 0);
                    tls::returning_client(&self.profile, connection.client, seed, keys).map_err(|e| failed(&e))?
                }
                (false, Some(keys)) => {
                    let tls = tls::client_with_keys(keys).map_err(|e| failed(&e))?;
                    ClientConfig::new(tls, self.profile.clone())
                }
                (false, None) => ClientConfig::new(client_tls.clone(), self.profile.clone()),
            };
            as_client = Some(ClientConfig { observe: Some(watch), ..config });
        } else {
            let mut tls = server_tls.clone();
            if self.early_data {
                (tls, endpoint.ring) = (tls::server_of_returning().map_err(|e| failed(&e))?, tls::ring());
            }
            let config = ServerConfig::new(tls, self.profile.clone());
            as_server = Some(Arc::new(ServerConfig { retry: RetryPolicy::Never, observe: Some(watch), ..config }));
        }
        let (local, remote) = match client {
            true => (connection.client, connection.server),
            false => (connection.server, connection.client),
        };
        Ok(End {
            endpoint: Endpoint::new(endpoint, as_server),
            client: as_client,
            handle: None,
            early: false,
            local,
            remote,
            buffer: vec![0; BATCH],
            packets,
            samples,
            failed: None,
            last: Last::default(),
        })
    }
}

impl Tiderace {
    /// Builds the observer of this end, with a file when qlog is wanted.
    fn watch(
        &self,
        samples: Samples,
        spec: &RunSpec<'_>,
        connection: &ConnectionSpec,
        client: bool,
    ) -> Result<Watch, BuildError> {
        let (vantage, name) = if client { (Vantage::Client, "client") } else { (Vantage::Server, "server") };
        let file = spec.qlog.map(|directory| directory.file(connection.index, name)).transpose();
        let file = file.map_err(|error| BuildError(format!("cannot create a qlog file: {error}")))?;
        let (scenario, profile) = (&spec.scenario.name, &self.profile.name);
        let title = format!("{scenario}, {profile}, seed {}, connection {}", spec.seed_number, connection.index);
        Ok(Watch { samples, vantage, title, log: Mutex::new(file) })
    }
}

impl StackBuilder for Tiderace {
    type Stack = End;

    fn identity(&self) -> Identity {
        let profile = serde_json::to_value(&*self.profile).ok();
        let parameters = profile.as_ref().and_then(serde_json::Value::as_object).into_iter().flatten();
        let early = self.early_data.then(|| ("early_data".to_owned(), "true".to_owned()));
        let plain = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Identity {
            name: format!("tiderace {}", self.profile.name),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            parameters: parameters.map(|(name, value)| (name.clone(), plain(value))).chain(early).collect(),
        }
    }

    fn factors(&self) -> Vec<Factor> {
        let factor = |name: &str, value: String| Factor { name: name.to_owned(), value };
        let mut factors = vec![factor("congestion", self.profile.congestion.name().to_owned())];
        if self.profile.ack_frequency != AckFrequency::Off {
            factors.push(factor("ack", self.profile.ack_frequency.to_string()));
        }
        if self.profile.fec.protects() {
            factors.push(factor("fec", self.profile.fec.to_string()));
        }
        if self.early_data {
            factors.push(factor("early-data", accepted(EarlyData::Accepted)));
        }
        factors
    }

    fn client(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<End, BuildError> {
        self.end(spec, connection, true)
    }

    fn server(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<End, BuildError> {
        self.end(spec, connection, false)
    }
}

fn evidence(factor: &str, value: String, counter: &str, count: u64) -> Evidence {
    Evidence { factor: factor.to_owned(), value, counter: counter.to_owned(), count }
}

/// Outcome of early data, in a word.
fn accepted(early_data: EarlyData) -> String {
    let word = match early_data {
        EarlyData::None => "none",
        EarlyData::Offered => "offered",
        EarlyData::Accepted => "accepted",
        EarlyData::Rejected => "refused",
    };
    word.to_owned()
}

/// One end of a connection, with its own endpoint.
struct End {
    endpoint: Endpoint,
    /// A client's settings.
    client: Option<ClientConfig>,
    handle: Option<Handle>,
    /// Early data can leave, and the workload does not know it yet.
    early: bool,
    local: core::net::SocketAddr,
    remote: core::net::SocketAddr,
    buffer: Vec<u8>,
    /// File for the packets of this end.
    packets: Option<Packets>,
    samples: Samples,
    /// The connection could not even be started.
    failed: Option<String>,
    last: Last,
}

/// Last counters of the connection: it is gone when it has drained.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    counters: StackCounters,
    controller: &'static str,
    acknowledged: u64,
    ack_frequency: AckFrequency,
    ack_requests_acked: u64,
    ack_requests_received: u64,
    fec: FecPolicy,
    /// Repair symbols; with `auto` the times that it was weighed whether they are worth it.
    fec_at_work: u64,
    repairs_received: u64,
    early_data: EarlyData,
    early_bytes: u64,
}

impl End {
    fn connection(&mut self) -> Option<&mut Connection> {
        self.endpoint.connection_mut(self.handle?)
    }

    fn adopt(&mut self, handle: Handle) {
        self.handle = Some(handle);
        if let Some(connection) = self.connection() {
            connection.record_datagram_fates();
        }
    }

    /// Counters of the connection, kept for when it is gone.
    fn current(&self) -> Last {
        let Some(connection) = self.handle.and_then(|handle| self.endpoint.connection(handle)) else {
            return self.last;
        };
        let stats = connection.stats();
        Last {
            counters: StackCounters {
                rtt_min: (stats.min_rtt > 0).then(|| Duration::from_nanos(stats.min_rtt)),
                stream_bytes_sent: Some(stats.stream_bytes_sent),
                stream_bytes_resent: Some(stats.stream_bytes_retransmitted),
                packets_sent: Some(stats.packets_sent),
                packets_lost: Some(stats.packets_lost),
                tunnel: None,
                memory: Some(connection.memory() as u64),
                repair: (connection.fec() != FecPolicy::Off).then_some(RepairCounters {
                    symbols_sent: stats.fec_symbols_sent,
                    repairs_sent: stats.fec_repairs_sent,
                    repair_bytes: stats.fec_repair_bytes_sent,
                    header_bytes: stats.fec_header_bytes_sent,
                    not_sent_again: stats.fec_packets_recovered,
                    recovered: stats.fec_symbols_recovered,
                    needless: stats.fec_symbols_recovered_needlessly,
                    unrecovered: stats.fec_symbols_unrecovered,
                    repairs_received: stats.fec_repairs_received,
                    repairs_late: stats.fec_repairs_late,
                    repairs_spurious: stats.fec_repairs_spare,
                    recovery_delay: stats.fec_recovery_delay,
                }),
            },
            controller: connection.congestion_control(),
            acknowledged: stats.packets_acked,
            ack_frequency: connection.ack_frequency(),
            ack_requests_acked: stats.ack_requests_acked,
            ack_requests_received: stats.ack_requests_received,
            fec: connection.fec(),
            fec_at_work: if connection.fec() == FecPolicy::Auto { stats.fec_reviews } else { stats.fec_repairs_sent },
            repairs_received: stats.fec_repairs_received,
            early_data: connection.early_data(),
            early_bytes: stats.early_bytes_sent,
        }
    }
}

impl Stack for End {
    fn start(&mut self, now: Instant) {
        let Some(config) = &self.client else { return };
        match self.endpoint.connect(now, config, self.remote, SERVER_NAME) {
            Ok(handle) => {
                self.adopt(handle);
                self.early = self.connection().is_some_and(|connection| connection.early_data() == EarlyData::Offered);
            }
            Err(error) => self.failed = Some(error.to_string()),
        }
    }

    fn receive(&mut self, now: Instant, datagram: Datagram) {
        if let Some(packets) = &self.packets {
            packets.note(now, [datagram.from, datagram.to], datagram.ecn, &datagram.payload);
        }
        let payload = datagram.payload;
        self.endpoint.handle_datagram(
            now,
            transport::Datagram {
                remote: datagram.from,
                local: Some(datagram.to.ip()),
                ecn: match datagram.ecn {
                    Ecn::NotEct => None,
                    Ecn::Ect0 => Some(transport::Ecn::Ect0),
                    Ecn::Ect1 => Some(transport::Ecn::Ect1),
                    Ecn::Ce => Some(transport::Ecn::Ce),
                },
                received_at: now,
                segment_size: payload.len(),
                payload,
            },
        );
        while let Some(handle) = self.endpoint.poll_accept() {
            // The first connection is the one of the run: there is one client.
            if self.handle.is_none() {
                self.adopt(handle);
            }
        }
    }

    fn timeout(&self) -> Option<(Instant, &'static str)> {
        self.endpoint.poll_timeout().map(|(at, _, timer)| (at, timer.name()))
    }

    fn on_timeout(&mut self, now: Instant) {
        // A connection may come to its end here: what it has counted is needed afterwards.
        self.last = self.current();
        self.endpoint.handle_timeout(now);
    }

    fn transmit(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) {
            let ecn = match transmit.ecn {
                None => Ecn::NotEct,
                Some(transport::Ecn::Ect0) => Ecn::Ect0,
                Some(transport::Ecn::Ect1) => Ecn::Ect1,
                Some(transport::Ecn::Ce) => Ecn::Ce,
            };
            if let Some(packets) = &self.packets {
                let payloads = self.buffer[..transmit.len].chunks(transmit.segment_size.max(1));
                payloads.for_each(|payload| packets.note(now, [self.local, transmit.remote], ecn, payload));
            }
            out.send(Datagram {
                from: self.local,
                to: transmit.remote,
                ecn,
                payload: BytesMut::from(&self.buffer[..transmit.len]),
                segment_size: (transmit.segment_size < transmit.len).then_some(transmit.segment_size),
                tag: 0,
            });
        }
    }

    fn take_rtt_samples(&mut self, sink: &mut dyn FnMut(Duration)) -> bool {
        self.samples.with(|taken| taken.rtt.drain(..).for_each(sink));
        true
    }

    fn take_loss_delays(&mut self, sink: &mut dyn FnMut(Duration)) -> bool {
        self.samples.with(|taken| taken.losses.drain(..).for_each(sink));
        true
    }

    fn counters(&self) -> StackCounters {
        self.current().counters
    }

    fn evidence(&self) -> Vec<Evidence> {
        let last = self.current();
        let fec = match last.fec {
            FecPolicy::Auto => "times that repair was weighed",
            _ => "repair symbols sent",
        };
        vec![
            evidence(
                "congestion",
                last.controller.to_owned(),
                "packets whose acknowledgement its controller was told",
                last.acknowledged,
            ),
            evidence(
                "ack",
                last.ack_frequency.to_string(),
                "requests for another rhythm that the peer acknowledged",
                last.ack_requests_acked,
            ),
            evidence("fec", last.fec.to_string(), fec, last.fec_at_work),
        ]
    }

    fn evidence_at_receiver(&self) -> Vec<Evidence> {
        let last = self.current();
        let mut shown = vec![evidence(
            "ack",
            last.ack_frequency.to_string(),
            "requests for another rhythm received",
            last.ack_requests_received,
        )];
        // What decides by itself may decide against it.
        if last.fec != FecPolicy::Auto {
            shown.push(evidence("fec", last.fec.to_string(), "repair symbols received", last.repairs_received));
        }
        shown
    }

    /// Acceptance is told in the handshake. So it shows on a path that loses every 0-RTT packet as well, where the server has counted none.
    fn evidence_at_client(&self) -> Vec<Evidence> {
        let last = self.current();
        vec![evidence("early-data", accepted(last.early_data), "bytes of 0-RTT packets sent", last.early_bytes)]
    }

    fn books(&self) -> Option<Result<EndBooks, String>> {
        Some(EndBooks::of(&self.endpoint))
    }

    fn view(&self) -> Option<SenderView> {
        let connection = self.endpoint.connection(self.handle?)?;
        let (metrics, stats) = (connection.metrics(), connection.stats());
        Some(SenderView {
            state: metrics.state,
            window: metrics.window,
            in_flight: metrics.in_flight,
            pacing_rate: metrics.pacing_rate,
            smoothed_rtt: Some(metrics.smoothed_rtt).filter(|rtt| !rtt.is_zero()),
            counters: Some(SenderCounters {
                stream_bytes: stats.stream_bytes_sent.saturating_sub(stats.stream_bytes_retransmitted),
                packets_sent: stats.packets_sent,
                packets_lost: stats.packets_lost,
                packets_repaired: stats.fec_symbols_recovered + stats.fec_packets_recovered,
                acks: stats.ack_frames_received,
            }),
            mtu: stats.mtu,
            model: connection.path_model(),
        })
    }
}
