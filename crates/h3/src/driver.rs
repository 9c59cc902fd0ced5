//! The unidirectional streams of a connection, and its datagrams.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tiderace::{RecvStream, SendStream};

use crate::{
    critical_stream::CriticalStream,
    error::{Code, Error, Violation},
    frame::{self, Frames, Kind, Piece, Varint},
    priority,
    sessions::{SIGNAL, UNI},
    settings::Settings,
    shared::{CONTROL, DECODER, ENCODER, PUSH, Shared, Side, State},
};

/// The most that is read from a stream in one go, in bytes.
const READ: usize = 16 * 1024;

/// Datagrams that are taken from the connection in one go.
const DATAGRAMS_AT_ONCE: usize = 256;

/// Role of a unidirectional stream of the peer.
enum Role {
    /// Type not complete yet.
    Unknown(Varint),
    Control(Frames),
    Encoder,
    Decoder,
    /// Of a session, whose number is not complete yet.
    Session(Varint),
}

struct Incoming {
    stream: RecvStream,
    /// Sending half, of a server's bidirectional stream.
    send: Option<SendStream>,
    /// Bytes read of the header.
    header: u64,
    role: Role,
}

impl Incoming {
    fn new(stream: RecvStream, send: Option<SendStream>) -> Self {
        Self { stream, send, header: 0, role: Role::Unknown(Varint::default()) }
    }
}

