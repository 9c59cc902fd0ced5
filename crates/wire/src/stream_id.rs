//! Endpoints and streams: the sides of a connection and stream IDs (RFC 9000 §2.1).

use std::fmt;

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The end that opened the connection.
    Client,
    /// The end that accepted it.
    Server,
}

impl Side {
    /// The other end.
    #[inline]
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    /// Returns whether this is the client.
    #[inline]
    pub const fn is_client(self) -> bool {
        matches!(self, Self::Client)
    }

    /// Returns whether this is the server.
    #[inline]
    pub const fn is_server(self) -> bool {
        matches!(self, Self::Server)
    }
}

/// Direction of a stream: both ways or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dir {
    /// Both ways.
    Bi,
    /// From the side that opened it to the other.
    Uni,
}

/// The number of a stream, below 2^62; its two lowest bits hold initiator and direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// RFC 9000 §4.6: no endpoint may open more streams of one kind than this, because no ID would be left for them.
    pub const MAX_STREAMS: u64 = 1 << 60;

    /// The stream number `index` (from 0) of its initiator and direction.
    #[inline]
    pub const fn new(initiator: Side, dir: Dir, index: u64) -> Self {
        Self(index << 2 | (dir as u64) << 1 | initiator as u64)
    }

    /// Endpoint that opened the stream, or may.
    #[inline]
    pub const fn initiator(self) -> Side {
        if self.0 & 1 == 0 { Side::Client } else { Side::Server }
    }

    /// Direction of the stream.
    #[inline]
    pub const fn dir(self) -> Dir {
        if self.0 & 2 == 0 { Dir::Bi } else { Dir::Uni }
    }

    /// Index among the streams of its kind.
    #[inline]
    pub const fn index(self) -> u64 {
        self.0 >> 2
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({}, {:?} {:?} {})", self.0, self.initiator(), self.dir(), self.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_rfc_9000_table_1() {
        let kinds =
            [(Side::Client, Dir::Bi), (Side::Server, Dir::Bi), (Side::Client, Dir::Uni), (Side::Server, Dir::Uni)];
        for (bits, (side, dir)) in (0..).zip(kinds) {
            for index in [0, 1, 77, StreamId::MAX_STREAMS - 1] {
                let id = StreamId::new(side, dir, index);
                assert_eq!(id.0, index * 4 + bits);
                assert_eq!((id.initiator(), id.dir(), id.index()), (side, dir, index));
                assert!(id.0 <= crate::varint::MAX);
            }
            assert_eq!(side.peer().peer(), side);
            assert_ne!(side.is_client(), side.is_server());
        }
    }
}
