//! Messages of SOCKS5 (RFC 1928) and of its user names and passwords (RFC 1929), as a server reads and writes them.
//!
//! Readers take the bytes that have arrived. They return the message and its length, or [`CodecError::Incomplete`] when more bytes are needed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Version of SOCKS.
const VERSION: u8 = 5;
/// Version of the negotiation by user name and password.
const AUTH_VERSION: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
/// The longest name of a host (RFC 1035 §2.3.4, without the root's label).
const MAX_NAME: usize = 253;
/// Method: no authentication.
pub(super) const NO_AUTH: u8 = 0x00;
/// Method: user name and password.
pub(super) const PASSWORD: u8 = 0x02;
/// No method is acceptable.
pub(super) const NO_METHOD: u8 = 0xff;
/// The most bytes of one message: user name and password.
pub(super) const MAX_MESSAGE: usize = 3 + 2 * 255;

/// A message that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CodecError {
    #[error("the message is incomplete")]
    Incomplete,
    #[error("{}", version(*.0))]
    Version(u8),
    #[error("the version of the password's message is {0}, not 1")]
    AuthVersion(u8),
    #[error("no address has type {0}")]
    AddressType(u8),
    #[error("the name of the target is no name of a host")]
    Name,
    #[error("the datagram is a fragment")]
    Fragment,
}

fn version(version: u8) -> String {
    match version {
        4 => "the program speaks SOCKS4, not SOCKS5".to_owned(),
        b'A'..=b'Z' => "the program speaks HTTP, not SOCKS5".to_owned(),
        0x16 => "the program speaks TLS, not SOCKS5".to_owned(),
        other => format!("the program speaks no SOCKS5: its version is {other}"),
    }
}

/// Host as a program names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Host {
    Ip(IpAddr),
    Name(String),
}

/// Host and port as a program names them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: Host,
    pub(super) port: u16,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) command: Command,
    pub(super) address: Address,
}

/// Command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Connect,
    UdpAssociate,
    /// BIND, or no command of RFC 1928.
    Other(u8),
}

/// Outcome of a request (RFC 1928 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ReplyCode {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TtlExpired = 6,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

/// Bytes that are read one after the other.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        let taken = self.bytes.get(self.at..self.at + count).ok_or(CodecError::Incomplete)?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.take(N)?.try_into().map_err(|_| CodecError::Incomplete)
    }

    fn byte(&mut self) -> Result<u8, CodecError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A length of one byte, and as many bytes.
    fn counted(&mut self) -> Result<&'a [u8], CodecError> {
        let length = self.byte()?;
        self.take(length.into())
    }

    fn address(&mut self) -> Result<Address, CodecError> {
        let host = match self.byte()? {
            IPV4 => Host::Ip(Ipv4Addr::from(self.array::<4>()?).into()),
            IPV6 => Host::Ip(Ipv6Addr::from(self.array::<16>()?).into()),
            NAME => Host::Name(name(self.counted()?)?),
            other => return Err(CodecError::AddressType(other)),
        };
        Ok(Address { host, port: u16::from_be_bytes(self.array()?) })
    }
}

/// A name, or an address that is written as one.
fn name(bytes: &[u8]) -> Result<String, CodecError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CodecError::Name)?;
    let is_sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_sane);
    (is_name || text.parse::<Ipv6Addr>().is_ok()).then(|| text.to_owned()).ok_or(CodecError::Name)
}

/// Methods of authentication that a program offers, in its first message.
pub(super) fn read_methods(bytes: &[u8]) -> Result<(&[u8], usize), CodecError> {
    let mut reader = Reader::new(bytes);
    match reader.byte()? {
        VERSION => Ok((reader.counted()?, reader.at)),
        other => Err(CodecError::Version(other)),
    }
}

/// The answer to the first message.
pub(super) fn method(method: u8) -> [u8; 2] {
    [VERSION, method]
}

/// User name and password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Login<'a> {
    pub(super) user: &'a [u8],
    pub(super) password: &'a [u8],
}

