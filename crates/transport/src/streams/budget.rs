//! Send buffer of a connection: limit on data written ahead, and the order of writers when it is full.
//!
//! The limit covers all streams together, unacknowledged and unsent bytes. It follows the path: when more than half of it is in flight, it
//! grows to twice the bytes in flight, up to a maximum. So a long fat path is filled without a setting, and a slow path does not buffer
//! seconds of data.
//!
//! No stream starves. While streams wait, or were just woken to write, each of them may hold its share of the limit and no more. Each
//! stream may hold a small amount of its own in any case, for example while others wait for flow control credit that the peer never grants.
//! So a waiting stream always has data in flight whose acknowledgement wakes it.

use super::{
    slab::{Queue, Slab, Slot, WRITERS},
    stream::Writing,
};

/// Number of bytes that each stream may always hold.
const FLOOR: u64 = 1024;

/// The send buffer of a connection.
#[derive(Debug)]
pub(super) struct Budget {
    configured: u64,
    max: u64,
    /// Bytes written and not acknowledged.
    held: u64,
    /// Bytes of these never sent.
    unsent: u64,
    /// Streams that hold bytes.
    holders: u64,
    /// Streams that wait, or that were woken and have not finished writing.
    contenders: u64,
    waiting: Queue<WRITERS>,
    /// Bytes sent and bytes acknowledged since the waiting streams were looked at.
    progress: u64,
}

impl Budget {
    pub(super) fn new(configured: u64, max: u64) -> Self {
        let configured = configured.max(1);
        Self {
            configured,
            max: max.max(configured),
            held: 0,
            unsent: 0,
            holders: 0,
            contenders: 0,
            waiting: Queue::new(),
            progress: 0,
        }
    }

    /// Bytes written and not acknowledged.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Bytes written and never sent.
    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }

    fn limit(&self) -> u64 {
        (2 * (self.held - self.unsent)).clamp(self.configured, self.max)
    }

    /// Bytes a stream that holds `held` may write.
    fn allowed(&self, held: u64, contends: bool) -> u64 {
        let limit = self.limit();
        let contenders = self.contenders + u64::from(!contends);
        let share = (limit / contenders).saturating_sub(held).min(limit.saturating_sub(self.held));
        let floor = (self.configured / (4 * (self.holders + u64::from(held == 0)))).max(FLOOR).min(self.configured);
        share.max(floor.saturating_sub(held))
    }

    /// Returns how many of the `wanted` bytes a stream may write; when none, the stream waits.
    #[inline]
    pub(super) fn admit(&mut self, slab: &mut Slab, slot: Slot, wanted: u64) -> u64 {
        let stream = &slab[slot];
        let allowed = self.allowed(stream.send.held(), stream.writing != Writing::Free);
        if allowed == 0 {
            self.wait(slab, slot);
        } else if wanted <= allowed {
            self.leave(slab, slot);
        }
        wanted.min(allowed)
    }

    fn wait(&mut self, slab: &mut Slab, slot: Slot) {
        let stream = &mut slab[slot];
        if stream.writing == Writing::Free {
            self.contenders += 1;
        }
        stream.writing = Writing::Waiting;
        self.waiting.push_back(slab, slot);
    }

    /// The stream does not wait any more: it wrote all it wanted, or will not write again.
    #[inline]
    pub(super) fn leave(&mut self, slab: &mut Slab, slot: Slot) {
        let stream = &mut slab[slot];
        if stream.writing != Writing::Free {
            stream.writing = Writing::Free;
            self.contenders -= 1;
            self.waiting.remove(slab, slot);
        }
    }

    /// `bytes` were written to a stream that held `before`.
    #[inline]
    pub(super) fn written(&mut self, before: u64, bytes: u64) {
        self.held += bytes;
        self.unsent += bytes;
        self.holders += u64::from(before == 0 && bytes > 0);
    }

    /// `bytes` were sent for the first time.
    #[inline]
    pub(super) fn sent(&mut self, bytes: u64) {
        self.unsent -= bytes;
        self.progress += bytes;
    }

    /// `bytes`, of which `unsent` were never sent, left a stream that holds `after` of them.
    #[inline]
    pub(super) fn released(&mut self, after: u64, bytes: u64, unsent: u64) {
        self.held -= bytes;
        self.unsent -= unsent;
        self.holders -= u64::from(after == 0 && bytes > 0);
        self.progress += bytes;
    }

    /// All that was sent counts as never sent.
    pub(super) fn restart(&mut self) {
        self.unsent = self.held;
    }

    /// Wakes a stream whose data was released, if it waits and holds nothing any more.
    #[inline]
    pub(super) fn wake_one(&mut self, slab: &mut Slab, slot: Slot, wake: impl FnOnce(&mut Slab, Slot)) {
        let stream = &mut slab[slot];
        if stream.writing == Writing::Waiting && stream.send.held() == 0 {
            stream.writing = Writing::Woken;
            self.waiting.remove(slab, slot);
            wake(slab, slot);
        }
    }

    /// Wakes waiting streams that can write a good part of their share, once an eighth of the limit has moved: a writer that is woken for
    /// every packet writes packets.
    #[inline]
    pub(super) fn wake(&mut self, slab: &mut Slab, wake: impl FnMut(&mut Slab, Slot)) {
        if !self.waiting.is_empty() && self.progress >= self.limit() / 8 {
            self.wake_round(slab, wake);
        }
    }

    fn wake_round(&mut self, slab: &mut Slab, mut wake: impl FnMut(&mut Slab, Slot)) {
        self.progress = 0;
        let worthwhile = (self.limit() / (8 * self.contenders)).max(1);
        let mut next = self.waiting.front();
        while let Some(slot) = next {
            next = self.waiting.after(slab, slot);
            let stream = &mut slab[slot];
            if self.allowed(stream.send.held(), true) >= worthwhile {
                stream.writing = Writing::Woken;
                self.waiting.remove(slab, slot);
                wake(slab, slot);
            }
        }
    }
}
