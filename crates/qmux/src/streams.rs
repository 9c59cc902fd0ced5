//! Halves of a stream. Sent data is delivered (§4 of the draft), so nothing is kept once it is written; received data is in order.

use std::collections::VecDeque;

use bytes::Bytes;
use transport::{Code, TransportError, memory::ITEM_OVERHEAD};
use wire::varint;

/// Bytes that a stream takes before it is to wait.
const QUEUE: usize = 64 * 1024;

/// Bytes of small frames that are joined into one block.
const BLOCK: usize = 16 * 1024;

/// The sending half.
#[derive(Debug, Default)]
pub(crate) struct Send {
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Bytes that have left.
    pub(crate) sent: u64,
    /// Flow control limit of the peer.
    pub(crate) limit: u64,
    /// No more will be written.
    finished: bool,
    /// Code of a pending reset.
    pub(crate) reset: Option<u64>,
    /// The last word has left.
    pub(crate) over: bool,
    /// The peer wants no more.
    pub(crate) stopped: Option<u64>,
    /// The application has seen that.
    pub(crate) told: bool,
    /// Queued for sending.
    pub(crate) in_line: bool,
}

impl Send {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Bytes that may be written at the moment.
    pub(crate) fn room(&self) -> usize {
        QUEUE.saturating_sub(self.queued)
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.finished && self.reset.is_none() && !self.over
    }

    /// Returns whether the sending half has ended and needs no more events.
    pub(crate) fn may_go(&self) -> bool {
        self.over && (self.stopped.is_none() || self.told || self.finished)
    }

    pub(crate) fn push(&mut self, data: Bytes) {
        self.queued += data.len();
        self.queue.push_back(data);
    }

    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    /// Discards unsent data.
    pub(crate) fn give_up(&mut self, code: u64) {
        if !self.over {
            self.reset = Some(code);
            self.queue.clear();
            self.queued = 0;
        }
    }

    /// Returns whether data can be sent, with this credit of the connection.
    pub(crate) fn has_something(&self, credit: u64) -> bool {
        let open = self.queued > 0 && self.sent < self.limit && credit > 0;
        !self.over && (self.reset.is_some() || open || self.finished && self.queued == 0)
    }

    /// Returns whether the stream's own limit blocks it.
    pub(crate) fn is_blocked(&self) -> bool {
        self.queued > 0 && self.sent >= self.limit && !self.over
    }

    /// Bytes that leave next, of at most `most`, and whether the stream ends after them.
    pub(crate) fn next(&self, most: usize) -> (usize, bool) {
        let open = usize::try_from(self.limit.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        let len = self.queued.min(open).min(most);
        (len, self.finished && len == self.queued)
    }

    /// Moves as many bytes to `out` as it holds; [`next`](Self::next) has given the number.
    pub(crate) fn take(&mut self, mut out: &mut [u8]) {
        self.queued -= out.len();
        self.sent += out.len() as u64;
        while !out.is_empty()
            && let Some(front) = self.queue.front_mut()
        {
            let len = front.len().min(out.len());
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&front.split_to(len));
            out = later;
            if front.is_empty() {
                self.queue.pop_front();
            }
        }
        self.over |= self.finished && self.queued == 0;
    }
}

/// Result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Data(Bytes),
    /// The end.
    End,
    /// The peer gave it up.
    Reset(u64),
    /// No data.
    Nothing,
}

/// The receiving half.
#[derive(Debug, Default)]
pub(crate) struct Recv {
    /// Complete blocks, with the bytes that each of them holds however much of it was read.
    queue: VecDeque<(Bytes, u64)>,
    /// The block that small frames are joined into.
    open: Vec<u8>,
    /// Bytes that the blocks in the queue hold.
    queue_held: u64,
    /// The event for the reader is queued.
    pub(crate) told: bool,
    /// Bytes that have arrived.
    pub(crate) received: u64,
    /// Bytes that were read, or thrown away.
    read: u64,
    /// Flow control limit announced to the peer.
    pub(crate) limit: u64,
    window: u64,
    /// All of it has arrived.
    ended: bool,
    reset: Option<u64>,
    /// Code of STOP_SENDING after reading was stopped, and whether it was sent.
    pub(crate) stop: Option<(u64, bool)>,
    /// The reader has seen the end.
    seen: bool,
}

