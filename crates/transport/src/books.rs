//! Byte accounting of a connection: every byte of a datagram is in exactly one category, at both ends.
//!
//! ```text
//! sent      = data for the first time + again + frame headers + acknowledgements + CRYPTO + other frames
//!             + packet headers + probes + repair + headers of symbols + padding
//! received  = packets + duplicates + discarded, by reason + waiting for keys
//! stream    = delivered + duplicate + unwanted + unread           (payload received)
//! datagrams = sent + dropped + expired + abandoned + waiting       (handed over by the application)
//! datagrams = delivered + dropped + unread                         (frames received)
//! ```
//!
//! Bytes are counted where they are written or read, not where the counters are summed. So a new kind of frame without a counter shows as a
//! difference.

use crate::stats::Stats;

/// Two sides of one of the books that differ. A fault of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{book}: {total} in all, and {booked} booked by kind")]
pub struct Imbalance {
    /// Name of the book.
    pub book: &'static str,
    /// Sum that the columns have to add up to.
    pub total: u64,
    /// Sum of the columns.
    pub booked: u64,
}

/// A category of a book, and what is in it.
type Column = (&'static str, u64);

/// One account: its name, the sum, and the categories.
pub type Book = (&'static str, u64, Vec<(&'static str, u64)>);

impl Stats {
    /// Returns whether every byte, and every datagram, is booked once.
    ///
    /// # Errors
    /// The first book that does not balance.
    pub fn balance(&self) -> Result<(), Imbalance> {
        let mut first = None;
        self.each_book(&mut |book, total, columns| {
            let booked = columns.iter().map(|(_, bytes)| bytes).sum();
            if total != booked {
                first.get_or_insert(Imbalance { book, total, booked });
            }
        });
        first.map_or(Ok(()), Err)
    }

    /// Every book.
    pub fn books(&self) -> Vec<Book> {
        let mut books = Vec::new();
        self.each_book(&mut |book, total, columns| books.push((book, total, columns.to_vec())));
        books
    }

    /// Gives every book to `take`.
    fn each_book(&self, take: &mut dyn FnMut(&'static str, u64, &[Column])) {
        take("bytes_sent", self.bytes_sent + self.bytes_unsealed, &self.columns_sent());
        take("bytes_received", self.bytes_received, &self.columns_received());
        take(
            "stream_bytes_received",
            self.stream_bytes_received,
            &[
                ("delivered", self.stream_bytes_delivered),
                ("duplicate", self.stream_bytes_duplicate),
                ("unwanted", self.stream_bytes_unwanted),
                ("unread", self.stream_bytes_unread),
            ],
        );
        take(
            "datagrams_queued",
            self.datagram_frames_queued,
            &[
                ("sent", self.datagram_frames_sent),
                ("dropped", self.datagram_frames_dropped_unsent),
                ("expired", self.datagram_frames_expired),
                ("abandoned", self.datagram_frames_abandoned),
                ("waiting", self.datagram_frames_waiting),
            ],
        );
        take(
            "datagrams_received",
            self.datagram_frames_received,
            &[
                ("delivered", self.datagram_frames_delivered),
                ("dropped", self.datagram_frames_dropped - self.datagram_frames_dropped_unsent),
                ("unread", self.datagram_frames_unread),
            ],
        );
    }

    /// Uses of the bytes of datagrams sent, those included that could not be sealed.
    pub const fn columns_sent(&self) -> [(&'static str, u64); 13] {
        [
            ("stream", self.stream_bytes_sent - self.stream_bytes_retransmitted),
            ("stream_again", self.stream_bytes_retransmitted),
            ("datagrams", self.datagram_bytes_sent),
            ("stream_headers", self.stream_header_bytes_sent),
            ("datagram_headers", self.datagram_header_bytes_sent),
            ("acknowledgements", self.ack_bytes_sent),
            ("crypto", self.crypto_bytes_sent),
            ("control", self.control_bytes_sent),
            ("packet_headers", self.header_bytes_sent),
            ("probes", self.probe_bytes_sent),
            ("repair", self.fec_repair_bytes_sent),
            ("symbol_headers", self.fec_header_bytes_sent),
            ("padding", self.padding_bytes_sent),
        ]
    }

    /// Columns of the bytes of datagrams received, by outcome.
    pub const fn columns_received(&self) -> [(&'static str, u64); 9] {
        [
            ("packets", self.packet_bytes_received),
            ("duplicates", self.duplicate_bytes_received),
            ("undecryptable", self.undecryptable_bytes_received),
            ("unknown_address", self.unknown_address_bytes_received),
            ("unopened", self.unopened_bytes_received),
            ("waiting", self.waiting_bytes_received),
            ("unsealed", self.unsealed_bytes_received),
            ("ignored", self.ignored_bytes_received),
            ("closing", self.closing_bytes_received),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_nobody_books_is_found() {
        let even = Stats { bytes_sent: 30, header_bytes_sent: 20, padding_bytes_sent: 10, ..Stats::default() };
        assert_eq!(even.balance(), Ok(()));
        let odd = Stats { padding_bytes_sent: 9, ..even };
        assert_eq!(odd.balance(), Err(Imbalance { book: "bytes_sent", total: 30, booked: 29 }));
        let twice =
            Stats { bytes_received: 5, packet_bytes_received: 5, duplicate_bytes_received: 5, ..Stats::default() };
        assert_eq!(twice.balance().unwrap_err().to_string(), "bytes_received: 5 in all, and 10 booked by kind");
    }
}
