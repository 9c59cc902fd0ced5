//! qlog 0.3, for viewers that do not support newer files: draft-ietf-quic-qlog-main-schema-02 and draft-ietf-quic-qlog-quic-events-02.
//!
//! [`Version03`] is between a [`QlogWriter`](super::QlogWriter) and its output, and rewrites each record; `frames` has the frames, `events`
//! the events. It leaves out everything without an event in 0.3: migration, MTU, forward error correction, limits of the sender, and new
//! keys, whose event would have to contain the secret.

mod events;
mod frames;

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::error::Code;

const RECORD_SEPARATOR: u8 = 0x1e;

/// Rewrites records of the newest drafts, as [`QlogWriter`](super::QlogWriter) writes them, as qlog 0.3.
#[derive(Debug)]
pub struct Version03<W: Write> {
    out: W,
    /// Begin of a record whose end has not been written.
    pending: Vec<u8>,
}

impl<W: Write> Version03<W> {
    /// Rewrites into `out`.
    pub const fn new(out: W) -> Self {
        Self { out, pending: Vec::new() }
    }
}

impl<W: Write> Write for Version03<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\n') else { return Ok(bytes.len()) };
        let mut converted = Vec::with_capacity(end);
        for record in self.pending[..end].split(|byte| *byte == b'\n') {
            let text = record.strip_prefix(&[RECORD_SEPARATOR]).unwrap_or(record);
            if let Some(record) = convert(serde_json::from_slice(text)?) {
                converted.push(RECORD_SEPARATOR);
                serde_json::to_writer(&mut converted, &record)?;
                converted.push(b'\n');
            }
        }
        self.pending.drain(..=end);
        self.out.write_all(&converted)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A record of 0.3; `None` where there is none.
fn convert(record: Value) -> Option<Value> {
    if record.get("file_schema").is_some() {
        return Some(header(&record));
    }
    let name = record["name"].as_str()?;
    let (name, data) = events::event(name, &record["data"])?;
    Some(json!({"time": record["time"], "name": name, "data": data}))
}

/// The first record: `QlogFileSeq` of the main schema.
fn header(record: &Value) -> Value {
    let fields = &record["trace"]["common_fields"];
    // Milliseconds since 1970; without a date, times count from zero.
    let reference = fields["reference_time"]["wall_clock_time"].as_str().and_then(millis_since_1970).unwrap_or(0.0);
    json!({
        "qlog_format": "JSON-SEQ",
        "qlog_version": "0.3",
        "title": record["title"],
        "trace": {
            "vantage_point": record["trace"]["vantage_point"],
            "common_fields": {
                "group_id": fields["group_id"],
                "protocol_type": ["QUIC"],
                "time_format": "relative",
                "reference_time": reference,
            },
        },
    })
}

