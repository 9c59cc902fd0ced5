//! Messages and descriptors between two processes, over a Unix stream socket: a length, then JSON. Descriptors follow a message that has
//! their number.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Instant,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Serialize, de::DeserializeOwned};

use super::UpgradeError;

/// Bytes of a message at most: a hundred thousand connection IDs.
const LARGEST: usize = 8 << 20;
/// Descriptors in one system call. Linux takes 253.
const TOGETHER: usize = 64;

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.0
    }

    pub(crate) fn into_stream(self) -> UnixStream {
        self.0
    }

    /// Lets everything that waits for the other process wait until `deadline` at most.
    pub(crate) fn set_deadline(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.set_write_timeout(Some(left))
    }

    pub(crate) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let len = u32::try_from(text.len()).map_err(io::Error::other)?;
        let mut stream = &self.0;
        stream.write_all(&len.to_be_bytes())?;
        stream.write_all(&text)
    }

    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<T> {
        let mut stream = &self.0;
        let mut len = [0; 4];
        stream.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > LARGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes is too large")));
        }
        let mut text = vec![0; len];
        stream.read_exact(&mut text)?;
        serde_json::from_slice(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    pub(crate) fn send_descriptors(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        for some in descriptors.chunks(TOGETHER) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(some)) {
                return Err(io::Error::other("the descriptors find no room"));
            }
            // Descriptors travel with a byte.
            rustix::net::sendmsg(self.0.as_fd(), &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    pub(crate) fn receive_descriptors(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received =
                rustix::net::recvmsg(self.0.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
            let before = descriptors.len();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(some) = message {
                    descriptors.extend(some);
                }
            }
            if received.bytes == 0 || descriptors.len() == before {
                // The limit of open files, or the other process is gone.
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "descriptors are missing"));
            }
        }
        if descriptors.len() > count {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "there are too many descriptors"));
        }
        Ok(descriptors)
    }
}

/// Returns whether an error is a timeout of the other process.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Returns whether an error shows that the other process has ended.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}

/// Returns the stream on the standard input, which is closed then: what the older process has left there for this one.
///
/// # Errors
/// When there is no such socket.
pub fn inherited_stream() -> Result<UnixStream, UpgradeError> {
    let copy = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stream = UnixStream::from(copy);
    // Whatever else is there has no peer of this kind.
    stream.peer_addr().map_err(UpgradeError::NoOlder)?;
    stream.set_nonblocking(false)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?).map_err(io::Error::from)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, time::Duration};

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::new(a), Channel::new(b))
    }

    #[test]
    fn messages_and_descriptors_arrive_in_their_order() {
        let (a, b) = pair();
        let sockets: Vec<UdpSocket> = (0..150).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let sent: Vec<_> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let sending = std::thread::spawn(move || {
            a.send(&"first").unwrap();
            a.send_descriptors(&sockets.iter().map(AsFd::as_fd).collect::<Vec<_>>()).unwrap();
            a.send(&"last").unwrap();
        });
        assert_eq!(b.receive::<String>().unwrap(), "first");
        let got: Vec<_> = b.receive_descriptors(150).unwrap().into_iter().map(UdpSocket::from).collect();
        assert_eq!(got.iter().map(|socket| socket.local_addr().unwrap()).collect::<Vec<_>>(), sent);
        assert_eq!(b.receive::<String>().unwrap(), "last");
        sending.join().unwrap();
        assert!(is_gone(&b.receive::<String>().unwrap_err()));
    }

    #[test]
    fn a_process_that_lies_or_is_slow_is_noticed() {
        let (a, b) = pair();
        b.set_deadline(Instant::now() + Duration::from_millis(20)).unwrap();
        assert!(is_late(&b.receive::<String>().unwrap_err()));
        a.0.try_clone().unwrap().write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert_eq!(b.receive::<String>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        a.send(&5).unwrap();
        assert_eq!(b.receive::<String>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        a.0.try_clone().unwrap().write_all(&[0]).unwrap();
        assert!(b.receive_descriptors(1).is_err(), "a byte without descriptors");
    }
}
