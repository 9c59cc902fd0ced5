//! Control frames: the list of their sources, and what each frame of the peer means.
//!
//! A source of control frames owns what waits to be sent, and is a [`FrameSource`]: it says whether it wants to send,
//! writes its frames, and hears which of them were acknowledged or lost. [`control_sources`] lists them in the order in
//! which they are written, [`Carriers::settle_control`] finds the source of a frame that was sent, and
//! [`handle_control_frame`](Connection::handle_control_frame) is their way in. CONTRIBUTING.md says how a frame is added.

use bytes::Bytes;
use units::{Duration, Instant};
use wire::{Frame, Side, Writer};

use super::{
    Connection,
    identity::Identity,
    receive::PacketSeen,
    sources::{PacketContext, Sources},
    spaces::{SpaceId, Spaces},
    verdicts::Carriers,
};
use crate::{
    ack_frequency::{AckRequests, MAX_DELAY_US},
    acks::{AckPolicy, AckState},
    cid::{LocalIds, RemoteIds},
    error::{Code, TransportError},
    events::{CloseReason, Event},
    profile::Profile,
    sent::SentFrame,
};

/// A source of control frames.
pub(super) trait FrameSource {
    /// Returns whether a frame waits to be sent.
    fn wants_to_send(&self) -> bool;

    /// Writes the frames that wait, and records them. `false` when one found no room that sources further down the list are
    /// not to take.
    fn write(&mut self, now: Instant, w: &mut Writer<'_>, record: impl FnMut(SentFrame)) -> bool;

    /// The peer has a frame.
    fn on_acked(&mut self, frame: &SentFrame);

    /// A frame was lost.
    fn on_lost(&mut self, frame: &SentFrame);
}

/// The sources of control frames, in the order in which they are written: whether `$body` holds with each as `$source`, up
/// to the first with which it does not.
macro_rules! control_sources {
    ($sources:expr, $identity:expr, $source:ident => $body:expr) => {
        control_sources!($source => $body;
            $sources.ack_requests,
            $sources.control.handshake_done,
            $identity.local_ids,
            $identity.remote_ids,
            $sources.control.ping,
            $sources.control.token
        )
    };
    ($source:ident => $body:expr; $($owner:expr),+) => {
        $({
            let $source = &mut $owner;
            $body
        })&&+
    };
}

/// Owns the control frames that belong to no other part.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(super) ping: Ping,
    pub(super) handshake_done: HandshakeDone,
    pub(super) token: NewToken,
}

impl Control {
    #[inline]
    fn wants_to_send(&self) -> bool {
        self.ping.due || self.handshake_done.due || self.token.waits
    }
}

impl Carriers<'_> {
    /// Tells the source of a control frame what became of it.
    pub(super) fn settle_control(&mut self, arrived: bool, frame: &SentFrame) {
        match frame {
            SentFrame::NewConnectionId(_) => settle(&mut self.identity.local_ids, arrived, frame),
            SentFrame::RetireConnectionId(_) => settle(&mut self.identity.remote_ids, arrived, frame),
            SentFrame::NewToken => settle(&mut self.sources.control.token, arrived, frame),
            SentFrame::AckFrequency(_) => settle(&mut self.sources.ack_requests, arrived, frame),
            SentFrame::HandshakeDone => settle(&mut self.sources.control.handshake_done, arrived, frame),
            SentFrame::Ping => settle(&mut self.sources.control.ping, arrived, frame),
            _ => unreachable!("no control frame"),
        }
    }
}

fn settle(source: &mut impl FrameSource, arrived: bool, frame: &SentFrame) {
    if arrived { source.on_acked(frame) } else { source.on_lost(frame) }
}

/// Writes a frame and records it, where it fits.
fn write_one(w: &mut Writer<'_>, frame: &Frame<'_>, record: impl FnOnce()) -> bool {
    let fits = w.remaining() >= frame.encoded_len();
    if fits {
        frame.encode(w);
        record();
    }
    fits
}

/// A PING on behalf of the application, or to keep the connection alive.
#[derive(Debug, Default)]
pub(super) struct Ping {
    due: bool,
}

impl Ping {
    /// Sends a PING with the next packet.
    pub(super) fn request(&mut self) {
        self.due = true;
    }
}

