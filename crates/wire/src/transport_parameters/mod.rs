//! Transport parameters (RFC 9000 §18), which endpoints exchange in the TLS handshake. Also those of RFC 9221 (DATAGRAM), RFC 9287 (grease
//! of the fixed bit), draft-ietf-quic-ack-frequency-14 (`min_ack_delay`), draft-ietf-quic-receive-ts-02 (receive timestamps in
//! acknowledgements), draft-ietf-quic-reliable-stream-reset (`reset_stream_at`), and docs/fec.md (forward error correction).

use std::net::{SocketAddrV4, SocketAddrV6};

use crate::{ConnectionId, ResetToken};

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::TransportParameterError;

/// The identifiers of transport parameters.
pub mod id {
    /// The client's first destination connection ID. From servers only.
    pub const ORIGINAL_DESTINATION_CONNECTION_ID: u64 = 0x00;
    /// Idle timeout, milliseconds.
    pub const MAX_IDLE_TIMEOUT: u64 = 0x01;
    /// Stateless reset token. From servers only.
    pub const STATELESS_RESET_TOKEN: u64 = 0x02;
    /// Largest UDP payload, bytes.
    pub const MAX_UDP_PAYLOAD_SIZE: u64 = 0x03;
    /// Flow control of the connection, bytes.
    pub const INITIAL_MAX_DATA: u64 = 0x04;
    /// Flow control of bidirectional streams the sender opens, bytes.
    pub const INITIAL_MAX_STREAM_DATA_BIDI_LOCAL: u64 = 0x05;
    /// Flow control of bidirectional streams the receiver opens, bytes.
    pub const INITIAL_MAX_STREAM_DATA_BIDI_REMOTE: u64 = 0x06;
    /// Flow control of unidirectional streams the receiver opens, bytes.
    pub const INITIAL_MAX_STREAM_DATA_UNI: u64 = 0x07;
    /// Number of bidirectional streams that the receiver may open.
    pub const INITIAL_MAX_STREAMS_BIDI: u64 = 0x08;
    /// Number of unidirectional streams that the receiver may open.
    pub const INITIAL_MAX_STREAMS_UNI: u64 = 0x09;
    /// Power of two that scales the delay in ACK frames.
    pub const ACK_DELAY_EXPONENT: u64 = 0x0a;
    /// Longest time an acknowledgement is held back, milliseconds.
    pub const MAX_ACK_DELAY: u64 = 0x0b;
    /// The sender does not want the receiver to migrate.
    pub const DISABLE_ACTIVE_MIGRATION: u64 = 0x0c;
    /// Versions of QUIC (RFC 9368).
    pub const VERSION_INFORMATION: u64 = 0x11;
    /// An address the client should move to. From servers only.
    pub const PREFERRED_ADDRESS: u64 = 0x0d;
    /// Number of connection IDs that the sender stores.
    pub const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;
    /// Source connection ID of the sender's first Initial.
    pub const INITIAL_SOURCE_CONNECTION_ID: u64 = 0x0f;
    /// Source connection ID of the Retry packet. From servers only.
    pub const RETRY_SOURCE_CONNECTION_ID: u64 = 0x10;
    /// RESET_STREAM_AT is understood (draft-ietf-quic-reliable-stream-reset §3).
    pub const RESET_STREAM_AT: u64 = 0x1d;
    /// Largest DATAGRAM frame accepted, bytes (RFC 9221 §3).
    pub const MAX_DATAGRAM_FRAME_SIZE: u64 = 0x20;
    /// The fixed bit may have any value (RFC 9287 §3).
    pub const GREASE_QUIC_BIT: u64 = 0x2ab2;
    /// Shortest delay of acknowledgements that can be requested, in microseconds (draft-ietf-quic-ack-frequency §3).
    pub const MIN_ACK_DELAY: u64 = 0xff04_de1b;
    /// Source symbols that are remembered to recover others (docs/fec.md).
    pub const FEC_WINDOW: u64 = 0x3fe0;
    /// Receive times wanted in an acknowledgement at most (draft-ietf-quic-receive-ts §5).
    pub const MAX_RECEIVE_TIMESTAMPS_PER_ACK: u64 = 0x4_ac07;
    /// Power of two that scales these times (draft-ietf-quic-receive-ts §5).
    pub const RECEIVE_TIMESTAMPS_EXPONENT: u64 = 0x4_ac26;
}

/// Preferred address of a server (RFC 9000 §18.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreferredAddress {
    /// Over IPv4. All zeros on the wire when there is none.
    pub ipv4: Option<SocketAddrV4>,
    /// Over IPv6. All zeros on the wire when there is none.
    pub ipv6: Option<SocketAddrV6>,
    /// The connection ID to use there, 1 to 20 bytes; its sequence number is 1.
    pub cid: ConnectionId,
    /// The stateless reset token of that connection ID.
    pub reset_token: ResetToken,
}

