//! HTTP datagrams (RFC 9297): unreliable messages that belong to a request.

use std::{future::poll_fn, sync::Arc, task::Poll};

use bytes::Bytes;
use tiderace::{DatagramError, StreamId, transport::datagrams::SendDatagramError};

use crate::shared::Shared;

/// The datagrams of a request: in the extensions of a request that a server gets and of a response that a client gets, when the
/// request is an extended CONNECT. Clones share what comes.
#[derive(Clone)]
pub struct Datagrams(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    stream: StreamId,
}

impl Datagrams {
    pub(crate) fn new(shared: &Arc<Shared>, stream: StreamId) -> Self {
        shared.lock().flows.begin(stream.0);
        Self(Arc::new(Inner { shared: shared.clone(), stream }))
    }

    /// Largest datagram that can be sent at the moment, in bytes; `None` while the peer is not known to take any, or takes
    /// none, and when this end has ended its direction of the stream.
    pub fn max_size(&self) -> Option<usize> {
        let Inner { shared, stream } = &*self.0;
        let may_be_sent = {
            let state = shared.lock();
            // RFC 9297 §2.1.1 MUST NOT-1: not before both ends have said that they take some
            let understood = shared.settings.datagrams && state.peer.is_some_and(|peer| peer.datagrams);
            // RFC 9297 §2 MUST-1, RFC 9297 §2.1 MUST NOT-1: nor behind the end of the stream
            understood && state.flows.open.get(&stream.0).is_some_and(|flow| !flow.has_said_all)
        };
        let room = shared.quic.max_datagram_size().filter(|_| may_be_sent)?;
        room.checked_sub(wire::varint::len(stream.0 / 4))
    }

    /// Searches for the largest datagram of the path without waiting for content that fills packets; see [`max_size`](Self::max_size).
    pub fn discover_max_size(&self) {
        self.0.shared.quic.discover_mtu();
    }

    /// Queues a datagram. A lost datagram is not sent again.
    ///
    /// # Errors
    /// When the payload is larger than [`max_size`](Self::max_size), datagrams are not supported, or the connection has ended.
    pub fn send(&self, payload: &[u8]) -> Result<(), DatagramError> {
        self.send_parts(&[payload])
    }

    /// Queues a datagram that consists of these parts.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_parts(&self, parts: &[&[u8]]) -> Result<(), DatagramError> {
        let Some(max) = self.max_size() else { return Err(SendDatagramError::Unsupported.into()) };
        let len = parts.iter().map(|part| part.len()).sum();
        if len > max {
            return Err(SendDatagramError::TooLarge { len, max }.into());
        }
        let Inner { shared, stream } = &*self.0;
        let mut datagram = Vec::with_capacity(len + 8);
        wire::varint::push(&mut datagram, stream.0 / 4);
        parts.iter().for_each(|part| datagram.extend_from_slice(part));
        shared.quic.send_datagram(datagram.into())
    }

    /// Next datagram of the peer, from a queue of at most 64 KiB; `None` when the connection, or the receiving side of the stream, has
    /// ended.
    pub async fn recv(&self) -> Option<Bytes> {
        let Inner { shared, stream } = &*self.0;
        poll_fn(|cx| {
            let flows = &mut shared.lock().flows;
            if let Some(datagram) = flows.pop(stream.0) {
                return Poll::Ready(Some(datagram));
            }
            let Some(flow) = flows.open.get_mut(&stream.0) else { return Poll::Ready(None) };
            if flows.is_over || flow.has_heard_all {
                return Poll::Ready(None);
            }
            flow.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Next waiting datagram of the peer, if any: datagrams that arrived together can be forwarded together.
    pub fn try_recv(&self) -> Option<Bytes> {
        self.0.shared.lock().flows.pop(self.0.stream.0)
    }

    /// Datagrams from the peer that were dropped because too many waited for [`recv`](Self::recv).
    pub fn dropped(&self) -> u64 {
        self.0.shared.lock().flows.open.get(&self.0.stream.0).map_or(0, |flow| flow.dropped)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.lock().flows.close(self.stream.0);
    }
}
