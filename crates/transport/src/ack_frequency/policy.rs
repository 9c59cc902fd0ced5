//! Requested values: a fixed number of packets per acknowledgement, or a share of the window and of the RTT.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use units::Duration;

/// Acknowledgement frequency requested of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AckFrequency {
    /// No request: by the standard the peer acknowledges every second packet. Written `off`.
    #[default]
    Off,
    /// One acknowledgement for this number of packets, 1 to 1000, on every path. Written `fixed:N`.
    Fixed(u32),
    /// As few as the path and the congestion controller bear. Written `adaptive`.
    Adaptive,
}

/// The text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown acknowledgement frequency `{0}`: there is `off`, `fixed:N` with N packets per acknowledgement (1 to 1000), `adaptive`"
)]
pub struct UnknownAckFrequency(String);

impl FromStr for AckFrequency {
    type Err = UnknownAckFrequency;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownAckFrequency(text.to_owned());
        match text.to_ascii_lowercase().as_str() {
            "off" => Ok(Self::Off),
            "adaptive" => Ok(Self::Adaptive),
            other => {
                let packets = other.strip_prefix("fixed:").and_then(|packets| packets.parse().ok());
                packets.filter(|packets| (1..=1000).contains(packets)).map(Self::Fixed).ok_or_else(unknown)
            }
        }
    }
}

impl fmt::Display for AckFrequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Fixed(packets) => write!(f, "fixed:{packets}"),
            Self::Adaptive => f.write_str("adaptive"),
        }
    }
}

impl TryFrom<String> for AckFrequency {
    type Error = UnknownAckFrequency;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AckFrequency> for String {
    fn from(policy: AckFrequency) -> Self {
        policy.to_string()
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Ack-eliciting packets per acknowledgement, at least 1.
    pub(crate) packets: u64,
    /// The longest time that an acknowledgement is held back.
    pub(crate) delay: Duration,
    /// Reordering at which a missing packet is reported at once.
    pub(crate) reordering: u64,
}

/// Inputs of a decision: the path as recovery and the congestion controller see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The congestion window in packets of full size.
    pub(crate) window: u64,
    pub(crate) smoothed_rtt: Duration,
    pub(crate) min_rtt: Duration,
    /// Packets per `min_rtt` at the rate of the controller, when it sets one: then the window does not limit.
    pub(crate) rate: Option<u64>,
    /// Set while the controller probes: it needs the outcome of each step soon.
    pub(crate) probing: bool,
    /// Packets after which recovery declares a missing one lost.
    pub(crate) packet_threshold: u64,
}

/// Largest number of packets per acknowledgement of `adaptive`: at this number acknowledgements cost almost nothing, and the packets behind
/// one still fit into two bursts of a sender.
const MOST: u64 = 32;
/// RFC 9000 §13.2.2: the default of every receiver.
const LEAST: u64 = 2;

impl AckFrequency {
    /// Request for such a path. `promised` is the peer's behaviour without a request.
    pub(super) fn request(self, promised: &Request, view: &View) -> Request {
        let packets = match self {
            Self::Off => promised.packets,
            Self::Fixed(packets) => u64::from(packets),
            Self::Adaptive => adaptive(view),
        };
        // draft-ietf-quic-ack-frequency-14 §8.1: no more than the smoothed RTT. A quarter of it, but no less than the peer
        // promised: an application that sends little would get more acknowledgements than before.
        let delay = (view.smoothed_rtt / 4).max(promised.delay.min(view.smoothed_rtt));
        // draft-ietf-quic-ack-frequency-14 §9: what makes a packet lost here is what is to be heard of at once.
        Request { packets, delay, reordering: view.packet_threshold }
    }
}

/// A share of the packets in flight.
///
/// Received packets without an acknowledgement take room in the window. If the window is the limit, k packets per acknowledgement keep
/// half of k − 1 away from the path on average. This costs nothing as long as the rest keeps a queue at the bottleneck. Otherwise, when
/// random loss keeps the window below the bandwidth-delay product, it costs this share of the goodput. So the number follows the queue,
/// down to the standard's two.
fn adaptive(view: &View) -> u64 {
    let bearable = LEAST + view.window / 50;
    // Half of what waits in queues, of either direction.
    let (smoothed, min) = (view.smoothed_rtt.as_nanos(), view.min_rtt.as_nanos());
    let waiting = u128::from(view.window) * smoothed.saturating_sub(min) / smoothed.max(1) / 2;
    let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
    let packets = match (view.rate, view.probing) {
        // RFC 9406 §4.2 asks for eight samples of the RTT per round, of which a doubling window has two.
        (None, true) => view.window / 16,
        (None, false) => waiting.max(bearable).min(view.window / 12),
        (Some(rate), probing) => {
            let room = view.window.saturating_sub(rate).max(bearable);
            // draft-ietf-ccwg-bbr-06 asks for four acknowledgements per round while it probes, at a rate a quarter higher: ten
            // keep the rhythm of cruising. Then eight per round trip are plenty as long as the window has room beyond what
            // the rate needs. What losses have cut to the bandwidth-delay product has none: there the window is what limits.
            let steady = if probing { rate.min(view.window) / 10 } else { (rate.min(view.window) / 8).min(room) };
            // A controller that holds its own queue short finds RTTs far above the smallest where somebody else fills one, or
            // where acknowledgements wait for each other on a thin way back. Their rate then is what bounds the rate that
            // the controller sees, and the number that follows from it would keep it so.
            if smoothed * 2 > min * 3 { steady.max(waiting.min(view.window / 8)) } else { steady }
        }
    };
    packets.clamp(LEAST, MOST)
}

impl Request {
    /// draft-ietf-quic-ack-frequency-14 §4: a delay below the peer's shortest is invalid, and so is one of 2^14 ms.
    pub(super) fn at_least(self, min_delay: Duration) -> Self {
        let longest = Duration::from_micros(super::MAX_DELAY_US - 1);
        Self { delay: self.delay.max(min_delay).min(longest), ..self }
    }

    /// Returns whether the difference is worth a frame.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        let step = self.packets.abs_diff(other.packets);
        let reordering = self.reordering != other.reordering && (self.packets > LEAST || other.packets > LEAST);
        step * 5 > other.packets || self.delay.abs_diff(other.delay) * 4 > other.delay || reordering
    }
}
