//! Datagrams of a probe: plain UDP, so that the path sees size, ECN mark and time of each packet as sent.
//!
//! Key of the session (16 bytes), kind, train, two bytes of zeros, number, then 64-bit times and a nonce; zeros up to the size. The key is
//! sent over QUIC, so that only packets of a validated client count. An answer is never larger than its request.

use super::estimate::Arrival;

/// Key of a session.
pub(super) type Key = [u8; 16];

/// Bytes before the padding.
pub(super) const HEAD: usize = 48;
/// IP and UDP headers of a packet, by family.
pub(super) const fn overhead(is_ipv4: bool) -> u32 {
    if is_ipv4 { 28 } else { 48 }
}

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Wants an answer.
    Ping,
    /// The answer.
    Pong,
    /// Is counted.
    Data,
}

/// A packet without its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) key: Key,
    pub(super) kind: Kind,
    /// Train that it belongs to.
    pub(super) train: u8,
    /// Number in its train, from 0.
    pub(super) number: u32,
    /// Time of sending in microseconds; an answer has that of its question.
    pub(super) sent: u64,
    /// Of an answer: the server's proof that packets to this address arrive.
    pub(super) nonce: u64,
}

impl Packet {
    /// Writes it at the head of `into`, which has at least [`HEAD`] bytes.
    pub(super) fn write(&self, into: &mut [u8]) {
        let kind = match self.kind {
            Kind::Ping => 1,
            Kind::Pong => 2,
            Kind::Data => 3,
        };
        into[..16].copy_from_slice(&self.key);
        into[16..20].copy_from_slice(&[kind, self.train, 0, 0]);
        into[20..24].copy_from_slice(&self.number.to_be_bytes());
        into[24..32].copy_from_slice(&self.sent.to_be_bytes());
        into[32..40].copy_from_slice(&self.nonce.to_be_bytes());
        into[40..HEAD].fill(0);
    }

    /// Parses a packet; `None` for any other bytes.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD] = bytes.first_chunk()?;
        let kind = match head[16] {
            1 => Kind::Ping,
            2 => Kind::Pong,
            3 => Kind::Data,
            _ => return None,
        };
        let long = |from: usize| u64::from_be_bytes(head[from..from + 8].try_into().expect("8 bytes"));
        Some(Self {
            key: head[..16].try_into().expect("16 bytes"),
            kind,
            train: head[17],
            number: u32::from_be_bytes(head[20..24].try_into().expect("4 bytes")),
            sent: long(24),
            nonce: long(32),
        })
    }
}

/// A packet that arrived, as ends exchange and keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) arrival: Arrival,
    pub(super) ecn: u8,
}

impl Record {
    /// Bytes of a record.
    pub(super) const LEN: usize = 21;

    pub(super) fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.arrival.number.to_be_bytes());
        into.extend_from_slice(&self.arrival.sent.to_be_bytes());
        into.extend_from_slice(&self.arrival.received.to_be_bytes());
        into.push(self.ecn);
    }

    pub(super) fn read(bytes: &[u8; Self::LEN]) -> Self {
        let long = |from: usize| u64::from_be_bytes(bytes[from..from + 8].try_into().expect("8 bytes"));
        let number = u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes"));
        Self { arrival: Arrival { number, sent: long(4), received: long(12) }, ecn: bytes[20] & 3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_records_read_back() {
        let packet = Packet {
            key: *b"0123456789abcdef",
            kind: Kind::Pong,
            train: 7,
            number: 70_000,
            sent: 1 << 40,
            nonce: u64::MAX,
        };
        let mut bytes = [9; 100];
        packet.write(&mut bytes);
        assert_eq!(Packet::read(&bytes), Some(packet));
        assert_eq!(Packet::read(&bytes[..HEAD - 1]), None);
        bytes[16] = 4;
        assert_eq!(Packet::read(&bytes), None);
        let record = Record { arrival: Arrival { number: 5, sent: 6, received: 1 << 50 }, ecn: 1 };
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        assert_eq!(Record::read(bytes.as_slice().try_into().unwrap()), record);
    }
}
