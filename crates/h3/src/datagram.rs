//! HTTP datagrams (RFC 9297): unreliable messages that belong to a request.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use bytes::{Buf, Bytes};
use tiderace::{
    Charge, DatagramError, StreamId,
    transport::{datagrams::SendDatagramError, memory::ITEM_OVERHEAD},
};

use crate::{
    error::{Code, Violation},
    shared::Shared,
};

/// Bytes that the datagrams of a request hold while they wait to be read. Beyond them, the oldest go.
const MAX_WAITING: u64 = 64 * 1024;

/// Bytes that those of all requests of a connection hold. Beyond them, the oldest of the request that holds most go.
const MAX_TOGETHER: u64 = 256 * 1024;

/// A charge follows what is held down when it is so much more.
const SLACK: u64 = 16 * 1024;

/// The largest number that a quarter of a stream's number can be (RFC 9297 §2.1).
const MAX_QUARTER: u64 = (1 << 60) - 1;

#[derive(Default)]
struct Flow {
    /// Copies: a slice would pin the whole buffer that it came in.
    waiting: VecDeque<Bytes>,
    /// Bytes that they hold.
    held: u64,
    reader: Option<Waker>,
    /// Sending direction of the stream is over.
    has_said_all: bool,
    /// The peer has, or is not heard any more.
    has_heard_all: bool,
}

/// Charge of a waiting datagram.
fn cost(datagram: &Bytes) -> u64 {
    datagram.len() as u64 + ITEM_OVERHEAD
}

impl Flow {
    fn pop(&mut self) -> Option<(Bytes, u64)> {
        let datagram = self.waiting.pop_front()?;
        let cost = cost(&datagram);
        self.held -= cost;
        if self.waiting.is_empty() {
            // What a flood has made it grow to is not kept.
            self.waiting.shrink_to(4);
        }
        Some((datagram, cost))
    }
}

/// The requests of a connection that have datagrams, by number of their stream.
pub(crate) struct Flows {
    open: BTreeMap<u64, Flow>,
    /// Bytes that all of them hold.
    held: u64,
    charge: Charge,
    is_over: bool,
}

impl Flows {
    /// No flow; what they will hold is charged to `charge`.
    pub(crate) fn new(charge: Charge) -> Self {
        Self { open: BTreeMap::new(), held: 0, charge, is_over: false }
    }

    /// Takes a QUIC datagram. One for a request that is not known is dropped. After the last of several,
    /// [`settle`](Self::settle) is called.
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
        let datagram = if datagram.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(&datagram) };
        flow.held += cost(&datagram);
        self.held += cost(&datagram);
        flow.waiting.push_back(datagram);
        while flow.held > MAX_WAITING
            && let Some((_, cost)) = flow.pop()
        {
            self.held -= cost;
        }
        if let Some(reader) = flow.reader.take() {
            reader.wake();
        }
        while self.held > MAX_TOGETHER {
            self.drop_one();
        }
        Ok(())
    }

    /// Drops the oldest datagram of the request that holds most.
    fn drop_one(&mut self) {
        let fullest = self.open.values_mut().max_by_key(|flow| flow.held);
        self.held -= fullest.and_then(Flow::pop).map_or(self.held, |(_, cost)| cost);
    }

    /// Charges what is held; what the connection has no room for is dropped, the oldest first.
    pub(crate) fn settle(&mut self) {
        while !self.charge.try_set(self.held) {
            self.drop_one();
        }
    }

    /// The charge follows what was read or let go.
    fn relax(&mut self) {
        if self.held == 0 && self.charge.bytes() > 0 || self.held + SLACK < self.charge.bytes() {
            self.charge.set(self.held);
        }
    }

    /// The oldest datagram that waits for the reader of a stream.
    fn pop(&mut self, stream: u64) -> Option<Bytes> {
        let (datagram, cost) = self.open.get_mut(&stream)?.pop()?;
        self.held -= cost;
        self.relax();
        Some(datagram)
    }

    /// Nobody reads those of a stream any more.
    fn close(&mut self, stream: u64) {
        self.held -= self.open.remove(&stream).map_or(0, |flow| flow.held);
        self.relax();
    }

    /// Notes that the sending direction of a stream is over.
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

    /// The next datagram from the peer, of those that hold no more than 64 KiB together; `None` when the connection is over,
    /// or what comes on the stream.
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

    /// The next datagram from the peer, when one waits: what came together can be handed on together.
    pub fn try_recv(&self) -> Option<Bytes> {
        self.0.shared.lock().flows.pop(self.0.stream.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.lock().flows.close(self.stream.0);
    }
}

#[cfg(test)]
mod tests {
    use tiderace::{ConnectionBudget, ProcessBudget};

    use super::*;

    fn flows(budget: &ConnectionBudget) -> Flows {
        let mut flows = Flows::new(budget.empty());
        flows.open.insert(8, Flow::default());
        flows
    }

    fn budget(limit: u64) -> ConnectionBudget {
        ConnectionBudget::new(limit, &ProcessBudget::default())
    }

    /// RFC 9297 §2.1 MUST-1, MUST-2, MUST-3, SHALL-1
    #[test]
    fn a_datagram_goes_to_its_request() {
        let budget = budget(1 << 20);
        let mut flows = flows(&budget);
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
    fn what_nobody_reads_is_bounded_whatever_its_size() {
        for size in [0, 1, 4, 100, 996] {
            let budget = budget(1 << 20);
            let mut flows = flows(&budget);
            for number in 0..10_000_u32 {
                let payload = [&number.to_be_bytes()[..], &[0; 996]].concat();
                flows.take([&[2][..], &payload[..size]].concat().into()).unwrap();
            }
            flows.settle();
            let flow = &flows.open[&8];
            let cost = size as u64 + ITEM_OVERHEAD;
            assert!(flow.held <= MAX_WAITING && flow.held > MAX_WAITING - cost, "{size}: {}", flow.held);
            assert_eq!(flow.held, flow.waiting.len() as u64 * cost);
            assert_eq!((flows.held, budget.held()), (flow.held, flow.held));
            if size >= 4 {
                assert_eq!(flow.waiting.back().unwrap()[..4], 9_999_u32.to_be_bytes(), "the newest are kept");
            }
            flows.close(8);
            assert_eq!((flows.held, budget.held()), (0, 0));
        }
    }

    #[test]
    fn requests_share_what_the_connection_has_room_for() {
        for (limit, most) in [(1 << 20, MAX_TOGETHER), (40_000, 40_000)] {
            let budget = budget(limit);
            let mut flows = flows(&budget);
            flows.open.extend((3..60).map(|number| (4 * number, Flow::default())));
            for number in 2..60 {
                for _ in 0..1_000 {
                    flows.take(Bytes::from(vec![number; 100])).unwrap();
                }
                flows.settle();
                assert!(flows.held <= most && budget.held() == flows.held, "{} of {most}", flows.held);
            }
            assert!(flows.open[&(59 * 4)].waiting.len() > 1, "who comes last finds room");
        }
    }

    #[test]
    fn a_copy_pins_nothing() {
        let budget = budget(1 << 20);
        let mut flows = flows(&budget);
        let buffer = Bytes::from([&[2][..], &[7; 64 * 1024]].concat());
        flows.take(buffer.slice(..10)).unwrap();
        flows.take(buffer.slice(..1)).unwrap();
        assert!(buffer.is_unique());
    }
}
