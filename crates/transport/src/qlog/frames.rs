//! Frames, read from the payload of a packet during writing.

use std::ops::RangeInclusive;

use serde::{Serialize, Serializer, ser::SerializeSeq};
use units::Duration;
use wire::{Ack, Dir, Frame, Frames, RepairFrame, SymbolAck};

use super::{
    header::Token,
    value::{ErrorName, Hex, Raw, is_false, millis},
};
use crate::sent::{ControlFrame, SentFrame};

/// The frames of a packet.
pub(super) struct FrameList<'a> {
    pub(super) payload: &'a [u8],
    /// `ack_delay_exponent` of the sender of the packet.
    pub(super) ack_delay_exponent: u8,
}

impl Serialize for FrameList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut frames = Frames::new(self.payload);
        loop {
            let start = frames.position();
            match frames.next() {
                None => break,
                Some(Ok(frame)) => list.serialize_element(&QuicFrame::new(&frame, self.ack_delay_exponent))?,
                // What follows a frame that cannot be read cannot be read either.
                Some(Err(error)) => list.serialize_element(&QuicFrame::Unknown {
                    frame_type_bytes: error.frame_type,
                    raw: Raw::of(self.payload.len() - start),
                })?,
            }
        }
        list.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StreamType {
    Bidirectional,
    Unidirectional,
}

impl From<Dir> for StreamType {
    fn from(dir: Dir) -> Self {
        match dir {
            Dir::Bi => Self::Bidirectional,
            Dir::Uni => Self::Unidirectional,
        }
    }
}

/// `QuicBaseFrames`.
#[derive(Serialize)]
#[serde(tag = "frame_type", rename_all = "snake_case")]
pub(super) enum QuicFrame<'a> {
    Padding {
        raw: Raw,
    },
    Ping {},
    Ack {
        ack_delay: f32,
        acked_ranges: AckedRanges<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ect1: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ect0: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ce: Option<u64>,
    },
    ResetStream {
        stream_id: u64,
        error: &'static str,
        error_code: u64,
        final_size: u64,
    },
    ResetStreamAt {
        stream_id: u64,
        error: &'static str,
        error_code: u64,
        final_size: u64,
        reliable_size: u64,
    },
    StopSending {
        stream_id: u64,
        error: &'static str,
        error_code: u64,
    },
    Crypto {
        offset: u64,
        raw: Raw,
    },
    NewToken {
        token: Token,
    },
    Stream {
        stream_id: u64,
        offset: u64,
        #[serde(skip_serializing_if = "is_false")]
        fin: bool,
        raw: Raw,
    },
    MaxData {
        maximum: u64,
    },
    MaxStreamData {
        stream_id: u64,
        maximum: u64,
    },
    MaxStreams {
        stream_type: StreamType,
        maximum: u64,
    },
    DataBlocked {
        limit: u64,
    },
    StreamDataBlocked {
        stream_id: u64,
        limit: u64,
    },
    StreamsBlocked {
        stream_type: StreamType,
        limit: u64,
    },
    NewConnectionId {
        sequence_number: u64,
        retire_prior_to: u64,
        connection_id_length: usize,
        connection_id: Hex<'a>,
    },
    RetireConnectionId {
        sequence_number: u64,
    },
    PathChallenge {
        data: Hex<'a>,
    },
    PathResponse {
        data: Hex<'a>,
    },
    ConnectionClose {
        error_space: &'static str,
        error: ErrorText,
        #[serde(skip_serializing_if = "Option::is_none")]
        error_code: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason_bytes: Option<Hex<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        trigger_frame_type: Option<u64>,
    },
    HandshakeDone {},
    Datagram {
        raw: Raw,
    },
    AckFrequency {
        sequence_number: u64,
        ack_eliciting_threshold: u64,
        /// Milliseconds, as all times in qlog.
        requested_max_ack_delay: f32,
        reordering_threshold: u64,
    },
    ImmediateAck {},
    SourceSymbol {
        symbol_id: u64,
    },
    Repair {
        first_symbol_id: u64,
        symbol_count: u8,
        symbol_stride: u8,
        row: u8,
        raw: Raw,
    },
    SymbolAck {
        recovered_ranges: RecoveredRanges<'a>,
    },
    Unknown {
        frame_type_bytes: u64,
        raw: Raw,
    },
}

