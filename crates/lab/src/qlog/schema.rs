//! Checker of qlog 0.3 files: the definitions of draft-ietf-quic-qlog-main-schema-02 and draft-ietf-quic-qlog-quic-events-02 as a table,
//! independent of the writer.
//!
//! A definition lists fields, each with its kind, mandatory unless marked. A field outside of its definition is a fault, except where the
//! draft permits any further field.

use std::{
    collections::BTreeMap,
    io::{BufRead, Error},
};

use serde_json::{Map, Value};

/// Kind of a value.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Bool,
    /// A number without sign or fraction, at most this.
    Uint(u64),
    Float,
    Hex,
    OneOf(&'static [&'static str]),
    List(&'static Self),
    /// A list with something in it.
    NonEmpty(&'static Self),
    Map(&'static Definition),
    Frame,
    /// One number or two, the first not larger.
    Range,
    /// The names of `TransportError` and `CryptoError`, or a number.
    ErrorCode,
    /// A text or a number.
    TextOrUint,
}

use Kind::{Bool, ErrorCode, Float, Frame, Hex, List, NonEmpty, OneOf, Range, Text, TextOrUint, Uint};

/// Mandatory field.
const MUST: bool = true;
/// Optional field.
const MAY: bool = false;

/// Fields of a map.
#[derive(Debug)]
struct Definition {
    fields: &'static [(&'static str, bool, Kind)],
    /// Any further field is permitted.
    open: bool,
}

const fn closed(fields: &'static [(&'static str, bool, Kind)]) -> Definition {
    Definition { fields, open: false }
}

const fn open(fields: &'static [(&'static str, bool, Kind)]) -> Definition {
    Definition { fields, open: true }
}

const U64: Kind = Uint(u64::MAX);
const U16: Kind = Uint(u16::MAX as u64);
const U8: Kind = Uint(u8::MAX as u64);
const OWNER: Kind = OneOf(&["local", "remote"]);
const STREAM_TYPE: Kind = OneOf(&["unidirectional", "bidirectional"]);
const STATE: Kind = OneOf(&[
    "attempted",
    "peer_validated",
    "handshake_started",
    "early_write",
    "handshake_complete",
    "handshake_confirmed",
    "closing",
    "draining",
    "closed",
]);
const KEY_TYPE: Kind = OneOf(&[
    "server_initial_secret",
    "client_initial_secret",
    "server_handshake_secret",
    "client_handshake_secret",
    "server_0rtt_secret",
    "client_0rtt_secret",
    "server_1rtt_secret",
    "client_1rtt_secret",
]);
const PACKET_TYPE: Kind =
    OneOf(&["initial", "handshake", "0RTT", "1RTT", "retry", "version_negotiation", "stateless_reset", "unknown"]);

static VANTAGE: Definition = closed(&[
    ("name", MAY, Text),
    ("type", MUST, OneOf(&["client", "server", "network", "unknown"])),
    ("flow", MAY, OneOf(&["client", "server", "unknown"])),
]);
static COMMON: Definition = open(&[
    ("time_format", MAY, OneOf(&["absolute", "delta", "relative"])),
    ("reference_time", MAY, Float),
    ("protocol_type", MAY, NonEmpty(&Text)),
    ("group_id", MAY, TextOrUint),
]);
static TRACE: Definition = closed(&[
    ("title", MAY, Text),
    ("description", MAY, Text),
    ("configuration", MAY, Kind::Map(&ANY)),
    ("common_fields", MAY, Kind::Map(&COMMON)),
    ("vantage_point", MUST, Kind::Map(&VANTAGE)),
]);
static FILE: Definition = closed(&[
    ("qlog_format", MUST, OneOf(&["JSON-SEQ"])),
    ("qlog_version", MUST, OneOf(&["0.3"])),
    ("title", MAY, Text),
    ("description", MAY, Text),
    ("summary", MAY, Kind::Map(&ANY)),
    ("trace", MUST, Kind::Map(&TRACE)),
]);
static ANY: Definition = open(&[]);
static EVENT: Definition = open(&[("time", MUST, Float), ("name", MUST, Text), ("data", MUST, Kind::Map(&ANY))]);

