//! Reading of the socket to which the kernel steers the packets of a process that has handed over.

use std::{
    io,
    task::{Context, Poll},
};

use transport::Datagram;
use units::Instant;

use super::{OwnSocket, OwnWay};
use crate::{
    clock::Clock,
    socket::{Socket, is_transient},
};

/// Payloads of other processes that the socket may receive before its process gives it up.
///
/// A few are no fault: the kernel may join packets that one client sends to two processes. More would cost a client that waits for an
/// answer, and sends ever more rarely, too much time.
const MOST_MISDIRECTED: u64 = 8;
/// System calls for reading before other work gets its turn.
const READS_PER_PASS: usize = 16;

/// Outcome of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steered {
    /// More datagrams may wait.
    More,
    /// The next datagram wakes the task.
    Waiting,
    /// The packets come the other way from here on: the serving process forwards them.
    GivenUp,
}

/// Socket of an older process.
pub(crate) struct SteeredSocket {
    socket: Socket,
    way: OwnWay,
    misdirected: u64,
}

impl SteeredSocket {
    /// Takes a socket, or gives it up if it cannot be read; must be called within a tokio runtime.
    pub(crate) fn new(own: OwnSocket) -> Option<Self> {
        match Socket::new(own.socket) {
            Ok(socket) => Some(Self { socket, way: own.way, misdirected: 0 }),
            Err(error) => {
                // The socket is closed, which has emptied its place.
                tracing::error!("packets of this process have to be forwarded: {error}");
                None
            }
        }
    }

    /// Passes reads to `take`, with the generation of this process; it returns how many payloads were for another one.
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        clock: &Clock,
        mut take: impl FnMut(Instant, Datagram, u8) -> u64,
    ) -> Steered {
        let own = self.way.generation();
        let misdirected = &mut self.misdirected;
        for _ in 0..READS_PER_PASS {
            let read = self.socket.poll_recv(cx, clock, |now, datagram, _| *misdirected += take(now, datagram, own));
            match read {
                Poll::Pending => return Steered::Waiting,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::WouldBlock || is_transient(&error) => {}
                Poll::Ready(Err(error)) => {
                    tracing::error!("packets of this process have to be forwarded: {error}");
                    return Steered::GivenUp;
                }
            }
            if *misdirected > MOST_MISDIRECTED {
                tracing::error!("the kernel steers packets of other processes here: all are forwarded from here on");
                return Steered::GivenUp;
            }
        }
        Steered::More
    }
}
