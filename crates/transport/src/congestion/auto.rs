//! `auto`: CUBIC or BBRv3, whichever suits what is measured of the path, and the other one when that changes.
//!
//! CUBIC serves short paths and low load, where BBR's probing costs more than it finds; BBRv3 serves long paths with many
//! packets, and those that lose packets at random, where a window that falls with each loss cannot fill them. The
//! [`AutoRules`] say where the limits are. Between them lies a band in which nothing changes, a change needs two intervals
//! in a row that ask for it, and after one the connection stays with what it has for a while.
//!
//! A change carries over what is known. BBRv3 begins with the bandwidth and the propagation delay that were measured under
//! CUBIC, in ProbeBW, and never with more in flight than before; CUBIC begins in congestion avoidance with the
//! bandwidth-delay product of BBR's model as window and plateau.

use serde::{Deserialize, Serialize};
use units::{Bitrate, Duration, Instant};

use super::{
    AckSample, Bbr, CeSample, Controller, Cubic, LossSample, LostPacket, Parameters, PathModel, SentSample,
    SpuriousSample,
};

/// Intervals in a row that have to ask for a change.
const AGREEING: u32 = 2;
/// Less than this holds too few packets to say anything.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// More than this is no reaction.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// A longer rest is better written as the controller's own name.
const LONGEST_DWELL: Duration = Duration::from_secs(3600);

/// Where `auto` changes between CUBIC and BBRv3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct AutoRules {
    /// Below this minimum RTT: CUBIC.
    pub short_rtt: Duration,
    /// From this minimum RTT on: BBRv3, when there is load enough.
    pub long_rtt: Duration,
    /// Packets acknowledged per second from which on there is.
    pub busy: u64,
    /// Packets acknowledged per second below which there is not any more: CUBIC.
    pub quiet: u64,
    /// Lost packets in a million from which on BBRv3 takes over a long path whatever the load, if the window holds data
    /// back: a window that falls with each loss is what keeps the load low then.
    pub lossy: u64,
    /// Time over which rates are measured.
    pub interval: Duration,
    /// Time after a change in which there is no other.
    pub dwell: Duration,
}

impl Default for AutoRules {
    fn default() -> Self {
        Self {
            short_rtt: Duration::from_millis(25),
            long_rtt: Duration::from_millis(50),
            busy: 600,
            quiet: 300,
            lossy: 2_000,
            interval: Duration::from_secs(1),
            dwell: Duration::from_secs(5),
        }
    }
}

/// The rules as somebody wrote them.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Unchecked {
    short_rtt: Duration,
    long_rtt: Duration,
    busy: u64,
    quiet: u64,
    lossy: u64,
    interval: Duration,
    dwell: Duration,
}

impl Default for Unchecked {
    fn default() -> Self {
        let AutoRules { short_rtt, long_rtt, busy, quiet, lossy, interval, dwell } = AutoRules::default();
        Self { short_rtt, long_rtt, busy, quiet, lossy, interval, dwell }
    }
}

