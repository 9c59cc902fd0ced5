//! Datagrams of a connection's requests (RFC 9297) that wait for their readers, bounded and charged.

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

use bytes::{Buf, Bytes};
use tiderace::{Charge, transport::memory::ITEM_OVERHEAD};

use crate::error::{Code, Violation};

/// Bytes that the datagrams of a request hold while they wait to be read. Beyond them, the oldest go.
const MAX_WAITING: u64 = 64 * 1024;

/// Bytes of all waiting datagrams of a connection. Beyond it, the oldest ones of the request that holds most are dropped.
const MAX_TOGETHER: u64 = 256 * 1024;

/// Bytes that datagrams hold whose request has not come. Beyond them, the oldest go.
const MAX_EARLY: u64 = 16 * 1024;

/// Excess of a charge over what is held, in bytes, from which on the charge is lowered.
const SLACK: u64 = 16 * 1024;

/// The largest number that a quarter of a stream's number can be (RFC 9297 §2.1).
const MAX_QUARTER: u64 = (1 << 60) - 1;

/// Datagrams of one request.
#[derive(Default)]
pub(crate) struct Flow {
    /// Copies, because a slice would pin its whole receive buffer.
    waiting: VecDeque<Bytes>,
    /// Bytes that they hold.
    held: u64,
    /// Datagrams that were dropped because too many waited.
    pub(crate) dropped: u64,
    pub(crate) reader: Option<Waker>,
    /// Sending direction of the stream has ended.
    pub(crate) has_said_all: bool,
    /// Receiving direction of the stream has ended, or not read any more.
    pub(crate) has_heard_all: bool,
}

/// Charge of a waiting datagram.
fn cost(datagram: &Bytes) -> u64 {
    datagram.len() as u64 + ITEM_OVERHEAD
}

/// A copy, because a slice would pin its whole receive buffer.
fn copied(datagram: &[u8]) -> Bytes {
    if datagram.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(datagram) }
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
    pub(crate) open: BTreeMap<u64, Flow>,
    /// Datagrams whose request has not come, with its number.
    early: VecDeque<(u64, Bytes)>,
    early_held: u64,
    /// Bytes that all of them hold.
    held: u64,
    charge: Charge,
    pub(crate) is_over: bool,
}

impl Flows {
    /// No flow; what they will hold is charged to `charge`.
    pub(crate) fn new(charge: Charge) -> Self {
        Self { open: BTreeMap::new(), early: VecDeque::new(), early_held: 0, held: 0, charge, is_over: false }
    }

    /// Begins a flow, with the datagrams that have come for it already.
    pub(crate) fn begin(&mut self, stream: u64) {
        let mut flow = Flow::default();
        self.early.retain(|(of, datagram)| {
            let is_other = *of != stream;
            if !is_other {
                flow.held += cost(datagram);
                flow.waiting.push_back(datagram.clone());
            }
            is_other
        });
        self.early_held -= flow.held;
        self.open.insert(stream, flow);
    }

    /// Discards the datagrams of a stream that turns out to have no flow.
    pub(crate) fn decline(&mut self, stream: u64) {
        let before = self.early_held;
        self.early.retain(|(of, datagram)| {
            let is_other = *of != stream;
            self.early_held -= if is_other { 0 } else { cost(datagram) };
            is_other
        });
        self.held -= before - self.early_held;
        self.relax();
    }

    /// Keeps a datagram whose request may still arrive.
    fn keep(&mut self, stream: u64, datagram: Bytes) {
        self.early_held += cost(&datagram);
        self.held += cost(&datagram);
        self.early.push_back((stream, datagram));
        while self.early_held > MAX_EARLY {
            self.drop_early();
        }
    }

    /// Drops the oldest datagram whose request has not come; false when there is none.
    fn drop_early(&mut self) -> bool {
        let Some((_, datagram)) = self.early.pop_front() else { return false };
        self.early_held -= cost(&datagram);
        self.held -= cost(&datagram);
        true
    }

    /// Takes a QUIC datagram. One for a request that is not known is dropped, unless the request is `awaited`. After the last of
    /// several, [`settle`](Self::settle) is called.
    ///
    /// # Errors
    /// H3_DATAGRAM_ERROR when it names no request.
    pub(crate) fn take(&mut self, mut datagram: Bytes, awaited: impl Fn(u64) -> bool) -> Result<(), Violation> {
        let mut reader = wire::Reader::new(&datagram);
        // RFC 9297 §2.1 MUST-1, MUST-2
        let Some(quarter) = reader.varint().ok().filter(|quarter| *quarter <= MAX_QUARTER) else {
            let reason = "a datagram that names no request".to_owned();
            return Err(Violation { code: Code::DATAGRAM_ERROR, reason });
        };
        let head = reader.position();
        datagram.advance(head);
        // RFC 9297 §2.1 SHALL-1, MUST-3, RFC 9298 §5 SHALL-2: one for a stream that has ended is dropped, and one for a stream that is
        // not there yet is kept for a while at most
        let Some(flow) = self.open.get_mut(&(quarter * 4)) else {
            if awaited(quarter * 4) {
                self.keep(quarter * 4, copied(&datagram));
            }
            return Ok(());
        };
        if flow.has_heard_all {
            return Ok(());
        }
        let datagram = copied(&datagram);
        flow.held += cost(&datagram);
        self.held += cost(&datagram);
        flow.waiting.push_back(datagram);
        // RFC 9298 §5 SHOULD-2
        while flow.held > MAX_WAITING
            && let Some((_, cost)) = flow.pop()
        {
            self.held -= cost;
            flow.dropped += 1;
        }
        if let Some(reader) = flow.reader.take() {
            reader.wake();
        }
        while self.held > MAX_TOGETHER {
            self.drop_one();
        }
        Ok(())
    }

