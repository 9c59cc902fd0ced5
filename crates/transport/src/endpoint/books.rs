//! Byte accounting of a socket: bytes of its connections, bytes outside of connections, and totals received and sent.

use super::Endpoint;
use crate::{books::Imbalance, connection::Connection, stats::Stats};

/// Datagrams and bytes of their UDP payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Carried {
    #[inline]
    fn add(&mut self, bytes: usize, segment: usize) {
        self.datagrams += bytes.div_ceil(segment.max(1)) as u64;
        self.bytes += bytes as u64;
    }

    #[inline]
    fn take(&mut self, bytes: usize, segment: usize) {
        self.datagrams -= bytes.div_ceil(segment.max(1)) as u64;
        self.bytes -= bytes as u64;
    }
}

/// Datagrams and bytes of an endpoint in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionBooks {
    /// In all.
    pub total: Carried,
    /// Of no connection: dropped, answered or sent without state, handed to another shard, or kept for a connection that may begin.
    pub stateless: Carried,
}

/// The books of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointBooks {
    /// Datagrams given to [`Endpoint::handle_datagram`].
    pub received: DirectionBooks,
    /// Datagrams that [`Endpoint::poll_transmit`] gave.
    pub sent: DirectionBooks,
}

/// Accounts of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) books: EndpointBooks,
    /// The sum of all connections that have ended.
    ended: Stats,
    /// The first connection whose books did not balance when it was over.
    imbalance: Option<Imbalance>,
}

impl Ledger {
    #[inline]
    pub(super) fn on_received(&mut self, bytes: usize, segment: usize) {
        self.books.received.total.add(bytes, segment);
    }

    pub(super) fn on_stateless_received(&mut self, bytes: usize, segment: usize) {
        self.books.received.stateless.add(bytes, segment);
    }

    /// Moves bytes that were taken for stateless to the column of connections.
    pub(super) fn on_adopted(&mut self, bytes: usize, segment: usize) {
        self.books.received.stateless.take(bytes, segment);
    }

    #[inline]
    pub(super) fn on_sent(&mut self, bytes: usize, segment: usize) {
        self.books.sent.total.add(bytes, segment);
    }

    pub(super) fn on_stateless_sent(&mut self, bytes: usize) {
        self.books.sent.total.add(bytes, bytes);
        self.books.sent.stateless.add(bytes, bytes);
    }

    /// Adds the books of a connection that has ended.
    pub(super) fn on_ended(&mut self, connection: &Connection) {
        let stats = connection.stats();
        self.ended.add(&stats);
        let balance = stats.balance();
        debug_assert_eq!(balance, Ok(()), "the books of a connection");
        self.imbalance = self.imbalance.or(balance.err());
    }
}

impl Endpoint {
    /// Returns the books of the datagrams received and sent.
    pub fn books(&self) -> EndpointBooks {
        self.ledger.books
    }

    /// Sums the statistics of all connections, those included that have ended. Sums of gauges mean little, except for bytes and
    /// datagrams that wait.
    pub fn sum_of_stats(&self) -> Stats {
        let mut sum = self.ledger.ended;
        let live = self.slots.iter().filter_map(|slot| slot.connection.as_deref());
        live.for_each(|connection| sum.add(&connection.stats()));
        sum
    }

    /// Returns whether the accounts balance: those of every connection, and those of the socket with them.
    ///
    /// # Errors
    /// The first that does not.
    pub fn balance(&self) -> Result<(), Imbalance> {
        if let Some(imbalance) = self.ledger.imbalance {
            return Err(imbalance);
        }
        let mut live = self.slots.iter().filter_map(|slot| slot.connection.as_deref());
        live.try_for_each(|connection| connection.stats().balance())?;
        let sum = self.sum_of_stats();
        let EndpointBooks { received, sent } = self.ledger.books;
        for (book, total, stateless, connections) in [
            (
                "socket_datagrams_received",
                received.total.datagrams,
                received.stateless.datagrams,
                sum.datagrams_received,
            ),
            ("socket_bytes_received", received.total.bytes, received.stateless.bytes, sum.bytes_received),
            ("socket_datagrams_sent", sent.total.datagrams, sent.stateless.datagrams, sum.datagrams_sent),
            ("socket_bytes_sent", sent.total.bytes, sent.stateless.bytes, sum.bytes_sent),
        ] {
            let booked = stateless + connections;
            if total != booked {
                return Err(Imbalance { book, total, booked });
            }
        }
        Ok(())
    }
}