impl FrameSource for Ping {
    fn wants_to_send(&self) -> bool {
        self.due
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(SentFrame)) -> bool {
        if self.due && write_one(w, &Frame::Ping, || record(SentFrame::Ping)) {
            self.due = false;
        }
        true
    }

    fn on_acked(&mut self, _frame: &SentFrame) {}

    fn on_lost(&mut self, _frame: &SentFrame) {
        self.due = true;
    }
}

/// HANDSHAKE_DONE of a server.
#[derive(Debug, Default)]
pub(super) struct HandshakeDone {
    due: bool,
    acked: bool,
}

impl HandshakeDone {
    /// Tells the client that the handshake is confirmed.
    pub(super) fn request(&mut self) {
        self.due = true;
    }

    /// Returns whether the client knows that the handshake is confirmed.
    pub(super) fn is_acked(&self) -> bool {
        self.acked
    }
}

impl FrameSource for HandshakeDone {
    fn wants_to_send(&self) -> bool {
        self.due
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(SentFrame)) -> bool {
        if self.due && write_one(w, &Frame::HandshakeDone, || record(SentFrame::HandshakeDone)) {
            self.due = false;
        }
        true
    }

    fn on_acked(&mut self, _frame: &SentFrame) {
        self.acked = true;
    }

    // RFC 9000 §13.3 MUST-1: HANDSHAKE_DONE is repeated until it has arrived
    fn on_lost(&mut self, _frame: &SentFrame) {
        self.due = true;
    }
}

/// NEW_TOKEN of a server: a token for the client's next connection.
#[derive(Debug, Default)]
pub(super) struct NewToken {
    token: Option<Box<[u8]>>,
    waits: bool,
}

impl NewToken {
    /// Gives the client a token.
    pub(super) fn send(&mut self, token: Vec<u8>) {
        self.token = Some(token.into());
        self.waits = true;
    }
}

impl FrameSource for NewToken {
    fn wants_to_send(&self) -> bool {
        self.waits
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(SentFrame)) -> bool {
        if let Some(token) = self.token.as_deref().filter(|_| self.waits)
            && write_one(w, &Frame::NewToken { token }, || record(SentFrame::NewToken))
        {
            self.waits = false;
        }
        true
    }

    fn on_acked(&mut self, _frame: &SentFrame) {
        *self = Self::default();
    }

    fn on_lost(&mut self, _frame: &SentFrame) {
        self.waits = self.token.is_some();
    }
}

impl FrameSource for LocalIds {
    #[inline]
    fn wants_to_send(&self) -> bool {
        LocalIds::wants_to_send(self)
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(SentFrame)) -> bool {
        while let Some(issued) = self.next_announcement() {
            let frame = Frame::NewConnectionId {
                sequence: issued.sequence,
                // RFC 9000 §19.15 MUST-3: Retire Prior To is at most the sequence number
                retire_prior_to: 0,
                cid: issued.id,
                reset_token: issued.reset_token,
            };
            if !write_one(w, &frame, || record(SentFrame::NewConnectionId(issued.sequence))) {
                return false;
            }
            self.announced();
        }
        true
    }

    fn on_acked(&mut self, _frame: &SentFrame) {}

    fn on_lost(&mut self, frame: &SentFrame) {
        if let SentFrame::NewConnectionId(sequence) = frame {
            LocalIds::on_lost(self, *sequence);
        }
    }
}

impl FrameSource for RemoteIds {
    #[inline]
    fn wants_to_send(&self) -> bool {
        self.next_retirement().is_some()
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(SentFrame)) -> bool {
        // RFC 9000 §19.16 MUST NOT-1: the ID that a packet is addressed to is not retired in it
        while let Some(sequence) = self.next_retirement() {
            let frame = Frame::RetireConnectionId { sequence };
            if !write_one(w, &frame, || record(SentFrame::RetireConnectionId(sequence))) {
                return false;
            }
            self.retirement_sent();
        }
        true
    }

    fn on_acked(&mut self, _frame: &SentFrame) {
        RemoteIds::on_acked(self);
    }

    fn on_lost(&mut self, frame: &SentFrame) {
        if let SentFrame::RetireConnectionId(sequence) = frame {
            RemoteIds::on_lost(self, *sequence);
        }
    }
}

