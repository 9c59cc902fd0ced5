//! Tunnels for UDP (RFC 9298): HTTP datagrams in QUIC datagrams or in capsules.

use std::time::Duration;

use bytes::Bytes;
use h3_quic::{
    Datagrams,
    capsule::{self, Capsules},
    connect_udp::{ALWAYS_CARRIED, Content, MAX_PAYLOAD, UDP_CONTEXT},
};

use super::{
    ProxyError,
    error::broken,
    stream::{RecvHalf, SendHalf},
};
use crate::error::Cause;

/// The longest DATAGRAM capsule: the longest UDP payload, and the longest form of its context ID.
const MAX_CAPSULE: usize = MAX_PAYLOAD + 8;
/// Time for the proxy to answer the end of a tunnel.
const CLOSING: Duration = Duration::from_secs(1);

/// A tunnel for UDP. Dropped, it is cancelled; see [`UdpReceiver::close`].
pub struct UdpTunnel {
    sender: UdpSender,
    receiver: UdpReceiver,
}

/// Sending half of a tunnel for UDP. Dropped, it ends the tunnel.
pub struct UdpSender {
    stream: SendHalf,
    /// Datagrams of HTTP/3; `None` over HTTP/2, where all payloads are capsules.
    datagrams: Option<Datagrams>,
}

/// Receiving half of a tunnel for UDP.
pub struct UdpReceiver {
    content: RecvHalf,
    capsules: Capsules,
    datagrams: Option<Datagrams>,
}

/// Fate of a UDP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentPayload {
    /// Queued as a QUIC datagram.
    Datagram,
    /// Queued as a capsule on the stream.
    Capsule,
    /// Dropped: the payload fits into no QUIC datagram, and has more than 1,200 bytes; or it is too long for UDP.
    TooLarge,
    /// Dropped: the stream has no room, or the connection has ended.
    Dropped,
}

impl UdpTunnel {
    pub(super) fn new(stream: SendHalf, content: RecvHalf, datagrams: Option<Datagrams>) -> Self {
        let capsules = Capsules::only(capsule::DATAGRAM, MAX_CAPSULE);
        let sender = UdpSender { stream, datagrams: datagrams.clone() };
        Self { sender, receiver: UdpReceiver { content, capsules, datagrams } }
    }

    /// Protocol of the connection that carries the tunnel: `h3` or `h2`.
    pub fn protocol(&self) -> &'static str {
        self.sender.stream.protocol()
    }

    /// Halves for two tasks.
    pub fn split(self) -> (UdpSender, UdpReceiver) {
        (self.sender, self.receiver)
    }
}

impl UdpSender {
    /// Sends a UDP payload, or drops it.
    // RFC 9298 §5 MUST NOT-1
    pub fn send(&mut self, payload: &[u8]) -> SentPayload {
        if let Some(datagrams) = &self.datagrams {
            if datagrams.max_size().is_some_and(|max| payload.len() < max) {
                let sent = datagrams.send_parts(&[&[UDP_CONTEXT], payload]);
                return if sent.is_ok() { SentPayload::Datagram } else { SentPayload::Dropped };
            }
            // Nothing else may fill packets, so that a search would never begin.
            datagrams.discover_max_size();
            if payload.len() > ALWAYS_CARRIED {
                return SentPayload::TooLarge;
            }
        } else if payload.len() > MAX_PAYLOAD {
            return SentPayload::TooLarge;
        }
        let mut out = Vec::with_capacity(payload.len() + 16);
        capsule::write_parts(&mut out, capsule::DATAGRAM, &[&[UDP_CONTEXT], payload]);
        if self.stream.try_send(out.into()) { SentPayload::Capsule } else { SentPayload::Dropped }
    }

    /// The longest payload that fits into a QUIC datagram at the moment; `None` over HTTP/2.
    pub fn max_datagram(&self) -> Option<usize> {
        self.datagrams.as_ref()?.max_size()?.checked_sub(1)
    }
}

impl UdpReceiver {
    /// The next UDP payload from the target; `None` when the proxy has closed the tunnel. Cancel safe.
    ///
    /// # Errors
    /// When the tunnel broke off.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ProxyError> {
        loop {
            while let Some(capsule) = self.capsules.take().map_err(broken)? {
                if let Some(payload) = payload(&capsule.value)? {
                    return Ok(Some(payload));
                }
            }
            tokio::select! {
                Some(datagram) = next(&self.datagrams) => {
                    if let Some(payload) = payload(&datagram)? {
                        return Ok(Some(payload));
                    }
                }
                data = self.content.data() => match data? {
                    None => return Ok(None),
                    Some(data) => self.capsules.push(&data),
                },
            }
        }
    }

    /// Closes the tunnel, and waits for the proxy to close it, too, for at most a second. A tunnel whose halves are dropped is cancelled
    /// instead.
    pub async fn close(mut self, sender: UdpSender) {
        drop(sender);
        let closed = async { while let Ok(Some(_)) = self.content.data().await {} };
        let _ = tokio::time::timeout(CLOSING, closed).await;
    }

    /// Next UDP payload, if one has arrived in a QUIC datagram.
    pub fn try_recv(&mut self) -> Option<Bytes> {
        while let Some(datagram) = self.datagrams.as_ref()?.try_recv() {
            if let Ok(Some(payload)) = payload(&datagram) {
                return Some(payload);
            }
        }
        None
    }
}

/// Next datagram of HTTP/3. Never over HTTP/2.
async fn next(datagrams: &Option<Datagrams>) -> Option<Bytes> {
    match datagrams {
        Some(datagrams) => datagrams.recv().await,
        None => std::future::pending().await,
    }
}

/// The UDP payload of an HTTP datagram; `None` when it is of another context.
fn payload(datagram: &Bytes) -> Result<Option<Bytes>, ProxyError> {
    match Content::parse(datagram) {
        Content::Udp(payload) => Ok(Some(datagram.slice_ref(payload))),
        Content::Unknown => Ok(None),
        Content::TooLong => {
            let reason = "the proxy sends a payload that is too long for UDP".to_owned();
            Err(ProxyError::Broken(Cause::Protocol { code: None, reason }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_too_long_for_udp_breaks_a_tunnel() {
        let datagram = |len: usize| Bytes::from([&[UDP_CONTEXT][..], &vec![0; len]].concat());
        assert_eq!(payload(&datagram(MAX_PAYLOAD)).unwrap().map(|payload| payload.len()), Some(MAX_PAYLOAD));
        let error = payload(&datagram(MAX_PAYLOAD + 1)).unwrap_err();
        assert!(matches!(error, ProxyError::Broken(Cause::Protocol { code: None, .. })), "{error:?}");
    }
}
