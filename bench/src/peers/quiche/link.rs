//! A connection of quiche as the driver and the application's tasks share it: its state, and who waits for what.
//!
//! Tasks call quiche themselves, put the connection on the driver's list when there may be something to send, and leave
//! a waker where they have to wait. The driver calls [`State::settle`] whenever quiche may have made something possible.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use anyhow::{Result, anyhow};
use boring::ssl::SslRef;
use bytes::{BufMut, Bytes, BytesMut};
use quiche::Error;

use super::settings::Buffers;

/// Most bytes taken per read.
const READ: usize = 64 * 1024;
/// Room that a read has at least.
const READ_AT_LEAST: usize = 2 * 1024;
/// Memory for reads; it is used again when all that was read from it is gone.
const READ_BUFFER: usize = 4 * READ;
/// `ssl_early_data_accepted` of BoringSSL.
const EARLY_DATA_ACCEPTED: u32 = 2;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process in any case: it runs on one thread.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that the connections of an endpoint share with its driver.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) agenda: Mutex<Agenda>,
    read_buffer: Mutex<BytesMut>,
}

/// Work of the driver, pending and done.
#[derive(Default)]
pub(super) struct Agenda {
    /// Connections that may have something to send.
    pub(super) list: VecDeque<Arc<Link>>,
    /// The driver, when it waits.
    pub(super) driver: Option<Waker>,
    /// Connections of a server whose handshake is complete.
    pub(super) accepted: VecDeque<Arc<Link>>,
    /// Task that waits for one.
    pub(super) accepting: Option<Waker>,
    /// Connections that are not over.
    pub(super) live: usize,
    /// Task that waits until there are none.
    pub(super) emptying: Option<Waker>,
    /// The driver has ended with an error.
    pub(super) failed: bool,
    /// System calls that sent.
    pub(super) send_calls: u64,
    /// System calls that received something.
    pub(super) receive_calls: u64,
}

/// Stream numbers are no attacker's choice here.
#[derive(Default)]
struct StreamHasher(u64);

impl Hasher for StreamHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("stream numbers are u64");
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type OfStreams = HashMap<u64, Waker, BuildHasherDefault<StreamHasher>>;

/// Tasks that wait.
#[derive(Default)]
struct Waiting {
    established: Vec<Waker>,
    opening: Vec<Waker>,
    accepting: Vec<Waker>,
    reading: OfStreams,
    writing: OfStreams,
    datagram: Vec<Waker>,
    datagram_room: Vec<Waker>,
    over: Vec<Waker>,
}

fn wake(waiting: &mut Vec<Waker>) {
    waiting.drain(..).for_each(Waker::wake);
}

/// A connection.
pub(super) struct Link {
    state: Mutex<State>,
    pub(super) shared: Arc<Shared>,
    /// The IDs by which the other end calls it.
    pub(super) ids: Vec<Vec<u8>>,
}

/// State behind the lock.
pub(super) struct State {
    pub(super) quic: quiche::Connection<Buffers>,
    /// On the driver's list.
    listed: bool,
    /// The driver knows its IDs.
    pub(super) routed: bool,
    /// The driver has forgotten it.
    pub(super) gone: bool,
    /// Time at which the driver looks at its timers, at the latest.
    pub(super) armed: Option<Instant>,
    established: bool,
    over: bool,
    /// Streams opened here.
    opened: u64,
    /// Part of them that quiche has not heard of.
    unheard: u64,
    /// Streams of the other end that nobody has accepted.
    offered: VecDeque<u64>,
    /// Streams of the other end up to this many were seen, but for those in `unseen`.
    seen: u64,
    unseen: BTreeSet<u64>,
    waiting: Waiting,
}

