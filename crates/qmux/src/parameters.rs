//! Transport parameters (§5 of the draft): some of QUIC's, and the size of records.

use transport::{Code, TransportError};
use units::Duration;
use wire::{Reader, StreamId, varint};

use crate::record;

const MAX_IDLE_TIMEOUT: u64 = 0x01;
const INITIAL_MAX_DATA: u64 = 0x04;
const STREAM_DATA_BIDI_LOCAL: u64 = 0x05;
const STREAM_DATA_BIDI_REMOTE: u64 = 0x06;
const STREAM_DATA_UNI: u64 = 0x07;
const STREAMS_BIDI: u64 = 0x08;
const STREAMS_UNI: u64 = 0x09;
const MAX_DATAGRAM_FRAME_SIZE: u64 = 0x20;
const MAX_RECORD_SIZE: u64 = 0x0571_c594_29cd_0845;
/// Prohibited transport parameters of RFC 9000 §18.2.
const PROHIBITED: [u64; 10] = [0x00, 0x02, 0x03, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10];
/// Largest number of parameters that are read; a conforming peer sends fewer.
const MOST: usize = 64;

/// Transport parameters of an endpoint. Defaults are the values of absent parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The connection ends after this silence; zero: never.
    pub max_idle_timeout: Duration,
    /// Bytes of all streams.
    pub initial_max_data: u64,
    /// Bytes of a bidirectional stream that the declaring end opens.
    pub stream_data_bidi_local: u64,
    /// Bytes of a bidirectional stream that the other end opens.
    pub stream_data_bidi_remote: u64,
    /// Bytes of a unidirectional stream.
    pub stream_data_uni: u64,
    /// Bidirectional streams that the other end may open.
    pub streams_bidi: u64,
    /// Unidirectional streams that the other end may open.
    pub streams_uni: u64,
    /// Largest DATAGRAM frame in bytes; 0 when none are taken.
    pub max_datagram_frame_size: u64,
    /// Largest record in bytes of frames.
    pub max_record_size: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            max_idle_timeout: Duration::ZERO,
            initial_max_data: 0,
            stream_data_bidi_local: 0,
            stream_data_bidi_remote: 0,
            stream_data_uni: 0,
            streams_bidi: 0,
            streams_uni: 0,
            max_datagram_frame_size: 0,
            max_record_size: record::DEFAULT_MAX,
        }
    }
}

fn wrong(reason: impl Into<std::borrow::Cow<'static, str>>) -> TransportError {
    TransportError::new(Code::TRANSPORT_PARAMETER_ERROR, reason)
}

impl Parameters {
    fn fields(&self) -> [(u64, u64, u64); 9] {
        let idle = u64::try_from(self.max_idle_timeout.as_millis()).unwrap_or(varint::MAX).min(varint::MAX);
        [
            (MAX_IDLE_TIMEOUT, idle, 0),
            (INITIAL_MAX_DATA, self.initial_max_data, 0),
            (STREAM_DATA_BIDI_LOCAL, self.stream_data_bidi_local, 0),
            (STREAM_DATA_BIDI_REMOTE, self.stream_data_bidi_remote, 0),
            (STREAM_DATA_UNI, self.stream_data_uni, 0),
            (STREAMS_BIDI, self.streams_bidi, 0),
            (STREAMS_UNI, self.streams_uni, 0),
            (MAX_DATAGRAM_FRAME_SIZE, self.max_datagram_frame_size, 0),
            (MAX_RECORD_SIZE, self.max_record_size, record::DEFAULT_MAX),
        ]
    }