impl FrameSource for AckRequests {
    #[inline]
    fn wants_to_send(&self) -> bool {
        AckRequests::wants_to_send(self)
    }

    fn write(&mut self, now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(SentFrame)) -> bool {
        if let Some((sequence, frame)) = self.next_frame()
            && write_one(w, &frame, || record(SentFrame::AckFrequency(sequence)))
        {
            self.on_sent(now);
        }
        true
    }

    fn on_acked(&mut self, frame: &SentFrame) {
        if let SentFrame::AckFrequency(sequence) = frame {
            AckRequests::on_acked(self, *sequence);
        }
    }

    fn on_lost(&mut self, frame: &SentFrame) {
        if let SentFrame::AckFrequency(sequence) = frame {
            AckRequests::on_lost(self, *sequence);
        }
    }
}

impl Sources {
    /// Returns whether a control frame waits to be sent.
    #[inline]
    pub(super) fn wants_to_send_control(&self, identity: &Identity) -> bool {
        self.control.wants_to_send()
            || self.ack_requests.wants_to_send()
            || identity.local_ids.wants_to_send()
            || FrameSource::wants_to_send(&identity.remote_ids)
    }

    /// Obeys a frame about streams and their limits.
    fn handle_stream_control(&mut self, frame: &Frame<'_>) -> Result<(), TransportError> {
        let streams = &mut self.streams;
        match *frame {
            Frame::ResetStream { id, code, final_size } => return streams.on_reset_stream(id, code, final_size),
            Frame::StopSending { id, code } => return streams.on_stop_sending(id, code),
            Frame::MaxStreamData { id, limit } => return streams.on_max_stream_data(id, limit),
            Frame::MaxStreams { dir, limit } => return streams.on_max_streams(dir, limit),
            Frame::StreamDataBlocked { id, limit } => return streams.on_stream_data_blocked(id, limit),
            Frame::MaxData(limit) => streams.on_max_data(limit),
            Frame::DataBlocked(limit) => streams.on_data_blocked(limit),
            Frame::StreamsBlocked { dir, limit } => streams.on_streams_blocked(dir, limit),
            _ => unreachable!("no frame about streams"),
        }
        Ok(())
    }

    /// Writes the control frames that wait, as far as there is room.
    pub(super) fn write_control(&mut self, packet: &mut PacketContext<'_>, w: &mut Writer<'_>) {
        let PacketContext { now, ledger, identity, stats, .. } = packet;
        let asks = self.ack_requests.wants_to_send();
        let mut record = |frame| ledger.record(frame);
        let _ =
            control_sources!(self, identity, source => !source.wants_to_send() || source.write(*now, w, &mut record));
        stats.ack_requests_sent += u64::from(asks && !self.ack_requests.wants_to_send());
    }
}

