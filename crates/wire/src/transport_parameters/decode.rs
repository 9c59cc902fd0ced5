//! Decoding of transport parameters, and their validity.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use super::{PreferredAddress, TransportParameters, VersionInformation, id};
use crate::{ConnectionId, Reader, ResetToken, Side, StreamId, Truncated};

/// Parameters that cannot be accepted; the connection closes with TRANSPORT_PARAMETER_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transport parameter {id:#x}: {what}")]
pub struct TransportParameterError {
    /// The parameter; the largest number there is when not even that could be read.
    pub id: u64,
    /// Fault of the parameter.
    pub what: &'static str,
}

impl TransportParameters {
    /// Reads what `sender` has sent. Parameters that are not known are ignored (RFC 9000 §7.4.2).
    ///
    /// Whether those are present that the handshake needs (`initial_source_cid`, a server's `original_dcid`), and
    /// whether they fit it, is for the handshake to check.
    ///
    /// # Errors
    /// When the bytes end early, a parameter comes twice, has a value it must not have, or is not the sender's to send.
    pub fn decode(sender: Side, bytes: &[u8]) -> Result<Self, TransportParameterError> {
        let mut parameters = Self::default();
        let mut seen = Seen::default();
        let mut r = Reader::new(bytes);
        while !r.is_empty() {
            let id = r.varint().map_err(|_| TransportParameterError { id: u64::MAX, what: "is cut off" })?;
            let value = r.counted().map_err(|_| TransportParameterError { id, what: "is cut off" })?;
            seen.insert(id);
            parameters.set(sender, id, value).map_err(|what| TransportParameterError { id, what })?;
        }
        // RFC 9000 §7.4 SHOULD-1: no parameter comes twice, not even an unknown one.
        if let Some(id) = seen.twice() {
            return Err(TransportParameterError { id, what: "comes twice" });
        }
        // draft-ietf-quic-ack-frequency §3: the shortest delay is not longer than the longest.
        if parameters.min_ack_delay_us.is_some_and(|min| min > parameters.max_ack_delay_ms * 1000) {
            return Err(TransportParameterError { id: id::MIN_ACK_DELAY, what: "is longer than max_ack_delay" });
        }
        // draft-ietf-quic-receive-ts §5: the scale is invalid above 20, and means nothing where no times are wanted.
        if parameters.max_receive_timestamps_per_ack.is_none() {
            parameters.receive_timestamps_exponent = 0;
        } else if parameters.receive_timestamps_exponent > 20 {
            return Err(TransportParameterError { id: id::RECEIVE_TIMESTAMPS_EXPONENT, what: "is above 20" });
        }
        Ok(parameters)
    }

    fn set(&mut self, sender: Side, id: u64, value: &[u8]) -> Result<(), &'static str> {
        match id {
            // RFC 9000 §18.2 MUST-4: a server closes the connection when a client sends one of these.
            id::ORIGINAL_DESTINATION_CONNECTION_ID
            | id::STATELESS_RESET_TOKEN
            | id::PREFERRED_ADDRESS
            | id::RETRY_SOURCE_CONNECTION_ID
                if sender.is_client() =>
            {
                return Err("comes from a client");
            }
            id::ORIGINAL_DESTINATION_CONNECTION_ID => self.original_dcid = Some(connection_id(value)?),
            id::MAX_IDLE_TIMEOUT => self.max_idle_timeout_ms = number(value)?,
            id::STATELESS_RESET_TOKEN => {
                let token = <[u8; 16]>::try_from(value).map_err(|_| "does not have 16 bytes")?;
                self.stateless_reset_token = Some(ResetToken(token));
            }
            id::MAX_UDP_PAYLOAD_SIZE => {
                self.max_udp_payload_size = checked(value, |v| v >= 1200, "is below 1200")?;
            }
            id::INITIAL_MAX_DATA => self.initial_max_data = number(value)?,
            id::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL => self.initial_max_stream_data_bidi_local = number(value)?,
            id::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE => self.initial_max_stream_data_bidi_remote = number(value)?,
            id::INITIAL_MAX_STREAM_DATA_UNI => self.initial_max_stream_data_uni = number(value)?,
            // RFC 9000 §4.6 MUST-1: no stream ID exists for more.
            id::INITIAL_MAX_STREAMS_BIDI => {
                self.initial_max_streams_bidi = checked(value, |v| v <= StreamId::MAX_STREAMS, "is above 2^60")?;
            }
            id::INITIAL_MAX_STREAMS_UNI => {
                self.initial_max_streams_uni = checked(value, |v| v <= StreamId::MAX_STREAMS, "is above 2^60")?;
            }
            id::ACK_DELAY_EXPONENT => self.ack_delay_exponent = checked(value, |v| v <= 20, "is above 20")?,
            id::MAX_ACK_DELAY => self.max_ack_delay_ms = checked(value, |v| v < 1 << 14, "is not below 2^14")?,
            id::DISABLE_ACTIVE_MIGRATION => self.disable_active_migration = flag(value)?,
            id::PREFERRED_ADDRESS => self.preferred_address = Some(preferred_address(value)?),
            id::ACTIVE_CONNECTION_ID_LIMIT => {
                // RFC 9000 §18.2 MUST-3: a smaller one from the peer is TRANSPORT_PARAMETER_ERROR
                self.active_connection_id_limit = checked(value, |v| v >= 2, "is below 2")?;
            }
            id::INITIAL_SOURCE_CONNECTION_ID => self.initial_source_cid = Some(connection_id(value)?),
            id::RETRY_SOURCE_CONNECTION_ID => self.retry_source_cid = Some(connection_id(value)?),
            id::MAX_DATAGRAM_FRAME_SIZE => self.max_datagram_frame_size = number(value)?,
            // RFC 9287 §3 MUST-1: with a value it is TRANSPORT_PARAMETER_ERROR
            id::GREASE_QUIC_BIT => self.grease_quic_bit = flag(value)?,
            // draft-ietf-quic-reliable-stream-reset §3: with a value it is TRANSPORT_PARAMETER_ERROR.
            id::RESET_STREAM_AT => self.reset_stream_at = flag(value)?,
            id::VERSION_INFORMATION => self.version_information = Some(version_information(sender, value)?),
            id::MIN_ACK_DELAY => self.min_ack_delay_us = Some(number(value)?),
            id::MAX_RECEIVE_TIMESTAMPS_PER_ACK => self.max_receive_timestamps_per_ack = Some(number(value)?),
            id::RECEIVE_TIMESTAMPS_EXPONENT => self.receive_timestamps_exponent = number(value)?,
            // docs/fec.md §2: fewer are not worth a repair symbol.
            id::FEC_WINDOW => self.fec_window = Some(checked(value, |v| v >= 16, "is below 16")?),
            // RFC 9000 §7.4.2 MUST-1: unknown transport parameters are ignored
            _ => {}
        }
        Ok(())
    }
}

