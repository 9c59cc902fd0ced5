//! Streams of extended CONNECT requests: WebTransport sessions (draft-ietf-webtrans-http3 §4), by the stream ID of the request. Streams and
//! datagrams that arrive before their request wait here, bounded and charged.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use tiderace::{Charge, ConnectionBudget, Dir, RecvStream, SendStream, transport::memory::ITEM_OVERHEAD};

use crate::error::{Code, Violation};

/// First number on a bidirectional stream of a session (draft-ietf-webtrans-http3 §4.3).
pub(crate) const SIGNAL: u64 = 0x41;
/// Type of a unidirectional stream of a session (draft-ietf-webtrans-http3 §4.2).
pub(crate) const UNI: u64 = 0x54;

/// Charge of a waiting stream, beside the bytes behind its header: its two halves, and data read by the receiving one.
const WAITING: u64 = 4 * 1024;

/// Streams of a direction that may wait in a session without limits. QUIC does not bound them: one that has ended, and was read to its
/// end, uses no credit.
const MAX_WAITING: usize = 100;

/// Charge of a stream from its acceptance on: what of it is held is that of any stream.
const ACCEPTED: u64 = 4 * ITEM_OVERHEAD;

/// Support of WebTransport sessions on a connection, for [`server::Options`](crate::server::Options) and
/// [`client::Options`](crate::client::Options). The crate `tiderace-webtransport` fills it in.
#[derive(Clone, Debug)]
pub struct SessionSupport {
    /// Further settings, as identifier and value.
    pub settings: Vec<(u64, u64)>,
    /// Streams that may wait for the request that they belong to. More are refused (WT_BUFFERED_STREAM_REJECTED).
    pub max_early_streams: usize,
}

/// A stream that the peer opened for a session.
pub struct SessionStream {
    /// Sending half of a bidirectional stream.
    pub send: Option<SendStream>,
    /// Receiving half.
    pub recv: RecvStream,
    /// Bytes behind the header that were read with it.
    pub rest: Bytes,
    /// Bytes of the header, which names the session.
    pub header: u64,
    /// Charge of the stream while it is held.
    pub charge: Charge,
}

impl SessionStream {
    fn dir(&self) -> Dir {
        if self.send.is_some() { Dir::Bi } else { Dir::Uni }
    }

    /// Gives both directions up.
    pub(crate) fn refuse(mut self, code: Code) {
        if let Some(send) = &mut self.send {
            let _ = send.reset(code.0);
        }
        let _ = self.recv.stop(code.0);
    }
}

/// Streams that were refused, in an open session or before it opened: flow control of the session counts them, and has to return their credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedStreams {
    /// Streams by direction.
    pub streams: [u64; 2],
    /// Bytes behind the headers that the peer may have sent on them.
    pub bytes: u64,
}

impl RefusedStreams {
    fn add(&mut self, more: Self) {
        for (sum, more) in self.streams.iter_mut().zip(more.streams) {
            *sum += more;
        }
        self.bytes += more.bytes;
    }
}

/// A session that has not ended.
#[derive(Default)]
struct Session {
    /// Streams that were not accepted, by direction.
    waiting: [VecDeque<SessionStream>; 2],
    readers: [Option<Waker>; 2],
    /// Streams that the peer has opened, and the most it may, by direction.
    opened: [u64; 2],
    limits: Option<[u64; 2]>,
    /// Refused streams that the session has not heard of, and its waker.
    refused: RefusedStreams,
    refused_reader: Option<Waker>,
    /// Reader of a breach of the limits.
    watcher: Option<Waker>,
    /// Holder of one of the places that the connection has for sessions.
    is_admitted: bool,
}

impl Session {
    fn is_exceeded(&self) -> bool {
        self.limits.is_some_and(|limits| (0..2).any(|dir| self.opened[dir] > limits[dir]))
    }

    fn wake(&mut self) {
        let others = [&mut self.watcher, &mut self.refused_reader];
        for waker in self.readers.iter_mut().chain(others).filter_map(Option::take) {
            waker.wake();
        }
    }
}

/// Streams that were refused before their session opened, and the credit that it owes the peer for them.
#[derive(Default)]
struct EarlyRefused {
    /// Streams by direction. They are owed once they have been reset.
    opened: [u64; 2],
    owed: RefusedStreams,
}

/// Sessions of a connection.
pub(crate) struct Sessions {
    max_early: usize,
    memory: ConnectionBudget,
    open: BTreeMap<u64, Session>,
    /// Tasks that wait for a place, until a session ends.
    waiting: Vec<Waker>,
    /// Streams whose request has not come, or whose header section has not.
    early: Vec<(u64, SessionStream)>,
    /// Streams that were refused before their session opened, by session: at most `max_early` entries.
    early_refused: BTreeMap<u64, EarlyRefused>,
    /// Requests whose header section is being read, and the first that has not come.
    undecided: BTreeSet<u64>,
    next: u64,
    is_over: bool,
}