static RAW: Definition = closed(&[("length", MAY, U64), ("payload_length", MAY, U64), ("data", MAY, Hex)]);
const RAW_INFO: Kind = Kind::Map(&RAW);
static TOKEN: Definition = closed(&[
    ("type", MAY, OneOf(&["retry", "resumption", "stateless_reset"])),
    ("length", MAY, U64),
    ("data", MAY, Hex),
    ("details", MAY, Kind::Map(&ANY)),
]);
static HEADER: Definition = closed(&[
    ("packet_type", MUST, PACKET_TYPE),
    ("packet_number", MUST, U64),
    ("flags", MAY, U8),
    ("token", MAY, Kind::Map(&TOKEN)),
    ("length", MAY, U16),
    ("version", MAY, Hex),
    ("scil", MAY, U8),
    ("dcil", MAY, U8),
    ("scid", MAY, Hex),
    ("dcid", MAY, Hex),
]);
const SENT_FOR: Kind = OneOf(&[
    "retransmit_reordered",
    "retransmit_timeout",
    "pto_probe",
    "retransmit_crypto",
    "cc_bandwidth_probe",
    "keys_available",
]);
static PACKET: Definition = closed(&[
    ("header", MUST, Kind::Map(&HEADER)),
    ("frames", MAY, List(&Frame)),
    ("is_coalesced", MAY, Bool),
    ("retry_token", MAY, Kind::Map(&TOKEN)),
    ("stateless_reset_token", MAY, Hex),
    ("supported_versions", MAY, NonEmpty(&Hex)),
    ("raw", MAY, RAW_INFO),
    ("datagram_id", MAY, U64),
    ("trigger", MAY, SENT_FOR),
]);
static PARAMETERS: Definition = open(&[
    ("owner", MAY, OWNER),
    ("tls_cipher", MAY, Text),
    ("original_destination_connection_id", MAY, Hex),
    ("initial_source_connection_id", MAY, Hex),
    ("retry_source_connection_id", MAY, Hex),
    ("disable_active_migration", MAY, Bool),
    ("max_idle_timeout", MAY, U64),
    ("max_udp_payload_size", MAY, U64),
    ("ack_delay_exponent", MAY, U16),
    ("max_ack_delay", MAY, U16),
    ("active_connection_id_limit", MAY, U64),
    ("initial_max_data", MAY, U64),
    ("initial_max_stream_data_bidi_local", MAY, U64),
    ("initial_max_stream_data_bidi_remote", MAY, U64),
    ("initial_max_stream_data_uni", MAY, U64),
    ("initial_max_streams_bidi", MAY, U64),
    ("initial_max_streams_uni", MAY, U64),
]);
static DATAGRAMS: Definition =
    closed(&[("count", MAY, U16), ("raw", MAY, NonEmpty(&RAW_INFO)), ("datagram_ids", MAY, NonEmpty(&U64))]);
static STATE_UPDATED: Definition = closed(&[("old", MAY, STATE), ("new", MUST, STATE)]);

