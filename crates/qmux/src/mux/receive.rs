//! Received records.

use bytes::Bytes;
use transport::{Code, TransportError};
use units::Instant;
use wire::{Dir, Frame, Frames, Reader, StreamFrame, StreamId};

use super::{Closed, Event, IDLE_BURST, IDLE_RATE, Mux, PARAMETERS, PING, PONG, REASON, Stream, kind};
use crate::{
    parameters::Parameters,
    record::{self, Records, TooLarge},
    streams::{Recv, Send},
};

impl Mux {
    /// Processes bytes of the peer. Once the connection has ended they are discarded.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if self.closed.is_some() {
            return;
        }
        let mut records = std::mem::replace(&mut self.records, Records::new(record::DEFAULT_MAX));
        let fed = records.feed(bytes, |record| self.on_record(now, record));
        self.records = records;
        if let Err(End(closed)) = fed.and_then(|()| Ok(self.settle()?)) {
            if let Closed::Fault(error) = &closed {
                self.farewell = Some((error.code.0, false, error.reason.to_string()));
            }
            self.end(closed);
        }
    }

    /// The stream below has ended, in the peer's direction or altogether.
    pub fn handle_end(&mut self) {
        self.end(Closed::Ended);
    }

    fn on_record(&mut self, now: Instant, record: &[u8]) -> Result<(), End> {
        self.heard_or_sent = now;
        let fault = |code, reason: &'static str| End::from(TransportError::new(code, reason));
        if record.is_empty() {
            // RFC 9000 §12.4: there is at least one frame.
            return Err(fault(Code::PROTOCOL_VIOLATION, "a record without a frame"));
        }
        let mut rest = record;
        while !rest.is_empty() {
            let mut reader = Reader::new(rest);
            let ty = reader.varint().map_err(|_| fault(Code::FRAME_ENCODING_ERROR, "a frame is cut off"))?;
            let cut = |_| fault(Code::FRAME_ENCODING_ERROR, "a frame is cut off");
            if ty == PARAMETERS {
                // draft-ietf-quic-qmux §4.2 MUST: it is the first frame, and no other.
                if self.peer.is_some() {
                    return Err(fault(Code::PROTOCOL_VIOLATION, "transport parameters again"));
                }
                self.on_parameters(Parameters::decode(reader.counted().map_err(cut)?)?);
                rest = reader.rest();
                continue;
            }
            if self.peer.is_none() {
                return Err(fault(Code::PROTOCOL_VIOLATION, "the first frame has no transport parameters"));
            }
            if ty == PING || ty == PONG {
                let number = reader.varint().map_err(cut)?;
                self.on_ping(now, ty == PING, number)?;
                rest = reader.rest();
                continue;
            }
            let mut frames = Frames::new(rest);
            let frame = match frames.next() {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    let reason = format!("{:?}", error.kind);
                    let error = TransportError::new(Code::FRAME_ENCODING_ERROR, reason).in_frame(error.frame_type);
                    return Err(error.into());
                }
                None => return Ok(()),
            };
            let position = frames.position();
            self.on_frame(now, &frame)?;
            rest = &rest[position..];
        }
        Ok(())
    }

    fn on_parameters(&mut self, peer: Parameters) {
        self.may_send = peer.initial_max_data;
        self.may_open = [peer.streams_bidi, peer.streams_uni];
        self.peer = Some(peer);
        self.events.push_back(Event::Connected);
        for dir in [Dir::Bi, Dir::Uni] {
            self.tell_opener(dir);
        }
    }

    fn on_ping(&mut self, now: Instant, asks: bool, number: u64) -> Result<(), End> {
        let fault = |reason: &'static str| End::from(TransportError::new(Code::PROTOCOL_VIOLATION, reason));
        if asks {
            // draft-ietf-quic-qmux §4.3 MUST: they count upwards.
            if self.ping_seen.is_some_and(|seen| number <= seen) {
                return Err(fault("a ping that does not count upwards"));
            }
            self.ping_seen = Some(number);
            // §4.3 MAY: of several the last is answered.
            self.pong_due = true;
            return self.changes_nothing(now);
        }
        // draft-ietf-quic-qmux §4.3 MUST: only what was asked is answered.
        if number >= self.pings {
            return Err(fault("an answer to a ping that was not sent"));
        }
        Ok(())
    }

    /// Counts a frame without effect.
    fn changes_nothing(&mut self, now: Instant) -> Result<(), End> {
        let refill = now.saturating_since(self.budget_at).as_secs_f64() * f64::from(IDLE_RATE);
        if refill >= 1.0 {
            self.budget_at = now;
            // The sum is bounded, and a fraction of a frame is no matter.
            self.idle_budget = self.idle_budget.saturating_add(refill.min(1e9) as u32).min(IDLE_BURST);
        }
        self.idle_budget = self.idle_budget.checked_sub(1).ok_or_else(|| {
            End::from(TransportError::new(Code::PROTOCOL_VIOLATION, "too many frames that change nothing"))
        })?;
        Ok(())
    }

    fn on_frame(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), End> {
        let ty = frame.ty();
        let fault = |code, reason: &'static str| End::from(TransportError::new(code, reason).in_frame(ty));
        match *frame {
            Frame::Padding { .. } => self.changes_nothing(now)?,
            Frame::Stream(StreamFrame { id, offset, fin, data }) => {
                if data.is_empty() && !fin {
                    self.changes_nothing(now)?;
                }
                self.on_stream(id, offset, fin, data).map_err(|error| error.in_frame(ty))?;
            }
            Frame::ResetStream { id, code, final_size } => {
                self.on_reset(id, code, final_size).map_err(|error| error.in_frame(ty))?;
            }
            Frame::StopSending { id, code } => {
                if let Some(stream) = self.with_sender(id).map_err(|error| error.in_frame(ty))?
                    && let Some(send) = &mut stream.send
                    && send.stopped.is_none()
                {
                    send.stopped = Some(code);
                    // RFC 9000 §3.5: the answer is a reset with the same code.
                    send.give_up(code);
                    self.queue(id);
                    self.events.push_back(Event::Writable(id));
                }
            }
            Frame::MaxData(limit) => {
                if limit <= self.may_send {
                    self.changes_nothing(now)?;
                }
                self.may_send = self.may_send.max(limit);
            }
            Frame::MaxStreamData { id, limit } => {
                let raised = match self.with_sender(id).map_err(|error| error.in_frame(ty))? {
                    Some(stream) => match &mut stream.send {
                        Some(send) if limit > send.limit => {
                            send.limit = limit;
                            true
                        }
                        _ => false,
                    },
                    None => false,
                };
                if raised {
                    self.queue(id);
                } else {
                    self.changes_nothing(now)?;
                }
            }
            Frame::MaxStreams { dir, limit } => {
                if limit <= self.may_open[kind(dir)] {
                    self.changes_nothing(now)?;
                } else {
                    self.may_open[kind(dir)] = limit;
                    self.tell_opener(dir);
                }
            }
            Frame::StreamDataBlocked { id, .. } => {
                self.with_receiver(id).map_err(|error| error.in_frame(ty))?;
                self.changes_nothing(now)?;
            }
            Frame::DataBlocked(_) | Frame::StreamsBlocked { .. } => self.changes_nothing(now)?,
            Frame::Datagram { data } => {
                // RFC 9221 §3: what was not offered is a fault.
                if self.config.datagram_queue == 0 {
                    return Err(fault(Code::PROTOCOL_VIOLATION, "a datagram, and none are taken"));
                }
                if data.is_empty() {
                    self.changes_nothing(now)?;
                }
                self.push_datagram(0, Bytes::copy_from_slice(data));
                if !std::mem::replace(&mut self.datagram_told, true) {
                    self.events.push_back(Event::Datagram);
                }
            }
            Frame::ConnectionClose { error, reason, .. } => {
                return Err(End(Closed::Peer { code: Code(error), reason: words(reason) }));
            }
            Frame::ApplicationClose { error, reason } => {
                return Err(End(Closed::Application { code: error, reason: words(reason) }));
            }
            // draft-ietf-quic-qmux §4 MUST: the frames of packets, paths and handshakes are a fault, and what is not
            // negotiated is not known.
            _ => return Err(fault(Code::FRAME_ENCODING_ERROR, "a frame that has no place in QMux")),
        }
        Ok(())
    }

    fn on_stream(&mut self, id: StreamId, offset: u64, fin: bool, data: &[u8]) -> Result<(), TransportError> {
        let len = data.len() as u64;
        // RFC 9000 §4.1: the limit of the connection is over all streams.
        if self.received.saturating_add(len) > self.told_data {
            return Err(TransportError::new(Code::FLOW_CONTROL_ERROR, "more than the connection may carry"));
        }
        let Some(stream) = self.with_receiver(id)? else {
            return Err(TransportError::new(Code::FINAL_SIZE_ERROR, "data after the end of a stream"));
        };
        let Some(recv) = &mut stream.recv else {
            return Err(TransportError::new(Code::FINAL_SIZE_ERROR, "data after the end of a stream"));
        };
        let before = recv.held();
        let unread = recv.on_data(offset, data, fin)?;
        let after = recv.held();
        self.unread = self.unread + after - before;
        self.received += len;
        self.read += unread;
        self.tell_reader(id);
        self.tidy(id);
        Ok(())
    }

    fn on_reset(&mut self, id: StreamId, code: u64, size: u64) -> Result<(), TransportError> {
        let credit = self.told_data - self.received;
        // What has ended was reset before, or had ended.
        let Some(recv) = self.with_receiver(id)?.and_then(|stream| stream.recv.as_mut()) else { return Ok(()) };
        let before = recv.held();
        let (more, unread) = recv.on_reset(code, size)?;
        let after = recv.held();
        self.unread = self.unread + after - before;
        if more > credit {
            return Err(TransportError::new(Code::FLOW_CONTROL_ERROR, "more than the connection may carry"));
        }
        self.received += more;
        self.read += unread;
        self.tell_reader(id);
        self.tidy(id);
        Ok(())
    }

    /// Sending half of the stream of a frame. `None` when it has ended.
    fn with_sender(&mut self, id: StreamId) -> Result<Option<&mut Stream>, TransportError> {
        if id.dir() == Dir::Uni && id.initiator() != self.side {
            return Err(TransportError::new(
                Code::STREAM_STATE_ERROR,
                "a frame for a sender on a stream that has none",
            ));
        }
        self.stream(id)
    }

    /// Receiving half of the stream of a frame. `None` when it has ended.
    fn with_receiver(&mut self, id: StreamId) -> Result<Option<&mut Stream>, TransportError> {
        if id.dir() == Dir::Uni && id.initiator() == self.side {
            return Err(TransportError::new(
                Code::STREAM_STATE_ERROR,
                "a frame for a receiver on a stream that has none",
            ));
        }
        self.stream(id)
    }

    /// The stream, which is opened with all before it when the peer names it first (RFC 9000 §3.2).
    fn stream(&mut self, id: StreamId) -> Result<Option<&mut Stream>, TransportError> {
        let at = kind(id.dir());
        if id.initiator() == self.side {
            if id.index() >= self.opened[at] {
                return Err(TransportError::new(Code::STREAM_STATE_ERROR, "a stream that was not opened"));
            }
            return Ok(self.streams.get_mut(&id));
        }
        if id.index() >= self.told[at] {
            return Err(TransportError::new(Code::STREAM_LIMIT_ERROR, "more streams than were allowed"));
        }
        while self.peer_opened[at] <= id.index() {
            let next = StreamId::new(self.side.peer(), id.dir(), self.peer_opened[at]);
            self.peer_opened[at] += 1;
            let limit = self.peer.map_or(0, |peer| peer.stream_data_bidi_local);
            let send = (id.dir() == Dir::Bi).then(|| Send::new(limit));
            self.streams.insert(next, Stream { send, recv: Some(Recv::new(self.config.stream_window)) });
            self.to_accept[at].push_back(next);
            self.events.push_back(Event::Opened(id.dir()));
        }
        Ok(self.streams.get_mut(&id))
    }
}

/// The connection ends, for this reason.
struct End(Closed);

impl From<TransportError> for End {
    fn from(error: TransportError) -> Self {
        Self(Closed::Fault(error))
    }
}

impl From<TooLarge> for End {
    fn from(error: TooLarge) -> Self {
        // draft-ietf-quic-qmux §5.2 MUST: a record that is too large is a fault in encoding.
        TransportError::new(Code::FRAME_ENCODING_ERROR, error.to_string()).into()
    }
}

/// Reason phrase, truncated.
fn words(reason: &[u8]) -> String {
    String::from_utf8_lossy(&reason[..reason.len().min(REASON)]).into_owned()
}
