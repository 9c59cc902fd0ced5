//! Policies: transport settings for some of the clients. Policies with conditions on listener and network only are known with a client's
//! first packet and choose its whole profile ([`Policies`] as a [`ProfileChooser`]). The others need a server name, a protocol, a request's
//! route, or measurements of the path, and change congestion control of an existing connection ([`PolicyProgress`]).
//!
//! A connection has one controller at a time. The first policy in the file that matches wins. A connection only moves to a policy that
//! stands before its present one. So alternating routes on one connection do not make it alternate, and it changes no more often than there
//! are policies.

pub(crate) mod arms;

use std::{
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tiderace::{
    Connection, Profile, Stats,
    transport::{ProfileChooser, congestion::Algorithm},
};

use self::arms::{Arm, Arms, Sample};
use crate::{
    config::{self, Many},
    metrics::{Metrics, PolicyLabels, Shown, handshake_kind},
    network::Network,
};

/// Packets that a path has to have carried before it is judged by its loss.
const ENOUGH: u64 = 200;

/// One policy, ready to be asked.
struct Policy {
    config: config::Policy,
    networks: Vec<Network>,
    congestion: Option<Algorithm>,
    /// Whole profile, where it can be chosen with the first packet.
    profile: Option<Arc<Profile>>,
}

/// Known facts of a connection.
#[derive(Clone, Copy)]
struct Known<'a> {
    /// First address of the client.
    remote: SocketAddr,
    name: Option<&'a str>,
    alpn: Option<&'a [u8]>,
    route: Option<&'a str>,
    stats: Option<&'a Stats>,
}

/// The policies of a generation, at one of its listeners.
#[derive(Clone)]
pub(crate) struct Policies {
    all: Arc<Vec<Policy>>,
    listener: SocketAddr,
    /// Draw of the connections that get a policy with a share: by the client's address and port, so that the choice made with
    /// the first packet is known later.
    lots: RandomState,
    otherwise: Algorithm,
}

/// Returns whether a name is among patterns such as `example.org` and `*.example.org`.
pub(crate) fn named(names: &Many, name: &str) -> bool {
    names.0.iter().any(|pattern| match pattern.strip_prefix('*') {
        None => pattern.eq_ignore_ascii_case(name),
        Some(suffix) => {
            let (name, suffix) = (name.to_ascii_lowercase(), suffix.to_ascii_lowercase());
            name.strip_suffix(&suffix).is_some_and(|label| !label.is_empty() && !label.contains('.'))
        }
    })
}

/// Returns whether a condition holds: it is not set, or its value is known and matches.
fn holds<T>(asked: bool, known: Option<T>, fits: impl FnOnce(T) -> bool) -> bool {
    !asked || known.is_some_and(fits)
}

impl Policy {
    fn fits(&self, listener: SocketAddr, known: &Known<'_>) -> bool {
        let config = &self.config;
        let loss = |stats: &&Stats| stats.packets_lost as f64 / stats.packets_sent.max(1) as f64;
        (config.listen.0.is_empty() || config.listen.0.iter().any(|at| at.parse() == Ok(listener)))
            && (self.networks.is_empty() || self.networks.iter().any(|network| network.has(known.remote.ip())))
            && holds(!config.sni.0.is_empty(), known.name, |name| named(&config.sni, name))
            && holds(!config.alpn.0.is_empty(), known.alpn, |alpn| {
                config.alpn.0.iter().any(|own| own.as_bytes() == alpn)
            })
            && holds(!config.route.0.is_empty(), known.route, |route| config.route.0.iter().any(|own| own == route))
            && holds(config.rtt_above.is_some(), known.stats.filter(|stats| stats.min_rtt > 0), |stats| {
                config.rtt_above.is_some_and(|limit| u128::from(stats.min_rtt) > limit.0.as_nanos())
            })
            && holds(config.loss_above.is_some(), known.stats.filter(|stats| stats.packets_sent >= ENOUGH), |stats| {
                config.loss_above.is_some_and(|limit| loss(&stats) > limit.0)
            })
    }
}

impl Policies {
    /// `base` is the profile of those whom no policy fits.
    pub(crate) fn new(policies: &[config::Policy], base: &Profile, lots: &RandomState) -> Self {
        let policy = |config: &config::Policy| {
            // What cannot be read was refused when the file was.
            let congestion = config.congestion.parse().ok();
            let profile = config.is_known_at_once().then(|| {
                let mut profile = Profile { name: config.name.clone(), ..base.clone() };
                if let Some(congestion) = congestion {
                    profile.congestion = congestion;
                }
                if let Ok(fec) = config.fec.parse() {
                    profile.fec = fec;
                }
                if let Ok(frequency) = config.ack_frequency.parse() {
                    profile.ack_frequency = frequency;
                }
                Arc::new(profile)
            });
            let networks = config.network.0.iter().filter_map(|text| text.parse().ok()).collect();
            Policy { config: config.clone(), networks, congestion, profile }
        };
        // The others decide whether there is a connection at all: see `trial`.
        let all = Arc::new(policies.iter().filter(|policy| policy.http3).map(policy).collect());
        let listener = SocketAddr::from(([0, 0, 0, 0], 0));
        Self { all, listener, lots: lots.clone(), otherwise: base.congestion }
    }