impl Link {
    pub(super) fn new(quic: quiche::Connection<Buffers>, shared: Arc<Shared>, ids: Vec<Vec<u8>>) -> Arc<Self> {
        lock(&shared.agenda).live += 1;
        let state = State {
            quic,
            listed: false,
            routed: false,
            gone: false,
            armed: None,
            established: false,
            over: false,
            opened: 0,
            unheard: 0,
            offered: VecDeque::new(),
            seen: 0,
            unseen: BTreeSet::new(),
            waiting: Waiting::default(),
        };
        Arc::new(Self { state: Mutex::new(state), shared, ids })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Has the driver look whether there is something to send.
    pub(super) fn list(self: &Arc<Self>, state: &mut State) {
        if !state.listed {
            state.listed = true;
            let mut agenda = lock(&self.shared.agenda);
            agenda.list.push_back(self.clone());
            if let Some(driver) = agenda.driver.take() {
                driver.wake();
            }
        }
    }

    /// The next on the driver's list.
    pub(super) fn next(shared: &Shared) -> Option<Arc<Self>> {
        let link = lock(&shared.agenda).list.pop_front()?;
        link.state().listed = false;
        Some(link)
    }

    /// Wakes whom it concerns; a server's new connection becomes acceptable.
    pub(super) fn settle(self: &Arc<Self>, state: &mut State) {
        let had_been_established = state.established;
        state.settle();
        if state.established && !had_been_established && state.quic.is_server() {
            let mut agenda = lock(&self.shared.agenda);
            agenda.accepted.push_back(self.clone());
            if let Some(task) = agenda.accepting.take() {
                task.wake();
            }
        }
    }

    pub(super) fn poll_established(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.state();
        if state.established {
            return Poll::Ready(Ok(()));
        }
        state.pending_unless_over(cx, |waiting| &mut waiting.established)
    }

    /// Returns whether the server took the early data; known when the connection is established.
    pub(super) fn early_data_was_accepted(&self) -> bool {
        self.state().quic.early_data_reason() == EARLY_DATA_ACCEPTED
    }

    /// Negotiated cipher suite, as TLS calls it.
    pub(super) fn cipher_suite(&self) -> Option<&'static str> {
        let mut state = self.state();
        let tls: &mut SslRef = state.quic.as_mut();
        tls.current_cipher()?.standard_name()
    }

    pub(super) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<Result<u64>> {
        let mut state = self.state();
        if !state.may_open() {
            return state.pending_unless_over(cx, |waiting| &mut waiting.opening);
        }
        let id = state.opened * 4 + u64::from(state.quic.is_server());
        state.opened += 1;
        state.unheard += 1;
        Poll::Ready(Ok(id))
    }

    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<u64>> {
        let mut state = self.state();
        match state.offered.pop_front() {
            Some(id) => Poll::Ready(Ok(id)),
            None => state.pending_unless_over(cx, |waiting| &mut waiting.accepting),
        }
    }

