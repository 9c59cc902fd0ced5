//! A connection over an `AsyncRead` and `AsyncWrite`, such as TLS on TCP, driven by its own task.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, watch},
};
use units::Instant;
use wire::{Dir, Side, StreamId};

use crate::mux::{Closed, Config, Event, Mux, Refused};

/// Bytes that are read at a time.
const CHUNK: usize = 64 * 1024;
/// Bytes written to the underlying stream at a time: few, so that urgent data does not wait long (§11 of the draft).
const BURST: usize = 32 * 1024;
/// Time limit for the peer's closing record (§7.2 SHOULD).
const PATIENCE: Duration = Duration::from_secs(2);

/// Condition that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wait {
    Connected,
    Open(Dir),
    Accept(Dir),
    Read(StreamId),
    Write(StreamId),
    Datagram,
    Closed,
}

struct State {
    mux: Mux,
    waiting: HashMap<Wait, Vec<Waker>>,
    connected: bool,
}

impl State {
    fn wait(&mut self, what: Wait, cx: &Context<'_>) {
        let wakers = self.waiting.entry(what).or_default();
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
    }

    /// Wakers of the tasks that wait for the events of the connection.
    fn woken(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(event) = self.mux.poll_event() {
            let what = match event {
                Event::Connected => {
                    self.connected = true;
                    Wait::Connected
                }
                Event::Opened(dir) => Wait::Accept(dir),
                Event::Available(dir) => Wait::Open(dir),
                Event::Readable(id) => Wait::Read(id),
                Event::Writable(id) => Wait::Write(id),
                Event::Datagram => Wait::Datagram,
                Event::Closed(_) => {
                    woken.extend(self.waiting.drain().flat_map(|(_, wakers)| wakers));
                    continue;
                }
            };
            woken.extend(self.waiting.remove(&what).into_iter().flatten());
        }
        woken
    }
}

struct Shared {
    state: Mutex<State>,
    /// Work for the driver.
    work: Notify,
    /// The driver has ended.
    gone: watch::Sender<bool>,
    started: std::time::Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }
}

/// Shared handle count; with the last of them the connection is closed.
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.lock().mux.close(0, "");
        self.0.work.notify_one();
    }
}

/// Connection. Clones refer to the same one. Dropping the last handle, streams included, closes it.
#[derive(Clone)]
pub struct Connection {
    held: Arc<Held>,
}

/// The two halves of a bidirectional stream.
pub type Halves = (SendStream, RecvStream);