    /// Drops the oldest datagram whose request has not come, or else of the request that holds most.
    fn drop_one(&mut self) {
        if self.drop_early() {
            return;
        }
        let fullest = self.open.values_mut().max_by_key(|flow| flow.held);
        let dropped = fullest.and_then(|flow| {
            let (_, cost) = flow.pop()?;
            flow.dropped += 1;
            Some(cost)
        });
        self.held -= dropped.unwrap_or(self.held);
    }

    /// Charges what is held; datagrams that the connection has no room for are dropped, the oldest first.
    pub(crate) fn settle(&mut self) {
        while !self.charge.try_set(self.held) {
            self.drop_one();
        }
    }

    /// Lowers the charge after datagrams were read or dropped.
    fn relax(&mut self) {
        if self.held == 0 && self.charge.bytes() > 0 || self.held + SLACK < self.charge.bytes() {
            self.charge.set(self.held);
        }
    }

    /// The oldest datagram that waits for the reader of a stream.
    pub(crate) fn pop(&mut self, stream: u64) -> Option<Bytes> {
        let (datagram, cost) = self.open.get_mut(&stream)?.pop()?;
        self.held -= cost;
        self.relax();
        Some(datagram)
    }

    /// Drops the datagrams of a stream without a reader.
    pub(crate) fn close(&mut self, stream: u64) {
        self.held -= self.open.remove(&stream).map_or(0, |flow| flow.held);
        self.relax();
    }

    /// Notes that the sending direction of a stream has ended.
    pub(crate) fn end_sending(&mut self, stream: u64) {
        if let Some(flow) = self.open.get_mut(&stream) {
            flow.has_said_all = true;
        }
    }

    /// Ends the receiving side of a stream.
    pub(crate) fn end_receiving(&mut self, stream: u64) {
        if let Some(flow) = self.open.get_mut(&stream) {
            flow.has_heard_all = true;
            if let Some(reader) = flow.reader.take() {
                reader.wake();
            }
        }
    }

    /// Wakes all readers: no more datagrams come.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        for flow in self.open.values_mut() {
            if let Some(reader) = flow.reader.take() {
                reader.wake();
            }
        }
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

    fn nobody(_: u64) -> bool {
        false
    }

    fn budget(limit: u64) -> ConnectionBudget {
        ConnectionBudget::new(limit, &ProcessBudget::default())
    }

    /// RFC 9297 §2.1 MUST-1, MUST-2, MUST-3, SHALL-1, RFC 9298 §5 SHALL-2
    #[test]
    fn a_datagram_goes_to_its_request() {
        let budget = budget(1 << 20);
        let mut flows = flows(&budget);
        flows.take(Bytes::from_static(b"\x02hello"), nobody).unwrap();
        // Nobody has asked for these.
        flows.take(Bytes::from_static(b"\x03other"), nobody).unwrap();
        assert_eq!(flows.open[&8].waiting, [&b"hello"[..]]);
        for bad in [&b""[..], b"\xc0", b"\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(flows.take(Bytes::from_static(bad), nobody).unwrap_err().code, Code::DATAGRAM_ERROR);
        }
        // And behind the end of its stream to nobody.
        flows.end_receiving(8);
        flows.take(Bytes::from_static(b"\x02late"), nobody).unwrap();
        assert_eq!(flows.open[&8].waiting, [&b"hello"[..]]);
    }

    /// RFC 9298 §5 SHOULD-2
    #[test]
    fn what_nobody_reads_is_bounded_whatever_its_size() {
        for size in [0, 1, 4, 100, 996] {
            let budget = budget(1 << 20);
            let mut flows = flows(&budget);
            for number in 0..10_000_u32 {
                let payload = [&number.to_be_bytes()[..], &[0; 996]].concat();
                flows.take([&[2][..], &payload[..size]].concat().into(), nobody).unwrap();
            }
            flows.settle();
            let flow = &flows.open[&8];
            let cost = size as u64 + ITEM_OVERHEAD;
            assert!(flow.held <= MAX_WAITING && flow.held > MAX_WAITING - cost, "{size}: {}", flow.held);
            assert_eq!(flow.held, flow.waiting.len() as u64 * cost);
            assert_eq!((flows.held, budget.held()), (flow.held, flow.held));
            assert_eq!(flow.dropped + flow.waiting.len() as u64, 10_000, "what is dropped is counted");
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
                    flows.take(Bytes::from(vec![number; 100]), nobody).unwrap();
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
        flows.take(buffer.slice(..10), nobody).unwrap();
        flows.take(buffer.slice(..1), nobody).unwrap();
        assert!(buffer.is_unique());
    }

    #[test]
    fn datagrams_wait_for_their_request_within_a_bound() {
        let budget = budget(1 << 20);
        let mut flows = Flows::new(budget.empty());
        for size in [0, 1, 500] {
            for _ in 0..10_000 {
                for quarter in [1, 2] {
                    let payload = [&[quarter][..], &vec![quarter; size]].concat();
                    flows.take(payload.into(), |stream| stream == 4).unwrap();
                }
            }
            flows.settle();
            let cost = size as u64 + ITEM_OVERHEAD;
            assert!(budget.held() <= MAX_EARLY && budget.held() > MAX_EARLY - cost, "{size}: {}", budget.held());
        }
        flows.decline(8);
        flows.begin(4);
        assert_eq!((flows.early_held, flows.open[&4].held), (0, budget.held()));
        assert_eq!(flows.pop(4).unwrap(), vec![1; 500]);
        flows.take(Bytes::from_static(b"\x02"), |_| true).unwrap();
        flows.decline(8);
        flows.close(4);
        assert_eq!((flows.held, budget.held()), (0, 0));
    }
}
