//! Ledger of sent packets: content and fate of each.
//!
//! The entry of a packet stays in a ring until the fate of the packet and of all packets before it is known. The records of its frames are
//! in a second ring, in the same order. Nothing is allocated per packet once the rings have grown to the size of the window.

mod control;
mod ecn;
mod late;
mod ledger;

use units::Instant;
use wire::{Dir, StreamId};

use crate::{PathId, congestion::rate::Snapshot};

pub use control::ControlFrame;
pub(crate) use control::control_frames;
pub(crate) use ecn::EcnFeedback;
pub(crate) use late::LatePacket;
pub(crate) use ledger::Found;
pub(crate) use ledger::Ledger;

/// A packet number space (RFC 9000 §12.3). Application data has one per path identifier, of which there is only one without
/// multipath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SpaceId {
    /// Initial packets.
    Initial,
    /// Handshake packets.
    Handshake,
    /// 0-RTT and 1-RTT packets.
    Data(PathId),
}

impl SpaceId {
    /// The space of application data of the first path identifier.
    pub(crate) const DATA: Self = Self::Data(PathId(0));
    /// The spaces of one path, in the order in which they come into use.
    pub(crate) const ALL: [Self; 3] = [Self::Initial, Self::Handshake, Self::DATA];

    /// Place in an array of the spaces of one path.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Initial => 0,
            Self::Handshake => 1,
            Self::Data(_) => 2,
        }
    }
}

/// Content of a packet that matters once it is acknowledged or lost.
///
/// A record names state, it does not copy it: a lost `MaxData` is answered with the limit of that moment, not with the
/// old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentFrame {
    /// `len` bytes of a stream from `offset`, and whether its end was among them.
    Stream {
        /// The stream.
        id: StreamId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
        /// The frame carried the end of the stream.
        fin: bool,
    },
    /// `len` bytes of the handshake from `offset`, of the space the packet belongs to.
    Crypto {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
    },
    /// An acknowledgement whose largest packet number was this.
    Ack {
        /// The largest packet number it acknowledged.
        largest: u64,
    },
    /// The connection's flow control limit.
    MaxData,
    /// A stream's flow control limit.
    MaxStreamData(StreamId),
    /// The limit on streams.
    MaxStreams(Dir),
    /// The connection is blocked at this limit.
    DataBlocked(u64),
    /// The stream is blocked at its limit.
    StreamDataBlocked(StreamId),
    /// No further stream may be opened.
    StreamsBlocked(Dir),
    /// The stream was reset.
    ResetStream(StreamId),
    /// The stream was reset, except for its first bytes.
    ResetStreamAt {
        /// The stream.
        id: StreamId,
        /// Number of bytes that are delivered all the same.
        reliable_size: u64,
    },
    /// The peer was asked to stop.
    StopSending(StreamId),
    /// A control frame of the table.
    Control(ControlFrame),
    /// An unreliable datagram, by its number.
    Datagram(u64),
    /// All frames of the packet that may be sent twice are the source symbol with this ID (docs/fec.md).
    Symbol(u64),
    /// A report of recovered symbols whose largest was this.
    SymbolAck {
        /// The largest symbol ID in it.
        largest: u64,
    },
}

impl SentFrame {
    /// Returns whether the frame may be part of a source symbol, if its packet has one.
    pub(crate) const fn is_in_symbol(&self) -> bool {
        matches!(
            self,
            Self::Stream { .. }
                | Self::Datagram(_)
                | Self::MaxData
                | Self::MaxStreamData(_)
                | Self::MaxStreams(_)
                | Self::DataBlocked(_)
                | Self::StreamDataBlocked(_)
                | Self::StreamsBlocked(_)
                | Self::ResetStream(_)
                | Self::ResetStreamAt { .. }
                | Self::StopSending(_)
                | Self::Symbol(_)
        )
    }
}

/// Index of a path in its connection's list of paths; below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PathIndex(u8);

impl PathIndex {
    /// The path that a connection begins on.
    pub(crate) const FIRST: Self = Self(0);

