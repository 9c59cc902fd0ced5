//! Early data: data that a client sends before it has heard from the server (RFC 9000 §17.2.3, RFC 9001 §4.6, §5.6).
//!
//! ```text
//! client: remembered limits → streams that the application names → 0-RTT packets → accepted: they stand, with the others
//!                                                                                → refused: all of it again in 1-RTT packets
//! server: 0-RTT packets wait until the ClientHello is complete → accepted: opened; refused: dropped
//! ```
//!
//! 0-RTT and 1-RTT packets share packet numbers, ledger and loss recovery. This file has the differences: limits in force, the time at
//! which 0-RTT packets may be sent, and their fate.

use units::{Duration, Instant};
use wire::{Ack, Dir, Side, StreamId, TransportParameters};

use super::{Connection, spaces::SpaceId};
use crate::{
    error::{Code, TransportError},
    events::Event,
    keys::Keys,
    tls::{EarlyData, Level},
};

/// The server's parameters of the earlier connection that it must not reduce when it accepts (RFC 9000 §7.4.1, RFC 9221 §3,
/// draft-ietf-quic-reliable-stream-reset §3).
#[derive(Clone, Copy)]
struct Remembered([u64; 9]);

impl Remembered {
    fn of(p: &TransportParameters) -> Self {
        Self([
            p.active_connection_id_limit,
            p.initial_max_data,
            p.initial_max_stream_data_bidi_local,
            p.initial_max_stream_data_bidi_remote,
            p.initial_max_stream_data_uni,
            p.initial_max_streams_bidi,
            p.initial_max_streams_uni,
            p.max_datagram_frame_size,
            p.reset_stream_at.into(),
        ])
    }
}

/// Owner of the state of early data.
pub(super) struct Early {
    state: EarlyData,
    remembered: Option<Box<Remembered>>,
    /// Client: packets with lower numbers were 0-RTT packets that the server refused.
    refused_below: u64,
    /// Server: when late 0-RTT packets are not opened any more.
    forget_keys_at: Option<Instant>,
}

impl Early {
    pub(super) fn new() -> Self {
        Self { state: EarlyData::None, remembered: None, refused_below: 0, forget_keys_at: None }
    }

    /// Time at which the server's 0-RTT keys are forgotten.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.forget_keys_at
    }

    /// A server's handshake is complete: 0-RTT packets that are still in progress are opened for a while.
    // RFC 9001 §4.9.3 MUST-1, RECOMMENDED-1: three probe timeouts; counted from the handshake's end, before which no
    // 1-RTT packet is opened.
    pub(super) fn forget_keys_later(&mut self, now: Instant, keys: &Keys, pto: Duration) {
        if keys.can_open(Level::ZeroRtt) {
            self.forget_keys_at = Some(now + pto * 3);
        }
    }

    /// Returns whether the server's 0-RTT keys are to be forgotten, once.
    fn take_due(&mut self, now: Instant) -> bool {
        self.forget_keys_at.take_if(|at| *at <= now).is_some()
    }

    /// A client offers early data, under these parameters.
    // RFC 9000 §7.4.1 MUST NOT-1, MUST-3, MUST-5: of the remembered values only those that limit what is sent
    // hold for early data; exponents, delays, IDs, tokens and addresses are those of this connection's handshake.
    // RFC 9000 §9.6.2 MUST NOT-1: a preferred address is for the connection on which it came, and no other.
    fn offer(&mut self, then: &TransportParameters) {
        self.state = EarlyData::Offered;
        self.remembered = Some(Box::new(Remembered::of(then)));
    }

    /// Checks the parameters of this handshake, if the server has accepted early data under those of an earlier one.
    // RFC 9000 §7.4.1 MUST NOT: then none of them is smaller.
    // RFC 9221 §3 MUST-4, MUST-5: nor is the size of datagrams.
    // draft-ietf-quic-reliable-stream-reset §3 MUST NOT: nor is RESET_STREAM_AT refused.
    pub(super) fn check_remembered(&self, peer: &TransportParameters) -> Result<(), TransportError> {
        let Some(then) = self.remembered.as_deref().filter(|_| self.state == EarlyData::Accepted) else {
            return Ok(());
        };
        if then.0.iter().zip(Remembered::of(peer).0).any(|(then, now)| now < *then) {
            let what = "early data was accepted under limits that are smaller now";
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, what));
        }
        Ok(())
    }

    /// An ACK frame for packets with application data.
    // RFC 9001 §4.6.2 SHOULD-1: who refuses early data and acknowledges it is in error.
    #[inline]
    pub(super) fn check_refused(&self, ack: &Ack<'_>) -> Result<(), TransportError> {
        let below = self.refused_below;
        if below > 0 && ack.ranges().any(|range| *range.start() < below) {
            let what = "early data was refused, and is acknowledged";
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, what));
        }
        Ok(())
    }

    /// Returns whether 0-RTT packets may still become readable.
    pub(super) fn is_undecided(&self) -> bool {
        self.state == EarlyData::None
    }
}

