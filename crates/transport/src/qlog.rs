//! qlog: an [`Observer`] that writes what happens on a connection as JSON text sequences (RFC 7464).
//!
//! Follows draft-ietf-quic-qlog-main-schema-13 and draft-ietf-quic-qlog-quic-events-13. Keys, tokens, stream data and the
//! content of handshake messages are never written, only their lengths.

mod frames;

use std::io::Write;

use serde_json::{Map, Value, json};
use units::{Duration, Instant};
use wire::Side;

use crate::{
    error::{Code, TransportError},
    events::CloseReason,
    observe::{Observer, PacketEvent, PacketSpace, RecoveryMetrics},
    sent::SentFrame,
    timers::Timer,
};

/// The event schema of the draft that is followed: draft versions carry their number.
const EVENT_SCHEMA: &str = "urn:ietf:params:qlog:events:quic-13";
/// Every record starts with this character (RFC 7464 §2.2).
const RECORD_SEPARATOR: u8 = 0x1e;

/// Writes the qlog of one side of one connection.
///
/// Times are milliseconds since the origin of the caller's instants. A writer that fails ends the log, not the
/// connection: what was written up to then is a valid log.
pub struct Qlog<W: Write> {
    /// `None` once writing has failed.
    out: Option<W>,
    /// The recovery metrics that were written last: only what changed is written again.
    metrics: RecoveryMetrics,
}

impl<W: Write> Qlog<W> {
    /// Starts a log: writes its header.
    pub fn new(out: W, side: Side, title: &str) -> Self {
        let mut log = Self { out: Some(out), metrics: RecoveryMetrics::default() };
        let vantage_point = match side {
            Side::Client => "client",
            Side::Server => "server",
        };
        log.record(&json!({
            "file_schema": "urn:ietf:params:qlog:file:sequential",
            "serialization_format": "application/qlog+json-seq",
            "title": title,
            "trace": {
                "common_fields": {
                    "time_format": "relative_to_epoch",
                    "reference_time": { "clock_type": "monotonic", "epoch": "unknown" },
                },
                "vantage_point": { "name": concat!("tiderace ", env!("CARGO_PKG_VERSION")), "type": vantage_point },
                "event_schemas": [EVENT_SCHEMA],
            },
        }));
        log
    }

    fn record(&mut self, value: &Value) {
        let Some(out) = &mut self.out else { return };
        let written = out
            .write_all(&[RECORD_SEPARATOR])
            .and_then(|()| serde_json::to_writer(&mut *out, value).map_err(Into::into))
            .and_then(|()| out.write_all(b"\n"));
        if written.is_err() {
            self.out = None;
        }
    }

    fn event(&mut self, now: Instant, name: &str, data: Value) {
        self.record(&json!({ "time": millis(now - Instant::ZERO), "name": name, "data": data }));
    }

    fn packet(&mut self, now: Instant, name: &str, packet: &PacketEvent<'_>) {
        let data = json!({
            "header": header(packet.space, packet.pn),
            "raw": { "length": packet.size, "payload_length": packet.payload.len() },
            "frames": frames::frames(packet.payload),
        });
        self.event(now, name, data);
    }
}

impl<W: Write> core::fmt::Debug for Qlog<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Qlog").field("failed", &self.out.is_none()).finish_non_exhaustive()
    }
}

