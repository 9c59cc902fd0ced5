//! Nodes for the tests: one that sends at a steady pace, one that answers, and one made of closures.

#![allow(dead_code, reason = "each test file uses some of them")]

use std::net::SocketAddr;

use bytes::BytesMut;
use sim::{Datagram, Node, Outbox};
use tiderace_sim as sim;
use units::{Duration, Instant};

pub(crate) enum Actor {
    Pacer(Pacer),
    Echo(Echo),
}

/// Sends `count` packets (in batches of `batch`), `gap` apart, and counts what comes back.
pub(crate) struct Pacer {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) size: usize,
    pub(crate) gap: Duration,
    pub(crate) batch: usize,
    pub(crate) count: u64,
    pub(crate) sent: u64,
    pub(crate) next: Instant,
    /// Arrivals: (when, first byte, length).
    pub(crate) received: Vec<(Instant, u8, usize)>,
    pub(crate) wanted: u64,
}

impl Pacer {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, count: u64, gap: Duration) -> Self {
        let next = Instant::ZERO;
        Self { from, to, size: 1200, gap, batch: 1, count, sent: 0, next, received: Vec::new(), wanted: 0 }
    }
}

impl Node for Pacer {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        if let Some(datagram) = datagram {
            assert_eq!(datagram.segment_size, None);
            self.received.push((now, datagram.payload.first().copied().unwrap_or(0), datagram.payload.len()));
        }
        if self.sent < self.count && now >= self.next {
            let batch = self.batch.min(usize::try_from(self.count - self.sent).unwrap());
            let mut payload = BytesMut::zeroed(self.size * batch);
            for (n, packet) in payload.chunks_mut(self.size).enumerate() {
                packet[0] = (self.sent as usize + n) as u8;
            }
            let mut datagram = Datagram::new(self.from, self.to, payload);
            datagram.segment_size = (batch > 1).then_some(self.size);
            out.send(datagram);
            self.sent += batch as u64;
            self.next = now + self.gap;
        }
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        (self.sent < self.count).then_some((self.next, "the next packet is due"))
    }
    fn finished(&self) -> bool {
        self.sent == self.count && self.received.len() as u64 >= self.wanted
    }
}

/// Sends back what it gets.
#[derive(Default)]
pub(crate) struct Echo {
    pub(crate) echoed: u64,
}

impl Node for Echo {
    fn handle(&mut self, _: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        if let Some(mut datagram) = datagram {
            std::mem::swap(&mut datagram.from, &mut datagram.to);
            self.echoed += 1;
            out.send(datagram);
        }
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        None
    }
    fn finished(&self) -> bool {
        true
    }
}

impl Node for Actor {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        match self {
            Self::Pacer(node) => node.handle(now, datagram, out),
            Self::Echo(node) => node.handle(now, datagram, out),
        }
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        match self {
            Self::Pacer(node) => node.deadline(),
            Self::Echo(node) => node.deadline(),
        }
    }
    fn finished(&self) -> bool {
        match self {
            Self::Pacer(node) => node.finished(),
            Self::Echo(node) => node.finished(),
        }
    }
}

impl Actor {
    pub(crate) fn pacer(&self) -> &Pacer {
        match self {
            Self::Pacer(pacer) => pacer,
            Self::Echo(_) => panic!("an echo"),
        }
    }
}
