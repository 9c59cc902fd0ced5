//! Control frames: their sources, and processing of the peer's frames.
//!
//! A source of control frames owns the state to send, and is a [`FrameSource`]: it returns whether it wants to send, writes its frames, and
//! receives their fate, acknowledged or lost. The table [`control_frames`] lists the sources in the order of writing. This file derives
//! each step of a frame's life from the table.

use bytes::Bytes;
use units::Instant;
use wire::{Frame, Side, Writer};

use super::{
    Connection,
    identity::Identity,
    receive::PacketSeen,
    sources::{PacketContext, Sources},
    verdicts::Carriers,
};
use crate::{
    error::{Code, TransportError},
    events::{CloseReason, Event},
    sent::{ControlFrame, SentFrame, control_frames},
};

/// A source of control frames.
pub(super) trait FrameSource {
    /// Returns whether a frame waits to be sent.
    fn wants_to_send(&self) -> bool;

    /// Writes the frames that wait, and records them. `false` when one found no room that sources further down the list are
    /// not to take.
    fn write(&mut self, now: Instant, w: &mut Writer<'_>, record: impl FnMut(ControlFrame)) -> bool;

    /// The peer has a frame.
    fn on_acked(&mut self, frame: &ControlFrame);

    /// A frame was lost.
    fn on_lost(&mut self, frame: &ControlFrame);

    /// Returns whether a probe repeats frames whose packets are still in flight.
    fn is_repeated(&self) -> bool {
        true
    }
}

/// The source of a row, among `$sources` and `$identity`.
macro_rules! source {
    ($sources:expr, $identity:expr, sources $(.$field:ident)+) => { $sources $(.$field)+ };
    ($sources:expr, $identity:expr, identity $(.$field:ident)+) => { $identity $(.$field)+ };
}

/// Owns the control frames that belong to no other part.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(super) ping: Ping,
    pub(super) handshake_done: HandshakeDone,
    pub(super) token: NewToken,
}

