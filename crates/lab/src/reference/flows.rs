//! Downloads over one bottleneck, each with its own profile, and every figure of both ends.
//!
//! The connections of a [`crate::run`] have equal settings, for the comparison of stacks. Here they may differ. This shows how flows with
//! different settings share a path, and the counters of both ends of one connection.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use netem::{LinkConfig, LinkCounters, Queue};
use sim::{Access, Datagram, Dumbbell, Ecn, Host, Node, Outbox, client_address, server_address};
use transport::{
    ClientConfig, Connection, Endpoint, EndpointConfig, Event, Handle, Profile, RetryPolicy, ServerConfig, Stats,
    congestion::PathModel,
    observe::ObserverFactory,
    streams::{Order, StreamEvent},
};
use units::{Bitrate, Duration, Instant, Probability, Seed};
use wire::{Dir, StreamId};

use super::Failed;
use crate::{
    scenario::QueueSize,
    tls::{SERVER_NAME, TLS},
};

/// One download.
#[derive(Clone, Default)]
pub struct Flow {
    /// The settings of both ends.
    pub profile: Profile,
    /// Time at which the client begins.
    pub start: Duration,
    /// Delay between the client and the bottleneck in each direction, beyond that of the plan.
    pub access: Duration,
    /// Clock of the receiver of the data. The sender's is exact.
    pub receiver_clock: Clock,
    /// Watches the sender of the data.
    pub watch_sender: Option<Arc<dyn ObserverFactory>>,
    /// Watches the receiver of the data.
    pub watch_receiver: Option<Arc<dyn ObserverFactory>>,
}

/// A clock that is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Offset at the beginning.
    pub ahead: Duration,
    /// Microseconds that it gains in each second.
    pub ppm: i32,
}

impl Clock {
    /// Shown time.
    pub fn shows(&self, truth: Instant) -> Instant {
        let nanos = (truth - Instant::ZERO).as_nanos();
        let nanos = i128::try_from(nanos).unwrap_or(i128::MAX / 2);
        let shown = nanos + nanos * i128::from(self.ppm) / 1_000_000;
        Instant::from_nanos(u64::try_from(shown).unwrap_or(0)) + self.ahead
    }

    /// The time at which it shows this, or two nanoseconds more.
    pub fn truth(&self, shown: Instant) -> Instant {
        if self.ppm == 0 {
            return shown.saturating_sub(self.ahead);
        }
        let nanos = (shown.saturating_sub(self.ahead) - Instant::ZERO).as_nanos();
        let nanos = i128::try_from(nanos).unwrap_or(i128::MAX / 2_000_000);
        let rate = 1_000_000 + i128::from(self.ppm);
        let truth = (nanos * 1_000_000).div_euclid(rate) + 2;
        Instant::from_nanos(u64::try_from(truth).unwrap_or(0))
    }
}

impl Flow {
    /// A download with this profile from the start on.
    pub fn new(profile: Profile) -> Self {
        Self { profile, ..Self::default() }
    }
}

/// The path and how long it is used.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From the servers, which send the data.
    pub down: LinkConfig,
    /// From the clients.
    pub up: LinkConfig,
    /// Time that does not count.
    pub warmup: Duration,
    /// Time that counts, after it.
    pub duration: Duration,
}

impl Plan {
    /// A bottleneck in the direction of the data, a buffer in bandwidth-delay products, and i.i.d. loss there; the return path is as fast
    /// and without loss.
    ///
    /// # Panics
    /// When the loss is no probability.
    pub fn new(rate: Bitrate, rtt: Duration, buffer: f64, loss: f64) -> Self {
        let queue = Queue::DropTail { bytes: QueueSize::Bdp(buffer).in_bytes(rate, rtt) };
        let loss = match Probability::new(loss).expect("a share of packets") {
            Probability::ZERO => netem::Loss::None,
            p => netem::Loss::Iid { p },
        };
        let up = LinkConfig { rate: Some(rate), queue, delay: rtt / 2, ..LinkConfig::default() };
        Self {
            down: LinkConfig { loss, ..up.clone() },
            up,
            warmup: Duration::from_secs(3),
            duration: Duration::from_secs(20),
        }
    }
}

/// Counters of one flow in the time that counts.
#[derive(Clone, Debug)]
pub struct FlowCounters {
    /// Bits per second that the receiving application got.
    pub goodput: f64,
    /// The sender's figures at the beginning and at the end of that time.
    pub sender: [Stats; 2],
    /// The receiver's.
    pub receiver: [Stats; 2],
    /// The sender's model of the path at the end, if its controller has one.
    pub model: Option<PathModel>,
}

impl FlowCounters {
    /// Growth of a counter of the sender.
    pub fn sent(&self, counter: impl Fn(&Stats) -> u64) -> u64 {
        counter(&self.sender[1]) - counter(&self.sender[0])
    }

