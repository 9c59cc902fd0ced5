//! Controller of `auto`: the amount of repair that is worth its bytes.
//!
//! It estimates the share of lost packets and the mean length of bursts. Then it looks up the least repair that meets the target in the
//! table ([`super::table`], computed by running the codes over simulated paths). It sends no repair if a retransmission is as fast, if
//! almost no packet is lost, or if repair would displace data.

use fec::Scheme;
use units::{Duration, Instant};

use super::{estimate::Estimate, table, tail::loses_nothing};

/// RTT below which a retransmission is quick enough.
pub(super) const LEAST_RTT: Duration = Duration::from_micros(22_500);
/// Share of lost packets below which there is no repair.
pub(super) const LEAST_LOSS: f64 = 0.001;
/// Share of packets lost above which no permitted code helps.
const MOST_LOSS: f64 = 0.25;
/// Packets after which little loss and much loss can be distinguished.
const SHOWN: f64 = 50.0;
/// Share of packets lost above which the repair symbols of a short message are too few.
const ENDS_LOSS: f64 = 0.05;
/// Share of the smallest RTT for which packets wait when a queue grows.
const QUEUE_SHARE: f64 = 0.25;
/// Target for the share of symbols that stay lost after repair: of a hundred messages in order, less than one waits for a
/// retransmission, which holds up the messages of most of a round trip.
const TARGET: f64 = 0.0002;
/// Targets where no permitted code reaches [`TARGET`].
const LOOSE_TARGETS: [f64; 2] = [0.001, 0.01];
/// Share of the RTT within which repair has to arrive, before a retransmission would.
const IN_TIME: f64 = 0.75;
/// The window held data back within this many round trips.
const BULK_ROUNDS: u32 = 2;

/// Measurements of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) smoothed_rtt: Duration,
    pub(crate) min_rtt: Duration,
    /// Packets newly acknowledged and lost.
    pub(crate) acked: u64,
    pub(crate) lost: u64,
    /// Packets were marked.
    pub(crate) marked: bool,
}

impl View {
    /// Returns whether a queue grows.
    fn has_queue(&self) -> bool {
        let waiting = self.smoothed_rtt.saturating_sub(self.min_rtt);
        waiting.as_secs_f64() > QUEUE_SHARE * self.min_rtt.as_secs_f64()
    }
}

/// Requirements on protection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Packets per second.
    pub(super) rate: f64,
    /// Share of the strictest data that may stay lost; above 1 when there was none.
    pub(super) tolerated: f64,
    /// Window or pacing have held data back for long.
    pub(super) bulk: bool,
}

/// Inputs of a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Mean number of packets that are lost in a row.
    pub burst: f64,
    /// Packets per second.
    pub rate: f64,
    /// The time in which repair has to arrive.
    pub deadline: Duration,
    /// Share of packets that may remain lost.
    pub target: f64,
}

/// The code with the least repair that leaves no more than the target, in time; `None` when none does.
pub fn choose(conditions: &Conditions) -> Option<Scheme> {
    let Conditions { loss, burst, rate, deadline, target } = *conditions;
    let slots = rate * deadline.as_secs_f64();
    // Everything is rounded to where it is harder.
    let target = table::TARGETS.iter().rposition(|at| *at <= target)?;
    let slots = table::SLOTS.iter().rposition(|at| *at <= slots)?;
    let burst = table::BURSTS.iter().position(|at| burst <= *at * 1.15)?;
    let loss = table::LOSSES.iter().position(|at| loss <= *at)?;
    let choice = table::CHOICES[target][slots][burst][loss];
    table::CODES.get(usize::from(choice)).copied()
}

/// Owns the choice.
#[derive(Debug, Default)]
pub(crate) struct Controller {
    bulk_until: Option<Instant>,
    marked_until: Option<Instant>,
    choice: Option<(Scheme, u8)>,
}

impl Controller {
    /// The lightest code, to begin with.
    pub(crate) const LEAST: Scheme = Scheme::Window { repairs: 1, sources: 20, window: 40 };
    /// The code while only the ends of messages are covered: hardly any repair in their middle.
    pub(super) const ENDS: Scheme = Scheme::Window { repairs: 1, sources: 250, window: 40 };

