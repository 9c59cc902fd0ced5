//! Delivery-rate estimator (draft-ietf-ccwg-bbr-05, "Delivery Rate Samples").
//!
//! Each packet carries a snapshot of the path's delivery at its departure. Its acknowledgement gives a sample: bytes delivered since the
//! snapshot, over the longer of send time and acknowledgement time. Neither bursts of sending nor bursts of acknowledgements can inflate
//! such a sample.

use units::{Bitrate, Duration, Instant};

/// State of the path when a packet left, which its acknowledgement is compared with (draft-ietf-ccwg-bbr "Delivery Rate
/// Samples").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes the path had delivered.
    pub delivered: u64,
    /// Time at which that was last updated.
    pub delivered_at: Instant,
    /// Departure of the packet that was delivered last (or of the first after idling).
    pub first_sent_at: Instant,
    /// Bytes the path had lost.
    pub lost: u64,
    /// Bytes in flight including the packet; saturates at 4 GiB.
    pub tx_in_flight: u32,
    /// The sender had run out of data within the last round trip.
    pub app_limited: bool,
}

/// One measurement of delivery, from the packet sent last among those newly acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered since the packet left.
    pub delivered: u64,
    /// The longer of `send_elapsed` and `ack_elapsed`.
    pub interval: Duration,
    /// `delivered` over `interval`; `None` when the interval is shorter than the path's minimum RTT, which no conforming
    /// measurement can be.
    pub delivery_rate: Option<Bitrate>,
    /// Bytes that had been delivered when the packet left: a packet-timed round trip ends with the first packet for which
    /// this is not below the total at the start of the round.
    pub prior_delivered: u64,
    /// Time at which `prior_delivered` was reached.
    pub prior_at: Instant,
    /// Time from the departure of the packet delivered before it to its own.
    pub send_elapsed: Duration,
    /// Time from the delivery that its departure saw to its own.
    pub ack_elapsed: Duration,
    /// The sample may be lower than the path, because the sender had run out of data.
    pub is_app_limited: bool,
    /// Bytes in flight when the packet left, itself included.
    pub tx_in_flight: u64,
    /// Bytes declared lost since the packet left.
    pub lost: u64,
}

/// Owns the delivery counters of one path.
#[derive(Clone, Debug, Default)]
pub struct RateEstimator {
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost: u64,
    /// The total delivery at which the present bubble of idleness has left the path; 0 without one.
    app_limited: u64,
}

impl RateEstimator {
    /// The snapshot for a packet that leaves at `now` on top of `in_flight` bytes.
    #[inline]
    pub fn on_sent(&mut self, now: Instant, size: u16, in_flight: u64) -> Snapshot {
        if in_flight == 0 {
            // Nothing is in progress: the sample interval starts here, so that idle time is not counted.
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        Snapshot {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            lost: self.lost,
            tx_in_flight: u32::try_from(in_flight + u64::from(size)).unwrap_or(u32::MAX),
            app_limited: self.app_limited != 0,
        }
    }

    /// Counts newly acknowledged bytes.
    #[inline]
    pub fn on_delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    /// Counts a packet declared lost.
    #[inline]
    pub fn on_packet_lost(&mut self, size: u16) {
        self.lost += u64::from(size);
    }

    /// A packet that counted as lost has arrived after all: it was delivered, and it was not lost.
    pub fn on_spurious_loss(&mut self, size: u16) {
        self.delivered += u64::from(size);
        self.lost = self.lost.saturating_sub(u64::from(size));
    }

    /// Marks the sender as application-limited: the window would permit more. Packets sent until the present flight is delivered show
    /// nothing about the path's rate.
    pub fn on_app_limited(&mut self, in_flight: u64) {
        self.app_limited = (self.delivered + in_flight).max(1);
    }

    /// Ends the processing of one acknowledgement, after its bytes were counted: the sample of the packet that was sent
    /// last among those it newly acknowledged.
    pub fn sample(&mut self, now: Instant, sent_at: Instant, snapshot: &Snapshot, min_rtt: Duration) -> RateSample {
        if self.app_limited != 0 && self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        self.delivered_at = now;
        self.first_sent_at = self.first_sent_at.max(sent_at);
        let send_elapsed = sent_at - snapshot.first_sent_at;
        let ack_elapsed = now - snapshot.delivered_at;
        let interval = send_elapsed.max(ack_elapsed);
        let delivered = self.delivered.saturating_sub(snapshot.delivered);
        RateSample {
            delivered,
            interval,
            delivery_rate: if interval >= min_rtt { rate(delivered, interval) } else { None },
            prior_delivered: snapshot.delivered,
            prior_at: snapshot.delivered_at,
            send_elapsed,
            ack_elapsed,
            is_app_limited: snapshot.app_limited,
            tx_in_flight: u64::from(snapshot.tx_in_flight),
            lost: self.lost.saturating_sub(snapshot.lost),
        }
    }

    /// Delivered bytes.
    #[inline]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Lost bytes.
    #[inline]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns whether packets sent now would be marked as application-limited.
    #[inline]
    pub fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }
}

