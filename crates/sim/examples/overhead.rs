//! Cost of a packet in the simulator and the link model, without any transport: ten pairs of nodes that only send and
//! count, over a dumbbell with loss and jitter.
//!
//! `cargo run --release -p tiderace-sim --example overhead`

use std::net::SocketAddr;

use bytes::BytesMut;
use netem::{LinkConfig, Loss, Queue};
use sim::{Access, Datagram, Dumbbell, Host, Node, Outbox, client_address, server_address};
use tiderace_sim as sim;
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

/// Sends batches of ten packets at a steady pace; the other kind answers each batch-worth with one small packet.
enum Peer {
    Source { from: SocketAddr, to: SocketAddr, next: Instant, until: Instant },
    Sink { received: u64 },
}

const SEGMENT: usize = 1200;

impl Node for Peer {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        match self {
            Self::Source { from, to, next, until } => {
                if now >= *next && now < *until {
                    let mut batch = Datagram::new(*from, *to, BytesMut::zeroed(10 * SEGMENT));
                    batch.segment_size = Some(SEGMENT);
                    out.send(batch);
                    // Ten flows of 2 Mbit/s: 96 kbit in 48 ms.
                    *next = now + Duration::from_millis(48);
                }
            }
            Self::Sink { received } => {
                *received += 1;
                if let Some(datagram) = datagram
                    && *received % 2 == 0
                {
                    let Datagram { from, to, mut payload, .. } = datagram;
                    payload.truncate(30);
                    out.send(Datagram::new(to, from, payload));
                }
            }
        }
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        match self {
            Self::Source { next, until, .. } => (next < until).then_some((*next, "the next batch is due")),
            Self::Sink { .. } => None,
        }
    }
    fn finished(&self) -> bool {
        matches!(self, Self::Source { next, until, .. } if next >= until)
    }
}

/// Nanoseconds that this process has spent on a processor, so that other programs do not count. Linux only.
fn cpu_time() -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("no figure")?.parse()?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SECONDS: u32 = 2000;
    let link = LinkConfig {
        rate: Some(Bitrate::from_mbps(20)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(125_000) },
        delay: Duration::from_millis(25),
        jitter: Duration::from_millis(2),
        loss: Loss::Burst { mean: Probability::new(0.01)?, length: 3.0 },
        ..LinkConfig::default()
    };
    let dumbbell = Dumbbell { up: link.clone(), down: link, start_jitter: Duration::from_millis(48), nat: None };
    let access = Access { delay: Duration::ZERO, jitter: Duration::from_micros(300) };
    let until = Instant::ZERO + Duration::from_secs(1) * SECONDS;
    let clients = (0..10).map(|n| Host {
        access,
        ..Host::new(
            format!("source {n}"),
            Peer::Source { from: client_address(n), to: server_address(n), next: Instant::ZERO, until },
        )
    });
    let servers = (0..10).map(|n| Host::new(format!("sink {n}"), Peer::Sink { received: 0 }));
    let mut simulation = dumbbell.build(Seed::from_number(1), clients, servers)?;
    let before = cpu_time()?;
    let _ = simulation.run_until(until)?;
    let elapsed = cpu_time()? - before;
    let packets = simulation.trace().packets();
    println!("{packets} packets, {} events, {SECONDS} virtual seconds", simulation.events());
    println!("{} ns of processor time per packet", elapsed / packets);
    println!("{} virtual seconds per second", u64::from(SECONDS) * 1_000_000_000 / elapsed);
    println!("trace {}", simulation.trace().hash());
    Ok(())
}