/// Rules by which nobody could choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rules of `auto` contradict themselves: {0}; there are `short_rtt` (at most `long_rtt`), `long_rtt`, `quiet` (at most `busy`) and \
     `busy` in packets per second, `lossy` in lost packets of a million (1 to 1000000), `interval` (100 ms to 60 s), `dwell` (at most 1 h)"
)]
pub struct ContradictoryRules(&'static str);

impl TryFrom<Unchecked> for AutoRules {
    type Error = ContradictoryRules;

    fn try_from(rules: Unchecked) -> Result<Self, Self::Error> {
        let Unchecked { short_rtt, long_rtt, busy, quiet, lossy, interval, dwell } = rules;
        let checks = [
            (short_rtt <= long_rtt, "`short_rtt` is above `long_rtt`"),
            (quiet <= busy, "`quiet` is above `busy`"),
            ((1..=1_000_000).contains(&lossy), "`lossy` is out of range"),
            ((SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval), "`interval` is out of range"),
            (dwell <= LONGEST_DWELL, "`dwell` is out of range"),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(ContradictoryRules(what)),
            None => Ok(Self { short_rtt, long_rtt, busy, quiet, lossy, interval, dwell }),
        }
    }
}

/// The one in charge.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it per path, and CUBIC is what most paths get")]
enum Chosen {
    Cubic(Cubic),
    Bbr(Box<Bbr>),
}

/// What has been measured since the interval began.
#[derive(Clone, Copy, Debug)]
struct Interval {
    since: Instant,
    packets: u64,
    lost: u64,
    /// The window held data back at some time.
    limited: bool,
    /// The best delivery rate, in bits per second.
    best: u64,
}

impl Interval {
    const fn new(since: Instant) -> Self {
        Self { since, packets: 0, lost: 0, limited: false, best: 0 }
    }
}

/// Owns the choice, and the controller chosen.
#[derive(Clone, Debug)]
pub struct Auto {
    parameters: Parameters,
    chosen: Chosen,
    interval: Interval,
    /// Intervals in a row that asked for the other controller.
    agreeing: u32,
    changed_at: Option<Instant>,
}

/// Calls a method of the controller in charge.
macro_rules! chosen {
    ($self:ident . $method:ident ( $($argument:expr),* )) => {
        match &$self.chosen {
            Chosen::Cubic(cubic) => cubic.$method($($argument),*),
            Chosen::Bbr(bbr) => bbr.$method($($argument),*),
        }
    };
    (mut $self:ident . $method:ident ( $($argument:expr),* )) => {
        match &mut $self.chosen {
            Chosen::Cubic(cubic) => cubic.$method($($argument),*),
            Chosen::Bbr(bbr) => bbr.$method($($argument),*),
        }
    };
}

impl Auto {
    /// Begins with CUBIC: nothing is known of the path.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            parameters: *parameters,
            chosen: Chosen::Cubic(Cubic::new(parameters)),
            interval: Interval::new(parameters.now),
            agreeing: 0,
            changed_at: None,
        }
    }

    /// Ends an interval: does what it measured ask for the other controller?
    #[cold]
    fn judge(&mut self, now: Instant, ack: &AckSample) {
        let rules = &self.parameters.auto;
        let seen = std::mem::replace(&mut self.interval, Interval::new(now));
        let millis = u64::try_from(now.saturating_since(seen.since).as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = seen.packets.saturating_mul(1000) / millis;
        let loss = seen.lost.saturating_mul(1_000_000) / (seen.packets + seen.lost).max(1);
        let Some(rtt) = ack.min_rtt else { return };
        let asks = match self.chosen {
            // The first slow start tells more than the interval it began in; it goes on until it ends.
            Chosen::Cubic(ref cubic) => {
                let busy = rate >= rules.busy || (seen.limited && loss >= rules.lossy);
                rtt >= rules.long_rtt && busy && !cubic.in_slow_start()
            }
            Chosen::Bbr(_) => rtt < rules.short_rtt || (rate < rules.quiet && loss < rules.lossy),
        };
        self.agreeing = if asks { self.agreeing + 1 } else { 0 };
        let settled = self.changed_at.is_none_or(|changed| now >= changed + rules.dwell);
        if self.agreeing >= AGREEING && settled {
            self.change(now, ack, seen.best);
            self.agreeing = 0;
            self.changed_at = Some(now);
        }
    }

    /// Hands over to the other controller.
    fn change(&mut self, now: Instant, ack: &AckSample, best: u64) {
        let parameters = Parameters { initial_window: Some(self.window()), now, ..self.parameters };
        self.chosen = match &self.chosen {
            Chosen::Cubic(_) => {
                let rtt = ack.min_rtt.unwrap_or(ack.smoothed_rtt);
                Chosen::Bbr(Box::new(Bbr::resume(&parameters, Bitrate::from_bps(best), rtt, ack.delivered)))
            }
            Chosen::Bbr(bbr) => {
                let window = bbr.model().map_or(self.window(), |model| model.bdp).min(self.window());
                Chosen::Cubic(Cubic::resume(&Parameters { initial_window: Some(window), ..parameters }))
            }
        };
    }
}

