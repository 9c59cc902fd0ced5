//! Congestion control: the trait of controllers, and their list.
//!
//! The contract: for each packet in flight the path's recovery calls [`Controller::on_sent`]. For each acknowledgement it calls, in this
//! order:
//!
//! - [`Controller::on_spurious_loss`] for each spurious loss,
//! - [`Controller::on_packet_lost`] for each lost packet,
//! - [`Controller::on_lost`] once, if any packet was lost,
//! - [`Controller::on_ecn_ce`] if congestion was marked,
//! - [`Controller::on_acked`] once, if any packet was newly acknowledged.
//!
//! The outputs [`Controller::window`], [`Controller::pacing_rate`] and [`Controller::send_quantum`] may be read at any time.

use std::fmt::Debug;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use units::{Bitrate, Duration, Instant, Seed};

pub mod auto;
pub mod bbr;
pub mod cubic;
pub mod episode;
pub mod hystart;
pub mod newreno;
pub mod path_model;
pub mod rate;

pub use auto::Auto;
pub use bbr::{Bbr, BbrV1};
pub use cubic::Cubic;
pub use newreno::NewReno;
pub use path_model::PathModel;
pub use rate::{RateEstimator, RateSample, Snapshot};

/// A packet in flight that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentSample {
    /// Packet number.
    pub pn: u64,
    /// Size in bytes.
    pub bytes: u16,
    /// Bytes in flight before it.
    pub in_flight_before: u64,
    /// Set if the sender was application-limited within the last round trip. With nothing in flight it restarts from idle.
    pub app_limited: bool,
    /// Sent because a probe timeout expired.
    pub pto_probe: bool,
}

/// Contents of one acknowledgement for the controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckSample {
    /// Packets in flight newly acknowledged.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Bytes of those packets that were sent after [`Controller::recovery_started_at`].
    pub bytes_after_recovery: u64,
    /// Bytes newly declared lost by the same acknowledgement.
    pub newly_lost: u64,
    /// The RTT sample, when the acknowledgement gave one.
    pub rtt: Option<Duration>,
    /// The newest sample without the time for which the peer held the acknowledgement back (RFC 9002 §5.3).
    pub adjusted_rtt: Duration,
    /// Minimum RTT of the path; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// The smoothed RTT of the path.
    pub smoothed_rtt: Duration,
    /// The delivery rate measured from the newest packet.
    pub rate: Option<RateSample>,
    /// Bytes in flight before the acknowledgement.
    pub prior_in_flight: u64,
    /// Bytes in flight after it, and after the losses it showed.
    pub in_flight: u64,
    /// The highest number newly acknowledged.
    pub largest_acked: u64,
    /// Time at which that packet left.
    pub largest_acked_sent_at: Instant,
    /// Bytes that the path has delivered in total.
    pub delivered: u64,
    /// Bytes that the path has lost in total.
    pub lost: u64,
    /// RFC 9002 §7.8: set if, within the acknowledged flight, the window (or the pacing that follows from it) limited the sender. A window
    /// that was not used shows nothing about the capacity of the path.
    pub window_limited: bool,
    /// Within that flight the window itself was full, not only pacing in the way.
    pub window_full: bool,
    /// The sender has run out of data within the last round trip.
    pub app_limited: bool,
}

/// One packet declared lost, with data about its departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostPacket {
    /// Packet number.
    pub pn: u64,
    /// Size in bytes.
    pub bytes: u16,
    /// Time at which it left.
    pub sent_at: Instant,
    /// The path's delivery when it left.
    pub snapshot: Snapshot,
    /// Bytes lost since it left, itself included.
    pub lost_since_sent: u64,
    /// Bytes that the path has delivered in total.
    pub delivered: u64,
}

/// All packets that one acknowledgement or one timeout showed to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossSample {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// The highest number among them.
    pub largest_lost: u64,
    /// Time at which that packet left.
    pub largest_lost_sent_at: Instant,
    /// Set if the losses span so much time that congestion is persistent (RFC 9002 §7.6).
    pub persistent: bool,
    /// The packets were lost without a sign of congestion, and the profile lets the controller ignore such losses.
    pub random: bool,
    /// Bytes in flight afterwards.
    pub in_flight: u64,
}

/// A packet that was declared lost was acknowledged after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpuriousSample {
    /// Packet number.
    pub pn: u64,
    /// Size in bytes.
    pub bytes: u16,
    /// Time at which it left.
    pub sent_at: Instant,
    /// Time at which it was declared lost.
    pub lost_at: Instant,
}