/// Data of the events, by name.
static EVENTS: &[(&str, &Definition)] = &[
    ("connectivity:connection_started", &STARTED),
    ("connectivity:connection_closed", &CLOSED),
    ("connectivity:connection_state_updated", &STATE_UPDATED),
    ("security:key_retired", &RETIRED),
    ("transport:version_information", &VERSIONS),
    ("transport:alpn_information", &ALPN),
    ("transport:parameters_set", &PARAMETERS),
    ("transport:packet_sent", &PACKET),
    ("transport:packet_received", &PACKET),
    ("transport:packet_dropped", &DROPPED),
    ("transport:packet_buffered", &BUFFERED),
    ("transport:datagrams_sent", &DATAGRAMS),
    ("transport:datagrams_received", &DATAGRAMS),
    ("recovery:parameters_set", &RECOVERY),
    ("recovery:metrics_updated", &METRICS),
    ("recovery:congestion_state_updated", &CONGESTION),
    ("recovery:loss_timer_updated", &TIMER),
    ("recovery:packet_lost", &LOST),
    ("recovery:marked_for_retransmit", &MARKED),
];
static STARTED: Definition = closed(&[
    ("ip_version", MAY, OneOf(&["v4", "v6"])),
    ("src_ip", MUST, Text),
    ("dst_ip", MUST, Text),
    ("protocol", MAY, Text),
    ("src_port", MAY, U64),
    ("dst_port", MAY, U64),
    ("src_cid", MAY, Hex),
    ("dst_cid", MAY, Hex),
]);
const WHY_CLOSED: Kind = OneOf(&[
    "clean",
    "handshake_timeout",
    "idle_timeout",
    "error",
    "stateless_reset",
    "version_mismatch",
    "application",
]);
static CLOSED: Definition = closed(&[
    ("owner", MAY, OWNER),
    ("connection_code", MAY, ErrorCode),
    ("application_code", MAY, TextOrUint),
    ("internal_code", MAY, U64),
    ("reason", MAY, Text),
    ("trigger", MAY, WHY_CLOSED),
]);
static RETIRED: Definition = closed(&[
    ("key_type", MUST, KEY_TYPE),
    ("key", MAY, Hex),
    ("generation", MAY, U64),
    ("trigger", MAY, OneOf(&["tls", "remote_update", "local_update"])),
]);
static VERSIONS: Definition = closed(&[
    ("server_versions", MAY, NonEmpty(&Hex)),
    ("client_versions", MAY, NonEmpty(&Hex)),
    ("chosen_version", MAY, Hex),
]);
static ALPN: Definition =
    closed(&[("server_alpns", MAY, List(&Text)), ("client_alpns", MAY, List(&Text)), ("chosen_alpn", MAY, Text)]);
const WHY_DROPPED: Kind = OneOf(&[
    "key_unavailable",
    "unknown_connection_id",
    "header_parse_error",
    "payload_decrypt_error",
    "protocol_violation",
    "dos_prevention",
    "unsupported_version",
    "unexpected_packet",
    "unexpected_source_connection_id",
    "unexpected_version",
    "duplicate",
    "invalid_initial",
]);
static DROPPED: Definition = closed(&[
    ("header", MAY, Kind::Map(&HEADER)),
    ("raw", MAY, RAW_INFO),
    ("datagram_id", MAY, U64),
    ("trigger", MAY, WHY_DROPPED),
]);
static BUFFERED: Definition = closed(&[
    ("header", MAY, Kind::Map(&HEADER)),
    ("raw", MAY, RAW_INFO),
    ("datagram_id", MAY, U64),
    ("trigger", MAY, OneOf(&["backpressure", "keys_unavailable"])),
]);
static RECOVERY: Definition = open(&[
    ("reordering_threshold", MAY, U64),
    ("time_threshold", MAY, Float),
    ("timer_granularity", MUST, U16),
    ("initial_rtt", MAY, Float),
    ("max_datagram_size", MAY, U64),
    ("initial_congestion_window", MAY, U64),
    ("minimum_congestion_window", MAY, U64),
]);
static METRICS: Definition = open(&[
    ("min_rtt", MAY, Float),
    ("smoothed_rtt", MAY, Float),
    ("latest_rtt", MAY, Float),
    ("rtt_variance", MAY, Float),
    ("pto_count", MAY, U16),
    ("congestion_window", MAY, U64),
    ("bytes_in_flight", MAY, U64),
    ("ssthresh", MAY, U64),
    ("packets_in_flight", MAY, U64),
    ("pacing_rate", MAY, U64),
]);
static CONGESTION: Definition =
    closed(&[("old", MAY, Text), ("new", MUST, Text), ("trigger", MAY, OneOf(&["persistent_congestion", "ECN"]))]);
