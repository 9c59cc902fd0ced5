//! Receiver of datagrams: arrivals, order, and variation of their delay.

use std::{future::Future, pin::pin, time::Duration};

use bytes::Bytes;
use tiderace::{CloseReason, Connection};
use tokio::time::{Instant, sleep_until};

use super::{Clock, HEADER, Sent};
use crate::perf::{
    progress::Moved,
    protocol::{decode, encode},
    samples::Samples,
    transfer::TransferError,
};

/// Datagrams that are taken at a time.
const BATCH: usize = 64;
/// A datagram that comes later than this after the sender's account is lost, unless four round trips are longer.
const LATE: Duration = Duration::from_millis(500);
/// Added to differences of clocks, so that samples are positive.
const BIAS: u64 = 1 << 63;

/// Account of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// Datagrams that came after one with a higher number (RFC 4737 §3).
    pub(super) reordered: u64,
    /// Datagrams that this program took too late: they left a full queue unread.
    pub(super) unread: u64,
    /// Interarrival jitter in nanoseconds (RFC 3550 §6.4.1).
    pub(super) jitter: u64,
    /// From the first datagram to the last, in nanoseconds.
    pub(super) span: u64,
    /// Smallest of the delays.
    smallest: u64,
    /// Largest of the delays.
    largest: u64,
    /// Differences between the receiver's clock and the time in the datagram, with [`BIAS`].
    delays: Samples,
}

impl Received {
    /// More than any account takes, in bytes.
    pub(super) const MAX_LEN: usize = 64 * 1024;
    /// Bytes before the samples.
    const HEAD: usize = 64;

    /// Delays above the smallest one (RFC 5481 §4.2): what queues and jitter add, whatever the clocks say.
    pub(super) fn variation(&self) -> Samples {
        self.delays.map(|delay| delay.saturating_sub(self.smallest))
    }

    /// Largest of the delays above the smallest one; `None` without a datagram.
    pub(super) fn most_variation(&self) -> Option<Duration> {
        self.largest.checked_sub(self.smallest).map(Duration::from_nanos)
    }

    /// Delays by both clocks; `None` where that cannot be: the receiver's is behind the sender's.
    pub(super) fn one_way(&self) -> Option<Samples> {
        (self.count > 0 && self.smallest >= BIAS).then(|| self.delays.map(|delay| delay.saturating_sub(BIAS)))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers =
            [self.count, self.bytes, self.reordered, self.unread, self.jitter, self.span, self.smallest, self.largest];
        let head: [u8; Self::HEAD] = encode(numbers);
        let mut out = head.to_vec();
        self.delays.encode(&mut out);
        out
    }

    /// Reads what [`Self::encode`] wrote. `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, delays) = bytes.split_first_chunk::<{ Self::HEAD }>()?;
        let [count, bytes, reordered, unread, jitter, span, smallest, largest] = decode(*head);
        Some(Self {
            count,
            bytes,
            reordered,
            unread,
            jitter,
            span,
            smallest,
            largest,
            delays: Samples::decode(delays)?,
        })
    }
}

/// Takes datagrams as they come.
struct Receiver {
    received: Received,
    /// Number behind the highest so far.
    next: u64,
    /// Time of the first datagram.
    first: Option<u64>,
    /// Delay of the datagram before, with [`BIAS`].
    last: Option<u64>,
    /// Jitter in 16ths of a nanosecond.
    jitter: u64,
}

impl Receiver {
    fn new() -> Self {
        let received = Received {
            count: 0,
            bytes: 0,
            reordered: 0,
            unread: 0,
            jitter: 0,
            span: 0,
            smallest: u64::MAX,
            largest: 0,
            delays: Samples::new(),
        };
        Self { received, next: 0, first: None, last: None, jitter: 0 }
    }

    /// Takes one at a time of the receiver's clock.
    fn take(&mut self, data: &[u8], now: u64) {
        let Some((head, _)) = data.split_first_chunk::<HEADER>() else { return };
        let [number, sent] = decode(*head);
        let delay = now.wrapping_sub(sent).wrapping_add(BIAS);
        let received = &mut self.received;
        received.count += 1;
        received.span = now.saturating_sub(*self.first.get_or_insert(now));
        received.bytes += data.len() as u64;
        received.reordered += u64::from(number < self.next);
        self.next = self.next.max(number.saturating_add(1));
        received.smallest = received.smallest.min(delay);
        received.largest = received.largest.max(delay);
        received.delays.record(Duration::from_nanos(delay));
        // RFC 3550 §A.8: a sixteenth of the difference, in integers.
        if let Some(last) = self.last.replace(delay) {
            let change = delay.abs_diff(last);
            self.jitter = self.jitter.saturating_add(change).saturating_sub(self.jitter.saturating_add(8) >> 4);
        }
        received.jitter = self.jitter >> 4;
    }
}

