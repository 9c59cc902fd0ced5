//! Repair for the ends of short messages without an estimate of the loss: at the start of a connection, and on connections with too little
//! traffic for an estimate.
//!
//! A loss in a message that ends within a round trip costs a round trip or more, whatever the loss rate of the path. So its end is
//! protected in any case, within a bounded number of bytes: [`Budget`].

use units::{Duration, Instant};

use super::{controller::LEAST_LOSS, estimate::Estimate};

/// Symbols of a message that is short; what continues for longer is not covered.
const SHORT: u64 = 32;
/// Packets after which a path that has lost less than [`LEAST_LOSS`] counts as lossless.
const SETTLED: f64 = 400.0;
/// Packets after which the estimate determines the number of repair symbols of an end.
const KNOWN: f64 = 200.0;
/// Losses that are expected of a message below which one repair symbol does, and below which two do.
const FEW_LOSSES: [f64; 2] = [0.1, 0.3];
/// Symbols below which one repair symbol suffices, and below which two suffice, whatever the loss.
const FEW: [u64; 2] = [8, 14];
/// Repair is at most 7 bytes of 50 that leave (14 %), so that other bytes pay 7 for 43. What symbols add to other packets comes on top.
const REPAIR_PART: u64 = 7;
const OTHER_PART: u64 = 43;
/// Symbols into which a short message is cut: three of repair are within the budget then. At 3 % loss, that leaves 0.3 % of the
/// messages with more losses than repair symbols; twelve and two would leave 0.8 %.
const PARTS: u64 = 19;
/// Bytes of a symbol below which more packets cost more than less repair gains.
const LEAST_SIZE: usize = 600;
/// Bytes of a STREAM frame beside its data.
const STREAM_HEADER: u64 = 12;
/// Bytes that can be saved up: two symbols of an Ethernet.
const SAVED: u64 = 3_000;
/// Bytes of a packet beside its symbol, and of its IP and UDP headers.
const HEADERS: u64 = 60;

/// Owns the budget of repair at the ends of messages: 14 % of the sent bytes.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Bytes of other packets times [`REPAIR_PART`], less bytes of repair times [`OTHER_PART`].
    credit: u64,
}

impl Budget {
    /// Bytes other than repair left.
    #[inline]
    pub(super) fn earn(&mut self, bytes: u64) {
        self.credit = (self.credit + bytes * REPAIR_PART).min(SAVED * OTHER_PART);
    }

    /// A packet with a symbol of `len` bytes left.
    #[inline]
    pub(super) fn earn_symbol(&mut self, len: usize) {
        self.earn(len as u64 + HEADERS);
    }

    /// Pays for repair symbols of `len` bytes, `wanted` at most. Returns how many it could pay for.
    pub(super) fn pay(&mut self, len: usize, wanted: u8) -> u8 {
        let price = (len as u64 + HEADERS) * OTHER_PART;
        let count = u8::try_from(self.credit / price).unwrap_or(u8::MAX).min(wanted);
        self.credit -= price * u64::from(count);
        count
    }
}

/// Owns the message in progress, and the account of its repair.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Set while only ends are protected.
    pub(super) active: bool,
    pub(super) budget: Budget,
    symbols: u64,
    longest: usize,
    /// Bytes of a symbol of the message at most.
    size: usize,
    /// Time at which no data was left to send.
    silent_since: Option<Instant>,
}

impl Ends {
    /// A symbol of `len` bytes left.
    #[inline]
    pub(super) fn on_symbol(&mut self, len: usize) {
        self.symbols += 1;
        self.longest = self.longest.max(len);
        self.budget.earn_symbol(len);
    }

    /// Bytes that the next symbol may have: a message of few packets is cut into equal ones, so that repair symbols of their
    /// length are within the budget. `unsent` bytes wait; `None` where they cannot be cut.
    pub(super) fn symbol_size(&mut self, unsent: Option<u64>) -> usize {
        if self.symbols == 0 {
            self.size = 0;
        }
        let Some(unsent) = unsent else { return usize::MAX };
        if self.size == 0 {
            // Each has a header of its stream in it.
            let part = usize::try_from(unsent / PARTS + STREAM_HEADER).unwrap_or(usize::MAX);
            self.size = part.max(LEAST_SIZE);
        }
        self.size
    }

    /// Records that no data is left to send.
    pub(super) fn on_silence(&mut self, now: Instant) {
        self.silent_since.get_or_insert(now);
    }