/// The message with user name and password.
pub(super) fn read_login(bytes: &[u8]) -> Result<(Login<'_>, usize), CodecError> {
    let mut reader = Reader::new(bytes);
    match reader.byte()? {
        AUTH_VERSION => Ok((Login { user: reader.counted()?, password: reader.counted()? }, reader.at)),
        other => Err(CodecError::AuthVersion(other)),
    }
}

/// The answer to user name and password.
pub(super) fn password_status(is_accepted: bool) -> [u8; 2] {
    [AUTH_VERSION, u8::from(!is_accepted)]
}

/// The request.
pub(super) fn read_request(bytes: &[u8]) -> Result<(Request, usize), CodecError> {
    let mut reader = Reader::new(bytes);
    match reader.byte()? {
        VERSION => {}
        other => return Err(CodecError::Version(other)),
    }
    let [command, _reserved] = reader.array()?;
    let command = match command {
        1 => Command::Connect,
        3 => Command::UdpAssociate,
        other => Command::Other(other),
    };
    let address = reader.address()?;
    Ok((Request { command, address }, reader.at))
}

/// The answer to a request.
pub(super) fn reply(code: ReplyCode, bound: SocketAddr) -> Vec<u8> {
    let mut out = vec![VERSION, code as u8, 0];
    push_address(&mut out, &Address { host: Host::Ip(bound.ip().to_canonical()), port: bound.port() });
    out
}

/// Target and payload of a datagram of a program.
pub(super) fn read_datagram(bytes: &[u8]) -> Result<(Address, &[u8]), CodecError> {
    let mut reader = Reader::new(bytes);
    let [_, _, fragment] = reader.array()?;
    // RFC 1928 §7: an implementation that does not support fragmentation drops fragments.
    if fragment != 0 {
        return Err(CodecError::Fragment);
    }
    let address = reader.address()?;
    Ok((address, &bytes[reader.at..]))
}

/// Header of a datagram for a program, from this address.
pub(super) fn datagram_header(address: &Address) -> Vec<u8> {
    let mut out = vec![0; 3];
    push_address(&mut out, address);
    out
}

