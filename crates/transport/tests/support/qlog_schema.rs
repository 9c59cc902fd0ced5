//! Names of events, frames and fields of draft-ietf-quic-qlog-quic-events-13, and a check of a file against them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use serde_json::Value;

/// Fields that the draft leaves to implementations, and that are ours.
const EXTRA: &[(&str, &str)] = &[("quic:recovery_parameters_set", "congestion_control")];

/// Name, required fields, optional fields.
pub const EVENTS: &[(&str, &[&str], &[&str])] = &[
    ("quic:server_listening", &[], &["ip_v4", "port_v4", "ip_v6", "port_v6", "retry_required"]),
    ("quic:connection_started", &["local", "remote"], &[]),
    (
        "quic:connection_closed",
        &[],
        &["initiator", "connection_error", "application_error", "error_code", "internal_code", "reason", "trigger"],
    ),
    ("quic:connection_id_updated", &["initiator"], &["old", "new"]),
    ("quic:spin_bit_updated", &["state"], &[]),
    ("quic:connection_state_updated", &["new"], &["old"]),
    ("quic:tuple_assigned", &["tuple_id"], &["tuple_remote", "tuple_local"]),
    ("quic:mtu_updated", &["new"], &["old", "done"]),
    ("quic:version_information", &[], &["server_versions", "client_versions", "chosen_version"]),
    ("quic:alpn_information", &[], &["server_alpns", "client_alpns", "chosen_alpn"]),
    (
        "quic:parameters_set",
        &[],
        &[
            "initiator",
            "resumption_allowed",
            "early_data_enabled",
            "tls_cipher",
            "original_destination_connection_id",
            "initial_source_connection_id",
            "retry_source_connection_id",
            "stateless_reset_token",
            "disable_active_migration",
            "max_idle_timeout",
            "max_udp_payload_size",
            "ack_delay_exponent",
            "max_ack_delay",
            "active_connection_id_limit",
            "initial_max_data",
            "initial_max_stream_data_bidi_local",
            "initial_max_stream_data_bidi_remote",
            "initial_max_stream_data_uni",
            "initial_max_streams_bidi",
            "initial_max_streams_uni",
            "preferred_address",
            "unknown_parameters",
            "max_datagram_frame_size",
            "grease_quic_bit",
            "reset_stream_at",
        ],
    ),
    (
        "quic:parameters_restored",
        &[],
        &[
            "disable_active_migration",
            "max_idle_timeout",
            "max_udp_payload_size",
            "active_connection_id_limit",
            "initial_max_data",
            "initial_max_stream_data_bidi_local",
            "initial_max_stream_data_bidi_remote",
            "initial_max_stream_data_uni",
            "initial_max_streams_bidi",
            "initial_max_streams_uni",
            "max_datagram_frame_size",
            "grease_quic_bit",
        ],
    ),
    (
        "quic:packet_sent",
        &["header"],
        &[
            "frames",
            "stateless_reset_token",
            "supported_versions",
            "raw",
            "datagram_payload_checksum",
            "is_mtu_probe_packet",
            "trigger",
        ],
    ),
    (
        "quic:packet_received",
        &["header"],
        &["frames", "stateless_reset_token", "supported_versions", "raw", "datagram_payload_checksum", "trigger"],
    ),
    ("quic:packet_dropped", &[], &["header", "raw", "datagram_payload_checksum", "details", "trigger"]),
    ("quic:packet_buffered", &[], &["header", "raw", "datagram_payload_checksum", "trigger"]),
    ("quic:packets_acked", &[], &["packet_number_space", "packet_numbers"]),
    ("quic:udp_datagrams_sent", &[], &["count", "raw", "ecn", "datagram_payload_checksums"]),
    ("quic:udp_datagrams_received", &[], &["count", "raw", "ecn", "datagram_payload_checksums"]),
    ("quic:udp_datagram_dropped", &[], &["raw"]),
    ("quic:stream_state_updated", &["stream_id", "new", "stream_side"], &["stream_type", "old", "trigger"]),
    ("quic:frames_created", &["frames"], &["packet_numbers"]),
    ("quic:frames_parsed", &["frames"], &["packet_numbers"]),
    ("quic:stream_data_moved", &[], &["stream_id", "offset", "from", "to", "additional_info", "raw"]),
    ("quic:datagram_data_moved", &[], &["from", "to", "raw"]),
    ("quic:connection_data_blocked_updated", &["new"], &["old", "reason"]),
    ("quic:stream_data_blocked_updated", &["new", "stream_id"], &["old", "reason"]),
    ("quic:datagram_data_blocked_updated", &["new"], &["old", "reason"]),
    ("quic:migration_state_updated", &["new"], &["old", "tuple_id", "tuple_remote", "tuple_local"]),
    ("quic:timer_updated", &["event_type"], &["timer_type", "timer_id", "packet_number_space", "delta"]),
    ("quic:key_updated", &["key_type"], &["old", "new", "key_phase", "trigger"]),
    ("quic:key_discarded", &["key_type"], &["key", "key_phase", "trigger"]),
    (
        "quic:recovery_parameters_set",
        &["timer_granularity"],
        &[
            "reordering_threshold",
            "time_threshold",
            "initial_rtt",
            "max_datagram_size",
            "initial_congestion_window",
            "minimum_congestion_window",
            "loss_reduction_factor",
            "persistent_congestion_threshold",
        ],
    ),
    (
        "quic:recovery_metrics_updated",
        &[],
        &[
            "min_rtt",
            "smoothed_rtt",
            "latest_rtt",
            "rtt_variance",
            "pto_count",
            "congestion_window",
            "bytes_in_flight",
            "ssthresh",
            "packets_in_flight",
            "pacing_rate",
        ],
    ),
    ("quic:congestion_state_updated", &["new"], &["old", "trigger"]),
    ("quic:packet_lost", &[], &["header", "frames", "is_mtu_probe_packet", "trigger"]),
    ("quic:marked_for_retransmit", &["frames"], &[]),
    ("quic:ecn_state_updated", &["new"], &["old"]),
    // Our own, of a schema that the file names.
    ("fec:symbol_recovered", &["symbol_id", "delay"], &[]),
    ("fec:packet_recovered", &["packet_number"], &[]),
    ("fec:code_updated", &["old", "new"], &[]),
    ("sender:limited", &["by"], &[]),
];