    /// The code to use from here on, and how many repair symbols end a message; `None` for none.
    pub(super) fn review(
        &mut self,
        now: Instant,
        view: &View,
        estimate: &Estimate,
        demand: &Demand,
    ) -> Option<(Scheme, u8)> {
        let rounds = |count: u32| now + view.smoothed_rtt * count;
        if demand.bulk {
            self.bulk_until = Some(rounds(BULK_ROUNDS));
        }
        if view.marked {
            self.marked_until = Some(rounds(4));
        }
        let queue = view.has_queue();
        // Once on, it continues until it is not needed; before, a loss or two that came by chance prove nothing.
        let loss = if self.choice.is_some() { estimate.loss() } else { estimate.loss_at_least() };
        let off = view.min_rtt < LEAST_RTT || loss < LEAST_LOSS || estimate.loss() > MOST_LOSS || self.is_barred(now);
        if off {
            self.choice = None;
            return None;
        }
        // Loss that comes with a queue is ours: more repair would make it worse.
        if queue && self.choice.is_some() {
            return self.choice;
        }
        let deadline = view.min_rtt.mul_f64(IN_TIME);
        let (loss, burst, rate) = (estimate.loss(), estimate.burst(), demand.rate.min(1e6));
        // Data that tolerates any loss asks for nothing; who speaks next may.
        let tolerated = if demand.tolerated > 1.0 { 0.0 } else { demand.tolerated };
        let chosen =
            |loss, target: f64| choose(&Conditions { loss, burst, rate, deadline, target: target.max(tolerated) });
        let scheme = chosen(loss * estimate.margin(), TARGET)
            .or_else(|| chosen(loss, TARGET))
            .or_else(|| LOOSE_TARGETS.into_iter().find_map(|target| chosen(loss, target)));
        // A choice is kept while it does: codes that change with every estimate protect less.
        if let (Some((held, _)), Some(wanted)) = (self.choice, scheme)
            && held.overhead() >= wanted.overhead()
            && held.overhead() < 1.5 * wanted.overhead()
        {
            return self.choice;
        }
        let tail = if loss > 0.02 { 2 } else { 1 };
        self.choice = scheme.map(|scheme| (scheme, tail));
        self.choice
    }

    /// Repair would take the place of data, or add to congestion.
    fn is_barred(&self, now: Instant) -> bool {
        [self.bulk_until, self.marked_until].into_iter().flatten().any(|until| now < until)
    }

    /// Returns whether the ends of short messages are worth repair: their losses cost a round trip, even if too few packets were seen to
    /// choose a code, and a few repair symbols suffice for a short message.
    pub(super) fn permits_ends(&self, now: Instant, view: &View, estimate: &Estimate) -> bool {
        let known = estimate.seen() > SHOWN;
        let enough = estimate.loss() <= if self.choice.is_some() { ENDS_LOSS } else { MOST_LOSS };
        view.min_rtt >= LEAST_RTT
            && !view.has_queue()
            && (enough || !known)
            && !loses_nothing(estimate)
            && !self.is_barred(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(loss: f64, burst: f64, rate: f64, rtt: u32) -> Option<Scheme> {
        choose(&Conditions { loss, burst, rate, deadline: MS * rtt * 3 / 4, target: TARGET })
    }

    #[test]
    fn more_loss_takes_more_repair() {
        let overhead = |loss| at(loss, 1.0, 2000.0, 100).map(|scheme| scheme.overhead());
        let steps = [0.002, 0.01, 0.03, 0.05, 0.08].map(overhead);
        assert!(steps.iter().all(Option::is_some), "{steps:?}");
        assert!(steps.windows(2).all(|pair| pair[0] <= pair[1]), "{steps:?}");
        assert!(steps[0] < steps[4], "{steps:?}");
    }

    #[test]
    fn long_bursts_at_low_rates_are_left_to_copies() {
        assert_eq!(at(0.05, 6.0, 500.0, 100), None);
        assert_eq!(at(0.05, 6.0, 500.0, 50), None);
    }

    fn view(acked: u64, lost: u64) -> View {
        View { smoothed_rtt: 100 * MS, min_rtt: 100 * MS, acked, lost, marked: false }
    }

    const DEMAND: Demand = Demand { rate: 1000.0, tolerated: 0.0, bulk: false };

    fn after(loss_per_cent: u64, demand: Demand, change: impl Fn(&mut View)) -> Option<(Scheme, u8)> {
        let (mut controller, mut estimate) = (Controller::default(), Estimate::default());
        let mut last = None;
        let mut pn = 0;
        for round in 0..200 {
            let mut view = view(100 - loss_per_cent, loss_per_cent);
            change(&mut view);
            for i in 0..loss_per_cent {
                estimate.on_lost(pn + i * 100 / loss_per_cent);
            }
            estimate.on_outcome(view.acked, view.lost);
            pn += 100;
            last = controller.review(Instant::from_millis(100 * round), &view, &estimate, &demand);
        }
        last
    }

    #[test]
    fn off_where_it_does_not_pay() {
        let nothing = |_: &mut View| {};
        assert!(after(5, DEMAND, nothing).is_some());
        assert_eq!(after(0, DEMAND, nothing), None, "nothing is lost");
        assert_eq!(after(5, Demand { bulk: true, ..DEMAND }, nothing), None, "repair would take the place of data");
        let near = |view: &mut View| (view.min_rtt, view.smoothed_rtt) = (20 * MS, 20 * MS);
        assert_eq!(after(5, DEMAND, near), None, "a copy is quick");
        assert_eq!(after(5, DEMAND, |view| view.marked = true), None, "a queue is marked");
        assert_eq!(after(50, DEMAND, nothing), None, "nothing that is permitted helps");
    }

    #[test]
    fn who_tolerates_more_gets_less() {
        let overhead = |tolerated| after(5, Demand { tolerated, ..DEMAND }, |_| {}).unwrap().0.overhead();
        let tolerated = [0.0, 0.01, 0.03].map(overhead);
        assert!(tolerated[0] > tolerated[1] && tolerated[1] > tolerated[2], "{tolerated:?}");
    }

    #[test]
    fn never_more_than_a_third() {
        assert!(table::CODES.iter().all(|code| code.overhead() <= 1.0 / 3.0 + 1e-9));
    }
}
