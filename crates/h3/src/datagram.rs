//! HTTP datagrams (RFC 9297): unreliable messages that belong to a request.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use bytes::{Buf, Bytes};
use tiderace::{DatagramError, StreamId, transport::datagrams::SendDatagramError};

use crate::{
    error::{Code, Violation},
    shared::Shared,
};

/// Bytes of datagrams that wait for whoever reads those of a request. Beyond them, the oldest go.
const MAX_WAITING: usize = 64 * 1024;

/// The largest number that a quarter of a stream's number can be (RFC 9297 §2.1).
const MAX_QUARTER: u64 = (1 << 60) - 1;

#[derive(Default)]
struct Flow {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    reader: Option<Waker>,
    /// This end has ended what it sends on the stream.
    has_said_all: bool,
    /// The peer has, or is not heard any more.
    has_heard_all: bool,
}

/// The requests of a connection that have datagrams, by number of their stream.
#[derive(Default)]
pub(crate) struct Flows {
    open: BTreeMap<u64, Flow>,
    is_over: bool,
}

impl Flows {
    /// Takes a QUIC datagram. One for a request that is not known is dropped.
    ///
    /// # Errors
    /// H3_DATAGRAM_ERROR when it names no request.
    pub(crate) fn take(&mut self, mut datagram: Bytes) -> Result<(), Violation> {
        let mut reader = wire::Reader::new(&datagram);
        // RFC 9297 §2.1 MUST-1, MUST-2
        let Some(quarter) = reader.varint().ok().filter(|quarter| *quarter <= MAX_QUARTER) else {
            let reason = "a datagram that names no request".to_owned();
            return Err(Violation { code: Code::DATAGRAM_ERROR, reason });
        };
        let head = reader.position();
        // RFC 9297 §2.1 SHALL-1, MUST-3: one for a stream that is not there yet, or is over, is dropped
        let flow = self.open.get_mut(&(quarter * 4)).filter(|flow| !flow.has_heard_all);
        let Some(flow) = flow else { return Ok(()) };
        datagram.advance(head);
        flow.bytes += datagram.len();
        flow.waiting.push_back(datagram);
        while flow.bytes > MAX_WAITING {
            flow.bytes -= flow.waiting.pop_front().map_or(0, |oldest| oldest.len());
        }
        if let Some(reader) = flow.reader.take() {
            reader.wake();
        }
        Ok(())
    }

    /// This end has ended what it sends on a stream.
    pub(crate) fn end_sending(&mut self, stream: u64) {
        if let Some(flow) = self.open.get_mut(&stream) {
            flow.has_said_all = true;
        }
    }

    /// Nothing more comes on a stream.
    pub(crate) fn end_receiving(&mut self, stream: u64) {
        if let Some(flow) = self.open.get_mut(&stream) {
            flow.has_heard_all = true;
            if let Some(reader) = flow.reader.take() {
                reader.wake();
            }
        }
    }

    /// Tells all readers that nothing more comes.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        for flow in self.open.values_mut() {
            if let Some(reader) = flow.reader.take() {
                reader.wake();
            }
        }
    }
}

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
        shared.lock().flows.open.insert(stream.0, Flow::default());
        Self(Arc::new(Inner { shared: shared.clone(), stream }))
    }

    /// The most bytes that a datagram may have at the moment; `None` while the peer is not known to take any, or takes none, and when this
    /// end has ended what it sends on the stream.
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

    /// Queues a datagram. Nobody sends it again when it is lost.
    ///
    /// # Errors
    /// When it is larger than [`max_size`](Self::max_size), there is none, or the connection is over.
    pub fn send(&self, payload: &[u8]) -> Result<(), DatagramError> {
        let Some(max) = self.max_size() else { return Err(SendDatagramError::Unsupported.into()) };
        if payload.len() > max {
            return Err(SendDatagramError::TooLarge { len: payload.len(), max }.into());
        }
        let Inner { shared, stream } = &*self.0;
        let mut datagram = Vec::with_capacity(payload.len() + 8);
        wire::varint::push(&mut datagram, stream.0 / 4);
        datagram.extend_from_slice(payload);
        shared.quic.send_datagram(datagram.into())
    }

    /// The next datagram from the peer, of those that fit into 64 KiB; `None` when the connection is over,
    /// or what comes on the stream.
    pub async fn recv(&self) -> Option<Bytes> {
        let Inner { shared, stream } = &*self.0;
        poll_fn(|cx| {
            let Flows { open, is_over } = &mut shared.lock().flows;
            let Some(flow) = open.get_mut(&stream.0) else { return Poll::Ready(None) };
            if let Some(datagram) = flow.waiting.pop_front() {
                flow.bytes -= datagram.len();
                return Poll::Ready(Some(datagram));
            }
            if *is_over || flow.has_heard_all {
                return Poll::Ready(None);
            }
            flow.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.lock().flows.open.remove(&self.stream.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows() -> Flows {
        let mut flows = Flows::default();
        flows.open.insert(8, Flow::default());
        flows
    }

    /// RFC 9297 §2.1 MUST-1, MUST-2, MUST-3, SHALL-1
    #[test]
    fn a_datagram_goes_to_its_request() {
        let mut flows = flows();
        flows.take(Bytes::from_static(b"\x02hello")).unwrap();
        // Nobody has asked for these.
        flows.take(Bytes::from_static(b"\x03other")).unwrap();
        assert_eq!(flows.open[&8].waiting, [&b"hello"[..]]);
        for bad in [&b""[..], b"\xc0", b"\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(flows.take(Bytes::from_static(bad)).unwrap_err().code, Code::DATAGRAM_ERROR);
        }
        // And behind the end of its stream to nobody.
        flows.end_receiving(8);
        flows.take(Bytes::from_static(b"\x02late")).unwrap();
        assert_eq!(flows.open[&8].waiting, [&b"hello"[..]]);
    }

    #[test]
    fn what_nobody_reads_is_bounded() {
        let mut flows = flows();
        for number in 0..1_000_u32 {
            let datagram = [&[2][..], &number.to_be_bytes(), &[0; 996]].concat();
            flows.take(datagram.into()).unwrap();
        }
        let flow = &flows.open[&8];
        assert!(flow.bytes <= MAX_WAITING && flow.bytes > MAX_WAITING - 1_000);
        assert_eq!(flow.bytes, flow.waiting.iter().map(Bytes::len).sum::<usize>());
        assert_eq!(flow.waiting.back().unwrap()[..4], 999_u32.to_be_bytes());
    }
}
