//! The contract of a peer program.
//!
//! The client opens bidirectional streams. On each it sends one line, `GET n` or `PUT n`, and with `PUT` n bytes of the
//! pattern; then it ends its side. The server answers `GET` with n bytes of the pattern, `PUT` with the line
//! `LENGTH SHA256` of what it got. The client compares every byte, or the digest, with what it must be.
//!
//! A server prints `{"ready": true, "address": "…"}` when it listens, serves until its standard input ends, and then
//! prints one [`Figures`] line. A client prints one [`Figures`] line. Exit code 0 means that all was right.

use anyhow::{Result, bail, ensure};
use aws_lc_rs::digest::{Context, SHA256};
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};

/// The application protocol.
pub const ALPN: &[u8] = b"tiderace-interop";
/// The name in the server's certificate.
pub const SERVER_NAME: &str = "peer.test";
/// No transfer of a test is larger.
pub const MAX_TRANSFER: u64 = 1 << 30;
/// The pattern repeats after so many bytes: a prime, so that no packet or buffer size divides it.
pub const PERIOD: usize = 65_521;

/// A peer on the command line.
#[derive(Debug, Parser)]
pub struct Command {
    /// Server or client.
    #[command(subcommand)]
    pub role: Role,
}

/// Role of an end, and its arguments.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// Serve until standard input ends.
    Server(Server),
    /// Make requests and compare.
    Client(Client),
}

/// A server's arguments.
#[derive(Clone, Debug, Args)]
pub struct Server {
    /// Address and port to listen on; port 0 for any.
    #[arg(long)]
    pub listen: std::net::SocketAddr,
    /// Certificate chain, PEM.
    #[arg(long)]
    pub cert: std::path::PathBuf,
    /// Private key, PEM (PKCS#8).
    #[arg(long)]
    pub key: std::path::PathBuf,
    /// Validate each client's address with a Retry packet.
    #[arg(long)]
    pub retry: bool,
    /// Accept early data of clients that return.
    #[arg(long)]
    pub early: bool,
}

/// A client's arguments.
#[derive(Clone, Debug, Args)]
pub struct Client {
    /// The server.
    #[arg(long)]
    pub connect: std::net::SocketAddr,
    /// The root certificate to trust, PEM.
    #[arg(long)]
    pub ca: std::path::PathBuf,
    /// Bytes to get on each stream.
    #[arg(long, default_value_t = 0)]
    pub get: u64,
    /// Bytes to put on each stream, after getting.
    #[arg(long, default_value_t = 0)]
    pub put: u64,
    /// Number of concurrent streams.
    #[arg(long, default_value_t = 1)]
    pub streams: u64,
    /// Update keys when half the bytes have been received.
    #[arg(long)]
    pub key_update: bool,
    /// Connections, one after the other, with all streams on each.
    #[arg(long, default_value_t = 1)]
    pub connections: u64,
    /// Resume the session of the connection before.
    #[arg(long)]
    pub resume: bool,
    /// Send the requests of a resumed connection as early data, which the server has to accept.
    #[arg(long)]
    pub early: bool,
    /// Offer the suite ChaCha20-Poly1305 and no other.
    #[arg(long)]
    pub chacha20: bool,
    /// Speak QUIC version 2.
    #[arg(long)]
    pub v2: bool,
    /// Go on from another socket when a quarter of the bytes has been received.
    #[arg(long)]
    pub migrate: bool,
}

/// Last line of a peer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Result: `true` without a fault.
    pub ok: bool,
    /// Fault, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Application bytes received.
    #[serde(default)]
    pub bytes_received: u64,
    /// Application bytes sent.
    #[serde(default)]
    pub bytes_sent: u64,
    /// Seconds from connecting to the last answer.
    #[serde(default)]
    pub seconds: f64,
    /// Key updates that took place; `None` when the stack does not tell.
    #[serde(default)]
    pub key_updates: Option<u64>,
    /// Acknowledgements that counted this end's ECN marks as they must; `None` when the stack does not tell.
    #[serde(default)]
    pub ecn_confirmed: Option<u64>,
    /// The version of the stack.
    #[serde(default)]
    pub version: String,
}

/// Known bytes: a linear congruential generator's, repeated.
#[derive(Clone, Debug)]
pub struct Pattern(Vec<u8>);

