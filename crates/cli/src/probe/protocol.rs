//! Messages between both ends of a probe, over QUIC.
//!
//! Each is a JSON object after its length (32 bits), on a bidirectional stream that the client opens. A connection begins with
//! [`Request::Begin`], which has the token, or with [`Request::Join`] if it belongs to an existing session. Data may follow the answer:
//! records of [`Request::Records`], or a stream of bytes of [`Request::Download`] until the client wants no more.

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tiderace::{ReadError, RecvStream, SendStream, WriteError};

use super::wire::{Key, Record};

/// The application protocol.
pub(super) const ALPN: &str = "tiderace-probe/2";
/// Bytes of the longest message.
const MESSAGE: usize = 4_096;
/// Code of a stream or a connection on which the peer does not follow the protocol.
pub(super) const PROTOCOL_ERROR: u64 = 1;
/// Code of a stream that the client wants no more of.
pub(super) const ENOUGH: u64 = 0;
/// Bytes that are written at a time.
const CHUNK: usize = 64 * 1024;

/// Question of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Request {
    /// Begin a session.
    Begin { token: Option<String> },
    /// Add this connection to a session.
    Join { session: Key },
    /// Send a train of datagrams.
    Send(Order),
    /// Send one datagram later: does a NAT still know the way?
    SendLater { to: u64, train: u8, after_ms: u64 },
    /// Give what arrived of a train, and forget it.
    Records { train: u8 },
    /// Send on this connection with the congestion control of this name.
    Congestion { name: String },
    /// Send bytes on this stream until it is stopped.
    Download,
    /// Take the bytes of this stream.
    Upload,
    /// Answer at once.
    Echo,
}

/// Train of datagrams that a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    /// Nonce of the address, from an answer to a ping.
    pub(super) to: u64,
    pub(super) train: u8,
    /// Bytes of UDP payload.
    pub(super) size: u16,
    pub(super) count: u32,
    /// Time between two packets.
    pub(super) gap_ns: u64,
    /// ECN field.
    pub(super) ecn: u8,
}

/// Answer of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Answer {
    /// The session has begun.
    Welcome(Welcome),
    /// Success.
    Done,
    /// The train was sent, or as much of it as the limits allow.
    Sent(Sent),
    /// `count` records follow; `dropped` more were not kept.
    Records { count: u32, dropped: u64 },
    /// Refusal.
    Refused(Refusal),
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// For [`Request::Join`].
    pub(super) session: Key,
    /// For datagrams.
    pub(super) udp: Key,
    /// For connections over TCP.
    pub(super) tcp: Key,
    pub(super) udp_port: u16,
    /// `None`: the server does not listen.
    pub(super) tcp_port: Option<u16>,
    /// Bytes that the server spends on this session at most.
    pub(super) bytes: u64,
    /// Time after which it ends.
    pub(super) seconds: u64,
}

/// Account of a train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sent {
    /// Datagrams that were sent.
    pub(super) count: u32,
    /// Time of the first and of the last, in microseconds of the server's clock.
    pub(super) first: u64,
    pub(super) last: u64,
    /// The server's own interface takes none of this size.
    pub(super) is_too_large: bool,
    /// The session's bytes are used up.
    pub(super) is_cut: bool,
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Refusal {
    #[error("the server wants a token, or another one")]
    Token,
    #[error("the server measures with as many clients as it may")]
    Busy,
    #[error("the server has spent what it may on this address within an hour")]
    Client,
    #[error("the server has spent what it may within an hour")]
    Total,
    #[error("the session is over")]
    Over,
    #[error("the server does not know the address that it should send to")]
    Address,
    #[error("the server takes no such request")]
    Request,
}

/// Error of an exchange.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("{0}")]
    Write(#[from] WriteError),
    #[error("{0}")]
    Closed(#[from] tiderace::CloseReason),
    #[error("the peer does not follow the protocol")]
    Protocol,
    #[error("there was no answer in time")]
    Silence,
    #[error("`--bytes`, or those that the server grants, are used up")]
    Bytes,
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Writes a message.
pub(super) async fn write<T: Serialize>(stream: &mut SendStream, message: &T) -> Result<(), WriteError> {
    let text = serde_json::to_vec(message).expect("a message is an object with text keys");
    let length = u32::try_from(text.len()).expect("messages are short").to_be_bytes();
    stream.write_all(&[&length[..], &text].concat()).await
}

/// Writes a request, the only message on its stream.
///
/// A server that has read the request may stop the stream before the end of it is written. The answer decides.
///
/// # Errors
/// When the stream or the connection does not take it.
pub(super) async fn request(stream: &mut SendStream, request: &Request) -> Result<(), WriteError> {
    write(stream, request).await?;
    match stream.finish() {
        Err(WriteError::Stopped(_)) => Ok(()),
        finished => finished,
    }
}

/// Reads a message.
///
/// # Errors
/// When the stream ends before, or holds none.
pub(super) async fn read<T: DeserializeOwned>(stream: &mut RecvStream) -> Result<T, ExchangeError> {
    let length = read_exactly(stream, 4).await?;
    let length = u32::from_be_bytes(length.try_into().map_err(|_| ExchangeError::Protocol)?);
    let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE).ok_or(ExchangeError::Protocol)?;
    let text = read_exactly(stream, length).await?;
    serde_json::from_slice(&text).map_err(|_| ExchangeError::Protocol)
}

/// Reads records that follow an answer, no more than `most`.
///
/// # Errors
/// When the stream ends before, or there are more.
pub(super) async fn read_records(
    stream: &mut RecvStream,
    count: u32,
    most: usize,
) -> Result<Vec<Record>, ExchangeError> {
    if usize::try_from(count).is_ok_and(|count| count > most) {
        return Err(ExchangeError::Protocol);
    }
    let mut records = Vec::new();
    for _ in 0..count {
        let bytes = read_exactly(stream, Record::LEN).await?;
        records.push(Record::read(bytes.as_slice().try_into().map_err(|_| ExchangeError::Protocol)?));
    }
    Ok(records)
}

async fn read_exactly(stream: &mut RecvStream, length: usize) -> Result<Vec<u8>, ExchangeError> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let chunk = stream.read_chunk(length - bytes.len()).await?.ok_or(ExchangeError::Protocol)?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Bytes that load a path: zeros, written repeatedly.
pub(super) fn payload() -> Bytes {
    static PAYLOAD: [u8; CHUNK] = [0; CHUNK];
    Bytes::from_static(&PAYLOAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back() {
        let order = Order { to: u64::MAX, train: 3, size: 1_200, count: 7, gap_ns: 1_000, ecn: 2 };
        for request in [
            Request::Begin { token: Some("a".into()) },
            Request::Join { session: [7; 16] },
            Request::Send(order),
            Request::Records { train: 1 },
            Request::Echo,
            Request::Congestion { name: "auto".into() },
        ] {
            let text = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request, "{text}");
            assert!(text.len() < MESSAGE);
        }
        let longest = Request::Begin { token: Some("x".repeat(MESSAGE)) };
        assert!(serde_json::to_string(&longest).unwrap().len() > MESSAGE);
        assert!(serde_json::from_str::<Request>(r#"{"send":{"to":1}}"#).is_err());
        let refused = Answer::Refused(Refusal::Busy);
        assert_eq!(serde_json::to_string(&refused).unwrap(), r#"{"refused":"busy"}"#);
    }
}
