//! Delivery of responses: the time at which a client had acknowledged all of a response.
//!
//! A gateway is done with a response when the transport has taken it, and that says nothing about the client: the kernel takes megabytes
//! of a TCP connection, QUIC takes as much as its window. So that both are measured alike, a response ends with its last acknowledgement. QUIC
//! tells when that is. A TCP socket is asked how much it has not had acknowledged.
//!
//! Data that HTTP/2 holds back because of the client's flow control counts as delivered when the rest is: the window of clients is larger than
//! responses, as a rule.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Time after which a client that acknowledges nothing more is not waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which a response that was handed on is flushed.
const FLUSH: Duration = Duration::from_millis(50);
/// Interval between looks at a socket, as a part of the time since the response, …
const PART: u32 = 64;
/// … and at least this, which is the resolution of timers.
const LEAST: Duration = Duration::from_millis(1);

/// Place in the bytes of a connection: that of the next flush. 0 until then.
#[derive(Clone, Debug, Default)]
struct Mark(Arc<AtomicU64>);

/// Bytes of one TCP connection on their way to the client.
#[derive(Debug, Default)]
pub(crate) struct SentBytes {
    written: AtomicU64,
    /// Marks that wait for a flush.
    marks: Mutex<Vec<Mark>>,
    socket: Mutex<Socket>,
}

/// State of the socket.
#[derive(Clone, Copy, Debug, Default)]
enum Socket {
    Open(RawFd),
    /// Closed then, with this number of acknowledged bytes.
    Closed(u64, Instant),
    #[default]
    None,
}

/// Bytes that a socket has taken and that the peer has not acknowledged.
fn unacknowledged(socket: RawFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one integer.
    #[expect(unsafe_code, reason = "the standard library does not ask for it")]
    let result = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then(|| u64::try_from(bytes).unwrap_or(0))
}

/// Response whose delivery is awaited.
#[derive(Debug)]
pub(crate) struct AwaitedDelivery {
    sent: Arc<SentBytes>,
    mark: Mark,
    begun: Instant,
}

impl SentBytes {
    /// Awaits the delivery of a response that was handed on just now, and that leaves with the next flush.
    pub(crate) fn awaited(self: &Arc<Self>) -> AwaitedDelivery {
        let mark = Mark::default();
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).push(mark.clone());
        AwaitedDelivery { sent: self.clone(), mark, begun: Instant::now() }
    }

    /// All parts are written.
    fn flushed(&self) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        for mark in marks.drain(..) {
            mark.0.store(self.written.load(Relaxed), Relaxed);
        }
    }

    /// Acknowledged bytes, and the time at which the socket was closed.
    fn look(&self) -> (u64, Option<Instant>) {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match *socket {
            Socket::Open(socket) => (self.acknowledged(socket), None),
            Socket::Closed(acknowledged, at) => (acknowledged, Some(at)),
            Socket::None => (0, Some(Instant::now())),
        }
    }

    fn acknowledged(&self, socket: RawFd) -> u64 {
        // In this order: what is written in between makes it less, never more.
        let written = self.written.load(Relaxed);
        unacknowledged(socket).map_or(0, |rest| written.saturating_sub(rest))
    }
}

impl AwaitedDelivery {
    /// End of the response; `None` until it is known. A response that was flushed before this was asked for has no flush of its own.
    fn end(&self, now: Instant) -> Option<u64> {
        match self.mark.0.load(Relaxed) {
            0 if now - self.begun >= FLUSH => Some(self.sent.written.load(Relaxed)),
            0 => None,
            end => Some(end),
        }
    }

    /// Waits until the client has acknowledged the response. Returns when it had; `None` when it never had.
    pub(crate) async fn delivered(self) -> Option<Instant> {
        // The last look at which bytes were missing. Before the first one it is the beginning.
        let mut last = self.begun;
        // The first look at which none was missing, as long as the end is not known.
        let mut none_missing = None;
        loop {
            let now = Instant::now();
            let (acknowledged, closed) = self.sent.look();
            let until = closed.unwrap_or(now).max(last);
            let is_complete = acknowledged >= self.end(now).unwrap_or_else(|| self.sent.written.load(Relaxed));
            // It was between two looks.
            let at = last + (until - last) / 2;
            if !is_complete {
                (last, none_missing) = (now, None);
            } else if self.end(now).is_some() || closed.is_some() {
                return Some(none_missing.unwrap_or(at));
            } else {
                none_missing.get_or_insert(at);
            }
            if closed.is_some() || now - self.begun >= PATIENCE {
                return None;
            }
            tokio::time::sleep(((now - self.begun) / PART).max(LEAST)).await;
        }
    }
}

