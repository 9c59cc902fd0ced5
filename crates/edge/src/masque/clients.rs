//! Clients of proxies and sessions: number of tunnels, rate of new ones, bytes sent. Outlives reloads.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Largest number of remembered clients. Beyond it, a client without a tunnel that was idle for a second is evicted; without one, no
/// unknown client is admitted.
const MAX_KNOWN: usize = 65_536;

/// Time after which a client's buckets are full again.
const IDLE: Duration = Duration::from_secs(1);

/// Identity of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientKey {
    /// An IPv4 address, or a /64 of IPv6.
    Address(u128),
    /// The owner of a token.
    Token(Arc<str>),
}

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    /// Tunnels at a time of all clients together.
    pub(crate) total: usize,
    /// Tunnels at a time.
    pub(crate) tunnels: usize,
    /// Tunnels opened per second.
    pub(crate) opened_per_second: u32,
    /// Bytes per second, both directions together.
    pub(crate) bytes_per_second: Option<u64>,
}

/// Limit that refuses a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All clients together have too many.
    Total,
    /// The client has too many.
    Tunnels,
    /// The client opens them too fast.
    Rate,
}

/// Token bucket with a refill rate and the tokens of one second.
#[derive(Debug)]
struct Bucket {
    /// Spent, and not back yet.
    spent: f64,
    since: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { spent: 0.0, since: now }
    }

    fn settle(&mut self, per_second: f64, now: Instant) {
        let back = now.saturating_duration_since(self.since).as_secs_f64() * per_second;
        self.spent = (self.spent - back).max(0.0);
        self.since = now;
    }

    /// Takes `amount` tokens, if available.
    fn take(&mut self, amount: f64, per_second: f64, now: Instant) -> bool {
        self.settle(per_second, now);
        let fits = self.spent + amount <= per_second;
        if fits {
            self.spent += amount;
        }
        fits
    }

    /// Takes `amount` in any case. Returns the time until the bucket is out of debt.
    fn take_late(&mut self, amount: f64, per_second: f64, now: Instant) -> Duration {
        self.settle(per_second, now);
        self.spent += amount;
        Duration::from_secs_f64(((self.spent - per_second) / per_second).max(0.0))
    }
}

#[derive(Debug)]
struct Client {
    tunnels: usize,
    opened: Bucket,
    bytes: Arc<Mutex<Bucket>>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<ClientKey, Client>,
    total: usize,
    /// Time of the last eviction: it costs time proportional to the number of clients.
    pruned: Option<Instant>,
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients(Mutex<State>);

/// A tunnel of a client, released when this is dropped.
#[derive(Debug)]
pub(crate) struct TunnelPlace {
    clients: Arc<Clients>,
    key: ClientKey,
    opened_per_second: u32,
    bytes: Option<(Arc<Mutex<Bucket>>, f64)>,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tunnel for a client.
    pub(crate) fn enter(
        self: &Arc<Self>,
        key: ClientKey,
        limits: ClientLimits,
        now: Instant,
    ) -> Result<TunnelPlace, NoPlace> {
        let mut state = self.lock();
        if state.known.len() >= MAX_KNOWN && !state.known.contains_key(&key) {
            if state.pruned.is_none_or(|pruned| now >= pruned + IDLE) {
                state.pruned = Some(now);
                state.known.retain(|_, client| client.tunnels > 0 || client.opened.since + IDLE > now);
            }
            if state.known.len() >= MAX_KNOWN {
                return Err(NoPlace::Total);
            }
        }
        let total = state.total;
        let client = state.known.entry(key.clone()).or_insert_with(|| Client {
            tunnels: 0,
            opened: Bucket::new(now),
            bytes: Arc::new(Mutex::new(Bucket::new(now))),
        });
        // First, so that whoever is refused pays for it, too.
        if !client.opened.take(1.0, f64::from(limits.opened_per_second), now) {
            return Err(NoPlace::Rate);
        }
        if client.tunnels >= limits.tunnels {
            return Err(NoPlace::Tunnels);
        }
        if total >= limits.total {
            return Err(NoPlace::Total);
        }
        client.tunnels += 1;
        let bytes = limits.bytes_per_second.map(|rate| (client.bytes.clone(), rate as f64));
        state.total += 1;
        Ok(TunnelPlace { clients: self.clone(), key, opened_per_second: limits.opened_per_second, bytes })
    }
}

impl TunnelPlace {
    /// Returns whether a tunnel may send to another peer: in the rate at which the client may open tunnels, of which it counts as one.
    pub(super) fn may_add_peer(&self) -> bool {
        let mut state = self.clients.lock();
        let rate = f64::from(self.opened_per_second);
        // A client with a tunnel is known.
        state.known.get_mut(&self.key).is_some_and(|client| client.opened.take(1.0, rate, Instant::now()))
    }

