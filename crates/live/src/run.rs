//! One run in real time: network, contender, and the measurements of both.

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
}

/// Runs one contender with one seed. A run that cannot be used yields a record that says so. The scenario's path must not be one of its
/// factors; [`emu::network::Privilege::acquire`] comes first.
pub fn run_one(scenario: &Scenario, contender: &dyn Contender, seed: u64, conditions: Conditions) -> Record {
    run_in_real_time(scenario, contender, seed, &|spec| pass(contender, spec, conditions, None))
}

/// Runs one contender with one seed, as [`run_one`] does, and shows it while it goes on.
pub fn run_watched(
    scenario: &Scenario,
    contender: &dyn Contender,
    seed: u64,
    conditions: Conditions,
    watch: &Watch<'_>,
) -> Record {
    run_in_real_time(scenario, contender, seed, &|spec| pass(contender, spec, conditions, Some(watch)))
}

fn pass(
    contender: &dyn Contender,
    spec: &RunSpec<'_>,
    conditions: Conditions,
    watch: Option<&Watch<'_>>,
) -> Result<Passage, String> {
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
    let doubt = statistics.doubt().or(busy).map(|reason| format!("not to be trusted: {reason}"));
    let doubt = failure.or(doubt);
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
    };
    let (link, queueing) = loaded(spec.scenario.traffic.direction, ends.emulator);
    Ok(Passage {
        measured: ends.measured,
        smoothed_rtts: ends.smoothed_rtts,
        delivery_rate: ends.delivery_rate,
        link,
        queueing,
        real_time,
        doubt,
    })
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
