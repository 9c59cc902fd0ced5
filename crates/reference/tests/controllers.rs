//! NewReno and CUBIC in the simulator beside recursions of a few lines, on a path that loses every so manieth packet.
//!
//! Simulation and recursion leave nothing to chance, but differ in what the recursion does not have (acknowledgements of two packets,
//! pacing, the handshake), by an amount that depends on the cell. All cells were verified ([`every_cell_is_within_its_tolerance`]);
//! a day takes three of them.

use lab::{
    figure::Figure,
    record::RunOutcome,
    reference::{
        flows::{Flow, Plan, run},
        shares::{Effort, pairs},
    },
    run::run_one,
    scenario::parse,
    stats::fairness::jain,
    tiderace::contender,
};
use netem::{Loss, LossTrace};
use tiderace_reference::{
    day, fluid,
    share::{Bottleneck, of_newreno_beside_cubic},
    window::{Cubic, NewReno, per_round},
};
use transport::{Profile, congestion::Algorithm};
use units::{Bitrate, Duration};

/// Controller, every how manieth packet is lost, round-trip time in milliseconds.
const CELLS: [(&str, u64, u64); 11] = [
    ("newreno", 300, 40),
    ("newreno", 300, 100),
    ("newreno", 600, 40),
    ("newreno", 600, 100),
    ("newreno", 1_200, 60),
    ("cubic", 300, 20),
    ("cubic", 600, 20),
    ("cubic", 2_000, 100),
    ("cubic", 4_000, 100),
    ("cubic", 4_000, 200),
    ("cubic", 8_000, 100),
];

/// The largest difference of all cells is 3.8 %.
const TOLERANCE: f64 = 0.06;

/// Packets that arrive in a round trip, in the simulator and by the recursion.
fn both((controller, period, rtt): (&str, u64, u64)) -> (f64, f64) {
    let seconds = 60.max(rtt * 600 / 1_000);
    let mut scenario = parse(
        &format!(
            "name = \"reference\"\ntitle = \"r\"\nabout = \"r\"\n[path.down]\nrate = \"400 Mbit/s\"\nqueue = \"40 MB\"\n\
             delay = \"{half} ms\"\n[traffic]\nworkload = \"bulk\"\nconnections = 1\n[run]\nwarmup = \"20 s\"\n\
             duration = \"{seconds} s\"\nseeds = 1\n",
            half = rtt / 2
        ),
        "reference",
    )
    .unwrap();
    let text: String = (1..=period).map(|place| if place == period { '1' } else { '0' }).collect();
    scenario.path.up = Some(scenario.path.down.clone());
    scenario.path.down.loss = Loss::Trace(LossTrace::parse("every so many", &text).unwrap());
    let record = run_one(&scenario, contender(controller).unwrap().as_ref(), 1, None);
    assert_eq!(record.outcome, RunOutcome::Valid);
    let one = &record.connections[0];
    let payload = one.stream_bytes_sent.unwrap() as f64 / one.packets_sent.unwrap() as f64;
    let seconds_of_rtt = rtt as f64 / 1e3;
    let measured = record.figures[&Figure::Goodput].value.unwrap() / 8.0 * seconds_of_rtt / payload;
    let rounds = (60.0 / seconds_of_rtt) as u32;
    let expected = match controller {
        "newreno" => per_round(&mut NewReno, period, seconds_of_rtt, rounds),
        _ => per_round(&mut Cubic::new(seconds_of_rtt), period, seconds_of_rtt, rounds),
    };
    (measured, expected)
}

fn compare(cell: (&str, u64, u64)) -> f64 {
    let (measured, expected) = both(cell);
    let off = measured / expected - 1.0;
    println!("{cell:?}: {measured:.2} packets in a round trip, {expected:.2} by the recursion, {:+.1} %", off * 100.0);
    off
}

#[test]
fn three_cells_of_the_day() {
    let mut draws = day::draws(6);
    for _ in 0..3 {
        let cell = draws.one_of(&CELLS);
        let off = compare(cell);
        assert!(off.abs() < TOLERANCE, "{cell:?}: {:+.1} %", off * 100.0);
    }
}

/// All cells that days draw from. Takes a minute; run it after a change of a controller: `cargo test -p tiderace-reference -- --ignored`.
#[test]
#[ignore = "all cells; days take three of them"]
fn every_cell_is_within_its_tolerance() {
    let worst = CELLS.map(|cell| compare(cell).abs()).into_iter().fold(0.0, f64::max);
    assert!(worst < TOLERANCE, "{:.1} %", worst * 100.0);
}

/// Mbit/s, and flows of one propagation delay in milliseconds. Flows with different delays are left out: they may stay in competition with
/// each other, of which the fluid knows nothing.
const EQUILIBRIA: [(u32, &[u64]); 3] = [(20, &[50]), (40, &[50, 50]), (40, &[40, 40, 40, 40])];