/// Name for application error codes (`ApplicationError`), whose meaning is not known here: the number follows.
pub(super) const UNKNOWN: &str = "unknown";

/// The error of a CONNECTION_CLOSE frame.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ErrorText {
    Transport(ErrorName),
    Application(&'static str),
}

/// The ranges of an ACK frame, each as its lowest and highest number, or as the only one.
pub(super) struct AckedRanges<'a>(Ack<'a>);

impl Serialize for AckedRanges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_ranges(self.0.ranges(), serializer)
    }
}

/// The ranges of a SYMBOL_ACK frame, likewise.
pub(super) struct RecoveredRanges<'a>(SymbolAck<'a>);

impl Serialize for RecoveredRanges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_ranges(self.0.ranges(), serializer)
    }
}

fn serialize_ranges<S: Serializer>(
    ranges: impl Iterator<Item = RangeInclusive<u64>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Range {
        One([u64; 1]),
        Many([u64; 2]),
    }
    serializer.collect_seq(ranges.map(|range| {
        let (low, high) = (*range.start(), *range.end());
        if low == high { Range::One([low]) } else { Range::Many([low, high]) }
    }))
}

impl<'a> QuicFrame<'a> {
    fn new(frame: &'a Frame<'a>, ack_delay_exponent: u8) -> Self {
        match *frame {
            Frame::Padding { len } => Self::Padding { raw: Raw::of_payload(len) },
            Frame::Ping => Self::Ping {},
            Frame::Ack(ack) => {
                let micros = ack.delay.saturating_mul(1 << ack_delay_exponent.min(20));
                Self::Ack {
                    ack_delay: millis(Duration::from_micros(micros)),
                    acked_ranges: AckedRanges(ack),
                    ect1: ack.ecn.map(|ecn| ecn.ect1),
                    ect0: ack.ecn.map(|ecn| ecn.ect0),
                    ce: ack.ecn.map(|ecn| ecn.ce),
                }
            }
            Frame::ResetStream { id, code, final_size } => {
                Self::ResetStream { stream_id: id.0, error: UNKNOWN, error_code: code, final_size }
            }
            Frame::ResetStreamAt { id, code, final_size, reliable_size } => {
                Self::ResetStreamAt { stream_id: id.0, error: UNKNOWN, error_code: code, final_size, reliable_size }
            }
            Frame::StopSending { id, code } => Self::StopSending { stream_id: id.0, error: UNKNOWN, error_code: code },
            Frame::Crypto { offset, data } => Self::Crypto { offset, raw: Raw::of_payload(data.len()) },
            Frame::NewToken { token } => {
                Self::NewToken { token: Token { ty: Some("resumption"), raw: Raw::of(token.len()) } }
            }
            Frame::Stream(stream) => Self::Stream {
                stream_id: stream.id.0,
                offset: stream.offset,
                fin: stream.fin,
                raw: Raw::of_payload(stream.data.len()),
            },
            Frame::MaxData(maximum) => Self::MaxData { maximum },
            Frame::MaxStreamData { id, limit } => Self::MaxStreamData { stream_id: id.0, maximum: limit },
            Frame::MaxStreams { dir, limit } => Self::MaxStreams { stream_type: dir.into(), maximum: limit },
            Frame::DataBlocked(limit) => Self::DataBlocked { limit },
            Frame::StreamDataBlocked { id, limit } => Self::StreamDataBlocked { stream_id: id.0, limit },
            Frame::StreamsBlocked { dir, limit } => Self::StreamsBlocked { stream_type: dir.into(), limit },
            Frame::NewConnectionId { sequence, retire_prior_to, ref cid, .. } => Self::NewConnectionId {
                sequence_number: sequence,
                retire_prior_to,
                connection_id_length: cid.len(),
                connection_id: Hex(cid.as_slice()),
            },
            Frame::RetireConnectionId { sequence } => Self::RetireConnectionId { sequence_number: sequence },
            Frame::PathChallenge(ref data) => Self::PathChallenge { data: Hex(data) },
            Frame::PathResponse(ref data) => Self::PathResponse { data: Hex(data) },
            Frame::ConnectionClose { error, frame_type, reason } => Self::close(
                "transport",
                ErrorText::Transport(ErrorName(error)),
                ErrorName(error).code_if_unknown(),
                reason,
                Some(frame_type),
            ),
            Frame::ApplicationClose { error, reason } => {
                Self::close("application", ErrorText::Application(UNKNOWN), Some(error), reason, None)
            }
            Frame::HandshakeDone => Self::HandshakeDone {},
            Frame::Datagram { data } => Self::Datagram { raw: Raw::of_payload(data.len()) },
            Frame::AckFrequency { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold } => {
                Self::AckFrequency {
                    sequence_number: sequence,
                    ack_eliciting_threshold: eliciting_threshold,
                    requested_max_ack_delay: millis(Duration::from_micros(max_ack_delay_us)),
                    reordering_threshold,
                }
            }
            Frame::ImmediateAck => Self::ImmediateAck {},
            Frame::SourceSymbol { id } => Self::SourceSymbol { symbol_id: id },
            Frame::Repair(RepairFrame { first, count, stride, row, data }) => Self::Repair {
                first_symbol_id: first,
                symbol_count: count,
                symbol_stride: stride,
                row,
                raw: Raw::of_payload(data.len()),
            },
            Frame::SymbolAck(ack) => Self::SymbolAck { recovered_ranges: RecoveredRanges(ack) },
        }
    }

