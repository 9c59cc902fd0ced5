//! NAT keep-alive: measures the silence that a connection survives. A NAT drops a silent binding after a time that it does not announce. No
//! clock and no socket here.
//!
//! After a silence the client sends a PING. If the mapping is gone, the packet leaves from another address, and the server challenges it
//! (RFC 9000 §9.3.3): this is the evidence. The lifetime of a mapping is found by longer and longer silences, and then by bisection. From
//! then on silences stay below it.
//!
//! ```
//! use std::time::Duration;
//! use tiderace_client::keep_alive::{Mapping, Mappings, Outcome};
//! use tiderace_client::memory::Network;
//!
//! let mut mappings = Mappings::beginning_with(Duration::from_secs(10));
//! let mapping: &mut Mapping = mappings.of(Network("192.0.2.7".parse().unwrap()));
//! // A translator that forgets after 32 s.
//! for _ in 0..20 {
//!     let silence = mapping.next(Duration::from_secs(120));
//!     let outcome = if silence < Duration::from_secs(32) { Outcome::Kept } else { Outcome::Forgotten };
//!     mapping.learn(silence, outcome);
//! }
//! assert!(mapping.is_known() && mapping.next(Duration::from_secs(120)) < Duration::from_secs(32));
//! ```

use std::collections::HashMap;

use units::Duration;

use crate::memory::Network;

/// First silence: RFC 4787 §4.3 requires 2 minutes of NATs, RFC 9000 §10.1.2 has observed 30 seconds.
const FIRST: Duration = Duration::from_secs(15);
/// Shortest silence that is tried: a network with shorter bindings breaks more than this connection.
const SHORTEST: Duration = Duration::from_millis(100);
/// Networks that are remembered.
const NETWORKS: usize = 64;

/// Outcome of a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The mapping was there still.
    Kept,
    /// The server has seen another address.
    Forgotten,
}

/// Knowledge of a network's NAT timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Longest silence that the mapping has survived, or may survive.
    pub kept: Duration,
    /// The shortest after which it was gone.
    pub forgotten: Option<Duration>,
    /// Set until it is known that the mapping survives this time.
    guessed: bool,
}

impl Mapping {
    /// The next silence, of at most `longest`.
    pub fn next(&self, longest: Duration) -> Duration {
        let next = match self.forgotten {
            None => self.kept + self.kept / 2,
            Some(_) if self.guessed => self.kept,
            // Near enough: a tenth below what is known to work.
            Some(gone) if gone.saturating_sub(self.kept) <= gone / 8 => self.kept - self.kept / 10,
            Some(gone) => (self.kept + gone) / 2,
        };
        next.clamp(SHORTEST, longest.max(SHORTEST))
    }

    /// Returns whether the timeout is known well enough.
    pub fn is_known(&self) -> bool {
        !self.guessed && self.forgotten.is_some_and(|gone| gone.saturating_sub(self.kept) <= gone / 8)
    }

    /// Takes the outcome of a silence of this length.
    pub fn learn(&mut self, silence: Duration, outcome: Outcome) {
        match outcome {
            Outcome::Kept => {
                self.kept = if self.guessed { silence } else { self.kept.max(silence) };
                self.guessed = false;
                // It contradicts what was seen before: the network is another, or the mapping was lost by chance.
                self.forgotten = self.forgotten.filter(|gone| *gone > silence);
            }
            Outcome::Forgotten => {
                let gone = self.forgotten.map_or(silence, |gone| gone.min(silence));
                self.forgotten = Some(gone);
                // Between a guess and what is too long nothing need be: the next one is well below.
                if self.guessed || self.kept >= gone {
                    self.kept = gone / 2;
                    self.guessed = true;
                }
            }
        }
    }
}

/// NAT timeouts by network. Shared by the connections of a client.
#[derive(Debug)]
pub struct Mappings {
    first: Duration,
    known: HashMap<Network, (u64, Mapping)>,
    uses: u64,
}

impl Default for Mappings {
    fn default() -> Self {
        Self::beginning_with(FIRST)
    }
}

impl Mappings {
    /// Begins with silences of this length in a network that is not known.
    pub fn beginning_with(first: Duration) -> Self {
        Self { first, known: HashMap::new(), uses: 0 }
    }

    /// Mappings of all networks.
    pub fn all(&self) -> Vec<Mapping> {
        self.known.values().map(|(_, mapping)| *mapping).collect()
    }

    /// Mapping of a network.
    pub fn of(&mut self, network: Network) -> &mut Mapping {
        self.uses += 1;
        if !self.known.contains_key(&network)
            && self.known.len() >= NETWORKS
            && let Some(oldest) = self.known.iter().min_by_key(|(_, (used, _))| *used).map(|(network, _)| *network)
        {
            self.known.remove(&oldest);
        }
        // The first silence is as long as `next` makes it.
        let kept = self.first * 2 / 3;
        let (used, mapping) =
            self.known.entry(network).or_insert((0, Mapping { kept, forgotten: None, guessed: true }));
        *used = self.uses;
        mapping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_time_is_found_whatever_it_is_and_kept_below() {
        let longest = milliseconds(600_000);
        for timeout in [1_000, 5_000, 14_000, 20_000, 30_000, 47_000, 120_000, 300_000].map(milliseconds) {
            let mut mapping = *Mappings::default().of(Network([192, 0, 2, 1].into()));
            let mut lost = 0;
            for turn in 0..40 {
                let silence = mapping.next(longest);
                let outcome = if silence > timeout { Outcome::Forgotten } else { Outcome::Kept };
                mapping.learn(silence, outcome);
                lost += u32::from(outcome == Outcome::Forgotten);
                assert!(turn < 20 || outcome == Outcome::Kept, "{timeout:?}: {mapping:?}");
            }
            assert!(mapping.is_known() && lost <= 8, "{timeout:?}: {mapping:?} after {lost} losses");
            let silence = mapping.next(longest);
            assert!(silence <= timeout && silence * 4 >= timeout * 3, "{timeout:?}: {silence:?}");
        }
    }

    #[test]
    fn a_network_without_a_translator_is_asked_as_seldom_as_is_allowed() {
        let mut mapping = *Mappings::default().of(Network([192, 0, 2, 1].into()));
        assert_eq!(mapping.next(milliseconds(600_000)), milliseconds(15_000));
        for _ in 0..20 {
            let silence = mapping.next(milliseconds(60_000));
            mapping.learn(silence, Outcome::Kept);
        }
        assert_eq!((mapping.next(milliseconds(60_000)), mapping.forgotten), (milliseconds(60_000), None));
        // Another translator.
        mapping.learn(milliseconds(20_000), Outcome::Forgotten);
        assert!(mapping.next(milliseconds(60_000)) < milliseconds(20_000));
        mapping.learn(milliseconds(25_000), Outcome::Kept);
        assert_eq!(mapping.forgotten, None);
    }

    #[test]
    fn networks_are_bounded() {
        let mut mappings = Mappings::default();
        for number in 0..200_u8 {
            mappings.of(Network([10, 0, 0, number].into())).kept = milliseconds(1);
            mappings.of(Network([10, 0, 0, 0].into()));
        }
        assert_eq!(mappings.known.len(), NETWORKS);
        assert_eq!(mappings.of(Network([10, 0, 0, 0].into())).kept, milliseconds(1));
    }
}