    /// The path at `index`, below 64.
    pub(crate) const fn new(index: usize) -> Self {
        debug_assert!(index < 64);
        Self(index as u8)
    }

    /// Place in the list of paths.
    #[inline]
    pub(crate) const fn get(self) -> usize {
        self.0 as usize
    }

    /// The indices of the first `count` paths.
    #[inline]
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Self> + use<> {
        (0..count).map(Self::new)
    }
}

/// A packet that has just been built, as the ledger and the recovery of its path need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentPacket {
    /// Time at which it leaves: the time of the batch, or the departure time that pacing gave it.
    pub(crate) sent_at: Instant,
    /// Bytes from the first byte of the packet's header to the end of its tag, without UDP and IP.
    pub(crate) size: u16,
    /// The path that carries it.
    pub(crate) path: PathIndex,
    /// The peer has to acknowledge it (RFC 9002 §2).
    pub(crate) ack_eliciting: bool,
    /// Counts towards the bytes in flight: it is ack-eliciting or has PADDING (RFC 9002 §2).
    pub(crate) in_flight: bool,
    /// Probe of a larger datagram size; its loss is no sign of congestion (RFC 9000 §14.4).
    pub(crate) mtu_probe: bool,
    /// Sent because a probe timeout expired.
    pub(crate) pto_probe: bool,
    /// The packet's datagram carries an ECT codepoint.
    pub(crate) ecn: bool,
}

impl SentPacket {
    /// An ordinary ack-eliciting packet on path 0.
    pub(crate) const fn new(sent_at: Instant, size: u16) -> Self {
        Self {
            sent_at,
            size,
            path: PathIndex::FIRST,
            ack_eliciting: true,
            in_flight: true,
            mtu_probe: false,
            pto_probe: false,
            ecn: false,
        }
    }
}

/// Fate of a packet, and so of each frame in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// The peer has it.
    Acked,
    /// Counts as lost: its content is sent again where it still matters.
    Lost,
    /// Counted as lost, and the peer has it after all.
    AckedLate,
    /// The packet was lost, and the peer has rebuilt its content from repair symbols.
    Recovered,
    /// The packet's keys are gone (or a Retry or the rejection of 0-RTT voids it): it will never be acknowledged.
    Discarded,
}

/// The state of a packet number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Outstanding,
    Acked,
    Lost,
    Recovered,
    Skipped,
    /// An acknowledgement-only packet that is no longer waited for.
    Forgotten,
}

/// One packet number, in one cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) sent_at: Instant,
    /// The connection's delivery when the packet left, see [`crate::congestion::rate`].
    pub(crate) snapshot: Snapshot,
    /// Index of the first of its frame records; indices wrap.
    frames_start: u32,
    frames: u16,
    pub(crate) size: u16,
    pub(crate) path: PathIndex,
    flags: u8,
    pub(crate) state: State,
}

const ACK_ELICITING: u8 = 1;
const IN_FLIGHT: u8 = 2;
const MTU_PROBE: u8 = 4;
const PTO_PROBE: u8 = 8;
const ECN: u8 = 16;

impl Entry {
    fn new(packet: &SentPacket, snapshot: Snapshot) -> Self {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        Self {
            sent_at: packet.sent_at,
            snapshot,
            frames_start: 0,
            frames: 0,
            size: packet.size,
            path: packet.path,
            flags: flag(packet.ack_eliciting, ACK_ELICITING)
                | flag(packet.in_flight, IN_FLIGHT)
                | flag(packet.mtu_probe, MTU_PROBE)
                | flag(packet.pto_probe, PTO_PROBE)
                | flag(packet.ecn, ECN),
            state: State::Outstanding,
        }
    }

    #[inline]
    pub(crate) fn is_ack_eliciting(&self) -> bool {
        self.flags & ACK_ELICITING != 0
    }

    #[inline]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.flags & IN_FLIGHT != 0
    }

    #[inline]
    pub(crate) fn is_mtu_probe(&self) -> bool {
        self.flags & MTU_PROBE != 0
    }

    #[inline]
    pub(crate) fn is_ecn_marked(&self) -> bool {
        self.flags & ECN != 0
    }
}
