//! The controller on a toy path: one round trip at a time, with a queue, the queue of other flows, and a loss model.

use units::Duration;

use super::super::tests::{ack, loss};
use super::super::{RateSample, Snapshot};
use super::*;

const MTU: u64 = 1200;

/// A path, and one flow on it.
struct Path {
    auto: Auto,
    now: Instant,
    /// Bytes per second.
    rate: u64,
    propagation: Duration,
    /// Queueing delay that others keep up.
    others: Duration,
    /// Every so many packets one is lost whatever the load; 0: none.
    lose_every: u64,
    /// Packets beyond this in one round trip are lost.
    most: u64,
    /// Packets that the application has in a round trip.
    app: u64,
    delivered: u64,
    pn: u64,
    /// States, in order of appearance.
    states: Vec<&'static str>,
    /// Queueing delay of the flow's own making in the last round trip.
    wait: Duration,
    lost: u64,
}

impl Path {
    /// 20 Mbit/s, 50 ms.
    fn new() -> Self {
        Self {
            auto: Auto::new(&Parameters::for_mtu(u16::try_from(MTU).unwrap())),
            now: Instant::ZERO,
            rate: 2_500_000,
            propagation: Duration::from_millis(50),
            others: Duration::ZERO,
            lose_every: 0,
            most: u64::MAX,
            app: u64::MAX,
            delivered: 0,
            pn: 0,
            states: vec![],
            wait: Duration::ZERO,
            lost: 0,
        }
    }

    fn bdp(&self) -> u64 {
        self.rate * u64::try_from(self.propagation.as_millis()).unwrap() / 1000
    }

    /// One round trip: what the window permits leaves, fills the queue, and is acknowledged.
    fn round(&mut self) {
        let packets = (self.auto.window() / MTU).max(1);
        let limited = packets <= self.app;
        let packets = packets.min(self.app);
        let beyond = (packets * MTU).saturating_sub(self.bdp());
        self.wait = Duration::from_nanos(beyond * 1_000_000_000 / self.rate);
        let rtt = self.propagation + self.others + self.wait;
        let prior_delivered = self.delivered;
        let sent_at = self.now;
        for number in 0..packets {
            self.now = sent_at + rtt;
            self.pn += 1;
            let is_lost = number >= self.most || (self.lose_every > 0 && self.pn.is_multiple_of(self.lose_every));
            if is_lost {
                self.lost += 1;
                let packet = LostPacket {
                    pn: self.pn,
                    bytes: u16::try_from(MTU).unwrap(),
                    sent_at,
                    snapshot: Snapshot {
                        delivered: prior_delivered,
                        delivered_at: sent_at,
                        first_sent_at: sent_at,
                        lost: 0,
                        tx_in_flight: 0,
                        app_limited: false,
                    },
                    lost_since_sent: MTU,
                    delivered: self.delivered,
                };
                self.auto.on_packet_lost(self.now, &packet);
                self.auto.on_lost(self.now, &LossSample { random: false, ..loss(sent_at) });
                continue;
            }
            self.delivered += MTU;
            // The queue serves one packet after the other; the whole flight passes in one round trip.
            let share = (packets * MTU * 8 * 1000) / u64::try_from(rtt.as_millis()).unwrap().max(1);
            let rate = RateSample {
                delivered: packets * MTU,
                interval: rtt,
                delivery_rate: Some(Bitrate::from_bps(share.min(self.rate * 8))),
                prior_delivered,
                prior_at: sent_at,
                send_elapsed: rtt,
                ack_elapsed: rtt,
                is_app_limited: !limited,
                tx_in_flight: packets * MTU,
                lost: 0,
            };
            self.auto.on_acked(
                self.now,
                &AckSample {
                    rate: Some(rate),
                    delivered: self.delivered,
                    largest_acked_sent_at: sent_at,
                    window_limited: limited,
                    ..ack(MTU, self.now, rtt)
                },
            );
        }
        if self.states.last() != Some(&self.auto.state()) {
            self.states.push(self.auto.state());
        }
    }

    fn rounds(&mut self, count: u32) {
        for _ in 0..count {
            self.round();
        }
    }

    /// Window in BDP, on average over these round trips.
    fn mean_window(&mut self, count: u32) -> f64 {
        let mut sum = 0;
        for _ in 0..count {
            self.round();
            sum += self.auto.window();
        }
        bytes(sum) / f64::from(count) / bytes(self.bdp())
    }
}

