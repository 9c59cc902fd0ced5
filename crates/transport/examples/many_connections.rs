//! Cost of a packet at a server that also holds many idle connections, beside one that holds none: nanoseconds per packet sent
//! or received, medians of interleaved rounds.
//!
//! `cargo run --profile dist -p tiderace-transport --example many_connections`
//!
//! One connection sends 8 MiB in each round; datagrams are carried by hand, in batches as a socket with GSO and GRO would
//! carry them. Only the server's calls are timed. The server looks at its deadlines after every batch, as a driver does.

#![expect(clippy::disallowed_methods, reason = "a measurement of real time needs a clock")]

use std::{net::SocketAddr, sync::Arc};

use bytes::{Bytes, BytesMut};
use transport::{
    ClientConfig, Datagram, Endpoint, EndpointConfig, Event, Handle, Profile, RetryPolicy, ServerConfig, Transmit,
    streams::Order, tls::testing::Toy,
};
use units::{Duration, Instant, Seed};
use wire::{Dir, StreamId};

const IDLE: u16 = 10_000;
const ROUNDS: usize = 21;
const ROUND_BYTES: usize = 8 << 20;

fn server_address() -> SocketAddr {
    ([192, 0, 2, 1], 443).into()
}

fn client_address(port: u16) -> SocketAddr {
    ([192, 0, 2, 2], port).into()
}

/// A server, its idle clients, and one client that receives.
struct Bench {
    now: Instant,
    server: Endpoint,
    client: Endpoint,
    /// The connection that is busy, at both ends, and its stream.
    served: Handle,
    receiving: Handle,
    stream: StreamId,
    buffer: Vec<u8>,
    /// Seconds in calls of the server.
    spent: f64,
}

impl Bench {
    fn new(idle: u16) -> Self {
        let profile = Profile { idle_timeout: Duration::from_secs(86_400), ..Profile::default() };
        let tls = Arc::new(Toy::default());
        let config =
            ServerConfig { retry: RetryPolicy::Never, ..ServerConfig::new(tls.clone(), Arc::new(profile.clone())) };
        let seed = Seed::from_number(idle.into());
        let server = Endpoint::new(EndpointConfig::from_seed(seed.child("server", 0)), Some(Arc::new(config)));
        let mut bench = Self {
            now: Instant::ZERO,
            server,
            client: Endpoint::new(EndpointConfig::from_seed(seed.child("client", 0)), None),
            served: handle_of_nobody(),
            receiving: handle_of_nobody(),
            stream: StreamId(0),
            buffer: vec![0; 65_507],
            spent: 0.0,
        };
        let config = ClientConfig::new(tls, Arc::new(profile));
        let mut others = Endpoint::new(EndpointConfig::from_seed(seed.child("others", 0)), None);
        for port in 0..idle {
            others.connect(bench.now, &config, server_address(), "server.test").expect("the name is good");
            std::mem::swap(&mut others, &mut bench.client);
            bench.settle(port);
            std::mem::swap(&mut others, &mut bench.client);
            while bench.server.poll_event().is_some() || bench.server.poll_accept().is_some() {}
        }
        bench.receiving =
            bench.client.connect(bench.now, &config, server_address(), "server.test").expect("the name is good");
        bench.settle(u16::MAX);
        bench.served = std::iter::from_fn(|| bench.server.poll_event())
            .find_map(|(handle, event)| (event == Event::Connected).then_some(handle))
            .expect("the handshake is complete");
        let connection = bench.server.connection_mut(bench.served).expect("it is open");
        bench.stream = connection.open(Dir::Uni).expect("the client permits streams");
        bench
    }

    /// Half a second in which all that wants to be sent is carried.
    fn settle(&mut self, port: u16) {
        for _ in 0..50 {
            self.exchange(port);
            self.now += Duration::from_millis(10);
        }
    }

    /// Carries what the two ends have to say, once.
    fn exchange(&mut self, port: u16) -> bool {
        let mut any = false;
        let start = std::time::Instant::now();
        self.server.handle_timeout(self.now);
        self.spent += start.elapsed().as_secs_f64();
        self.client.handle_timeout(self.now);
        for _ in 0..16 {
            let start = std::time::Instant::now();
            let transmit = self.server.poll_transmit(self.now, &mut self.buffer);
            std::hint::black_box(self.server.poll_timeout());
            self.spent += start.elapsed().as_secs_f64();
            let Some(transmit) = transmit else { break };
            any = true;
            self.client.handle_datagram(self.now, self.datagram(&transmit, server_address()));
        }
        while let Some(transmit) = self.client.poll_transmit(self.now, &mut self.buffer) {
            any = true;
            let datagram = self.datagram(&transmit, client_address(port));
            let start = std::time::Instant::now();
            self.server.handle_datagram(self.now, datagram);
            self.spent += start.elapsed().as_secs_f64();
        }
        any
    }

    fn datagram(&self, transmit: &Transmit, from: SocketAddr) -> Datagram {
        Datagram {
            remote: from,
            local: None,
            ecn: transmit.ecn,
            received_at: self.now,
            segment_size: transmit.segment_size,
            payload: BytesMut::from(&self.buffer[..transmit.len]),
        }
    }

    /// Sends a round's bytes; returns nanoseconds per packet.
    fn round(&mut self) -> f64 {
        let packets = |bench: &Self| {
            let stats = bench.server.connection(bench.served).expect("it is open").stats();
            stats.datagrams_sent + stats.datagrams_received
        };
        let (before, spent) = (packets(self), self.spent);
        let mut left = Bytes::from(vec![7; ROUND_BYTES]);
        let mut received = 0;
        while received < ROUND_BYTES {
            let start = std::time::Instant::now();
            let connection = self.server.connection_mut(self.served).expect("it is open");
            while !left.is_empty() && connection.write(self.stream, &mut left).is_ok() {}
            self.spent += start.elapsed().as_secs_f64();
            self.exchange(u16::MAX);
            while self.server.poll_event().is_some() {}
            while self.client.poll_event().is_some() {}
            let connection = self.client.connection_mut(self.receiving).expect("it is open");
            while connection.accept(Dir::Uni).is_some() {}
            while let Ok(Some(chunk)) = connection.read(self.stream, usize::MAX, Order::Ordered) {
                received += chunk.data.len();
            }
            self.now += Duration::from_micros(100);
        }
        (self.spent - spent) * 1e9 / (packets(self) - before) as f64
    }
}

/// Stands in until there is a connection.
fn handle_of_nobody() -> Handle {
    let mut endpoint = Endpoint::new(EndpointConfig::from_seed(Seed::from_number(0)), None);
    let config = ClientConfig::new(Arc::new(Toy::default()), Arc::new(Profile::default()));
    endpoint.connect(Instant::ZERO, &config, server_address(), "nobody.test").expect("the name is good")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut benches = [0, IDLE].map(Bench::new);
    let mut costs = [const { Vec::new() }; 2];
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let [alone, beside] = &mut benches;
        let pair = [alone.round(), beside.round()];
        // The first round warms up.
        if round > 0 {
            costs.iter_mut().zip(pair).for_each(|(list, cost)| list.push(cost));
            ratios.push(pair[1] / pair[0]);
        }
    }
    let [mut alone, mut beside] = costs;
    println!(
        "ns per packet: {:.0} alone, {:.0} beside {IDLE} idle connections; median ratio {:.3} over {ROUNDS} rounds of {} MiB",
        median(&mut alone),
        median(&mut beside),
        median(&mut ratios),
        ROUND_BYTES >> 20,
    );
}
