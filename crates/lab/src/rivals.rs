//! Contenders of two kinds on one path: the share of each, and its harm to the other.
//!
//! Connections with even numbers are of the first kind, the others of the second. Harm to a contender is its loss compared with the same
//! run in which the other one is silent (Ware et al., "Beyond Jain's Fairness Index", HotNets 2019).

use std::collections::BTreeMap;

use sim::{Datagram, Node, Outbox};
use units::Instant;

use crate::contender::{BuildError, ConnectionSpec, Contender, Factor, Identity, Measured, Nodes, RunSpec};

/// Two kinds that share a path.
pub struct Rivals {
    kinds: [Box<dyn Contender>; 2],
    /// The first contender is compared: the pair has its name, and the effect of one on the other is not measured.
    is_beside: bool,
}

impl Rivals {
    /// The first gets the connections with even numbers.
    pub fn new(first: Box<dyn Contender>, second: Box<dyn Contender>) -> Self {
        Self { kinds: [first, second], is_beside: false }
    }

    /// A compared contender on the connections with even numbers, with another one on the odd ones.
    pub fn beside(first: Box<dyn Contender>, second: Box<dyn Contender>) -> Self {
        Self { kinds: [first, second], is_beside: true }
    }
}

impl Contender for Rivals {
    fn identity(&self) -> Identity {
        let [first, second] = [0, 1].map(|kind| self.kinds[kind].identity());
        let mut parameters = BTreeMap::new();
        for (place, identity) in [("first", &first), ("second", &second)] {
            let own = identity.parameters.iter().map(|(name, value)| (format!("{place} {name}"), value.clone()));
            parameters.extend(own);
        }
        let version = if first.version == second.version {
            first.version.clone()
        } else {
            format!("{}, {}", first.version, second.version)
        };
        let name = if self.is_beside { first.name } else { format!("{} + {}", first.name, second.name) };
        Identity { name, version, parameters }
    }

    fn factors(&self) -> Vec<Factor> {
        let mut factors = self.kinds[0].factors();
        for factor in self.kinds[1].factors() {
            if !factors.contains(&factor) {
                factors.push(factor);
            }
        }
        factors
    }

    fn factors_of(&self, connection: usize) -> Vec<Factor> {
        self.kinds[connection % 2].factors_of(connection)
    }

    fn kinds(&self) -> usize {
        self.kinds.len()
    }

    fn alone(&self) -> Vec<Box<dyn Contender + '_>> {
        if self.is_beside {
            return Vec::new();
        }
        let kinds = self.kinds.iter().enumerate();
        kinds.map(|(kind, inner)| Box::new(Alone { inner: inner.as_ref(), kind }) as Box<dyn Contender>).collect()
    }

    fn build(&self, spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        let mut parts = Vec::with_capacity(2);
        for (kind, inner) in self.kinds.iter().enumerate() {
            parts.push(part(inner.as_ref(), kind, spec)?);
        }
        let (mut pairs, mut views, mut measured) = (Vec::new(), Vec::new(), Vec::new());
        for nodes in parts {
            pairs.push(nodes.pairs.into_iter());
            views.push(nodes.views.into_iter());
            measured.push(nodes.measured);
        }
        let count = spec.connections.len();
        let pairs: Vec<_> = (0..count).filter_map(|index| pairs[index % 2].next()).collect();
        // Of a kind that shows nothing there is nothing to see beside the other.
        let shown: usize = views.iter().map(ExactSizeIterator::len).sum();
        let views = match shown == count {
            true => (0..count).filter_map(|index| views[index % 2].next()).collect(),
            false => Vec::new(),
        };
        let measured = move || {
            let mut kinds: Vec<_> = measured.into_iter().map(|measured| measured().into_iter()).collect();
            (0..count).filter_map(|index| kinds[index % 2].next()).collect()
        };
        // Nobody watches rivals in real time.
        Ok(Nodes { pairs, measured: Box::new(measured), views, rtts: Vec::new() })
    }
}

/// One kind's nodes.
fn part(inner: &dyn Contender, kind: usize, spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
    let own: Vec<ConnectionSpec> = spec.connections.iter().filter(|one| one.index % 2 == kind).copied().collect();
    inner.build(&RunSpec { connections: &own, ..*spec })
}

/// One kind with the other silent.
struct Alone<'a> {
    inner: &'a dyn Contender,
    kind: usize,
}

impl Contender for Alone<'_> {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn factors(&self) -> Vec<Factor> {
        self.inner.factors()
    }

    fn build(&self, spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        let (kind, count) = (self.kind, spec.connections.len());
        let nodes = part(self.inner, kind, spec)?;
        let mut own = nodes.pairs.into_iter();
        let silent = || -> (Box<dyn Node>, Box<dyn Node>) { (Box::new(Silent), Box::new(Silent)) };
        let pair = |index: usize| if index % 2 == kind { own.next() } else { Some(silent()) };
        let pairs = (0..count).filter_map(pair).collect();
        let measured = move || {
            let mut own = (nodes.measured)().into_iter();
            let one = |index: usize| if index % 2 == kind { own.next() } else { Some(Measured::default()) };
            (0..count).filter_map(one).collect()
        };
        Ok(Nodes { pairs, measured: Box::new(measured), views: Vec::new(), rtts: Vec::new() })
    }
}

/// A node that does nothing.
struct Silent;

impl Node for Silent {
    fn handle(&mut self, _now: Instant, _datagram: Option<Datagram>, _out: &mut Outbox) {}
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        None
    }
    fn finished(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{figure::Figure, record::RunOutcome, run::run_one, scenario::parse, tiderace::contender};

    const SHARED: &str = r#"
name = "shared"
title = "Shared"
about = "Two kinds on one path."
[path.down]
rate = "10 Mbit/s"
queue = "60 kB"
delay = "20 ms"
[traffic]
workload = "bulk"
connections = 2
[run]
warmup = "5 s"
duration = "20 s"
seeds = 1
"#;

    fn figures(first: &str, second: &str) -> [f64; 4] {
        let scenario = parse(SHARED, "a test").unwrap();
        let rivals = Rivals::new(contender(first).unwrap(), contender(second).unwrap());
        let record = run_one(&scenario, &rivals, 1, None);
        assert_eq!(record.outcome, RunOutcome::Valid);
        let controllers: Vec<&str> = record.connections.iter().map(|one| one.evidence[0].value.as_str()).collect();
        assert_eq!(controllers, [first, second]);
        [Figure::Share, Figure::HarmFirst, Figure::HarmSecond, Figure::HarmDelaySecond]
            .map(|figure| record.figures[&figure].value.unwrap())
    }

    #[test]
    fn who_takes_more_does_more_harm() {
        let [share, first, second, delay] = figures("cubic", "newreno");
        assert!((0.05..0.95).contains(&share), "{share}");
        // Alone each fills the link: what it loses beside the other is what the other gets.
        assert!((first - (1.0 - share)).abs() < 0.06 && (second - share).abs() < 0.06, "{share} {first} {second}");
        assert!(delay.abs() < 0.6, "{delay}");
    }
}