    /// Takes the departure of a packet. After silence of `pause` it begins another message.
    pub(super) fn on_packet(&mut self, now: Instant, pause: Duration) {
        if self.silent_since.take().is_some_and(|since| now - since >= pause) {
            (self.symbols, self.longest) = (0, 0);
        }
    }

    /// Returns whether the message may still be short.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.symbols < SHORT
    }

    /// Pays for the repair symbols that the end of the message needs. Returns how many it could pay for.
    pub(super) fn pay(&mut self, estimate: &Estimate) -> u8 {
        let expected = estimate.loss() * self.symbols as f64;
        let few = |place: usize| self.symbols < FEW[place] || estimate.seen() >= KNOWN && expected < FEW_LOSSES[place];
        let wanted = if few(0) {
            1
        } else if few(1) {
            2
        } else {
            3
        };
        self.budget.pay(self.longest, wanted)
    }
}

/// Returns whether the path is known as lossless.
pub(super) fn loses_nothing(estimate: &Estimate) -> bool {
    estimate.seen() >= SETTLED && estimate.loss() < LEAST_LOSS
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A message of this number of symbols that ends; returns the repair symbols within the budget.
    fn message(ends: &mut Ends, estimate: &Estimate, at: u64, symbols: u64, len: usize) -> u8 {
        ends.on_packet(Instant::from_millis(at), 10 * MS);
        (0..symbols).for_each(|_| ends.on_symbol(len));
        ends.on_silence(Instant::from_millis(at));
        ends.pay(estimate)
    }

    #[test]
    fn a_million_tiny_messages_are_no_more_than_their_share() {
        for (symbols, len) in [(1, 20), (1, 1_200), (3, 400), (19, 650)] {
            let (mut ends, estimate) = (Ends::default(), Estimate::default());
            let (mut repair, mut other) = (0, 0);
            for round in 0..1_000_000 {
                let made = message(&mut ends, &estimate, 100 * round, symbols, len);
                other += symbols * (len as u64 + HEADERS);
                repair += u64::from(made) * (len as u64 + HEADERS);
            }
            let share = repair as f64 / (repair + other) as f64;
            assert!(share > 0.1 && share <= 0.14 + 1e-9, "{symbols} symbols of {len} bytes: {share}");
        }
    }

    #[test]
    fn longer_messages_get_more_repair_symbols() {
        let repairs = |symbols| {
            let mut ends = Ends::default();
            ends.budget.earn(1_000_000);
            message(&mut ends, &Estimate::default(), 0, symbols, 500)
        };
        assert_eq!([1, 7, 8, 13, 14, 18].map(repairs), [1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_path_that_is_known_gets_what_it_needs() {
        let repairs = |lost| {
            let (mut ends, mut estimate) = (Ends::default(), Estimate::default());
            ends.budget.earn(1_000_000);
            estimate.on_outcome(1_000 - lost, lost);
            (message(&mut ends, &estimate, 0, 18, 500), loses_nothing(&estimate))
        };
        assert_eq!([0, 2, 10, 30].map(repairs), [(1, true), (1, false), (2, false), (3, false)]);
    }

    #[test]
    fn silence_begins_a_message_and_a_pause_does_not() {
        let mut ends = Ends::default();
        let mut send = |at, symbols| {
            message(&mut ends, &Estimate::default(), at, symbols, 500);
            ends.is_short()
        };
        assert!(send(0, 20));
        assert!(!send(5, 20), "5 ms are no end of a message");
        assert!(send(15, 20), "10 ms are");
    }

    #[test]
    fn short_messages_are_cut_into_equal_symbols() {
        let size = |unsent| Ends::default().symbol_size(unsent);
        assert_eq!(size(Some(19_000)), 1_012);
        assert_eq!(size(Some(100)), LEAST_SIZE);
        assert!(size(Some(1_000_000)) > 1_500, "not cut");
        assert_eq!(size(None), usize::MAX);
        // The first symbol decides for the message.
        let mut ends = Ends::default();
        let first = ends.symbol_size(Some(18_000));
        ends.on_symbol(first);
        assert_eq!(ends.symbol_size(Some(500)), first);
        // … or the first that can be cut.
        let mut ends = Ends::default();
        assert_eq!(ends.symbol_size(None), usize::MAX);
        ends.on_symbol(1_000);
        assert_eq!(ends.symbol_size(Some(19_000)), 1_012);
    }
}