/// A TCP connection whose sent bytes are counted.
#[derive(Debug)]
pub(crate) struct Counting<S> {
    inner: S,
    sent: Arc<SentBytes>,
}

impl<S: AsRawFd> Counting<S> {
    pub(crate) fn new(inner: S) -> Self {
        let socket = Mutex::new(Socket::Open(inner.as_raw_fd()));
        Self { inner, sent: Arc::new(SentBytes { socket, ..SentBytes::default() }) }
    }

    /// Counts of the connection.
    pub(crate) fn sent(&self) -> Arc<SentBytes> {
        self.sent.clone()
    }
}

impl<S> Drop for Counting<S> {
    fn drop(&mut self) {
        let mut socket = self.sent.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Socket::Open(open) = *socket {
            // The descriptor is closed after this, and may then be that of another connection.
            *socket = Socket::Closed(self.sent.acknowledged(open), Instant::now());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counting<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> Counting<S> {
    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.sent.written.fetch_add(*bytes as u64, Relaxed);
        }
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, data);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, data);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.sent.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Smoothed round-trip time of a socket, which after its handshake is that of the handshake.
pub(crate) fn round_trip(socket: &impl AsRawFd) -> Option<Duration> {
    // SAFETY: all of its fields are numbers, for which zero is a value.
    #[expect(unsafe_code, reason = "the structure is the kernel's")]
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
    // SAFETY: the kernel writes at most `size` bytes into the structure.
    #[expect(unsafe_code, reason = "the standard library does not ask for it")]
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut size)
    };
    (result == 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn pair() -> (TcpStream, Counting<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, Counting::new(listener.accept().await.unwrap().0))
    }

    #[tokio::test]
    async fn what_was_flushed_and_acknowledged_is_delivered() {
        let (mut client, mut server) = pair().await;
        assert!(round_trip(&client).is_some());
        let sent = server.sent();
        let begun = Instant::now();
        let awaited = sent.awaited();
        server.write_all(&[7; 10_000]).await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(awaited.end(begun), Some(10_000));
        // What comes behind it does not belong to it.
        server.write_all(&[7; 100]).await.unwrap();
        server.flush().await.unwrap();
        client.read_exact(&mut [0; 10_100]).await.unwrap();
        assert!(awaited.delivered().await.unwrap() >= begun);
        assert_eq!(sent.look(), (10_100, None));
        // A response that was flushed before.
        assert!(sent.awaited().delivered().await.is_some());
    }

    #[tokio::test]
    async fn a_client_that_closes_has_what_it_has_acknowledged() {
        let (mut client, mut server) = pair().await;
        let sent = server.sent();
        let awaited = sent.awaited();
        server.write_all(&[7; 10_000]).await.unwrap();
        server.flush().await.unwrap();
        client.read_exact(&mut [0; 10_000]).await.unwrap();
        drop(client);
        // Nobody acknowledges this.
        server.write_all(&[7; 100]).await.unwrap();
        drop(server);
        assert!(awaited.delivered().await.is_some());
    }

    #[tokio::test]
    async fn what_the_kernel_holds_is_not_delivered() {
        let (client, mut server) = pair().await;
        let sent = server.sent();
        // More than the receiver's buffer takes: the rest stays in the sender's.
        let mut written = 0_u64;
        while let Ok(Ok(bytes)) = tokio::time::timeout(Duration::from_millis(200), server.write(&[7; 64 * 1024])).await
        {
            written += bytes as u64;
        }
        let awaited = sent.awaited();
        server.flush().await.unwrap();
        assert!(sent.look().0 < written);
        let delivered = tokio::spawn(awaited.delivered());
        tokio::time::sleep(2 * FLUSH).await;
        assert!(!delivered.is_finished());
        drop(client);
        drop(server);
        assert_eq!(delivered.await.unwrap(), None);
    }
}
