//! Fate of each datagram, and statistics over all.

use units::Instant;

/// Outcome of a datagram at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramFate {
    /// Left in a packet, at this moment.
    Sent(Instant),
    /// Dropped: the queue was full, or no packet could hold it.
    Dropped,
    /// Worthless before it could be sent.
    Expired,
}

/// Figures since the beginning, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramFigures {
    /// Sent in a packet.
    pub sent: u64,
    /// Bytes of the datagrams sent.
    pub sent_bytes: u64,
    /// Bytes of the headers of their frames.
    pub header_bytes: u64,
    /// Handed over by the application.
    pub queued: u64,
    /// Waiting to be sent.
    pub waiting: u64,
    /// Waiting to be sent when the connection ended.
    pub abandoned: u64,
    /// Datagrams whose packet was acknowledged.
    pub acked: u64,
    /// Datagrams whose packet was declared lost, some of them wrongly.
    pub lost: u64,
    /// Dropped before they were sent.
    pub send_dropped: u64,
    /// Worthless before they could be sent.
    pub expired: u64,
    /// Received.
    pub received: u64,
    /// Bytes of the datagrams received.
    pub received_bytes: u64,
    /// Dropped before the application took them.
    pub receive_dropped: u64,
    /// Taken by the application.
    pub delivered: u64,
    /// Waiting for the application.
    pub unread: u64,
}
