//! Frames of qlog 0.3 (quic-events-02 appendix A.11).

use serde_json::{Map, Value, json};
use wire::frame_type as t;

use super::{pick, token, transport_error};

/// Frames that came after the draft, by their names in newer files.
const UNKNOWN: [(&str, u64); 7] = [
    ("datagram", t::DATAGRAM | t::DATAGRAM_LEN),
    ("reset_stream_at", t::RESET_STREAM_AT),
    ("ack_frequency", t::ACK_FREQUENCY),
    ("immediate_ack", t::IMMEDIATE_ACK),
    ("source_symbol", t::SOURCE_SYMBOL),
    ("repair", t::REPAIR),
    ("symbol_ack", t::SYMBOL_ACK),
];

/// The frames of a packet.
pub(super) fn frames(list: &Value) -> Value {
    list.as_array().into_iter().flatten().map(frame).collect()
}

fn frame(frame: &Value) -> Value {
    let kind = frame["frame_type"].as_str().unwrap_or_default();
    let length = |name: &str, fields: &mut Map<String, Value>| {
        fields.insert(name.to_owned(), frame["raw"].get("payload_length").cloned().unwrap_or_else(|| 0.into()));
    };
    let mut fields = match kind {
        "padding" => {
            let mut fields = Map::new();
            length("payload_length", &mut fields);
            fields
        }
        "ack" => ack(frame),
        "crypto" | "stream" => {
            let mut fields = pick(frame, &["stream_id", "offset", "fin"]);
            length("length", &mut fields);
            fields
        }
        "new_token" => [("token".to_owned(), token(&frame["token"]))].into_iter().collect(),
        "reset_stream" | "stop_sending" => pick(frame, &["stream_id", "error_code", "final_size"]),
        "connection_close" => close(frame),
        "ping"
        | "handshake_done"
        | "max_data"
        | "max_stream_data"
        | "max_streams"
        | "data_blocked"
        | "stream_data_blocked"
        | "streams_blocked"
        | "new_connection_id"
        | "retire_connection_id"
        | "path_challenge"
        | "path_response" => frame.as_object().cloned().unwrap_or_default(),
        other => return unknown(other, frame),
    };
    fields.insert("frame_type".to_owned(), kind.into());
    Value::Object(fields)
}

fn ack(frame: &Value) -> Map<String, Value> {
    let mut fields = pick(frame, &["ack_delay", "ect1", "ect0", "ce"]);
    let ranges = frame["acked_ranges"].as_array().into_iter().flatten();
    // Both ends, although one number may stand for itself: viewers read two.
    let both = ranges.map(|range| json!([range[0], range.get(1).unwrap_or(&range[0])]));
    fields.insert("acked_ranges".to_owned(), both.collect());
    fields
}

fn close(frame: &Value) -> Map<String, Value> {
    let mut fields = pick(frame, &["error_space", "reason", "trigger_frame_type"]);
    let code = if frame["error_space"] == "transport" {
        transport_error(frame["error"].as_str().unwrap_or_default(), frame.get("error_code"))
    } else {
        frame["error_code"].clone()
    };
    fields.insert("error_code".to_owned(), code);
    fields
}

fn unknown(kind: &str, frame: &Value) -> Value {
    let known = UNKNOWN.iter().find(|(name, _)| *name == kind).map(|(_, number)| *number);
    let number = known.or_else(|| frame["frame_type_bytes"].as_u64()).unwrap_or_default();
    let mut fields = Map::new();
    fields.insert("frame_type".to_owned(), "unknown".into());
    fields.insert("raw_frame_type".to_owned(), number.into());
    if let Some(length) = frame["raw"].get("length") {
        fields.insert("raw_length".to_owned(), length.clone());
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_fields_of_this_version() {
        let list = json!([
            {"frame_type": "padding", "raw": {"length": 3, "payload_length": 3}},
            {"frame_type": "ack", "ack_delay": 1.5, "acked_ranges": [[7], [1, 5]]},
            {"frame_type": "stream", "stream_id": 0, "offset": 9, "fin": true, "raw": {"length": 4, "payload_length": 4}},
            {"frame_type": "reset_stream", "stream_id": 0, "error": "unknown", "error_code": 5, "final_size": 6},
            {"frame_type": "datagram", "raw": {"length": 8, "payload_length": 8}},
            {"frame_type": "connection_close", "error_space": "application", "error": "unknown", "error_code": 3},
        ]);
        let expected = json!([
            {"frame_type": "padding", "payload_length": 3},
            {"frame_type": "ack", "ack_delay": 1.5, "acked_ranges": [[7, 7], [1, 5]]},
            {"frame_type": "stream", "stream_id": 0, "offset": 9, "fin": true, "length": 4},
            {"frame_type": "reset_stream", "stream_id": 0, "error_code": 5, "final_size": 6},
            {"frame_type": "unknown", "raw_frame_type": 0x31, "raw_length": 8},
            {"frame_type": "connection_close", "error_space": "application", "error_code": 3},
        ]);
        assert_eq!(frames(&list), expected);
    }
}
