//! Records of single events and frames in the file.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};
use units::{Bitrate, Duration, Instant};
use wire::{ConnectionId, Dir, Frame, ResetToken, StreamFrame, StreamId, TransportParameters, Writer};

use super::{frames::FrameList, *};
use crate::{
    Code, TransportError,
    events::CloseReason,
    observe::{Ending, Initiator, LossEvent, Observer, PacketEvent, PacketSpace, RecoveryMetrics},
    recovery::LossTrigger,
    sent::SentFrame,
    tls::HandshakeFault,
};

fn id(bytes: &[u8]) -> ConnectionId {
    ConnectionId::new(bytes).unwrap()
}

/// The frames in a payload, as they are written.
fn written(payload: &[u8]) -> Value {
    serde_json::to_value(FrameList { payload, ack_delay_exponent: 3 }).unwrap()
}

#[test]
fn every_frame_is_written_in_the_words_of_the_draft() {
    let stream = StreamId(9);
    let frames = [
        (Frame::Ping, json!({"frame_type": "ping"})),
        (
            Frame::ResetStream { id: stream, code: 5, final_size: 6 },
            json!({"frame_type": "reset_stream", "stream_id": 9, "error": "unknown", "error_code": 5, "final_size": 6}),
        ),
        (
            Frame::ResetStreamAt { id: stream, code: 5, final_size: 6, reliable_size: 4 },
            json!({"frame_type": "reset_stream_at", "stream_id": 9, "error": "unknown", "error_code": 5, "final_size": 6,
                "reliable_size": 4}),
        ),
        (
            Frame::StopSending { id: stream, code: 5 },
            json!({"frame_type": "stop_sending", "stream_id": 9, "error": "unknown", "error_code": 5}),
        ),
        (
            Frame::Crypto { offset: 4, data: b"abc" },
            json!({"frame_type": "crypto", "offset": 4, "raw": {"length": 3, "payload_length": 3}}),
        ),
        (
            Frame::NewToken { token: b"secret" },
            json!({"frame_type": "new_token", "token": {"type": "resumption", "raw": {"length": 6}}}),
        ),
        (
            Frame::Stream(StreamFrame { id: stream, offset: 7, fin: true, data: b"ab" }),
            json!({"frame_type": "stream", "stream_id": 9, "offset": 7, "fin": true,
                   "raw": {"length": 2, "payload_length": 2}}),
        ),
        (Frame::MaxData(8), json!({"frame_type": "max_data", "maximum": 8})),
        (
            Frame::MaxStreamData { id: stream, limit: 8 },
            json!({"frame_type": "max_stream_data", "stream_id": 9, "maximum": 8}),
        ),
        (
            Frame::MaxStreams { dir: Dir::Bi, limit: 8 },
            json!({"frame_type": "max_streams", "stream_type": "bidirectional", "maximum": 8}),
        ),
        (Frame::DataBlocked(8), json!({"frame_type": "data_blocked", "limit": 8})),
        (
            Frame::StreamDataBlocked { id: stream, limit: 8 },
            json!({"frame_type": "stream_data_blocked", "stream_id": 9, "limit": 8}),
        ),
        (
            Frame::StreamsBlocked { dir: Dir::Uni, limit: 8 },
            json!({"frame_type": "streams_blocked", "stream_type": "unidirectional", "limit": 8}),
        ),
        (
            Frame::NewConnectionId {
                sequence: 2,
                retire_prior_to: 1,
                cid: id(&[0xab, 0xcd]),
                reset_token: ResetToken([7; 16]),
            },
            json!({"frame_type": "new_connection_id", "sequence_number": 2, "retire_prior_to": 1,
                   "connection_id_length": 2, "connection_id": "abcd"}),
        ),
        (
            Frame::RetireConnectionId { sequence: 2 },
            json!({"frame_type": "retire_connection_id", "sequence_number": 2}),
        ),
        (Frame::PathChallenge([1; 8]), json!({"frame_type": "path_challenge", "data": "0101010101010101"})),
        (Frame::PathResponse([2; 8]), json!({"frame_type": "path_response", "data": "0202020202020202"})),
        (
            Frame::ConnectionClose { error: 0x0a, frame_type: 6, reason: b"why" },
            json!({"frame_type": "connection_close", "error_space": "transport", "error": "protocol_violation",
                   "reason": "why", "trigger_frame_type": 6}),
        ),
        (
            Frame::ConnectionClose { error: 0x0128, frame_type: 0, reason: &[0xff] },
            json!({"frame_type": "connection_close", "error_space": "transport", "error": "crypto_error_0x128",
                   "reason_bytes": "ff", "trigger_frame_type": 0}),
        ),
        (
            Frame::ConnectionClose { error: 0x7777, frame_type: 0, reason: b"" },
            json!({"frame_type": "connection_close", "error_space": "transport", "error": "unknown",
                   "error_code": 0x7777, "reason": "", "trigger_frame_type": 0}),
        ),
        (
            Frame::ApplicationClose { error: 3, reason: b"bye" },
            json!({"frame_type": "connection_close", "error_space": "application", "error": "unknown",
                   "error_code": 3, "reason": "bye"}),
        ),
        (Frame::HandshakeDone, json!({"frame_type": "handshake_done"})),
        (
            Frame::Datagram { data: b"abcd" },
            json!({"frame_type": "datagram", "raw": {"length": 4, "payload_length": 4}}),
        ),
    ];
    let mut buffer = [0; 1000];
    let mut w = Writer::new(&mut buffer);
    frames.iter().for_each(|(frame, _)| frame.encode(&mut w));
    let len = w.position();
    // What follows are 40 bytes of PADDING.
    let expected = frames.iter().map(|(_, json)| json.clone());
    let padding = json!({"frame_type": "padding", "raw": {"length": 40, "payload_length": 40}});
    assert_eq!(written(&buffer[..len + 40]), expected.chain([padding]).collect::<Value>());
}

