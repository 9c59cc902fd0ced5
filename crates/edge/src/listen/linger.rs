//! The end of a TCP connection, so that what was sent last arrives.
//!
//! A socket that is closed while something unread waits in it is reset by the kernel (RFC 9293 §3.6.1, RFC 2525 §2.17), and the reset
//! can overtake what was sent before. An HTTP/2 client that still sends credit for the last answer, or an HTTP/1.1 client in the middle
//! of content that nobody wants, would lose the end of its answer. So the sending side is closed first, and what comes is read and
//! forgotten until the client has closed, too (RFC 9112 §9.6).

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// A client that sends nothing for this long after the end has gone, or does not mean to close.
const SILENCE: Duration = Duration::from_secs(5);
/// A client that still sends after this long is not listening.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that waits for its client's end when it is shut down.
pub(crate) struct Lingering<S> {
    inner: S,
    end: Option<End>,
}

/// The sending side is closed.
struct End {
    latest: Instant,
    wait: Pin<Box<Sleep>>,
}

impl<S> Lingering<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, end: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.end.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
            this.end = Some(End { latest: Instant::now() + PATIENCE, wait: Box::pin(sleep(SILENCE)) });
        }
        let End { latest, wait } = this.end.as_mut().expect("set above");
        let mut unwanted = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut unwanted);
            match Pin::new(&mut this.inner).poll_read(cx, &mut buffer) {
                // An error is an end as well: the answer has arrived, or never will.
                Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {
                    let now = Instant::now();
                    if now >= *latest {
                        return Poll::Ready(Ok(()));
                    }
                    wait.as_mut().reset((now + SILENCE).min(*latest));
                }
                Poll::Pending => return wait.as_mut().poll(cx).map(Ok),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// The client sends without end what the server does not read, and gets the whole answer nevertheless.
    #[tokio::test]
    async fn an_answer_arrives_although_the_client_still_sends() {
        let (client, server) = pair().await;
        let serving = tokio::spawn(async move {
            let mut server = Lingering::new(server);
            server.write_all(&[7; 1_000_000]).await.unwrap();
            server.shutdown().await.unwrap();
        });
        let (mut from, mut to) = client.into_split();
        let sending = tokio::spawn(async move { while to.write_all(&[1; 1000]).await.is_ok() {} });
        // The reset, if one comes, comes before the first byte is read.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut answer = Vec::new();
        from.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer.len(), 1_000_000);
        sending.abort();
        // The socket closes when the task has let go of its half, too.
        let _ = sending.await;
        drop(from);
        tokio::time::timeout(Duration::from_secs(2), serving).await.expect("the client has closed").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_is_left() {
        let (mut near, far) = tokio::io::duplex(64);
        let begun = Instant::now();
        let serving = tokio::spawn(async move { Lingering::new(far).shutdown().await });
        serving.await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), SILENCE);
        // One that sends and sends is left after a while, too.
        let (mut chatty, far) = tokio::io::duplex(64);
        let begun = Instant::now();
        let talking = tokio::spawn(async move {
            while chatty.write_all(b"more").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        tokio::spawn(async move { Lingering::new(far).shutdown().await }).await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), PATIENCE);
        talking.await.unwrap();
        assert_eq!(near.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
