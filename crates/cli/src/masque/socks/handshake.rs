//! Handshake with a program: method, password where one is asked for, request.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::codec::{self, Address, CodecError, Command, Login, MAX_MESSAGE, ReplyCode, Request};
use crate::{address, failure::Failure};

/// Time for a program to read why it was refused.
const FAREWELL: Duration = Duration::from_secs(1);
/// The most bytes that are read for this.
const FAREWELL_BYTES: u64 = 64 * 1024;

/// End of a handshake without a request that can be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("the program offers no method of authentication that is accepted here")]
    Method,
    #[error("wrong user name or password")]
    Password,
    #[error("the command {0} is not supported")]
    Command(u8),
    #[error("the target has no port")]
    Port,
    #[error("the program left during the handshake")]
    Left,
    #[error("the connection of the program broke off: {}", address::plain(.0))]
    Io(#[from] io::Error),
}

/// Users and passwords that are accepted; empty where none is asked for.
#[derive(Default)]
pub(super) struct Users(Vec<(Vec<u8>, Vec<u8>)>);

impl Users {
    /// Reads a file with lines of the form `USER:PASSWORD`.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let hint = "--users takes a file with lines of the form USER:PASSWORD, each part of 1 to 255 bytes";
        let wrong = |what: &str| Failure::new(format_args!("{}{what}", path.display())).hint(hint);
        let text = std::fs::read(path).map_err(|error| {
            Failure::new(format_args!("cannot read {}: {}", path.display(), address::plain(&error))).hint(hint)
        })?;
        let mut users = Vec::new();
        let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            let mut parts = line.splitn(2, |byte| *byte == b':');
            let (user, password) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            if ![user, password].iter().all(|part| (1..=255).contains(&part.len())) {
                return Err(wrong(&format!(", line {}: no user name and password", number + 1)));
            }
            users.push((user.to_vec(), password.to_vec()));
        }
        if users.is_empty() { Err(wrong(" has no users")) } else { Ok(Self(users)) }
    }

    fn method(&self) -> u8 {
        if self.0.is_empty() { codec::NO_AUTH } else { codec::PASSWORD }
    }

    /// Compares with all users, and all bytes of parts that have the same length.
    fn accepts(&self, login: Login<'_>) -> bool {
        let is_equal = |a: &[u8], b: &[u8]| verify_slices_are_equal(a, b).is_ok();
        self.0
            .iter()
            .fold(false, |accepted, one| accepted | (is_equal(&one.0, login.user) & is_equal(&one.1, login.password)))
    }
}

/// A program's request, and bytes that it has sent behind it.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) rest: Bytes,
}

/// Reads the request of a program. A program that is refused is told why, as far as SOCKS5 has a word for it.
pub(super) async fn accept(stream: &mut TcpStream, users: &Users) -> Result<Asked, HandshakeError> {
    let mut held = BytesMut::with_capacity(MAX_MESSAGE);
    let wanted = users.method();
    let offered = next(stream, &mut held, |bytes| {
        let (methods, length) = codec::read_methods(bytes)?;
        Ok((methods.contains(&wanted), length))
    });
    if !offered.await? {
        stream.write_all(&codec::method(codec::NO_METHOD)).await?;
        return Err(HandshakeError::Method);
    }
    stream.write_all(&codec::method(wanted)).await?;
    if wanted == codec::PASSWORD {
        let is_accepted = next(stream, &mut held, |bytes| {
            let (login, length) = codec::read_login(bytes)?;
            Ok((users.accepts(login), length))
        });
        let is_accepted = is_accepted.await?;
        stream.write_all(&codec::password_status(is_accepted)).await?;
        if !is_accepted {
            return Err(HandshakeError::Password);
        }
    }
    let request = match next(stream, &mut held, codec::read_request).await {
        Ok(request) => request,
        Err(error) => {
            let code = match error {
                HandshakeError::Codec(CodecError::AddressType(_)) => ReplyCode::AddressTypeNotSupported,
                _ => ReplyCode::GeneralFailure,
            };
            reply(stream, code).await?;
            return Err(error);
        }
    };
    let Address { port, .. } = request.address;
    match request.command {
        Command::Connect if port == 0 => {
            reply(stream, ReplyCode::GeneralFailure).await?;
            Err(HandshakeError::Port)
        }
        Command::Other(command) => {
            reply(stream, ReplyCode::CommandNotSupported).await?;
            Err(HandshakeError::Command(command))
        }
        Command::Connect | Command::UdpAssociate => Ok(Asked { request, rest: held.freeze() }),
    }
}

/// The next message. No more bytes are held than one has, and those that came with it.
async fn next<T>(
    stream: &mut TcpStream,
    held: &mut BytesMut,
    read: impl Fn(&[u8]) -> Result<(T, usize), CodecError>,
) -> Result<T, HandshakeError> {
    loop {
        match read(held) {
            Ok((message, length)) => {
                held.advance(length);
                return Ok(message);
            }
            Err(CodecError::Incomplete) => {}
            Err(error) => return Err(error.into()),
        }
        held.reserve(MAX_MESSAGE);
        if stream.read_buf(held).await? == 0 {
            return Err(HandshakeError::Left);
        }
    }
}

/// Answers a request that was not served. The address of a tunnel beyond the proxy is not known here either.
pub(super) async fn reply(stream: &mut TcpStream, code: ReplyCode) -> io::Result<()> {
    let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    stream.write_all(&codec::reply(code, unknown)).await
}

/// Closes a connection so that the program can read the last answer: a reset would overtake it.
pub(super) async fn close(mut stream: TcpStream) {
    let reading = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut (&mut stream).take(FAREWELL_BYTES), &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(FAREWELL, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_and_compared() {
        let path = std::env::temp_dir().join(format!("tiderace-socks-users-{}", std::process::id()));
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            Users::read(&path)
        };
        let users = read(b"alice:secret\r\n\nbob:a:b\n").unwrap();
        for (user, password, expected) in [
            ("alice", "secret", true),
            ("bob", "a:b", true),
            ("alice", "a:b", false),
            ("alice", "secre", false),
            ("alice", "", false),
            ("", "", false),
        ] {
            assert_eq!(
                users.accepts(Login { user: user.as_bytes(), password: password.as_bytes() }),
                expected,
                "{user} {password}"
            );
        }
        assert_eq!((users.method(), Users::default().method()), (codec::PASSWORD, codec::NO_AUTH));
        let long = [b"a:", &[b'x'; 256][..]].concat();
        for wrong in [&b""[..], b"\n", b"alice", b":secret", b"alice:", &long] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Users::read(&path).is_err());
    }
}
