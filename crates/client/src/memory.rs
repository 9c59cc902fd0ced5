//! Memory of networks and origins, and the resulting plan of the next race.
//!
//! ```
//! use tiderace_client::memory::{Memory, Network};
//! use units::{Duration, Instant};
//!
//! let mut memory = Memory::new(Duration::from_millis(200));
//! let (network, now) = (Network("192.0.2.7".parse().unwrap()), Instant::ZERO);
//! memory.hear(now, network, "https://example.org", r#"h3=":8443""#);
//! assert_eq!(memory.alternative(now, network, "https://example.org"), Some((None, 8443)));
//! assert!(memory.plan(now, network, "https://example.org").quic.is_ok());
//! ```

use std::{collections::HashMap, net::IpAddr};

use units::{Duration, Instant};

use crate::{
    alt_svc,
    race::{Plan, SkipReason, Verdict},
};

/// Origins, and networks, that are remembered at most; the oldest go first.
const REMEMBERED: usize = 1_000;
/// After the first bad verdict QUIC rests for this long, then for twice as long, …
const REST: Duration = Duration::from_secs(60);
/// … up to this.
const REST_MAX: Duration = Duration::from_secs(3_600);
/// Longest time for which an alternative service is believed.
const ALTERNATIVE_MAX: Duration = Duration::from_secs(7 * 86_400);
/// A head start is this much longer than QUIC took before, in which half of its handshakes would be late otherwise.
const MARGIN: Duration = Duration::from_millis(50);

/// A network, by the address that this host has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(pub IpAddr);

#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Instant,
    times: u32,
    why: SkipReason,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    rest: Option<Rest>,
    handshake: Option<Duration>,
    slower: bool,
    seen: Instant,
}

/// Remembers verdicts by network and origin.
#[derive(Debug)]
pub struct Memory {
    /// Head start without a history.
    head_start: Duration,
    known: HashMap<(Network, String), Known>,
    /// Host, port and expiry of alternatives from `alt-svc`. RFC 7838 §2.2: not to be used in another network.
    alternatives: HashMap<(Network, String), (Option<String>, u16, Instant)>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(Plan::default().head_start)
    }
}

impl Memory {
    /// Returns an empty memory. QUIC gets this head start if nothing is known.
    pub fn new(head_start: Duration) -> Self {
        Self { head_start, known: HashMap::new(), alternatives: HashMap::new() }
    }

    /// Plans the next race.
    pub fn plan(&self, now: Instant, network: Network, origin: &str) -> Plan {
        let mut plan = Plan { head_start: self.head_start, ..Plan::default() };
        if let Some(known) = self.known.get(&(network, origin.to_owned())) {
            if let Some(rest) = known.rest.filter(|rest| rest.until > now) {
                plan.quic = Err(rest.why);
            }
            if known.slower {
                plan.head_start = Duration::ZERO;
            } else if let Some(handshake) = known.handshake {
                plan.head_start = (handshake + handshake / 2 + MARGIN).min(plan.head_start + MARGIN);
            }
        }
        // A network in which several servers were out of reach over UDP is one that blocks it.
        let blocked =
            |known: &Known| known.rest.is_some_and(|rest| rest.why == SkipReason::BlockedBefore && rest.until > now);
        let elsewhere = self.known.iter().filter(|((of, _), known)| *of == network && blocked(known)).count();
        let works = self.known.iter().any(|((of, _), known)| *of == network && known.rest.is_none());
        if elsewhere >= 2 && !works {
            plan.quic = plan.quic.and(Err(SkipReason::BlockedBefore));
        }
        plan
    }

    /// Alternative service of an origin, as it announced it: the host, if it is another one, and the port.
    pub fn alternative(&self, now: Instant, network: Network, origin: &str) -> Option<(Option<String>, u16)> {
        let (host, port, end) = self.alternatives.get(&(network, origin.to_owned()))?;
        (*end > now).then(|| (host.clone(), *port))
    }

    /// Takes the value of an `alt-svc` field. Alternatives that it does not list are forgotten (RFC 7838 §3.1).
    pub fn hear(&mut self, now: Instant, network: Network, origin: &str, value: &str) {
        let key = (network, origin.to_owned());
        let Some(said) = alt_svc::http3(value) else {
            self.alternatives.remove(&key);
            return;
        };
        if self.alternatives.len() >= REMEMBERED
            && !self.alternatives.contains_key(&key)
            && let Some(next) = self.alternatives.iter().min_by_key(|(_, (.., end))| *end).map(|(key, _)| key.clone())
        {
            self.alternatives.remove(&next);
        }
        self.alternatives.insert(key, (said.host, said.port, now + said.max_age.min(ALTERNATIVE_MAX)));
    }

    /// Forgets where an origin had HTTP/3: it was not there.
    pub fn unlearn_alternative(&mut self, network: Network, origin: &str) {
        self.alternatives.remove(&(network, origin.to_owned()));
    }