/// Makes each step in the life of a frame from the rows of the table.
macro_rules! dispatch {
    ($(
        $(#[$doc:meta])* $name:ident $(($number:ty))?: $root:ident $(.$field:ident)+
        $(, { $($peer:ident),* } => $obey:ident)?;
    )+) => {
        impl Sources {
            /// Returns whether a control frame waits to be sent.
            #[inline]
            pub(super) fn wants_to_send_control(&self, identity: &Identity) -> bool {
                $(FrameSource::wants_to_send(&source!(self, identity, $root $(.$field)+)))||+
            }

            /// Writes the frames of each source, until one asks the others to wait.
            fn write_sources(
                &mut self,
                identity: &mut Identity,
                now: Instant,
                w: &mut Writer<'_>,
                record: &mut impl FnMut(ControlFrame),
            ) -> bool {
                $(write_waiting(&mut source!(self, identity, $root $(.$field)+), now, w, record))&&+
            }
        }

        impl Carriers<'_> {
            /// Passes the fate of a control frame to its source.
            pub(super) fn settle_control(&mut self, arrived: bool, frame: &ControlFrame) {
                match frame {
                    $(ControlFrame::$name { .. } => {
                        settle(&mut source!(self.sources, self.identity, $root $(.$field)+), arrived, frame)
                    })+
                }
            }

            /// Returns whether a probe repeats the frame although its packet is still in flight.
            pub(super) fn is_control_repeated(&self, frame: &ControlFrame) -> bool {
                match frame {
                    $(ControlFrame::$name { .. } => {
                        source!(self.sources, self.identity, $root $(.$field)+).is_repeated()
                    })+
                }
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
                    $($(Frame::$name { $($peer),* } => self.$obey(now, seen, $($peer),*),)?)+
                    Frame::Padding { .. } | Frame::Ping => Ok(()),
                    Frame::Crypto { offset, data } => {
                        self.packets.sources.handshake.on_crypto(now, seen.space.level(), offset, data)
                    }
                    Frame::ResetStream { .. }
                    | Frame::ResetStreamAt { .. }
                    | Frame::StopSending { .. }
                    | Frame::MaxData(_)
                    | Frame::MaxStreamData { .. }
                    | Frame::MaxStreams { .. }
                    | Frame::DataBlocked(_)
                    | Frame::StreamsBlocked { .. }
                    | Frame::StreamDataBlocked { .. } => self.packets.sources.handle_stream_control(&frame),
                    Frame::PathChallenge(data) => {
                        self.on_path_challenge(now, seen.path, data);
                        Ok(())
                    }
                    Frame::PathResponse(data) => {
                        self.on_path_response(now, data);
                        Ok(())
                    }
                    Frame::ConnectionClose { .. } | Frame::ApplicationClose { .. } => {
                        self.drain(now, close_reason_of_peer(&frame));
                        Ok(())
                    }
                    Frame::ImmediateAck => self.on_immediate_ack(),
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
        }
    };
}
control_frames!(dispatch);

/// Writes the frames of a source, if any wait. `false` when sources further down the list have to wait.
fn write_waiting(
    source: &mut impl FrameSource,
    now: Instant,
    w: &mut Writer<'_>,
    record: &mut impl FnMut(ControlFrame),
) -> bool {
    !source.wants_to_send() || source.write(now, w, record)
}

/// Passes the fate of a frame to its source.
fn settle(source: &mut impl FrameSource, arrived: bool, frame: &ControlFrame) {
    if arrived { source.on_acked(frame) } else { source.on_lost(frame) }
}

/// Writes a frame and records it, where it fits.
pub(super) fn write_one(w: &mut Writer<'_>, frame: &Frame<'_>, record: impl FnOnce()) -> bool {
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

/// Writes a PING without a source, which is not sent again: it makes a probe elicit an acknowledgement.
#[inline]
pub(super) fn write_ping(w: &mut Writer<'_>) {
    Frame::Ping.encode(w);
}

impl FrameSource for Ping {
    fn wants_to_send(&self) -> bool {
        self.due
    }

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(ControlFrame)) -> bool {
        if self.due && write_one(w, &Frame::Ping, || record(ControlFrame::Ping)) {
            self.due = false;
        }
        true
    }

    fn on_acked(&mut self, _frame: &ControlFrame) {}

    fn on_lost(&mut self, _frame: &ControlFrame) {
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
    /// Requests HANDSHAKE_DONE.
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

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(ControlFrame)) -> bool {
        if self.due && write_one(w, &Frame::HandshakeDone, || record(ControlFrame::HandshakeDone)) {
            self.due = false;
        }
        true
    }

    fn on_acked(&mut self, _frame: &ControlFrame) {
        self.acked = true;
    }

    // RFC 9000 §13.3 MUST-1: HANDSHAKE_DONE is repeated until it has arrived
    fn on_lost(&mut self, _frame: &ControlFrame) {
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

    fn write(&mut self, _now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(ControlFrame)) -> bool {
        if let Some(token) = self.token.as_deref().filter(|_| self.waits)
            && write_one(w, &Frame::NewToken { token }, || record(ControlFrame::NewToken))
        {
            self.waits = false;
        }
        true
    }

    fn on_acked(&mut self, _frame: &ControlFrame) {
        *self = Self::default();
    }

    fn on_lost(&mut self, _frame: &ControlFrame) {
        self.waits = self.token.is_some();
    }
}

impl Sources {
    /// Obeys a frame about streams and their limits.
    fn handle_stream_control(&mut self, frame: &Frame<'_>) -> Result<(), TransportError> {
        let streams = &mut self.streams;
        match *frame {
            Frame::ResetStream { id, code, final_size } => return streams.on_reset_stream(id, code, final_size),
            Frame::ResetStreamAt { id, code, final_size, reliable_size } => {
                return streams.on_reset_stream_at(id, code, final_size, reliable_size);
            }
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
        let mut record = |frame| ledger.record(SentFrame::Control(frame));
        self.write_sources(identity, *now, w, &mut record);
        stats.ack_requests_sent += u64::from(asks && !self.ack_requests.wants_to_send());
    }
}

impl Connection {
    /// Obeys a HANDSHAKE_DONE frame.
    fn on_handshake_done(&mut self, now: Instant, _seen: &PacketSeen<'_>) -> Result<(), TransportError> {
        // RFC 9000 §19.20 MUST-1: only servers send it.
        if self.side == Side::Server {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "HANDSHAKE_DONE from a client"));
        }
        self.on_confirmed(now);
        Ok(())
    }

    /// Obeys a NEW_TOKEN frame.
    fn on_new_token(&mut self, _now: Instant, _seen: &PacketSeen<'_>, token: &[u8]) -> Result<(), TransportError> {
        // RFC 9000 §19.7 MUST-2: only servers send it.
        if self.side == Side::Server {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "NEW_TOKEN from a client"));
        }
        self.packets.identity.keep_token(token);
        self.push(Event::TokenReceived(Bytes::copy_from_slice(token)));
        Ok(())
    }
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
