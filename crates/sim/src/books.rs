//! Packet accounting of a network: every packet that a node sent is in exactly one category, copies included.

use netem::{Amount, DropReason, LinkCounters};

/// Outcome of the packets of a simulation.
///
/// `sent + duplicated = delivered + dropped + undeliverable + under_way`, in packets and in bytes of IP packets; and at each link
/// `offered = delivered + dropped + held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Sent by nodes, batches cut into packets.
    pub sent: Amount,
    /// Copies that links made.
    pub duplicated: Amount,
    /// Handed to nodes.
    pub delivered: Amount,
    /// Dropped by links, by reason in the order of [`DropReason::ALL`].
    pub dropped: [Amount; DropReason::ALL.len()],
    /// Without an address, a link, a node that had started, or a mapping.
    pub undeliverable: Amount,
    /// In flight.
    pub under_way: Amount,
}

/// Two sides of the books that differ. A fault of the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{book}: {total:?} in all, and {booked:?} booked by kind")]
pub struct Imbalance {
    /// Name of the book.
    pub book: &'static str,
    /// Packets sent.
    pub total: Amount,
    /// Sum over their fates.
    pub booked: Amount,
}

pub(crate) fn add(amount: &mut Amount, size: u32) {
    amount.packets += 1;
    amount.bytes += u64::from(size);
}

fn sum(amounts: impl IntoIterator<Item = Amount>) -> Amount {
    amounts.into_iter().fold(Amount::default(), |sum, amount| Amount {
        packets: sum.packets + amount.packets,
        bytes: sum.bytes + amount.bytes,
    })
}

impl Books {
    /// Checks that every packet is booked once.
    ///
    /// # Errors
    /// Both sides, when they differ.
    pub fn balance(&self) -> Result<(), Imbalance> {
        let total = sum([self.sent, self.duplicated]);
        let others = [self.delivered, self.undeliverable, self.under_way];
        compare("packets of nodes", total, sum(others.into_iter().chain(self.dropped)))
    }
}

/// Checks that a link that holds `held` has booked every packet once.
pub(crate) fn balance_link(counters: &LinkCounters, held: Amount) -> Result<(), Imbalance> {
    compare("packets of a link", counters.offered, sum([counters.delivered, counters.dropped_in_all(), held]))
}

fn compare(book: &'static str, total: Amount, booked: Amount) -> Result<(), Imbalance> {
    if total == booked { Ok(()) } else { Err(Imbalance { book, total, booked }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_nobody_books_is_found() {
        let amount = |packets, bytes| Amount { packets, bytes };
        let even =
            Books { sent: amount(2, 200), delivered: amount(1, 150), under_way: amount(1, 50), ..Books::default() };
        assert_eq!(even.balance(), Ok(()));
        assert!(Books { delivered: amount(1, 149), ..even }.balance().is_err());
        assert!(Books { duplicated: amount(1, 50), ..even }.balance().is_err());
    }
}
