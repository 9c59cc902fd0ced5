//! Request rates of clients: a rate with a burst for each, in a table of bounded size that is charged to the process.
//!
//! The state of a client is one number, the theoretical arrival time of GCRA (ITU-T I.371): the time at which all its requests would have
//! arrived at the permitted rate. A client outside of the table has sent no recent requests, so an evicted client gains one burst at most.

use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tiderace::{ProcessBudget, transport::memory::ProcessCharge};

use crate::{admission::key, config, fallback::memory::Generations};

/// Parts of the table, each with its lock.
const PARTS: usize = 16;
/// Clients in each of the two generations of a part.
// What fits into a table of 4,096 places.
const GENERATION: usize = 3_584;

/// The requests that a limit counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RateKey {
    /// Requests to all routes.
    All,
    /// Requests to one route, by its name.
    Route(String),
    /// Verifications of passwords for a route.
    Passwords(String),
}

impl RateKey {
    /// The label in metrics.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Route(route) => route.clone(),
            Self::Passwords(route) => format!("passwords of {route}"),
        }
    }
}

/// A limit for the requests of each client.
#[derive(Debug)]
pub(crate) struct RateLimit {
    config: config::RateLimit,
    /// Nanoseconds between two requests at the permitted rate.
    interval: u64,
    /// Nanoseconds by which requests may come earlier than that.
    tolerance: u64,
    since: Instant,
    /// Random assignment of clients to parts: an attacker cannot fill the part of another client.
    hasher: RandomState,
    parts: Vec<Mutex<Part>>,
}

#[derive(Debug)]
struct Part {
    clients: Generations<u64>,
    charge: ProcessCharge,
}

impl RateLimit {
    /// `budget` is charged for the table.
    pub(crate) fn new(config: &config::RateLimit, budget: &ProcessBudget) -> Self {
        // The configuration was checked: neither is 0.
        let interval = 1e9 / config.requests_per_second;
        let part = || Mutex::new(Part { clients: Generations::new(GENERATION), charge: budget.charge(0) });
        Self {
            config: config.clone(),
            interval: interval as u64,
            tolerance: (interval * f64::from(config.burst)) as u64,
            since: Instant::now(),
            hasher: RandomState::new(),
            parts: (0..PARTS).map(|_| part()).collect(),
        }
    }

    /// Returns whether the limit is that of `config`.
    pub(crate) fn is_for(&self, config: &config::RateLimit) -> bool {
        self.config == *config
    }

    fn part(&self, client: u128) -> MutexGuard<'_, Part> {
        let number = self.hasher.hash_one(client) as usize % PARTS;
        self.parts[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arrival time of a client's next request, or the time that it has to wait.
    fn next(&self, part: &Part, client: u128, now: Instant) -> Result<u64, Duration> {
        let now = u64::try_from(now.saturating_duration_since(self.since).as_nanos()).unwrap_or(u64::MAX);
        let next = part.clients.get(client).unwrap_or(0).max(now).saturating_add(self.interval);
        match next.saturating_sub(now).checked_sub(self.tolerance) {
            Some(early @ 1..) => Err(Duration::from_nanos(early)),
            _ => Ok(next),
        }
    }

    /// Takes a request of a client, whose address is validated.
    ///
    /// # Errors
    /// With the time after which there is one again.
    pub(crate) fn take(&self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let client = key(client);
        let mut part = self.part(client);
        let next = self.next(&part, client, now)?;
        let Part { clients, charge } = &mut *part;
        clients.put(client, next);
        charge.set(clients.bytes());
        Ok(())
    }

    /// Like [`take`](Self::take), without taking anything.
    pub(crate) fn check(&self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let client = key(client);
        self.next(&self.part(client), client, now).map(drop)
    }

    /// Clients in the table.
    pub(crate) fn clients(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).clients.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(requests_per_second: f64, burst: u32) -> RateLimit {
        RateLimit::new(&config::RateLimit { requests_per_second, burst }, &ProcessBudget::new(1 << 30))
    }

    #[test]
    fn a_client_gets_its_burst_and_then_its_rate() {
        let limit = limit(10.0, 5);
        let (client, other): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let begun = Instant::now();
        // Ten thousand requests within ten seconds.
        let taken = (0..10_000).filter(|n| limit.take(client, begun + Duration::from_millis(*n)).is_ok()).count();
        assert!((104..=105).contains(&taken), "{taken}");
        let end = begun + Duration::from_secs(10);
        let wait = limit.take(client, end - Duration::from_micros(500)).unwrap_err();
        assert!(wait <= Duration::from_millis(100), "{wait:?}");
        assert!(limit.take(other, end).is_ok(), "others have theirs");
        // All of the burst is back, and no more.
        let later = end + Duration::from_secs(3_600);
        assert_eq!((0..100).filter(|_| limit.take(client, later).is_ok()).count(), 5);
        assert!(limit.check(client, later).is_err());
        let (soon, late) = (Duration::from_millis(99), Duration::from_millis(101));
        assert!(limit.check(client, later + soon).is_err() && limit.check(client, later + late).is_ok());
        // A look takes nothing, and a clock that goes back does no harm.
        assert!((0..10).all(|_| limit.check(client, later + late).is_ok()));
        assert!(limit.take(client, begun).is_err());
    }

    #[test]
    fn slow_rates_are_kept() {
        let limit = limit(1.0 / 60.0, 1);
        let (client, begun) = ([192, 0, 2, 1].into(), Instant::now());
        assert!(limit.take(client, begun).is_ok());
        let wait = limit.take(client, begun + Duration::from_secs(15)).unwrap_err();
        assert_eq!(wait.as_secs_f64().round(), 45.0);
        assert!(limit.take(client, begun + Duration::from_secs(61)).is_ok());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let limit = limit(1.0, 2);
        let now = Instant::now();
        let client = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(limit.take(client("2001:db8::1"), now).is_ok() && limit.take(client("2001:db8::2"), now).is_ok());
        assert!(limit.take(client("2001:db8::ffff:3"), now).is_err());
        assert!(limit.take(client("2001:db8:0:1::1"), now).is_ok());
        assert!(limit.take(client("::ffff:192.0.2.1"), now).is_ok() && limit.take(client("192.0.2.1"), now).is_ok());
        assert!(limit.take(client("::ffff:192.0.2.1"), now).is_err());
    }

    #[test]
    fn a_million_clients_take_bounded_memory_that_is_charged() {
        let budget = ProcessBudget::new(1 << 30);
        let limit = RateLimit::new(&config::RateLimit { requests_per_second: 1.0, burst: 1 }, &budget);
        let now = Instant::now();
        for number in 0..1_000_000_u32 {
            assert!(limit.take(IpAddr::V4(number.into()), now).is_ok());
        }
        assert!(limit.clients() <= 2 * PARTS * GENERATION, "{}", limit.clients());
        let held = budget.held();
        let least = (limit.clients() * size_of::<(u128, u64)>()) as u64;
        assert!((least..5 << 20).contains(&held), "{held} of at least {least}");
        assert!(limit.take(IpAddr::V4(999_999.into()), now).is_err(), "the latest are known");
        drop(limit);
        assert_eq!(budget.held(), 0);
    }
}