/// Drives what belongs to no request.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// Control stream of this endpoint. It carries the settings, at most two GOAWAY identifiers, and changes of priorities when nothing else
    /// waits, so it needs no bound.
    control: CriticalStream,
    // RFC 9114 §6.2.1 MUST NOT-2, RFC 9204 §4.2 MUST NOT-2: one that is dropped would ask the peer to stop
    incoming: Vec<Incoming>,
    /// The largest number of a push that the client allows.
    max_push: Option<u64>,
    /// Streams that may be there once: control, encoder, decoder.
    seen: [bool; 3],
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let mut control = CriticalStream::new(CONTROL as u8);
        // RFC 9114 §3.2 MUST-3, RFC 9114 §6.2.1 MUST-1, RFC 9114 §7.2.4 MUST-1, MUST NOT-1, MUST NOT-2: the settings come first, and once
        let others = shared.support.as_ref().map_or(&[][..], |support| &support.settings);
        shared.settings.write(others, control.waiting());
        Self { shared, control, incoming: Vec::new(), max_push: None, seen: [false; 3] }
    }

    /// Queues a GOAWAY (RFC 9114 §5.2).
    pub(crate) fn say_goaway(&mut self, number: u64) {
        self.control.waiting().extend(frame::number_frame(frame::GOAWAY, number));
    }

    /// Does what can be done; ready when the connection has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        match self.try_poll(cx) {
            Ok(()) => Poll::Pending,
            Err(Stop::Violation(violation)) => Poll::Ready(self.shared.fail(violation)),
            Err(Stop::Over(error)) => Poll::Ready(self.shared.over(error)),
        }
    }

    fn try_poll(&mut self, cx: &mut Context<'_>) -> Result<(), Stop> {
        // Changes of priorities wait as long as the server does not read: of each request the last.
        if self.control.is_empty() {
            self.shared.lock().changes.write(self.control.waiting());
        }
        // RFC 9114 §6.2 SHOULD-2, RFC 9114 §7.2.4.2 MUST-1, MUST NOT-2: before all else, and whatever has come
        self.control.poll(cx, &self.shared.quic)?;
        while let Poll::Ready(stream) = self.shared.quic.poll_accept_uni(cx) {
            let stream = stream.map_err(Error::from)?;
            self.incoming.push(Incoming::new(stream, None));
        }
        while self.shared.side == Side::Client
            && let Poll::Ready(stream) = self.shared.quic.poll_accept_bi(cx)
        {
            let (send, recv) = stream.map_err(Error::from)?;
            if self.shared.support.is_some() {
                self.incoming.push(Incoming::new(recv, Some(send)));
                continue;
            }
            return Err(server_request().into());
        }
        let mut at = 0;
        while at < self.incoming.len() {
            match self.read(at, cx)? {
                Read::Open => at += 1,
                Read::Over => drop(self.incoming.swap_remove(at)),
                Read::Handed => {}
            }
        }
        if self.shared.settings.datagrams {
            let mut datagrams = Vec::new();
            while let Poll::Ready(taken) = self.shared.quic.poll_read_datagrams(cx, &mut datagrams, DATAGRAMS_AT_ONCE) {
                taken.map_err(Error::from)?;
                let State { flows, sessions, .. } = &mut *self.shared.lock();
                for datagram in datagrams.drain(..) {
                    flows.take(datagram, |stream| sessions.awaits(stream))?;
                }
                flows.settle();
            }
        }
        let held = self.held();
        // Last, so that what was read is answered: whoever has something to say from here on wakes this task.
        let state = &mut *self.shared.lock();
        if state.driver.as_ref().is_none_or(|driver| !driver.will_wake(cx.waker())) {
            state.driver = Some(cx.waker().clone());
            if !state.changes.is_empty() {
                cx.waker().wake_by_ref();
            }
        }
        state.encoder_stream.poll(cx, &self.shared.quic)?;
        state.decoder_stream.poll(cx, &self.shared.quic)?;
        state.charge_queues(held);
        Ok(())
    }

    /// Bytes held for the streams that belong to no request: as many as the peer may open, and a frame of the control stream.
    fn held(&self) -> usize {
        let frames = self.incoming.iter().map(|incoming| match &incoming.role {
            Role::Control(frames) => frames.held(),
            _ => 0,
        });
        self.control.held() + self.incoming.capacity() * size_of::<Incoming>() + frames.sum::<usize>()
    }

    /// Reads the data that has arrived on a stream.
    fn read(&mut self, at: usize, cx: &mut Context<'_>) -> Result<Read, Stop> {
        loop {
            let Incoming { stream, role, header, .. } = &mut self.incoming[at];
            let data = match stream.poll_read_chunk(cx, READ) {
                Poll::Pending => return Ok(Read::Open),
                Poll::Ready(Ok(data)) => data,
                Poll::Ready(Err(tiderace::ReadError::Reset(_))) => None,
                Poll::Ready(Err(error)) => return Err(Error::from(error).into()),
            };
            let Some(mut data) = data else {
                // RFC 9114 §6.2 MUST-3: what ends before its type means nothing
                // RFC 9114 §6.2.1 MUST-4, RFC 9204 §4.2 MUST-3: what the connection needs may not end
                return match role {
                    Role::Unknown(_) | Role::Session(_) => Ok(Read::Over),
                    _ => {
                        let reason = "a stream that the connection needs was closed".to_owned();
                        Err(Violation { code: Code::CLOSED_CRITICAL_STREAM, reason }.into())
                    }
                };
            };
            // RFC 9114 §6.2 SHOULD NOT-1: nothing is ignored before the type has come
            if let Role::Unknown(number) = role {
                let Some(ty) = number.take(&mut data, header) else { continue };
                match self.role(ty, at)? {
                    Some(role) => self.incoming[at].role = role,
                    None => {
                        // RFC 9114 §6.2 MUST-2, MUST NOT-1, SHOULD-3
                        // RFC 9114 §6.2.3 MUST NOT-1, RFC 9114 §9 MUST-2: what is not known is not read
                        let _ = self.incoming[at].stream.stop(Code::STREAM_CREATION_ERROR.0);
                        return Ok(Read::Over);
                    }
                }
            }
            let Incoming { role, header, .. } = &mut self.incoming[at];
            if let Role::Session(number) = role {
                let Some(session) = number.take(&mut data, header) else { continue };
                let Incoming { stream, send, header, .. } = self.incoming.swap_remove(at);
                self.shared.on_session_stream(session, (send, stream, &data, header))?;
                return Ok(Read::Handed);
            }
            if !data.is_empty() {
                self.take(at, data)?;
            }
        }
    }

    /// Role for a stream type; `None` when the type is not known.
    fn role(&mut self, ty: u64, at: usize) -> Result<Option<Role>, Violation> {
        let (is_bidi, has_sessions) = (self.incoming[at].send.is_some(), self.shared.support.is_some());
        let (place, role) = match (ty, self.shared.side) {
            // draft-ietf-webtrans-http3 §4.2, §4.3
            (SIGNAL, _) if is_bidi => return Ok(Some(Role::Session(Varint::default()))),
            _ if is_bidi => return Err(server_request()),
            (UNI, _) if has_sessions => return Ok(Some(Role::Session(Varint::default()))),
            // RFC 9204 §4.2 MUST-4, MUST NOT-2: those of QPACK are taken, and read, also from who has nothing to say on them
            (CONTROL, _) => (0, Role::Control(Frames::with_sessions(Kind::Control, self.shared.support.is_some()))),
            (ENCODER, _) => (1, Role::Encoder),
            (DECODER, _) => (2, Role::Decoder),
            // RFC 9114 §6.2.2 MUST-1: clients do not push
            (PUSH, Side::Server) => {
                let reason = "a push by a client".to_owned();
                return Err(Violation { code: Code::STREAM_CREATION_ERROR, reason });
            }
            // RFC 9114 §4.6 MUST-1: no server was allowed to
            (PUSH, Side::Client) => {
                return Err(Violation { code: Code::ID_ERROR, reason: "a push that was not allowed".to_owned() });
            }
            _ => return Ok(None),
        };
        // RFC 9114 §6.2.1 MUST-3, RFC 9204 §4.2 MUST-2: of each, there is one
        if std::mem::replace(&mut self.seen[place], true) {
            let reason = format!("a second stream of type {ty:#x}");
            return Err(Violation { code: Code::STREAM_CREATION_ERROR, reason });
        }
        Ok(Some(role))
    }

    fn take(&mut self, at: usize, data: Bytes) -> Result<(), Violation> {
        match &mut self.incoming[at].role {
            Role::Unknown(_) | Role::Session(_) => unreachable!("its type was read before"),
            Role::Encoder => self.shared.on_encoder_stream(&data),
            Role::Decoder => self.shared.on_decoder_stream(&data),
            Role::Control(frames) => {
                frames.push(data);
                loop {
                    let Role::Control(frames) = &mut self.incoming[at].role else { unreachable!("it is one") };
                    match frames.next()? {
                        Some(Piece::Frame { ty, payload }) => self.control_frame(ty, &payload)?,
                        Some(Piece::Data(_)) => unreachable!("DATA has no place on a control stream"),
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    fn control_frame(&mut self, ty: u64, payload: &Bytes) -> Result<(), Violation> {
        let side = self.shared.side;
        // They come first: `Frames` sees to it.
        let is_first = self.shared.lock().peer.is_none();
        let unexpected = |what: &str| Violation { code: Code::FRAME_UNEXPECTED, reason: what.to_owned() };
        match ty {
            frame::SETTINGS if is_first => return self.shared.on_settings(Settings::read(payload)?),
            // RFC 9114 §7.2.4 MUST-2
            frame::SETTINGS => return Err(unexpected("settings for the second time")),
            frame::GOAWAY => return self.shared.on_goaway(frame::read_number(payload)?),
            frame::MAX_PUSH_ID if side == Side::Server => {
                let number = frame::read_number(payload)?;
                // RFC 9114 §7.2.7 MUST-3: it does not go down
                if self.max_push.is_some_and(|before| number < before) {
                    let reason = "a limit for pushes that goes down".to_owned();
                    return Err(Violation { code: Code::ID_ERROR, reason });
                }
                self.max_push = Some(number);
            }
            // RFC 9114 §7.2.7 MUST-2
            frame::MAX_PUSH_ID => return Err(unexpected("a limit for pushes from a server")),
            frame::CANCEL_PUSH => {
                frame::read_number(payload)?;
                // RFC 9114 §7.2.3 MUST-2, MUST-3: neither was one promised, nor is one allowed
                let reason = "a push that does not exist is cancelled".to_owned();
                return Err(Violation { code: Code::ID_ERROR, reason });
            }
            frame::PRIORITY_UPDATE if side == Side::Server => {
                let Some(update) = priority::read_update(payload) else {
                    let reason = "a change of a priority that names no stream".to_owned();
                    return Err(Violation { code: Code::FRAME_ERROR, reason });
                };
                return self.shared.on_priority(update.stream, update.priority);
            }
            frame::PRIORITY_UPDATE_PUSH if side == Side::Server => {
                // RFC 9218 §7.2 MUST-7: about a push that was never promised
                let reason = "a priority for a push that does not exist".to_owned();
                return Err(Violation { code: Code::ID_ERROR, reason });
            }
            // RFC 9218 §7.2 MUST-8
            frame::PRIORITY_UPDATE | frame::PRIORITY_UPDATE_PUSH => {
                return Err(unexpected("a change of a priority from a server"));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Violation by a bidirectional stream of a server that belongs to no session.
fn server_request() -> Violation {
    // RFC 9114 §6.1 MUST-1: servers begin no requests
    Violation { code: Code::STREAM_CREATION_ERROR, reason: "a request by a server".to_owned() }
}

/// Outcome of reading a stream.
enum Read {
    /// More is to come.
    Open,
    /// No more data comes, or no task reads it.
    Over,
    /// A session has the stream.
    Handed,
}

/// Reason why the driver ends.
enum Stop {
    Violation(Violation),
    Over(Error),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Over(error)
    }
}
