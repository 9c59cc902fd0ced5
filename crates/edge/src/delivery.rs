//! Delivery of responses: the time at which a client had acknowledged all of a response.
//!
//! A gateway is done with a response when the transport has taken it, and that says nothing about the client: the kernel takes megabytes
//! of a TCP connection, QUIC takes as much as its window. So that both are measured alike, a response ends with its last acknowledgement. QUIC
//! tells when that is. A TCP socket is asked how much it has not had acknowledged.
//!
//! What HTTP/2 holds back because of the client's flow control counts as delivered when the rest is: the window of clients is larger than
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
/// Interval between looks at a socket, as a part of the time since the response, …
const PART: u32 = 64;
/// … and at least this, which is the resolution of timers.
const LEAST: Duration = Duration::from_millis(1);

/// Bytes of one TCP connection on their way to the client.
#[derive(Debug, Default)]
pub(crate) struct SentBytes {
    written: AtomicU64,
    /// Number of times that everything was written.
    flushes: AtomicU64,
    socket: Mutex<Socket>,
}

/// State of the socket.
#[derive(Clone, Copy, Debug, Default)]
enum Socket {
    Open(RawFd),
    /// Closed, and whether the client had everything by then.
    Closed(bool, Instant),
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

/// What a look at a connection shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Bytes that are acknowledged.
    Acknowledged(u64),
    /// The connection is closed; whether the client had everything by then.
    Closed(bool, Instant),
}

impl SentBytes {
    fn look(&self) -> Progress {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match *socket {
            // In this order: what is written in between makes it less, never more.
            Socket::Open(socket) => match (self.written.load(Relaxed), unacknowledged(socket)) {
                (written, Some(rest)) => Progress::Acknowledged(written.saturating_sub(rest)),
                (_, None) => Progress::Closed(false, Instant::now()),
            },
            Socket::Closed(all, at) => Progress::Closed(all, at),
            Socket::None => Progress::Closed(false, Instant::now()),
        }
    }

    /// Waits until the client has acknowledged what the connection holds now. Returns when it had; `None` when it never had.
    pub(crate) async fn delivered(self: Arc<Self>) -> Option<Instant> {
        let begun = Instant::now();
        let before = self.flushes.load(Relaxed);
        // Known with the first flush after the beginning.
        let mut end = None;
        let mut last = begun;
        loop {
            if end.is_none() && self.flushes.load(Relaxed) > before {
                end = Some(self.written.load(Relaxed));
            }
            let now = Instant::now();
            match self.look() {
                Progress::Acknowledged(bytes) if end.is_some_and(|end| bytes >= end) => {
                    // It was between two looks.
                    return Some(last + (now - last) / 2);
                }
                Progress::Acknowledged(_) if now - begun < PATIENCE => {}
                Progress::Closed(true, at) => return Some(at),
                Progress::Acknowledged(_) | Progress::Closed(false, _) => return None,
            }
            last = now;
            tokio::time::sleep((now.elapsed() + (now - begun) / PART).max(LEAST)).await;
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
            *socket = Socket::Closed(unacknowledged(open) == Some(0), Instant::now());
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
            self.sent.flushes.fetch_add(1, Relaxed);
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
        let delivered = tokio::spawn(sent.clone().delivered());
        tokio::task::yield_now().await;
        server.write_all(&[7; 10_000]).await.unwrap();
        let written = Instant::now();
        server.flush().await.unwrap();
        client.read_exact(&mut [0; 10_000]).await.unwrap();
        // The middle between two looks may lie a little before the flush that ended between them.
        assert!(delivered.await.unwrap().unwrap() + Duration::from_secs(1) > written);
        assert_eq!(sent.look(), Progress::Acknowledged(10_000));
        drop(server);
        assert!(matches!(sent.look(), Progress::Closed(true, _)));
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
        let delivered = tokio::spawn(sent.clone().delivered());
        tokio::task::yield_now().await;
        server.flush().await.unwrap();
        assert!(matches!(sent.look(), Progress::Acknowledged(bytes) if bytes < written));
        assert!(!delivered.is_finished());
        drop(client);
        drop(server);
        assert_eq!(delivered.await.unwrap(), None);
    }
}
