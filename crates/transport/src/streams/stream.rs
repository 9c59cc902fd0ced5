//! One stream: its two parts, its place in the lists, its priority.

use wire::StreamId;

use super::{
    recv::RecvPart,
    send::SendPart,
    slab::{LISTS, Link},
};

/// Priority of a stream's data (RFC 9218 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 goes first, 7 last. Data of a lower urgency is sent only when no other can be.
    pub urgency: u8,
    /// Streams of the same urgency share the connection when incremental, and otherwise follow each other by stream ID.
    pub incremental: bool,
}

impl Default for Priority {
    /// Urgency 3, incremental.
    ///
    /// RFC 9218 gives HTTP requests without a priority `incremental: false`. This suits messages, which are useful when complete. A
    /// transport does not know whether a stream ever ends, and an endless one would block all later ones. HTTP sets its own default.
    fn default() -> Self {
        Self { urgency: 3, incremental: true }
    }
}

/// Control frames that wait to be sent for a stream, as bits.
pub(super) mod pending {
    pub(in super::super) const RESET: u8 = 1;
    pub(in super::super) const STOP: u8 = 2;
    pub(in super::super) const CREDIT: u8 = 4;
    pub(in super::super) const BLOCKED: u8 = 8;
}

/// State of the application's writes: waits for space in the send buffer, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    /// The application does not wait.
    Free,
    /// A write was refused or cut short; a wake-up follows.
    Waiting,
    /// The application was woken and has not finished writing.
    Woken,
}

/// A live stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) send: SendPart,
    pub(super) recv: RecvPart,
    pub(super) links: [Link; LISTS],
    pub(super) priority: Priority,
    /// Bits of [`pending`].
    pub(super) pending: u8,
    /// The stream is scheduled for new data.
    pub(super) scheduled: bool,
    pub(super) writing: Writing,
    /// Set while the stream must not send: the application has not named it for early data, or it is beyond the limit that the peer set
    /// after refusing early data.
    pub(super) held_back: bool,
    /// Forward error correction leaves its data out.
    pub(super) unprotected: bool,
}

impl Stream {
    pub(super) fn new(id: StreamId, send: SendPart, recv: RecvPart) -> Self {
        Self {
            id,
            send,
            recv,
            links: [Link::DETACHED; LISTS],
            priority: Priority::default(),
            pending: 0,
            scheduled: false,
            writing: Writing::Free,
            held_back: false,
            unprotected: false,
        }
    }

    /// Bytes of heap in use beside the slot and received data.
    pub(super) fn heap(&self) -> usize {
        self.send.heap()
    }
}