impl Controller for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    #[inline]
    fn on_sent(&mut self, now: Instant, sent: &SentSample) {
        chosen!(mut self.on_sent(now, sent));
    }

    fn on_acked(&mut self, now: Instant, ack: &AckSample) {
        chosen!(mut self.on_acked(now, ack));
        let interval = &mut self.interval;
        interval.packets += ack.packets;
        interval.limited |= ack.window_limited;
        if let Some(rate) = ack.rate.and_then(|rate| rate.delivery_rate) {
            interval.best = interval.best.max(rate.as_bps());
        }
        if now >= interval.since + self.parameters.auto.interval {
            self.judge(now, ack);
        }
    }

    fn on_packet_lost(&mut self, now: Instant, packet: &LostPacket) {
        self.interval.lost += 1;
        chosen!(mut self.on_packet_lost(now, packet));
    }

    fn on_lost(&mut self, now: Instant, loss: &LossSample) {
        chosen!(mut self.on_lost(now, loss));
    }

    fn on_spurious_loss(&mut self, now: Instant, spurious: &SpuriousSample) {
        self.interval.lost = self.interval.lost.saturating_sub(1);
        chosen!(mut self.on_spurious_loss(now, spurious));
    }

    fn tolerate_loss(&mut self, share: Option<f64>) {
        chosen!(mut self.tolerate_loss(share));
    }

    fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample) {
        chosen!(mut self.on_ecn_ce(now, ce));
    }

    fn on_mtu(&mut self, mtu: u16) {
        self.parameters.mtu = mtu;
        chosen!(mut self.on_mtu(mtu));
    }

    fn window(&self) -> u64 {
        chosen!(self.window())
    }

    fn ssthresh(&self) -> Option<u64> {
        chosen!(self.ssthresh())
    }

    fn pacing_rate(&self) -> Option<Bitrate> {
        chosen!(self.pacing_rate())
    }

    fn send_quantum(&self) -> u64 {
        chosen!(self.send_quantum())
    }

    fn recovery_started_at(&self) -> Option<Instant> {
        chosen!(self.recovery_started_at())
    }

    fn in_slow_start(&self) -> bool {
        chosen!(self.in_slow_start())
    }

    fn is_probing(&self) -> bool {
        chosen!(self.is_probing())
    }

    fn state(&self) -> &'static str {
        chosen!(self.state())
    }

    fn model(&self) -> Option<PathModel> {
        chosen!(self.model())
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ack, loss};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rules_that_contradict_themselves_are_refused() {
        let read = |text: &str| serde_json::from_str::<AutoRules>(text).map_err(|error| error.to_string());
        let all = serde_json::to_string(&AutoRules::default()).unwrap();
        assert_eq!(read(&all), Ok(AutoRules::default()));
        assert_eq!(read("{}"), Ok(AutoRules::default()));
        assert_eq!(read(r#"{"busy": 900}"#).unwrap().busy, 900);
        for (wrong, why) in [
            (r#"{"busy": 10, "quiet": 20}"#, "`quiet` is above `busy`"),
            (r#"{"lossy": 0}"#, "`lossy` is out of range"),
            (r#"{"short_rtt": {"secs": 1, "nanos": 0}}"#, "`short_rtt` is above `long_rtt`"),
            (r#"{"interval": {"secs": 0, "nanos": 0}}"#, "`interval` is out of range"),
            (r#"{"dwell": {"secs": 4000, "nanos": 0}}"#, "`dwell` is out of range"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(why) && error.contains("there are `short_rtt`"), "{error}");
        }
        assert!(read(r#"{"bussy": 10}"#).unwrap_err().contains("expected one of `short_rtt`"));
    }

    /// Feeds `packets` acknowledgements a second with this RTT for `seconds`.
    fn feed(auto: &mut Auto, from: Instant, seconds: u64, packets: u64, rtt: Duration) -> Instant {
        let mut now = from;
        for _ in 0..seconds * packets {
            now += Duration::from_secs(1) / u32::try_from(packets).unwrap();
            let rate = super::super::RateSample {
                delivered: 12_000,
                interval: rtt,
                delivery_rate: Some(Bitrate::from_bps(packets * 9600)),
                prior_delivered: 0,
                prior_at: Instant::ZERO,
                send_elapsed: rtt,
                ack_elapsed: rtt,
                is_app_limited: false,
                tx_in_flight: 12_000,
                lost: 0,
            };
            auto.on_acked(now, &AckSample { rate: Some(rate), in_flight: 12_000, ..ack(1200, now, rtt) });
        }
        now
    }

    fn auto() -> Auto {
        let mut auto = Auto::new(&Parameters::for_mtu(1200));
        // The first slow start is over.
        auto.on_lost(Instant::from_millis(1), &loss(Instant::ZERO));
        auto
    }

    fn is_bbr(auto: &Auto) -> bool {
        auto.model().is_some()
    }

    #[test]
    fn long_and_busy_paths_get_bbr_and_nothing_else_does() {
        for (packets, rtt, expected) in [(700, 60, true), (500, 60, false), (700, 40, false), (2000, 10, false)] {
            let mut auto = auto();
            feed(&mut auto, Instant::from_millis(10), 4, packets, rtt * MS);
            assert_eq!(is_bbr(&auto), expected, "{packets} packets/s at {rtt} ms");
        }
    }

    #[test]
    fn between_the_limits_nothing_changes_and_a_change_is_not_taken_back_at_once() {
        let mut auto = auto();
        let now = feed(&mut auto, Instant::from_millis(10), 4, 1000, 60 * MS);
        assert!(is_bbr(&auto));
        // Between the two limits of the load.
        let now = feed(&mut auto, now, 20, 400, 60 * MS);
        assert!(is_bbr(&auto));
        let now = feed(&mut auto, now, 4, 100, 60 * MS);
        assert!(!is_bbr(&auto));
        // The dwell time holds.
        let now = feed(&mut auto, now, 2, 1000, 60 * MS);
        assert!(!is_bbr(&auto));
        feed(&mut auto, now, 5, 1000, 60 * MS);
        assert!(is_bbr(&auto));
    }

    #[test]
    fn what_is_known_is_carried_over() {
        let mut auto = auto();
        let before = feed(&mut auto, Instant::from_millis(10), 1, 1000, 60 * MS);
        let window = auto.window();
        let now = feed(&mut auto, before, 3, 1000, 60 * MS);
        let model = auto.model().unwrap();
        assert_eq!((model.max_bandwidth, model.min_rtt), (Bitrate::from_bps(9_600_000), Some(60 * MS)));
        assert!(model.full_reached && auto.state().starts_with("probe_bw"), "{}", auto.state());
        // Twice the product, and what a quantum and aggregated acknowledgements add.
        assert!(auto.window() <= 2 * model.bdp.max(window) + 30_000, "{} after {window}", auto.window());
        // And back: a window that the path holds, no slow start.
        let mut now = now;
        for _ in 0..10 {
            now = feed(&mut auto, now, 1, 100, 60 * MS);
            if !is_bbr(&auto) {
                break;
            }
        }
        assert!(!is_bbr(&auto) && !auto.in_slow_start());
        assert!(auto.window() <= model.bdp + 20_000, "{} with a product of {}", auto.window(), model.bdp);
    }
}
