//! One run in real time: network, contender, and the measurements of both.

use std::cell::RefCell;

use emu::network::{DeviceKind, Network, NetworkConfig, Snapshot};
use lab::{
    contender::{Contender, RunSpec},
    measure::LinkWindow,
    record::{RealTime, Record},
    run::{Passage, run_in_real_time, window},
    scenario::{Direction, Scenario},
};
use units::{Duration, Seed};

use crate::{kernel::Kernel, nodes, programs, watch::Watch};

/// Conditions of runs on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// A run counts although other programs use much of the CPU. Packets lost on this machine, and late ones, still make it invalid.
    pub accept_busy: bool,
    /// Devices of the emulated network, as in [`NetworkConfig::device`].
    pub device: Option<DeviceKind>,
    /// Times that a run is made again if this machine let it down ([`Repeats`]).
    pub repeats: usize,
}

/// Runs that are made again because packets were late or lost on this machine, or other programs used much of the CPU: two for each at most. Of
/// many runs half in all, so that a machine that is never quiet takes half as long again, not three times as long.
///
/// ```
/// use tiderace_live::Repeats;
/// assert_eq!(Repeats::of(18).next(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    left: usize,
}

impl Repeats {
    /// Repeats for so many runs.
    pub const fn of(runs: usize) -> Self {
        Self { left: runs.div_ceil(2) }
    }

    /// The next run may be made again so often.
    pub fn next(self) -> usize {
        self.left.min(2)
    }

    /// Takes off those that a run needed.
    pub fn needed(&mut self, record: &Record) {
        let discarded = record.real_time.as_ref().map_or(0, |machine| machine.discarded.len());
        self.left = self.left.saturating_sub(discarded);
    }
}

/// Runs one contender with one seed. A run that cannot be used yields a record that says so. The scenario's path must not be one of its
/// factors; [`emu::network::Privilege::acquire`] comes first.
pub fn run_one(scenario: &Scenario, contender: &dyn Contender, seed: u64, conditions: Conditions) -> Record {
    run(scenario, contender, seed, conditions, None)
}

/// Runs one contender with one seed, as [`run_one`] does, and shows it while it goes on.
pub fn run_watched(
    scenario: &Scenario,
    contender: &dyn Contender,
    seed: u64,
    conditions: Conditions,
    watch: &Watch<'_>,
) -> Record {
    run(scenario, contender, seed, conditions, Some(watch))
}

fn run(
    scenario: &Scenario,
    contender: &dyn Contender,
    seed: u64,
    conditions: Conditions,
    watch: Option<&Watch<'_>>,
) -> Record {
    repeated(conditions.repeats, |is_again| {
        if let Some(watch) = watch.filter(|_| is_again) {
            // An end of the whole is found by the first look of the next run.
            let _ = (watch.see)(&[]);
        }
        let of_machine = RefCell::new(None);
        let record = run_in_real_time(scenario, contender, seed, &|spec| {
            let (passage, doubt) = pass(contender, spec, conditions, watch)?;
            of_machine.replace(doubt);
            Ok(passage)
        });
        (record, of_machine.into_inner())
    })
}

/// The first run without a doubt that is this machine's, or the last. The record has the reasons against those before. `once` learns whether
/// there was one before.
fn repeated(repeats: usize, mut once: impl FnMut(bool) -> (Record, Option<String>)) -> Record {
    let mut discarded = Vec::new();
    loop {
        match once(!discarded.is_empty()) {
            (_, Some(reason)) if discarded.len() < repeats => discarded.push(reason),
            (mut record, _) => {
                if let Some(machine) = &mut record.real_time {
                    machine.discarded = discarded;
                }
                return record;
            }
        }
    }
}