    /// Returns whether a datagram of `bytes` is within the client's rate.
    pub(super) fn may_carry(&self, bytes: usize) -> bool {
        let Some((bucket, rate)) = &self.bytes else { return true };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(bytes as f64, *rate, Instant::now())
    }

    /// Waits until `bytes` of a stream, which were read already, are within the client's rate.
    pub(super) async fn pace(&self, bytes: usize) {
        let Some((bucket, rate)) = &self.bytes else { return };
        let delay = {
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take_late(bytes as f64, *rate, Instant::now())
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

impl Drop for TunnelPlace {
    fn drop(&mut self) {
        let mut state = self.clients.lock();
        state.total -= 1;
        if let Some(client) = state.known.get_mut(&self.key) {
            client.tunnels -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ClientLimits =
        ClientLimits { total: 100, tunnels: 10, opened_per_second: 30, bytes_per_second: Some(1_000) };

    fn key(number: u128) -> ClientKey {
        ClientKey::Address(number)
    }

    #[test]
    fn a_client_with_a_million_tunnels_gets_ten_and_others_get_theirs() {
        let (clients, now) = (Arc::new(Clients::default()), Instant::now());
        let mut places = Vec::new();
        let mut refused = HashMap::new();
        for number in 0..1_000_000_u32 {
            // All within ten seconds.
            let now = now + Duration::from_micros(10) * number;
            match clients.enter(key(1), LIMITS, now) {
                Ok(place) => places.push(place),
                Err(reason) => *refused.entry(format!("{reason:?}")).or_insert(0_u32) += 1,
            }
        }
        assert_eq!(places.len(), 10);
        assert_eq!(refused["Tunnels"] + refused["Rate"], 999_990);
        // Those of one second at once, and then ten seconds' worth.
        assert!((300..=330).contains(&(refused["Tunnels"] + 10)), "{refused:?}");
        assert!(clients.enter(key(2), LIMITS, now).is_ok(), "others are not refused");
        let token = ClientKey::Token("alice".into());
        assert!(clients.enter(token, LIMITS, now).is_ok());
        drop(places);
        let later = now + Duration::from_secs(20);
        assert!(clients.enter(key(1), LIMITS, later).is_ok(), "what is over counts no more");
        assert_eq!(clients.lock().total, 0);
    }

    #[test]
    fn all_together_and_all_that_are_remembered_are_bounded() {
        let (clients, now) = (Arc::new(Clients::default()), Instant::now());
        let places: Vec<_> = (0..100).map(|number| clients.enter(key(number), LIMITS, now).unwrap()).collect();
        assert_eq!(clients.enter(key(100), LIMITS, now).unwrap_err(), NoPlace::Total);
        for number in 0..200_000 {
            let _ = clients.enter(key(number), LIMITS, now);
        }
        assert!(clients.lock().known.len() <= MAX_KNOWN);
        // When the others have been idle, who is new finds a place again; who has a tunnel is not forgotten.
        drop(places);
        let later = now + Duration::from_secs(2);
        let _place = clients.enter(key(7), LIMITS, later).unwrap();
        assert!(clients.enter(key(1_000_000), LIMITS, later).is_ok());
        assert!(clients.lock().known.contains_key(&key(7)));
        assert!(clients.lock().known.len() < MAX_KNOWN);
    }

    #[tokio::test(start_paused = true)]
    async fn peers_of_a_tunnel_count_as_tunnels_that_are_opened() {
        let clients = Arc::new(Clients::default());
        let places = [(); 2].map(|()| clients.enter(key(1), LIMITS, Instant::now()).unwrap());
        let added = (0..1_000).filter(|number| places[number % 2].may_add_peer()).count();
        assert_eq!(added, 28, "30 a second, of which two are tunnels");
        assert_eq!(clients.enter(key(1), LIMITS, Instant::now()).unwrap_err(), NoPlace::Rate);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(places[0].may_add_peer());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_s_tunnels_share_its_rate() {
        let clients = Arc::new(Clients::default());
        let [a, b] = [0, 1].map(|_| clients.enter(key(1), LIMITS, Instant::now()).unwrap());
        assert!(a.may_carry(600) && !b.may_carry(600) && b.may_carry(400) && !a.may_carry(1));
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(a.may_carry(500) && !b.may_carry(1));
        // A stream waits.
        b.pace(2_000).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(2_500));
        let unlimited = ClientLimits { bytes_per_second: None, ..LIMITS };
        let free = clients.enter(key(2), unlimited, Instant::now()).unwrap();
        assert!(free.may_carry(1 << 30));
    }
}
