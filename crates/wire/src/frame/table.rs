//! Table of frames: types, [`Frame`], and reading and writing of each.
//!
//! A frame whose fields follow one another is a row. Frames of another form (PADDING, ACK, those with a bit of the type for a field, those
//! of forward error correction) are written out in the macro.

use super::{
    Ack, FrameErrorKind, PacketKind, RepairFrame, StreamFrame, SymbolAck,
    data::{crypto_header_len, datagram_header_len, encode_crypto_header, encode_datagram_header},
    field::Field,
    frame_type as t,
    parse::{stream_limit, zeros},
};
use crate::{ConnectionId, Dir, Reader, ResetToken, StreamId, Writer, varint};

/// Rows: type and its number, then the variant with its fields, and a condition that the fields have to meet.
macro_rules! frames {
    ($(
        $(#[$doc:meta])*
        $ty:ident = $number:literal =>
            $name:ident
            $({ $($(#[$field_doc:meta])* $field:ident: $kind:ty),+ $(,)? })?
            $(($only:ident: $only_kind:ty))?
            $(if $valid:expr, else $fault:literal)?;
    )+) => {
        /// Types of the frames in the rows.
        pub(super) mod types {
            $(
                #[doc = concat!("Type of [`Frame::", stringify!($name), "`](super::super::Frame::", stringify!($name), ").")]
                pub const $ty: u64 = $number;
            )+
        }

        /// One frame. It borrows from the packet it was read from.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Frame<'a> {
            /// A run of PADDING frames.
            Padding {
                /// Number of frames, each of one byte.
                len: usize,
            },
            /// Acknowledgement of packets.
            Ack(Ack<'a>),
            /// Bytes of the TLS handshake.
            Crypto {
                /// The first byte's place in the handshake of this packet number space.
                offset: u64,
                /// The bytes.
                data: &'a [u8],
            },
            /// Bytes of a stream.
            Stream(StreamFrame<'a>),
            /// Number of streams of a kind that may be opened.
            MaxStreams {
                /// The kind.
                dir: Dir,
                /// At most 2^60.
                limit: u64,
            },
            /// The sender has opened all streams it may.
            StreamsBlocked {
                /// Of this kind.
                dir: Dir,
                /// The limit that was reached, at most 2^60.
                limit: u64,
            },
            /// A message without promise of delivery (RFC 9221).
            Datagram {
                /// The message.
                data: &'a [u8],
            },
            /// A repair symbol (docs/fec.md).
            Repair(RepairFrame<'a>),
            /// Acknowledgement of source symbols that were rebuilt from repair symbols (docs/fec.md).
            SymbolAck(SymbolAck<'a>),
            $(
                $(#[$doc])*
                $name $({ $($(#[$field_doc])* $field: $kind),+ })? $(($only_kind))?,
            )+
        }

        impl Frame<'_> {
            /// The frame type as [`encode`](Self::encode) writes it: STREAM and DATAGRAM with their length.
            pub fn ty(&self) -> u64 {
                match self {
                    Self::Padding { .. } => t::PADDING,
                    Self::Ack(ack) => ack.ty(),
                    Self::Crypto { .. } => t::CRYPTO,
                    Self::Stream(stream) => stream.ty(),
                    Self::MaxStreams { dir: Dir::Bi, .. } => t::MAX_STREAMS_BIDI,
                    Self::MaxStreams { dir: Dir::Uni, .. } => t::MAX_STREAMS_UNI,
                    Self::StreamsBlocked { dir: Dir::Bi, .. } => t::STREAMS_BLOCKED_BIDI,
                    Self::StreamsBlocked { dir: Dir::Uni, .. } => t::STREAMS_BLOCKED_UNI,
                    Self::Datagram { .. } => t::DATAGRAM | t::DATAGRAM_LEN,
                    Self::Repair(_) => t::REPAIR,
                    Self::SymbolAck(_) => t::SYMBOL_ACK,
                    $(Self::$name { .. } => types::$ty,)+
                }
            }

            /// Writes the frame: [`encoded_len`](Self::encoded_len) bytes. STREAM and DATAGRAM frames get a length, so that
            /// another frame can follow; [`StreamFrame::encode_header`] and [`encode_datagram_header`] can leave it out.
            ///
            /// # Panics
            /// When there is no room, or a number is above 2^62-1.
            #[inline]
            pub fn encode(&self, w: &mut Writer<'_>) {
                match *self {
                    Self::Padding { len } => w.reserve(len).fill(0),
                    Self::Ack(ack) => ack.encode_again(w),
                    Self::Crypto { offset, data } => {
                        encode_crypto_header(w, offset, data.len());
                        w.bytes(data);
                    }
                    Self::Stream(StreamFrame { id, offset, fin, data }) => {
                        StreamFrame::encode_header(w, id, offset, fin, Some(data.len()));
                        w.bytes(data);
                    }
                    Self::MaxStreams { limit, .. } | Self::StreamsBlocked { limit, .. } => {
                        w.varint(self.ty());
                        w.varint(limit);
                    }
                    Self::Datagram { data } => {
                        encode_datagram_header(w, Some(data.len()));
                        w.bytes(data);
                    }
                    Self::Repair(repair) => repair.encode(w),
                    Self::SymbolAck(ack) => ack.encode_again(w),
                    $(Self::$name $({ $($field),+ })? $(($only))? => {
                        w.varint(types::$ty);
                        $($($field.write(w);)+)?
                        $($only.write(w);)?
                    })+
                }
            }

            /// Number of bytes that [`encode`](Self::encode) writes.
            pub fn encoded_len(&self) -> usize {
                match *self {
                    Self::Padding { len } => len,
                    Self::Ack(ack) => ack.encoded_len(),
                    Self::Crypto { offset, data } => crypto_header_len(offset, data.len()) + data.len(),
                    Self::Stream(StreamFrame { id, offset, data, .. }) => {
                        StreamFrame::header_len(id, offset, Some(data.len())) + data.len()
                    }
                    Self::MaxStreams { limit, .. } | Self::StreamsBlocked { limit, .. } => 1 + varint::len(limit),
                    Self::Datagram { data } => datagram_header_len(Some(data.len())) + data.len(),
                    Self::Repair(RepairFrame { first, data, .. }) => RepairFrame::header_len(first) + data.len(),
                    Self::SymbolAck(ack) => ack.encoded_len(),
                    $(Self::$name $({ $($field),+ })? $(($only))? => {
                        varint::len(types::$ty) $($(+ $field.encoded_len())+)? $(+ $only.encoded_len())?
                    })+
                }
            }
        }

        /// Reads what follows the type of a frame that is neither STREAM, DATAGRAM nor a plain ACK.
        pub(super) fn body<'a>(r: &mut Reader<'a>, ty: u64) -> Result<Frame<'a>, FrameErrorKind> {
            Ok(match ty {
                t::PADDING => {
                    let more = zeros(r.peek());
                    r.bytes(more)?;
                    Frame::Padding { len: 1 + more }
                }
                t::CRYPTO => {
                    let offset = r.varint()?;
                    let data = r.counted()?;
                    // RFC 9000 §19.6 MUST-1: no byte of the handshake lies beyond 2^62-1.
                    if offset + data.len() as u64 > varint::MAX {
                        return Err(FrameErrorKind::Malformed("handshake data beyond 2^62-1"));
                    }
                    Frame::Crypto { offset, data }
                }
                t::MAX_STREAMS_BIDI => Frame::MaxStreams { dir: Dir::Bi, limit: stream_limit(r)? },
                t::MAX_STREAMS_UNI => Frame::MaxStreams { dir: Dir::Uni, limit: stream_limit(r)? },
                t::STREAMS_BLOCKED_BIDI => Frame::StreamsBlocked { dir: Dir::Bi, limit: stream_limit(r)? },
                t::STREAMS_BLOCKED_UNI => Frame::StreamsBlocked { dir: Dir::Uni, limit: stream_limit(r)? },
                t::REPAIR => Frame::Repair(RepairFrame::parse(r)?),
                t::SYMBOL_ACK => Frame::SymbolAck(SymbolAck::parse(r)?),
                t::ACK_RECEIVE_TIMESTAMPS => Frame::Ack(Ack::parse_with_times(r, false)?),
                t::ACK_RECEIVE_TIMESTAMPS_ECN => Frame::Ack(Ack::parse_with_times(r, true)?),
                $(types::$ty => {
                    $($(let $field: $kind = Field::read(r)?;)+)?
                    $(let $only: $only_kind = Field::read(r)?;)?
                    $(if !($valid) {
                        return Err(FrameErrorKind::Malformed($fault));
                    })?
                    Frame::$name $({ $($field),+ })? $(($only))?
                })+
                _ => return Err(FrameErrorKind::Unknown),
            })
        }
    };
}

frames! {
    /// Requests an acknowledgement.
    PING = 0x01 => Ping;
    /// The sender gives a stream up.
    RESET_STREAM = 0x04 => ResetStream {
        /// The stream.
        id: StreamId,
        /// The application's error code.
        code: u64,
        /// Bytes of flow control that the stream has used.
        final_size: u64,
    };
    /// The receiver wants no more of a stream.
    STOP_SENDING = 0x05 => StopSending {
        /// The stream.
        id: StreamId,
        /// The application's error code.
        code: u64,
    };
    // RFC 9000 §19.7 MUST-1: an empty token is an error.
    /// A token for the client's next connection.
    NEW_TOKEN = 0x07 => NewToken {
        /// Never empty.
        token: &'a [u8],
    } if !token.is_empty(), else "an empty token";
    /// Number of bytes that may be sent on the connection.
    MAX_DATA = 0x10 => MaxData(limit: u64);
    /// Number of bytes that may be sent on a stream.
    MAX_STREAM_DATA = 0x11 => MaxStreamData {
        /// The stream.
        id: StreamId,
        /// In bytes from the start of the stream.
        limit: u64,
    };
    /// The sender has used up the connection's flow control.
    DATA_BLOCKED = 0x14 => DataBlocked(limit: u64);
    /// The sender has used up a stream's flow control.
    STREAM_DATA_BLOCKED = 0x15 => StreamDataBlocked {
        /// The stream.
        id: StreamId,
        /// The limit that was reached.
        limit: u64,
    };
    // RFC 9000 §19.15 MUST-4: only connection IDs that came earlier can be retired.
    /// A further connection ID under which the sender of this frame can be reached.
    NEW_CONNECTION_ID = 0x18 => NewConnectionId {
        /// Number.
        sequence: u64,
        /// IDs with smaller numbers have to be retired; not above `sequence`.
        retire_prior_to: u64,
        /// 1 to 20 bytes.
        cid: ConnectionId,
        /// Token of the stateless reset for a connection that uses this ID.
        reset_token: ResetToken,
    } if retire_prior_to <= sequence, else "retires connection IDs that are still to come";
    /// The sender of this frame will not use a connection ID any more.
    RETIRE_CONNECTION_ID = 0x19 => RetireConnectionId {
        /// Number.
        sequence: u64,
    };
    /// Requests the same bytes back over the same path.
    PATH_CHALLENGE = 0x1a => PathChallenge(data: [u8; 8]);
    /// The bytes of a PATH_CHALLENGE.
    PATH_RESPONSE = 0x1b => PathResponse(data: [u8; 8]);
    /// The connection is closed because of an error in QUIC.
    CONNECTION_CLOSE = 0x1c => ConnectionClose {
        /// The code of RFC 9000 §20.1.
        error: u64,
        /// The type of the frame that led to it, 0 when unknown.
        frame_type: u64,
        /// Text for humans; usually UTF-8, without guarantee.
        reason: &'a [u8],
    };
    /// The application closed the connection.
    APPLICATION_CLOSE = 0x1d => ApplicationClose {
        /// The application's error code.
        error: u64,
        /// Text for humans; usually UTF-8, without guarantee.
        reason: &'a [u8],
    };
    /// The server has confirmed the handshake.
    HANDSHAKE_DONE = 0x1e => HandshakeDone;
    /// Requests an immediate acknowledgement (draft-ietf-quic-ack-frequency-14 §5).
    IMMEDIATE_ACK = 0x1f => ImmediateAck;
    // draft-ietf-quic-reliable-stream-reset §4: a reliable size above the final size is FRAME_ENCODING_ERROR.
    /// The sender gives a stream up behind a part that still arrives (draft-ietf-quic-reliable-stream-reset §4).
    RESET_STREAM_AT = 0x24 => ResetStreamAt {
        /// The stream.
        id: StreamId,
        /// The application's error code.
        code: u64,
        /// Bytes of flow control that the stream has used.
        final_size: u64,
        /// Bytes that reach the application all the same; at most `final_size`.
        reliable_size: u64,
    } if reliable_size <= final_size, else "a reliable size above the final size";
    /// Asks the receiver of this frame to acknowledge in another rhythm (draft-ietf-quic-ack-frequency-14 §4).
    ACK_FREQUENCY = 0xaf => AckFrequency {
        /// The number of the request: the highest counts.
        sequence: u64,
        /// Number of ack-eliciting packets that need not be acknowledged at once; the next one has to be.
        eliciting_threshold: u64,
        /// The longest time that an acknowledgement shall be held back, in microseconds.
        max_ack_delay_us: u64,
        /// Reordering at which a missing packet is reported at once, in packets; 0 for never.
        reordering_threshold: u64,
    };
    /// Source symbol: the rest of the packet (docs/fec.md).
    SOURCE_SYMBOL = 0x3fe0 => SourceSymbol {
        /// Symbol ID.
        id: u64,
    };
}

impl Frame<'_> {
    /// RFC 9002 §2: a packet with such a frame has to be acknowledged within the agreed delay.
    #[inline]
    pub fn is_ack_eliciting(&self) -> bool {
        !matches!(
            self,
            Self::Padding { .. }
                | Self::Ack(_)
                | Self::ConnectionClose { .. }
                | Self::ApplicationClose { .. }
                | Self::SymbolAck(_)
        )
    }

    /// RFC 9000 §9.1: a packet with only such frames does not move the connection to its path.
    #[inline]
    pub fn is_probing(&self) -> bool {
        matches!(
            self,
            Self::Padding { .. } | Self::NewConnectionId { .. } | Self::PathChallenge(_) | Self::PathResponse(_)
        )
    }

    /// Returns whether the frame may be part of a source symbol of forward error correction (docs/fec.md): it is idempotent, and does not
    /// depend on its packet.
    #[inline]
    pub fn is_permitted_in_symbol(&self) -> bool {
        matches!(
            self,
            Self::Padding { .. }
                | Self::Ping
                | Self::Stream(_)
                | Self::Datagram { .. }
                | Self::ResetStream { .. }
                | Self::ResetStreamAt { .. }
                | Self::StopSending { .. }
                | Self::MaxData(_)
                | Self::MaxStreamData { .. }
                | Self::MaxStreams { .. }
                | Self::DataBlocked(_)
                | Self::StreamDataBlocked { .. }
                | Self::StreamsBlocked { .. }
        )
    }

    /// RFC 9000 §12.4, table 3, and §12.5: whether a packet of this kind may carry the frame. Where it may not, the
    /// receiver closes with PROTOCOL_VIOLATION.
    #[inline]
    pub fn is_permitted_in(&self, kind: PacketKind) -> bool {
        match kind {
            PacketKind::OneRtt => true,
            // draft-ietf-quic-receive-ts-02 §3: acknowledgements with receive times are for 1-RTT packets.
            PacketKind::Initial | PacketKind::Handshake => match self {
                Self::Ack(ack) => ack.receive_times().is_none(),
                Self::Padding { .. } | Self::Ping | Self::Crypto { .. } | Self::ConnectionClose { .. } => true,
                _ => false,
            },
            PacketKind::ZeroRtt => !matches!(
                self,
                Self::Ack(_)
                    | Self::Crypto { .. }
                    | Self::HandshakeDone
                    | Self::NewToken { .. }
                    | Self::PathResponse(_)
                    | Self::RetireConnectionId { .. }
                    // draft-ietf-quic-ack-frequency-14 §3: what permits them is not remembered for early data.
                    | Self::AckFrequency { .. }
                    | Self::ImmediateAck
                    // docs/fec.md: the same holds for forward error correction.
                    | Self::SourceSymbol { .. }
                    | Self::Repair(_)
                    | Self::SymbolAck(_)
            ),
        }
    }
}
