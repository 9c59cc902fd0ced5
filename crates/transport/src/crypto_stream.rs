//! CRYPTO stream of one encryption level: reassembly of received data, and delivery of sent data (RFC 9000 §7.5, §19.6).
//!
//! A connection has one for each of the levels Initial, Handshake and 1-RTT. Handshakes are short and rare, so the code favours bounded
//! memory and simplicity over speed.

use std::collections::BTreeMap;
use std::ops::Range;

use wire::{Writer, varint};

use crate::error::{Code, TransportError};
use crate::memory::allocation;
use crate::sent::SentFrame;

/// Bytes beyond those already read that may wait for a gap before them to be filled.
// RFC 9000 §7.5 MUST-1: at least 4096 bytes have to be buffered.
pub const MAX_AHEAD: u64 = 64 * 1024;

/// Gaps that may be open at a time. Far more than loss, reordering or deliberate shuffling of a ClientHello make.
const MAX_FRAGMENTS: usize = 256;

/// Bytes that may be moved to join two fragments.
const JOINED: usize = 2 * 1024;

const FRAME_TYPE: u64 = 0x06;

/// Handshake bytes in both directions at one level.
#[derive(Debug, Default)]
pub struct CryptoStream {
    receive: Reassembly,
    send: SendBuffer,
}

impl CryptoStream {
    /// A stream at offset zero in both directions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the contents of a CRYPTO frame.
    ///
    /// # Errors
    /// `CRYPTO_BUFFER_EXCEEDED` when it reaches further than [`MAX_AHEAD`] or leaves too many gaps.
    pub fn on_frame(&mut self, offset: u64, data: &[u8]) -> Result<(), TransportError> {
        self.receive.insert(offset, data)
    }

    /// The bytes that have become contiguous since the last call; `None` when there are none.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        self.receive.take()
    }

    /// Returns whether bytes wait to be read or for a gap to be filled.
    ///
    /// RFC 9001 §4.1.3: when TLS moves on to another level, that must not be so.
    pub fn has_unread(&self) -> bool {
        !self.receive.ready.is_empty() || !self.receive.fragments.is_empty()
    }

    /// Appends bytes to be sent, without copying them where none are there.
    pub fn write_owned(&mut self, data: Vec<u8>) {
        if self.send.data.is_empty() {
            self.send.data = data;
        } else {
            self.write(&data);
        }
    }

    /// Appends bytes to be sent.
    pub fn write(&mut self, data: &[u8]) {
        self.send.data.extend_from_slice(data);
    }

    /// Returns whether bytes are to be sent, for the first time or again.
    pub fn wants_to_send(&self) -> bool {
        !self.send.lost.is_empty() || self.send.next < self.send.end()
    }

    /// Returns whether bytes were sent that are not acknowledged.
    pub fn has_unacknowledged(&self) -> bool {
        self.send.base < self.send.next
    }

    /// Writes CRYPTO frames that nobody records: for peers of tests, which send nothing twice.
    #[cfg(feature = "testing")]
    pub fn write_unrecorded(&mut self, w: &mut Writer<'_>) {
        self.write_frames(w, &mut |_| {});
    }

    /// Writes CRYPTO frames as long as there are bytes and space, lost bytes first, and records each of them.
    pub(crate) fn write_frames(&mut self, w: &mut Writer<'_>, record: &mut impl FnMut(SentFrame)) {
        while let Some((offset, len)) = self.send.pick(w.remaining()) {
            w.varint(FRAME_TYPE);
            w.varint(offset);
            w.varint(u64::from(len));
            w.bytes(self.send.slice(offset, len));
            record(SentFrame::Crypto { offset, len });
        }
    }

    /// Bytes of memory that the peer makes this hold.
    pub fn received_memory(&self) -> usize {
        if self.receive.ready.capacity() == 0 && self.receive.fragments.is_empty() {
            return 0;
        }
        // Nodes of the map have eleven places, of which five are in use at least.
        let place = (size_of::<u64>() + size_of::<Vec<u8>>()) * 11 / 5;
        let Reassembly { ready, fragments, .. } = &self.receive;
        let fragments = fragments.values().map(|bytes| place + allocation(bytes.capacity()));
        allocation(ready.capacity()) + fragments.sum::<usize>()
    }

    /// Returns memory that is not in use.
    pub fn shrink(&mut self) {
        self.send.data.shrink_to_fit();
        self.send.lost.shrink_to_fit();
        self.receive.ready.shrink_to_fit();
    }

    /// A packet that carried these bytes was acknowledged.
    pub fn on_acked(&mut self, offset: u64, len: u16) {
        self.send.on_acked(offset..offset + u64::from(len));
    }

    /// A packet that carried these bytes was lost.
    pub fn on_lost(&mut self, offset: u64, len: u16) {
        self.send.on_lost(offset..offset + u64::from(len));
    }

    /// Sends everything again that is not acknowledged: for probes, and after a Retry.
    pub fn send_again(&mut self) {
        self.send.on_lost(self.send.base..self.send.next);
    }
}

