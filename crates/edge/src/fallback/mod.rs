//! Clients that know of QUIC and use TCP, with the reason as far as the gateway can tell.
//!
//! Only the client knows the reason. The gateway has the evidence from UDP about the client's address. The transport reports each event of
//! a connection attempt once ([`AttemptLog`]), and `evidence` keeps the latest. A client that uses TCP is followed for a while. The verdict
//! is made when its attempts over UDP have ended.
//!
//! Addresses on UDP may be forged until a handshake is complete. So there are two bounded memories. Forged packets can evict evidence from
//! the first one. Only complete handshakes, over TCP or QUIC, write to the second one, which holds what is known of clients.

mod evidence;
pub(crate) mod memory;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tiderace::transport::{AttemptEvent, AttemptLog};

use self::{
    evidence::{Evidence, FallbackVerdict, Reason},
    memory::Generations,
};
use crate::{admission::key, config::Config, metrics::FallbackMetrics};

/// Time after an advertisement in which a client can be expected to come.
pub(crate) const TIME_TO_COME: Duration = Duration::from_secs(60);
/// Time after a client's TCP connection in which its first packet over UDP may still arrive: it may try both at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time in which a client is not counted again, unless it uses QUIC in between.
const QUIET: Duration = Duration::from_secs(600);
/// Clients in each generation of the two memories.
const GENERATION: usize = 32 * 1024;
/// Clients that are followed at a time; beyond that, more are not counted.
const FOLLOWED: usize = 4_096;

/// Known state of a client.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Time at which HTTP/3 was first advertised to it.
    advertised: Option<Instant>,
    /// Had a QUIC connection.
    spoke: bool,
    /// Time at which it was last counted.
    counted: Option<Instant>,
    /// Followed by a task.
    followed: bool,
}

/// A client that uses TCP.
#[derive(Clone, Copy, Debug)]
struct Followed {
    client: u128,
    /// Source of the client's knowledge of QUIC, as a label.
    how: &'static str,
    came: Instant,
    /// Deadline: without a verdict by then there is no fall-back.
    until: Instant,
}

#[derive(Debug)]
struct State {
    known: Generations<Known>,
    seen: Generations<Evidence>,
    /// Deadlines at which clients are judged, with a number that makes them unique.
    followed: BTreeMap<(Instant, u64), Followed>,
    next: u64,
}

/// Evidence about clients from UDP and TCP. Outlives reloads.
#[derive(Debug)]
pub(crate) struct Fallbacks(Mutex<State>);

impl Default for Fallbacks {
    fn default() -> Self {
        let (known, seen) = (Generations::new(GENERATION), Generations::new(GENERATION));
        Self(Mutex::new(State { known, seen, followed: BTreeMap::new(), next: 0 }))
    }
}

impl AttemptLog for Fallbacks {
    fn note(&self, remote: SocketAddr, event: AttemptEvent<'_>) {
        self.over_udp(remote.ip(), Instant::now(), event);
    }
}

/// Longest time that a dead connection may continue: its handshake timeout or its idle timeout has ended by then.
pub(crate) fn longest(config: &Config) -> Duration {
    config.limits.handshake_timeout.0.max(config.transport.idle_timeout.0) + PATIENCE
}