/// Bytes over a time, as a rate; `None` over no time.
fn rate(bytes: u64, span: Duration) -> Option<Bitrate> {
    let nanos = u64::try_from(span.as_nanos()).ok().filter(|&nanos| nanos > 0)?;
    Some(Bitrate::from_bps(mul_div(bytes, 8_000_000_000, nanos)))
}

/// `a * b / c`, saturating; with a short division where that does, as it nearly always does.
#[inline]
pub(crate) fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// One packet of 1000 bytes each millisecond over a path of 50 ms: 8 Mbit/s.
    #[test]
    fn steady_sending_gives_its_rate() {
        let mut rate = RateEstimator::default();
        let mut sent = Vec::new();
        let mut last = None;
        for millis in 0..200 {
            if millis >= 50 {
                let (sent_at, snapshot): (Instant, Snapshot) = sent[usize::try_from(millis - 50).unwrap()];
                rate.on_delivered(1000);
                last = Some(rate.sample(at(millis), sent_at, &snapshot, 50 * MS));
            }
            let in_flight = 1000 * millis.min(50);
            sent.push((at(millis), rate.on_sent(at(millis), 1000, in_flight)));
        }
        let sample = last.unwrap();
        assert_eq!(sample.delivery_rate, Some(Bitrate::from_mbps(8)));
        assert_eq!(sample.interval, 50 * MS);
        assert_eq!(sample.tx_in_flight, 51_000);
    }

    /// The acknowledgements of ten packets arrive at once: the rate stays that of sending.
    #[test]
    fn compressed_acks_do_not_inflate() {
        let mut rate = RateEstimator::default();
        let sent: Vec<_> = (0..10).map(|i| (at(i * 10), rate.on_sent(at(i * 10), 1000, i * 1000))).collect();
        rate.on_delivered(10_000);
        let sample = rate.sample(at(100), sent[9].0, &sent[9].1, 10 * MS);
        // Ten packets within the 100 ms since the first departure.
        assert_eq!((sample.delivered, sample.interval), (10_000, 100 * MS));
    }

    #[test]
    fn an_interval_below_the_minimum_rtt_is_no_rate() {
        let mut rate = RateEstimator::default();
        let snapshot = rate.on_sent(at(0), 1000, 0);
        rate.on_delivered(1000);
        assert_eq!(rate.sample(at(9), at(0), &snapshot, 10 * MS).delivery_rate, None);
    }

    #[test]
    fn the_bubble_marks_one_round() {
        let mut rate = RateEstimator::default();
        let first = rate.on_sent(at(0), 1000, 0);
        rate.on_app_limited(1000);
        let second = rate.on_sent(at(5), 1000, 1000);
        assert!(!first.app_limited && second.app_limited);
        rate.on_delivered(1000);
        assert!(!rate.sample(at(10), at(0), &first, MS).is_app_limited);
        assert!(rate.is_app_limited());
        rate.on_delivered(1000);
        assert!(rate.sample(at(15), at(5), &second, MS).is_app_limited);
        assert!(!rate.is_app_limited());
    }

    #[test]
    fn counts_losses_since_departure() {
        let mut rate = RateEstimator::default();
        rate.on_packet_lost(500);
        let snapshot = rate.on_sent(at(0), 1000, 0);
        rate.on_packet_lost(700);
        rate.on_delivered(1000);
        assert_eq!(rate.sample(at(10), at(0), &snapshot, MS).lost, 700);
    }
}