/// Data that arrived, until it can be read in order.
#[derive(Debug, Default)]
struct Reassembly {
    /// Offset up to which everything arrived.
    next: u64,
    /// The bytes before `next` that were not taken.
    ready: Vec<u8>,
    /// Bytes beyond `next`, by offset; none overlaps another.
    fragments: BTreeMap<u64, Vec<u8>>,
}

impl Reassembly {
    fn insert(&mut self, offset: u64, data: &[u8]) -> Result<(), TransportError> {
        let exceeded =
            |what: &'static str| Err(TransportError::new(Code::CRYPTO_BUFFER_EXCEEDED, what).in_frame(FRAME_TYPE));
        // A frame's offset and length are varints, so that the sum does not overflow.
        let end = offset + data.len() as u64;
        // RFC 9000 §19.6: the largest offset of a stream is 2^62 - 1; more is refused with either error.
        let unread = self.next - self.ready.len() as u64;
        // RFC 9000 §7.5 MUST-2: more CRYPTO data than we buffer ends the connection with CRYPTO_BUFFER_EXCEEDED
        // RFC 9000 §19.6 MUST-1: CRYPTO data beyond 2^62 - 1 is FRAME_ENCODING_ERROR or CRYPTO_BUFFER_EXCEEDED
        if end > unread.saturating_add(MAX_AHEAD) {
            return exceeded("handshake data too far ahead");
        }
        if end <= self.next || data.is_empty() {
            return Ok(());
        }
        // What was there first stays: contradicting bytes break the handshake's transcript in any case.
        if offset <= self.next {
            self.ready.extend_from_slice(&data[(self.next - offset) as usize..]);
            self.next = end;
            self.absorb();
            return Ok(());
        }
        self.insert_ahead(offset, data);
        if self.fragments.len() > MAX_FRAGMENTS { exceeded("handshake data with too many gaps") } else { Ok(()) }
    }

    /// Keeps new bytes beyond a gap.
    fn insert_ahead(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let following = self.fragments.range(at + 1..).next().map_or(end, |(&start, _)| start.min(end));
            let piece = &data[(at - offset) as usize..(following - offset) as usize];
            let start = match self.fragments.range_mut(..=at).next_back() {
                Some((&before, bytes)) if before + bytes.len() as u64 > at => {
                    at = before + bytes.len() as u64;
                    continue;
                }
                Some((&before, bytes)) if before + bytes.len() as u64 == at => {
                    bytes.extend_from_slice(piece);
                    before
                }
                _ => {
                    self.fragments.insert(at, piece.to_vec());
                    at
                }
            };
            at = following;
            self.join(start, at);
        }
    }

    /// Joins the fragment at `start`, which ends at `end`, with the one after it, if they touch.
    // Only with a short one: a peer that fills gaps from behind, byte by byte, must not make us move all that is there with
    // each of them. What stays apart counts as a gap.
    fn join(&mut self, start: u64, end: u64) {
        if self.fragments.get(&end).is_some_and(|after| after.len() <= JOINED)
            && let Some(after) = self.fragments.remove(&end)
            && let Some(bytes) = self.fragments.get_mut(&start)
        {
            bytes.extend_from_slice(&after);
        }
    }

    /// Moves fragments that have become contiguous.
    fn absorb(&mut self) {
        while let Some(entry) = self.fragments.first_entry() {
            let offset = *entry.key();
            if offset > self.next {
                return;
            }
            let bytes = entry.remove();
            if let Some(new) = bytes.get((self.next - offset) as usize..) {
                self.ready.extend_from_slice(new);
                self.next += new.len() as u64;
            }
        }
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        if self.ready.is_empty() { None } else { Some(std::mem::take(&mut self.ready)) }
    }
}