/// Median queueing delay in milliseconds and Jain's index of `auto` flows in the simulator and in the fluid model.
fn equilibrium((mbps, delays): (u32, &[u64])) -> [(f64, f64); 2] {
    let plan = Plan {
        warmup: Duration::from_secs(15),
        duration: Duration::from_secs(10),
        ..Plan::new(Bitrate::from_mbps(mbps.into()), Duration::from_millis(delays[0]), 4.0, 0.0)
    };
    let flow = |index: usize| Flow {
        start: Duration::from_millis(index as u64 * 137),
        ..Flow::new(Profile { congestion: Algorithm::Auto, ..Profile::default() })
    };
    let flows: Vec<Flow> = (0..delays.len()).map(flow).collect();
    let outcome = run(&plan, &flows, 1).unwrap();
    let goodputs: Vec<f64> = outcome.flows.iter().map(|flow| flow.goodput).collect();
    let simulated = (outcome.queueing_quantiles[0].as_secs_f64() * 1e3, jain(&goodputs).unwrap());

    let mut fluid: Vec<fluid::Flow> = delays
        .iter()
        .map(|&delay| fluid::Flow { window: 14_720.0, propagation: f64::from(u32::try_from(delay).unwrap()) / 1e3 })
        .collect();
    let capacity = f64::from(mbps) * 1e6 / 8.0;
    let wait = fluid::settle(capacity, &mut fluid, 60.0);
    [simulated, (wait * 1e3, jain(&fluid::rates(&fluid, wait)).unwrap())]
}

/// The equilibrium of `auto` flows is that of the fluid model: Jain's index above 0.95, and a queueing delay within 50 %.
#[test]
fn auto_rests_where_the_fluid_does() {
    for cell in EQUILIBRIA {
        let [(wait, index), (expected, even)] = equilibrium(cell);
        println!("{cell:?}: {wait:.2} ms and {index:.3} in the simulator, {expected:.2} ms and {even:.3} as a fluid");
        assert!(even > 0.99 && index > 0.95, "{cell:?}: {index} {even}");
        assert!(wait > 0.7 * expected && wait < 1.4 * expected, "{cell:?}: {wait} {expected}");
    }
}

/// Queues in bandwidth-delay products for shares. A queue of half a product is left out: there the share is a matter of how many packets
/// of a burst fit, and the reference has neither pacing nor acknowledgements of two packets.
const QUEUES: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
/// Points. Medians of the simulator and of the reference differ by at most 7; a NewReno that grew at half its speed is 13 off.
const POINTS: f64 = 10.0;

/// Median share of NewReno beside CUBIC in per cent over start offsets from -3 to 3 s, in the simulator and by the reference.
fn shares(queue: f64, offsets: u32) -> (f64, f64) {
    let middle = |mut shares: Vec<f64>| {
        shares.sort_by(f64::total_cmp);
        100.0 * (shares[(shares.len() - 1) / 2] + shares[shares.len() / 2]) / 2.0
    };
    let simulated = pairs("newreno", "cubic", queue, Effort { offsets, seconds: 60 }).unwrap();
    let simulated = middle(simulated.iter().map(|[newreno, cubic]| newreno / (newreno + cubic)).collect());
    // 20 Mbit/s and 50 ms, packets of 1,228 bytes with their headers.
    let rate = 20e6 / 8.0 / 1_228.0;
    let path = Bottleneck { rate, rtt: 0.05, queue: queue * rate * 0.05 };
    let of = |index: u32| {
        let offset = (f64::from(index) + 0.5) / f64::from(offsets) * 6.0 - 3.0;
        of_newreno_beside_cubic(path, [offset.max(0.0), (-offset).max(0.0)], 20.0, 80.0)
    };
    let expected = middle((0..offsets).map(of).collect());
    println!("NewReno beside CUBIC, {queue} BDP: {simulated:.1} % in the simulator, {expected:.1} % by the reference");
    (simulated, expected)
}

#[test]
fn a_share_of_the_day() {
    let queue = day::draws(7).one_of(&QUEUES);
    let (simulated, expected) = shares(queue, 6);
    assert!((simulated - expected).abs() < POINTS, "{queue} BDP: {simulated:.1} % {expected:.1} %");
}

#[test]
#[ignore = "every queue with 6 and 10 offsets; `a_share_of_the_day` takes one"]
fn every_share_is_within_its_tolerance() {
    for queue in QUEUES {
        for offsets in [6, 10] {
            let (simulated, expected) = shares(queue, offsets);
            assert!((simulated - expected).abs() < POINTS, "{queue} BDP: {simulated:.1} % {expected:.1} %");
        }
    }
}
