//! State shared by the streams of a connection: compression, the peer's control stream, the end.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use qpack::{Decoder, Encoder, Field, SectionError};
use tiderace::{Charge, ConnectionBudget, Priority, ProcessBudget, StreamId};
use tokio::sync::Notify;

use crate::{
    compression::Compression,
    critical_stream::CriticalStream,
    error::{Code, Error, Violation},
    fields::{self, Collector},
    flows::Flows,
    frame,
    priority::Updates,
    priority_update::Changes,
    sessions::{SessionSupport, Sessions},
    settings::Settings,
};

/// Bytes that each of the two tables of a connection may have (RFC 9204 §3.2).
pub(crate) const TABLE: usize = 4096;

/// Types of unidirectional streams (RFC 9114 §6.2, RFC 9204 §4.2).
pub(crate) const CONTROL: u64 = 0x0;
pub(crate) const PUSH: u64 = 0x1;
pub(crate) const ENCODER: u64 = 0x2;
pub(crate) const DECODER: u64 = 0x3;

/// Bytes that a connection may hold when its transport is gone before it was asked.
const ORPHAN: u64 = 1 << 20;

/// Role of this endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// State of a connection that its driver and all handles share.
pub(crate) struct Shared {
    pub(crate) quic: tiderace::Connection,
    pub(crate) side: Side,
    /// Settings sent to the peer.
    pub(crate) settings: Settings,
    /// Support of sessions, where there is some.
    pub(crate) support: Option<SessionSupport>,
    /// Content is returned as copies: it waits for slow readers.
    pub(crate) copies: bool,
    compression: Arc<Compression>,
    /// Memory budget of the connection, in all layers.
    pub(crate) memory: ConnectionBudget,
    /// Time after which a peer that does not read a message loses its stream.
    pub(crate) write_timeout: Option<Duration>,
    state: Mutex<State>,
    /// The peer has sent its settings or GOAWAY, or the connection has ended.
    pub(crate) heard: Notify,
}

/// Handle to a connection that is in use. With the last one the connection is closed.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.quic.close(Code::NO_ERROR.0, b"");
    }
}

pub(crate) struct State {
    encoder: Encoder,
    decoder: Decoder,
    pub(crate) encoder_stream: CriticalStream,
    pub(crate) decoder_stream: CriticalStream,
    /// The peer's settings, when they have come.
    pub(crate) peer: Option<Settings>,
    /// Settings of the peer that HTTP/3 does not define, where sessions need them.
    pub(crate) peer_others: Vec<(u64, u64)>,
    /// The number in the peer's last GOAWAY.
    pub(crate) goaway: Option<u64>,
    /// Reason why the connection has ended.
    pub(crate) failure: Option<Error>,
    /// Changes of priorities that have come before the requests that they are about.
    updates: Updates,
    pub(crate) changes: Changes,
    pub(crate) flows: Flows,
    pub(crate) sessions: Sessions,
    /// Charge of the queues of streams that belong to no request.
    queues: Charge,
    /// Waker of the driver, for work that only it can do.
    pub(crate) driver: Option<Waker>,
}

impl State {
    /// Charges data that waits on the streams other than requests, which have separate bounds; `others` is that of the driver.
    pub(crate) fn charge_queues(&mut self, others: usize) {
        let held = others + self.encoder_stream.held() + self.decoder_stream.held() + self.updates.held();
        if held as u64 != self.queues.bytes() {
            self.queues.set(held as u64);
        }
    }

    pub(crate) fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }
}

