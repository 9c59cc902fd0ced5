//! Reads those parts of a ClientHello by which a server chooses a configuration.
//!
//! It checks only these parts; the backend checks everything in the same bytes afterwards.

use wire::{Reader, Truncated};

use super::{TlsError, alert};

/// A ClientHello longer than this is refused. With ML-KEM and a ticket it has about 2 KiB; larger post-quantum keys and
/// Encrypted ClientHello stay far below.
pub const MAX_CLIENT_HELLO: usize = 32 * 1024;

const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ALPN: u16 = 16;
const EXTENSION_PRE_SHARED_KEY: u16 = 41;
const EXTENSION_EARLY_DATA: u16 = 42;
const EXTENSION_QUIC_PARAMETERS: u16 = 57;
const NAME_TYPE_HOST: u8 = 0;

/// Returns whether `bytes` begin a message whose end is not among them. What is refused anyway counts as whole.
pub(crate) fn is_partial(bytes: &[u8]) -> bool {
    match bytes {
        [_, high, middle, low, body @ ..] => {
            let len = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            len <= MAX_CLIENT_HELLO && body.len() < len
        }
        _ => true,
    }
}

/// The QUIC transport parameters in a whole ClientHello (RFC 9001 §8.2); `None` when there are none or it cannot be read.
pub(crate) fn transport_parameters(bytes: &[u8]) -> Option<Vec<u8>> {
    let body = whole(bytes).ok()??;
    let mut found = None;
    let read = each_extension(body, |ty, value| {
        if ty == EXTENSION_QUIC_PARAMETERS && found.is_none() {
            found = Some(value.to_vec());
        }
        Ok(())
    });
    read.ok()?;
    found
}

/// Contents of a ClientHello that a choice of configuration can depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The server name, in the client's spelling.
    pub server_name: Option<String>,
    /// Application protocols, the preferred one first.
    pub alpn: Vec<Vec<u8>>,
    /// Numbers of the cipher suites, the preferred one first.
    pub cipher_suites: Vec<u16>,
    /// The client sends early data.
    pub early_data: bool,
    /// The first session that the client offers to resume; early data belongs to it (RFC 8446 §4.2.10).
    pub ticket: Option<OfferedTicket>,
}

/// A ticket that a client offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedTicket {
    /// Ticket as the server gave it to the client.
    pub identity: Vec<u8>,
    /// Age of the ticket at the client in milliseconds, plus the ticket's `ticket_age_add` (RFC 8446 §4.2.11.1).
    pub obfuscated_age_ms: u32,
}

impl ClientHello {
    /// Parses the first handshake bytes of a client. `None` while the message is not complete.
    pub fn peek(bytes: &[u8]) -> Result<Option<Self>, TlsError> {
        whole(bytes)?.map(|body| Self::parse(body).map_err(unreadable)).transpose()
    }

    fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut hello = Self::default();
        let suites = each_extension(body, |ty, value| {
            match ty {
                EXTENSION_SERVER_NAME => hello.server_name = server_name(value)?,
                EXTENSION_ALPN => hello.alpn = protocols(value)?,
                EXTENSION_EARLY_DATA => hello.early_data = true,
                EXTENSION_PRE_SHARED_KEY => hello.ticket = first_ticket(value)?,
                _ => {}
            }
            Ok(())
        })?;
        hello.cipher_suites = suites.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        Ok(hello)
    }
}

/// Offer of early data in a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EarlyOffer {
    /// The client sends early data.
    pub(super) is_made: bool,
    /// Session that it belongs to.
    pub(super) ticket: Option<OfferedTicket>,
}

impl EarlyOffer {
    /// As [`ClientHello::peek`], of the offer alone.
    pub(super) fn peek(bytes: &[u8]) -> Result<Option<Self>, TlsError> {
        let read = |body| {
            let mut offer = Self::default();
            each_extension(body, |ty, value| {
                match ty {
                    EXTENSION_EARLY_DATA => offer.is_made = true,
                    EXTENSION_PRE_SHARED_KEY => offer.ticket = first_ticket(value)?,
                    _ => {}
                }
                Ok(())
            })?;
            Ok(offer)
        };
        whole(bytes)?.map(|body| read(body).map_err(unreadable)).transpose()
    }
}

/// The message after its head; `None` while it is not complete.
fn whole(bytes: &[u8]) -> Result<Option<&[u8]>, TlsError> {
    let Some((&ty, rest)) = bytes.split_first() else { return Ok(None) };
    if ty != CLIENT_HELLO {
        return Err(TlsError::alert(alert::UNEXPECTED_MESSAGE, "the first message is no ClientHello"));
    }
    let Some((&[high, middle, low], body)) = rest.split_first_chunk() else { return Ok(None) };
    let len = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    if len > MAX_CLIENT_HELLO {
        return Err(TlsError::alert(alert::DECODE_ERROR, format!("a ClientHello of {len} bytes")));
    }
    Ok(body.get(..len))
}