/// Name, required fields beside `frame_type`, optional fields.
pub const FRAMES: &[(&str, &[&str], &[&str])] = &[
    ("padding", &[], &["raw"]),
    ("ping", &[], &["raw"]),
    ("ack", &[], &["ack_delay", "acked_ranges", "ect1", "ect0", "ce", "raw"]),
    ("reset_stream", &["stream_id", "error", "final_size"], &["error_code", "raw"]),
    ("reset_stream_at", &["stream_id", "error", "final_size", "reliable_size"], &["error_code", "raw"]),
    ("stop_sending", &["stream_id", "error"], &["error_code", "raw"]),
    ("crypto", &["offset", "raw"], &[]),
    ("new_token", &["token"], &["raw"]),
    ("stream", &["stream_id"], &["offset", "fin", "raw"]),
    ("max_data", &["maximum"], &["raw"]),
    ("max_stream_data", &["stream_id", "maximum"], &["raw"]),
    ("max_streams", &["stream_type", "maximum"], &["raw"]),
    ("data_blocked", &["limit"], &["raw"]),
    ("stream_data_blocked", &["stream_id", "limit"], &["raw"]),
    ("streams_blocked", &["stream_type", "limit"], &["raw"]),
    (
        "new_connection_id",
        &["sequence_number", "retire_prior_to", "connection_id"],
        &["connection_id_length", "stateless_reset_token", "raw"],
    ),
    ("retire_connection_id", &["sequence_number"], &["raw"]),
    ("path_challenge", &[], &["data", "raw"]),
    ("path_response", &[], &["data", "raw"]),
    (
        "connection_close",
        &[],
        &["error_space", "error", "error_code", "reason", "reason_bytes", "trigger_frame_type", "raw"],
    ),
    ("handshake_done", &[], &["raw"]),
    ("unknown", &["frame_type_bytes"], &["raw"]),
    ("datagram", &[], &["raw"]),
    // Extensions, through the socket that the schema has for them (`$QuicFrame`): draft-ietf-quic-ack-frequency-14.
    (
        "ack_frequency",
        &["sequence_number", "ack_eliciting_threshold", "requested_max_ack_delay", "reordering_threshold"],
        &["raw"],
    ),
    ("immediate_ack", &[], &["raw"]),
    // docs/fec.md.
    ("source_symbol", &["symbol_id"], &[]),
    ("repair", &["first_symbol_id", "symbol_count", "symbol_stride", "row", "raw"], &[]),
    ("symbol_ack", &["recovered_ranges"], &[]),
];

