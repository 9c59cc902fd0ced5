//! Traffic of a tunnel or session, counted for its line in the access log, and in the metrics at once.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use prometheus_client::metrics::counter::Counter;

use crate::metrics::{DropLabels, Metrics, TunnelCounters, TunnelKind};

/// Direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client to the target.
    Up,
    /// From the target to the client.
    Down,
}

impl Direction {
    /// The other direction.
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// Reason why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// Unknown context ID.
    UnknownContext,
    /// The next hop does not take so large a one.
    TooLarge,
    /// No room where it had to wait.
    QueueFull,
    /// The client's rate is used up.
    Rate,
    /// The system, or the connection, refused it.
    NotSent,
    /// No target for datagrams.
    NoTarget,
    /// Packet that no router forwards.
    Malformed,
    /// Source address that was not assigned to the client.
    Spoofed,
    /// Destination, or source on the way back, outside of the routes of the tunnel.
    NoRoute,
    /// Destination that the rules prohibit.
    Prohibited,
    /// Source to which the client has sent nothing, or for which it has no context ID.
    UnknownPeer,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

impl DropReason {
    /// Number of reasons.
    const COUNT: usize = 11;

    fn name(self) -> &'static str {
        match self {
            Self::UnknownContext => "unknown-context",
            Self::TooLarge => "too-large",
            Self::QueueFull => "queue-full",
            Self::Rate => "rate",
            Self::NotSent => "not-sent",
            Self::NoTarget => "no-target",
            Self::Malformed => "malformed",
            Self::Spoofed => "spoofed",
            Self::NoRoute => "no-route",
            Self::Prohibited => "prohibited",
            Self::UnknownPeer => "unknown-peer",
        }
    }

    /// Reason why a socket has not taken a datagram.
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Self::TooLarge,
            Some(libc::ENOBUFS | libc::EAGAIN) | None => Self::QueueFull,
            Some(_) => Self::NotSent,
        }
    }
}

/// Bytes and datagrams of one direction.
#[derive(Debug, Default)]
struct Count {
    bytes: AtomicU64,
    datagrams: AtomicU64,
}

/// Traffic of a tunnel. Made when the tunnel is, and counted as ended when dropped.
pub(crate) struct Traffic {
    kind: TunnelKind,
    /// The target as the client has named it.
    pub(crate) target: String,
    /// The address that is connected to.
    pub(crate) address: String,
    /// The owner of the token.
    pub(crate) user: Option<Arc<str>>,
    up: Count,
    down: Count,
    dropped: AtomicU64,
    /// Streams of a session.
    streams: AtomicU64,
    /// The end of a session in words.
    end: OnceLock<String>,
    counters: TunnelCounters,
    /// Counters of dropped datagrams by direction and reason, each found with the first datagram that it counts.
    drops: [[OnceLock<Counter>; DropReason::COUNT]; 2],
    metrics: Arc<Metrics>,
}

impl Traffic {
    pub(crate) fn new(
        kind: TunnelKind,
        target: String,
        address: String,
        user: Option<Arc<str>>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let counters = metrics.tunnels.counters(kind);
        counters.opened.inc();
        counters.open.inc();
        let (up, down, drops, end) = Default::default();
        let (dropped, streams, metrics) = (AtomicU64::new(0), AtomicU64::new(0), metrics.clone());
        Self { kind, target, address, user, up, down, dropped, streams, end, counters, drops, metrics }
    }

    fn count(&self, direction: Direction) -> &Count {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    /// Counts bytes of a stream.
    pub(crate) fn on_bytes(&self, direction: Direction, bytes: usize) {
        self.count(direction).bytes.fetch_add(bytes as u64, Relaxed);
        self.counters.bytes(direction == Direction::Up).inc_by(bytes as u64);
    }

    /// Counts a datagram.
    pub(crate) fn on_datagram(&self, direction: Direction, bytes: usize) {
        self.on_bytes(direction, bytes);
        self.count(direction).datagrams.fetch_add(1, Relaxed);
        self.counters.datagrams(direction == Direction::Up).inc();
    }

    /// Counts a datagram that was dropped.
    pub(crate) fn on_drop(&self, direction: Direction, reason: DropReason) {
        self.on_drops(direction, reason, 1);
    }

    /// Counts datagrams that were dropped.
    pub(crate) fn on_drops(&self, direction: Direction, reason: DropReason, count: u64) {
        if count > 0 {
            self.dropped.fetch_add(count, Relaxed);
            let counter = self.drops[direction as usize][reason as usize].get_or_init(|| {
                let labels = DropLabels { direction: direction.name(), reason: reason.name() };
                self.metrics.tunnels.dropped.get_or_create(&labels).clone()
            });
            counter.inc_by(count);
        }
    }

    /// Counts a stream of a session.
    pub(crate) fn on_stream(&self) {
        self.streams.fetch_add(1, Relaxed);
    }

    /// Notes the end of a session in words.
    pub(crate) fn note_end(&self, end: String) {
        let _ = self.end.set(end);
    }

    /// Streams of a session; `None` for other tunnels.
    pub(super) fn streams(&self) -> Option<u64> {
        (self.kind == TunnelKind::WebTransport).then(|| self.streams.load(Relaxed))
    }

    pub(super) fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    pub(super) fn bytes(&self, direction: Direction) -> u64 {
        self.count(direction).bytes.load(Relaxed)
    }

    /// Datagrams of a direction; `None` for a tunnel of TCP.
    pub(super) fn datagrams(&self, direction: Direction) -> Option<u64> {
        (self.kind != TunnelKind::Tcp).then(|| self.count(direction).datagrams.load(Relaxed))
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.counters.open.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_all_tunnels_are_counted_by_direction_and_reason() {
        let metrics = Arc::new(Metrics::default());
        let tunnels = [(); 2].map(|()| {
            Traffic::new(TunnelKind::Udp, "a.example:1".to_owned(), "192.0.2.1:1".to_owned(), None, &metrics)
        });
        let reasons = [
            DropReason::UnknownContext,
            DropReason::TooLarge,
            DropReason::QueueFull,
            DropReason::Rate,
            DropReason::NotSent,
            DropReason::NoTarget,
            DropReason::Malformed,
            DropReason::Spoofed,
            DropReason::NoRoute,
            DropReason::Prohibited,
            DropReason::UnknownPeer,
        ];
        for traffic in &tunnels {
            for (number, reason) in (1..).zip(reasons) {
                traffic.on_drops(Direction::Up, reason, number);
                traffic.on_drop(Direction::Down, reason);
                traffic.on_drop(Direction::Down, reason);
            }
            assert_eq!(traffic.dropped(), 66 + 22);
        }
        for (number, reason) in (1..).zip(reasons) {
            let count = |direction: Direction| {
                let labels = DropLabels { direction: direction.name(), reason: reason.name() };
                metrics.tunnels.dropped.get_or_create(&labels).get()
            };
            assert_eq!((count(Direction::Up), count(Direction::Down)), (2 * number, 4), "{reason:?}");
        }
    }
}
