//! Relay between two sessions: that of a client, and the one at a back end that speaks WebTransport. Streams of both kinds and both sides,
//! datagrams, resets, stops, drains and closes pass with their codes.
//!
//! **A slow side holds the other up.** A direction of a stream holds one read, charged to the client's connection, and reads no more before
//! the other side has taken it. What was taken waits in the send buffer of a connection, which is bounded. A stream for whose reads the
//! client's connection has no memory waits for it, and keeps its place among the streams of the session: so the sender gets no credit for
//! another one.
//!
//! **What came before a reset arrives before it** (RESET_STREAM_AT), as far as it was read here: nobody can tell here how much of it the sender
//! counts on.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::task::JoinSet;
use webtransport::{ReadError, RecvStream, SendStream, Session, SessionEnd, WriteError};

use super::{
    datagrams,
    halves::Counters,
    session::{EXCESS, PROTOCOL},
};
use crate::{
    ending::Cause,
    generation::Shared,
    observe::Direction,
    room::{ReadRoom, Rooms},
    stream::{self, Entry},
};

/// Time for the end of a session, whose streams may end before it, without a code of the application.
const GRACE: Duration = Duration::from_millis(500);

/// Two sessions that are joined.
pub(super) struct Relay<'a> {
    pub(super) client: &'a Session,
    pub(super) back_end: &'a Session,
    pub(super) counters: &'a Counters,
    /// Memory of the client's connection.
    pub(super) rooms: &'a Rooms,
    /// Streams at a time, of both sides.
    pub(super) streams: usize,
    pub(super) shared: &'a Arc<Shared>,
    pub(super) cause: &'a Cause,
}

/// A stream that one side has opened.
enum Opened {
    Bi(SendStream, RecvStream),
    Uni(RecvStream),
}

impl Opened {
    fn refuse(self, code: u32) {
        let mut recv = match self {
            Self::Bi(mut send, recv) => {
                send.reset(code);
                recv
            }
            Self::Uni(recv) => recv,
        };
        recv.stop(code);
    }
}

/// End of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    /// Finished by the sender, or not wanted by the receiver any more.
    Over,
    /// Reset by the sender.
    Reset,
}

impl Relay<'_> {
    /// Carries all of both sessions, until that of the back end has ended. Streams are `tasks`.
    pub(super) async fn run(&self, tasks: &mut JoinSet<()>) -> SessionEnd {
        let (client, back_end) = (self.client, self.back_end);
        let mut datagrams = std::pin::pin!(async {
            tokio::join!(
                datagrams::pass_on(client, back_end, Direction::Up, self.counters),
                datagrams::pass_on(back_end, client, Direction::Down, self.counters)
            );
            // One of the sessions has ended.
            std::future::pending::<()>().await;
        });
        let mut has_asked = [false; 2];
        loop {
            let (opened, by) = tokio::select! {
                biased;
                end = back_end.closed() => return end,
                () = client.draining(), if !has_asked[0] => {
                    has_asked[0] = true;
                    back_end.drain();
                    continue;
                }
                () = back_end.draining(), if !has_asked[1] => {
                    has_asked[1] = true;
                    client.drain();
                    continue;
                }
                Some(_) = tasks.join_next() => continue,
                Ok((send, recv)) = client.accept_bi() => (Opened::Bi(send, recv), Direction::Up),
                Ok(recv) = client.accept_uni() => (Opened::Uni(recv), Direction::Up),
                Ok((send, recv)) = back_end.accept_bi() => (Opened::Bi(send, recv), Direction::Down),
                Ok(recv) = back_end.accept_uni() => (Opened::Uni(recv), Direction::Down),
                () = &mut datagrams => continue,
            };
            self.begin(opened, by, tasks);
        }
    }

    /// Begins a stream that the sender of this direction has opened, if there is a place for it.
    fn begin(&self, opened: Opened, by: Direction, tasks: &mut JoinSet<()>) {
        self.counters.activity.note();
        self.counters.traffic.on_stream();
        if tasks.len() >= self.streams {
            stream::count_refused(PROTOCOL, "excess", self.shared);
            return opened.refuse(u32::try_from(EXCESS).unwrap_or_default());
        }
        let entry = Entry::begin(self.shared, PROTOCOL, self.cause);
        let other = match by {
            Direction::Up => self.back_end.clone(),
            Direction::Down => self.client.clone(),
        };
        let (counters, rooms) = (self.counters.clone(), self.rooms.clone());
        tasks.spawn(async move {
            let (there, back) = match opened {
                Opened::Bi(send, recv) => {
                    let (room, back_room) = rooms.both().await;
                    let Ok((other_send, other_recv)) = other.open_bi().await else { return session_ends().await };
                    let back = copy(other_recv, send, by.opposite(), &counters, back_room);
                    tokio::join!(copy(recv, other_send, by, &counters, room), back)
                }
                Opened::Uni(recv) => {
                    let room = rooms.one().await;
                    let Ok(other_send) = other.open_uni().await else { return session_ends().await };
                    (copy(recv, other_send, by, &counters, room).await, Copied::Over)
                }
            };
            let (up, down) = if by == Direction::Up { (there, back) } else { (back, there) };
            entry.end(match (up, down) {
                (Copied::Reset, _) => "reset",
                (_, Copied::Reset) => "broken",
                _ => "completed",
            });
        });
    }
}

/// Waits for the end of the session, which ends its streams.
async fn session_ends<T>() -> T {
    std::future::pending().await
}

/// Copies one direction of a stream.
async fn copy(
    mut from: RecvStream,
    mut to: SendStream,
    direction: Direction,
    counters: &Counters,
    mut room: ReadRoom,
) -> Copied {
    loop {
        let read = tokio::select! {
            biased;
            read = from.read_chunk(room.bytes()) => read,
            error = to.stopped() => return unwanted(from, error).await,
        };
        match read {
            Ok(Some(data)) => {
                room.on_read(data.len());
                // What arrives is a slice of a buffer, which would stay as long as the other side does not read.
                let data = Bytes::copy_from_slice(&data);
                let length = data.len();
                if let Err(error) = to.write_chunk(data).await {
                    return unwanted(from, error).await;
                }
                counters.on_bytes(direction, length);
            }
            Ok(None) | Err(ReadError::StreamClosed) => {
                // Only a stream that has ended cannot be ended.
                let _ = to.finish();
                return Copied::Over;
            }
            Err(ReadError::Reset(code)) => {
                if code.is_none() {
                    tokio::time::sleep(GRACE).await;
                }
                to.reset_after_written(code.unwrap_or(0));
                return Copied::Reset;
            }
            Err(_) => return session_ends().await,
        }
    }
}

/// Tells the sender that the receiver wants no more.
async fn unwanted(mut from: RecvStream, error: WriteError) -> Copied {
    match error {
        WriteError::Stopped(code) => {
            if code.is_none() {
                tokio::time::sleep(GRACE).await;
            }
            from.stop(code.unwrap_or(0));
            Copied::Over
        }
        WriteError::StreamClosed => Copied::Over,
        _ => session_ends().await,
    }
}

/// Ends a session as the other one has ended: with the code and message of a close, or without.
pub(super) fn pass_end(end: &SessionEnd, other: &Session) {
    match end {
        SessionEnd::ClosedByPeer { code, reason } => other.close(*code, reason),
        SessionEnd::ClosedHere { code } => other.close(*code, "the gateway ends the session"),
        _ => other.abort(),
    }
}