/// Event, and the values that its `trigger` may have.
pub const TRIGGERS: &[(&str, &[&str])] = &[
    (
        "quic:connection_closed",
        &["idle_timeout", "application", "error", "version_mismatch", "stateless_reset", "aborted", "unspecified"],
    ),
    (
        "quic:packet_sent",
        &["retransmit_reordered", "retransmit_timeout", "pto_probe", "retransmit_crypto", "cc_bandwidth_probe"],
    ),
    ("quic:packet_received", &["keys_available"]),
    (
        "quic:packet_dropped",
        &[
            "internal_error",
            "rejected",
            "unsupported",
            "invalid",
            "duplicate",
            "connection_unknown",
            "decryption_failure",
            "key_unavailable",
            "general",
        ],
    ),
    ("quic:packet_buffered", &["backpressure", "keys_unavailable"]),
    ("quic:key_updated", &["tls", "remote_update", "local_update"]),
    ("quic:key_discarded", &["tls", "remote_update", "local_update"]),
    ("quic:packet_lost", &["reordering_threshold", "time_threshold", "pto_expired"]),
];

/// Fields of `PacketHeader`.
pub const HEADER: &[&str] = &[
    "packet_type",
    "packet_type_bytes",
    "spin_bit",
    "key_phase",
    "key_phase_bit",
    "packet_number_length",
    "packet_number",
    "token",
    "length",
    "version",
    "scil",
    "dcil",
    "scid",
    "dcid",
];

/// `PacketType`.
pub const PACKET_TYPES: &[&str] =
    &["initial", "handshake", "0RTT", "1RTT", "retry", "version_negotiation", "stateless_reset", "unknown"];

/// `KeyType`.
pub const KEY_TYPES: &[&str] = &[
    "server_initial_secret",
    "client_initial_secret",
    "server_handshake_secret",
    "client_handshake_secret",
    "server_0rtt_secret",
    "client_0rtt_secret",
    "server_1rtt_secret",
    "client_1rtt_secret",
];

/// `TimerType`.
pub const TIMER_TYPES: &[&str] =
    &["ack", "pto", "loss_timeout", "path_validation", "handshake_timeout", "idle_timeout"];

/// `TransportError`.
pub const TRANSPORT_ERRORS: &[&str] = &[
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
    "key_update_error",
    "aead_limit_reached",
    "no_viable_path",
    "unknown",
];

/// The records of a file. Panics where it is not a JSON text sequence (RFC 7464).
pub fn records(file: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(file).expect("UTF-8");
    let mut records = text.split('\u{1e}');
    assert_eq!(records.next(), Some(""), "a record begins with a separator");
    records
        .map(|record| {
            let json = record.strip_suffix('\n').expect("a record ends with a newline");
            serde_json::from_str(json).unwrap_or_else(|error| panic!("{error} in {json}"))
        })
        .collect()
}

