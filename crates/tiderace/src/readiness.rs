//! Readiness of a UDP socket, for reading and for writing.
//!
//! On Unix the socket is watched for reading only. If it were watched for both, every datagram that its receiver reads would wake the
//! sender, because the kernel then has room again: half of all wake-ups of a connection on loopback, without benefit. A send rarely has to
//! wait; only then is the socket watched for writing, through a second descriptor.

pub(crate) use platform::Watched;

#[cfg(unix)]
mod platform {
    use std::{
        io,
        net::UdpSocket,
        task::{Context, Poll, ready},
    };

    use tokio::io::{Interest, unix::AsyncFd};

    #[expect(unsafe_code, reason = "the runtime has to trust that the descriptor stays open")]
    fn watch(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
        // SAFETY: a `UdpSocket` owns its descriptor, always gives the same, and keeps it open until it is dropped.
        Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
    }

    /// A socket in the care of the runtime.
    pub(crate) struct Watched {
        socket: AsyncFd<UdpSocket>,
        /// The same socket under a second descriptor, while a send waits.
        writable: Option<AsyncFd<UdpSocket>>,
    }

    impl Watched {
        /// Takes a socket that does not block; must be called within a tokio runtime.
        pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
            Ok(Self { socket: watch(socket, Interest::READABLE)?, writable: None })
        }

        /// Takes a socket that another process reads: arriving datagrams do not wake this one.
        pub(crate) fn unread(socket: UdpSocket) -> io::Result<Self> {
            // What is urgent does not exist on UDP.
            #[cfg(target_os = "linux")]
            let interest = Interest::PRIORITY;
            #[cfg(not(target_os = "linux"))]
            let interest = Interest::READABLE;
            Ok(Self { socket: watch(socket, interest)?, writable: None })
        }

        pub(crate) fn socket(&self) -> &UdpSocket {
            self.socket.get_ref()
        }

        /// Reads once if data is available; otherwise the task is woken when there is.
        pub(crate) fn poll_read<T>(
            &self,
            cx: &mut Context<'_>,
            read: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> Poll<io::Result<T>> {
            let mut guard = ready!(self.socket.poll_read_ready(cx))?;
            // A socket that gave something is asked again, although it may be empty: what arrives meanwhile joins the batch.
            guard
                .try_io(|socket| read(socket.get_ref()))
                .map_or_else(|_| Poll::Ready(Err(io::ErrorKind::WouldBlock.into())), Poll::Ready)
        }

        /// Ready when the socket, which had no room, may have some.
        pub(crate) fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.writable.is_none() {
                let copy = self.socket().try_clone()?;
                self.writable = Some(watch(copy, Interest::WRITABLE)?);
            }
            let watched = self.writable.as_ref().expect("made above");
            let ready = ready!(watched.poll_write_ready(cx)).map(|_| ());
            self.writable = None;
            Poll::Ready(ready)
        }
    }
}

#[cfg(not(unix))]
mod platform {
    use std::{
        io,
        net::UdpSocket,
        task::{Context, Poll, ready},
    };

    use tokio::io::Interest;

    /// A socket registered with the runtime, and a second handle for calls outside of the runtime.
    pub(crate) struct Watched {
        io: tokio::net::UdpSocket,
        socket: UdpSocket,
    }

    impl Watched {
        /// Takes a socket that does not block; must be called within a tokio runtime.
        pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
            Ok(Self { io: tokio::net::UdpSocket::from_std(socket.try_clone()?)?, socket })
        }

        /// Takes a socket that another process reads.
        pub(crate) fn unread(socket: UdpSocket) -> io::Result<Self> {
            Self::new(socket)
        }

        pub(crate) fn socket(&self) -> &UdpSocket {
            &self.socket
        }

        /// Reads once if data is available; otherwise the task is woken when there is.
        pub(crate) fn poll_read<T>(
            &self,
            cx: &mut Context<'_>,
            read: impl FnOnce(&UdpSocket) -> io::Result<T>,
        ) -> Poll<io::Result<T>> {
            ready!(self.io.poll_recv_ready(cx))?;
            Poll::Ready(self.io.try_io(Interest::READABLE, || read(&self.socket)))
        }

        /// Ready when the socket, which had no room, may have some.
        pub(crate) fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            // Only an operation that finds no room takes the readiness back.
            let _ = self.io.try_io(Interest::WRITABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            self.io.poll_send_ready(cx)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io, net::UdpSocket, time::Duration};

    use tokio::time::timeout;

    use super::Watched;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn bound() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    async fn read(watched: &Watched) -> usize {
        loop {
            let read = poll_fn(|cx| watched.poll_read(cx, |socket| socket.recv(&mut [0; 16])));
            match timeout(PATIENCE, read).await.expect("the task is woken") {
                Ok(len) => return len,
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }

    #[tokio::test]
    async fn each_datagram_wakes_the_reader() {
        let (sender, receiver) = (bound(), bound());
        let to = receiver.local_addr().unwrap();
        let watched = Watched::new(receiver).unwrap();
        for len in 1..=3 {
            let sends = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                sender.send_to(&[0; 16][..len], to).unwrap();
            };
            assert_eq!(tokio::join!(read(&watched), sends).0, len);
        }
    }

    #[tokio::test]
    async fn room_is_told_as_often_as_it_is_asked_for() {
        let (sender, receiver) = (bound(), bound());
        let to = receiver.local_addr().unwrap();
        let mut watched = Watched::new(sender).unwrap();
        for _ in 0..3 {
            timeout(PATIENCE, poll_fn(|cx| watched.poll_writable(cx))).await.expect("there is room").unwrap();
            watched.socket().send_to(b"room", to).unwrap();
        }
        // Reading is watched all the while.
        let answerer = bound();
        answerer.send_to(b"answer", watched.socket().local_addr().unwrap()).unwrap();
        assert_eq!(read(&watched).await, 6);
    }
}
