//! Packets declared lost whose acknowledgement may still arrive.
//!
//! They leave the ledger's ring at once, so that one loss does not hold the memory of a whole window. The data that is needed to recognize
//! a late acknowledgement stays here, for a bounded time and in bounded number.

use std::collections::{VecDeque, vec_deque};

use units::Instant;

use super::ledger::{Found, frames_of, wrapping_u32};
use super::{Entry, PathIndex, SentFrame};

/// Losses remembered at most; more at a time are no reordering.
const CAPACITY: usize = 512;

/// A packet that was declared lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatePacket {
    pub(crate) pn: u64,
    pub(crate) sent_at: Instant,
    pub(crate) lost_at: Instant,
    frames_start: u32,
    frames: u16,
    pub(crate) size: u16,
    pub(crate) path: PathIndex,
    /// Acknowledged after all.
    resolved: bool,
    /// Set if the peer has the content, as far as that can be rebuilt.
    recovered: bool,
}

/// Owns the memory of recent losses of one ledger, ascending by packet number.
#[derive(Debug, Default)]
pub(super) struct LateLosses {
    packets: VecDeque<LatePacket>,
    frames: VecDeque<SentFrame>,
    frames_start: u32,
}

impl LateLosses {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    #[inline]
    pub(super) fn min(&self) -> Option<u64> {
        self.packets.front().map(|packet| packet.pn)
    }

    pub(super) fn memory(&self) -> usize {
        self.packets.capacity() * size_of::<LatePacket>() + self.frames.capacity() * size_of::<SentFrame>()
    }

    /// Remembers a loss. One out of order (its path declares losses later than another) is not remembered.
    pub(super) fn push(
        &mut self,
        pn: u64,
        entry: &Entry,
        lost_at: Instant,
        frames: vec_deque::Iter<'_, SentFrame>,
        recovered: bool,
    ) {
        if self.packets.back().is_some_and(|last| last.pn >= pn) {
            return;
        }
        while self.packets.len() >= CAPACITY {
            self.pop_front();
        }
        self.packets.push_back(LatePacket {
            pn,
            sent_at: entry.sent_at,
            lost_at,
            frames_start: self.frames_start.wrapping_add(wrapping_u32(self.frames.len())),
            frames: entry.frames,
            size: entry.size,
            path: entry.path,
            resolved: false,
            recovered,
        });
        self.frames.extend(frames);
    }

    /// The peer has rebuilt a packet: its frames, when that is news, and while it is remembered.
    pub(super) fn recover(&mut self, pn: u64) -> Option<vec_deque::Iter<'_, SentFrame>> {
        let place = self.packets.binary_search_by_key(&pn, |packet| packet.pn).ok()?;
        let packet = self.packets.get_mut(place).filter(|packet| !packet.resolved && !packet.recovered)?;
        packet.recovered = true;
        Some(frames_of(&self.frames, self.frames_start, packet.frames_start, packet.frames))
    }

    /// Passes the unacknowledged packets from `first` to `last` to the caller. `upper` packets are not above an earlier, higher range; the
    /// result is the same for the next, lower range.
    #[inline]
    pub(super) fn acknowledge(
        &mut self,
        mut upper: usize,
        first: u64,
        last: u64,
        on: &mut impl FnMut(Found<'_>),
    ) -> usize {
        while let Some(index) = upper.checked_sub(1) {
            let packet = &mut self.packets[index];
            if packet.pn < first {
                break;
            }
            upper = index;
            if packet.pn <= last && !packet.resolved {
                packet.resolved = true;
                let frames = frames_of(&self.frames, self.frames_start, packet.frames_start, packet.frames);
                on(Found::Late { packet, frames });
            }
        }
        upper
    }

    /// Forgets packets lost before `before`, and resolved ones.
    #[inline]
    pub(super) fn expire(&mut self, before: Instant) {
        while self.packets.front().is_some_and(|packet| packet.resolved || packet.lost_at < before) {
            self.pop_front();
        }
        if self.packets.is_empty() && self.packets.capacity() > 16 {
            *self = Self::default();
        }
    }

    fn pop_front(&mut self) {
        if let Some(packet) = self.packets.pop_front() {
            self.frames.drain(..usize::from(packet.frames));
            self.frames_start = self.frames_start.wrapping_add(u32::from(packet.frames));
        }
    }
}