fn number(value: &[u8]) -> Result<u64, &'static str> {
    let mut r = Reader::new(value);
    match r.varint() {
        Ok(number) if r.is_empty() => Ok(number),
        _ => Err("is not one number"),
    }
}

fn checked(value: &[u8], holds: impl Fn(u64) -> bool, otherwise: &'static str) -> Result<u64, &'static str> {
    number(value).and_then(|number| if holds(number) { Ok(number) } else { Err(otherwise) })
}

/// Decodes a parameter without a value, which counts by its presence.
fn flag(value: &[u8]) -> Result<bool, &'static str> {
    if value.is_empty() { Ok(true) } else { Err("has a value") }
}

fn connection_id(value: &[u8]) -> Result<ConnectionId, &'static str> {
    ConnectionId::new(value).ok_or("has more than 20 bytes")
}

// RFC 9368 §4 MUST-5: what cannot be read is TRANSPORT_PARAMETER_ERROR.
// RFC 9368 §4 MUST-4, MUST-6, MUST-7: what is too short, not a multiple of four bytes, or has a version 0 cannot be
// read; nor can that of a client which has not offered what it chose.
/// Numbers of the parameters that have come.
#[derive(Default)]
struct Seen {
    /// Numbers below 64, as bits.
    low: u64,
    /// One of those that came again.
    again: Option<u64>,
    /// The first of the others.
    few: [u64; 12],
    len: usize,
    /// The rest of them: no usual endpoint sends so many.
    more: Vec<u64>,
}

impl Seen {
    fn insert(&mut self, id: u64) {
        if id < 64 {
            self.again = self.again.or((self.low & 1 << id != 0).then_some(id));
            self.low |= 1 << id;
        } else if let Some(place) = self.few.get_mut(self.len) {
            *place = id;
            self.len += 1;
        } else {
            self.more.push(id);
        }
    }

    /// A number that came twice. Sorting keeps a hostile list of thousands cheap.
    fn twice(mut self) -> Option<u64> {
        let few = &mut self.few[..self.len];
        let others = if self.more.is_empty() {
            few
        } else {
            self.more.extend_from_slice(few);
            &mut self.more[..]
        };
        others.sort_unstable();
        self.again.or_else(|| others.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]))
    }
}

fn version_information(sender: Side, value: &[u8]) -> Result<VersionInformation, &'static str> {
    let (versions, rest) = value.as_chunks::<4>();
    let mut versions = versions.iter().map(|version| u32::from_be_bytes(*version));
    let chosen = versions.next().ok_or("is cut off")?;
    let available: Vec<u32> = versions.collect();
    if !rest.is_empty() {
        Err("is not a list of versions")
    } else if chosen == 0 || available.contains(&0) {
        Err("has a version 0")
    } else if sender.is_client() && !available.contains(&chosen) {
        Err("does not offer the version that was chosen")
    } else {
        Ok(VersionInformation { chosen, available })
    }
}

fn preferred_address(value: &[u8]) -> Result<PreferredAddress, &'static str> {
    let mut r = Reader::new(value);
    let address = read_preferred_address(&mut r).map_err(|Truncated| "is cut off")?;
    let address = address.ok_or("has a connection ID of no byte or more than 20")?;
    if r.is_empty() { Ok(address) } else { Err("has bytes after its end") }
}

/// None when the connection ID has a length it must not have.
fn read_preferred_address(r: &mut Reader<'_>) -> Result<Option<PreferredAddress>, Truncated> {
    let ipv4 = SocketAddrV4::new(Ipv4Addr::from(r.fixed::<4>()?), r.u16()?);
    let ipv6 = SocketAddrV6::new(Ipv6Addr::from(r.fixed::<16>()?), r.u16()?, 0, 0);
    let len = r.u8()?;
    let cid = r.bytes(usize::from(len))?;
    let reset_token = ResetToken(r.fixed()?);
    // RFC 9000 §18.2 MUST-1: a server without connection IDs has no preferred address.
    let Some(cid) = ConnectionId::new(cid).filter(|cid| !cid.is_empty()) else { return Ok(None) };
    // RFC 9000 §18.2: a family that is not on offer is all zeros.
    let ipv4 = Some(ipv4).filter(|a| !a.ip().is_unspecified() || a.port() != 0);
    let ipv6 = Some(ipv6).filter(|a| !a.ip().is_unspecified() || a.port() != 0);
    Ok(Some(PreferredAddress { ipv4, ipv6, cid, reset_token }))
}