    /// Policies for connections at this address.
    pub(crate) fn at(&self, listener: SocketAddr) -> Self {
        Self { listener, ..self.clone() }
    }

    /// Returns whether some of them depend on the path.
    pub(crate) fn measure(&self) -> bool {
        self.all.iter().any(|policy| policy.config.rtt_above.is_some() || policy.config.loss_above.is_some())
    }

    /// Returns whether the connection of this client is in the share that gets the policy.
    fn drawn(&self, number: usize, remote: SocketAddr) -> bool {
        let share = self.all[number].config.share.0;
        let lot = self.lots.hash_one((&self.all[number].config.name, remote)) >> 11;
        (lot as f64) < share * (1_u64 << 53) as f64
    }

    /// The first policy that fits and is drawn, of those in `range`.
    fn find(&self, range: std::ops::Range<usize>, known: &Known<'_>) -> Option<usize> {
        range.into_iter().find(|&n| self.all[n].fits(self.listener, known) && self.drawn(n, known.remote))
    }
}

impl ProfileChooser for Policies {
    fn choose(&self, remote: SocketAddr) -> Option<Arc<Profile>> {
        let known = Known { remote, name: None, alpn: None, route: None, stats: None };
        self.all[self.find(0..self.all.len(), &known)?].profile.clone()
    }
}

/// The way of a connection through the policies.
pub(crate) struct PolicyProgress {
    policies: Policies,
    connection: Connection,
    remote: SocketAddr,
    name: Option<String>,
    alpn: Vec<u8>,
    state: Mutex<State>,
}

struct State {
    /// The policy that it is under; the number of policies when it is under none.
    under: usize,
    /// By policy, once it fits: the arm.
    arms: Vec<Option<Arm>>,
    /// Content of large answers, and the seconds that they took.
    sent: (u64, f64),
}

impl PolicyProgress {
    /// The progress of a connection that has just been accepted. `None` when there are no policies.
    pub(crate) fn begin(policies: Policies, connection: &Connection, remote: SocketAddr) -> Option<Arc<Self>> {
        let count = policies.all.len();
        if count == 0 {
            return None;
        }
        let state = State { under: count, arms: vec![None; count], sent: (0, 0.0) };
        let this = Self {
            policies,
            connection: connection.clone(),
            remote,
            name: connection.server_name(),
            alpn: connection.alpn().unwrap_or_default(),
            state: Mutex::new(state),
        };
        this.look(None);
        Some(Arc::new(this))
    }

    /// Returns whether early data may be served as such, as far as the policy is concerned.
    pub(crate) fn takes_early_data(&self) -> bool {
        let under = self.state.lock().unwrap_or_else(PoisonError::into_inner).under;
        self.policies.all.get(under).is_none_or(|policy| policy.config.early_data)
    }