impl Default for Pattern {
    fn default() -> Self {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
            (state >> 16) as u8
        };
        Self((0..PERIOD).map(|_| next()).collect())
    }
}

impl Pattern {
    /// The bytes from `offset` on, up to the end of the period or `max`: never empty unless `max` is zero.
    pub fn at(&self, offset: u64, max: u64) -> &[u8] {
        let start = usize::try_from(offset % PERIOD as u64).unwrap_or(0);
        let len = usize::try_from(max).unwrap_or(PERIOD).min(PERIOD - start);
        &self.0[start..start + len]
    }

    /// Compares all of `data`, received at `offset`.
    ///
    /// # Errors
    /// With the place of the first difference.
    pub fn check(&self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let expected = self.at(offset, data.len() as u64);
            let (now, rest) = data.split_at(expected.len());
            if let Some(place) = now.iter().zip(expected).position(|(a, b)| a != b) {
                bail!(
                    "wrong byte at {}: {:#04x} instead of {:#04x}",
                    offset + place as u64,
                    now[place],
                    expected[place]
                );
            }
            offset += now.len() as u64;
            data = rest;
        }
        Ok(())
    }

    /// The digest of the first `len` bytes.
    pub fn digest(&self, len: u64) -> Digest {
        let mut digest = Digest::default();
        while digest.len < len {
            digest.update(self.at(digest.len, len - digest.len));
        }
        digest
    }
}

/// Length and SHA-256 of what was received so far.
#[derive(Clone)]
pub struct Digest {
    hash: Context,
    len: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { hash: Context::new(&SHA256), len: 0 }
    }
}

impl Digest {
    /// More bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.hash.update(data);
        self.len += data.len() as u64;
    }

    /// The answer to `PUT`.
    pub fn answer(self) -> String {
        let hex: String = self.hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {hex}\n", self.len)
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether nothing was received.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// One line of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Send me so many bytes.
    Get(u64),
    /// Number of bytes that follow.
    Put(u64),
}

impl Request {
    /// As it stands on the stream.
    pub fn line(self) -> String {
        match self {
            Self::Get(len) => format!("GET {len}\n"),
            Self::Put(len) => format!("PUT {len}\n"),
        }
    }

    /// The longest line that can be one.
    pub const MAX_LINE: usize = 32;

    /// Reads a line without its end.
    ///
    /// # Errors
    /// When it is no request, or asks for more than any test does.
    pub fn parse(line: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(line)?;
        let request = match text.split_once(' ') {
            Some(("GET", len)) => Self::Get(len.parse()?),
            Some(("PUT", len)) => Self::Put(len.parse()?),
            _ => bail!("`{text}` is no request: expected `GET n` or `PUT n`"),
        };
        let (Self::Get(len) | Self::Put(len)) = request;
        ensure!(len <= MAX_TRANSFER, "{len} bytes are more than any test asks for");
        Ok(request)
    }
}

/// Prints a result and gives the exit code that belongs to it.
pub fn conclude(result: Result<Figures>, version: &str) -> std::process::ExitCode {
    let mut figures =
        result.unwrap_or_else(|error| Figures { error: Some(format!("{error:#}")), ..Figures::default() });
    figures.ok = figures.error.is_none();
    version.clone_into(&mut figures.version);
    println!("{}", serde_json::to_string(&figures).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}")));
    if figures.ok { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_repeats_only_after_its_period() {
        let pattern = Pattern::default();
        assert_eq!(pattern.at(0, 8), [0xc6, 0x7e, 0x81, 0x6b, 0x4b, 0xfb, 0xe2, 0xfb]);
        assert!(pattern.check(PERIOD as u64, pattern.at(0, 1_000)).is_ok());
        assert!(pattern.check(1, pattern.at(0, 1_000)).is_err());
        assert_eq!(pattern.digest(200_000).len(), 200_000);
    }

    #[test]
    fn requests_read_back() {
        for request in [Request::Get(0), Request::Put(10_485_760)] {
            assert_eq!(Request::parse(request.line().trim_end().as_bytes()).unwrap(), request);
        }
        for bad in ["", "GET", "GET x", "POST 1", "GET -1", "GET 99999999999"] {
            assert!(Request::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
