//! Accounting of a run: every packet of the network and every byte of the stacks, from start to end, and whether the sums agree.

use std::collections::BTreeMap;

use netem::{Amount, DropReason, IPV4_OVERHEAD};
use serde::{Deserialize, Serialize};
use transport::{Endpoint, EndpointBooks, Stats};

/// Packets, and bytes of IP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
}

impl From<Amount> for Packets {
    fn from(Amount { packets, bytes }: Amount) -> Self {
        Self { packets, bytes }
    }
}

/// Columns by name.
pub type Columns = BTreeMap<String, u64>;

/// The books of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// The network: `sent + duplicated` is the sum of all others.
    pub network: BTreeMap<String, Packets>,
    /// The stacks of all clients together. Empty for a stack that does not keep books.
    #[serde(default, skip_serializing_if = "EndBooks::is_empty")]
    pub clients: EndBooks,
    /// The stacks of all servers together.
    #[serde(default, skip_serializing_if = "EndBooks::is_empty")]
    pub servers: EndBooks,
}

/// Books of the stacks: `total` is the sum of the other columns of each book.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EndBooks(pub BTreeMap<String, Columns>);

impl EndBooks {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The byte accounts of one endpoint of this stack.
    ///
    /// # Errors
    /// When they do not balance.
    pub(crate) fn of(endpoint: &Endpoint) -> Result<Self, String> {
        endpoint.balance().map_err(|imbalance| imbalance.to_string())?;
        Ok(Self::from_stats(&endpoint.sum_of_stats(), &endpoint.books()))
    }

    fn from_stats(stats: &Stats, socket: &EndpointBooks) -> Self {
        let mut books = BTreeMap::new();
        for (book, mut total, columns) in stats.books() {
            let mut columns: Columns = columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let stateless = match book {
                "bytes_sent" => Some(socket.sent.stateless.bytes),
                "bytes_received" => Some(socket.received.stateless.bytes),
                _ => None,
            };
            if let Some(bytes) = stateless {
                columns.insert("stateless".to_owned(), bytes);
                total += bytes;
            }
            columns.insert("total".to_owned(), total);
            books.insert(book.to_owned(), columns);
        }
        let datagrams = [("sent", socket.sent.total.datagrams), ("received", socket.received.total.datagrams)];
        books.insert("datagrams".to_owned(), datagrams.map(|(name, value)| (name.to_owned(), value)).into());
        Self(books)
    }

    /// Adds the books of another end.
    pub(crate) fn add(&mut self, other: &Self) {
        for (book, columns) in &other.0 {
            let sum = self.0.entry(book.clone()).or_default();
            columns.iter().for_each(|(column, value)| *sum.entry(column.clone()).or_default() += value);
        }
    }

    /// Datagrams and their bytes with the headers of IP and UDP, as the network counts them.
    fn packets(&self, direction: &str) -> Option<Packets> {
        let packets = *self.0.get("datagrams")?.get(direction)?;
        let bytes = *self.0.get(&format!("bytes_{direction}"))?.get("total")?;
        Some(Packets { packets, bytes: bytes + u64::from(IPV4_OVERHEAD) * packets })
    }
}

impl Books {
    /// The books of a network.
    pub(crate) fn of(network: &sim::Books) -> Self {
        let mut columns: BTreeMap<String, Packets> = [
            ("sent", network.sent),
            ("duplicated", network.duplicated),
            ("delivered", network.delivered),
            ("undeliverable", network.undeliverable),
            ("under_way", network.under_way),
        ]
        .map(|(name, amount)| (name.to_owned(), amount.into()))
        .into();
        for (reason, amount) in DropReason::ALL.iter().zip(network.dropped) {
            columns.insert(format!("dropped_{}", reason.name()), amount.into());
        }
        Self { network: columns, ..Self::default() }
    }

    /// Checks that the network and the stacks agree on what was sent and received.
    ///
    /// # Errors
    /// What they do not agree on.
    pub(crate) fn balance(&self) -> Result<(), String> {
        for (direction, column) in [("sent", "sent"), ("received", "delivered")] {
            let ends = [&self.clients, &self.servers].map(|end| end.packets(direction));
            let [Some(clients), Some(servers)] = ends else { return Ok(()) };
            let stacks = Packets { packets: clients.packets + servers.packets, bytes: clients.bytes + servers.bytes };
            let network = self.network.get(column).copied().unwrap_or_default();
            if stacks != network {
                return Err(format!("the stacks {direction} {stacks:?}, the network has {network:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_network_have_to_agree() {
        let end = |datagrams: u64| {
            let stats = Stats { bytes_sent: 100, header_bytes_sent: 100, ..Stats::default() };
            let mut socket = EndpointBooks::default();
            socket.sent.total.datagrams = datagrams;
            EndBooks::from_stats(&stats, &socket)
        };
        let network = sim::Books { sent: Amount { packets: 3, bytes: 200 + 3 * 28 }, ..sim::Books::default() };
        let books = Books { clients: end(1), servers: end(2), ..Books::of(&network) };
        assert_eq!(books.balance(), Ok(()));
        let books = Books { servers: end(1), ..books };
        assert!(books.balance().unwrap_err().starts_with("the stacks sent Packets { packets: 2, bytes: 256 }"));
        let mut both = end(1);
        both.add(&end(2));
        assert_eq!((both.0["bytes_sent"]["total"], both.0["datagrams"]["sent"]), (200, 3));
    }
}