impl Fallbacks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn over_udp(&self, client: IpAddr, now: Instant, event: AttemptEvent<'_>) {
        let client = key(client);
        let mut state = self.state();
        let evidence = Evidence::after(state.seen.get(client), now, event);
        state.seen.put(client, evidence);
        if matches!(event, AttemptEvent::Completed) {
            let known = state.known.get(client).unwrap_or_default();
            state.known.put(client, Known { spoke: true, counted: None, ..known });
        }
    }

    /// Follows a client that uses TCP; `tells`: HTTP/3 is advertised to it. `longest`: see [`longest`].
    pub(crate) fn over_tcp(&self, client: IpAddr, now: Instant, tells: bool, longest: Duration) {
        let client = key(client);
        let mut state = self.state();
        let before = state.known.get(client);
        let mut known = before.unwrap_or_default();
        let tried = state.seen.get(client).is_some_and(|evidence| evidence.is_about(now));
        let how = match known.advertised {
            _ if known.spoke => Some("used"),
            Some(at) if now.duration_since(at) >= TIME_TO_COME => Some("advertised"),
            _ if tried => Some("attempted"),
            _ => None,
        };
        if tells {
            known.advertised.get_or_insert(now);
        }
        let quiet = known.counted.is_some_and(|at| now.duration_since(at) < QUIET);
        if let Some(how) = how.filter(|_| !quiet && !known.followed && state.followed.len() < FOLLOWED) {
            known.followed = true;
            state.follow(now + PATIENCE, Followed { client, how, came: now, until: now + longest });
        }
        if before.is_some() || known.advertised.is_some() || known.followed {
            state.known.put(client, known);
        }
    }

    /// Counts the clients that were followed long enough.
    pub(crate) fn count(&self, now: Instant, figures: &FallbackMetrics) {
        // Counting takes other locks.
        let fell = self.state().judge(now);
        for (reason, how) in fell {
            figures.count(reason.name(), how);
        }
    }
}

impl State {
    fn follow(&mut self, look: Instant, who: Followed) {
        self.next += 1;
        self.followed.insert((look, self.next), who);
    }

    /// Clients with a verdict.
    fn judge(&mut self, now: Instant) -> Vec<(Reason, &'static str)> {
        let mut fell = Vec::new();
        while let Some(entry) = self.followed.first_entry().filter(|entry| entry.key().0 <= now) {
            let who = entry.remove();
            let evidence = self.seen.get(who.client).filter(|evidence| evidence.is_about(who.came));
            let judgement = match evidence {
                Some(evidence) => evidence.judge(who.came, now, who.until),
                // Whose attempt is all that is known of it, and forgotten: nothing can be said.
                None if who.how == "attempted" => FallbackVerdict::None,
                None => FallbackVerdict::Fell(Reason::NoPackets),
            };
            if judgement == FallbackVerdict::Wait {
                self.follow(now + PATIENCE, who);
                continue;
            }
            let mut known = self.known.get(who.client).unwrap_or_default();
            known.followed = false;
            if let FallbackVerdict::Fell(reason) = judgement {
                known.counted = Some(now);
                fell.push((reason, who.how));
            }
            self.known.put(who.client, known);
        }
        fell
    }
}

#[cfg(test)]
mod tests {
    use tiderace::CloseReason;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(35);
    const TOO_SLOW: CloseReason = CloseReason::HandshakeTimeout;

    struct World {
        fallbacks: Fallbacks,
        begun: Instant,
    }

    impl World {
        fn new() -> Self {
            Self { fallbacks: Fallbacks::default(), begun: Instant::now() }
        }

        fn at(&self, second: u64) -> Instant {
            self.begun + Duration::from_secs(second)
        }

        fn tcp(&self, second: u64, client: u8) {
            self.fallbacks.over_tcp([192, 0, 2, client].into(), self.at(second), true, LONGEST);
        }

        fn udp(&self, second: u64, client: u8, event: AttemptEvent<'_>) {
            self.fallbacks.over_udp([192, 0, 2, client].into(), self.at(second), event);
        }

        fn speaks(&self, second: u64, client: u8) {
            self.udp(second, client, AttemptEvent::Begun);
            self.udp(second, client, AttemptEvent::Completed);
        }

        fn judged(&self, second: u64) -> Vec<(&'static str, &'static str)> {
            let judged = self.fallbacks.state().judge(self.at(second));
            judged.into_iter().map(|(reason, how)| (reason.name(), how)).collect()
        }
    }