/// Versions, as one side sees them (RFC 9368 §3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionInformation {
    /// The version that the sender uses for the connection; not 0.
    pub chosen: u32,
    /// From a client: what its first flight can be read as, the preferred one first, the chosen one among them. From a
    /// server: what all of its deployment speaks. None is 0.
    pub available: Vec<u32>,
}

/// Transport parameters of one side. [`Default`] has the values of absent parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportParameters {
    /// The destination connection ID of the client's first Initial. From servers only.
    pub original_dcid: Option<ConnectionId>,
    /// Idle timeout in milliseconds; 0 is none.
    pub max_idle_timeout_ms: u64,
    /// The token that resets the connection statelessly. From servers only.
    pub stateless_reset_token: Option<ResetToken>,
    /// Largest UDP payload the sender is willing to receive, in bytes; at least 1200.
    pub max_udp_payload_size: u64,
    /// Number of bytes that may be sent on the connection.
    pub initial_max_data: u64,
    /// Number of bytes that may be sent on a bidirectional stream that the sender of the parameters opens.
    pub initial_max_stream_data_bidi_local: u64,
    /// Number of bytes that may be sent on a bidirectional stream that their receiver opens.
    pub initial_max_stream_data_bidi_remote: u64,
    /// Number of bytes that may be sent on a unidirectional stream.
    pub initial_max_stream_data_uni: u64,
    /// Number of bidirectional streams that may be opened; at most 2^60.
    pub initial_max_streams_bidi: u64,
    /// Number of unidirectional streams that may be opened; at most 2^60.
    pub initial_max_streams_uni: u64,
    /// The delay in ACK frames counts 2 to this power microseconds; at most 20.
    pub ack_delay_exponent: u64,
    /// The longest time an acknowledgement is held back, in milliseconds; below 2^14.
    pub max_ack_delay_ms: u64,
    /// The sender does not want to see the receiver under another address.
    pub disable_active_migration: bool,
    /// Preferred address of the server. From servers only.
    pub preferred_address: Option<PreferredAddress>,
    /// Number of connection IDs of the receiver that the sender stores; at least 2.
    pub active_connection_id_limit: u64,
    /// The source connection ID of the sender's first Initial.
    pub initial_source_cid: Option<ConnectionId>,
    /// The source connection ID of the Retry packet, if there was one. From servers only.
    pub retry_source_cid: Option<ConnectionId>,
    /// The largest DATAGRAM frame the sender accepts, type and length included, in bytes; 0 is none at all.
    pub max_datagram_frame_size: u64,
    /// The sender accepts packets whose fixed bit is 0.
    pub grease_quic_bit: bool,
    /// Shortest time for which the sender can delay acknowledgements, in microseconds; its presence declares support of
    /// ACK_FREQUENCY.
    pub min_ack_delay_us: Option<u64>,
    /// Versions that the sender speaks.
    pub version_information: Option<VersionInformation>,
    /// Number of receive times that the sender wants in an acknowledgement at most; without it, it does not understand them.
    pub max_receive_timestamps_per_ack: Option<u64>,
    /// The receive times that the sender gets shall count 2 to this power microseconds; at most 20, and 0 where no receive
    /// times are wanted.
    pub receive_timestamps_exponent: u64,
    /// The sender accepts RESET_STREAM_AT frames.
    pub reset_stream_at: bool,
    /// Number of source symbols that the sender remembers to recover others, at least 16; its presence declares support of
    /// forward error correction.
    pub fec_window: Option<u64>,
}

impl Default for TransportParameters {
    fn default() -> Self {
        Self {
            original_dcid: None,
            max_idle_timeout_ms: 0,
            stateless_reset_token: None,
            max_udp_payload_size: 65527,
            initial_max_data: 0,
            initial_max_stream_data_bidi_local: 0,
            initial_max_stream_data_bidi_remote: 0,
            initial_max_stream_data_uni: 0,
            initial_max_streams_bidi: 0,
            initial_max_streams_uni: 0,
            ack_delay_exponent: 3,
            max_ack_delay_ms: 25,
            disable_active_migration: false,
            preferred_address: None,
            active_connection_id_limit: 2,
            initial_source_cid: None,
            retry_source_cid: None,
            max_datagram_frame_size: 0,
            grease_quic_bit: false,
            min_ack_delay_us: None,
            version_information: None,
            max_receive_timestamps_per_ack: None,
            receive_timestamps_exponent: 0,
            reset_stream_at: false,
            fec_window: None,
        }
    }
}
