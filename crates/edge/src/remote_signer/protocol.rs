//! Messages between a gateway and its signer, on a connection of TLS 1.3 with certificates on both sides.
//!
//! Each message is a frame: its length in four bytes, then its content. The signer begins with the [`Keys`] that it has. From then on the
//! gateway sends requests, as many as it likes, and the signer answers them in any order; what is ready at the same time goes out in one
//! write.
//!
//! A signer signs handshakes and nothing else: [`is_handshake`] refuses every message that a TLS server would not sign.

use aws_lc_rs::digest::{SHA256, digest};

/// Protocol by which both sides know each other (ALPN).
pub(crate) const ALPN: &[u8] = b"tiderace-signer/1";
/// Most bytes of a message to be signed.
pub(crate) const MAX_MESSAGE: usize = 1_024;
/// Most bytes of a frame with a request or an answer.
pub(crate) const MAX_FRAME: usize = 2_048;
/// Most bytes of the frame with the keys.
pub(crate) const MAX_KEYS_FRAME: usize = 256 * 1024;
/// Bytes of a request in front of its message: number, key, scheme.
const REQUEST: usize = 4 + 32 + 2;
/// Bytes in front of a frame.
const LENGTH: usize = 4;

/// Name of a key: the SHA-256 of its public half, as certificates have it (SubjectPublicKeyInfo).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyId(pub(crate) [u8; 32]);

impl KeyId {
    /// Name of the key with this public half, in DER.
    pub(crate) fn of(public: &[u8]) -> Self {
        let mut id = [0; 32];
        id.copy_from_slice(digest(&SHA256, public).as_ref());
        Self(id)
    }
}

impl std::fmt::Display for KeyId {
    /// First bytes, which are enough for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Request for a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Number that the answer repeats.
    pub(crate) number: u32,
    pub(crate) key: KeyId,
    /// Signature scheme of the TLS registry.
    pub(crate) scheme: u16,
    /// Message as a whole, not hashed.
    pub(crate) message: Vec<u8>,
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Signature(Vec<u8>),
    /// Key that the signer does not have.
    UnknownKey,
    /// Message that no handshake has, or a scheme that the key does not have.
    Refused,
    /// Key in a device that does not sign.
    Failed,
}

/// Broken frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message that the protocol does not have")]
pub(crate) struct Malformed;

/// Appends a frame.
fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; LENGTH]);
    write(out);
    let len = u32::try_from(out.len() - start - LENGTH).unwrap_or(u32::MAX);
    out[start..start + LENGTH].copy_from_slice(&len.to_be_bytes());
}

/// Takes a whole frame from the beginning of `bytes`: its content, and the bytes of all of it. `None` when more has to come.
///
/// # Errors
/// When the frame is longer than `most`.
pub(crate) fn next_frame(bytes: &[u8], most: usize) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let len = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Malformed)?;
    if len > most {
        return Err(Malformed);
    }
    Ok(rest.get(..len).map(|content| (content, LENGTH + len)))
}

impl Request {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| {
            out.extend(self.number.to_be_bytes());
            out.extend(self.key.0);
            out.extend(self.scheme.to_be_bytes());
            out.extend(&self.message);
        });
    }

    pub(crate) fn decode(content: &[u8]) -> Result<Self, Malformed> {
        let (head, message) = content.split_first_chunk::<REQUEST>().ok_or(Malformed)?;
        if message.len() > MAX_MESSAGE {
            return Err(Malformed);
        }
        let mut key = [0; 32];
        key.copy_from_slice(&head[4..36]);
        Ok(Self {
            number: u32::from_be_bytes([head[0], head[1], head[2], head[3]]),
            key: KeyId(key),
            scheme: u16::from_be_bytes([head[36], head[37]]),
            message: message.to_vec(),
        })
    }
}

impl Answer {
    pub(crate) fn encode(&self, number: u32, out: &mut Vec<u8>) {
        frame(out, |out| {
            out.extend(number.to_be_bytes());
            match self {
                Self::Signature(signature) => {
                    out.push(0);
                    out.extend(signature);
                }
                Self::UnknownKey => out.push(1),
                Self::Refused => out.push(2),
                Self::Failed => out.push(3),
            }
        });
    }

    /// Number of the request, and its outcome.
    pub(crate) fn decode(content: &[u8]) -> Result<(u32, Self), Malformed> {
        let (number, rest) = content.split_first_chunk::<4>().ok_or(Malformed)?;
        let answer = match rest.split_first() {
            Some((0, signature)) => Self::Signature(signature.to_vec()),
            Some((1, [])) => Self::UnknownKey,
            Some((2, [])) => Self::Refused,
            Some((3, [])) => Self::Failed,
            _ => return Err(Malformed),
        };
        Ok((u32::from_be_bytes(*number), answer))
    }
}

