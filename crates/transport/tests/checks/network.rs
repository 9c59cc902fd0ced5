//! A network between two endpoints that does whatever the program says with each datagram.

use std::{collections::BTreeMap, net::SocketAddr};

use transport::Ecn;
use units::{Duration, Instant};

/// Datagrams that are remembered to be sent again later.
const REMEMBERED: usize = 32;

/// A datagram in progress.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) to_server: bool,
    /// The sender's address, as the receiver sees it.
    pub(crate) from: SocketAddr,
    pub(crate) ecn: Option<Ecn>,
    pub(crate) payload: Vec<u8>,
}

/// Owns what is in progress.
pub(crate) struct Network {
    delay: Duration,
    /// Larger payloads are lost, in bytes.
    pub(crate) mtu: usize,
    under_way: BTreeMap<(Instant, u64), Packet>,
    sent: u64,
    remembered: Vec<Packet>,
    /// The network has not delivered each datagram once, in order and unchanged.
    pub(crate) interfered: bool,
    /// The network has changed bytes.
    pub(crate) tampered: bool,
}

impl Network {
    pub(crate) fn new(delay: Duration) -> Self {
        Self {
            delay,
            mtu: usize::MAX,
            under_way: BTreeMap::new(),
            sent: 0,
            remembered: Vec::new(),
            interfered: false,
            tampered: false,
        }
    }

    pub(crate) fn send(&mut self, now: Instant, packet: Packet) {
        self.send_late(now, Duration::ZERO, packet);
    }

    fn send_late(&mut self, now: Instant, late: Duration, packet: Packet) {
        if packet.payload.len() > self.mtu {
            self.interfered = true;
            return;
        }
        self.sent += 1;
        self.under_way.insert((now + self.delay + late, self.sent), packet);
    }

    /// Arrival of the next datagram.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    /// The datagram that arrives next.
    pub(crate) fn deliver(&mut self) -> Option<Packet> {
        let (_, packet) = self.under_way.pop_first()?;
        if self.remembered.len() == REMEMBERED {
            self.remembered.remove(0);
        }
        self.remembered.push(packet.clone());
        Some(packet)
    }

    fn pick(&self, n: usize) -> Option<(Instant, u64)> {
        self.under_way.keys().nth(n % self.under_way.len().max(1)).copied()
    }

    /// Changes one of the datagrams in progress.
    pub(crate) fn change(&mut self, n: usize, change: impl FnOnce(&mut Packet)) {
        if let Some(key) = self.pick(n) {
            change(self.under_way.get_mut(&key).expect("just found"));
        }
    }

    pub(crate) fn drop(&mut self, n: usize) {
        if let Some(key) = self.pick(n) {
            self.under_way.remove(&key);
            self.interfered = true;
        }
    }

    pub(crate) fn delay(&mut self, n: usize, by: Duration) {
        if let Some((at, number)) = self.pick(n) {
            let packet = self.under_way.remove(&(at, number)).expect("just found");
            self.under_way.insert((at + by, number), packet);
            self.interfered = true;
        }
    }

    pub(crate) fn duplicate(&mut self, now: Instant, n: usize, late: Duration) {
        if let Some(packet) = self.pick(n).map(|key| self.under_way[&key].clone()) {
            self.send_late(now, late, packet);
            self.interfered = true;
        }
    }

    /// Delivers once more what was delivered before.
    pub(crate) fn replay(&mut self, now: Instant, n: usize) {
        if let Some(packet) = self.remembered.get(n % self.remembered.len().max(1)).cloned() {
            self.send(now, packet);
            self.interfered = true;
        }
    }

    /// The beginning of a datagram in progress or delivered lately, for forgeries.
    pub(crate) fn beginning(&self, n: usize, len: usize) -> Vec<u8> {
        let packet = self.remembered.get(n % self.remembered.len().max(1));
        packet.map_or_else(Vec::new, |p| p.payload[..len.min(p.payload.len())].to_vec())
    }
}
