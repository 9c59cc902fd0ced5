//! SETTINGS: parameters that endpoints exchange at the beginning of a connection (RFC 9114 §7.2.4).

use crate::{
    error::{Code, Violation},
    frame,
};

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
const QPACK_BLOCKED_STREAMS: u64 = 0x7;
/// RFC 9220 §5.
const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
/// RFC 9297 §5.1.
const H3_DATAGRAM: u64 = 0x33;
/// RFC 9114 §7.2.4.1 SHOULD-1: a reserved setting without meaning, so that peers ignore unknown ones.
const RESERVED: u64 = 0x1f * 7 + 0x21;

/// Settings kept for extensions.
const MAX_OTHERS: usize = 32;

/// Known settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Bytes that the dynamic table of the decoder may have (RFC 9204 §5).
    pub(crate) table_capacity: u64,
    /// Bytes that a field section may have, as RFC 9114 §4.2.2 counts them.
    pub(crate) max_fields: u64,
    /// Extended CONNECT is understood (RFC 9220).
    pub(crate) connect_protocol: bool,
    /// HTTP datagrams in QUIC's are understood (RFC 9297).
    pub(crate) datagrams: bool,
}

impl Settings {
    /// Values for a peer that sends none.
    pub(crate) const DEFAULT: Self =
        Self { table_capacity: 0, max_fields: u64::MAX, connect_protocol: false, datagrams: false };

    /// Appends the frame, with `others` behind what HTTP/3 defines, as identifier and value.
    pub(crate) fn write(&self, others: &[(u64, u64)], out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        let mut put = |id, value| {
            wire::varint::push(&mut payload, id);
            wire::varint::push(&mut payload, value);
        };
        // RFC 9114 §7.2.4.2 MUST-4, RFC 9114 §7.1 MUST-1: all that is not as the default, and nothing else
        put(MAX_FIELD_SECTION_SIZE, self.max_fields.min(wire::varint::MAX));
        // QPACK_BLOCKED_STREAMS is left at 0: no stream of ours waits for what another one has lost.
        put(QPACK_MAX_TABLE_CAPACITY, self.table_capacity);
        if self.connect_protocol {
            put(ENABLE_CONNECT_PROTOCOL, 1);
        }
        // RFC 9297 §2.1.1 MUST-1, RECOMMENDED-1: who takes datagrams says so, whatever the requests are
        if self.datagrams {
            put(H3_DATAGRAM, 1);
        }
        for (id, value) in others {
            put(*id, *value);
        }
        put(RESERVED, 0);
        // RFC 9114 §7.2.4 MUST NOT-3, RFC 9114 §7.2.4.1 MUST NOT-2: each of them once, and none of HTTP/2
        frame::write_head(out, frame::SETTINGS, payload.len() as u64);
        out.extend(payload);
    }