/// The peer saw packets marked with congestion experienced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CeSample {
    /// Marks that were newly reported.
    pub newly_marked: u64,
    /// Marked-capable packets newly acknowledged: with `newly_marked`, the share of marks.
    pub newly_acked: u64,
    /// Time at which the largest packet that the acknowledgement covers left.
    pub largest_acked_sent_at: Instant,
    /// Bytes in flight afterwards.
    pub in_flight: u64,
}

/// A congestion controller: the state that decides how much may be in flight, and how fast it leaves.
pub trait Controller: Send + Debug {
    /// The algorithm, as users write it.
    fn name(&self) -> &'static str;

    /// A packet in flight leaves.
    fn on_sent(&mut self, now: Instant, sent: &SentSample);

    /// Packets were newly acknowledged.
    fn on_acked(&mut self, now: Instant, ack: &AckSample);

    /// One packet was declared lost; called before [`Controller::on_lost`].
    fn on_packet_lost(&mut self, _now: Instant, _packet: &LostPacket) {}

    /// Packets were declared lost.
    fn on_lost(&mut self, now: Instant, loss: &LossSample);

    /// A loss was none.
    fn on_spurious_loss(&mut self, now: Instant, spurious: &SpuriousSample);

    /// Congestion was marked.
    fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample);

    /// Called before the losses of an acknowledgement: the share of losses that may be ignored at this time, `None` while there is a sign
    /// of congestion. Called only if the profile permits any.
    fn tolerate_loss(&mut self, _share: Option<f64>) {}

    /// The sender ran out of data although it could have sent.
    fn on_app_limited(&mut self, _now: Instant, _in_flight: u64) {}

    /// Counts silence as the reduction by which a controller would otherwise look for the path without a queue. For applications that send
    /// short messages with silence between them, and whose ends are to arrive at once.
    fn count_silence(&mut self) {}

    /// Packets in flight vanished without verdict, with their keys.
    fn on_discarded(&mut self, _now: Instant, _bytes: u64, _in_flight: u64) {}

    /// The datagram size of the path changed.
    fn on_mtu(&mut self, mtu: u16);

    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// The slow start threshold in bytes; `None` while it is infinite or where there is none.
    fn ssthresh(&self) -> Option<u64> {
        None
    }

    /// The rate at which packets shall leave; `None` leaves it to the pacer, which takes it from the window.
    fn pacing_rate(&self) -> Option<Bitrate> {
        None
    }

    /// Bytes that may leave together at most; `u64::MAX` leaves it to the pacer.
    fn send_quantum(&self) -> u64 {
        u64::MAX
    }

    /// Start of the present or the last reaction to congestion. Packets sent before it show nothing about the resulting window (RFC 9002
    /// §7.3.2).
    fn recovery_started_at(&self) -> Option<Instant> {
        None
    }

    /// Returns whether the window grows exponentially.
    fn in_slow_start(&self) -> bool;

    /// Returns whether the controller is probing, and needs early feedback on each step.
    fn is_probing(&self) -> bool {
        self.in_slow_start()
    }

    /// The state, as qlog names it.
    fn state(&self) -> &'static str;

    /// The model of the path, where the controller has one.
    fn model(&self) -> Option<PathModel> {
        None
    }

    /// Returns a copy for a new path that starts with the estimates of an old one.
    fn clone_box(&self) -> Box<dyn Controller>;
}

impl Clone for Box<dyn Controller> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Parameters that a controller is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The window at the start, in bytes; `None` gives [`initial_window`].
    pub initial_window: Option<u64>,
    /// Largest UDP payload of the path in bytes.
    pub mtu: u16,
    /// Source of the random numbers of algorithms that probe at random times.
    pub seed: Seed,
    /// Time at which the path comes into use.
    pub now: Instant,
}

impl Parameters {
    /// Default parameters of a path with this datagram size.
    pub fn for_mtu(mtu: u16) -> Self {
        Self { initial_window: None, mtu, seed: Seed::from_number(0), now: Instant::ZERO }
    }

    /// The window to start with.
    pub fn window(&self) -> u64 {
        self.initial_window.unwrap_or_else(|| initial_window(self.mtu)).max(minimum_window(self.mtu))
    }
}

/// RFC 9002 §7.2 SHOULD-1: ten datagrams, limited to the larger of 14,720 bytes and two datagrams.
pub fn initial_window(mtu: u16) -> u64 {
    let mtu = u64::from(mtu);
    (10 * mtu).min(14_720.max(2 * mtu))
}