impl Recv {
    pub(crate) fn new(window: u64) -> Self {
        Self { limit: window, window, ..Self::default() }
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> u64 {
        let open = self.open.capacity() as u64;
        self.queue_held + open + if open > 0 { ITEM_OVERHEAD } else { 0 }
    }

    /// Stores a part as a copy. Parts are joined, so that a byte costs two at most, in any frames.
    fn keep(&mut self, data: &[u8]) {
        if self.open.len() + data.len() > BLOCK {
            self.seal();
        }
        if self.open.is_empty() {
            self.open.reserve_exact(data.len());
        }
        self.open.extend_from_slice(data);
    }

    /// Moves the block that takes more into the queue.
    fn seal(&mut self) {
        if self.open.is_empty() {
            return;
        }
        // A vector that grows has up to twice the room that it needs.
        let block = Bytes::from(std::mem::take(&mut self.open).into_boxed_slice());
        let held = block.len() as u64 + ITEM_OVERHEAD;
        self.queue_held += held;
        self.queue.push_back((block, held));
    }

    /// Discards the stored data.
    fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.open = Vec::new();
        self.queue_held = 0;
    }

    /// Takes the data of a STREAM frame. Returns the number of bytes that will not be read.
    pub(crate) fn on_data(&mut self, offset: u64, data: &[u8], fin: bool) -> Result<u64, TransportError> {
        if self.ended || self.reset.is_some() {
            // RFC 9000 §4.5: nothing comes after the end.
            return Err(TransportError::new(Code::FINAL_SIZE_ERROR, "data after the end of a stream"));
        }
        // draft-ietf-quic-qmux §4.1 MUST: each frame follows on the one before.
        if offset != self.received {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "data of a stream out of order"));
        }
        let len = data.len() as u64;
        self.account(len)?;
        self.ended = fin;
        if self.stop.is_some() {
            self.read += len;
            self.seen |= fin;
            return Ok(len);
        }
        self.keep(data);
        Ok(0)
    }

    /// Processes RESET_STREAM. Returns the bytes that it adds, and those that will not be read.
    pub(crate) fn on_reset(&mut self, code: u64, size: u64) -> Result<(u64, u64), TransportError> {
        if self.ended || self.reset.is_some() {
            let same = size == self.received;
            // RFC 9000 §4.5: the size does not change.
            return same.then_some((0, 0)).ok_or_else(|| final_size("a final size that changes"));
        }
        let more = size.checked_sub(self.received).ok_or_else(|| final_size("a final size below what was sent"))?;
        self.account(more)?;
        self.reset = Some(code);
        self.clear();
        let unread = self.received - self.read;
        self.read = self.received;
        self.seen |= self.stop.is_some();
        Ok((more, unread))
    }

    fn account(&mut self, more: u64) -> Result<(), TransportError> {
        let sum = self.received.saturating_add(more);
        if sum > self.limit {
            return Err(TransportError::new(Code::FLOW_CONTROL_ERROR, "more than the stream may carry"));
        }
        self.received = sum;
        Ok(())
    }

    pub(crate) fn read(&mut self, most: usize) -> Read {
        if let Some(code) = self.reset {
            self.seen = true;
            return Read::Reset(code);
        }
        if self.queue.is_empty() {
            self.seal();
        }
        let Some((front, held)) = self.queue.front_mut() else {
            self.seen |= self.ended;
            return if self.ended { Read::End } else { Read::Nothing };
        };
        let data = front.split_to(most.min(front.len()));
        if front.is_empty() {
            self.queue_held -= *held;
            self.queue.pop_front();
        }
        if self.queue.is_empty() {
            self.queue.shrink_to(1);
        }
        self.read += data.len() as u64;
        Read::Data(data)
    }

    /// Stops reading. Returns the number of discarded bytes.
    pub(crate) fn stop(&mut self, code: u64) -> u64 {
        if self.stop.is_some() {
            return 0;
        }
        // What has ended needs no word to the peer.
        self.stop = Some((code, self.ended || self.reset.is_some()));
        self.seen |= self.ended || self.reset.is_some();
        self.clear();
        let unread = self.received - self.read;
        self.read = self.received;
        unread
    }

    /// Limit to be announced to the peer, once enough was read.
    pub(crate) fn next_limit(&self) -> Option<u64> {
        let next = (self.read + self.window).min(varint::MAX);
        let due = next - self.limit >= self.window / 2;
        (due && !self.ended && self.reset.is_none() && self.stop.is_none()).then_some(next)
    }

    /// Returns whether there is data for a reader.
    pub(crate) fn is_readable(&self) -> bool {
        !self.queue.is_empty() || !self.open.is_empty() || self.ended || self.reset.is_some()
    }

    /// Returns whether all has arrived and the reader has seen the end.
    pub(crate) fn is_over(&self) -> bool {
        self.seen && (self.ended || self.reset.is_some())
    }
}

