//! HTTP/2 requests that the library refuses: their header sections were read, but no service receives them. They are counted from the
//! frames: received sections minus served ones.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::ending::Ending;

/// RFC 9113 §3.4: the bytes with which a client begins.
const PREFACE: usize = 24;
/// RFC 9113 §4.1: the bytes before the payload of a frame.
const HEAD: usize = 9;
/// Bytes of a payload that are looked at: the last stream of a GOAWAY, or the code of a RST_STREAM.
const LOOK: usize = 4;

// RFC 9113 §6.
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
// RFC 9113 §7.
const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;

/// A frame, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    /// The first bytes of the payload.
    first: u32,
}

/// Finds frames in one direction.
#[derive(Debug)]
struct Scan {
    /// Further bytes to skip.
    skip: usize,
    seen: Vec<u8>,
}

impl Scan {
    fn behind(skip: usize) -> Self {
        Self { skip, seen: Vec::with_capacity(HEAD + LOOK) }
    }

    fn feed(&mut self, mut data: &[u8], mut on_frame: impl FnMut(Frame)) {
        loop {
            let skipped = self.skip.min(data.len());
            (self.skip, data) = (self.skip - skipped, &data[skipped..]);
            if data.is_empty() {
                return;
            }
            let length = |head: &[u8]| usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let wanted = if self.seen.len() < HEAD { HEAD } else { HEAD + LOOK.min(length(&self.seen)) };
            let taken = (wanted - self.seen.len()).min(data.len());
            self.seen.extend_from_slice(&data[..taken]);
            data = &data[taken..];
            if self.seen.len() < HEAD || self.seen.len() < HEAD + LOOK.min(length(&self.seen)) {
                continue;
            }
            let word =
                |at: usize| (0..4).fold(0, |word, n| word << 8 | u32::from(*self.seen.get(at + n).unwrap_or(&0)));
            on_frame(Frame {
                kind: self.seen[3],
                flags: self.seen[4],
                stream: word(5) & !(1 << 31),
                first: word(HEAD),
            });
            self.skip = length(&self.seen) + HEAD - self.seen.len();
            self.seen.clear();
        }
    }
}

/// Count of frames that have passed.
#[derive(Debug)]
struct State {
    /// The newest stream of the client, and that whose section has not come as a whole.
    last: u32,
    open: Option<u32>,
    /// Highest stream ID that is counted: GOAWAY has named it to the client.
    end: u32,
    /// Received sections, and served requests.
    came: u64,
    served: u64,
    /// Streams of which only the sections are known.
    pending: VecDeque<u32>,
    malformed: u64,
    too_large: u64,
}

impl State {
    fn on_read(&mut self, frame: Frame) {
        match frame.kind {
            HEADERS if frame.stream % 2 == 1 && frame.stream > self.last => {
                (self.last, self.open) = (frame.stream, Some(frame.stream));
            }
            CONTINUATION if self.open == Some(frame.stream) => {}
            _ => return,
        }
        if frame.flags & END_HEADERS != 0 && self.open.take().is_some() && frame.stream <= self.end {
            self.came += 1;
            self.pending.push_back(frame.stream);
        }
    }

    /// Removes the stream from those without a response; `false` when it was not among them.
    fn take(&mut self, stream: u32) -> bool {
        let found = self.pending.iter().position(|pending| *pending == stream);
        found.is_some_and(|at| self.pending.remove(at).is_some())
    }

    fn on_write(&mut self, frame: Frame) {
        match (frame.kind, frame.first) {
            (RST_STREAM, PROTOCOL_ERROR) if self.take(frame.stream) => self.malformed += 1,
            // The client may send it again: it has not begun.
            (RST_STREAM, REFUSED_STREAM) if self.take(frame.stream) => self.came -= 1,
            // An answer that no service has given.
            (HEADERS, _) if self.take(frame.stream) => self.too_large += 1,
            (GOAWAY, last) => {
                self.end = last & !(1 << 31);
                let before = self.pending.len();
                self.pending.retain(|stream| *stream <= last);
                self.came -= (before - self.pending.len()) as u64;
            }
            _ => {}
        }
    }
}

/// The header sections of a connection.
#[derive(Clone, Debug)]
pub(super) struct Sections(Arc<Mutex<State>>);