    /// Looks whether another policy fits by now.
    fn look(&self, route: Option<&str>) {
        let stats = if self.policies.measure() { self.connection.stats() } else { None };
        let known = Known {
            remote: self.remote,
            name: self.name.as_deref(),
            alpn: Some(&self.alpn),
            route,
            stats: stats.as_ref(),
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..state.under {
            if state.arms[number].is_some() || !self.policies.all[number].fits(self.policies.listener, &known) {
                continue;
            }
            let arm = if self.policies.drawn(number, self.remote) { Arm::With } else { Arm::Without };
            state.arms[number] = Some(arm);
            if arm == Arm::With {
                state.under = number;
                let congestion = self.policies.all[number].congestion.unwrap_or(self.policies.otherwise);
                self.connection.set_congestion(congestion);
                return;
            }
        }
    }

    /// A request of this route begins.
    pub(crate) fn on_route(&self, route: &str) {
        self.look(Some(route));
    }

    /// Time has passed, and the path has shown more.
    pub(crate) fn on_tick(&self) {
        self.look(None);
    }

    /// An answer has left.
    pub(crate) fn on_answer(&self, bytes: u64, seconds: f64) {
        if bytes >= arms::LARGE {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.sent.0 += bytes;
            state.sent.1 += seconds;
        }
    }

    /// The policy that the connection is under.
    pub(crate) fn under(&self) -> Option<&str> {
        let under = self.state.lock().unwrap_or_else(PoisonError::into_inner).under;
        self.policies.all.get(under).map(|policy| policy.config.name.as_str())
    }

    /// Records the statistics of a connection that has ended, for each policy that fitted.
    pub(crate) fn end(&self, stats: &Stats, arms: &Arms, metrics: &Metrics) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let sample = Sample::new(stats, state.sent);
        let seconds = |nanos: u64| (nanos > 0).then_some(nanos as f64 / 1e9);
        let shown = Shown {
            rate: sample.rate,
            queueing: sample.queueing,
            loss: sample.loss,
            rtt: seconds(stats.smoothed_rtt).filter(|_| stats.min_rtt > 0),
            min_rtt: seconds(stats.min_rtt),
            handshake: seconds(stats.handshake_time).map(|seconds| (handshake_kind(stats), seconds)),
        };
        for (policy, arm) in self.policies.all.iter().zip(&state.arms) {
            if let Some(arm) = arm {
                let listener = self.policies.listener.to_string();
                let labels = PolicyLabels { policy: policy.config.name.clone(), arm: arm.name(), listener };
                metrics.policies.note(&labels, &shown);
                arms.add(&policy.config.name, *arm, sample);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Part, Span};

    fn policy(name: &str, change: impl FnOnce(&mut config::Policy)) -> config::Policy {
        let mut policy =
            config::Policy { name: name.to_owned(), congestion: "bbr3".to_owned(), ..config::Policy::default() };
        change(&mut policy);
        policy
    }

    fn policies(list: &[config::Policy]) -> Policies {
        Policies::new(list, &Profile::default(), &RandomState::new()).at("127.0.0.1:443".parse().unwrap())
    }

    fn known<'a>(remote: &str) -> Known<'a> {
        Known { remote: remote.parse().unwrap(), name: None, alpn: None, route: None, stats: None }
    }

    #[test]
    fn the_first_that_fits_wins_and_conditions_wait_until_they_are_known() {
        let many = |text: &str| Many(vec![text.to_owned()]);
        let all = policies(&[
            policy("route", |p| p.route = many("*/video")),
            policy("name", |p| p.sni = many("*.example.org")),
            policy("slow", |p| p.rtt_above = Some(Span("50 ms".parse::<Span>().unwrap().0))),
            policy("office", |p| p.network = many("192.0.2.0/24")),
            policy("elsewhere", |p| p.listen = many("127.0.0.1:8443")),
        ]);
        let find = |known: &Known<'_>| all.find(0..5, known);
        let slow = Stats { min_rtt: 51_000_000, ..Stats::default() };
        let office = known("192.0.2.7:1");
        assert_eq!(find(&known("198.51.100.1:1")), None);
        assert_eq!(find(&office), Some(3));
        assert_eq!(find(&Known { stats: Some(&slow), ..office }), Some(2));
        assert_eq!(find(&Known { stats: Some(&slow), name: Some("a.Example.org"), ..office }), Some(1));
        assert_eq!(find(&Known { route: Some("*/video"), name: Some("a.example.org"), ..office }), Some(0));
        assert_eq!(find(&Known { route: Some("*/"), ..office }), Some(3));
        assert_eq!(all.choose(office.remote).unwrap().name, "office");
        assert!(all.choose("198.51.100.1:1".parse().unwrap()).is_none());
    }

    #[test]
    fn loss_is_judged_when_there_is_enough_of_it() {
        let all = policies(&[policy("lossy", |p| p.loss_above = Some(Part(0.02)))]);
        let stats = |sent, lost| Stats { packets_sent: sent, packets_lost: lost, ..Stats::default() };
        for (sent, lost, fits) in [(100, 50, false), (1_000, 20, false), (1_000, 21, true)] {
            let stats = stats(sent, lost);
            assert_eq!(all.find(0..1, &Known { stats: Some(&stats), ..known("192.0.2.1:1") }).is_some(), fits);
        }
    }

    #[test]
    fn a_share_of_the_connections_gets_it_always_the_same() {
        let all = policies(&[policy("tenth", |p| p.share = Part(0.1))]);
        let drawn: Vec<bool> =
            (0..10_000_u16).map(|port| all.drawn(0, SocketAddr::from(([192, 0, 2, 1], port)))).collect();
        let count = drawn.iter().filter(|drawn| **drawn).count();
        // Five standard deviations of a binomial with 10,000 draws.
        assert!((850..=1_150).contains(&count), "{count}");
        assert!(
            drawn
                .iter()
                .enumerate()
                .all(|(port, drawn)| { all.drawn(0, SocketAddr::from(([192, 0, 2, 1], port as u16))) == *drawn })
        );
        for (share, expected) in [(0.0, false), (1.0, true)] {
            let all = policies(&[policy("all", |p| p.share = Part(share))]);
            assert!((1..1_000).all(|port| all.drawn(0, SocketAddr::from(([192, 0, 2, 1], port))) == expected));
        }
    }
}