/// Streams to reset with this code, outside of the lock.
#[must_use]
#[derive(Default)]
pub(crate) struct Refused(Vec<(SessionStream, Code)>);

impl Refused {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn refuse(self) {
        for (stream, code) in self.0 {
            stream.refuse(code);
        }
    }

    /// Resets the streams. Returns what the session owes the peer for them.
    pub(crate) fn refuse_in_session(mut self) -> RefusedStreams {
        let mut refused = RefusedStreams::default();
        for (stream, _) in &mut self.0 {
            refused.streams[stream.dir() as usize] += 1;
            // The final size comes too late to be counted.
            stream.recv.count_received();
            let most = stream.recv.received().map_or(0, |bytes| bytes.limit);
            refused.bytes += most.saturating_sub(stream.header);
        }
        self.refuse();
        refused
    }
}

impl Sessions {
    /// No session. `max_early` is `None` where sessions are not supported.
    pub(crate) fn new(max_early: Option<usize>, memory: ConnectionBudget) -> Self {
        let max_early = max_early.unwrap_or(0);
        let (open, undecided) = (BTreeMap::new(), BTreeSet::new());
        let (waiting, early, early_refused) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { max_early, memory, open, waiting, early, early_refused, undecided, next: 0, is_over: false }
    }

    /// Notes that a client's bidirectional stream has come.
    pub(crate) fn begin(&mut self, stream: u64) {
        self.undecided.insert(stream);
        self.next = self.next.max(stream + 4);
    }

    /// Returns whether the stream may still turn out to be the request of a session.
    pub(crate) fn awaits(&self, stream: u64) -> bool {
        self.max_early > 0 && (stream >= self.next || self.undecided.contains(&stream))
    }

    /// Notes that a stream is no request of a session: what waited for it waits in vain.
    pub(crate) fn decline(&mut self, stream: u64) -> Refused {
        self.early_refused.remove(&stream);
        if !self.undecided.remove(&stream) || self.early.is_empty() {
            return Refused::default();
        }
        Refused(self.take_early(stream).map(|stream| (stream, Code::WT_BUFFERED_STREAM_REJECTED)).collect())
    }

    fn take_early(&mut self, session: u64) -> impl Iterator<Item = SessionStream> {
        self.early.extract_if(.., move |(of, _)| *of == session).map(|(_, stream)| stream)
    }

    /// Notes that a stream is the request of a session.
    pub(crate) fn open(&mut self, session: u64) {
        self.undecided.remove(&session);
        let early = self.early_refused.remove(&session).unwrap_or_default();
        let mut opened = Session { opened: early.opened, refused: early.owed, ..Session::default() };
        for stream in self.take_early(session) {
            let dir = stream.dir() as usize;
            opened.opened[dir] += 1;
            opened.waiting[dir].push_back(stream);
        }
        self.open.insert(session, opened);
    }

    /// Takes a stream of the peer whose header names `session`.
    ///
    /// # Errors
    /// H3_ID_ERROR when that is no client's request stream.
    pub(crate) fn take(
        &mut self,
        session: u64,
        (send, recv, rest, header): (Option<SendStream>, RecvStream, &[u8], u64),
    ) -> Result<Refused, Violation> {
        // What was read with the header is a slice that would pin the whole buffer it came in.
        let charge = self.memory.charge(WAITING + rest.len() as u64);
        let is_charged = charge.is_some();
        let charge = charge.unwrap_or_else(|| self.memory.empty());
        let rest = if is_charged { Bytes::copy_from_slice(rest) } else { Bytes::new() };
        let stream = SessionStream { send, recv, rest, header, charge };
        // draft-ietf-webtrans-http3 §4 MUST: whatever has become of the session
        if !session.is_multiple_of(4) {
            let reason = format!("a stream for session {session}, which no client can begin");
            return Err(Violation { code: Code::ID_ERROR, reason });
        }
        let refused = |stream, code| Ok(Refused(vec![(stream, code)]));
        let Some(open) = self.open.get_mut(&session) else {
            if !self.awaits(session) {
                return refused(stream, Code::WT_SESSION_GONE);
            }
            // draft-ietf-webtrans-http3 §4.6 MUST: their number is limited
            if self.early.len() >= self.max_early || !is_charged {
                // A peer that names more sessions than this loses its credit, and nobody else's.
                if self.early_refused.len() < self.max_early || self.early_refused.contains_key(&session) {
                    self.early_refused.entry(session).or_default().opened[stream.dir() as usize] += 1;
                }
                return refused(stream, Code::WT_BUFFERED_STREAM_REJECTED);
            }
            self.early.push((session, stream));
            return Ok(Refused::default());
        };
        let dir = stream.dir() as usize;
        open.opened[dir] += 1;
        if open.is_exceeded()
            && let Some(watcher) = open.watcher.take()
        {
            watcher.wake();
        }
        let is_full = open.limits.is_none() && open.waiting[dir].len() >= MAX_WAITING;
        if is_full || !is_charged {
            return refused(stream, Code::WT_BUFFERED_STREAM_REJECTED);
        }
        open.waiting[dir].push_back(stream);
        if let Some(reader) = open.readers[dir].take() {
            reader.wake();
        }
        Ok(Refused::default())
    }