impl Sections {
    pub(super) fn new() -> Self {
        let (pending, end) = (VecDeque::new(), u32::MAX);
        let (last, open, came, served, malformed, too_large) = (0, None, 0, 0, 0, 0);
        Self(Arc::new(Mutex::new(State { last, open, end, came, served, pending, malformed, too_large })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a service has received a request. The library passes them in the order of arrival.
    pub(super) fn on_served(&self) {
        let mut state = self.lock();
        state.served += 1;
        state.pending.pop_front();
    }

    /// Endings of streams that no service has got, once the connection has ended.
    pub(super) fn unserved(&self) -> impl Iterator<Item = Ending> + use<> {
        let state = self.lock();
        let unserved = state.came.saturating_sub(state.served);
        let (malformed, too_large) = (state.malformed, state.malformed + state.too_large);
        (0..unserved).map(move |number| match number {
            number if number < malformed => Ending::Malformed,
            number if number < too_large => Ending::FieldsTooLarge,
            _ => Ending::Cancelled,
        })
    }
}

/// A connection whose frames are looked at.
#[derive(Debug)]
pub(super) struct Scanned<S> {
    inner: S,
    read: Scan,
    written: Scan,
    sections: Sections,
}

impl<S> Scanned<S> {
    pub(super) fn new(inner: S, sections: Sections) -> Self {
        Self { inner, read: Scan::behind(PREFACE), written: Scan::behind(0), sections }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Scanned<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buffer))?;
        let mut state = this.sections.lock();
        this.read.feed(&buffer.filled()[before..], |frame| state.on_read(frame));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Scanned<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, data))?;
        let mut state = this.sections.lock();
        this.written.feed(&data[..written], |frame| state.on_write(frame));
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, data))?;
        let mut state = this.sections.lock();
        let mut rest = written;
        for part in data {
            let part = &part[..part.len().min(rest)];
            rest -= part.len();
            this.written.feed(part, |frame| state.on_write(frame));
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags][..], &stream.to_be_bytes(), payload].concat()
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let all = [
            vec![b'p'; PREFACE],
            frame(4, 0, 0, b""),
            frame(HEADERS, END_HEADERS, 1, &[7; 300]),
            frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()),
            frame(0, 1, 3, b"ab"),
        ]
        .concat();
        for piece in [1, 2, 3, 7, 10, 1_000] {
            let (mut scan, mut found) = (Scan::behind(PREFACE), Vec::new());
            all.chunks(piece)
                .for_each(|data| scan.feed(data, |frame| found.push((frame.kind, frame.stream, frame.first))));
            // The last one has ended, but a payload of two bytes is all of it.
            let expected = [(4, 0, 0), (HEADERS, 1, 0x0707_0707), (RST_STREAM, 1, 8), (0, 3, 0x6162_0000)];
            assert_eq!(found, expected, "{piece}");
        }
    }

    #[test]
    fn those_that_no_service_gets_are_told_apart() {
        let sections = Sections::new();
        let read = |kind, flags, stream| sections.lock().on_read(Frame { kind, flags, stream, first: 0 });
        let write = |kind, stream, first| sections.lock().on_write(Frame { kind, flags: 0, stream, first });
        for stream in [1, 3, 5, 7] {
            read(HEADERS, END_HEADERS, stream);
        }
        // A section in two frames, trailers, and one that never ends.
        read(HEADERS, 0, 9);
        read(CONTINUATION, END_HEADERS, 9);
        read(HEADERS, END_HEADERS, 1);
        read(HEADERS, 0, 11);
        write(RST_STREAM, 3, PROTOCOL_ERROR);
        write(HEADERS, 5, 0);
        write(RST_STREAM, 7, REFUSED_STREAM);
        sections.on_served();
        // Of one that was served, too.
        write(HEADERS, 1, 0);
        write(RST_STREAM, 1, PROTOCOL_ERROR);
        assert_eq!(
            sections.unserved().collect::<Vec<_>>(),
            [Ending::Malformed, Ending::FieldsTooLarge, Ending::Cancelled]
        );
        // What is behind a GOAWAY has not begun.
        write(GOAWAY, 0, 1);
        read(HEADERS, END_HEADERS, 13);
        assert_eq!(sections.unserved().count(), 2);
    }
}