/// Reads a date as [`rfc3339`](super::trace::rfc3339) writes it.
fn millis_since_1970(date: &str) -> Option<f64> {
    let number = |range: core::ops::Range<usize>| date.get(range)?.parse::<u32>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let leap = |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let months = [31, 28 + u32::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = (1970..year).map(|year| 365 + u32::from(leap(year))).sum::<u32>()
        + months.iter().take((month as usize).saturating_sub(1)).sum::<u32>()
        + day.checked_sub(1)?;
    let seconds = number(11..13)? * 3_600 + number(14..16)? * 60 + number(17..19)?;
    Some(f64::from(days) * 86_400_000.0 + f64::from(seconds) * 1_000.0 + f64::from(number(20..23)?))
}

/// The fields with these names, as far as there are any.
fn pick(from: &Value, names: &[&str]) -> Map<String, Value> {
    let field = |name: &&str| Some(((*name).to_owned(), from.get(*name)?.clone()));
    names.iter().filter_map(field).collect()
}

/// Error names of `TransportError`, which later drafts have more of.
const TRANSPORT_ERRORS: [&str; 14] = [
    "no_error",
    "internal_error",
    "connection_refused",
    "flow_control_error",
    "stream_limit_error",
    "stream_state_error",
    "final_size_error",
    "frame_encoding_error",
    "transport_parameter_error",
    "connection_id_limit_error",
    "protocol_violation",
    "invalid_token",
    "application_error",
    "crypto_buffer_exceeded",
];

/// `TransportError / CryptoError / uint`.
fn transport_error(name: &str, code: Option<&Value>) -> Value {
    if TRANSPORT_ERRORS.contains(&name) {
        return name.into();
    }
    if let Some(hex) = name.strip_prefix("crypto_error_0x") {
        // The names of 0.3 have decimal digits only.
        let decimal = hex.len() == 3 && hex.bytes().all(|byte| byte.is_ascii_digit());
        return if decimal { name.into() } else { u64::from_str_radix(hex, 16).unwrap_or_default().into() };
    }
    let named = |code: &u64| Code(*code).name().is_some_and(|own| own.eq_ignore_ascii_case(name));
    let known = (0..0x100).find(named).map(Value::from);
    code.cloned().or(known).unwrap_or_else(|| 0.into())
}

/// `Token`, of which only the length is known.
fn token(token: &Value) -> Value {
    let mut fields = pick(token, &["type"]);
    if let Some(length) = token["raw"].get("length") {
        fields.insert("length".to_owned(), length.clone());
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(records: &[Value]) -> Vec<Value> {
        let mut out = Vec::new();
        let mut writer = Version03::new(&mut out);
        let text: Vec<u8> = records.iter().flat_map(|record| format!("\u{1e}{record}\n").into_bytes()).collect();
        // In pieces that know nothing of records.
        for piece in text.chunks(7) {
            assert_eq!(writer.write(piece).unwrap(), piece.len());
        }
        writer.flush().unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| serde_json::from_str(line.strip_prefix('\u{1e}').unwrap()).unwrap()).collect()
    }

    #[test]
    fn the_header_is_that_of_json_seq() {
        let header = json!({
            "file_schema": "urn:ietf:params:qlog:file:sequential", "title": "t",
            "trace": {"vantage_point": {"type": "client"},
                      "common_fields": {"group_id": "ab", "reference_time": {"wall_clock_time": "2000-03-01T00:00:00.250Z"}}},
        });
        let expected = json!({
            "qlog_format": "JSON-SEQ", "qlog_version": "0.3", "title": "t",
            "trace": {"vantage_point": {"type": "client"},
                      "common_fields": {"group_id": "ab", "protocol_type": ["QUIC"], "time_format": "relative",
                                        "reference_time": 951_868_800_250.0}},
        });
        assert_eq!(rewritten(&[header]), [expected]);
    }

    #[test]
    fn events_without_a_counterpart_are_left_out() {
        let event = |name: &str, data: Value| json!({"time": 1.5, "name": name, "data": data});
        let found = rewritten(&[
            event("quic:mtu_updated", json!({"old": 1, "new": 2})),
            event("quic:congestion_state_updated", json!({"new": "startup"})),
            event("sender:limited", json!({"by": "pacing"})),
        ]);
        assert_eq!(found, [event("recovery:congestion_state_updated", json!({"new": "startup"}))]);
    }

    #[test]
    fn errors_have_the_names_of_this_version() {
        assert_eq!(transport_error("protocol_violation", None), "protocol_violation");
        assert_eq!(transport_error("crypto_error_0x128", None), "crypto_error_0x128");
        assert_eq!(transport_error("crypto_error_0x12a", None), 0x12a);
        assert_eq!(transport_error("aead_limit_reached", None), 0x0f);
        assert_eq!(transport_error("unknown", Some(&json!(0x7777))), 0x7777);
    }

    #[test]
    fn a_record_that_is_no_json_is_an_error() {
        assert!(Version03::new(Vec::new()).write(b"\x1e{\n").is_err());
    }
}