    /// Growth of a counter of the receiver.
    pub fn received(&self, counter: impl Fn(&Stats) -> u64) -> u64 {
        counter(&self.receiver[1]) - counter(&self.receiver[0])
    }
}

/// Outcome of the time that counts.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The flows, in their order.
    pub flows: Vec<FlowCounters>,
    /// Mean time that a packet waited at the bottleneck.
    pub queueing: Duration,
    /// Median and 95th percentile of that time.
    pub queueing_quantiles: [Duration; 2],
    /// The bottleneck from the start of the run on.
    pub link: LinkCounters,
}

/// Runs the flows.
///
/// # Errors
/// When the path contradicts itself, or a connection ends.
pub fn run(plan: &Plan, flows: &[Flow], seed: u64) -> Result<Outcome, Failed> {
    let failed = |error: &dyn core::fmt::Display| Failed(format!("seed {seed}: {error}"));
    let seed = Seed::from_number(seed);
    let mut ends = Vec::new();
    for (index, flow) in (0_u16..).zip(flows) {
        ends.push((flow, End::client(flow, index, seed)?, End::server(flow, index, seed)?));
    }
    // As in `run`: several flows on a deterministic queue would move in step.
    let jitter = match (plan.down.rate, flows.len()) {
        (Some(rate), 2..) => rate.time_for(units::DataSize::from_bytes(1_500)) / 2,
        _ => Duration::ZERO,
    };
    let host = |node: End, start, delay| Host {
        name: node.local.to_string(),
        node,
        access: Access { delay, jitter },
        start: Instant::ZERO + start,
    };
    let (clients, servers): (Vec<_>, Vec<_>) = ends
        .into_iter()
        .map(|(flow, client, server)| {
            (host(client, flow.start, flow.access), host(server, Duration::ZERO, Duration::ZERO))
        })
        .unzip();
    let dumbbell = Dumbbell { up: plan.up.clone(), down: plan.down.clone(), start_jitter: Duration::ZERO, nat: None };
    let mut sim = dumbbell.build(seed.child("network", 0), clients, servers).map_err(|error| failed(&error))?;

    let begin = Instant::ZERO + plan.warmup;
    let _ = sim.run_until(begin).map_err(|error| failed(&error))?;
    let read = |sim: &sim::Simulation<End>| -> Vec<(u64, Stats)> { sim.nodes().map(End::read_out).collect() };
    let before = read(&sim);
    sim.network_mut().link_mut(Dumbbell::DOWN).take_queueing();
    let _ = sim.run_until(begin + plan.duration).map_err(|error| failed(&error))?;
    let after = read(&sim);
    if let Some(reason) = sim.nodes().find_map(|end| end.ended.as_ref()) {
        return Err(failed(reason));
    }
    let models: Vec<Option<PathModel>> = sim.nodes().map(End::model).collect();
    let queueing = sim.network_mut().link_mut(Dumbbell::DOWN).take_queueing();
    let told = |index: usize| {
        let (client, server) = (index, flows.len() + index);
        #[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 bytes")]
        let goodput = (after[client].0 - before[client].0) as f64 * 8.0 / plan.duration.as_secs_f64();
        FlowCounters {
            goodput,
            sender: [before[server].1, after[server].1],
            receiver: [before[client].1, after[client].1],
            model: models[server],
        }
    };
    Ok(Outcome {
        flows: (0..flows.len()).map(told).collect(),
        queueing: Duration::from_secs_f64(queueing.mean().unwrap_or(0.0) / 1e9),
        queueing_quantiles: [0.5, 0.95].map(|q| queueing.quantile_duration(q).unwrap_or(Duration::ZERO)),
        link: *sim.counters(Dumbbell::DOWN),
    })
}

/// One end of one connection.
struct End {
    endpoint: Endpoint,
    client: bool,
    /// A client's settings until it begins.
    connect: Option<ClientConfig>,
    handle: Option<Handle>,
    local: core::net::SocketAddr,
    remote: core::net::SocketAddr,
    clock: Clock,
    buffer: Vec<u8>,
    stream: Option<StreamId>,
    read: u64,
    ended: Option<String>,
    /// Of a connection that is gone.
    last: Stats,
}

/// Content that servers send.
static ZEROS: [u8; 65_536] = [0; 65_536];