/// Data to be delivered.
#[derive(Debug, Default)]
struct SendBuffer {
    /// The bytes from `base` on.
    data: Vec<u8>,
    /// Offset below which all bytes are acknowledged.
    base: u64,
    /// The first byte that was never sent.
    next: u64,
    /// Acknowledged ranges beyond `base`: start to end, disjoint.
    acked: BTreeMap<u64, u64>,
    /// Ranges to be sent again, in order, disjoint; all before `next`.
    lost: Vec<Range<u64>>,
}

impl SendBuffer {
    fn end(&self) -> u64 {
        self.base + self.data.len() as u64
    }

    fn slice(&self, offset: u64, len: u16) -> &[u8] {
        let start = (offset - self.base) as usize;
        &self.data[start..start + usize::from(len)]
    }

    /// Removes the next bytes to send, for a frame that has to fit into `space`.
    fn pick(&mut self, space: usize) -> Option<(u64, u16)> {
        let pending = match self.lost.first() {
            Some(range) => range.clone(),
            None if self.next < self.end() => self.next..self.end(),
            None => return None,
        };
        let len = frame_data_len(pending.start, pending.end - pending.start, space)?;
        let end = pending.start + u64::from(len);
        match self.lost.first_mut() {
            Some(range) if end == range.end => drop(self.lost.remove(0)),
            Some(range) => range.start = end,
            None => self.next = end,
        }
        Some((pending.start, len))
    }

    fn on_acked(&mut self, range: Range<u64>) {
        let range = range.start.max(self.base)..range.end.min(self.next);
        if range.is_empty() {
            return;
        }
        // RFC 9000 §13.3 SHOULD-3: what was acknowledged is not sent again
        self.remove_lost(&range);
        if range.start > self.base || !self.acked.is_empty() {
            self.add_acked(range);
            // Free the prefix that is acknowledged.
            if self.acked.first_key_value().is_some_and(|(&start, _)| start == self.base)
                && let Some((_, end)) = self.acked.pop_first()
            {
                self.free_below(end);
            }
        } else {
            self.free_below(range.end);
        }
    }

    fn free_below(&mut self, offset: u64) {
        self.data.drain(..(offset - self.base) as usize);
        self.base = offset;
        if self.data.is_empty() {
            self.data = Vec::new();
        }
    }

    fn add_acked(&mut self, mut range: Range<u64>) {
        while let Some((&start, &end)) = self.acked.range(..=range.end).next_back() {
            if end < range.start {
                break;
            }
            range = range.start.min(start)..range.end.max(end);
            self.acked.remove(&start);
        }
        self.acked.insert(range.start, range.end);
    }

    fn remove_lost(&mut self, range: &Range<u64>) {
        let before = std::mem::take(&mut self.lost);
        for lost in before {
            for rest in [lost.start..lost.end.min(range.start), lost.start.max(range.end)..lost.end] {
                if !rest.is_empty() {
                    self.lost.push(rest);
                }
            }
        }
    }

    /// Marks what of the range is neither acknowledged nor marked already.
    fn on_lost(&mut self, range: Range<u64>) {
        let range = range.start.max(self.base)..range.end.min(self.next);
        let mut start = range.start;
        let mut add = Vec::new();
        for (&acked_start, &acked_end) in self.acked.range(..range.end) {
            if acked_end <= start {
                continue;
            }
            if acked_start > start {
                add.push(start..acked_start);
            }
            start = acked_end;
        }
        if start < range.end {
            add.push(start..range.end);
        }
        for range in add {
            self.remove_lost(&range);
            let at = self.lost.partition_point(|lost| lost.start < range.start);
            self.lost.insert(at, range);
        }
    }
}

/// Number of the `available` bytes at `offset` a CRYPTO frame in `space` bytes can carry; `None` when not even one.
fn frame_data_len(offset: u64, available: u64, space: usize) -> Option<u16> {
    let room = space.checked_sub(1 + varint::len(offset))?;
    // The length field grows with what it counts, so try its sizes from the small one.
    let carried = [(1, 63), (2, 16_383)]
        .into_iter()
        .map(|(field, most)| available.min(most).min(room.saturating_sub(field) as u64))
        .max()?;
    if carried == 0 { None } else { u16::try_from(carried).ok() }
}

#[cfg(test)]
mod tests;
