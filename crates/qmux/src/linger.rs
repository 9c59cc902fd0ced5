//! Close of a TCP connection in such a way that the last sent bytes arrive.
//!
//! The kernel resets a socket that is closed with unread data (RFC 9293 §3.6.1, RFC 2525 §2.17), and the reset can overtake data sent
//! before. An HTTP/2 client that still sends credit for the last response, or an HTTP/1.1 client in the middle of unwanted content, would
//! lose the end of its response. So the sending side is closed first, and received bytes are read and discarded until the client closes too
//! (RFC 9112 §9.6). This begins when nobody uses the connection any more: until then a connection with a closed sending side can be read,
//! as tunnels need it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    runtime::Handle,
    time::{Instant, timeout_at},
};

/// Silence after the end after which the client is assumed to be gone.
const SILENCE: Duration = Duration::from_secs(5);
/// A client that still sends after this long is not listening.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that, when its sending side was closed, waits for its client's end after it was dropped. It has to be dropped within
/// a tokio runtime; without one it ends at once.
#[derive(Debug)]
pub struct Lingering<S, P = ()>
where
    S: AsyncRead + Unpin + Send + 'static,
    P: Send + 'static,
{
    /// Until it is dropped.
    open: Option<(S, P)>,
    shut_down: bool,
}

impl<S: AsyncRead + Unpin + Send + 'static, P: Send + 'static> Lingering<S, P> {
    /// `place` is the connection's place in a limit: it is dropped at the end.
    pub fn new(inner: S, place: P) -> Self {
        Self { open: Some((inner, place)), shut_down: false }
    }

    fn inner(&mut self) -> Pin<&mut S> {
        Pin::new(&mut self.open.as_mut().expect("it is taken by the drop alone").0)
    }
}

impl<S: AsyncRead + Unpin + Send + 'static, P: Send + 'static> Drop for Lingering<S, P> {
    fn drop(&mut self) {
        let open = self.open.take().filter(|_| self.shut_down);
        if let (Some((inner, place)), Ok(runtime)) = (open, Handle::try_current()) {
            runtime.spawn(async move {
                until_end(inner).await;
                drop(place);
            });
        }
    }
}

/// Reads and forgets what comes.
async fn until_end(mut inner: impl AsyncRead + Unpin) {
    let latest = Instant::now() + PATIENCE;
    let mut unwanted = [0; 4096];
    // An error is an end as well: the answer has arrived, or never will.
    while let Ok(Ok(1..)) = timeout_at((Instant::now() + SILENCE).min(latest), inner.read(&mut unwanted)).await {
        if Instant::now() >= latest {
            return;
        }
    }
}

impl<S, P> AsyncRead for Lingering<S, P>
where
    S: AsyncRead + Unpin + Send + 'static,
    P: Send + Unpin + 'static,
{
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_read(cx, buffer)
    }
}

impl<S, P> AsyncWrite for Lingering<S, P>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    P: Send + Unpin + 'static,
{
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.open.as_ref().is_some_and(|(inner, _)| inner.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.inner().poll_shutdown(cx))?;
        self.shut_down = true;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
        sync::oneshot,
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
        let (place, gone) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let mut server = Lingering::new(server, place);
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
        gone.await.unwrap_err();
    }

    /// Time for which a connection to `client` stays.
    async fn stays(far: tokio::io::DuplexStream) -> Duration {
        let begun = Instant::now();
        let (place, gone) = oneshot::channel::<()>();
        let mut connection = Lingering::new(far, place);
        connection.shutdown().await.unwrap();
        drop(connection);
        gone.await.unwrap_err();
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_is_left() {
        let (mut near, far) = tokio::io::duplex(64);
        assert_eq!(stays(far).await, SILENCE);
        // One that sends and sends is left after a while, too.
        let (mut chatty, far) = tokio::io::duplex(64);
        let talking = tokio::spawn(async move {
            while chatty.write_all(b"more").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        assert_eq!(stays(far).await, PATIENCE);
        talking.await.unwrap();
        assert_eq!(near.read(&mut [0; 1]).await.unwrap(), 0);
        // One whose sending side was never closed ends at once.
        let (mut near, far) = tokio::io::duplex(64);
        drop(Lingering::new(far, ()));
        near.write_all(b"x").await.unwrap_err();
    }

    /// Closing one direction does not affect data of the other.
    #[tokio::test]
    async fn what_comes_after_the_end_of_the_sending_side_can_be_read() {
        let (mut client, server) = pair().await;
        let mut server = Lingering::new(server, ());
        server.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        client.write_all(b"still here").await.unwrap();
        client.shutdown().await.unwrap();
        let mut rest = String::new();
        server.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "still here");
    }
}
