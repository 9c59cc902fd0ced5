//! Transport profile of the gateway's QUIC connections.

use tiderace::Profile;
use tiderace::transport::streams::StreamsConfig;

use crate::{config::Config, session_route};

/// Bytes of datagrams that wait in each direction: they are carried at once, and more of them would be late anyway.
const DATAGRAM_QUEUE: u64 = 256 * 1024;
/// Bytes that a connection holds for a client that does not take them, or takes them slowly; where more is in flight it is twice that.
/// Sending at full speed costs the same with an eighth of the transport's 4 MiB.
const SEND_BUFFER: u64 = 512 * 1024;

/// Transport profile without a policy.
pub(crate) fn profile(config: &Config) -> Profile {
    let sessions = session_route::support(config);
    // Streams of a session have room beside requests: some browsers fail at the limit in place of waiting.
    let session_streams = sessions.as_ref().map_or(0, |settings| settings.limits.bidi);
    Profile {
        name: "edge".to_owned(),
        congestion: config.transport.congestion.parse().expect("the configuration was checked"),
        idle_timeout: config.transport.idle_timeout.0,
        handshake_timeout: config.limits.handshake_timeout.0,
        datagram_queue: DATAGRAM_QUEUE,
        // RFC 9114 §6.1 SHOULD-1, SHOULD-2, RFC 9114 §6.2 MUST-1, SHOULD-1, RFC 9114 §6.2.1 SHOULD-1: the defaults have room for more
        // RFC 9114 §5.1 SHOULD NOT-1: nothing keeps a connection open that its client does not use
        streams: StreamsConfig {
            max_streams_bidi: u64::from(config.limits.requests_per_connection) + session_streams,
            reset_stream_at: sessions.is_some(),
            send_buffer: SEND_BUFFER,
            // The transport permits twice the window of a connection.
            receive_window_max: (config.limits.connection_memory.0 / 2)
                .max(StreamsConfig::default().receive_window_connection),
            ..StreamsConfig::default()
        },
        ..Profile::default()
    }
}
