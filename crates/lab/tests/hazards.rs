//! Hazards of congestion control that are known from the field, each where it would hurt.

use std::sync::{Arc, Mutex};

use netem::Reorder;
use tiderace_lab::reference::flows::{Flow, Plan, run};
use transport::{
    Profile,
    observe::{Observer, ObserverFactory, RecoveryMetrics, Start},
};
use units::{Bitrate, Duration, Instant, Probability};

/// What the sender showed: when, its state, the bytes in flight.
type Moment = (Instant, &'static str, u64);

#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Vec<Moment>>>);

impl Observer for Watch {
    fn metrics(&mut self, now: Instant, metrics: &RecoveryMetrics) {
        self.0.lock().unwrap().push((now, metrics.state, metrics.in_flight));
    }
}

impl ObserverFactory for Watch {
    fn observe(&self, _now: Instant, _start: &Start) -> Option<Box<dyn Observer>> {
        Some(Box::new(self.clone()))
    }
}

/// ProbeRTT empties a part of the pipe every five seconds: half of it, for 200 ms and a round trip, and no more.
#[test]
fn the_dip_of_probe_rtt_is_half_the_pipe_for_a_moment() {
    let (rate, rtt) = (Bitrate::from_mbps(20), Duration::from_millis(50));
    let plan = Plan { duration: Duration::from_secs(40), ..Plan::new(rate, rtt, 2.0, 0.0) };
    let watch = Watch::default();
    let profile = Profile { congestion: "bbr3".parse().unwrap(), ..Profile::default() };
    let flow = Flow { watch_sender: Some(Arc::new(watch.clone())), ..Flow::new(profile) };
    let goodput = run(&plan, &[flow], 1).unwrap().flows[0].goodput;
    let bdp = rate.in_time(rtt).as_bytes();
    let seen = watch.0.lock().unwrap();
    let (mut dips, mut since) = (0, None);
    for &(at, state, in_flight) in seen.iter() {
        if state == "probe_rtt" {
            let begin = *since.get_or_insert(at);
            assert!(at - begin <= Duration::from_millis(200) + 3 * rtt, "a dip of {:?}", at - begin);
            assert!(in_flight * 10 >= bdp * 3, "{in_flight} of {bdp} bytes in flight");
        } else if since.take().is_some() {
            dips += 1;
        }
    }
    assert!((5..=9).contains(&dips), "{dips} dips in 43 s");
    assert!(goodput > 0.9 * 20e6, "{goodput}");
}

/// Acknowledgements for ten packets each, on a path that swaps packets: a loss that is none is found to be none, and goodput
/// stays.
#[test]
fn reordering_and_sparse_acknowledgements() {
    for (controller, least) in [("cubic", 0.9), ("bbr3", 0.9)] {
        let goodput = |ack: &str, reordered: bool| {
            let mut plan = Plan::new(Bitrate::from_mbps(20), Duration::from_millis(50), 1.0, 0.0);
            if reordered {
                let share = Probability::new(0.01).unwrap();
                plan.down.reorder = Some(Reorder { probability: share, delay: Duration::from_millis(5) });
            }
            let profile = Profile {
                congestion: controller.parse().unwrap(),
                ack_frequency: ack.parse().unwrap(),
                ..Profile::default()
            };
            run(&plan, &[Flow::new(profile)], 1).unwrap().flows[0].goodput
        };
        let (plain, dense, sparse) = (goodput("off", false), goodput("off", true), goodput("fixed:10", true));
        println!("{controller}: {plain} without reordering, {dense} with it, {sparse} with sparse acknowledgements");
        assert!(dense > least * plain && sparse > least * plain, "{controller}: {plain} {dense} {sparse}");
    }
}
