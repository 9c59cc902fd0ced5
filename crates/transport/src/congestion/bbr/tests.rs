//! The controller as a whole with hand-made samples, for properties that no single estimator shows.

use units::{Duration, Instant, Seed};

use super::*;
use crate::congestion::{RateSample, Snapshot};

const MTU: u64 = 1200;
const MS: Duration = Duration::from_millis(1);

/// A path that delivers `bps` after `rtt`, with a sender that keeps the window full and acknowledgements of a datagram.
struct Feed {
    bbr: Bbr,
    now: Instant,
    delivered: u64,
    lost: u64,
    rtt: Duration,
    interval: Duration,
    pn: u64,
}

impl Feed {
    fn new(seed: u64, mbps: u64) -> Self {
        let parameters = Parameters { seed: Seed::from_number(seed), ..Parameters::for_mtu(1200) };
        let interval = Duration::from_nanos(MTU * 8_000 / mbps);
        let bbr = Bbr::v3(&parameters);
        Self { bbr, now: Instant::ZERO + 50 * MS, delivered: 0, lost: 0, rtt: 50 * MS, interval, pn: 0 }
    }

    /// The flight that the path holds.
    fn bdp(&self) -> u64 {
        (self.rtt.as_nanos() / self.interval.as_nanos()) as u64 * MTU
    }

    /// Returns the bytes in flight: the window, as long as path and queue have room.
    fn in_flight(&self) -> u64 {
        let queue =
            if matches!(self.bbr.state, State::Startup | State::Drain | State::Up) { self.bdp() / 2 } else { 0 };
        self.bbr.window().min(self.bdp() + queue)
    }

    fn sample(&self) -> RateSample {
        let flight = self.bdp();
        let prior_delivered = self.delivered.saturating_sub(flight);
        let rate =
            Bitrate::from_bps(u64::try_from(u128::from(MTU) * 8_000_000_000 / self.interval.as_nanos()).unwrap());
        RateSample {
            delivered: self.delivered - prior_delivered,
            interval: self.rtt,
            delivery_rate: Some(rate),
            prior_delivered,
            prior_at: self.now.saturating_sub(self.rtt),
            send_elapsed: self.rtt,
            ack_elapsed: self.rtt,
            is_app_limited: false,
            tx_in_flight: flight,
            lost: 0,
        }
    }

    fn ack_with(&mut self, change: impl FnOnce(&mut AckSample, &mut RateSample)) {
        self.now += self.interval;
        self.delivered += MTU;
        self.pn += 1;
        let mut rate = self.sample();
        let mut ack = AckSample {
            packets: 1,
            bytes: MTU,
            bytes_after_recovery: MTU,
            newly_lost: 0,
            rtt: Some(self.rtt),
            adjusted_rtt: self.rtt,
            min_rtt: Some(self.rtt),
            smoothed_rtt: self.rtt,
            rate: None,
            prior_in_flight: self.in_flight(),
            in_flight: self.in_flight(),
            largest_acked: self.pn,
            largest_acked_sent_at: self.now.saturating_sub(self.rtt),
            delivered: self.delivered,
            lost: self.lost,
            window_limited: true,
            window_full: true,
            app_limited: false,
        };
        change(&mut ack, &mut rate);
        ack.rate = Some(rate);
        self.bbr.on_acked(self.now, &ack);
    }

    fn ack(&mut self) {
        self.ack_with(|_, _| {});
    }

    fn until(&mut self, state: State) {
        for _ in 0..200_000 {
            if self.bbr.state == state {
                return;
            }
            self.ack();
        }
        panic!("{state:?} never came; it is {:?}", self.bbr.state);
    }

    fn lose(&mut self) {
        self.lost += MTU;
        self.pn += 2;
        let snapshot = Snapshot {
            delivered: self.delivered.saturating_sub(self.bdp()),
            tx_in_flight: u32::try_from(self.bdp()).unwrap(),
            ..Snapshot::default()
        };
        let packet = LostPacket {
            pn: self.pn,
            bytes: 1200,
            sent_at: self.now.saturating_sub(self.rtt),
            snapshot,
            lost_since_sent: self.lost,
            delivered: self.delivered,
        };
        self.bbr.on_packet_lost(self.now, &packet);
    }
}

#[test]
fn goes_through_its_states() {
    let mut feed = Feed::new(1, 20);
    assert_eq!(feed.bbr.state(), "startup");
    feed.until(State::Drain);
    assert_eq!(feed.bbr.full_pipe.count(), 3);
    assert_eq!(feed.bbr.max_bw.get(), 20_000_000);
    for state in [State::Down, State::Cruise, State::Refill, State::Up, State::Down] {
        feed.until(state);
    }
    feed.until(State::ProbeRtt);
    assert!(feed.bbr.window() <= feed.bdp() / 2 + MTU);
}

