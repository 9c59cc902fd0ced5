//! The state machine of a connection, without input or output.
//!
//! Contract: bytes of the peer come in through [`Mux::handle_bytes`], time through [`Mux::handle_timeout`]; the application gives
//! commands. After each of these, [`Mux::poll_event`] and [`Mux::poll_transmit`] are called until they give nothing, the latter as
//! often as the stream below takes bytes; and [`Mux::poll_timeout`] says when to come back. When [`Mux::is_finished`], the sending
//! side of the stream below is shut down.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use transport::{Code, TransportError};
use units::{Duration, Instant};
use wire::{
    Dir, Frame, Frames, Reader, Side, StreamFrame, StreamId, Writer,
    frame::{datagram_header_len, encode_datagram_header},
    varint,
};

use crate::{
    parameters::Parameters,
    record::{self, Records, TooLarge},
    streams::{Read, Recv, Send},
};

/// QX_TRANSPORT_PARAMETERS (§4.2 of the draft).
const PARAMETERS: u64 = 0x3f51_5330_0d0a_0d0a;
/// QX_PING, the question and the answer (§4.3).
const PING: u64 = 0x348c_6752_9ef8_c7bd;
const PONG: u64 = 0x348c_6752_9ef8_c7be;
/// Frames that change nothing: so many are taken at once, …
const IDLE_BURST: u32 = 10_000;
/// … and so many each second. Nobody who means well needs them (§12.2 SHOULD).
const IDLE_RATE: u32 = 1_000;
/// Bytes of a reason that are kept.
const REASON: usize = 256;

/// How an end behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that the peer may send beyond what was read, on all streams together.
    pub window: u64,
    /// … and on each.
    pub stream_window: u64,
    /// Bidirectional streams that the peer may have open at a time.
    pub streams_bidi: u64,
    /// Unidirectional ones.
    pub streams_uni: u64,
    /// Bytes of datagrams that wait to be read, and that wait to leave; the oldest is dropped. 0 takes and sends none.
    pub datagram_queue: usize,
    /// The connection ends after this silence; the smaller of both ends' values holds. Zero: never.
    pub idle_timeout: Duration,
    /// A QX_PING leaves after this silence.
    pub keep_alive: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 1 << 20,
            stream_window: 256 << 10,
            streams_bidi: 100,
            streams_uni: 100,
            datagram_queue: 256 << 10,
            idle_timeout: Duration::from_secs(30),
            keep_alive: None,
        }
    }
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// This end has closed it.
    #[error("closed by this end (code {0})")]
    Local(u64),
    /// The application of the peer has.
    #[error("closed by the peer (code {code}){}", in_words(.reason))]
    Application {
        /// The application's code.
        code: u64,
        /// For people.
        reason: String,
    },
    /// The peer found a fault.
    #[error("the peer found a fault: {code}{}", in_words(.reason))]
    Peer {
        /// What fault.
        code: Code,
        /// For people.
        reason: String,
    },
    /// The peer is at fault.
    #[error("the peer is at fault: {0}")]
    Fault(#[from] TransportError),
    /// The stream below has ended.
    #[error("the connection below has ended")]
    Ended,
    /// Nothing was heard for the idle timeout.
    #[error("nothing was heard for too long")]
    Idle,
}

