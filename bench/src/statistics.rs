//! From runs to figures: the cost of a unit of work, and ratios to a yardstick of the same round.

use serde::Serialize;

use crate::{meter::SideReport, mode::Mode, peers::Peer, run::Run};

/// One of the three costs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's process.
    Client,
    /// The server's process.
    Server,
    /// Both.
    Sum,
}

/// A ratio over rounds, each taken within its round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Rounds that have both.
    pub rounds: usize,
}

/// Cost of one contender on one side: nanoseconds of CPU time per unit, or bytes of memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Least of all runs.
    pub min: f64,
    /// Median of all runs.
    pub median: f64,
    /// Ratios to the mode's yardsticks, in their order; absent for one that did not run.
    pub ratios: Vec<(Peer, Option<Ratio>)>,
    /// For many streams or connections: the ratio to the contender's own single stream.
    pub to_single: Option<Ratio>,
}

/// All figures of one contender in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The mode.
    pub mode: Mode,
    /// The contender.
    pub peer: Peer,
    /// Runs that ended well.
    pub runs: usize,
    /// The client's cost; absent where only the server's is measured.
    pub client: Option<Cost>,
    /// The server's cost.
    pub server: Cost,
    /// The cost of both together.
    pub sum: Option<Cost>,
    /// Median of bytes, handshakes, requests or datagrams per second of wall time.
    pub per_second: f64,
    /// Least part of the datagrams that arrived; absent where all have to.
    pub delivered: Option<f64>,
    /// Most CPUs that others used during one of the runs.
    pub foreign_cores_max: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 ns")]
fn cpu_per_unit(side: &SideReport) -> f64 {
    side.cpu_ns as f64 / side.units as f64
}

/// Cost of a unit of work on a side: nanoseconds of CPU time, or bytes of memory.
#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 bytes")]
pub fn cost_of(run: &Run, side: Side) -> Option<f64> {
    // The client waits for the time of its requests without a sleep, so that its CPU time means nothing.
    if run.mode == Mode::Latency && side != Side::Server {
        return None;
    }
    if run.mode == Mode::Idle {
        let growth = run.server.memory_growth? as f64 / run.server.units as f64;
        return (side == Side::Server).then_some(growth);
    }
    Some(match side {
        Side::Client => cpu_per_unit(&run.client),
        Side::Server => cpu_per_unit(&run.server),
        Side::Sum => cpu_per_unit(&run.client) + cpu_per_unit(&run.server),
    })
}

/// Units per second of wall time: of the server, which sees them arrive; in handshakes and requests, of the client, which
/// sees them complete.
#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 ns")]
pub fn per_second(run: &Run) -> f64 {
    let side = match run.mode {
        Mode::Handshake | Mode::Resumed | Mode::PostQuantum | Mode::Requests | Mode::Idle | Mode::Latency => {
            &run.client
        }
        _ => &run.server,
    };
    side.units as f64 * 1e9 / side.wall_ns.max(1) as f64
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

/// Each of `runs` divided by the run of the same round that `beside` picks.
fn ratio<'a>(runs: &'a [Run], own: impl Fn(&Run) -> bool, beside: impl Fn(&Run) -> bool, side: Side) -> Option<Ratio> {
    let within_round = |run: &'a Run| {
        let other = runs.iter().find(|other| other.round == run.round && beside(other))?;
        Some(cost_of(run, side)? / cost_of(other, side)?)
    };
    let ratios: Vec<f64> = runs.iter().filter(|run| own(run)).filter_map(within_round).collect();
    Some(Ratio {
        median: median(ratios.iter().copied())?,
        min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        max: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        rounds: ratios.len(),
    })
}

fn cost(runs: &[Run], mode: Mode, peer: Peer, side: Side) -> Option<Cost> {
    let own = |run: &Run| run.mode == mode && run.peer == peer;
    let costs = || runs.iter().filter(|run| own(run)).filter_map(|run| cost_of(run, side));
    let to = |yardstick: Peer| ratio(runs, own, |run| run.mode == mode && run.peer == yardstick, side);
    let single = |run: &Run| run.mode == Mode::Bulk && run.peer == peer;
    Some(Cost {
        min: costs().min_by(f64::total_cmp)?,
        median: median(costs())?,
        ratios: mode.yardsticks().iter().map(|&yardstick| (yardstick, to(yardstick))).collect(),
        to_single: if mode.moves_bytes() && mode != Mode::Bulk { ratio(runs, own, single, side) } else { None },
    })
}