static TIMER: Definition = closed(&[
    ("timer_type", MAY, OneOf(&["ack", "pto"])),
    ("packet_number_space", MAY, OneOf(&["initial", "handshake", "application_data"])),
    ("event_type", MUST, OneOf(&["set", "expired", "cancelled"])),
    ("delta", MAY, Float),
]);
static LOST: Definition = closed(&[
    ("header", MAY, Kind::Map(&HEADER)),
    ("frames", MAY, List(&Frame)),
    ("trigger", MAY, OneOf(&["reordering_threshold", "time_threshold", "pto_expired"])),
]);
static MARKED: Definition = closed(&[("frames", MUST, NonEmpty(&Frame))]);

/// Fields of the frames beside `frame_type`, by type.
static FRAMES: &[(&str, &Definition)] = &[
    ("padding", &closed(&[("length", MAY, U64), ("payload_length", MUST, U64)])),
    ("ping", &closed(&[("length", MAY, U64), ("payload_length", MAY, U64)])),
    (
        "ack",
        &closed(&[
            ("ack_delay", MAY, Float),
            ("acked_ranges", MAY, NonEmpty(&Range)),
            ("ect1", MAY, U64),
            ("ect0", MAY, U64),
            ("ce", MAY, U64),
            ("length", MAY, U64),
            ("payload_length", MAY, U64),
        ]),
    ),
    ("reset_stream", &closed(&[("stream_id", MUST, U64), ("error_code", MUST, TextOrUint), ("final_size", MUST, U64)])),
    ("stop_sending", &closed(&[("stream_id", MUST, U64), ("error_code", MUST, TextOrUint)])),
    ("crypto", &closed(&[("offset", MUST, U64), ("length", MUST, U64), ("payload_length", MAY, U64)])),
    ("new_token", &closed(&[("token", MUST, Kind::Map(&TOKEN))])),
    (
        "stream",
        &closed(&[
            ("stream_id", MUST, U64),
            ("offset", MUST, U64),
            ("length", MUST, U64),
            ("fin", MAY, Bool),
            ("raw", MAY, Hex),
        ]),
    ),
    ("max_data", &closed(&[("maximum", MUST, U64)])),
    ("max_stream_data", &closed(&[("stream_id", MUST, U64), ("maximum", MUST, U64)])),
    ("max_streams", &closed(&[("stream_type", MUST, STREAM_TYPE), ("maximum", MUST, U64)])),
    ("data_blocked", &closed(&[("limit", MUST, U64)])),
    ("stream_data_blocked", &closed(&[("stream_id", MUST, U64), ("limit", MUST, U64)])),
    ("streams_blocked", &closed(&[("stream_type", MUST, STREAM_TYPE), ("limit", MUST, U64)])),
    (
        "new_connection_id",
        &closed(&[
            ("sequence_number", MUST, U64),
            ("retire_prior_to", MUST, U64),
            ("connection_id_length", MAY, U8),
            ("connection_id", MUST, Hex),
            ("stateless_reset_token", MAY, Kind::Map(&TOKEN)),
        ]),
    ),
    ("retire_connection_id", &closed(&[("sequence_number", MUST, U64)])),
    ("path_challenge", &closed(&[("data", MAY, Hex)])),
    ("path_response", &closed(&[("data", MAY, Hex)])),
    (
        "connection_close",
        &closed(&[
            ("error_space", MAY, OneOf(&["transport", "application"])),
            ("error_code", MAY, ErrorCode),
            ("raw_error_code", MAY, U64),
            ("reason", MAY, Text),
            ("trigger_frame_type", MAY, TextOrUint),
        ]),
    ),
    ("handshake_done", &closed(&[])),
    ("unknown", &closed(&[("raw_frame_type", MUST, U64), ("raw_length", MAY, U64), ("raw", MAY, Hex)])),
];

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

