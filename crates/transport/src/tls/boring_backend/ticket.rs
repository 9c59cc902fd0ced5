//! Bytes of a client's ticket: BoringSSL's session, and the state that QUIC remembers with it.

use wire::Reader;

/// Begins every ticket of this backend, in this form.
const MAGIC: [u8; 5] = *b"bssl\x01";

/// Session that a client resumes, with the remembered parameters of RFC 9000 §7.4.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    /// QUIC version of the ticket's connection.
    pub(super) version: u32,
    /// The server's transport parameters of then (RFC 9000 §7.4.1).
    pub(super) parameters: Vec<u8>,
    /// The session in BoringSSL's form.
    pub(super) session: Vec<u8>,
}

impl Remembered {
    /// `None` when there is more than a ticket has room for.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&u16::try_from(self.parameters.len()).ok()?.to_be_bytes());
        out.extend_from_slice(&self.parameters);
        out.extend_from_slice(&self.session);
        Some(out)
    }

    /// `None` if the bytes are no ticket.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes.strip_prefix(&MAGIC)?);
        let version = u32::from_be_bytes(r.bytes(4).ok()?.try_into().ok()?);
        let len = r.u16().ok()?;
        let parameters = r.bytes(len.into()).ok()?.to_vec();
        Some(Self { version, parameters, session: r.bytes(r.remaining()).ok()?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let ticket = Remembered { version: 1, parameters: vec![1, 2, 3], session: vec![4; 300] };
        let bytes = ticket.encode().unwrap();
        assert_eq!(Remembered::decode(&bytes), Some(ticket));
        assert!((0..MAGIC.len() + 4 + 2 + 3).all(|len| Remembered::decode(&bytes[..len]).is_none()));
        assert_eq!(Remembered::decode(b"something else altogether"), None);
    }
}
