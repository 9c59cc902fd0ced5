//! Frames as qlog writes them.

use serde_json::{Value, json};
use wire::{Ack, Dir, Frame, Frames};

use super::transport_error;
use crate::{error::Code, sent::SentFrame};

/// All frames of a packet's payload. What cannot be read ends the list with its frame type.
pub(super) fn frames(payload: &[u8]) -> Vec<Value> {
    let one = |result| match result {
        Ok(frame) => frame_value(&frame),
        Err(wire::FrameError { frame_type, .. }) => json!({ "frame_type": "unknown", "frame_type_bytes": frame_type }),
    };
    Frames::new(payload).map(one).collect()
}

fn frame_value(frame: &Frame<'_>) -> Value {
    match *frame {
        Frame::Padding { len } => json!({ "frame_type": "padding", "raw": { "length": len } }),
        Frame::Ping => json!({ "frame_type": "ping" }),
        Frame::Ack(ref ack) => ack_value(ack),
        Frame::ResetStream { id, code, final_size } => json!({
            "frame_type": "reset_stream", "stream_id": id.0, "error": "unknown", "error_code": code,
            "final_size": final_size,
        }),
        Frame::StopSending { id, code } => {
            json!({ "frame_type": "stop_sending", "stream_id": id.0, "error": "unknown", "error_code": code })
        }
        Frame::Crypto { offset, data } => {
            json!({ "frame_type": "crypto", "offset": offset, "raw": { "length": data.len() } })
        }
        Frame::NewToken { token } => {
            json!({ "frame_type": "new_token", "token": { "raw": { "length": token.len() } } })
        }
        Frame::Stream(ref stream) => json!({
            "frame_type": "stream", "stream_id": stream.id.0, "offset": stream.offset, "fin": stream.fin,
            "raw": { "payload_length": stream.data.len() },
        }),
        Frame::MaxData(maximum) => json!({ "frame_type": "max_data", "maximum": maximum }),
        Frame::MaxStreamData { id, limit } => {
            json!({ "frame_type": "max_stream_data", "stream_id": id.0, "maximum": limit })
        }
        Frame::MaxStreams { dir, limit } => {
            json!({ "frame_type": "max_streams", "stream_type": stream_type(dir), "maximum": limit })
        }
        Frame::DataBlocked(limit) => json!({ "frame_type": "data_blocked", "limit": limit }),
        Frame::StreamDataBlocked { id, limit } => {
            json!({ "frame_type": "stream_data_blocked", "stream_id": id.0, "limit": limit })
        }
        Frame::StreamsBlocked { dir, limit } => {
            json!({ "frame_type": "streams_blocked", "stream_type": stream_type(dir), "limit": limit })
        }
        Frame::NewConnectionId { sequence, retire_prior_to, cid, .. } => json!({
            "frame_type": "new_connection_id", "sequence_number": sequence, "retire_prior_to": retire_prior_to,
            "connection_id": hex(cid.as_slice()),
        }),
        Frame::RetireConnectionId { sequence } => {
            json!({ "frame_type": "retire_connection_id", "sequence_number": sequence })
        }
        Frame::PathChallenge(data) => json!({ "frame_type": "path_challenge", "data": hex(&data) }),
        Frame::PathResponse(data) => json!({ "frame_type": "path_response", "data": hex(&data) }),
        Frame::ConnectionClose { error, frame_type, reason } => json!({
            "frame_type": "connection_close", "error_space": "transport", "error": transport_error(Code(error)),
            "error_code": error, "trigger_frame_type": frame_type, "reason": String::from_utf8_lossy(reason),
        }),
        Frame::ApplicationClose { error, reason } => json!({
            "frame_type": "connection_close", "error_space": "application", "error": "unknown", "error_code": error,
            "reason": String::from_utf8_lossy(reason),
        }),
        Frame::HandshakeDone => json!({ "frame_type": "handshake_done" }),
        Frame::Datagram { data } => json!({ "frame_type": "datagram", "raw": { "payload_length": data.len() } }),
    }
}

/// The delay stays in the sender's units: what they are is known only to the connection.
fn ack_value(ack: &Ack<'_>) -> Value {
    // qlog lists ranges upwards, frames carry them downwards.
    let mut ranges: Vec<[u64; 2]> = ack.ranges().map(|range| [*range.start(), *range.end()]).collect();
    ranges.reverse();
    let mut value = json!({ "frame_type": "ack", "ack_delay_raw": ack.delay, "acked_ranges": ranges });
    if let Some(ecn) = &ack.ecn {
        (value["ect0"], value["ect1"], value["ce"]) = (json!(ecn.ect0), json!(ecn.ect1), json!(ecn.ce));
    }
    value
}

/// A frame of a packet that was lost, as far as the ledger remembers it.
pub(super) fn sent(frame: &SentFrame) -> Value {
    match *frame {
        SentFrame::Stream { id, offset, len, fin } => json!({
            "frame_type": "stream", "stream_id": id.0, "offset": offset, "fin": fin, "raw": { "payload_length": len },
        }),
        SentFrame::Crypto { offset, len } => {
            json!({ "frame_type": "crypto", "offset": offset, "raw": { "length": len } })
        }
        SentFrame::Ack { largest } => json!({ "frame_type": "ack", "acked_ranges": [[largest]] }),
        SentFrame::MaxData => json!({ "frame_type": "max_data" }),
        SentFrame::MaxStreamData(id) => json!({ "frame_type": "max_stream_data", "stream_id": id.0 }),
        SentFrame::MaxStreams(dir) => json!({ "frame_type": "max_streams", "stream_type": stream_type(dir) }),
        SentFrame::DataBlocked(limit) => json!({ "frame_type": "data_blocked", "limit": limit }),
        SentFrame::StreamDataBlocked(id) => json!({ "frame_type": "stream_data_blocked", "stream_id": id.0 }),
        SentFrame::StreamsBlocked(dir) => json!({ "frame_type": "streams_blocked", "stream_type": stream_type(dir) }),
        SentFrame::ResetStream(id) => json!({ "frame_type": "reset_stream", "stream_id": id.0 }),
        SentFrame::StopSending(id) => json!({ "frame_type": "stop_sending", "stream_id": id.0 }),
        SentFrame::NewConnectionId(sequence) => {
            json!({ "frame_type": "new_connection_id", "sequence_number": sequence })
        }
        SentFrame::RetireConnectionId(sequence) => {
            json!({ "frame_type": "retire_connection_id", "sequence_number": sequence })
        }
        SentFrame::NewToken => json!({ "frame_type": "new_token" }),
        SentFrame::HandshakeDone => json!({ "frame_type": "handshake_done" }),
        SentFrame::Datagram(_) => json!({ "frame_type": "datagram" }),
        SentFrame::Ping => json!({ "frame_type": "ping" }),
    }
}

const fn stream_type(dir: Dir) -> &'static str {
    match dir {
        Dir::Bi => "bidirectional",
        Dir::Uni => "unidirectional",
    }
}

/// Bytes as qlog writes them.
pub(super) fn hex(bytes: &[u8]) -> String {
    use core::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