fn unreadable(Malformed: Malformed) -> TlsError {
    TlsError::alert(alert::DECODE_ERROR, "the ClientHello cannot be read")
}

/// Gives number and value of every extension to `take`; returns the cipher suites.
// RFC 8446 §4.1.2: version, random, session ID, suites, compression methods, extensions.
fn each_extension<'a>(
    body: &'a [u8],
    mut take: impl FnMut(u16, &'a [u8]) -> Result<(), Malformed>,
) -> Result<&'a [u8], Malformed> {
    let mut r = Reader::new(body);
    r.bytes(2 + 32)?;
    short(&mut r)?;
    let suites = long(&mut r)?;
    if suites.len() % 2 != 0 {
        return Err(Malformed);
    }
    short(&mut r)?;
    let mut extensions = Reader::new(long(&mut r)?);
    while !extensions.is_empty() {
        let ty = extensions.u16()?;
        take(ty, long(&mut extensions)?)?;
    }
    if r.is_empty() { Ok(suites) } else { Err(Malformed) }
}

struct Malformed;

impl From<Truncated> for Malformed {
    fn from(_: Truncated) -> Self {
        Self
    }
}

/// A value with its length in one byte before it.
fn short<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let len = usize::from(r.u8()?);
    Ok(r.bytes(len)?)
}

/// A value with its length in two bytes before it.
fn long<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let len = usize::from(r.u16()?);
    Ok(r.bytes(len)?)
}

// RFC 6066 §3: a list of names with their types; only host names exist.
fn server_name(value: &[u8]) -> Result<Option<String>, Malformed> {
    let mut r = Reader::new(value);
    let mut names = Reader::new(long(&mut r)?);
    while !names.is_empty() {
        let ty = names.u8()?;
        let name = long(&mut names)?;
        if ty == NAME_TYPE_HOST {
            return match std::str::from_utf8(name) {
                Ok(name) if name.is_ascii() && !name.is_empty() => Ok(Some(name.to_owned())),
                _ => Err(Malformed),
            };
        }
    }
    Ok(None)
}

// RFC 7301 §3.1: a list of protocol names, none of them empty.
fn protocols(value: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut r = Reader::new(value);
    let mut list = Reader::new(long(&mut r)?);
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let name = short(&mut list)?;
        if name.is_empty() {
            return Err(Malformed);
        }
        protocols.push(name.to_vec());
    }
    Ok(protocols)
}

// RFC 8446 §4.2.11: a list of identities with their ages, then one of binders.
fn first_ticket(value: &[u8]) -> Result<Option<OfferedTicket>, Malformed> {
    let mut r = Reader::new(value);
    let mut identities = Reader::new(long(&mut r)?);
    let identity = long(&mut identities)?.to_vec();
    let age = identities.bytes(4)?.try_into().map_err(|_| Malformed)?;
    Ok(Some(OfferedTicket { identity, obfuscated_age_ms: u32::from_be_bytes(age) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ClientHello of RFC 9001 §A.2, without the frame header around it.
    const SAMPLE: &str = "010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c0000041301130201\
        0000c000000010000e00000b6578616d706c652e636f6dff01000100000a00080006001d0017001800100007000504616c706e00050005\
        01000000000033002600240\
        01d00209370b2c9caa47fbabaf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b0003020304000d0010000e0403050306030\
        203080408050806002d00020101001c00024001003900320408ffffffffffffffff05048000ffff07048000ffff0801100104800075300\
        901100f088394c8f03e51570806048000ffff";

    fn sample() -> Vec<u8> {
        let digits: Vec<u8> = SAMPLE.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn the_sample_of_the_standard() {
        let hello = ClientHello::peek(&sample()).unwrap().unwrap();
        assert_eq!(hello.server_name.as_deref(), Some("example.com"));
        assert_eq!(hello.alpn, [b"alpn"]);
        assert_eq!(hello.cipher_suites, [0x1301, 0x1302]);
        assert!(!hello.early_data && hello.ticket.is_none());
    }

    #[test]
    fn every_prefix_is_incomplete_and_no_change_panics() {
        let sample = sample();
        for len in 0..sample.len() {
            assert_eq!(ClientHello::peek(&sample[..len]), Ok(None), "{len} bytes");
        }
        for i in 0..sample.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = sample.clone();
                changed[i] ^= change;
                let _ = ClientHello::peek(&changed);
            }
        }
    }

    #[test]
    fn other_messages_and_huge_ones_are_refused() {
        let error = ClientHello::peek(&[2, 0, 0, 4]).unwrap_err();
        assert_eq!(error.code, crate::error::Code::crypto(alert::UNEXPECTED_MESSAGE));
        let error = ClientHello::peek(&[1, 1, 0, 0]).unwrap_err();
        assert_eq!(error.code, crate::error::Code::crypto(alert::DECODE_ERROR));
    }
}