#[test]
fn acknowledgements_are_written_with_their_ranges() {
    // Largest 20, delay 1,000 units of 8 µs, one more range; 20..=18, a gap of 3, then 14 alone.
    let ack = [0x03, 20, 0x43, 0xe8, 1, 2, 2, 0, 5, 6, 7];
    let expected = json!([{"frame_type": "ack", "ack_delay": 8.0, "acked_ranges": [[18, 20], [14]],
                           "ect0": 5, "ect1": 6, "ce": 7}]);
    assert_eq!(written(&ack), expected);
    // The largest delay there is does not overflow.
    let ack = [0x02, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
    assert_eq!(written(&ack)[0]["acked_ranges"], json!([[0]]));
}

#[test]
fn what_cannot_be_read_is_unknown() {
    assert_eq!(
        written(&[1, 0x40, 0x52, 1, 2, 3]),
        json!([{"frame_type": "ping"}, {"frame_type": "unknown", "frame_type_bytes": 0x52, "raw": {"length": 5}}])
    );
    assert_eq!(written(&[]), json!([]));
}

/// Output of a writer, shared with the test.
#[derive(Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The records after the first one, as name and data.
fn recorded(act: impl FnOnce(&mut QlogWriter<Out>)) -> Vec<(String, Value)> {
    let out = Out::default();
    let mut writer = QlogWriter::new(out.clone(), Vantage::Client, "t", id(&[1; 8]), Instant::ZERO);
    act(&mut writer);
    assert!(writer.error().is_none());
    drop(writer);
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    let records = text.split_terminator('\n').skip(1).map(|line| {
        let mut record: Value = serde_json::from_str(line.strip_prefix('\u{1e}').unwrap()).unwrap();
        (record["name"].as_str().unwrap().to_owned(), record["data"].take())
    });
    records.collect()
}

#[test]
fn the_first_record_says_what_the_file_is() {
    let out = Out::default();
    let writer = QlogWriter::new(out.clone(), Vantage::Server, "a \"title\"", id(&[0xaa; 8]), Instant::ZERO);
    let mut writer = writer.with_wall_clock(Duration::from_millis(1_500));
    assert!(out.0.lock().unwrap().is_empty());
    writer.flush();
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    let expected = concat!(
        "\u{1e}",
        r#"{"file_schema":"urn:ietf:params:qlog:file:sequential","serialization_format":"application/qlog+json-seq","#,
        r#""title":"a \"title\"","trace":{"common_fields":{"group_id":"aaaaaaaaaaaaaaaa","#,
        r#""time_format":"relative_to_epoch","reference_time":{"clock_type":"monotonic","epoch":"unknown","#,
        r#""wall_clock_time":"1970-01-01T00:00:01.500Z"}},"vantage_point":{"type":"server"},"#,
        r#""event_schemas":["urn:ietf:params:qlog:events:quic-13","urn:tiderace:qlog:events:fec-1","urn:tiderace:qlog:events:sender-1"]}}"#,
        "\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn every_end_of_a_connection_has_its_words() {
    let error = || TransportError::new(Code::FLOW_CONTROL_ERROR, "too much").in_frame(8);
    let error_data = |initiator, trigger| {
        json!({"initiator": initiator, "connection_error": "flow_control_error", "reason": "too much",
               "trigger": trigger})
    };
    let cases = [
        (
            CloseReason::ThisApplication { code: 4 },
            json!({"initiator": "local", "application_error": "unknown", "error_code": 4, "trigger": "application"}),
            Ending::Closing,
            "closing",
        ),
        (
            CloseReason::PeerApplication { code: 4, reason: Bytes::from_static(b"\xff") },
            json!({"initiator": "remote", "application_error": "unknown", "error_code": 4, "reason": "\u{fffd}",
                   "trigger": "application"}),
            Ending::Draining,
            "draining",
        ),
        (CloseReason::PeerMisbehaved(error()), error_data("local", "error"), Ending::Closing, "closing"),
        (
            CloseReason::HandshakeFailed { error: error(), fault: HandshakeFault::Other },
            error_data("local", "error"),
            Ending::Closing,
            "closing",
        ),
        (CloseReason::PeerClosed { error: error() }, error_data("remote", "error"), Ending::Draining, "draining"),
        (
            CloseReason::Reset,
            json!({"initiator": "remote", "trigger": "stateless_reset"}),
            Ending::Draining,
            "draining",
        ),
        (CloseReason::IdleTimeout, json!({"initiator": "local", "trigger": "idle_timeout"}), Ending::Silent, "closed"),
        (
            CloseReason::HandshakeTimeout,
            json!({"initiator": "local", "reason": "handshake timeout", "trigger": "aborted"}),
            Ending::Silent,
            "closed",
        ),
        (
            CloseReason::HandshakeTimeout,
            json!({"initiator": "local", "connection_error": "no_error", "reason": "handshake timeout",
                   "trigger": "aborted"}),
            Ending::Closing,
            "closing",
        ),
        (
            CloseReason::Stranded(crate::MigrateError::Disabled),
            json!({"initiator": "local", "reason": "no way to follow the client", "trigger": "aborted"}),
            Ending::Silent,
            "closed",
        ),
        (
            CloseReason::VersionMismatch { offered: vec![2] },
            json!({"initiator": "local", "trigger": "version_mismatch"}),
            Ending::Silent,
            "closed",
        ),
    ];
    for (reason, data, ending, state) in cases {
        let records = recorded(|writer| writer.closed(Instant::ZERO, &reason, ending));
        let expected = [
            ("quic:connection_closed".to_owned(), data),
            ("quic:connection_state_updated".to_owned(), json!({"new": state})),
        ];
        assert_eq!(records, expected, "{reason:?}");
    }
}

#[test]
fn only_changes_of_metrics_are_written() {
    let first = RecoveryMetrics { window: 12_000, state: "slow_start", ..RecoveryMetrics::default() };
    let second = RecoveryMetrics {
        min_rtt: Duration::from_micros(10_500),
        smoothed_rtt: Duration::from_millis(11),
        latest_rtt: Duration::from_millis(12),
        rtt_variation: Duration::from_millis(2),
        in_flight: 1_200,
        pacing_rate: Some(Bitrate::from_mbps(3)),
        ..first
    };
    let third = RecoveryMetrics { ssthresh: Some(6_000), state: "congestion_avoidance", ..second };
    let records = recorded(|writer| {
        for metrics in [first, first, second, third, third] {
            writer.metrics(Instant::ZERO, &metrics);
        }
    });
    let updated = |data| ("quic:recovery_metrics_updated".to_owned(), data);
    let state = |data| ("quic:congestion_state_updated".to_owned(), data);
    let expected = [
        updated(json!({"pto_count": 0, "congestion_window": 12_000, "bytes_in_flight": 0})),
        state(json!({"new": "slow_start"})),
        updated(json!({"min_rtt": 10.5, "smoothed_rtt": 11.0, "latest_rtt": 12.0, "rtt_variance": 2.0,
                       "bytes_in_flight": 1_200, "pacing_rate": 3_000_000})),
        updated(json!({"ssthresh": 6_000})),
        state(json!({"old": "slow_start", "new": "congestion_avoidance"})),
    ];
    assert_eq!(records, expected);
}

#[test]
fn a_loss_names_what_is_sent_again() {
    let lost = LossEvent {
        space: PacketSpace::OneRtt,
        pn: 7,
        size: 1200,
        mtu_probe: false,
        trigger: LossTrigger::TimeThreshold,
        after: Duration::from_millis(9),
    };
    let records = recorded(|writer| {
        writer.packet_lost(Instant::ZERO, &lost);
        writer.frame_lost(Instant::ZERO, &SentFrame::Ack { largest: 3 });
        writer.frame_lost(Instant::ZERO, &SentFrame::Stream { id: StreamId(4), offset: 5, len: 6, fin: false });
    });
    let expected = [
        (
            "quic:packet_lost".to_owned(),
            json!({"header": {"packet_type": "1RTT", "packet_number": 7}, "trigger": "time_threshold"}),
        ),
        (
            "quic:marked_for_retransmit".to_owned(),
            json!({"frames": [{"frame_type": "stream", "stream_id": 4, "offset": 5,
                               "raw": {"length": 6, "payload_length": 6}}]}),
        ),
    ];
    assert_eq!(records, expected);
}

#[test]
fn delays_are_scaled_by_the_exponent_of_the_sender() {
    let parameters = TransportParameters { ack_delay_exponent: 10, ..TransportParameters::default() };
    let packet = PacketEvent {
        space: PacketSpace::OneRtt,
        pn: 1,
        size: 30,
        header: &[0x40, 1],
        key_phase: 0,
        payload: &[2, 0, 10, 0, 0],
        out_of_turn: false,
    };
    let records = recorded(|writer| {
        writer.parameters_set(Instant::ZERO, Initiator::Remote, &parameters);
        writer.packet_received(Instant::ZERO, &packet);
        writer.packet_sent(Instant::ZERO, &packet);
    });
    let delays = [1, 2].map(|place| records[place].1["frames"][0]["ack_delay"].as_f64().unwrap());
    assert!((delays[0] - 10.24).abs() < 1e-6 && (delays[1] - 0.08).abs() < 1e-6, "{delays:?}");
}
