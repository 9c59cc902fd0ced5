//! Limits of a serving end: concurrent sessions, and bytes per hour, for each client and in total. Pure: time is an argument.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::probe::protocol::Refusal;

/// Time over which bytes are counted.
const WINDOW: Duration = Duration::from_secs(3_600);
/// Clients whose bytes are remembered. More within an hour are refused: forgetting one would let it begin anew.
const CLIENTS_MAX: usize = 16_384;
/// Smallest useful grant.
const LEAST: u64 = 100_000;

/// The limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Sessions at a time.
    pub(super) sessions: usize,
    /// Bytes an hour for an address, both directions together.
    pub(super) client: u64,
    /// Bytes an hour for all.
    pub(super) total: u64,
}

/// Bytes within a window.
#[derive(Clone, Copy, Debug)]
struct Spent {
    since: Instant,
    bytes: u64,
}

/// Byte budget of all sessions. A session reserves its bytes at its start and returns the unused ones.
#[derive(Debug)]
pub(super) struct Ledger {
    limits: Limits,
    sessions: usize,
    clients: HashMap<IpAddr, Spent>,
    total: Spent,
}

impl Ledger {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        Self { limits, sessions: 0, clients: HashMap::new(), total: Spent { since: now, bytes: 0 } }
    }

    /// Begins a session; returns the bytes that it may use.
    pub(super) fn begin(&mut self, client: IpAddr, now: Instant) -> Result<u64, Refusal> {
        if self.sessions >= self.limits.sessions {
            return Err(Refusal::Busy);
        }
        let is_over = |spent: &Spent| now.saturating_duration_since(spent.since) >= WINDOW;
        if is_over(&self.total) {
            self.total = Spent { since: now, bytes: 0 };
        }
        if self.clients.len() >= CLIENTS_MAX {
            self.clients.retain(|_, spent| !is_over(spent));
        }
        let client = network(client);
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&client) {
            return Err(Refusal::Total);
        }
        let total = self.limits.total.saturating_sub(self.total.bytes);
        if total < LEAST {
            return Err(Refusal::Total);
        }
        let spent = self.clients.entry(client).or_insert(Spent { since: now, bytes: 0 });
        if is_over(spent) {
            *spent = Spent { since: now, bytes: 0 };
        }
        let grant = self.limits.client.saturating_sub(spent.bytes).min(total);
        if grant < LEAST {
            return Err(Refusal::Client);
        }
        spent.bytes += grant;
        self.total.bytes += grant;
        self.sessions += 1;
        Ok(grant)
    }

    /// Ends a session and returns its unused bytes.
    pub(super) fn end(&mut self, client: IpAddr, left: u64) {
        self.sessions = self.sessions.saturating_sub(1);
        self.total.bytes = self.total.bytes.saturating_sub(left);
        if let Some(spent) = self.clients.get_mut(&network(client)) {
            spent.bytes = spent.bytes.saturating_sub(left);
        }
    }
}

/// The client that an address belongs to: a network of IPv6 has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = address.to_bits() >> 64 << 64;
            std::net::Ipv6Addr::from_bits(bits).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { sessions: 2, client: 1_000_000, total: 1_500_000 };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn sessions_are_few_and_end() {
        let now = Instant::now();
        let mut ledger = Ledger::new(Limits { total: u64::MAX, ..LIMITS }, now);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        assert_eq!([ledger.begin(a, now), ledger.begin(b, now)], [Ok(1_000_000); 2]);
        assert_eq!(ledger.begin(c, now), Err(Refusal::Busy));
        ledger.end(a, 0);
        assert_eq!(ledger.begin(c, now), Ok(1_000_000));
    }

    #[test]
    fn a_client_and_all_together_have_an_hour() {
        let now = Instant::now();
        let mut ledger = Ledger::new(LIMITS, now);
        let [a, b] = ["2001:db8::1", "10.0.0.2"].map(ip);
        assert_eq!(ledger.begin(a, now), Ok(1_000_000));
        ledger.end(a, 300_000);
        // The neighbour in its network is the same client.
        assert_eq!(ledger.begin(ip("2001:db8::ffff:1"), now), Ok(300_000));
        ledger.end(a, 0);
        assert_eq!(ledger.begin(a, now), Err(Refusal::Client));
        assert_eq!(ledger.begin(b, now), Ok(500_000));
        ledger.end(b, 0);
        assert_eq!(ledger.begin(b, now), Err(Refusal::Total));
        let later = now + WINDOW;
        assert_eq!(ledger.begin(a, later), Ok(1_000_000));
    }

    #[test]
    fn clients_are_bounded() {
        let now = Instant::now();
        let mut ledger = Ledger::new(Limits { sessions: usize::MAX, client: LEAST, total: u64::MAX }, now);
        for number in 0..CLIENTS_MAX {
            let address = std::net::Ipv4Addr::from_bits(u32::try_from(number).unwrap());
            assert_eq!(ledger.begin(address.into(), now), Ok(LEAST));
        }
        assert_eq!(ledger.begin(ip("192.0.2.1"), now), Err(Refusal::Total));
        assert_eq!(ledger.begin(ip("192.0.2.1"), now + WINDOW), Ok(LEAST));
    }
}