    /// Reads the payload of the frame: the settings, and those that HTTP/3 does not define, as identifier and value, up to a limit.
    ///
    /// # Errors
    /// H3_FRAME_ERROR if it is truncated, H3_SETTINGS_ERROR for a repeated or forbidden setting.
    pub(crate) fn read(payload: &[u8]) -> Result<(Self, Vec<(u64, u64)>), Violation> {
        let (mut settings, mut others) = (Self::DEFAULT, Vec::new());
        let mut seen = Vec::new();
        let mut reader = wire::Reader::new(payload);
        while !reader.is_empty() {
            // RFC 9114 §7.1 MUST-2
            let cut = |_| Violation { code: Code::FRAME_ERROR, reason: "settings that are cut off".to_owned() };
            let (id, value) = (reader.varint().map_err(cut)?, reader.varint().map_err(cut)?);
            let wrong = |what: &str| {
                let reason = format!("setting {id:#x}, value {value}, {what}");
                Violation { code: Code::SETTINGS_ERROR, reason }
            };
            if seen.contains(&id) {
                return Err(wrong("is there twice"));
            }
            // More are read, and not remembered.
            if seen.len() < 64 {
                seen.push(id);
            }
            // RFC 9297 §2.1.1 MUST-2
            let flag = || match value {
                0 => Ok(false),
                1 => Ok(true),
                _ => Err(wrong("is neither 0 nor 1")),
            };
            match id {
                QPACK_MAX_TABLE_CAPACITY => settings.table_capacity = value,
                MAX_FIELD_SECTION_SIZE => settings.max_fields = value,
                ENABLE_CONNECT_PROTOCOL => settings.connect_protocol = flag()?,
                H3_DATAGRAM => settings.datagrams = flag()?,
                // RFC 9114 §7.2.4.1 MUST-1: those of HTTP/2 that have no equivalent
                0x0 | 0x2..=0x5 => return Err(wrong("belongs to HTTP/2")),
                // How many streams may wait for the encoder's stream means nothing to an encoder that makes none wait.
                QPACK_BLOCKED_STREAMS => {}
                // RFC 9114 §7.2.4 MUST-4, RFC 9114 §7.2.4.1 MUST NOT-1: what is not known, or reserved, means nothing here
                _ if others.len() < MAX_OTHERS => others.push((id, value)),
                _ => {}
            }
        }
        Ok((settings, others))
    }
}

/// Settings of the peer (RFC 9114 §7.2.4), as far as extensions need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Extended CONNECT is understood (RFC 9220).
    pub connect_protocol: bool,
    /// HTTP datagrams are understood (RFC 9297).
    pub datagrams: bool,
    /// Settings that HTTP/3 does not define, as identifier and value; of many, the first.
    pub others: Vec<(u64, u64)>,
}

impl PeerSettings {
    /// Value of a setting that HTTP/3 does not define; 0 when it was not sent.
    pub fn get(&self, id: u64) -> u64 {
        self.others.iter().find(|(of, _)| *of == id).map_or(0, |(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9114 §7.1 MUST-1, RFC 9114 §7.2.4 MUST NOT-3, RFC 9114 §7.2.4.1 MUST NOT-2, SHOULD-1
    #[test]
    fn what_is_written_is_read() {
        for (connect_protocol, datagrams) in [(false, true), (true, false)] {
            let settings = Settings { table_capacity: 4096, max_fields: 65_536, connect_protocol, datagrams };
            let mut out = Vec::new();
            settings.write(&[(0x2c7c_f000, 1)], &mut out);
            // The last one is reserved, and means nothing to whoever reads it.
            assert_eq!(out[out.len() - 3..], [0x40, 0xfa, 0x00]);
            assert_eq!(usize::from(out[1]), out.len() - 2);
            assert_eq!(Settings::read(&out[2..]).unwrap(), (settings, vec![(0x2c7c_f000, 1), (RESERVED, 0)]));
        }
        assert_eq!(Settings::read(&[]).unwrap(), (Settings::DEFAULT, vec![]));
    }

    /// RFC 9114 §7.1 MUST-2, RFC 9114 §7.2.4.1 MUST-1
    /// RFC 9297 §2.1.1 MUST-2
    #[test]
    fn what_makes_no_sense_is_refused() {
        for (payload, code) in [
            (&[0x01, 0x00, 0x01, 0x00][..], Code::SETTINGS_ERROR),
            (&[0x21, 0x00, 0x21, 0x01], Code::SETTINGS_ERROR),
            (&[0x02, 0x00], Code::SETTINGS_ERROR),
            (&[0x08, 0x02], Code::SETTINGS_ERROR),
            (&[0x33, 0x02], Code::SETTINGS_ERROR),
            (&[0x01], Code::FRAME_ERROR),
            (&[0x01, 0x40], Code::FRAME_ERROR),
        ] {
            assert_eq!(Settings::read(payload).unwrap_err().code, code, "{payload:?}");
        }
    }
}