fn in_words(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// A command that cannot be obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The stream is over.
    #[error("the stream is over")]
    StreamClosed,
    /// The peer wants no more of it.
    #[error("the peer asked to stop (code {0})")]
    Stopped(u64),
    /// The peer has given the stream up.
    #[error("the peer reset the stream (code {0})")]
    Reset(u64),
    /// The peer takes no datagrams, or none of this size.
    #[error("the peer takes no datagram of this size")]
    Datagram,
    /// The connection is over.
    #[error("the connection is over: {0}")]
    Closed(#[from] Closed),
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The peer's parameters are there: streams can be opened, as far as it allows.
    Connected,
    /// The peer has opened a stream.
    Opened(Dir),
    /// More streams may be opened.
    Available(Dir),
    /// A stream can be read.
    Readable(StreamId),
    /// A stream can be written, or is over.
    Writable(StreamId),
    /// A datagram has come.
    Datagram,
    /// The connection is over.
    Closed(Closed),
}

#[derive(Debug)]
struct Stream {
    /// `None` where there is no such half, or it is over.
    send: Option<Send>,
    recv: Option<Recv>,
}

/// What one direction of streams has: an index for each kind.
fn kind(dir: Dir) -> usize {
    match dir {
        Dir::Bi => 0,
        Dir::Uni => 1,
    }
}

/// A connection.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    config: Config,
    records: Records,
    peer: Option<Parameters>,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams that this end has opened, and may open.
    opened: [u64; 2],
    may_open: [u64; 2],
    /// Streams that the peer has opened, that are over, and that it was told it may open.
    peer_opened: [u64; 2],
    peer_over: [u64; 2],
    told: [u64; 2],
    to_accept: [VecDeque<StreamId>; 2],
    /// Flow control of the connection: what has left and may leave, …
    sent: u64,
    may_send: u64,
    /// … what came, what was read, what the peer was told.
    received: u64,
    read: u64,
    told_data: u64,
    /// Streams with something to send, in turn.
    line: VecDeque<StreamId>,
    /// Streams whose peer is to be told something: limits, or to stop.
    notices: VecDeque<StreamId>,
    datagrams_in: VecDeque<Bytes>,
    datagrams_out: VecDeque<Bytes>,
    /// Bytes in these two.
    queued: [usize; 2],
    greeted: bool,
    /// Highest ping of the peer, and whether it is to be answered.
    ping_seen: Option<u64>,
    pong_due: bool,
    /// Pings of this end.
    pings: u64,
    ping_due: bool,
    idle_budget: u32,
    budget_at: Instant,
    heard_or_sent: Instant,
    closed: Option<Closed>,
    /// What the peer is to be told when it ends: code, whether it is the application's, reason.
    farewell: Option<(u64, bool, String)>,
    events: VecDeque<Event>,
    scratch: Vec<u8>,
}

impl Mux {
    /// A connection on a stream of bytes that is there.
    pub fn new(side: Side, now: Instant, config: Config) -> Self {
        Self {
            side,
            records: Records::new(record::DEFAULT_MAX),
            peer: None,
            streams: BTreeMap::new(),
            opened: [0; 2],
            may_open: [0; 2],
            peer_opened: [0; 2],
            peer_over: [0; 2],
            told: [config.streams_bidi, config.streams_uni],
            to_accept: Default::default(),
            sent: 0,
            may_send: 0,
            received: 0,
            read: 0,
            told_data: config.window,
            line: VecDeque::new(),
            notices: VecDeque::new(),
            datagrams_in: VecDeque::new(),
            datagrams_out: VecDeque::new(),
            queued: [0; 2],
            greeted: false,
            ping_seen: None,
            pong_due: false,
            pings: 0,
            ping_due: false,
            idle_budget: IDLE_BURST,
            budget_at: now,
            heard_or_sent: now,
            closed: None,
            farewell: None,
            events: VecDeque::new(),
            scratch: vec![0; usize::try_from(record::DEFAULT_MAX).expect("small")],
            config,
        }
    }

    // --- what comes in ---