    /// The next stream of a session; `None` when the session or the connection has ended.
    pub(crate) fn poll_accept(&mut self, session: u64, dir: Dir, cx: &Context<'_>) -> Poll<Option<SessionStream>> {
        let Some(open) = self.open.get_mut(&session) else { return Poll::Ready(None) };
        if let Some(mut stream) = open.waiting[dir as usize].pop_front() {
            stream.charge.set(ACCEPTED + stream.rest.len() as u64);
            return Poll::Ready(Some(stream));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        open.readers[dir as usize] = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Notes streams that were refused.
    pub(crate) fn on_refused(&mut self, session: u64, refused: RefusedStreams) {
        let Some(open) = self.open.get_mut(&session) else {
            if let Some(early) = self.early_refused.get_mut(&session) {
                early.owed.add(refused);
            }
            return;
        };
        open.refused.add(refused);
        if let Some(reader) = open.refused_reader.take() {
            reader.wake();
        }
    }

    /// Streams that were refused since the last call.
    pub(crate) fn poll_refused(&mut self, session: u64, cx: &Context<'_>) -> Poll<RefusedStreams> {
        let Some(open) = self.open.get_mut(&session) else { return Poll::Pending };
        let refused = std::mem::take(&mut open.refused);
        if refused != RefusedStreams::default() {
            return Poll::Ready(refused);
        }
        open.refused_reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sets the most streams of each direction that the peer may open, over the session's life.
    pub(crate) fn limit(&mut self, session: u64, limits: [u64; 2]) {
        if let Some(open) = self.open.get_mut(&session) {
            open.limits = Some(limits);
        }
    }

    /// Ready when the peer has opened more streams than it may.
    pub(crate) fn poll_exceeded(&mut self, session: u64, cx: &Context<'_>) -> Poll<()> {
        let Some(open) = self.open.get_mut(&session) else { return Poll::Pending };
        if open.is_exceeded() {
            return Poll::Ready(());
        }
        open.watcher = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when the session has one of `max` places; at once when it, or the connection, has ended.
    pub(crate) fn poll_admit(&mut self, session: u64, max: usize, cx: &Context<'_>) -> Poll<()> {
        let taken = self.open.values().filter(|open| open.is_admitted).count();
        let Some(open) = self.open.get_mut(&session) else { return Poll::Ready(()) };
        if self.is_over || open.is_admitted || taken < max {
            open.is_admitted = true;
            return Poll::Ready(());
        }
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Ends a session: its streams are not accepted any more.
    pub(crate) fn close(&mut self, session: u64) -> Refused {
        let Some(mut open) = self.open.remove(&session) else { return Refused::default() };
        open.wake();
        self.waiting.drain(..).for_each(Waker::wake);
        // draft-ietf-webtrans-http3 §6 MUST
        Refused(open.waiting.into_iter().flatten().map(|stream| (stream, Code::WT_SESSION_GONE)).collect())
    }

    /// Wakes all readers: no more data comes.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        self.early.clear();
        self.early_refused.clear();
        self.waiting.drain(..).for_each(Waker::wake);
        for open in self.open.values_mut() {
            open.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use tiderace::ProcessBudget;

    use super::*;

    #[test]
    fn the_end_of_a_session_admits_the_next() {
        let memory = ConnectionBudget::new(1 << 20, &ProcessBudget::default());
        let mut sessions = Sessions::new(Some(1), memory);
        let admits = |sessions: &mut Sessions, session| {
            sessions.poll_admit(session, 2, &Context::from_waker(Waker::noop())).is_ready()
        };
        for session in [0, 4, 8, 12] {
            sessions.open(session);
        }
        // In the order in which they ask, and more than once.
        assert!(admits(&mut sessions, 4) && admits(&mut sessions, 8) && admits(&mut sessions, 4));
        assert!(!admits(&mut sessions, 0) && !admits(&mut sessions, 12));
        drop(sessions.close(8));
        assert!(admits(&mut sessions, 12) && !admits(&mut sessions, 0));
        sessions.end();
        assert!(admits(&mut sessions, 0), "nobody waits for a connection that is over");
    }
}