/// RFC 9002 §7.2 RECOMMENDED-1: two datagrams.
pub fn minimum_window(mtu: u16) -> u64 {
    2 * u64::from(mtu)
}

/// The algorithms there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Algorithm {
    /// RFC 9002 §7.
    NewReno,
    // RFC 9002 §7 MUST-1: other controllers keep to the guidelines for UDP
    /// RFC 9438 with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// BBR version 1: draft-cardwell-iccrg-bbr-congestion-control-00.
    Bbr1,
    /// BBR version 2: as version 3, with the constants and probes of its predecessor.
    Bbr2,
    /// draft-ietf-ccwg-bbr.
    Bbr3,
    /// Short queue where no other flow fills it, CUBIC where one does: see [`auto`].
    Auto,
}

/// The name belongs to no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown congestion control `{name}`: there is {}", Algorithm::names())]
pub struct UnknownAlgorithm {
    name: String,
}

impl Algorithm {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 6] = [Self::NewReno, Self::Cubic, Self::Bbr1, Self::Bbr2, Self::Bbr3, Self::Auto];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewReno => "newreno",
            Self::Cubic => "cubic",
            Self::Bbr1 => "bbr1",
            Self::Bbr2 => "bbr2",
            Self::Bbr3 => "bbr3",
            Self::Auto => "auto",
        }
    }

    fn names() -> String {
        Self::ALL.map(|algorithm| format!("`{}`", algorithm.name())).join(", ")
    }

    /// A controller in its initial state.
    pub fn build(self, parameters: &Parameters) -> Box<dyn Controller> {
        match self {
            Self::NewReno => Box::new(NewReno::new(parameters)),
            Self::Cubic => Box::new(Cubic::new(parameters)),
            Self::Bbr1 => Box::new(BbrV1::new(parameters)),
            Self::Bbr2 => Box::new(Bbr::v2(parameters)),
            Self::Bbr3 => Box::new(Bbr::v3(parameters)),
            Self::Auto => Box::new(Auto::new(parameters)),
        }
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let wanted = match name.to_ascii_lowercase().as_str() {
            "reno" => "newreno".to_owned(),
            // The current version is what people mean.
            "bbr" | "bbrv3" => "bbr3".to_owned(),
            "bbrv2" => "bbr2".to_owned(),
            "bbrv1" => "bbr1".to_owned(),
            other => other.to_owned(),
        };
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == wanted);
        found.ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }
}

impl TryFrom<String> for Algorithm {
    type Error = UnknownAlgorithm;
    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl From<Algorithm> for &'static str {
    fn from(algorithm: Algorithm) -> Self {
        algorithm.name()
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An acknowledgement of `bytes` that were sent just before `now - rtt`, with a full window.
    pub(crate) fn ack(bytes: u64, now: Instant, rtt: Duration) -> AckSample {
        AckSample {
            packets: 1,
            bytes,
            bytes_after_recovery: bytes,
            newly_lost: 0,
            rtt: Some(rtt),
            adjusted_rtt: rtt,
            min_rtt: Some(rtt),
            smoothed_rtt: rtt,
            rate: None,
            prior_in_flight: bytes,
            in_flight: 0,
            largest_acked: 0,
            largest_acked_sent_at: now.saturating_sub(rtt),
            delivered: 0,
            lost: 0,
            window_limited: true,
            window_full: true,
            app_limited: false,
        }
    }

    /// The loss of one packet that left at `sent_at`.
    pub(crate) fn loss(sent_at: Instant) -> LossSample {
        LossSample {
            packets: 1,
            bytes: 1200,
            largest_lost: 0,
            largest_lost_sent_at: sent_at,
            persistent: false,
            random: false,
            in_flight: 0,
        }
    }

    // RFC 9002 §7.2 SHOULD-1, RECOMMENDED-1
    #[test]
    fn windows_of_the_standard() {
        assert_eq!(initial_window(1200), 12_000);
        assert_eq!(initial_window(1472), 14_720);
        assert_eq!(initial_window(1500), 14_720);
        assert_eq!(initial_window(9000), 18_000);
        assert_eq!(minimum_window(1200), 2400);
    }

    #[test]
    fn names_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
            assert_eq!(algorithm.build(&Parameters::for_mtu(1200)).name(), algorithm.name());
        }
        assert_eq!("Reno".parse(), Ok(Algorithm::NewReno));
        let error = "vegas".parse::<Algorithm>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown congestion control `vegas`: there is `newreno`, `cubic`, `bbr1`, `bbr2`, `bbr3`, `auto`"
        );
    }
}