fn final_size(reason: &'static str) -> TransportError {
    TransportError::new(Code::FINAL_SIZE_ERROR, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T: std::fmt::Debug>(result: Result<T, TransportError>) -> Code {
        result.unwrap_err().code
    }

    #[test]
    fn what_arrives_is_in_order_within_its_limit_and_ends_once() {
        let data = str::as_bytes;
        let read = |text: &'static str| Read::Data(Bytes::from_static(text.as_bytes()));
        let mut recv = Recv::new(10);
        assert_eq!(recv.on_data(0, data("abc"), false), Ok(0));
        assert_eq!(code(recv.on_data(2, data("c"), false)), Code::PROTOCOL_VIOLATION);
        assert_eq!(code(recv.on_data(4, data("c"), false)), Code::PROTOCOL_VIOLATION);
        assert_eq!(code(recv.on_data(3, data("12345678"), false)), Code::FLOW_CONTROL_ERROR);
        assert_eq!(recv.read(2), read("ab"));
        assert_eq!(recv.next_limit(), None);
        assert_eq!(recv.on_data(3, data("defg"), true), Ok(0));
        assert_eq!(code(recv.on_data(7, data(""), false)), Code::FINAL_SIZE_ERROR);
        assert_eq!(code(recv.on_reset(1, 8)), Code::FINAL_SIZE_ERROR);
        assert_eq!(recv.on_reset(1, 7), Ok((0, 0)));
        assert_eq!((recv.read(9), recv.read(9), recv.read(9)), (read("c"), read("defg"), Read::End));
        assert!(recv.is_over());
        let mut recv = Recv::new(10);
        recv.on_data(0, data("abcdef"), false).unwrap();
        assert_eq!(recv.read(9), read("abcdef"));
        assert_eq!(recv.next_limit(), Some(16));
        recv.limit = 16;
        assert_eq!(code(recv.on_reset(1, 5)), Code::FINAL_SIZE_ERROR);
        assert_eq!(code(recv.on_reset(1, 17)), Code::FLOW_CONTROL_ERROR);
        assert_eq!(recv.on_reset(1, 16), Ok((10, 10)));
        assert_eq!(recv.read(1), Read::Reset(1));
    }

    #[test]
    fn what_nobody_reads_is_thrown_away_and_counted() {
        let mut recv = Recv::new(10);
        recv.on_data(0, b"abc", false).unwrap();
        assert_eq!(recv.stop(7), 3);
        assert_eq!(recv.stop, Some((7, false)));
        assert_eq!(recv.on_data(3, b"de", true), Ok(2));
        assert!(recv.is_over());
    }

    #[test]
    fn what_is_held_is_counted_and_no_more_than_twice_what_came() {
        for size in [1, 2, 100, 1_200, 9_000, 16_000] {
            let mut recv = Recv::new(u64::MAX);
            let part = vec![7; size];
            let frames = 100_000 / size as u64;
            for number in 0..frames {
                recv.on_data(number * size as u64, &part, false).unwrap();
            }
            let came = frames * size as u64;
            let blocks: u64 = recv.queue.iter().map(|(block, _)| block.len() as u64 + ITEM_OVERHEAD).sum();
            assert!(recv.held() <= 2 * came + ITEM_OVERHEAD, "{size}: {} for {came}", recv.held());
            assert_eq!(recv.held(), blocks + recv.open.capacity() as u64 + ITEM_OVERHEAD);
            assert!(recv.queue.len() as u64 <= 2 * came / BLOCK as u64 + 1, "{size}: {} blocks", recv.queue.len());
            // Read by and by, in other parts than it came in.
            let mut read = 0;
            while let Read::Data(data) = recv.read(777) {
                assert!(data.iter().all(|byte| *byte == 7));
                read += data.len() as u64;
            }
            assert_eq!((read, recv.held()), (came, 0));
        }
    }

    #[test]
    fn what_leaves_obeys_the_limit_and_ends() {
        let mut send = Send::new(4);
        send.push(Bytes::from_static(b"abc"));
        send.push(Bytes::from_static(b"def"));
        send.finish();
        let mut out = [0; 6];
        assert_eq!((send.next(2), send.next(100)), ((2, false), (4, false)));
        send.take(&mut out[..2]);
        send.take(&mut out[2..4]);
        assert_eq!((&out, send.is_blocked(), send.has_something(9)), (b"abcd\0\0", true, false));
        send.limit = 100;
        assert_eq!(send.next(100), (2, true));
        send.take(&mut out[4..]);
        assert!(send.over && !send.has_something(9));
        assert_eq!(&out, b"abcdef");
    }
}