    /// Queues what fits of `data`, until nothing is left. `heard` says whether quiche knows of the stream.
    pub(super) fn poll_write(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        id: u64,
        data: &mut Bytes,
        heard: &mut bool,
    ) -> Poll<Result<()>> {
        let mut state = self.state();
        if state.over {
            return Poll::Ready(Err(anyhow!("the connection is over")));
        }
        state.hear(heard);
        match state.quic.stream_send_zc(id, data.clone(), false) {
            Ok((taken, _)) => {
                bytes::Buf::advance(data, taken);
                self.list(&mut state);
            }
            Err(Error::Done) => {}
            Err(error) => return Poll::Ready(Err(error.into())),
        }
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        state.waiting.writing.insert(id, cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn finish(self: &Arc<Self>, id: u64, heard: &mut bool) -> Result<()> {
        let mut state = self.state();
        state.hear(heard);
        state.quic.stream_send(id, &[], true)?;
        self.list(&mut state);
        Ok(())
    }

    /// The next bytes, and whether they are the last.
    pub(super) fn poll_read(self: &Arc<Self>, cx: &mut Context<'_>, id: u64) -> Poll<Result<(Bytes, bool)>> {
        let mut state = self.state();
        let mut buffer = lock(&self.shared.read_buffer);
        if buffer.capacity() < READ_AT_LEAST {
            buffer.reserve(READ_BUFFER);
        }
        let room = buffer.capacity().min(READ);
        match state.quic.stream_recv_buf(id, (&mut *buffer).limit(room)) {
            Ok((_, last)) => {
                let bytes = buffer.split().freeze();
                // The other end may have been given leave to send more.
                self.list(&mut state);
                Poll::Ready(Ok((bytes, last)))
            }
            Err(Error::Done) if !state.over => {
                state.waiting.reading.insert(id, cx.waker().clone());
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    pub(super) fn poll_send_datagram(self: &Arc<Self>, cx: &mut Context<'_>, data: &Bytes) -> Poll<Result<()>> {
        let mut state = self.state();
        if state.quic.is_dgram_send_queue_full() {
            return state.pending_unless_over(cx, |waiting| &mut waiting.datagram_room);
        }
        state.quic.dgram_send_buf(data.clone())?;
        self.list(&mut state);
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_read_datagram(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
        let mut state = self.state();
        match state.quic.dgram_recv_buf() {
            Ok(data) => Poll::Ready(Ok(data)),
            Err(Error::Done) => state.pending_unless_over(cx, |waiting| &mut waiting.datagram),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    pub(super) fn close(self: &Arc<Self>) {
        let mut state = self.state();
        // Fails only where it is closed already.
        let _ = state.quic.close(true, 0, b"done");
        state.settle();
        self.list(&mut state);
    }

    pub(super) fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.over {
            return Poll::Ready(());
        }
        state.waiting.over.push(cx.waker().clone());
        Poll::Pending
    }
}

impl State {
    fn may_open(&self) -> bool {
        self.quic.peer_streams_left_bidi() > self.unheard
    }

    /// A stream is about to be used.
    fn hear(&mut self, heard: &mut bool) {
        if !*heard {
            *heard = true;
            self.unheard -= 1;
        }
    }

    fn pending_unless_over<T>(
        &mut self,
        cx: &mut Context<'_>,
        list: impl FnOnce(&mut Waiting) -> &mut Vec<Waker>,
    ) -> Poll<Result<T>> {
        if self.over {
            let errors = (self.quic.local_error(), self.quic.peer_error());
            return Poll::Ready(Err(anyhow!("the connection is over: {errors:?}")));
        }
        list(&mut self.waiting).push(cx.waker().clone());
        Poll::Pending
    }

    fn settle(&mut self) {
        if !self.established && self.quic.is_established() {
            self.established = true;
            wake(&mut self.waiting.established);
        }
        while let Some(id) = self.quic.stream_readable_next() {
            self.offer(id);
            if let Some(task) = self.waiting.reading.remove(&id) {
                task.wake();
            }
        }
        // What quiche reports while nobody waits is lost, which does no harm: tasks try before they wait.
        if !self.waiting.writing.is_empty() {
            while let Some(id) = self.quic.stream_writable_next() {
                if let Some(task) = self.waiting.writing.remove(&id) {
                    task.wake();
                }
            }
        }
        if !self.waiting.opening.is_empty() && self.may_open() {
            wake(&mut self.waiting.opening);
        }
        if self.quic.dgram_recv_queue_len() > 0 {
            wake(&mut self.waiting.datagram);
        }
        if !self.waiting.datagram_room.is_empty() && !self.quic.is_dgram_send_queue_full() {
            wake(&mut self.waiting.datagram_room);
        }
        if !self.over && (self.quic.local_error().is_some() || self.quic.is_draining() || self.quic.is_closed()) {
            self.end();
        }
    }

    /// A stream that the other end opened, when it is heard of for the first time.
    fn offer(&mut self, id: u64) {
        const KIND: u64 = 3;
        if id & KIND != u64::from(!self.quic.is_server()) {
            return;
        }
        let number = id / 4;
        if number >= self.seen {
            self.unseen.extend(self.seen..number);
            self.seen = number + 1;
        } else if !self.unseen.remove(&number) {
            return;
        }
        self.offered.push_back(id);
        wake(&mut self.waiting.accepting);
    }

    /// The connection has ended for the application: all who wait are told.
    pub(super) fn end(&mut self) {
        self.over = true;
        let mut waiting = std::mem::take(&mut self.waiting);
        for list in [
            &mut waiting.established,
            &mut waiting.opening,
            &mut waiting.accepting,
            &mut waiting.datagram,
            &mut waiting.datagram_room,
            &mut waiting.over,
        ] {
            wake(list);
        }
        waiting.reading.into_values().chain(waiting.writing.into_values()).for_each(Waker::wake);
    }
}