#[test]
fn seeds_decide_when_it_probes_and_nothing_else_does() {
    let probes = |seed| {
        let mut feed = Feed::new(seed, 20);
        (0..6)
            .map(|_| {
                feed.until(State::Down);
                feed.until(State::Refill);
                feed.now
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(probes(1), probes(1));
    assert_ne!(probes(1), probes(2));
}

#[test]
fn losses_in_cruise_lower_the_short_term_bounds_to_what_is_delivered() {
    let mut feed = Feed::new(1, 20);
    feed.until(State::Cruise);
    feed.lose();
    for _ in 0..feed.bdp() / MTU + 2 {
        feed.ack();
    }
    let model = feed.bbr.model().unwrap();
    // Everything but the loss was delivered.
    assert_eq!(model.bandwidth_shortterm, Some(Bitrate::from_mbps(20)));
    assert!(model.inflight_shortterm.unwrap() >= feed.bdp());
    assert_eq!(model.inflight_longterm, None, "it was not probing");
}

#[test]
fn a_probe_that_loses_too_much_sets_the_long_term_bound_and_ends() {
    let mut feed = Feed::new(1, 20);
    feed.until(State::Up);
    let tolerated = feed.bdp() / MTU * 2 / 100;
    for _ in 0..tolerated {
        feed.lose();
    }
    assert_eq!(feed.bbr.state, State::Up);
    feed.lose();
    assert_eq!(feed.bbr.state, State::Down);
    let bound = feed.bbr.model().unwrap().inflight_longterm.unwrap();
    assert!(bound.abs_diff(feed.bdp()) <= 2 * MTU, "{bound}");
    // The losses were none: the bound goes, and the probe comes again.
    for _ in 0..=tolerated {
        let spurious = SpuriousSample { pn: 0, bytes: 1200, sent_at: feed.now, lost_at: feed.now };
        feed.bbr.on_spurious_loss(feed.now, &spurious);
    }
    assert_eq!(feed.bbr.state, State::Refill);
    assert_eq!(feed.bbr.model().unwrap().inflight_longterm, None);
}

#[test]
fn marks_end_a_probe_as_losses_do() {
    let mut feed = Feed::new(1, 20);
    feed.until(State::Up);
    let sent_at = feed.now.saturating_sub(feed.rtt);
    let ce = CeSample { newly_marked: 10, newly_acked: 10, largest_acked_sent_at: sent_at, in_flight: feed.bdp() };
    feed.bbr.on_ecn_ce(feed.now, &ce);
    feed.ack();
    assert_eq!(feed.bbr.state, State::Down);
    assert!(feed.bbr.model().unwrap().inflight_longterm.is_some());
}

#[test]
fn samples_of_an_idle_sender_lower_nothing() {
    let mut feed = Feed::new(1, 20);
    feed.until(State::Cruise);
    for _ in 0..20_000 {
        feed.ack_with(|_, rate| {
            rate.is_app_limited = true;
            rate.delivery_rate = Some(Bitrate::from_mbps(1));
        });
    }
    assert_eq!(feed.bbr.max_bw.get(), 20_000_000);
}

#[test]
fn restarts_from_idle_at_the_rate_of_the_path() {
    let mut feed = Feed::new(1, 20);
    feed.until(State::Up);
    let sent = SentSample { pn: 1, bytes: 1200, in_flight_before: 0, app_limited: true, pto_probe: false };
    feed.bbr.on_sent(feed.now, &sent);
    assert_eq!(feed.bbr.pacing_rate(), Some(Bitrate::from_bps(19_800_000)));
    assert!(feed.bbr.idle_restart);
    feed.now += Duration::from_secs(6);
    feed.ack();
    assert_ne!(feed.bbr.state, State::ProbeRtt, "silence was enough");
}

/// One flight for each request, nothing in between. Silence is as good as a probe where it counts, and only there.
#[test]
fn silence_between_messages_takes_the_place_of_probe_rtt() {
    let is_probed = |counts: bool, silent: bool| {
        let mut feed = Feed::new(1, 10);
        feed.until(State::Cruise);
        if counts {
            feed.bbr.count_silence();
        }
        let mut probed = false;
        for pn in 0..2_000 {
            if silent {
                feed.now += 10 * MS;
                let sent = SentSample { pn, bytes: 1200, in_flight_before: 0, app_limited: true, pto_probe: false };
                feed.bbr.on_sent(feed.now, &sent);
            }
            // The clock of the feed is fast: a message takes ten packets.
            for _ in 0..10 {
                feed.ack_with(|ack, _| (ack.rtt, ack.in_flight) = (Some(51 * MS), 0));
                probed |= feed.bbr.state == State::ProbeRtt;
            }
        }
        probed
    };
    assert!(is_probed(false, true), "silence alone changes nothing");
    assert!(is_probed(true, false), "without silence the path has to be probed");
    assert!(!is_probed(true, true), "silence has shown the path");
}