    /// Stores a verdict. `handshake` is the duration of QUIC's handshake, if it completed.
    pub fn learn(
        &mut self,
        now: Instant,
        network: Network,
        origin: &str,
        verdict: Verdict,
        handshake: Option<Duration>,
    ) {
        let key = (network, origin.to_owned());
        if self.known.len() >= REMEMBERED
            && !self.known.contains_key(&key)
            && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.seen).map(|(key, _)| key.clone())
        {
            self.known.remove(&oldest);
        }
        let fresh = Known { rest: None, handshake: None, slower: false, seen: now };
        let known = self.known.entry(key).or_insert(fresh);
        known.seen = now;
        let rest = |known: &Known, why| {
            let times = known.rest.map_or(0, |rest| rest.times) + 1;
            let length = REST.saturating_mul(1 << (times - 1).min(10)).min(REST_MAX);
            Some(Rest { until: now + length, times, why })
        };
        match verdict {
            Verdict::Works => *known = Known { handshake, ..fresh },
            Verdict::Slower { .. } => *known = Known { handshake, slower: true, ..fresh },
            Verdict::BadPath => known.slower = true,
            Verdict::Blocked { .. } => known.rest = rest(known, SkipReason::BlockedBefore),
            Verdict::Refused => known.rest = rest(known, SkipReason::RefusedBefore),
            Verdict::NotTried(_) | Verdict::Unreachable => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKED: Verdict = Verdict::Blocked { questions: 12, tcp_rtt: Duration::from_millis(20) };

    fn network(last: u8) -> Network {
        Network([192, 0, 2, last].into())
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn quic_rests_longer_each_time_and_only_where_it_failed() {
        let mut memory = Memory::default();
        memory.learn(at(0), network(1), "a", BLOCKED, None);
        assert_eq!(memory.plan(at(59), network(1), "a").quic, Err(SkipReason::BlockedBefore));
        assert_eq!(memory.plan(at(61), network(1), "a").quic, Ok(()));
        assert_eq!(memory.plan(at(59), network(2), "a").quic, Ok(()));
        assert_eq!(memory.plan(at(59), network(1), "b").quic, Ok(()));
        memory.learn(at(61), network(1), "a", BLOCKED, None);
        assert!(memory.plan(at(180), network(1), "a").quic.is_err());
        assert!(memory.plan(at(182), network(1), "a").quic.is_ok());
        memory.learn(at(182), network(1), "a", Verdict::Works, Some(Duration::from_millis(40)));
        assert_eq!(memory.plan(at(183), network(1), "a").head_start, Duration::from_millis(110));
        memory.learn(at(190), network(1), "a", BLOCKED, None);
        assert!(memory.plan(at(249), network(1), "a").quic.is_err());
        assert!(memory.plan(at(251), network(1), "a").quic.is_ok());
    }

    #[test]
    fn alternatives_hold_in_their_network_for_their_time() {
        let mut memory = Memory::default();
        memory.hear(at(0), network(1), "a", r#"h3="b:444"; ma=60"#);
        assert_eq!(memory.alternative(at(59), network(1), "a"), Some((Some("b".to_owned()), 444)));
        assert_eq!(memory.alternative(at(61), network(1), "a"), None);
        assert_eq!(memory.alternative(at(59), network(2), "a"), None);
        memory.hear(at(1), network(1), "a", "clear");
        assert_eq!(memory.alternative(at(2), network(1), "a"), None);
        for number in 0..2_000 {
            memory.hear(at(number), network(1), &number.to_string(), r#"h3=":1""#);
        }
        assert!(memory.alternatives.len() <= REMEMBERED);
        assert!(memory.alternative(at(2_000), network(1), "1999").is_some());
        memory.unlearn_alternative(network(1), "1999");
        assert!(memory.alternative(at(2_000), network(1), "1999").is_none());
    }

    #[test]
    fn a_network_that_blocks_several_blocks_all() {
        let mut memory = Memory::default();
        memory.learn(at(0), network(1), "a", BLOCKED, None);
        memory.learn(at(1), network(1), "b", BLOCKED, None);
        assert_eq!(memory.plan(at(2), network(1), "c").quic, Err(SkipReason::BlockedBefore));
        assert_eq!(memory.plan(at(2), network(2), "c").quic, Ok(()));
        memory.learn(at(3), network(1), "d", Verdict::Works, None);
        assert_eq!(memory.plan(at(4), network(1), "c").quic, Ok(()));
    }

    #[test]
    fn a_bad_path_costs_the_head_start_and_nothing_else() {
        let mut memory = Memory::default();
        memory.learn(at(0), network(1), "a", Verdict::BadPath, None);
        let plan = memory.plan(at(1), network(1), "a");
        assert_eq!((plan.quic, plan.head_start), (Ok(()), Duration::ZERO));
        for number in 0..2_000 {
            memory.learn(at(number), network(1), &number.to_string(), Verdict::Works, None);
        }
        assert!(memory.known.len() <= REMEMBERED);
    }
}
