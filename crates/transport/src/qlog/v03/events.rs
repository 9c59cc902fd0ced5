//! Events of qlog 0.3 (quic-events-02 §3).

use serde_json::{Map, Value, json};

use super::{frames::frames, pick, token, transport_error};

/// Bytes of a UDP header, which sizes of datagrams include (§3.3.10).
const UDP_HEADER: u64 = 8;

/// Name and data of an event; `None` where this version has none.
pub(super) fn event(name: &str, data: &Value) -> Option<(&'static str, Value)> {
    let (name, data) = match name {
        "quic:connection_started" => ("connectivity:connection_started", connection_started(data)),
        "quic:connection_closed" => ("connectivity:connection_closed", connection_closed(data)),
        "quic:connection_state_updated" => ("connectivity:connection_state_updated", data.clone()),
        "quic:version_information" => ("transport:version_information", data.clone()),
        "quic:alpn_information" => ("transport:alpn_information", alpn(data)),
        "quic:parameters_set" => ("transport:parameters_set", parameters(data)),
        "quic:packet_sent" => ("transport:packet_sent", packet(data)),
        "quic:packet_received" => ("transport:packet_received", packet(data)),
        "quic:packet_dropped" => ("transport:packet_dropped", packet_dropped(data)),
        "quic:packet_buffered" => ("transport:packet_buffered", Value::Object(pick(data, &["raw", "trigger"]))),
        "quic:udp_datagrams_sent" => ("transport:datagrams_sent", datagrams(data)),
        "quic:udp_datagrams_received" => ("transport:datagrams_received", datagrams(data)),
        "quic:recovery_parameters_set" => ("recovery:parameters_set", data.clone()),
        "quic:recovery_metrics_updated" => ("recovery:metrics_updated", data.clone()),
        "quic:congestion_state_updated" => ("recovery:congestion_state_updated", data.clone()),
        "quic:packet_lost" => ("recovery:packet_lost", packet_lost(data)),
        "quic:marked_for_retransmit" => ("recovery:marked_for_retransmit", json!({"frames": frames(&data["frames"])})),
        "quic:timer_updated" if data["timer_type"] == "loss_timeout" => {
            ("recovery:loss_timer_updated", Value::Object(pick(data, &["event_type"])))
        }
        "quic:key_discarded" => ("security:key_retired", key_retired(data)),
        _ => return None,
    };
    Some((name, data))
}

fn connection_started(data: &Value) -> Value {
    let (local, remote) = (&data["local"], &data["remote"]);
    let v6 = remote.get("ip_v6").is_some();
    let (ip, port) = if v6 { ("ip_v6", "port_v6") } else { ("ip_v4", "port_v4") };
    let mut fields = Map::new();
    fields.insert("ip_version".to_owned(), if v6 { "v6" } else { "v4" }.into());
    fields.insert("protocol".to_owned(), "QUIC".into());
    for (side, end) in [("src", local), ("dst", remote)] {
        // An address is mandatory; an end that is not bound to one has the unspecified address.
        let unspecified = || if v6 { "::" } else { "0.0.0.0" }.into();
        fields.insert(format!("{side}_ip"), end.get(ip).cloned().unwrap_or_else(unspecified));
        if let Some(port) = end.get(port) {
            fields.insert(format!("{side}_port"), port.clone());
        }
        if let Some(id) = end["connection_ids"].get(0) {
            fields.insert(format!("{side}_cid"), id.clone());
        }
    }
    Value::Object(fields)
}

fn connection_closed(data: &Value) -> Value {
    let mut fields = pick(data, &["reason"]);
    if let Some(owner) = data.get("initiator") {
        fields.insert("owner".to_owned(), owner.clone());
    }
    if let Some(name) = data["connection_error"].as_str() {
        fields.insert("connection_code".to_owned(), transport_error(name, data.get("error_code")));
    } else if let Some(code) = data.get("error_code") {
        fields.insert("application_code".to_owned(), code.clone());
    }
    let trigger = match data["trigger"].as_str().unwrap_or_default() {
        "unspecified" => "clean",
        "aborted" if data["reason"] == "handshake timeout" => "handshake_timeout",
        known @ ("idle_timeout" | "stateless_reset" | "version_mismatch" | "application") => known,
        _ => "error",
    };
    fields.insert("trigger".to_owned(), trigger.into());
    Value::Object(fields)
}

fn alpn(data: &Value) -> Value {
    let chosen = &data["chosen_alpn"];
    json!({"chosen_alpn": chosen.get("string_value").unwrap_or(&chosen["byte_value"])})
}

fn parameters(data: &Value) -> Value {
    let mut fields = data.as_object().cloned().unwrap_or_default();
    if let Some(owner) = fields.remove("initiator") {
        fields.insert("owner".to_owned(), owner);
    }
    // Its token is mandatory here, and is not written.
    fields.remove("preferred_address");
    Value::Object(fields)
}

/// Fields of `PacketHeader`. The number is mandatory; packets that have none get 0.
fn header(header: &Value) -> Map<String, Value> {
    let names = ["packet_type", "packet_number", "length", "version", "scil", "dcil", "scid", "dcid"];
    let mut fields = pick(header, &names);
    fields.entry("packet_number").or_insert_with(|| 0.into());
    fields
}

fn packet(data: &Value) -> Value {
    let mut fields = pick(data, &["supported_versions", "raw", "trigger"]);
    let mut header = header(&data["header"]);
    if let Some(own) = data["header"].get("token") {
        if header["packet_type"] == "retry" {
            fields.insert("retry_token".to_owned(), token(own));
        } else {
            header.insert("token".to_owned(), token(own));
        }
    }
    fields.insert("header".to_owned(), header.into());
    if let Some(list) = data.get("frames") {
        fields.insert("frames".to_owned(), frames(list));
    }
    Value::Object(fields)
}

fn packet_dropped(data: &Value) -> Value {
    let mut fields = pick(data, &["raw"]);
    let trigger = match data["trigger"].as_str().unwrap_or_default() {
        "decryption_failure" => "payload_decrypt_error",
        "rejected" => "unexpected_packet",
        known @ ("duplicate" | "key_unavailable") => known,
        _ => "header_parse_error",
    };
    fields.insert("trigger".to_owned(), trigger.into());
    Value::Object(fields)
}

fn packet_lost(data: &Value) -> Value {
    let mut fields = pick(data, &["trigger"]);
    fields.insert("header".to_owned(), header(&data["header"]).into());
    Value::Object(fields)
}

fn datagrams(data: &Value) -> Value {
    let sizes = data["raw"].as_array().into_iter().flatten();
    let raw: Vec<Value> =
        sizes.map(|raw| json!({"length": raw["length"].as_u64().unwrap_or_default() + UDP_HEADER})).collect();
    json!({"count": data["count"], "raw": raw})
}

fn key_retired(data: &Value) -> Value {
    let mut fields = pick(data, &["key_type", "trigger"]);
    if let Some(phase) = data.get("key_phase") {
        fields.insert("generation".to_owned(), phase.clone());
    }
    Value::Object(fields)
}