/// Keys of a signer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys(pub(crate) Vec<KeyId>);

impl Keys {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| self.0.iter().for_each(|key| out.extend(key.0)));
    }

    pub(crate) fn decode(content: &[u8]) -> Result<Self, Malformed> {
        let (keys, rest) = content.as_chunks::<32>();
        if rest.is_empty() { Ok(Self(keys.iter().map(|key| KeyId(*key)).collect())) } else { Err(Malformed) }
    }
}

/// Context of a server's signature in TLS 1.3 (RFC 8446 §4.4.3), behind 64 spaces.
const CONTEXT: &[u8] = b"TLS 1.3, server CertificateVerify\0";
/// Bytes of the random values of both sides, which begin what a server signs in TLS 1.2.
const RANDOMS: usize = 64;

/// Returns whether a message is one that a TLS server signs in its handshake: CertificateVerify of TLS 1.3, or the parameters of an
/// elliptic curve in TLS 1.2 (RFC 8422 §5.4).
pub(crate) fn is_handshake(message: &[u8]) -> bool {
    let Some((front, rest)) = message.split_at_checked(RANDOMS) else { return false };
    if front.iter().all(|byte| *byte == b' ') {
        // The hash of the transcript: SHA-256, SHA-384 or SHA-512.
        return rest.strip_prefix(CONTEXT).is_some_and(|hash| matches!(hash.len(), 32 | 48 | 64));
    }
    // A named curve, and a point with its length.
    matches!(rest, [3, _, _, len, point @ ..] if !point.is_empty() && point.len() == usize::from(*len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let request = Request { number: 7, key: KeyId::of(b"public"), scheme: 0x0804, message: vec![9; 130] };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        request.encode(&mut bytes);
        let (content, len) = next_frame(&bytes, MAX_FRAME).unwrap().unwrap();
        assert_eq!((Request::decode(content), len * 2), (Ok(request), bytes.len()));
        assert!((0..len).all(|cut| next_frame(&bytes[..cut], MAX_FRAME) == Ok(None)));
        assert_eq!(next_frame(&[0, 0, 8, 1], MAX_FRAME), Err(Malformed));
        for answer in [
            Answer::Signature(vec![1; 256]),
            Answer::Signature(Vec::new()),
            Answer::UnknownKey,
            Answer::Refused,
            Answer::Failed,
        ] {
            let mut bytes = Vec::new();
            answer.encode(5, &mut bytes);
            let (content, _) = next_frame(&bytes, MAX_FRAME).unwrap().unwrap();
            assert_eq!(Answer::decode(content), Ok((5, answer)));
        }
        let keys = Keys(vec![KeyId::of(b"a"), KeyId::of(b"b")]);
        let mut bytes = Vec::new();
        keys.encode(&mut bytes);
        let (content, _) = next_frame(&bytes, MAX_KEYS_FRAME).unwrap().unwrap();
        assert_eq!(Keys::decode(content), Ok(keys));
        for broken in [&[][..], &[0; 4], &[0, 0, 0, 1, 1, 1], &[0, 0, 0, 1, 9]] {
            assert_eq!(Answer::decode(broken), Err(Malformed));
        }
        assert_eq!((Request::decode(&[0; 37]), Keys::decode(&[0; 33])), (Err(Malformed), Err(Malformed)));
        assert_eq!(Request::decode(&[0; REQUEST + MAX_MESSAGE + 1]), Err(Malformed));
    }

    #[test]
    fn nothing_but_handshakes_is_signed() {
        let spaces = [b' '; 64];
        let tls13 = |context: &[u8], hash: usize| [&spaces, context, &vec![7; hash]].concat();
        assert!([32, 48, 64].iter().all(|len| is_handshake(&tls13(CONTEXT, *len))));
        let tls12 = |head: [u8; 4], point: usize| [&[5; 64][..], &head, &vec![4; point]].concat();
        assert!(is_handshake(&tls12([3, 0, 29, 32], 32)) && is_handshake(&tls12([3, 0, 23, 65], 65)));
        for other in [
            tls13(b"TLS 1.3, client CertificateVerify\0", 32),
            tls13(CONTEXT, 31),
            tls13(CONTEXT, 0),
            tls12([3, 0, 29, 32], 33),
            tls12([3, 0, 29, 0], 0),
            tls12([1, 0, 29, 32], 32),
            b"a text of somebody".to_vec(),
            vec![5; 64],
            Vec::new(),
        ] {
            assert!(!is_handshake(&other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((content, _))) = next_frame(&bytes, MAX_FRAME) {
                let _ = (Request::decode(content), Answer::decode(content), Keys::decode(content));
            }
            let _ = (Request::decode(&bytes), Answer::decode(&bytes), is_handshake(&bytes));
        }
    }
}