impl Connection {
    /// Begins on a stream of bytes, driven by a task. Must be called within a tokio runtime.
    pub fn start(io: impl AsyncRead + AsyncWrite + Send + 'static, side: Side, config: Config) -> Self {
        let state = State { mux: Mux::new(side, Instant::ZERO, config), waiting: HashMap::new(), connected: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Notify::new(),
            gone: watch::Sender::new(false),
            started: std::time::Instant::now(),
        });
        let driven = shared.clone();
        tokio::spawn(async move {
            drive(&driven, io).await;
            driven.gone.send_replace(true);
        });
        Self { held: Arc::new(Held(shared)) }
    }

    async fn until<T>(&self, what: Wait, mut look: impl FnMut(&mut Mux) -> Option<T>) -> Result<T, Closed> {
        poll_fn(|cx| {
            let mut state = self.held.0.lock();
            if let Some(found) = look(&mut state.mux) {
                self.held.0.work.notify_one();
                return Poll::Ready(Ok(found));
            }
            if let Some(closed) = state.mux.closed() {
                return Poll::Ready(Err(closed.clone()));
            }
            state.wait(what, cx);
            Poll::Pending
        })
        .await
    }

    /// Waits for the peer's transport parameters.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn connected(&self) -> Result<(), Closed> {
        poll_fn(|cx| {
            let mut state = self.held.0.lock();
            match state.mux.closed() {
                _ if state.connected => return Poll::Ready(Ok(())),
                Some(closed) => return Poll::Ready(Err(closed.clone())),
                None => {}
            }
            state.wait(Wait::Connected, cx);
            Poll::Pending
        })
        .await
    }

    fn halves(&self, id: StreamId) -> Halves {
        let (send, recv) = (self.clone(), self.clone());
        (SendStream { connection: send, id, over: false }, RecvStream { connection: recv, id, over: false })
    }

    /// Opens a bidirectional stream, as soon as the peer permits it. The peer sees it with the first data.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn open_bi(&self) -> Result<Halves, Closed> {
        let id = self.until(Wait::Open(Dir::Bi), |mux| mux.open(Dir::Bi)).await?;
        Ok(self.halves(id))
    }

    /// Opens a unidirectional stream, as soon as the peer allows.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn open_uni(&self) -> Result<SendStream, Closed> {
        let id = self.until(Wait::Open(Dir::Uni), |mux| mux.open(Dir::Uni)).await?;
        Ok(SendStream { connection: self.clone(), id, over: false })
    }

    /// The next bidirectional stream that the peer opened.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn accept_bi(&self) -> Result<Halves, Closed> {
        let id = self.until(Wait::Accept(Dir::Bi), |mux| mux.accept(Dir::Bi)).await?;
        Ok(self.halves(id))
    }

    /// The next unidirectional stream that the peer opened.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn accept_uni(&self) -> Result<RecvStream, Closed> {
        let id = self.until(Wait::Accept(Dir::Uni), |mux| mux.accept(Dir::Uni)).await?;
        Ok(RecvStream { connection: self.clone(), id, over: false })
    }

    /// Queues a datagram; when the queue is full its oldest entry is dropped. What has left arrives.
    ///
    /// # Errors
    /// When the peer takes none of this size, or the connection has ended.
    pub fn send_datagram(&self, data: Bytes) -> Result<(), Refused> {
        let sent = self.held.0.lock().mux.send_datagram(data);
        self.held.0.work.notify_one();
        sent
    }

    /// The next datagram of the peer.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn read_datagram(&self) -> Result<Bytes, Closed> {
        self.until(Wait::Datagram, Mux::recv_datagram).await
    }

    /// The largest datagram that can be sent, in bytes; `None` when the peer takes none.
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.held.0.lock().mux.max_datagram_size()
    }

    /// Closes the connection: what was written and has not left is lost.
    pub fn close(&self, code: u64, reason: &str) {
        let woken = {
            let mut state = self.held.0.lock();
            state.mux.close(code, reason);
            state.woken()
        };
        woken.into_iter().for_each(Waker::wake);
        self.held.0.work.notify_one();
    }

    /// Waits until the connection has ended. Returns the reason.
    pub async fn closed(&self) -> Closed {
        match self.until(Wait::Closed, |_| None::<std::convert::Infallible>).await {
            Err(closed) => closed,
            Ok(never) => match never {},
        }
    }

    /// Waits until the connection has ended and its CONNECTION_CLOSE frame is sent, which takes some seconds at most.
    pub async fn gone(&self) {
        self.closed().await;
        // The sender is kept by this handle.
        let _ = self.held.0.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Reason why the connection has ended, if it is.
    pub fn close_reason(&self) -> Option<Closed> {
        self.held.0.lock().mux.closed().cloned()
    }

    /// Bytes of the peer that are kept.
    pub fn kept(&self) -> u64 {
        self.held.0.lock().mux.kept()
    }
}

/// The sending half of a stream. Dropped before it was finished, it is reset with code 0.
pub struct SendStream {
    connection: Connection,
    id: StreamId,
    over: bool,
}

impl SendStream {
    /// Writes all of `data`.
    ///
    /// # Errors
    /// When the peer wants no more, or the stream or the connection has ended.
    pub async fn write_chunk(&mut self, mut data: Bytes) -> Result<(), Refused> {
        poll_fn(|cx| {
            loop {
                let mut state = self.connection.held.0.lock();
                if data.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                if state.mux.write(self.id, &mut data)? == 0 {
                    state.wait(Wait::Write(self.id), cx);
                    return Poll::Pending;
                }
                drop(state);
                self.connection.held.0.work.notify_one();
            }
        })
        .await
    }

    /// Ends the stream after the written data.
    ///
    /// # Errors
    /// When it has ended.
    pub fn finish(&mut self) -> Result<(), Refused> {
        self.over = true;
        let ended = self.connection.held.0.lock().mux.finish(self.id);
        self.connection.held.0.work.notify_one();
        ended
    }

    /// Gives the stream up.
    ///
    /// # Errors
    /// When it has ended.
    pub fn reset(&mut self, code: u64) -> Result<(), Refused> {
        self.over = true;
        let ended = self.connection.held.0.lock().mux.reset(self.id, code);
        self.connection.held.0.work.notify_one();
        ended
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.over {
            // A connection that has ended needs no CONNECTION_CLOSE.
            let _ = self.reset(0);
        }
    }
}