/// Checks a file of qlog 0.3 and counts its events by name.
///
/// # Errors
/// When it cannot be read, or with the record and the field that violate the schema.
pub fn check(file: impl BufRead) -> Result<BTreeMap<String, usize>, Error> {
    let mut counts = BTreeMap::new();
    let mut last = f64::NEG_INFINITY;
    for (index, record) in file.split(0x1e).enumerate() {
        let record = record?;
        // RFC 7464 §2: a record separator before each text, a line feed after it.
        if index == 0 {
            if !record.is_empty() {
                return Err(Error::other("there is something before the first record separator"));
            }
            continue;
        }
        let fault = |what: String| Error::other(format!("record {index}: {what}"));
        let text = record.strip_suffix(b"\n").ok_or_else(|| fault("no line feed ends it".to_owned()))?;
        let value: Value = serde_json::from_slice(text).map_err(|error| fault(error.to_string()))?;
        if index == 1 {
            map("file", &value, &FILE).map_err(fault)?;
            continue;
        }
        map("event", &value, &EVENT).map_err(fault)?;
        let (time, name) = (value["time"].as_f64().unwrap_or_default(), value["name"].as_str().unwrap_or_default());
        if time < last {
            return Err(fault(format!("its time {time} lies before that of the record before it, {last}")));
        }
        last = time;
        let definition = EVENTS.iter().find(|(known, _)| *known == name).map(|(_, definition)| definition);
        let definition = definition.ok_or_else(|| fault(format!("there is no event `{name}`")))?;
        map(name, &value["data"], definition).map_err(fault)?;
        *counts.entry(name.to_owned()).or_insert(0) += 1;
    }
    if last == f64::NEG_INFINITY { Err(Error::other("there is no event")) } else { Ok(counts) }
}

fn map(place: &str, value: &Value, definition: &Definition) -> Result<(), String> {
    let fields = value.as_object().ok_or_else(|| format!("{place}: expected a map, found {value}"))?;
    fields_of(place, fields, definition)
}

fn fields_of(place: &str, fields: &Map<String, Value>, definition: &Definition) -> Result<(), String> {
    for (name, mandatory, kind) in definition.fields {
        match fields.get(*name) {
            Some(value) => value_of(&format!("{place}.{name}"), value, *kind)?,
            None if *mandatory => return Err(format!("{place}: `{name}` is missing")),
            None => {}
        }
    }
    let unknown = fields.keys().find(|name| !definition.fields.iter().any(|(known, ..)| known == name));
    match unknown.filter(|_| !definition.open) {
        Some(name) => Err(format!("{place}: there is no field `{name}`")),
        None => Ok(()),
    }
}

fn value_of(place: &str, value: &Value, kind: Kind) -> Result<(), String> {
    let holds = match kind {
        Text => value.is_string(),
        Bool => value.is_boolean(),
        Uint(most) => value.as_u64().is_some_and(|number| number <= most),
        Float => value.is_number(),
        Hex => value.as_str().is_some_and(|text| text.len() % 2 == 0 && text.bytes().all(|c| c.is_ascii_hexdigit())),
        OneOf(names) => value.as_str().is_some_and(|text| names.contains(&text)),
        TextOrUint => value.is_string() || value.is_u64(),
        ErrorCode => match value.as_str() {
            Some(name) => TRANSPORT_ERRORS.contains(&name) || is_crypto_error(name),
            None => value.is_u64(),
        },
        Range => {
            let numbers: Option<Vec<u64>> = value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
            numbers.is_some_and(|ends| matches!(ends[..], [_]) || matches!(ends[..], [low, high] if low <= high))
        }
        List(of) | NonEmpty(of) => {
            let list = value.as_array().ok_or_else(|| format!("{place}: expected a list, found {value}"))?;
            list.iter().enumerate().try_for_each(|(at, one)| value_of(&format!("{place}[{at}]"), one, *of))?;
            !list.is_empty() || matches!(kind, List(_))
        }
        Kind::Map(definition) => return map(place, value, definition),
        Frame => return frame(place, value),
    };
    if holds { Ok(()) } else { Err(format!("{place}: {value} is not of the kind {kind:?}")) }
}