fn push_address(out: &mut Vec<u8>, address: &Address) {
    match &address.host {
        Host::Ip(IpAddr::V4(ip)) => {
            out.push(IPV4);
            out.extend(ip.octets());
        }
        Host::Ip(IpAddr::V6(ip)) => {
            out.push(IPV6);
            out.extend(ip.octets());
        }
        Host::Name(name) => {
            out.push(NAME);
            // A name of a program has at most 253 bytes.
            out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            out.extend(name.as_bytes().iter().take(u8::MAX.into()));
        }
    }
    out.extend(address.port.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        let host = host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip);
        Address { host, port }
    }

    /// Checks that a message is read from its bytes with others behind, and that each part of it is incomplete.
    fn reads_only_whole<'a, T: PartialEq + std::fmt::Debug>(
        message: &'a [u8],
        read: impl Fn(&'a [u8]) -> Result<(T, usize), CodecError>,
        expected: T,
    ) {
        assert_eq!(read(message), Ok((expected, message.len())), "{message:?}");
        for end in 0..message.len() {
            assert_eq!(read(&message[..end]), Err(CodecError::Incomplete), "{end} bytes of {message:?}");
        }
    }

    #[test]
    fn messages_are_read_when_they_are_whole() {
        reads_only_whole(&[5, 2, 0, 2], read_methods, &[0, 2][..]);
        reads_only_whole(&[5, 0], read_methods, &[][..]);
        reads_only_whole(b"\x01\x05alice\x03abc", read_login, Login { user: b"alice", password: b"abc" });
        reads_only_whole(b"\x01\x00\x00", read_login, Login { user: b"", password: b"" });
        for (message, command, expected) in [
            (&[5, 1, 0, 1, 192, 0, 2, 1, 0, 80][..], Command::Connect, address("192.0.2.1", 80)),
            (b"\x05\x01\x00\x03\x09a.example\x01\xbb", Command::Connect, address("a.example", 443)),
            (
                b"\x05\x01\x00\x03\x0a2001:db8::\x00\x01",
                Command::Connect,
                Address { host: Host::Name("2001:db8::".into()), port: 1 },
            ),
            (
                &[5, 3, 0, 4, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 53],
                Command::UdpAssociate,
                address("2001:db8::1", 53),
            ),
            (&[5, 2, 0, 1, 0, 0, 0, 0, 0, 0], Command::Other(2), address("0.0.0.0", 0)),
        ] {
            reads_only_whole(message, read_request, Request { command, address: expected });
        }
    }

    #[test]
    fn what_follows_a_message_is_not_its_own() {
        assert_eq!(read_methods(&[5, 1, 0, 5, 1]).unwrap().1, 3);
        assert_eq!(read_request(b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50GET /").unwrap().1, 10);
    }

    #[test]
    fn what_is_no_message_is_refused_at_its_first_wrong_byte() {
        assert_eq!(read_methods(b"GET "), Err(CodecError::Version(b'G')));
        assert_eq!(read_methods(&[4]), Err(CodecError::Version(4)));
        assert_eq!(read_login(&[5]), Err(CodecError::AuthVersion(5)));
        assert_eq!(read_request(&[0]), Err(CodecError::Version(0)));
        assert_eq!(read_request(&[5, 1, 0, 2]), Err(CodecError::AddressType(2)));
        let long = [&[5, 1, 0, 3, 254][..], &[b'a'; 254], &[0, 80]].concat();
        let with_port = |name: &[u8]| [&[5, 1, 0, 3, name.len() as u8][..], name, &[0, 80]].concat();
        for name in [&b""[..], b"a b", b"a/b", b"a:1", b"\xc3\xa4.example", b"\xff", b"a\0", b"[::1]", b"user@a"] {
            assert_eq!(read_request(&with_port(name)), Err(CodecError::Name), "{name:?}");
        }
        assert_eq!(read_request(&long), Err(CodecError::Name));
    }

    #[test]
    fn names_of_the_longest_form_are_carried() {
        let name = "a".repeat(MAX_NAME);
        let message = [&[5, 1, 0, 3, 253][..], name.as_bytes(), &[0, 80]].concat();
        reads_only_whole(&message, read_request, Request { command: Command::Connect, address: address(&name, 80) });
        assert!(message.len() <= MAX_MESSAGE);
    }

    #[test]
    fn headers_of_datagrams_are_read_as_they_are_written() {
        for from in [address("192.0.2.1", 53), address("2001:db8::1", 65_535), address("a.example", 1)] {
            let header = datagram_header(&from);
            for payload in [&b""[..], b"x", &[7; 1_200]] {
                let datagram = [&header, payload].concat();
                assert_eq!(read_datagram(&datagram), Ok((from.clone(), payload)));
            }
            for end in 0..header.len() {
                assert_eq!(read_datagram(&header[..end]), Err(CodecError::Incomplete), "{end} bytes");
            }
            for fragment in [1, 0x80, 0xff] {
                let mut datagram = header.clone();
                datagram[2] = fragment;
                assert_eq!(read_datagram(&datagram), Err(CodecError::Fragment));
            }
        }
    }

    #[test]
    fn replies_have_the_form_of_the_standard() {
        let bound = "127.0.0.1:1080".parse().unwrap();
        assert_eq!(reply(ReplyCode::Succeeded, bound), [5, 0, 0, 1, 127, 0, 0, 1, 4, 56]);
        let mapped = "[::ffff:127.0.0.1]:1".parse().unwrap();
        assert_eq!(reply(ReplyCode::NotAllowed, mapped), [5, 2, 0, 1, 127, 0, 0, 1, 0, 1]);
        assert_eq!(reply(ReplyCode::Succeeded, "[::1]:1".parse().unwrap()).len(), 22);
        assert_eq!((method(PASSWORD), password_status(true), password_status(false)), ([5, 2], [1, 0], [1, 1]));
    }
}