/// The receiving half of a stream. Dropped before its end, the peer is asked to stop with code 0.
pub struct RecvStream {
    connection: Connection,
    id: StreamId,
    over: bool,
}

impl RecvStream {
    /// Up to `most` bytes; `None` at the end.
    ///
    /// # Errors
    /// When the peer has given the stream up, or the stream or the connection has ended.
    pub async fn read_chunk(&mut self, most: usize) -> Result<Option<Bytes>, Refused> {
        let read = poll_fn(|cx| {
            let mut state = self.connection.held.0.lock();
            match state.mux.read(self.id, most) {
                Ok(Some(data)) if data.is_empty() => {
                    state.wait(Wait::Read(self.id), cx);
                    Poll::Pending
                }
                read => Poll::Ready(read),
            }
        })
        .await;
        self.over |= !matches!(read, Ok(Some(_)));
        // The peer may be told that there is room.
        self.connection.held.0.work.notify_one();
        read
    }

    /// Asks the peer to stop sending.
    pub fn stop(&mut self, code: u64) {
        self.over = true;
        self.connection.held.0.lock().mux.stop(self.id, code);
        self.connection.held.0.work.notify_one();
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if !self.over {
            self.stop(0);
        }
    }
}

/// Carries bytes between the stream below and the state machine until both directions have ended.
async fn drive(shared: &Shared, io: impl AsyncRead + AsyncWrite) {
    let (read, write) = tokio::io::split(io);
    let mut write = std::pin::pin!(write);
    // Reading continues whatever the application and the writer do (§6 of the draft, MUST).
    let reading = async {
        let mut read = std::pin::pin!(read);
        let mut buffer = vec![0; CHUNK];
        loop {
            let length = read.as_mut().read(&mut buffer).await.unwrap_or(0);
            let woken = {
                let mut state = shared.lock();
                match length {
                    0 => state.mux.handle_end(),
                    _ => state.mux.handle_bytes(shared.now(), &buffer[..length]),
                }
                state.woken()
            };
            woken.into_iter().for_each(Waker::wake);
            shared.work.notify_one();
            if length == 0 {
                return;
            }
        }
    };
    let writing = async {
        let ended = write_all(shared, write.as_mut()).await;
        if let Err(error) = ended {
            let woken = {
                let mut state = shared.lock();
                state.mux.handle_end();
                state.woken()
            };
            woken.into_iter().for_each(Waker::wake);
            return Err(error);
        }
        // draft-ietf-quic-qmux §7.2: the sending side is shut down, so that what was said last arrives.
        let _ = write.shutdown().await;
        Ok(())
    };
    let mut watching = std::pin::pin!(watch(shared));
    let mut reading = std::pin::pin!(reading);
    let mut writing = std::pin::pin!(writing);
    let mut read_ended = false;
    loop {
        tokio::select! {
            () = &mut reading, if !read_ended => read_ended = true,
            () = &mut watching => return,
            written = &mut writing => {
                if written.is_ok() && !read_ended {
                    let _ = tokio::time::timeout(PATIENCE, reading).await;
                }
                return;
            }
        }
    }
}

/// Processes timeouts, also while the peer does not read; ends when CONNECTION_CLOSE has had its time.
async fn watch(shared: &Shared) {
    /// At least this often.
    const LOOK: Duration = Duration::from_secs(5);
    loop {
        let (woken, closed, wait) = {
            let mut state = shared.lock();
            let now = shared.now();
            state.mux.handle_timeout(now);
            let wait = state.mux.poll_timeout().map_or(LOOK, |at| at.saturating_since(now).min(LOOK));
            (state.woken(), state.mux.closed().is_some(), wait)
        };
        woken.into_iter().for_each(Waker::wake);
        shared.work.notify_one();
        if closed {
            tokio::time::sleep(2 * PATIENCE).await;
            return;
        }
        tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
    }
}

/// Writes until no bytes are left to send.
async fn write_all(shared: &Shared, mut write: Pin<&mut impl AsyncWrite>) -> io::Result<()> {
    let mut out = Vec::with_capacity(2 * BURST);
    loop {
        let (woken, finished) = {
            let mut state = shared.lock();
            let now = shared.now();
            while out.len() < BURST && state.mux.poll_transmit(now, &mut out) {}
            (state.woken(), state.mux.is_finished())
        };
        woken.into_iter().for_each(Waker::wake);
        if !out.is_empty() {
            write.write_all(&out).await?;
            write.flush().await?;
            out.clear();
            continue;
        }
        if finished {
            return Ok(());
        }
        shared.work.notified().await;
    }
}