/// The figures of each contender that has a run in this mode, in the order of `peers`.
pub fn summarise(runs: &[Run], mode: Mode, peers: &[Peer]) -> Vec<Summary> {
    let summary = |&peer: &Peer| {
        let own = || runs.iter().filter(move |run| run.mode == mode && run.peer == peer);
        Some(Summary {
            mode,
            peer,
            runs: own().count(),
            client: cost(runs, mode, peer, Side::Client),
            server: cost(runs, mode, peer, Side::Server)?,
            sum: cost(runs, mode, peer, Side::Sum),
            per_second: median(own().map(per_second))?,
            delivered: delivered(mode, own()),
            foreign_cores_max: own().map(|run| run.foreign_cores).fold(0.0, f64::max),
        })
    };
    peers.iter().filter_map(summary).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 datagrams")]
fn delivered<'a>(mode: Mode, runs: impl Iterator<Item = &'a Run>) -> Option<f64> {
    let part = |run: &Run| run.server.units as f64 / run.client.units as f64;
    (mode == Mode::Datagrams).then(|| runs.map(part).fold(1.0, f64::min))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::meter::{Meter, Role};

    /// A run of one GiB that cost `client` and `server` CPU milliseconds.
    pub fn run(mode: Mode, peer: Peer, round: u32, client_ms: u64, server_ms: u64) -> Run {
        let side = |role, ms: u64| SideReport {
            cpu_ns: ms * 1_000_000,
            wall_ns: 1 << 30,
            ..Meter::start().report(role, 1 << 30)
        };
        Run {
            mode,
            peer,
            round,
            foreign_cores_before: 0.0,
            quiet_before: true,
            foreign_cores: 0.01,
            stolen_cores: 0.0,
            client: side(Role::Client, client_ms),
            server: side(Role::Server, server_ms),
        }
    }

    fn bulk(peer: Peer, round: u32, client_ms: u64, server_ms: u64) -> Run {
        run(Mode::Bulk, peer, round, client_ms, server_ms)
    }

    fn to(cost: &Cost, yardstick: Peer) -> Option<Ratio> {
        cost.ratios.iter().find(|(peer, _)| *peer == yardstick).and_then(|(_, ratio)| *ratio)
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
            bulk(Peer::Floor, 1, 100, 200),
            bulk(Peer::Quinn, 1, 300, 800),
            bulk(Peer::Floor, 2, 300, 600),
            bulk(Peer::Quinn, 2, 900, 2_400),
        ];
        let summaries = summarise(&runs, Mode::Bulk, &[Peer::Floor, Peer::Quinn]);
        let [floor, quinn] = &summaries[..] else { panic!("two contenders") };
        assert_eq!(to(&floor.server, Peer::Floor).unwrap().median, 1.0);
        let client = quinn.client.as_ref().unwrap();
        let ratio = to(client, Peer::Floor).unwrap();
        assert!((ratio.median - 3.0).abs() < 1e-9 && (ratio.max - ratio.min).abs() < 1e-9 && ratio.rounds == 2);
        assert!((to(&quinn.server, Peer::Floor).unwrap().median - 4.0).abs() < 1e-9);
        assert!((client.median - 600.0 * 1e6 / 1_073_741_824.0).abs() < 1e-9);
        assert!((quinn.per_second - 1e9).abs() < 1.0);
    }

    #[test]
    fn a_round_without_the_yardstick_gives_no_ratio() {
        let runs = [bulk(Peer::Floor, 1, 100, 100), bulk(Peer::Quinn, 2, 300, 300)];
        let summaries = summarise(&runs, Mode::Bulk, &[Peer::Quinn, Peer::TcpRustls]);
        assert_eq!(summaries.len(), 1, "a contender without a run has no figures");
        assert_eq!(to(&summaries[0].server, Peer::Floor), None);
        assert_eq!(to(&summaries[0].server, Peer::Quinn).unwrap().median, 1.0);
    }

    #[test]
    fn many_connections_are_compared_with_one() {
        let runs = [bulk(Peer::Quinn, 1, 100, 100), run(Mode::BulkConnections, Peer::Quinn, 1, 110, 130)];
        let many = &summarise(&runs, Mode::BulkConnections, &[Peer::Quinn])[0];
        assert!((many.sum.as_ref().unwrap().to_single.unwrap().median - 1.2).abs() < 1e-9);
        let one = &summarise(&runs, Mode::Bulk, &[Peer::Quinn])[0];
        assert_eq!(one.server.to_single, None);
    }

    #[test]
    fn idle_connections_cost_memory_at_the_server() {
        let mut idle = run(Mode::Idle, Peer::Quinn, 1, 5, 5);
        idle.server.memory_growth = Some(3 << 30);
        let summary = &summarise(&[idle], Mode::Idle, &[Peer::Quinn])[0];
        assert_eq!((summary.server.median, &summary.client, &summary.sum), (3.0, &None, &None));
    }
}