    /// Appends the encoding (RFC 9000 §18); what is the default is left out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for (id, value, default) in self.fields() {
            if value != default {
                varint::push(out, id);
                varint::push(out, varint::len(value) as u64);
                varint::push(out, value);
            }
        }
    }

    /// Reads the encoding.
    ///
    /// # Errors
    /// TRANSPORT_PARAMETER_ERROR.
    pub fn decode(bytes: &[u8]) -> Result<Self, TransportError> {
        let mut this = Self::default();
        let mut reader = Reader::new(bytes);
        let mut seen = Vec::new();
        while !reader.is_empty() {
            let cut = |_| wrong("a transport parameter is cut off");
            let id = reader.varint().map_err(cut)?;
            let value = reader.counted().map_err(cut)?;
            // draft-ietf-quic-qmux §5.1 MUST: what belongs to packets and paths is an error.
            if PROHIBITED.contains(&id) {
                return Err(wrong(format!("transport parameter {id:#x} has no place in QMux")));
            }
            // RFC 9000 §7.4: each comes once.
            if seen.contains(&id) || seen.len() >= MOST {
                return Err(wrong(format!("transport parameter {id:#x} again, or too many")));
            }
            seen.push(id);
            if id != MAX_IDLE_TIMEOUT && this.field(id).is_none() {
                continue;
            }
            let mut value = Reader::new(value);
            let number = value.varint().ok().filter(|_| value.is_empty());
            let number = number.ok_or_else(|| wrong(format!("transport parameter {id:#x} is no number")))?;
            match id {
                MAX_IDLE_TIMEOUT => this.max_idle_timeout = Duration::from_millis(number),
                // RFC 9000 §4.6: no stream could have the number.
                STREAMS_BIDI | STREAMS_UNI if number > StreamId::MAX_STREAMS => {
                    return Err(wrong("more than 2^60 streams"));
                }
                // draft-ietf-quic-qmux §5.2 MUST: everybody takes the default.
                MAX_RECORD_SIZE if number < record::DEFAULT_MAX => {
                    return Err(wrong(format!("records of at most {number} bytes")));
                }
                _ => {}
            }
            if let Some(field) = this.field(id) {
                *field = number;
            }
        }
        Ok(this)
    }

    /// Field of a parameter; `None` for an unknown one, which is ignored.
    fn field(&mut self, id: u64) -> Option<&mut u64> {
        Some(match id {
            INITIAL_MAX_DATA => &mut self.initial_max_data,
            STREAM_DATA_BIDI_LOCAL => &mut self.stream_data_bidi_local,
            STREAM_DATA_BIDI_REMOTE => &mut self.stream_data_bidi_remote,
            STREAM_DATA_UNI => &mut self.stream_data_uni,
            STREAMS_BIDI => &mut self.streams_bidi,
            STREAMS_UNI => &mut self.streams_uni,
            MAX_DATAGRAM_FRAME_SIZE => &mut self.max_datagram_frame_size,
            MAX_RECORD_SIZE => &mut self.max_record_size,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(id: u64, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint::push(&mut out, id);
        varint::push(&mut out, value.len() as u64);
        out.extend_from_slice(value);
        out
    }

    #[test]
    fn what_is_declared_is_read() {
        let declared = Parameters {
            max_idle_timeout: Duration::from_secs(30),
            initial_max_data: 1 << 20,
            stream_data_bidi_local: 1,
            stream_data_bidi_remote: 70_000,
            stream_data_uni: 3,
            streams_bidi: 4,
            streams_uni: 5,
            max_datagram_frame_size: 1_200,
            max_record_size: 20_000,
        };
        for parameters in [declared, Parameters::default()] {
            let mut bytes = Vec::new();
            parameters.encode(&mut bytes);
            // RFC 9000 §18.1: reserved ones are ignored.
            bytes.extend(raw(27 + 31 * 9, b"grease"));
            assert_eq!(Parameters::decode(&bytes), Ok(parameters));
        }
    }

    #[test]
    fn what_is_wrong_is_an_error_of_its_kind() {
        let small = [0x7f, 0xfd];
        let cases = PROHIBITED.map(|id| raw(id, &[0])).into_iter().chain([
            raw(INITIAL_MAX_DATA, &[]),
            raw(INITIAL_MAX_DATA, &[1, 2]),
            raw(STREAMS_BIDI, &[0xff; 8]),
            raw(MAX_RECORD_SIZE, &small),
            [raw(INITIAL_MAX_DATA, &[1]), raw(INITIAL_MAX_DATA, &[1])].concat(),
            [raw(200, &[1]), raw(200, &[1])].concat(),
            vec![4, 9, 1],
            vec![0x40],
            (0..100).flat_map(|id| raw(1_000 + id, &[])).collect(),
        ]);
        for bytes in cases {
            let error = Parameters::decode(&bytes).unwrap_err();
            assert_eq!(error.code, Code::TRANSPORT_PARAMETER_ERROR, "{bytes:?}");
        }
        assert!(Parameters::decode(&raw(MAX_RECORD_SIZE, &[0x7f, 0xfe])).is_ok());
    }
}