/// `crypto_error_0x1[0-9][0-9]`.
fn is_crypto_error(name: &str) -> bool {
    name.strip_prefix("crypto_error_0x1")
        .is_some_and(|rest| rest.len() == 2 && rest.bytes().all(|c| c.is_ascii_digit()))
}

fn frame(place: &str, value: &Value) -> Result<(), String> {
    let mut fields = value.as_object().cloned().ok_or_else(|| format!("{place}: expected a frame, found {value}"))?;
    let kind = fields.remove("frame_type");
    let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
    let definition = FRAMES.iter().find(|(known, _)| *known == kind).map(|(_, definition)| definition);
    let definition = definition.ok_or_else(|| format!("{place}: there is no frame `{kind}`"))?;
    fields_of(&format!("{place} ({kind})"), &fields, definition)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "\u{1e}{\"qlog_format\":\"JSON-SEQ\",\"qlog_version\":\"0.3\",\"trace\":{\"vantage_point\":{\"type\":\"client\"}}}\n";

    fn verdict(event: &str) -> String {
        let file = format!("{HEAD}\u{1e}{event}\n");
        check(file.as_bytes()).map_or_else(|error| error.to_string(), |counts| format!("{counts:?}"))
    }

    #[test]
    fn each_kind_of_fault_is_found() {
        let sent = |data: &str| verdict(&format!("{{\"time\":1,\"name\":\"transport:packet_sent\",\"data\":{data}}}"));
        let header = "\"header\":{\"packet_type\":\"1RTT\",\"packet_number\":3}";
        assert_eq!(sent(&format!("{{{header}}}")), "{\"transport:packet_sent\": 1}");
        for (data, fault) in [
            ("{}".to_owned(), "transport:packet_sent: `header` is missing"),
            (format!("{{{header},\"x\":1}}"), "there is no field `x`"),
            ("{\"header\":{\"packet_type\":\"one\",\"packet_number\":3}}".to_owned(), "header.packet_type: \"one\""),
            ("{\"header\":{\"packet_type\":\"1RTT\",\"packet_number\":-1}}".to_owned(), "header.packet_number: -1"),
            (format!("{{{header},\"frames\":[{{\"frame_type\":\"datagram\"}}]}}"), "there is no frame `datagram`"),
            (
                format!("{{{header},\"frames\":[{{\"frame_type\":\"stream\",\"stream_id\":0,\"offset\":0}}]}}"),
                "(stream): `length` is missing",
            ),
            (
                format!("{{{header},\"frames\":[{{\"frame_type\":\"ack\",\"acked_ranges\":[[5,1]]}}]}}"),
                "acked_ranges[0]: [5,1]",
            ),
        ] {
            assert!(sent(&data).contains(fault), "{data}: {}", sent(&data));
        }
        assert!(
            verdict("{\"time\":1,\"name\":\"quic:packet_sent\",\"data\":{}}").contains("no event `quic:packet_sent`")
        );
        assert!(verdict("{\"name\":\"recovery:metrics_updated\",\"data\":{}}").contains("`time` is missing"));
    }

    #[test]
    fn files_of_another_form_are_refused() {
        let metrics =
            |time: u8| format!("\u{1e}{{\"time\":{time},\"name\":\"recovery:metrics_updated\",\"data\":{{}}}}\n");
        assert!(check(format!("{HEAD}{}{}", metrics(1), metrics(2)).as_bytes()).is_ok());
        for other in [
            String::new(),
            HEAD.to_owned(),
            format!("{HEAD}{}{}", metrics(2), metrics(1)),
            metrics(1),
            format!("{HEAD}{}", metrics(1).trim_end()),
            HEAD.replace("0.3", "0.4") + &metrics(1),
        ] {
            assert!(check(other.as_bytes()).is_err(), "{other}");
        }
    }
}
