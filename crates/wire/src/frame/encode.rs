//! Writing whole frames.

use super::data::{crypto_header_len, datagram_header_len, encode_crypto_header, encode_datagram_header};
use super::{Frame, RepairFrame, StreamFrame, frame_type as t, source_symbol_len};
use crate::{Writer, varint};

impl Frame<'_> {
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
            Self::Datagram { data } => {
                encode_datagram_header(w, Some(data.len()));
                w.bytes(data);
            }
            Self::Ping | Self::HandshakeDone | Self::ImmediateAck => w.varint(self.ty()),
            Self::SourceSymbol { id } => self.varints(w, [id]),
            Self::Repair(repair) => repair.encode(w),
            Self::SymbolAck(ack) => ack.encode_again(w),
            Self::AckFrequency { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold } => {
                self.varints(w, [sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold]);
            }
            Self::MaxData(v) | Self::DataBlocked(v) => self.varints(w, [v]),
            Self::MaxStreamData { id, limit } | Self::StreamDataBlocked { id, limit } => self.varints(w, [id.0, limit]),
            Self::MaxStreams { limit, .. } | Self::StreamsBlocked { limit, .. } => self.varints(w, [limit]),
            Self::ResetStream { id, code, final_size } => self.varints(w, [id.0, code, final_size]),
            Self::StopSending { id, code } => self.varints(w, [id.0, code]),
            Self::RetireConnectionId { sequence } => self.varints(w, [sequence]),
            Self::NewToken { token } => {
                self.varints(w, [token.len() as u64]);
                w.bytes(token);
            }
            Self::NewConnectionId { sequence, retire_prior_to, cid, reset_token } => {
                // The length of a connection ID is a plain byte, which up to 20 looks the same as a varint.
                self.varints(w, [sequence, retire_prior_to, cid.len() as u64]);
                w.bytes(cid.as_slice());
                w.bytes(&reset_token.0);
            }
            Self::PathChallenge(data) | Self::PathResponse(data) => {
                w.varint(self.ty());
                w.bytes(&data);
            }
            Self::ConnectionClose { error, frame_type, reason } => {
                self.varints(w, [error, frame_type, reason.len() as u64]);
                w.bytes(reason);
            }
            Self::ApplicationClose { error, reason } => {
                self.varints(w, [error, reason.len() as u64]);
                w.bytes(reason);
            }
        }
    }

    /// The frame type, and these numbers.
    #[inline]
    fn varints<const N: usize>(&self, w: &mut Writer<'_>, values: [u64; N]) {
        w.varint(self.ty());
        for value in values {
            w.varint(value);
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
            Self::Datagram { data } => datagram_header_len(Some(data.len())) + data.len(),
            Self::Ping | Self::HandshakeDone | Self::ImmediateAck => len([t::PING]),
            Self::SourceSymbol { id } => source_symbol_len(id),
            Self::Repair(RepairFrame { first, data, .. }) => RepairFrame::header_len(first) + data.len(),
            Self::SymbolAck(ack) => ack.encoded_len(),
            Self::AckFrequency { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold } => {
                len([self.ty(), sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold])
            }
            Self::MaxData(v) | Self::DataBlocked(v) => len([self.ty(), v]),
            Self::MaxStreamData { id, limit } | Self::StreamDataBlocked { id, limit } => len([self.ty(), id.0, limit]),
            Self::MaxStreams { limit, .. } | Self::StreamsBlocked { limit, .. } => len([self.ty(), limit]),
            Self::ResetStream { id, code, final_size } => len([self.ty(), id.0, code, final_size]),
            Self::StopSending { id, code } => len([self.ty(), id.0, code]),
            Self::RetireConnectionId { sequence } => len([self.ty(), sequence]),
            Self::NewToken { token } => len([self.ty(), token.len() as u64]) + token.len(),
            Self::NewConnectionId { sequence, retire_prior_to, cid, .. } => {
                len([self.ty(), sequence, retire_prior_to]) + 1 + cid.len() + 16
            }
            Self::PathChallenge(data) | Self::PathResponse(data) => 1 + data.len(),
            Self::ConnectionClose { error, frame_type, reason } => {
                len([self.ty(), error, frame_type, reason.len() as u64]) + reason.len()
            }
            Self::ApplicationClose { error, reason } => len([self.ty(), error, reason.len() as u64]) + reason.len(),
        }
    }
}

fn len<const N: usize>(values: [u64; N]) -> usize {
    values.into_iter().map(varint::len).sum()
}