impl Shared {
    pub(crate) fn new(
        quic: tiderace::Connection,
        side: Side,
        settings: Settings,
        support: Option<SessionSupport>,
        copies: bool,
        compression: Arc<Compression>,
        write_timeout: Option<Duration>,
    ) -> Arc<Self> {
        // A client knows its own requests: what belongs to none of them never will.
        let max_early = support.as_ref().filter(|_| side == Side::Server).map(|support| support.max_early_streams);
        let memory = quic.memory_budget().unwrap_or_else(|| ConnectionBudget::new(ORPHAN, &ProcessBudget::default()));
        let state = State {
            encoder: Encoder::new(TABLE),
            decoder: Decoder::new(TABLE),
            encoder_stream: CriticalStream::new(ENCODER as u8),
            decoder_stream: CriticalStream::new(DECODER as u8),
            peer: None,
            peer_others: Vec::new(),
            goaway: None,
            failure: None,
            updates: Updates::default(),
            changes: Changes::default(),
            flows: Flows::new(memory.empty()),
            sessions: Sessions::new(max_early, memory.clone()),
            queues: memory.empty(),
            driver: None,
        };
        Arc::new(Self {
            quic,
            side,
            settings,
            support,
            copies,
            compression,
            memory,
            write_timeout,
            state: Mutex::new(state),
            heard: Notify::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connection because of a rule that the peer has broken.
    pub(crate) fn fail(&self, violation: Violation) -> Error {
        let Violation { code, reason } = violation.clone();
        // Before whoever sees the connection closed gives that as its reason.
        let error = self.over(violation.into());
        self.quic.close(code.0, reason.as_bytes());
        error
    }

    /// Ends the connection and wakes all tasks that wait for it. Returns the first reason of the end.
    pub(crate) fn over(&self, error: Error) -> Error {
        let first = {
            let state = &mut *self.lock();
            state.flows.end();
            state.sessions.end();
            state.failure.get_or_insert(error).clone()
        };
        self.heard.notify_waiters();
        first
    }

    /// Reason why the connection has ended: that of this end, if it has one, else `error`.
    pub(crate) fn end(&self, error: Error) -> Error {
        self.lock().failure.clone().unwrap_or(error)
    }

    /// A HEADERS frame.
    ///
    /// # Errors
    /// When the fields are larger than the peer takes.
    pub(crate) fn headers<'a, I: Iterator<Item = Field<'a>>>(
        &self,
        stream: StreamId,
        fields: impl Fn() -> I,
    ) -> Result<Vec<u8>, Error> {
        let mut block = Vec::with_capacity(256);
        let mut stuck = false;
        {
            let state = &mut *self.lock();
            // RFC 9114 §4.2.2 SHOULD NOT-1, RFC 9114 §7.2.4.2 MUST NOT-1, MUST-2, MUST-3, SHOULD-1: the peer's limit,
            // when it has said one; before, the default, which is none
            if let Some(limit) = state.peer.map(|peer| peer.max_fields) {
                let size = fields::size(fields());
                if size > limit {
                    return Err(Error::FieldsTooLarge { size, limit });
                }
            }
            let mut plain = 0;
            let counted = fields().inspect(|field| plain += field.name.len() + field.value.len());
            let instructions = state.encoder_stream.waiting();
            let before = instructions.len();
            state.encoder.encode(stream.0, counted, &mut block, instructions);
            self.compression.sent.add(plain, block.len() + instructions.len() - before);
            match state.encoder_stream.flush() {
                Ok(true) => state.wake_driver(),
                Ok(false) => {}
                Err(_) => stuck = true,
            }
        }
        if stuck {
            return Err(self.stuck());
        }
        let mut out = Vec::with_capacity(block.len() + 5);
        frame::write_head(&mut out, frame::HEADERS, block.len() as u64);
        out.extend(block);
        Ok(out)
    }

    /// Decompresses a field section.
    ///
    /// # Errors
    /// When it is too large; or makes no sense, which closes the connection.
    pub(crate) fn fields(&self, stream: StreamId, section: &Bytes) -> Result<Collector, Error> {
        let mut collector = Collector::default();
        let limit = self.settings.max_fields;
        let (decoded, flushed) = {
            let state = &mut *self.lock();
            let answer = state.decoder_stream.waiting();
            let mut plain = 0;
            let emit = |name: &[u8], value: &[u8], sensitive| {
                plain += name.len() + value.len();
                collector.push(name, value, sensitive);
            };
            let decoded = state.decoder.decode(stream.0, section, limit, answer, emit);
            self.compression.received.add(plain, section.len());
            let flushed = state.decoder_stream.flush();
            if let Ok(true) = flushed {
                state.wake_driver();
            }
            (decoded, flushed)
        };
        if flushed.is_err() {
            return Err(self.stuck());
        }
        match decoded {
            Ok(()) => Ok(collector),
            Err(SectionError::TooLarge { size, limit }) => Err(Error::FieldsTooLarge { size, limit }),
            // RFC 9204 §7.4 MUST-1
            Err(SectionError::Malformed(reason)) => {
                Err(self.fail(Violation { code: Code::DECOMPRESSION_FAILED, reason: reason.to_string() }))
            }
        }
    }

    /// Reports to the peer's encoder that no more of a stream is read (RFC 9204 §4.4.2).
    pub(crate) fn abandon(&self, stream: StreamId) {
        let flushed = {
            let state = &mut *self.lock();
            state.decoder.cancel(stream.0, state.decoder_stream.waiting());
            let flushed = state.decoder_stream.flush();
            if let Ok(true) = flushed {
                state.wake_driver();
            }
            flushed
        };
        // Whoever gives streams up without end and takes no answer would be remembered for each of them.
        if flushed.is_err() {
            self.stuck();
        }
    }

    /// Takes instructions of the peer's encoder.
    pub(crate) fn on_encoder_stream(&self, data: &[u8]) -> Result<(), Violation> {
        self.compression.received.add(0, data.len());
        let state = &mut *self.lock();
        let taken = state.decoder.on_encoder_stream(data, state.decoder_stream.waiting());
        taken.map_err(|error| Violation { code: Code::ENCODER_STREAM_ERROR, reason: error.to_string() })?;
        if state.decoder_stream.flush().map_err(|_| stuck())? {
            state.wake_driver();
        }
        Ok(())
    }

    /// Takes instructions of the peer's decoder.
    pub(crate) fn on_decoder_stream(&self, data: &[u8]) -> Result<(), Violation> {
        let taken = self.lock().encoder.on_decoder_stream(data);
        taken.map_err(|error| Violation { code: Code::DECODER_STREAM_ERROR, reason: error.to_string() })
    }

    /// Takes the peer's settings.
    pub(crate) fn on_settings(&self, (settings, others): (Settings, Vec<(u64, u64)>)) -> Result<(), Violation> {
        // RFC 9297 §2.1.1: HTTP datagrams need QUIC's.
        if settings.datagrams && self.quic.max_datagram_size().is_none() {
            let reason = "HTTP datagrams without those of QUIC".to_owned();
            return Err(Violation { code: Code::SETTINGS_ERROR, reason });
        }
        {
            let state = &mut *self.lock();
            state.peer = Some(settings);
            if self.support.is_some() {
                state.peer_others = others;
            }
            state.encoder.set_peer_capacity(settings.table_capacity);
        }
        self.heard.notify_waiters();
        Ok(())
    }

    /// Waits for a message of the peer that `what` selects; fails with the connection.
    pub(crate) async fn heard<T>(&self, what: impl Fn(&State) -> Option<T>) -> Result<T, Error> {
        loop {
            let mut news = pin!(self.heard.notified());
            news.as_mut().enable();
            {
                let state = self.lock();
                if let Some(found) = what(&state) {
                    return Ok(found);
                }
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
            }
            news.await;
        }
    }

    /// Takes the number of a GOAWAY.
    pub(crate) fn on_goaway(&self, number: u64) -> Result<(), Violation> {
        {
            let state = &mut *self.lock();
            // RFC 9114 §7.2.6 MUST-1, RFC 9114 §5.2 MUST-1: a server names a request; and the number only goes down
            let is_wrong = self.side == Side::Client && !number.is_multiple_of(4);
            if is_wrong || state.goaway.is_some_and(|before| number > before) {
                let reason = format!("the number {number} in a GOAWAY");
                return Err(Violation { code: Code::ID_ERROR, reason });
            }
            state.goaway = Some(number);
        }
        self.heard.notify_waiters();
        Ok(())
    }

    /// Takes a change of a request's priority. One for a request that has not come is kept for it; of many, the last ones.
    // RFC 9218 §7.2 MUST-4
    pub(crate) fn on_priority(&self, stream: u64, priority: Priority) -> Result<(), Violation> {
        if !stream.is_multiple_of(4) {
            let reason = format!("a priority for stream {stream}, which is no request");
            return Err(Violation { code: Code::ID_ERROR, reason });
        }
        {
            let state = &mut *self.lock();
            if !state.changes.on_change(stream, priority) {
                state.updates.note(stream, priority);
            }
        }
        self.quic.set_priority(StreamId(stream), priority);
        Ok(())
    }

    /// Takes the priority update for the request on a stream: it outweighs the request's own fields.
    pub(crate) fn take_update(&self, stream: StreamId) -> Option<Priority> {
        self.lock().updates.take(stream.0)
    }

    fn stuck(&self) -> Error {
        self.fail(stuck())
    }
}

fn stuck() -> Violation {
    Violation { code: Code::EXCESSIVE_LOAD, reason: "no credit for the streams of QPACK".to_owned() }
}
