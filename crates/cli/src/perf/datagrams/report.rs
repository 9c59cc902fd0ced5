//! Datagrams of one direction, with the results of both ends.

use std::time::Duration;

use serde::Serialize;

use super::{Plan, Sent, receive::Received};
use crate::perf::{
    progress::{mbit_per_s, rate},
    report::{share, times},
    samples::Summary,
    transfer::Delivered,
};

/// Datagrams of one direction.
#[derive(Debug, Serialize)]
pub(crate) struct Datagrams {
    /// `download` or `upload`.
    pub(crate) direction: &'static str,
    pub(crate) size_bytes: u64,
    /// Rate of the payload that was asked for.
    pub(crate) asked_mbit_per_s: f64,
    /// Rate of the payload that the sender offered.
    pub(crate) offered_mbit_per_s: f64,
    /// Datagrams that the sender offered.
    pub(crate) offered: u64,
    /// Datagrams that never left, because congestion control held them back.
    pub(crate) unsent: u64,
    pub(crate) received: u64,
    /// Datagrams that left and did not come.
    pub(crate) lost: u64,
    /// Datagrams that came and left a full queue at the receiver unread.
    pub(crate) unread: u64,
    /// `lost` of those that left.
    pub(crate) lost_share: Option<f64>,
    /// Datagrams that came after one that was sent later.
    pub(crate) reordered: u64,
    /// Interarrival jitter (RFC 3550).
    pub(crate) jitter_ms: f64,
    /// Delay above the smallest one, which needs no synchronised clocks (RFC 5481).
    pub(crate) delay_variation: Option<Summary>,
    pub(crate) delay_variation_max_ms: Option<f64>,
    /// Delay by the clocks of both hosts, as far as these agree; `None` where they cannot.
    pub(crate) one_way_delay: Option<Summary>,
}

impl Datagrams {
    pub(super) fn new(direction: &'static str, plan: &Plan, sent: &Sent, received: &Received) -> Self {
        let left = sent.offered.saturating_sub(sent.unsent);
        let lost = left.saturating_sub(received.count + received.unread);
        let variation = received.variation();
        let second = Duration::from_secs(1);
        let offered = sent.offered.saturating_mul(plan.size);
        Self {
            direction,
            size_bytes: plan.size,
            asked_mbit_per_s: mbit_per_s(plan.rate / 8, second),
            offered_mbit_per_s: mbit_per_s(offered, Duration::from_nanos(sent.nanos)),
            offered: sent.offered,
            unsent: sent.unsent,
            received: received.count,
            lost,
            unread: received.unread,
            lost_share: share(lost, left),
            reordered: received.reordered,
            jitter_ms: Duration::from_nanos(received.jitter).as_secs_f64() * 1e3,
            delay_variation: variation.summary(),
            delay_variation_max_ms: received.most_variation().map(|delay| delay.as_secs_f64() * 1e3),
            one_way_delay: received.one_way().and_then(|delays| delays.summary()),
        }
    }

    /// Data that came, over the time for which the sender offered it, or the longer one in which it came.
    pub(super) fn delivered(sent: &Sent, received: &Received) -> Delivered {
        Delivered { bytes: received.bytes, elapsed: Duration::from_nanos(sent.nanos.max(received.span)) }
    }

    /// Lines of the table: name and text.
    pub(crate) fn lines(&self) -> [(&'static str, String); 4] {
        let lost = self.lost_share.map_or("–".to_owned(), |share| format!("{:.3} %", share * 100.0));
        let one_way = self.one_way_delay.as_ref().map_or("– (the clocks disagree)".to_owned(), times);
        let variation = self.delay_variation.as_ref().map_or("–".to_owned(), times);
        let most = self.delay_variation_max_ms.map_or("–".to_owned(), |ms| format!("{ms:.3} ms"));
        let seconds = Duration::from_secs(1);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a figure")]
        let offered = rate((self.offered_mbit_per_s * 1e6 / 8.0) as u64, seconds);
        let direction = self.direction;
        [
            (
                "datagrams",
                format!(
                    "{direction}: {} of {} B offered at {offered}, {} received, {} lost ({lost}), {} out of order, \
                     {} never left, {} unread",
                    self.offered, self.size_bytes, self.received, self.lost, self.reordered, self.unsent, self.unread
                ),
            ),
            ("variation", format!("{direction}: {variation}, max {most}")),
            ("jitter", format!("{direction}: {:.3} ms (RFC 3550)", self.jitter_ms)),
            ("one way", format!("{direction}: {one_way}, by the clocks of both hosts")),
        ]
    }
}
