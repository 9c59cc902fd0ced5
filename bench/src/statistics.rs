//! From runs to figures: CPU seconds per GiB, and ratios to a yardstick of the same round.

use serde::Serialize;

use crate::{meter::SideReport, peers::Peer, run::Run};

/// One of the three costs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The sender's process.
    Sender,
    /// The receiver's process.
    Receiver,
    /// Both.
    Sum,
}

/// What is known about one contender's cost on one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Least CPU seconds per GiB of all runs.
    pub min: f64,
    /// Median CPU seconds per GiB of all runs.
    pub median: f64,
    /// Median over rounds of the ratio to the floor of the same round; absent without the floor.
    pub to_floor: Option<f64>,
    /// Median over rounds of the ratio to quinn of the same round; absent without quinn.
    pub to_quinn: Option<f64>,
}

/// All figures of one contender.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The contender.
    pub peer: Peer,
    /// Runs that ended well.
    pub runs: usize,
    /// The sender's cost.
    pub sender: Cost,
    /// The receiver's cost.
    pub receiver: Cost,
    /// The cost of both together.
    pub sum: Cost,
    /// Median goodput in Gbit/s, as the receiver saw it.
    pub gbit_per_s: f64,
    /// Most CPUs that others used during one of the runs.
    pub foreign_cores_max: f64,
}

/// CPU seconds per GiB of one side, from the first byte to the last.
#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 ns")]
pub fn seconds_per_gib(side: &SideReport) -> f64 {
    side.transfer_cpu_ns as f64 / 1e9 / (side.bytes as f64 / f64::from(1 << 30))
}

/// Goodput of one side in Gbit/s, from the first byte to the last.
#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 ns")]
pub fn gbit_per_s(side: &SideReport) -> f64 {
    side.bytes as f64 * 8.0 / side.transfer_wall_ns.max(1) as f64
}

fn cost_of(run: &Run, side: Side) -> f64 {
    match side {
        Side::Sender => seconds_per_gib(&run.sender),
        Side::Receiver => seconds_per_gib(&run.receiver),
        Side::Sum => seconds_per_gib(&run.sender) + seconds_per_gib(&run.receiver),
    }
}

/// The median; of an even number of values, the mean of the two in the middle. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// The median over rounds of `peer`'s cost divided by the yardstick's cost in the same round.
fn ratio(runs: &[Run], peer: Peer, yardstick: Peer, side: Side) -> Option<f64> {
    median(runs.iter().filter(|run| run.peer == peer).filter_map(|run| {
        let beside = runs.iter().find(|other| other.peer == yardstick && other.round == run.round)?;
        Some(cost_of(run, side) / cost_of(beside, side))
    }))
}

fn cost(runs: &[Run], peer: Peer, side: Side) -> Option<Cost> {
    let costs = || runs.iter().filter(|run| run.peer == peer).map(|run| cost_of(run, side));
    Some(Cost {
        min: costs().min_by(f64::total_cmp)?,
        median: median(costs())?,
        to_floor: ratio(runs, peer, Peer::Floor, side),
        to_quinn: ratio(runs, peer, Peer::Quinn, side),
    })
}

/// The figures of each contender that has a run, in the order of `peers`.
pub fn summarise(runs: &[Run], peers: &[Peer]) -> Vec<Summary> {
    let summary = |&peer: &Peer| {
        let of_peer = || runs.iter().filter(move |run| run.peer == peer);
        Some(Summary {
            peer,
            runs: of_peer().count(),
            sender: cost(runs, peer, Side::Sender)?,
            receiver: cost(runs, peer, Side::Receiver)?,
            sum: cost(runs, peer, Side::Sum)?,
            gbit_per_s: median(of_peer().map(|run| gbit_per_s(&run.receiver)))?,
            foreign_cores_max: of_peer().map(|run| run.foreign_cores).fold(0.0, f64::max),
        })
    };
    peers.iter().filter_map(summary).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::meter::{Meter, Role};

    /// A run of one GiB that cost `sender` and `receiver` CPU seconds.
    pub fn run(peer: Peer, round: u32, sender_ms: u64, receiver_ms: u64) -> Run {
        let side = |role, ms: u64| SideReport {
            transfer_cpu_ns: ms * 1_000_000,
            transfer_wall_ns: 1 << 30,
            ..Meter::first_byte().report(role, 1 << 30)
        };
        Run {
            peer,
            round,
            foreign_cores_before: 0.0,
            quiet_before: true,
            foreign_cores: 0.01,
            stolen_cores: 0.0,
            sender: side(Role::Sender, sender_ms),
            receiver: side(Role::Receiver, receiver_ms),
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The second round is three times as slow for everyone: the ratio does not change, the median does.
        let runs = [
            run(Peer::Floor, 1, 100, 200),
            run(Peer::Quinn, 1, 300, 800),
            run(Peer::Floor, 2, 300, 600),
            run(Peer::Quinn, 2, 900, 2_400),
        ];
        let [floor, quinn] = summarise(&runs, &[Peer::Floor, Peer::Quinn])[..] else { panic!("two contenders") };
        assert_eq!((floor.sender.to_floor, floor.sum.to_floor), (Some(1.0), Some(1.0)));
        assert!((quinn.sender.to_floor.unwrap() - 3.0).abs() < 1e-9);
        assert!((quinn.receiver.to_floor.unwrap() - 4.0).abs() < 1e-9);
        assert!((quinn.sender.median - 0.6).abs() < 1e-9);
        assert!((quinn.sender.min - 0.3).abs() < 1e-9);
        assert!((quinn.sum.median - (1.1 + 3.3) / 2.0).abs() < 1e-9);
        assert!((quinn.gbit_per_s - 8.0).abs() < 1e-9);
    }

    #[test]
    fn a_round_without_the_yardstick_gives_no_ratio() {
        let runs = [run(Peer::Floor, 1, 100, 100), run(Peer::Quinn, 2, 300, 300)];
        let summaries = summarise(&runs, &[Peer::Quinn, Peer::TcpRustls]);
        assert_eq!(summaries.len(), 1, "a contender without a run has no figures");
        assert_eq!(summaries[0].sum.to_floor, None);
        assert_eq!(summaries[0].sum.to_quinn, Some(1.0));
    }
}