#[test]
fn an_empty_path_is_filled_and_the_queue_stays_short() {
    let mut path = Path::new();
    path.rounds(40);
    assert_eq!(path.states[0], "startup");
    let mut longest = Duration::ZERO;
    for _ in 0..1000 {
        path.round();
        longest = longest.max(path.wait);
    }
    // The target at this rate is 2.8 ms; the window overshoots by what it grows in the round trip of feedback.
    assert!(longest <= Duration::from_millis(8), "{longest:?}");
    let mean = path.mean_window(200);
    assert!((0.95..1.1).contains(&mean), "{mean}");
    assert!(path.states.contains(&"probe_rtt") && !path.states.contains(&"competitive"), "{:?}", path.states);
}

#[test]
fn loss_that_stays_when_less_is_sent_is_not_congestion() {
    let mut path = Path { lose_every: 20, ..Path::new() };
    path.rounds(200);
    assert!(path.states.contains(&"probe_loss"), "{:?}", path.states);
    let share = path.auto.random_loss.share();
    assert!((0.03..0.07).contains(&share), "{share}");
    let mean = path.mean_window(400);
    assert!(mean > 0.95, "{mean}");
}

#[test]
fn loss_that_goes_when_less_is_sent_bounds_the_window() {
    // A policer that passes 60 packets in a round trip, of the 104 that the path would carry.
    let mut path = Path { most: 60, ..Path::new() };
    path.rounds(400);
    assert!(path.auto.random_loss.share() < 0.01, "{}", path.auto.random_loss.share());
    let (lost, delivered) = (path.lost, path.delivered);
    path.rounds(1200);
    let (lost, delivered) = (path.lost - lost, (path.delivered - delivered) / MTU);
    assert!(bytes(lost) < 0.02 * bytes(delivered), "{lost} of {delivered}");
    assert!(delivered > 1200 * 60 * 9 / 10, "{delivered}");
}

#[test]
fn a_queue_that_stays_is_competed_for_until_it_is_gone() {
    // The buffer has room for another product of rate and round trip.
    let mut path = Path { most: 208, ..Path::new() };
    path.rounds(60);
    path.others = Duration::from_millis(30);
    path.rounds(100);
    assert!(path.states.windows(2).any(|pair| pair == ["probe_rtt", "competitive"]), "{:?}", path.states);
    // In delay mode the window would have shrunk to (50 + 3) / (50 + 30) of the product, repeatedly.
    let mean = path.mean_window(100);
    assert!(path.auto.state().starts_with("competitive") && mean > 0.9, "{mean} in {:?}", path.states);
    // The others have gone.
    path.others = Duration::ZERO;
    path.rounds(1200);
    assert!(path.auto.state() == "delay" || path.auto.state() == "probe_rtt", "{:?}", path.states);
    let mean = path.mean_window(200);
    assert!((0.9..1.1).contains(&mean), "{mean}");
}

#[test]
fn a_flow_competes_before_others_have_its_rate() {
    let mut path = Path::new();
    path.rounds(60);
    path.others = Duration::from_millis(30);
    let begun = path.now;
    while path.auto.state() != "competitive" {
        path.round();
        assert!(path.now < begun + Duration::from_secs(3), "{:?}", path.states);
    }
    // 1.5 times the rate of before takes 2.4 products of rate and round trip while others keep up 30 ms; the window has shrunk meanwhile.
    let window = bytes(path.auto.window()) / bytes(path.bdp());
    assert!(window > 1.5, "{window} after {:?}", path.now - begun);
}

#[test]
fn a_queue_that_comes_back_at_once_is_competed_for_without_a_probe() {
    // Three to four targets: a probe has to show whose it is.
    const OTHERS: Duration = Duration::from_millis(10);
    let mut path = Path::new();
    path.rounds(60);
    path.others = OTHERS;
    path.rounds(100);
    assert!(path.auto.state().starts_with("competitive"), "{:?}", path.states);
    path.others = Duration::ZERO;
    while path.auto.state().starts_with("competitive") {
        path.round();
    }
    let (seen, left_at) = (path.states.len(), path.now);
    path.others = OTHERS;
    while path.auto.state() != "competitive" && path.now < left_at + Duration::from_secs(20) {
        path.round();
    }
    assert_eq!(path.states[seen - 1..], ["delay", "competitive"]);
}

