//! Limits on TCP clients: a client that does not read loses its connection, and a client that sends much at once is read in turns.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use crate::ending::{Cause, Ending};

/// Bytes read in one turn. HTTP/2 reads all available data before it processes a request, so larger turns would hold more of requests than
/// their limits permit.
const TURN: usize = 16 * 1024;

/// A connection whose writes fail when the peer does not read for a time.
#[derive(Debug)]
pub(crate) struct Stalling<S> {
    inner: S,
    patience: Duration,
    /// Cause of the connection's end, noted here.
    cause: Cause,
    /// Made with the first wait: most writes find room.
    wait: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    /// Bytes read in this turn.
    turn: usize,
}

impl<S> Stalling<S> {
    pub(crate) fn new(inner: S, patience: Duration, cause: Cause) -> Self {
        Self { inner, patience, cause, wait: None, is_waiting: false, turn: 0 }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.is_waiting = false;
            return done;
        }
        let patience = self.patience;
        let wait = self.wait.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        if !std::mem::replace(&mut self.is_waiting, true) {
            wait.as_mut().reset(Instant::now() + patience);
        }
        ready!(wait.as_mut().poll(cx));
        self.cause.note(Ending::Unread);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what is sent to it")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.turn >= TURN {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        self.turn = if read.is_ready() { self.turn + buffer.filled().len() - before } else { 0 };
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(cx, data);
        self.watch(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write_vectored(cx, data);
        self.watch(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_takes_a_little_may_go_on_and_who_takes_nothing_may_not() {
        let (mut client, server) = tokio::io::duplex(100);
        let mut server = Stalling::new(server, Duration::from_secs(10), Cause::default());
        let sending = tokio::spawn(async move {
            let sent = server.write_all(&[7; 1_000]).await;
            (sent, tokio::time::Instant::now())
        });
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            client.read_exact(&mut [0; 10]).await.unwrap();
        }
        let last = tokio::time::Instant::now();
        let (sent, at) = sending.await.unwrap();
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!((10..12).contains(&(at - last).as_secs()));
    }
}
