//! An application that asks and answers: the client sends a request on a stream, the server an answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use transport::{
    CloseReason, Endpoint, Event, Handle,
    streams::{Order, StreamEvent},
};
use units::Instant;
use wire::{Dir, StreamId};

use super::App;

/// Condition under which an application has nothing left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The client has the whole answer.
    Answered,
    /// The connection has ended.
    Closed,
    /// The test says when it is enough.
    Never,
}

/// One stream: what was read, what is still to be written.
#[derive(Default)]
struct Stream {
    read: usize,
    ended: bool,
    written: usize,
    unwritten: usize,
    finished: bool,
}

/// The bytes of a stream from an offset on: each says where it belongs.
fn content(offset: usize, len: usize) -> Bytes {
    (offset..offset + len).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 16) as u8).collect()
}

/// Either side.
pub struct Exchange {
    pub goal: Goal,
    /// A client closes with code 7 when it has its answer.
    pub close_when_answered: bool,
    /// The client's connection.
    pub handle: Option<Handle>,
    pub accepted: Vec<Handle>,
    pub connected: Option<Instant>,
    /// The client has read the first byte of the answer.
    pub first_byte: Option<Instant>,
    pub answered: Option<Instant>,
    /// Outcomes of early data, in the order of the connections.
    pub early: Vec<bool>,
    pub closed: Option<(Instant, CloseReason)>,
    pub migrated: usize,
    pub migration_failed: usize,
    /// The server thinks: it answers nothing.
    pub thinks: bool,
    /// Times at which something was read.
    pub progress: Vec<Instant>,
    pub tokens: Vec<Bytes>,
    request: usize,
    answer: usize,
    streams: BTreeMap<(Handle, StreamId), Stream>,
}

impl Exchange {
    /// A client that sends `request` bytes and wants `answer` bytes.
    pub fn client(handle: Handle, request: usize, answer: usize) -> Self {
        Self { handle: Some(handle), request, ..Self::server(answer) }
    }

    /// A client whose request may leave before the handshake is complete.
    pub fn early_client(endpoint: &mut Endpoint, handle: Handle, request: usize, answer: usize) -> Self {
        let mut app = Self::client(handle, request, answer);
        if let Some(id) = endpoint.connection_mut(handle).unwrap().open_early(Dir::Bi) {
            app.streams.insert((handle, id), Stream { unwritten: request, ..Stream::default() });
        }
        app
    }

    /// A server that answers each request with `answer` bytes.
    pub fn server(answer: usize) -> Self {
        Self {
            goal: Goal::Answered,
            close_when_answered: false,
            handle: None,
            accepted: Vec::new(),
            connected: None,
            first_byte: None,
            answered: None,
            early: Vec::new(),
            closed: None,
            migrated: 0,
            migration_failed: 0,
            thinks: false,
            progress: Vec::new(),
            tokens: Vec::new(),
            request: 0,
            answer,
            streams: BTreeMap::new(),
        }
    }

    pub fn until(mut self, goal: Goal) -> Self {
        self.goal = goal;
        self
    }

    pub fn reason(&self) -> Option<&CloseReason> {
        self.closed.as_ref().map(|(_, reason)| reason)
    }

    fn is_client(&self) -> bool {
        self.handle.is_some()
    }

    fn on_event(&mut self, now: Instant, endpoint: &mut Endpoint, handle: Handle, event: Event) {
        match event {
            Event::Connected => {
                self.connected = Some(now);
                if self.is_client() && self.streams.is_empty() {
                    let id = endpoint.connection_mut(handle).unwrap().open(Dir::Bi).unwrap();
                    self.streams.insert((handle, id), Stream { unwritten: self.request, ..Stream::default() });
                }
            }
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                let Some(connection) = endpoint.connection_mut(handle) else { return };
                while let Some(id) = connection.accept(Dir::Bi) {
                    self.streams.insert((handle, id), Stream { unwritten: self.answer, ..Stream::default() });
                }
            }
            Event::Closed(reason) => {
                assert!(self.closed.is_none(), "closed twice: {:?}, {reason}", self.closed);
                self.closed = Some((now, reason));
            }
            Event::EarlyData { accepted } => self.early.push(accepted),
            Event::Migrated => self.migrated += 1,
            Event::MigrationFailed => self.migration_failed += 1,
            Event::TokenReceived(token) => self.tokens.push(token),
            _ => {}
        }
    }
}

impl App for Exchange {
    fn act(&mut self, now: Instant, endpoint: &mut Endpoint, events: Vec<(Handle, Event)>) {
        while let Some(handle) = endpoint.poll_accept() {
            self.accepted.push(handle);
        }
        for (handle, event) in events {
            self.on_event(now, endpoint, handle, event);
        }
        let client = self.is_client();
        for (&(handle, id), stream) in &mut self.streams {
            let Some(connection) = endpoint.connection_mut(handle).filter(|c| !c.is_closed()) else { continue };
            while !stream.ended {
                match connection.read(id, usize::MAX, Order::Ordered) {
                    Ok(Some(chunk)) => {
                        assert_eq!(chunk.data, content(stream.read, chunk.data.len()), "{id:?} at {}", stream.read);
                        stream.read += chunk.data.len();
                        if self.progress.last() != Some(&now) {
                            self.progress.push(now);
                        }
                        if client {
                            self.first_byte.get_or_insert(now);
                        }
                    }
                    Ok(None) => stream.ended = true,
                    Err(_) => break,
                }
            }
            // A server answers when it has the whole request.
            while (client || stream.ended && !self.thinks) && !stream.finished {
                let mut data = content(stream.written, stream.unwritten.min(16_384));
                match connection.write(id, &mut data) {
                    Ok(n) => {
                        stream.written += n;
                        stream.unwritten -= n;
                    }
                    Err(_) => break,
                }
                if stream.unwritten == 0 {
                    connection.finish(id).unwrap();
                    stream.finished = true;
                }
            }
            if client && stream.ended && self.answered.is_none() {
                assert_eq!(stream.read, self.answer);
                self.answered = Some(now);
                if self.close_when_answered {
                    connection.close(now, 7, b"done");
                }
            }
        }
    }

    fn finished(&self) -> bool {
        match self.goal {
            Goal::Answered => self.answered.is_some() || !self.is_client(),
            Goal::Closed => self.closed.is_some(),
            Goal::Never => false,
        }
    }
}