impl Connection {
    /// Obeys a frame of the peer: all types but STREAM, DATAGRAM and ACK.
    pub(super) fn handle_control_frame(
        &mut self,
        now: Instant,
        seen: &PacketSeen<'_>,
        frame: Frame<'_>,
    ) -> Result<(), TransportError> {
        match frame {
            Frame::Padding { .. } | Frame::Ping => Ok(()),
            Frame::Crypto { offset, data } => {
                self.packets.sources.handshake.on_crypto(now, seen.space.level(), offset, data)
            }
            Frame::ResetStream { .. }
            | Frame::StopSending { .. }
            | Frame::MaxData(_)
            | Frame::MaxStreamData { .. }
            | Frame::MaxStreams { .. }
            | Frame::DataBlocked(_)
            | Frame::StreamsBlocked { .. }
            | Frame::StreamDataBlocked { .. } => self.packets.sources.handle_stream_control(&frame),
            Frame::NewConnectionId { sequence, retire_prior_to, cid, reset_token } => {
                self.packets.identity.remote_ids.on_new(sequence, retire_prior_to, cid, reset_token)?;
                // The ID in use may be another, of another length.
                self.fit_datagrams();
                if self.packets.sources.handshake.is_confirmed() {
                    self.consider_preferred_address(now);
                }
                Ok(())
            }
            Frame::RetireConnectionId { sequence } => self.packets.identity.local_ids.on_retire(sequence, seen.dcid),
            Frame::PathChallenge(data) => {
                self.on_path_challenge(now, seen.path, data);
                Ok(())
            }
            Frame::PathResponse(data) => {
                self.on_path_response(now, data);
                Ok(())
            }
            Frame::NewToken { token } => self.on_new_token(token),
            Frame::HandshakeDone => {
                // RFC 9000 §19.20 MUST-1: only servers send it.
                if self.side == Side::Server {
                    return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "HANDSHAKE_DONE from a client"));
                }
                self.on_confirmed(now);
                Ok(())
            }
            Frame::ConnectionClose { .. } | Frame::ApplicationClose { .. } => {
                self.drain(now, close_reason_of_peer(&frame));
                Ok(())
            }
            Frame::AckFrequency { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold } => {
                let asked = (eliciting_threshold, max_ack_delay_us, reordering_threshold);
                let min_delay = self.profile.acks.min_delay().unwrap_or_default();
                on_ack_request(acks_on_request(&mut self.packets.spaces, &self.profile)?, min_delay, sequence, asked)?;
                self.stats.ack_requests_received += 1;
                Ok(())
            }
            Frame::ImmediateAck => {
                acks_on_request(&mut self.packets.spaces, &self.profile)?.on_immediate();
                self.stats.immediate_acks_received += 1;
                Ok(())
            }
            Frame::Repair(repair) => self.on_repair(now, seen, &repair),
            Frame::Stream(_)
            | Frame::Datagram { .. }
            | Frame::Ack(_)
            | Frame::SourceSymbol { .. }
            | Frame::SymbolAck(_) => {
                unreachable!("read where packets of data are read")
            }
        }
    }

    fn on_new_token(&mut self, token: &[u8]) -> Result<(), TransportError> {
        // RFC 9000 §19.7 MUST-2: only servers send it.
        if self.side == Side::Server {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "NEW_TOKEN from a client"));
        }
        self.packets.identity.keep_token(token);
        self.push(Event::TokenReceived(Bytes::copy_from_slice(token)));
        Ok(())
    }
}

/// Acknowledgement state that the peer may set, if it was told that it may.
fn acks_on_request<'s>(spaces: &'s mut Spaces, profile: &Profile) -> Result<&'s mut AckState, TransportError> {
    let space = spaces.get_mut(SpaceId::DATA).filter(|_| profile.acks.obey);
    // RFC 9000 §12.4 MUST-4: a type that was not negotiated is as good as unknown.
    space
        .map(|space| &mut space.acks)
        .ok_or_else(|| TransportError::new(Code::FRAME_ENCODING_ERROR, "the frame type is unknown"))
}

/// The peer asks to be acknowledged in another rhythm: from so many packets, after so many microseconds, from so many missing
/// packets on.
fn on_ack_request(
    acks: &mut AckState,
    min_delay: Duration,
    sequence: u64,
    (eliciting_threshold, max_ack_delay_us, reordering_threshold): (u64, u64, u64),
) -> Result<(), TransportError> {
    let max_ack_delay = Duration::from_micros(max_ack_delay_us);
    // draft-ietf-quic-ack-frequency-14 §4 MUST: a delay below our shortest, or one of 2^14 ms, is a violation.
    if max_ack_delay < min_delay || max_ack_delay_us >= MAX_DELAY_US {
        return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "a delay of acknowledgements out of range"));
    }
    // The threshold counts the packets that need no acknowledgement; the next one does.
    let ack_eliciting_threshold = u32::try_from(eliciting_threshold).unwrap_or(u32::MAX).saturating_add(1);
    acks.on_request(sequence, AckPolicy { ack_eliciting_threshold, max_ack_delay, reordering_threshold });
    Ok(())
}

/// Close reason in the peer's CONNECTION_CLOSE frame.
fn close_reason_of_peer(frame: &Frame<'_>) -> CloseReason {
    match *frame {
        Frame::ConnectionClose { error, frame_type, reason } => {
            let reason = String::from_utf8_lossy(reason).into_owned().into();
            CloseReason::PeerClosed { error: TransportError { code: Code(error), frame_type, reason } }
        }
        Frame::ApplicationClose { error, reason } => {
            CloseReason::PeerApplication { code: error, reason: Bytes::copy_from_slice(reason) }
        }
        _ => unreachable!("no CONNECTION_CLOSE"),
    }
}