/// Early data.
impl Connection {
    /// Outcome of early data: a client's own, or that of a server's client.
    pub fn early_data(&self) -> EarlyData {
        self.early.state
    }

    /// Opens a stream whose data may leave at once, before the server has answered, when a session with it is resumed.
    /// Without that it is as [`open`](Self::open).
    ///
    /// An observer can replay such data to the server, which may process it more than once. So use it only for data whose repetition does
    /// no harm. If the server refuses early data, the stream's data is sent again after the handshake.
    // RFC 9001 §5.6 MUST NOT-1: early data only where the application asks for it. Streams that are opened otherwise
    // wait.
    pub fn open_early(&mut self, dir: Dir) -> Option<StreamId> {
        let id = self.open(dir)?;
        self.packets.sources.streams.allow_early(id);
        Some(id)
    }

    /// A client resumes a session and offers early data.
    pub(super) fn on_remembered_parameters(&mut self, raw: &[u8]) -> Result<(), TransportError> {
        let Ok(then) = TransportParameters::decode(Side::Server, raw) else { return Ok(()) };
        self.early.offer(&then);
        self.packets.sources.streams.begin_early();
        self.packets.sources.streams.set_peer_parameters(&then)?;
        self.stats.early_data_offered = 1;
        Ok(())
    }

    /// The server has decided, or this end has as a server.
    pub(super) fn on_early_verdict(&mut self, now: Instant, accepted: bool) {
        self.early.state = if accepted { EarlyData::Accepted } else { EarlyData::Rejected };
        self.stats.early_data_offered = 1;
        self.stats.early_data_accepted = accepted.into();
        self.stats.early_data_refused = (!accepted).into();
        if self.side == Side::Server {
            // RFC 9001 §4.6.2 MUST NOT-1: refused early data is not looked at.
            if !accepted {
                self.reception.give_up_unopened(&mut self.stats, |unopened| !unopened.is_early());
            }
        } else if !accepted {
            self.stop_early(now);
            self.early.refused_below = self.packets.spaces.get(SpaceId::DATA).map_or(0, |space| space.ledger.next_pn());
            self.packets.void_early(now, false, &mut self.paths);
            // RFC 9001 §4.6.2 MUST-1: all streams begin anew. Their data is still here, so the application need not
            // care.
            self.packets.sources.streams.on_zero_rtt_rejected();
        }
        self.push(Event::EarlyData { accepted });
    }

    /// No 0-RTT packet is sent from here on.
    // RFC 9001 §5.6 MUST NOT-4, RFC 9001 §4.9.3 SHOULD-1, RFC 9000 §17.2.3 MUST NOT-1: not once there are 1-RTT keys;
    // the 0-RTT keys are forgotten. They go already when the server's parameters are known:
    // RFC 9000 §7.4.1 MUST NOT-4: use those in 0-RTT packets.
    pub(super) fn stop_early(&mut self, now: Instant) {
        if self.packets.sends_early() {
            self.packets.keys.discard(Level::ZeroRtt);
            self.observation.tell(now, |observer, at| observer.keys_discarded(at, Level::ZeroRtt, None));
        }
        self.packets.sources.streams.end_early();
    }

    pub(super) fn forget_early_keys(&mut self, now: Instant) {
        if self.early.take_due(now) {
            self.packets.keys.discard(Level::ZeroRtt);
            self.observation.tell(now, |observer, at| observer.keys_discarded(at, Level::ZeroRtt, None));
        }
    }
}