/// Takes datagrams until all have come that `sent` tells of, or are too late.
///
/// # Errors
/// When the connection ends, or `sent` fails.
pub(super) async fn receive(
    connection: &Connection,
    sent: impl Future<Output = Result<Sent, TransferError>>,
    moved: &Moved,
) -> Result<(Sent, Received), TransferError> {
    let unread = || {
        connection
            .stats()
            .map_or(0, |stats| stats.datagram_frames_dropped.saturating_sub(stats.datagram_frames_dropped_unsent))
    };
    let before = unread();
    let (clock, mut receiver) = (Clock::new(), Receiver::new());
    let (mut sent, mut told) = (pin!(sent), None::<(Sent, Instant)>);
    let mut batch: Vec<Bytes> = Vec::with_capacity(BATCH);
    let sent = loop {
        let is_lost = async {
            match told {
                Some((_, late)) => sleep_until(late).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            taken = read(connection, &mut batch) => {
                taken?;
                let now = clock.now();
                for data in batch.drain(..) {
                    receiver.take(&data, now);
                    moved.add(data.len());
                }
            }
            account = &mut sent, if told.is_none() => {
                let late = LATE.max(connection.rtt().saturating_mul(4));
                told = Some((account?, Instant::now() + late));
            }
            () = is_lost => {}
        }
        if let Some((sent, late)) = told
            && (receiver.received.count + unread().saturating_sub(before) >= sent.offered.saturating_sub(sent.unsent)
                || Instant::now() >= late)
        {
            break sent;
        }
    };
    receiver.received.unread = unread().saturating_sub(before);
    Ok((sent, receiver.received))
}

async fn read(connection: &Connection, batch: &mut Vec<Bytes>) -> Result<usize, CloseReason> {
    std::future::poll_fn(|cx| connection.poll_read_datagrams(cx, batch, BATCH)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(number: u64, sent: u64) -> Vec<u8> {
        let head: [u8; HEADER] = encode([number, sent]);
        [&head[..], &[0; 84]].concat()
    }

    #[test]
    fn order_delay_and_jitter_are_taken() {
        let mut receiver = Receiver::new();
        // Delays of 5, 7, 5 and 6 ms; number 1 is overtaken, number 4 is missing.
        for (number, sent, at) in [(0, 0, 5), (2, 2, 9), (1, 1, 6), (3, 3, 9), (5, 5, 10)] {
            receiver.take(&datagram(number, sent * 1_000_000), at * 1_000_000);
        }
        receiver.take(&[1, 2, 3], 0);
        let received = receiver.received;
        assert_eq!((received.count, received.bytes, received.reordered), (5, 500, 1));
        let variation = received.variation().summary().unwrap();
        assert_eq!(received.span, 5_000_000);
        assert_eq!((variation.min_ms, variation.p50_ms, variation.samples), (0.0, 0.0, 5));
        let one_way = received.one_way().unwrap().summary().unwrap();
        assert_eq!((one_way.min_ms, one_way.p50_ms), (5.0, 5.0));
        // Changes of 2, 2, 1 and 1 ms, each by a sixteenth: 0.125, 0.242, 0.290, 0.334.
        assert!((330_000..340_000).contains(&received.jitter), "{}", received.jitter);
        assert_eq!(Received::decode(&received.encode()), Some(received.clone()));
        assert_eq!(Received::decode(&received.encode()[..50]), None);
    }

    #[test]
    fn a_clock_that_is_behind_gives_no_delay() {
        let mut receiver = Receiver::new();
        receiver.take(&datagram(0, 2_000_000), 1_000_000);
        receiver.take(&datagram(1, 3_000_000), 2_500_000);
        assert!(receiver.received.one_way().is_none());
        assert_eq!(receiver.received.variation().summary().unwrap().p50_ms, 0.0);
        assert_eq!(receiver.received.most_variation(), Some(Duration::from_micros(500)));
    }

    #[test]
    fn accounts_fit() {
        let mut receiver = Receiver::new();
        (0..100_000).for_each(|number| receiver.take(&datagram(number, 0), number));
        assert!(receiver.received.encode().len() <= Received::MAX_LEN);
    }
}