/// Checks a whole file, and returns its events without the first record.
pub fn check(file: &[u8]) -> Vec<Value> {
    let start = std::str::from_utf8(&file[..file.len().min(256)]).unwrap();
    assert!(start.contains("file_schema") && start.contains("serialization_format"), "{start}");
    let mut records = records(file);
    let header = records.remove(0);
    assert_eq!(header["file_schema"], "urn:ietf:params:qlog:file:sequential");
    assert_eq!(header["serialization_format"], "application/qlog+json-seq");
    assert_eq!(header["trace"]["event_schemas"][0], "urn:ietf:params:qlog:events:quic-13");
    assert!(["client", "server"].contains(&text(&header["trace"]["vantage_point"]["type"])));
    let mut last = 0.0;
    for event in &records {
        let time = event["time"].as_f64().expect("a time");
        assert!(time >= last, "{event} before {last}");
        last = time;
        check_event(event);
    }
    records
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text"))
}

fn find<'a>(table: &'a [(&str, &'a [&str], &'a [&str])], name: &str) -> (&'a [&'a str], &'a [&'a str]) {
    let row = table.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("the draft has no {name}"));
    (row.1, row.2)
}

fn check_event(event: &Value) {
    let fields: Vec<_> = event.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(fields.iter().all(|f| ["time", "name", "data"].contains(f)), "{event}");
    let (name, data) = (text(&event["name"]), event["data"].as_object().expect("data"));
    let (required, optional) = find(EVENTS, name);
    for field in required {
        assert!(data.contains_key(*field), "{name} without {field}: {event}");
    }
    for field in data.keys().map(String::as_str) {
        let known = required.contains(&field) || optional.contains(&field) || EXTRA.contains(&(name, field));
        assert!(known, "{name} has no {field}");
    }
    if let Some(trigger) = data.get("trigger") {
        let (_, known) = TRIGGERS.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{name} has no triggers"));
        assert!(known.contains(&text(trigger)), "{event}");
    }
    if let Some(header) = data.get("header") {
        let header = header.as_object().unwrap();
        assert!(header.keys().all(|field| HEADER.contains(&field.as_str())), "{event}");
        assert!(PACKET_TYPES.contains(&text(&header["packet_type"])), "{event}");
    }
    for frame in data.get("frames").and_then(Value::as_array).into_iter().flatten() {
        check_frame(frame);
    }
    let one_of = |field: &str, known: &[&str]| {
        if let Some(value) = data.get(field) {
            assert!(known.contains(&text(value)), "{event}");
        }
    };
    one_of("key_type", KEY_TYPES);
    one_of("timer_type", TIMER_TYPES);
    one_of("initiator", &["local", "remote"]);
    if let Some(error) = data.get("connection_error") {
        check_error(text(error));
    }
}

fn check_error(error: &str) {
    let crypto = error.strip_prefix("crypto_error_0x1").is_some_and(|n| n.len() == 2);
    assert!(crypto || TRANSPORT_ERRORS.contains(&error), "{error}");
}

/// Checks a frame.
pub fn check_frame(frame: &Value) {
    let name = text(&frame["frame_type"]);
    let (required, optional) = find(FRAMES, name);
    let fields = frame.as_object().unwrap();
    for field in required {
        assert!(fields.contains_key(*field), "{name} without {field}: {frame}");
    }
    for field in fields.keys().map(String::as_str) {
        assert!(field == "frame_type" || required.contains(&field) || optional.contains(&field), "{frame}");
    }
    match name {
        "connection_close" if frame["error_space"] == "transport" => check_error(text(&frame["error"])),
        "ack" => {
            for range in frame["acked_ranges"].as_array().unwrap() {
                assert!((1..=2).contains(&range.as_array().unwrap().len()), "{frame}");
            }
        }
        _ => {}
    }
}