impl End {
    fn new(local: core::net::SocketAddr, remote: core::net::SocketAddr, endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            client: false,
            connect: None,
            handle: None,
            local,
            remote,
            clock: Clock::default(),
            buffer: vec![0; 64 * 1024],
            stream: None,
            read: 0,
            ended: None,
            last: Stats::default(),
        }
    }

    fn client(flow: &Flow, index: u16, seed: Seed) -> Result<Self, Failed> {
        let (tls, _) = TLS.as_ref().map_err(|error| Failed(format!("TLS: {error}")))?;
        let endpoint = Endpoint::new(EndpointConfig::from_seed(seed.child("client", index.into())), None);
        let config = ClientConfig::new(Arc::clone(tls), Arc::new(flow.profile.clone()));
        Ok(Self {
            client: true,
            connect: Some(ClientConfig { observe: flow.watch_receiver.clone(), ..config }),
            clock: flow.receiver_clock,
            ..Self::new(client_address(index), server_address(index), endpoint)
        })
    }

    fn server(flow: &Flow, index: u16, seed: Seed) -> Result<Self, Failed> {
        let (_, tls) = TLS.as_ref().map_err(|error| Failed(format!("TLS: {error}")))?;
        let config = ServerConfig::new(Arc::clone(tls), Arc::new(flow.profile.clone()));
        let config = ServerConfig { retry: RetryPolicy::Never, observe: flow.watch_sender.clone(), ..config };
        let endpoint =
            Endpoint::new(EndpointConfig::from_seed(seed.child("server", index.into())), Some(Arc::new(config)));
        Ok(Self::new(server_address(index), client_address(index), endpoint))
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        self.endpoint.connection_mut(self.handle?)
    }

    /// Bytes that the application got, and the figures of the connection.
    fn read_out(&self) -> (u64, Stats) {
        let connection = self.handle.and_then(|handle| self.endpoint.connection(handle));
        (self.read, connection.map_or(self.last, Connection::stats))
    }

    fn model(&self) -> Option<PathModel> {
        self.handle.and_then(|handle| self.endpoint.connection(handle))?.path_model()
    }

    fn on_event(&mut self, event: Event) {
        match event {
            // The client asks with a byte, so that the server knows the stream.
            Event::Connected if self.client => {
                let Some(connection) = self.connection() else { return };
                let stream = connection.open(Dir::Bi);
                if let Some(id) = stream {
                    let _ = connection.write(id, &mut Bytes::from_static(&ZEROS[..1]));
                }
                self.stream = stream;
            }
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                self.stream = self.connection().and_then(|connection| connection.accept(Dir::Bi)).or(self.stream);
            }
            Event::Closed(reason) => self.ended = Some(reason.to_string()),
            _ => {}
        }
    }

    /// Writes and reads as much as goes.
    fn transfer(&mut self) {
        let client = self.client;
        let Some(id) = self.stream else { return };
        let mut read = 0;
        let Some(connection) = self.connection() else { return };
        if client {
            while let Ok(Some(chunk)) = connection.read(id, usize::MAX, Order::Ordered) {
                read += chunk.data.len() as u64;
            }
        } else {
            while connection.write(id, &mut Bytes::from_static(&ZEROS)).is_ok() {}
        }
        self.read += read;
    }
}

impl Node for End {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        let now = self.clock.shows(now);
        if let Some(config) = self.connect.take() {
            match self.endpoint.connect(now, &config, self.remote, SERVER_NAME) {
                Ok(handle) => self.handle = Some(handle),
                Err(error) => self.ended = Some(error.to_string()),
            }
        }
        if let Some(Datagram { from, to, ecn, payload, .. }) = datagram {
            let ecn = match ecn {
                Ecn::NotEct => None,
                Ecn::Ect0 => Some(transport::Ecn::Ect0),
                Ecn::Ect1 => Some(transport::Ecn::Ect1),
                Ecn::Ce => Some(transport::Ecn::Ce),
            };
            let segment_size = payload.len();
            let (remote, local) = (from, Some(to.ip()));
            self.endpoint.handle_datagram(
                now,
                transport::Datagram { remote, local, ecn, received_at: now, segment_size, payload },
            );
        }
        self.last = self.read_out().1;
        self.endpoint.handle_timeout(now);
        loop {
            while let Some(handle) = self.endpoint.poll_accept() {
                self.handle = self.handle.or(Some(handle));
            }
            let mut idle = true;
            while let Some((_, event)) = self.endpoint.poll_event() {
                self.on_event(event);
                idle = false;
            }
            self.transfer();
            while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) {
                let payload = BytesMut::from(&self.buffer[..transmit.len]);
                let segment_size = (transmit.segment_size < transmit.len).then_some(transmit.segment_size);
                let ecn = match transmit.ecn {
                    None => Ecn::NotEct,
                    Some(transport::Ecn::Ect0) => Ecn::Ect0,
                    Some(transport::Ecn::Ect1) => Ecn::Ect1,
                    Some(transport::Ecn::Ce) => Ecn::Ce,
                };
                out.send(Datagram { ecn, segment_size, ..Datagram::new(self.local, transmit.remote, payload) });
            }
            if idle {
                return;
            }
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let (at, _, timer) = self.endpoint.poll_timeout()?;
        Some((self.clock.truth(at), timer.name()))
    }

    fn finished(&self) -> bool {
        false
    }
}