    #[test]
    fn who_was_told_and_never_came_is_counted_once_in_a_while() {
        let world = World::new();
        world.tcp(0, 1);
        world.tcp(59, 1);
        assert_eq!(world.judged(64), [], "it had no time to come");
        world.tcp(60, 1);
        world.tcp(61, 1);
        assert_eq!(world.judged(64), [], "it may be about to");
        assert_eq!(world.judged(65), [("no-packets", "advertised")]);
        world.tcp(664, 1);
        assert_eq!(world.judged(700), []);
        world.tcp(665, 1);
        assert_eq!(world.judged(700), [("no-packets", "advertised")]);
    }

    #[test]
    fn who_came_over_both_has_not_fallen_back() {
        let world = World::new();
        world.tcp(0, 1);
        world.tcp(100, 1);
        world.speaks(101, 1);
        assert_eq!(world.judged(200), []);
        world.tcp(200, 2);
        world.tcp(300, 2);
        world.speaks(301, 2);
        let bye = CloseReason::ThisApplication { code: 0 };
        world.udp(302, 2, AttemptEvent::Ended { reason: &bye, completed: true, reached: true, busy: false });
        world.tcp(300, 1);
        assert_eq!(world.judged(310), [], "its connection is there");
        assert_eq!(world.judged(340), [], "and outlives what a dead one could");
        assert!(world.fallbacks.state().followed.is_empty());
    }

    #[test]
    fn who_spoke_it_and_comes_without_is_known_by_that() {
        let world = World::new();
        world.speaks(0, 1);
        let bye = CloseReason::ThisApplication { code: 0 };
        world.udp(10, 1, AttemptEvent::Ended { reason: &bye, completed: true, reached: true, busy: false });
        world.tcp(100, 1);
        assert_eq!(world.judged(110), [("no-packets", "used")]);
        // It is counted again once it has spoken it again.
        world.speaks(200, 1);
        world.tcp(210, 1);
        let cut = CloseReason::IdleTimeout;
        world.udp(235, 1, AttemptEvent::Ended { reason: &cut, completed: true, reached: true, busy: true });
        assert_eq!(world.judged(240), [("timed-out", "used")]);
    }

    #[test]
    fn an_attempt_that_fails_is_seen_also_of_those_never_told() {
        let world = World::new();
        world.udp(0, 1, AttemptEvent::Begun);
        world.tcp(1, 1);
        assert_eq!(world.judged(9), []);
        world.udp(10, 1, AttemptEvent::Ended { reason: &TOO_SLOW, completed: false, reached: false, busy: true });
        assert_eq!(world.judged(14), [("silent", "attempted")]);
        world.udp(20, 2, AttemptEvent::Refused);
        world.tcp(90, 2);
        assert_eq!(world.judged(100), [], "that is too long ago");
    }

    #[test]
    fn forged_addresses_take_bounded_memory_and_forget_nobody() {
        let world = World::new();
        world.speaks(0, 1);
        let end = AttemptEvent::Ended { reason: &TOO_SLOW, completed: false, reached: false, busy: false };
        for number in 0..200_000_u32 {
            let forged = IpAddr::V4((0x0a00_0000 + number).into());
            world.fallbacks.over_udp(forged, world.at(1), AttemptEvent::Begun);
            world.fallbacks.over_udp(forged, world.at(11), end);
        }
        {
            let state = world.fallbacks.state();
            assert!(state.seen.len() <= 2 * GENERATION && state.known.len() == 1);
        }
        world.tcp(100, 1);
        assert_eq!(world.judged(110), [("no-packets", "used")]);
        for number in 0..200_000_u32 {
            let client = IpAddr::V4((0x0a00_0000 + number).into());
            world.fallbacks.over_udp(client, world.at(200), AttemptEvent::Refused);
            world.fallbacks.over_tcp(client, world.at(200), true, LONGEST);
        }
        let state = world.fallbacks.state();
        assert!(state.followed.len() <= FOLLOWED && state.known.len() <= 2 * GENERATION);
    }
}