#[test]
fn a_late_flow_joins_the_probe_of_others() {
    // It takes the queue that it came to for the path.
    let mut path = Path { others: Duration::from_millis(10), ..Path::new() };
    while path.auto.state() != "delay" {
        path.round();
    }
    path.rounds(10);
    assert_eq!(path.states, ["startup", "delay"]);
    path.others = Duration::ZERO;
    path.rounds(2);
    assert_eq!(path.states, ["startup", "delay", "probe_rtt"]);
}

#[test]
fn a_competitor_joins_the_probe_of_others() {
    let mut path = Path { most: 208, ..Path::new() };
    path.rounds(60);
    path.others = Duration::from_millis(60);
    while !path.states.ends_with(&["competitive", "competitive_probe_rtt", "competitive"]) {
        path.round();
    }
    // The next probe of its own is due 4 s after the last.
    path.rounds(25);
    assert_eq!(path.auto.state(), "competitive", "{:?}", path.states);
    let seen = path.states.len();
    // Not empty, but much shorter than this flow alone could make it.
    path.others = Duration::from_millis(5);
    path.rate *= 2;
    path.rounds(2);
    assert_eq!(path.states[seen..], ["competitive_probe_rtt"]);
}

#[test]
fn a_flow_does_not_compete_with_those_that_have_stopped() {
    const OTHERS: Duration = Duration::from_millis(10);
    let mut path = Path::new();
    path.rounds(60);
    // The second competition lasts four seconds, or until nobody fills the queue.
    for _ in 0..2 {
        path.others = OTHERS;
        while path.auto.state() != "competitive" {
            path.round();
        }
        path.others = Duration::ZERO;
        path.rate *= 4;
        let begun = path.now;
        while path.auto.state().starts_with("competitive") {
            path.round();
            assert!(path.now < begun + Duration::from_secs(1), "{:?}", path.states);
        }
        path.rate /= 4;
    }
}

#[test]
fn a_path_without_delay_has_a_window() {
    // Ten packets take less than a nanosecond there.
    let mut path = Path { propagation: Duration::ZERO, rate: 1_000_000_000_000_000, most: 100, ..Path::new() };
    for _ in 0..200 {
        path.round();
        path.now += Duration::from_millis(10);
        assert!(path.auto.window() >= 2 * MTU, "{} in {:?}", path.auto.window(), path.states);
    }
    assert!(path.states.contains(&"probe_rtt"), "{:?}", path.states);
}

#[test]
fn jitter_is_no_queue() {
    for delays in [&[0, 12][..], &[0, 6, 12, 18, 24, 18, 12, 6][..]] {
        let mut path = Path::new();
        path.rounds(60);
        let mut sum = 0.0;
        for round in 0..400 {
            // Whatever the window is.
            path.others = Duration::from_millis(delays[round % delays.len()]);
            path.round();
            sum += bytes(path.auto.window()) / bytes(path.bdp());
        }
        assert!(sum / 400.0 > 0.9, "{} in {:?}", sum / 400.0, path.states);
        assert!(!path.states.contains(&"competitive"), "{:?}", path.states);
    }
}

#[test]
fn what_startup_left_in_the_queue_shrinks_no_window() {
    let mut path = Path::new();
    while path.auto.state() == "startup" || path.auto.window() == 0 {
        path.round();
    }
    let before = path.auto.window();
    // Two round trips of packets that startup had sent.
    path.others = Duration::from_millis(40);
    path.rounds(2);
    assert_eq!(path.auto.window(), before);
}

#[test]
fn a_flow_probes_before_it_takes_much_more_from_a_queue_that_seems_empty() {
    let parameters = Parameters { initial_window: Some(12 * MTU), ..Parameters::for_mtu(u16::try_from(MTU).unwrap()) };
    let mut path = Path { auto: Auto::resume(&parameters), ..Path::new() };
    let mut largest = 0;
    while path.auto.state() == "delay" {
        largest = path.auto.window();
        path.round();
    }
    assert_eq!(path.auto.state(), "probe_rtt");
    // Two steps of a quarter beyond twice the window it began with.
    assert!((24 * MTU..=38 * MTU).contains(&largest), "{largest}");
}

