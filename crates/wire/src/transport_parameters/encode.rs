//! Encoding of transport parameters.

use super::{PreferredAddress, TransportParameters, id};
use crate::{Side, varint};

impl TransportParameters {
    /// Appends the parameters of `side`. Parameters with default values are left out; so are, for a client, those that only a server may
    /// send.
    ///
    /// With `grease`, a random number, a reserved parameter of random identifier and content is added, which every
    /// receiver has to ignore (RFC 9000 §18.1).
    ///
    /// # Panics
    /// When a number is above 2^62-1.
    // RFC 9000 §7.4 MUST NOT-1: each transport parameter is sent once
    pub fn encode(&self, out: &mut Vec<u8>, side: Side, grease: Option<u64>) {
        let default = Self::default();
        let numbers = [
            (id::MAX_IDLE_TIMEOUT, self.max_idle_timeout_ms, default.max_idle_timeout_ms),
            (id::MAX_UDP_PAYLOAD_SIZE, self.max_udp_payload_size, default.max_udp_payload_size),
            (id::INITIAL_MAX_DATA, self.initial_max_data, 0),
            (id::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL, self.initial_max_stream_data_bidi_local, 0),
            (id::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE, self.initial_max_stream_data_bidi_remote, 0),
            (id::INITIAL_MAX_STREAM_DATA_UNI, self.initial_max_stream_data_uni, 0),
            (id::INITIAL_MAX_STREAMS_BIDI, self.initial_max_streams_bidi, 0),
            (id::INITIAL_MAX_STREAMS_UNI, self.initial_max_streams_uni, 0),
            (id::ACK_DELAY_EXPONENT, self.ack_delay_exponent, default.ack_delay_exponent),
            (id::MAX_ACK_DELAY, self.max_ack_delay_ms, default.max_ack_delay_ms),
            (id::ACTIVE_CONNECTION_ID_LIMIT, self.active_connection_id_limit, default.active_connection_id_limit),
            (id::MAX_DATAGRAM_FRAME_SIZE, self.max_datagram_frame_size, default.max_datagram_frame_size),
        ];
        for (id, value, implied) in numbers {
            if value != implied {
                number(out, id, value);
            }
        }
        if let Some(value) = self.min_ack_delay_us {
            number(out, id::MIN_ACK_DELAY, value);
        }
        if let Some(value) = self.max_receive_timestamps_per_ack {
            number(out, id::MAX_RECEIVE_TIMESTAMPS_PER_ACK, value);
            if self.receive_timestamps_exponent != 0 {
                number(out, id::RECEIVE_TIMESTAMPS_EXPONENT, self.receive_timestamps_exponent);
            }
        }
        if let Some(symbols) = self.fec_window {
            number(out, id::FEC_WINDOW, symbols);
        }
        if self.disable_active_migration {
            parameter(out, id::DISABLE_ACTIVE_MIGRATION, &[]);
        }
        if self.grease_quic_bit {
            parameter(out, id::GREASE_QUIC_BIT, &[]);
        }
        if self.reset_stream_at {
            parameter(out, id::RESET_STREAM_AT, &[]);
        }
        if let Some(cid) = &self.initial_source_cid {
            parameter(out, id::INITIAL_SOURCE_CONNECTION_ID, cid.as_slice());
        }
        if let Some(versions) = &self.version_information {
            varint::push(out, id::VERSION_INFORMATION);
            varint::push(out, 4 * (1 + versions.available.len() as u64));
            let all = [versions.chosen].into_iter().chain(versions.available.iter().copied());
            all.for_each(|version| out.extend_from_slice(&version.to_be_bytes()));
        }
        if side.is_server() {
            self.encode_server_only(out);
        }
        if let Some(random) = grease {
            reserved(out, random);
        }
    }

    /// RFC 9000 §18.2 MUST NOT-1, MUST NOT-5: a client must not send any of these.
    fn encode_server_only(&self, out: &mut Vec<u8>) {
        if let Some(cid) = &self.original_dcid {
            parameter(out, id::ORIGINAL_DESTINATION_CONNECTION_ID, cid.as_slice());
        }
        if let Some(cid) = &self.retry_source_cid {
            parameter(out, id::RETRY_SOURCE_CONNECTION_ID, cid.as_slice());
        }
        if let Some(token) = &self.stateless_reset_token {
            parameter(out, id::STATELESS_RESET_TOKEN, &token.0);
        }
        if let Some(address) = &self.preferred_address {
            preferred_address(out, address);
        }
    }
}

fn number(out: &mut Vec<u8>, id: u64, value: u64) {
    varint::push(out, id);
    varint::push(out, varint::len(value) as u64);
    varint::push(out, value);
}

fn parameter(out: &mut Vec<u8>, id: u64, value: &[u8]) {
    varint::push(out, id);
    varint::push(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn preferred_address(out: &mut Vec<u8>, address: &PreferredAddress) {
    let cid = address.cid.as_slice();
    varint::push(out, id::PREFERRED_ADDRESS);
    varint::push(out, (4 + 2 + 16 + 2 + 1 + cid.len() + 16) as u64);
    out.extend(address.ipv4.map_or([0; 4], |a| a.ip().octets()));
    out.extend(address.ipv4.map_or(0, |a| a.port()).to_be_bytes());
    out.extend(address.ipv6.map_or([0; 16], |a| a.ip().octets()));
    out.extend(address.ipv6.map_or(0, |a| a.port()).to_be_bytes());
    // Up to 20, a varint is the plain byte that the format asks for.
    varint::push(out, cid.len() as u64);
    out.extend_from_slice(cid);
    out.extend(address.reset_token.0);
}

/// RFC 9000 §18.1: identifiers of the form 31 * N + 27 are reserved, so that peers do not get used to knowing every
/// parameter.
fn reserved(out: &mut Vec<u8>, random: u64) {
    let id = 31 * (random % ((varint::MAX - 27) / 31 + 1)) + 27;
    let bytes = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let len = usize::from(bytes[7] % 9);
    parameter(out, id, &bytes[..len]);
}