fn header(space: PacketSpace, pn: u64) -> Value {
    let packet_type = match space {
        PacketSpace::Initial => "initial",
        PacketSpace::Handshake => "handshake",
        PacketSpace::ZeroRtt => "0RTT",
        PacketSpace::OneRtt => "1RTT",
    };
    json!({ "packet_type": packet_type, "packet_number": pn })
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// A transport error's name in qlog.
fn transport_error(code: Code) -> Value {
    match (code.name(), code.0) {
        (_, 0x0100..=0x01ff) => json!(format!("crypto_error_{:#05x}", code.0)),
        (Some(name), _) => json!(name.to_ascii_lowercase()),
        (None, _) => json!("unknown"),
    }
}

/// Fields of a close that a transport error caused.
fn error_fields(initiator: &str, error: &TransportError) -> Value {
    json!({
        "initiator": initiator,
        "connection_error": transport_error(error.code),
        "error_code": error.code.0,
        "reason": error.reason,
        "trigger": "error",
    })
}

impl<W: Write + Send> Observer for Qlog<W> {
    fn packet_sent(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        self.packet(now, "quic:packet_sent", packet);
    }

    fn packet_received(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        self.packet(now, "quic:packet_received", packet);
    }

    fn packet_lost(&mut self, now: Instant, space: PacketSpace, pn: u64) {
        self.event(now, "quic:packet_lost", json!({ "header": header(space, pn) }));
    }

    fn frame_lost(&mut self, now: Instant, frame: &SentFrame) {
        self.event(now, "quic:marked_for_retransmit", json!({ "frames": [frames::sent(frame)] }));
    }

    fn metrics(&mut self, now: Instant, metrics: &RecoveryMetrics) {
        let old = std::mem::replace(&mut self.metrics, *metrics);
        let mut data = Map::new();
        let mut changed = |name: &str, changed: bool, value: Value| {
            if changed {
                data.insert(name.to_owned(), value);
            }
        };
        changed("min_rtt", old.min_rtt != metrics.min_rtt, json!(millis(metrics.min_rtt)));
        changed("smoothed_rtt", old.smoothed_rtt != metrics.smoothed_rtt, json!(millis(metrics.smoothed_rtt)));
        changed("latest_rtt", old.latest_rtt != metrics.latest_rtt, json!(millis(metrics.latest_rtt)));
        changed("rtt_variance", old.rtt_variation != metrics.rtt_variation, json!(millis(metrics.rtt_variation)));
        changed("pto_count", old.pto_count != metrics.pto_count, json!(metrics.pto_count));
        changed("congestion_window", old.window != metrics.window, json!(metrics.window));
        changed("bytes_in_flight", old.in_flight != metrics.in_flight, json!(metrics.in_flight));
        changed("ssthresh", old.ssthresh != metrics.ssthresh && metrics.ssthresh.is_some(), json!(metrics.ssthresh));
        let pacing = metrics.pacing_rate.map(units::Bitrate::as_bps);
        changed("pacing_rate", old.pacing_rate != metrics.pacing_rate && pacing.is_some(), json!(pacing));
        if !data.is_empty() {
            self.event(now, "quic:recovery_metrics_updated", Value::Object(data));
        }
        if old.state != metrics.state {
            let data = match old.state {
                "" => json!({ "new": metrics.state }),
                state => json!({ "old": state, "new": metrics.state }),
            };
            self.event(now, "quic:congestion_state_updated", data);
        }
    }

    fn timer_expired(&mut self, now: Instant, timer: Timer) {
        let timer_type = match timer {
            // One timer serves losses by time and probes: RFC 9002 §A.8.
            Timer::LossDetection => "loss_timeout",
            Timer::AckDelay => "ack",
            Timer::Idle => "idle_timeout",
            Timer::PathValidation => "path_validation",
            other => other.name(),
        };
        self.event(now, "quic:timer_updated", json!({ "timer_type": timer_type, "event_type": "expired" }));
    }

    fn connected(&mut self, now: Instant, alpn: &[u8]) {
        let chosen = match std::str::from_utf8(alpn) {
            Ok(text) => json!({ "string_value": text }),
            Err(_) => json!({ "byte_value": frames::hex(alpn) }),
        };
        self.event(now, "quic:alpn_information", json!({ "chosen_alpn": chosen }));
        self.event(now, "quic:connection_state_updated", json!({ "new": "handshake_complete" }));
    }

    fn keys_updated(&mut self, now: Instant) {
        for key_type in ["client_1rtt_secret", "server_1rtt_secret"] {
            self.event(now, "quic:key_updated", json!({ "key_type": key_type }));
        }
    }

    fn closed(&mut self, now: Instant, reason: &CloseReason) {
        let data = match reason {
            CloseReason::ThisApplication { code } => {
                json!({ "initiator": "local", "application_error": "unknown", "error_code": code, "trigger": "application" })
            }
            CloseReason::PeerApplication { code, reason } => json!({
                "initiator": "remote", "application_error": "unknown", "error_code": code,
                "reason": String::from_utf8_lossy(reason), "trigger": "application",
            }),
            CloseReason::PeerMisbehaved(error) | CloseReason::HandshakeFailed(error) => error_fields("local", error),
            CloseReason::PeerClosed { error } => error_fields("remote", error),
            CloseReason::Reset => json!({ "initiator": "remote", "trigger": "stateless_reset" }),
            CloseReason::IdleTimeout => json!({ "initiator": "local", "trigger": "idle_timeout" }),
            CloseReason::VersionMismatch { .. } => {
                json!({ "initiator": "local", "reason": reason.to_string(), "trigger": "version_mismatch" })
            }
            other => json!({ "initiator": "local", "reason": other.to_string(), "trigger": "aborted" }),
        };
        self.event(now, "quic:connection_closed", data);
        if let Some(out) = &mut self.out {
            // A failure to flush ends the log as any other failure does.
            if out.flush().is_err() {
                self.out = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A file that can be looked into while it is written.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn records(file: &Shared) -> Vec<Value> {
        let text = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with('\u{1e}') && text.ends_with('\n'));
        text.split('\u{1e}').skip(1).map(|record| serde_json::from_str(record).unwrap()).collect()
    }

    #[test]
    fn a_log_is_a_sequence_of_records() {
        let file = Shared::default();
        let mut log = Qlog::new(file.clone(), Side::Server, "test");
        let now = Instant::from_micros(1_500);
        // PING, STREAM 4 with "hi" at offset 3 and its length, two PADDING.
        let payload = [0x01, 0x0e, 0x04, 0x03, 0x02, b'h', b'i', 0x00, 0x00];
        log.packet_sent(now, &PacketEvent { space: PacketSpace::OneRtt, pn: 7, size: 40, payload: &payload });
        let metrics = RecoveryMetrics { window: 12_000, state: "slow_start", ..RecoveryMetrics::default() };
        log.metrics(now, &metrics);
        log.metrics(now, &metrics);
        log.closed(now, &CloseReason::HandshakeFailed(TransportError::new(Code::crypto(0x28), "no")));
        let records = records(&file);
        assert_eq!(records[0]["trace"]["vantage_point"]["type"], "server");
        assert_eq!(records[0]["trace"]["event_schemas"][0], EVENT_SCHEMA);
        let sent = &records[1];
        assert_eq!((&sent["time"], &sent["name"]), (&json!(1.5), &json!("quic:packet_sent")));
        assert_eq!(sent["data"]["header"], json!({ "packet_type": "1RTT", "packet_number": 7 }));
        assert_eq!(
            sent["data"]["frames"],
            json!([
                { "frame_type": "ping" },
                { "frame_type": "stream", "stream_id": 4, "offset": 3, "fin": false, "raw": { "payload_length": 2 } },
                { "frame_type": "padding", "raw": { "length": 2 } },
            ])
        );
        assert_eq!(records[2]["data"], json!({ "congestion_window": 12_000 }));
        assert_eq!(records[3]["data"], json!({ "new": "slow_start" }));
        assert_eq!(records[4]["data"]["connection_error"], "crypto_error_0x128");
        assert_eq!(records.len(), 5, "metrics that did not change are not repeated");
    }

    #[test]
    fn a_failing_file_does_no_harm() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("full"))
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut log = Qlog::new(Full, Side::Client, "test");
        log.keys_updated(Instant::ZERO);
        assert!(format!("{log:?}").contains("failed: true"));
    }
}