#[test]
fn short_answers_keep_their_window_beside_a_full_queue() {
    let mut path = Path { app: 9, ..Path::new() };
    path.rounds(20);
    path.others = Duration::from_millis(40);
    let before = path.auto.window();
    path.rounds(400);
    assert!(path.auto.window() >= before, "{} of {before}", path.auto.window());
    assert_eq!(path.states, ["startup"]);
    // The same once the path is known.
    path.app = u64::MAX;
    path.others = Duration::ZERO;
    path.rounds(100);
    path.app = 9;
    path.rounds(20);
    path.others = Duration::from_millis(40);
    let (before, seen) = (path.auto.window(), path.states.len());
    path.rounds(400);
    assert_eq!((path.auto.window(), &path.states[seen..]), (before, &[][..]));
}

#[test]
fn marks_reduce_the_window_once_per_round_trip() {
    let mut path = Path::new();
    path.rounds(40);
    let before = path.auto.window();
    let marks = CeSample { newly_marked: 1, newly_acked: 10, largest_acked_sent_at: path.now, in_flight: before };
    path.now += Duration::from_millis(1);
    path.auto.on_ecn_ce(path.now, &CeSample { largest_acked_sent_at: path.now, ..marks });
    // The window is no whole number of bytes.
    let reduced = path.auto.window();
    assert!(reduced.abs_diff(whole(bytes(before) * AFTER_MARKS)) <= 1);
    path.auto.on_ecn_ce(path.now + Duration::from_millis(1), &CeSample { largest_acked_sent_at: path.now, ..marks });
    assert_eq!(path.auto.window(), reduced, "of the same round trip");
    let later = path.now + Duration::from_millis(2);
    path.auto.on_ecn_ce(later, &CeSample { largest_acked_sent_at: later, ..marks });
    assert!(path.auto.window() < whole(bytes(before) * 0.7));
}

// RFC 9002 §7.6.2
#[test]
fn persistent_congestion_starts_from_the_minimum() {
    let mut path = Path::new();
    path.rounds(40);
    path.auto.on_lost(path.now, &LossSample { persistent: true, ..loss(path.now) });
    assert_eq!((path.auto.window(), path.auto.state()), (2 * MTU, "startup"));
    // Startup doubles until the path is full again: what was measured before does not end it.
    path.rounds(8);
    assert!(path.auto.window() > path.bdp() * 9 / 10, "{} in {:?}", path.auto.window(), path.states);
}

#[test]
fn a_known_path_begins_in_delay_mode() {
    let parameters = Parameters { initial_window: Some(50_000), ..Parameters::for_mtu(1200) };
    let auto = Auto::resume(&parameters);
    assert_eq!((auto.window(), auto.state(), auto.pacing_rate()), (50_000, "delay", None));
}

#[test]
fn the_initial_window_follows_the_datagram_size_until_something_was_measured() {
    let mut auto = Auto::new(&Parameters::for_mtu(1200));
    auto.on_mtu(1400);
    assert_eq!(auto.window(), 14_000);
    let mut path = Path::new();
    path.rounds(3);
    let before = path.auto.window();
    path.auto.on_mtu(1400);
    assert_eq!(path.auto.window(), before);
}

/// Share of 200 round trips of 16 packets that report more loss than is random. Each packet is lost with this chance after one that
/// arrived, and with the other after one that was lost.
fn reported(confirmed: f64, after_arrival: f64, after_loss: f64) -> f64 {
    let mut loss = RandomLoss::default();
    loss.confirm(confirmed);
    let (mut seed, mut is_lost, mut reports) = (1_u64, false, 0);
    for round in 0..200_u64 {
        let mut lost = 0;
        for packet in 0..16 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = if is_lost { after_loss } else { after_arrival };
            is_lost = (seed >> 32) as f64 / f64::from(u32::MAX) < chance;
            if is_lost {
                lost += 1;
                loss.on_packet_lost(round * 16 + packet);
            }
        }
        reports += u32::from(loss.on_round(16 - lost, lost) > 0.0);
    }
    f64::from(reports) / 200.0
}

#[test]
fn much_loss_is_no_burst_of_random_loss() {
    // A batch takes two round trips, so that half of them report.
    assert!(reported(0.15, 0.5, 0.5) > 0.4);
    assert!(reported(0.15, 0.3, 0.3) > 0.3);
    // 5 % in bursts of 3 packets, and 10 % of single ones, as the experiment has found.
    assert!(reported(0.05, 0.0175, 0.667) < 0.05);
    assert!(reported(0.1, 0.1, 0.1) < 0.05);
}