    /// Takes in bytes of the peer. Once the connection is over they are thrown away.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if self.closed.is_some() {
            return;
        }
        let mut records = std::mem::replace(&mut self.records, Records::new(record::DEFAULT_MAX));
        let fed = records.feed(bytes, |record| self.on_record(now, record));
        self.records = records;
        if let Err(End(closed)) = fed {
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
            self.events.push_back(Event::Available(dir));
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

    /// Counts a frame that changes nothing.
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
                    self.events.push_back(Event::Available(dir));
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
                self.events.push_back(Event::Datagram);
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
        let unread = recv.on_data(offset, Bytes::copy_from_slice(data), fin)?;
        self.received += len;
        self.read += unread;
        self.events.push_back(Event::Readable(id));
        self.tidy(id);
        Ok(())
    }

    fn on_reset(&mut self, id: StreamId, code: u64, size: u64) -> Result<(), TransportError> {
        let credit = self.told_data - self.received;
        // What is over was reset before, or had ended.
        let Some(recv) = self.with_receiver(id)?.and_then(|stream| stream.recv.as_mut()) else { return Ok(()) };
        let (more, unread) = recv.on_reset(code, size)?;
        if more > credit {
            return Err(TransportError::new(Code::FLOW_CONTROL_ERROR, "more than the connection may carry"));
        }
        self.received += more;
        self.read += unread;
        self.events.push_back(Event::Readable(id));
        self.tidy(id);
        Ok(())
    }

    /// The stream of a frame for whoever sends on it. `None` when it is over.
    fn with_sender(&mut self, id: StreamId) -> Result<Option<&mut Stream>, TransportError> {
        if id.dir() == Dir::Uni && id.initiator() != self.side {
            return Err(TransportError::new(
                Code::STREAM_STATE_ERROR,
                "a frame for a sender on a stream that has none",
            ));
        }
        self.stream(id)
    }

    /// The stream of a frame for whoever receives on it. `None` when it is over.
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

    /// Lets go of what is over of a stream, and tells the peer that another may come.
    fn tidy(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.send.take_if(|send| send.may_go());
        stream.recv.take_if(|recv| recv.is_over());
        let to_tell = stream
            .recv
            .as_ref()
            .is_some_and(|recv| recv.next_limit().is_some() || recv.stop.is_some_and(|(_, told)| !told));
        if to_tell && !self.notices.contains(&id) {
            self.notices.push_back(id);
        }
        if stream.send.is_none() && stream.recv.is_none() {
            self.streams.remove(&id);
            if id.initiator() != self.side {
                self.peer_over[kind(id.dir())] += 1;
            }
        }
    }

    fn queue(&mut self, id: StreamId) {
        if let Some(send) = self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut())
            && !send.in_line
        {
            send.in_line = true;
            self.line.push_back(id);
        }
    }

    /// 0 is what came, 1 what is to leave.
    fn push_datagram(&mut self, way: usize, data: Bytes) {
        let queue = if way == 0 { &mut self.datagrams_in } else { &mut self.datagrams_out };
        self.queued[way] += data.len() + 1;
        queue.push_back(data);
        while self.queued[way] > self.config.datagram_queue
            && let Some(oldest) = queue.pop_front()
        {
            self.queued[way] -= oldest.len() + 1;
        }
    }

    fn end(&mut self, closed: Closed) {
        if self.closed.is_none() {
            self.closed = Some(closed.clone());
            // What has come can still be read.
            self.line.clear();
            self.notices.clear();
            self.datagrams_out.clear();
            self.events.push_back(Event::Closed(closed));
        }
    }

    // --- commands ---

    /// Opens a stream; `None` when the peer does not allow it yet.
    pub fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let peer = self.peer.filter(|_| self.closed.is_none())?;
        let at = kind(dir);
        if self.opened[at] >= self.may_open[at] {
            return None;
        }
        let id = StreamId::new(self.side, dir, self.opened[at]);
        self.opened[at] += 1;
        let (limit, recv) = match dir {
            Dir::Bi => (peer.stream_data_bidi_remote, Some(Recv::new(self.config.stream_window))),
            Dir::Uni => (peer.stream_data_uni, None),
        };
        self.streams.insert(id, Stream { send: Some(Send::new(limit)), recv });
        Some(id)
    }

    /// The next stream that the peer has opened.
    pub fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.to_accept[kind(dir)].pop_front()
    }

    fn sender(&mut self, id: StreamId) -> Result<&mut Send, Refused> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone().into());
        }
        let send = self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut()).ok_or(Refused::StreamClosed)?;
        match send.stopped {
            Some(code) => {
                send.told = true;
                self.tidy(id);
                Err(Refused::Stopped(code))
            }
            None if !send.is_open() => Err(Refused::StreamClosed),
            None => self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut()).ok_or(Refused::StreamClosed),
        }
    }

    /// Takes bytes from the front of `data`, as many as there is room for; gives their number. With 0, [`Event::Writable`] tells when
    /// there is more.
    ///
    /// # Errors
    /// When nothing more can be written.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, Refused> {
        let send = self.sender(id)?;
        let part = data.split_to(send.room().min(data.len()));
        let len = part.len();
        if len > 0 {
            send.push(part);
            self.queue(id);
        }
        Ok(len)
    }

    /// Ends a stream after what was written.
    ///
    /// # Errors
    /// When it is over.
    pub fn finish(&mut self, id: StreamId) -> Result<(), Refused> {
        self.sender(id)?.finish();
        self.queue(id);
        Ok(())
    }

    /// Gives a stream up.
    ///
    /// # Errors
    /// When it is over.
    pub fn reset(&mut self, id: StreamId, code: u64) -> Result<(), Refused> {
        self.sender(id)?.give_up(code);
        self.queue(id);
        Ok(())
    }

    /// Up to `most` bytes of a stream, none when nothing is there yet; `None` at its end.
    ///
    /// # Errors
    /// When the peer has given it up, or the stream or the connection is over.
    pub fn read(&mut self, id: StreamId, most: usize) -> Result<Option<Bytes>, Refused> {
        let Some(recv) = self.streams.get_mut(&id).and_then(|stream| stream.recv.as_mut()) else {
            return Err(self.closed.clone().map_or(Refused::StreamClosed, Refused::Closed));
        };
        let read = recv.read(most);
        if let Read::Data(data) = &read {
            self.read += data.len() as u64;
        }
        self.tidy(id);
        match (read, &self.closed) {
            (Read::Data(data), _) => Ok(Some(data)),
            (Read::End, _) => Ok(None),
            (Read::Reset(code), _) => Err(Refused::Reset(code)),
            (Read::Nothing, Some(closed)) => Err(closed.clone().into()),
            (Read::Nothing, None) => Ok(Some(Bytes::new())),
        }
    }

    /// Tells the peer that nobody reads a stream any more.
    pub fn stop(&mut self, id: StreamId, code: u64) {
        if let Some(recv) = self.streams.get_mut(&id).and_then(|stream| stream.recv.as_mut()) {
            self.read += recv.stop(code);
            self.tidy(id);
        }
    }

    /// Whether a stream has something for a reader.
    pub fn is_readable(&self, id: StreamId) -> bool {
        self.streams.get(&id).and_then(|stream| stream.recv.as_ref()).is_none_or(Recv::is_readable)
    }

    /// The largest datagram that can be sent, in bytes; `None` when the peer takes none.
    pub fn max_datagram_size(&self) -> Option<usize> {
        let peer = self.peer.filter(|peer| peer.max_datagram_frame_size > 0)?;
        // draft-ietf-quic-qmux §9.1: the frame has to fit into a record, and its length takes up to 2 bytes here.
        let frame = peer.max_datagram_frame_size.min(peer.max_record_size).min(record::DEFAULT_MAX);
        usize::try_from(frame).ok()?.checked_sub(datagram_header_len(Some(usize::try_from(frame).ok()?)))
    }

    /// Queues a datagram. When the queue is full the oldest is dropped.
    ///
    /// # Errors
    /// When the peer takes none of this size, or the connection is over.
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), Refused> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone().into());
        }
        if self.max_datagram_size().is_none_or(|most| data.len() > most) {
            return Err(Refused::Datagram);
        }
        self.push_datagram(1, data);
        Ok(())
    }

    /// The next datagram of the peer.
    pub fn recv_datagram(&mut self) -> Option<Bytes> {
        let data = self.datagrams_in.pop_front()?;
        self.queued[0] -= data.len() + 1;
        Some(data)
    }

    /// Asks whether the peer is there.
    pub fn ping(&mut self) {
        self.ping_due = true;
    }

    /// Closes the connection.
    pub fn close(&mut self, code: u64, reason: &str) {
        if self.closed.is_none() {
            self.farewell = Some((code, true, reason.chars().take(REASON / 4).collect()));
            self.end(Closed::Local(code));
        }
    }

    // --- what goes out ---

    /// What has happened; `None` when nothing more.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Appends a record to `out`; false when there is nothing to send.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut w = Writer::new(&mut scratch);
        self.fill(&mut w);
        let some = w.position() > 0;
        if some {
            record::push(out, w.written());
            self.heard_or_sent = now;
        }
        self.scratch = scratch;
        some
    }

    fn fill(&mut self, w: &mut Writer<'_>) {
        if !self.greeted {
            self.greeted = true;
            // draft-ietf-quic-qmux §4.2 MUST: the parameters are the first frame, and leave at once.
            let mut parameters = Vec::new();
            self.parameters().encode(&mut parameters);
            w.varint(PARAMETERS);
            w.varint(parameters.len() as u64);
            w.bytes(&parameters);
            return;
        }
        if let Some((code, by_application, reason)) = self.farewell.take() {
            let reason = reason.as_bytes();
            let reason = &reason[..reason.len().min(REASON)];
            match by_application {
                true => Frame::ApplicationClose { error: code, reason }.encode(w),
                false => Frame::ConnectionClose { error: code, frame_type: 0, reason }.encode(w),
            }
            return;
        }
        if self.closed.is_some() {
            return;
        }
        self.write_notices(w);
        self.write_datagrams(w);
        self.write_streams(w);
    }

    fn parameters(&self) -> Parameters {
        let Config { window, stream_window, streams_bidi, streams_uni, datagram_queue, idle_timeout, .. } = self.config;
        Parameters {
            max_idle_timeout: idle_timeout,
            initial_max_data: window,
            stream_data_bidi_local: stream_window,
            stream_data_bidi_remote: stream_window,
            stream_data_uni: stream_window,
            streams_bidi,
            streams_uni,
            max_datagram_frame_size: if datagram_queue > 0 { record::DEFAULT_MAX } else { 0 },
            max_record_size: record::DEFAULT_MAX,
        }
    }

    fn write_notices(&mut self, w: &mut Writer<'_>) {
        if std::mem::take(&mut self.pong_due) {
            w.varint(PONG);
            w.varint(self.ping_seen.unwrap_or(0));
        }
        if std::mem::take(&mut self.ping_due) {
            w.varint(PING);
            w.varint(self.pings);
            self.pings += 1;
        }
        let next = (self.read + self.config.window).min(varint::MAX);
        if next - self.told_data >= self.config.window / 2 {
            self.told_data = next;
            Frame::MaxData(next).encode(w);
        }
        for (dir, limit) in [(Dir::Bi, self.config.streams_bidi), (Dir::Uni, self.config.streams_uni)] {
            let at = kind(dir);
            let next = (self.peer_over[at] + limit).min(StreamId::MAX_STREAMS);
            if next - self.told[at] >= (limit / 4).max(1) {
                self.told[at] = next;
                Frame::MaxStreams { dir, limit: next }.encode(w);
            }
        }
        // Nothing here is longer.
        while w.remaining() > 64
            && let Some(id) = self.notices.pop_front()
        {
            let Some(recv) = self.streams.get_mut(&id).and_then(|stream| stream.recv.as_mut()) else { continue };
            if let Some((code, told)) = &mut recv.stop {
                if !*told {
                    *told = true;
                    Frame::StopSending { id, code: *code }.encode(w);
                }
            } else if let Some(limit) = recv.next_limit() {
                recv.limit = limit;
                Frame::MaxStreamData { id, limit }.encode(w);
            }
        }
    }

    fn write_datagrams(&mut self, w: &mut Writer<'_>) {
        while let Some(next) = self.datagrams_out.front() {
            if datagram_header_len(Some(next.len())) + next.len() > w.remaining() {
                break;
            }
            encode_datagram_header(w, Some(next.len()));
            w.bytes(next);
            self.queued[1] -= next.len() + 1;
            self.datagrams_out.pop_front();
        }
    }

    fn write_streams(&mut self, w: &mut Writer<'_>) {
        for _ in 0..self.line.len() {
            // What headers take at most, and something worth them.
            if w.remaining() < 64 {
                return;
            }
            let Some(id) = self.line.pop_front() else { return };
            let credit = self.may_send - self.sent;
            let Some(send) = self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut()) else { continue };
            if let Some(code) = send.reset {
                send.over = true;
                Frame::ResetStream { id, code, final_size: send.sent }.encode(w);
                self.tidy(id);
                continue;
            }
            if send.has_something(credit) {
                let offset = send.sent;
                let space = StreamFrame::capacity(id, offset, w.remaining() - 32).unwrap_or(0);
                let (len, fin) = send.next(space.min(usize::try_from(credit).unwrap_or(usize::MAX)));
                StreamFrame::encode_header(w, id, offset, fin, Some(len));
                send.take(w.reserve(len));
                self.sent += len as u64;
                self.events.push_back(Event::Writable(id));
            }
            // Whoever waits for the limit of the connection keeps a place; the stream's own limit queues it again.
            send.in_line = send.has_something(u64::MAX);
            if send.in_line {
                self.line.push_back(id);
            } else if send.is_blocked() {
                Frame::StreamDataBlocked { id, limit: send.limit }.encode(w);
            }
            self.tidy(id);
        }
    }

    /// Whether all has been said: the sending side of the stream below is to be shut down.
    pub fn is_finished(&self) -> bool {
        self.closed.is_some() && self.farewell.is_none()
    }

    /// Why the connection is over, if it is.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Bytes that are kept for the application and of the peer, records that are not complete included.
    pub fn kept(&self) -> u64 {
        self.received - self.read + (self.queued[0] + self.records.kept()) as u64
    }

    // --- time ---

    fn idle_timeout(&self) -> Option<Duration> {
        let peer = self.peer.map_or(Duration::ZERO, |peer| peer.max_idle_timeout);
        [self.config.idle_timeout, peer].into_iter().filter(|timeout| !timeout.is_zero()).min()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.closed.is_some() {
            return None;
        }
        let spans = [self.idle_timeout(), self.config.keep_alive.filter(|_| self.peer.is_some())];
        spans.into_iter().flatten().min().map(|span| self.heard_or_sent + span)
    }

    /// Takes in that time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let silence = now.saturating_since(self.heard_or_sent);
        if self.closed.is_some() {
            return;
        }
        if self.idle_timeout().is_some_and(|timeout| silence >= timeout) {
            // draft-ietf-quic-qmux §7.2: nothing is said.
            self.end(Closed::Idle);
        } else if self.config.keep_alive.is_some_and(|span| silence >= span) && self.peer.is_some() {
            self.ping_due = true;
        }
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

/// What a reason says, as far as it is kept.
fn words(reason: &[u8]) -> String {
    String::from_utf8_lossy(&reason[..reason.len().min(REASON)]).into_owned()
}