    fn close(
        error_space: &'static str,
        error: ErrorText,
        error_code: Option<u64>,
        words: &'a [u8],
        trigger_frame_type: Option<u64>,
    ) -> Self {
        let reason = std::str::from_utf8(words).ok();
        let reason_bytes = reason.is_none().then_some(Hex(words));
        Self::ConnectionClose { error_space, error, error_code, reason, reason_bytes, trigger_frame_type }
    }

    /// Frame of a record of the ledger, for a lost packet. `None` for records without content, because the state of that moment
    /// is sent in their place, and for frames that are not sent again.
    pub(super) fn of_record(frame: &SentFrame) -> Option<Self> {
        Some(match *frame {
            SentFrame::Stream { id, offset, len, fin } => {
                Self::Stream { stream_id: id.0, offset, fin, raw: Raw::of_payload(len.into()) }
            }
            SentFrame::Crypto { offset, len } => Self::Crypto { offset, raw: Raw::of_payload(len.into()) },
            SentFrame::DataBlocked(limit) => Self::DataBlocked { limit },
            SentFrame::Control(ControlFrame::RetireConnectionId(sequence)) => {
                Self::RetireConnectionId { sequence_number: sequence }
            }
            SentFrame::Control(ControlFrame::HandshakeDone) => Self::HandshakeDone {},
            SentFrame::Control(ControlFrame::Ping) => Self::Ping {},
            SentFrame::Ack { .. }
            | SentFrame::MaxData
            | SentFrame::MaxStreamData(_)
            | SentFrame::MaxStreams(_)
            | SentFrame::StreamDataBlocked(_)
            | SentFrame::StreamsBlocked(_)
            | SentFrame::ResetStream(_)
            | SentFrame::ResetStreamAt { .. }
            | SentFrame::StopSending(_)
            | SentFrame::Control(
                ControlFrame::NewConnectionId(_) | ControlFrame::NewToken | ControlFrame::AckFrequency(_),
            )
            | SentFrame::Symbol(_)
            | SentFrame::SymbolAck { .. }
            | SentFrame::Datagram(_) => return None,
        })
    }
}