/// Lets the time of a run pass. With the doubt that is this machine's, apart from the program's.
fn pass(
    contender: &dyn Contender,
    spec: &RunSpec<'_>,
    conditions: Conditions,
    watch: Option<&Watch<'_>>,
) -> Result<(Passage, Option<String>), String> {
    let path = &spec.scenario.path;
    let seed = Seed::from_number(spec.seed_number);
    let config = NetworkConfig {
        nat: path.nat.clone(),
        device: conditions.device,
        ..NetworkConfig::new(path.up().clone(), path.down.clone(), seed.child("network", 0))
    };
    let network = Network::start(&config).map_err(|error| error.to_string())?;
    let name = contender.identity().name;
    let (mut commands, mut failure) = (None, None);
    let ends = if let Some(programs) = spec.scenario.contenders.commands.iter().find(|one| one.name == name) {
        let outside = programs::pass(&network, programs, spec, watch)?;
        (commands, failure) = (Some(outside.commands), outside.failure);
        outside.ends
    } else if let Ok(kernel) = Kernel::named(&name) {
        kernel.pass(&network, spec, watch)?
    } else {
        nodes::pass(&network, contender, spec, watch)?
    };
    let statistics = network.stop().map_err(|error| error.to_string())?;
    let busy = statistics.busy().filter(|_| !conditions.accept_busy);
    let of_machine = statistics.doubt().or(busy).map(|reason| format!("not to be trusted: {reason}"));
    // A program that failed would fail again.
    let of_machine = of_machine.filter(|_| failure.is_none());
    let doubt = failure.or_else(|| of_machine.clone());
    let late = |q| statistics.emulator.lateness.quantile_duration(q).map_or(0.0, |late| late.as_secs_f64());
    let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
    let real_time = RealTime {
        lateness: [late(0.5), late(0.99), late(0.999)],
        timer_lateness: statistics.emulator.calibration.quantile_duration(0.99).map_or(0.0, |late| late.as_secs_f64()),
        device: Some(statistics.device.name().to_owned()),
        device_drops: statistics.device_drops,
        foreign: statistics.load.foreign,
        stolen: statistics.load.stolen,
        cpu: ends.cpu.map(seconds),
        cpu_emulator: seconds(statistics.emulator.emulator_cpu),
        cpu_receiving: Some(seconds(statistics.emulator.receiving_cpu)),
        commands,
        discarded: Vec::new(),
    };
    let (link, queueing) = loaded(spec.scenario.traffic.direction, ends.emulator);
    let passage = Passage {
        measured: ends.measured,
        smoothed_rtts: ends.smoothed_rtts,
        delivery_rate: ends.delivery_rate,
        link,
        queueing,
        real_time,
        doubt,
    };
    Ok((passage, of_machine))
}

/// The loaded direction's link while it was measured.
fn loaded(direction: Direction, [before, after]: [Snapshot; 2]) -> (LinkWindow, netem::Histogram) {
    let [up, down] = after.queueing;
    let ((from, to), back, queueing) = match direction {
        Direction::Download => ((before.down, after.down), (before.up, after.up), down),
        Direction::Upload => ((before.up, after.up), (before.down, after.down), up),
    };
    let mut loaded = window(&from, &to);
    loaded.reverse_bytes = back.1.offered.bytes - back.0.offered.bytes;
    (loaded, queueing)
}

#[cfg(test)]
mod tests {
    use lab::{record::RunOutcome, scenario::load, tiderace::contender};

    use super::*;

    /// A record of a run that this machine let down if `doubt` says so.
    fn record(doubt: Option<&str>) -> (Record, Option<String>) {
        let scenario = load("mobile").unwrap();
        let mut record = run_in_real_time(&scenario, contender("cubic").unwrap().as_ref(), 1, &|_| Err(String::new()));
        record.outcome = doubt.map_or(RunOutcome::Valid, |reason| RunOutcome::Failed(reason.to_owned()));
        record.real_time = Some(RealTime::default());
        (record, doubt.map(str::to_owned))
    }

    #[test]
    fn a_run_that_the_machine_let_down_is_made_again() {
        let after = |repeats: usize, doubts: &[Option<&str>]| {
            let mut left = doubts.iter();
            let record = repeated(repeats, |_| record(*left.next().expect("no more runs than these")));
            let is_valid = record.outcome == RunOutcome::Valid;
            (is_valid, record.real_time.unwrap().discarded, left.len())
        };
        let reasons = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        assert_eq!(after(2, &[None, None]), (true, reasons(&[]), 1));
        assert_eq!(after(2, &[Some("late"), None]), (true, reasons(&["late"]), 0));
        assert_eq!(after(2, &[Some("late"), Some("busy"), Some("lost"), None]), (false, reasons(&["late", "busy"]), 1));
        assert_eq!(after(0, &[Some("late"), None]), (false, reasons(&[]), 1));
    }

    #[test]
    fn repeats_are_half_of_the_runs() {
        let mut repeats = Repeats::of(5);
        let (mut one, _) = record(None);
        for left in [2, 2, 1, 0, 0] {
            assert_eq!(repeats.next(), left);
            one.real_time.as_mut().unwrap().discarded = vec![String::new()];
            repeats.needed(&one);
        }
    }
}
