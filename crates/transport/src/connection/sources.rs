//! Sources of frames of a packet number space, in the order in which they are written into a packet.

use fec::Scheme;
use units::{Duration, Instant};
use wire::{Side, TransportParameters, Writer};

use super::{control::Control, copies::Copies, identity::Identity, spaces::SpaceId};
use crate::{
    ack_frequency::AckRequests,
    datagrams::{DatagramEvent, Datagrams},
    error::TransportError,
    events::Event,
    fec::{Fec, FecPolicy},
    handshake::Handshake,
    path::Path,
    profile::Profile,
    sent::Ledger,
    stats::Counts,
    streams::{Streams, Tail},
    tls::Level,
};

/// Our `ack_delay_exponent`: the default, so that it is not sent.
pub(super) const ACK_DELAY_EXPONENT: u8 = 3;

/// Owner of the parts that put frames into packets and receive their fates. Only connection IDs belong to the [`Identity`].
pub(super) struct Sources {
    pub(super) handshake: Handshake,
    pub(super) streams: Streams,
    pub(super) datagrams: Datagrams,
    pub(super) control: Control,
    pub(super) ack_requests: AckRequests,
    pub(super) fec: Fec,
    pub(super) copies: Copies,
}

/// Kinds of frames that may go into a packet.
#[derive(Clone, Copy)]
pub(super) struct Permit {
    /// Frames that count against congestion control.
    pub(super) data: bool,
    /// A probe: it has to elicit an acknowledgement.
    pub(super) probe: bool,
}

/// A packet under construction, as sources see it, and the books that their frames are entered in.
pub(super) struct PacketContext<'a> {
    pub(super) now: Instant,
    pub(super) space: SpaceId,
    /// Start of the frames of the packet.
    pub(super) frames_start: usize,
    pub(super) pn_len: usize,
    pub(super) ledger: &'a mut Ledger,
    pub(super) identity: &'a mut Identity,
    pub(super) stats: &'a mut Counts,
}

impl Sources {
    pub(super) fn new(side: Side, profile: &Profile, handshake: Handshake) -> Self {
        Self {
            handshake,
            streams: Streams::new(side, &profile.streams),
            datagrams: Datagrams::new(&profile.datagrams_config()),
            control: Control::default(),
            ack_requests: AckRequests::new(profile.ack_frequency),
            fec: Fec::default(),
            copies: Copies::default(),
        }
    }

    /// Obeys the transport parameters of the peer. Returns the code that forward error correction begins with.
    pub(super) fn set_peer_parameters(
        &mut self,
        peer: &TransportParameters,
        fec: FecPolicy,
    ) -> Result<Option<Scheme>, TransportError> {
        self.streams.set_peer_parameters(peer)?;
        self.datagrams.set_peer_max_frame_size(peer.max_datagram_frame_size, false)?;
        let max_ack_delay = Duration::from_millis(peer.max_ack_delay_ms);
        self.ack_requests.set_peer(peer.min_ack_delay_us.map(Duration::from_micros), max_ack_delay);
        if let Some(window) = peer.fec_window.filter(|_| fec.is_on()) {
            self.fec.start(fec, window);
        }
        Ok(self.fec.sender.as_ref().and_then(|sender| sender.code()))
    }

    /// Returns whether a space has frames to send other than acknowledgements.
    #[inline]
    pub(super) fn wants_to_send(&self, id: SpaceId, identity: &Identity) -> bool {
        let data = matches!(id, SpaceId::Data(_));
        data && self.streams.wants_to_send()
            || self.handshake.wants_to_send(id.level())
            || data
                && (self.datagrams.wants_to_send() || self.fec.wants_to_send() || self.wants_to_send_control(identity))
    }

    /// Returns whether the next packet will have the size of the last one although that did not fill a datagram: a flow of DATAGRAM frames
    /// of equal length, without other frames that would fill the rest.
    #[inline]
    pub(super) fn next_is_alike(&self) -> bool {
        self.datagrams.next_is_alike() && !self.streams.wants_to_send() && self.handshake.is_confirmed()
    }

    /// The frames of a packet, most urgent first. Returns where its source symbol starts, if it has one.
    #[inline]
    pub(super) fn write_frames(
        &mut self,
        packet: &mut PacketContext<'_>,
        tail: Option<&mut Option<Tail>>,
        w: &mut Writer<'_>,
    ) -> Option<usize> {
        if let Some(crypto) = self.handshake.crypto(packet.space.level())
            && crypto.wants_to_send()
        {
            let before = w.position();
            crypto.write_frames(w, &mut |f| packet.ledger.record(f));
            packet.stats.crypto_bytes_sent += (w.position() - before) as u64;
        }
        // RFC 9000 §12.5 MUST-1: the application's CONNECTION_CLOSE stays in the space of application data
        // RFC 9000 §12.5 MUST-2: frames other than those of the handshake stay in the space of application data
        // RFC 9001 §4.9 MUST-2: new data goes out at the highest level there is
        // RFC 9221 §5 MUST-1: datagrams travel in 0-RTT and 1-RTT packets only
        // RFC 9221 §6 MUST-1: datagrams are protected as stream data is
        if !matches!(packet.space, SpaceId::Data(_)) {
            return None;
        }
        if self.wants_to_send_control(packet.identity) {
            let before = w.position();
            self.write_control(packet, w);
            packet.stats.control_bytes_sent += (w.position() - before) as u64;
        }
        let capacity = w.position() + w.remaining() - packet.frames_start;
        if self.fec.sender.is_some() {
            if !self.protects_next(packet.now) {
                self.write_unprotected(packet, w);
                return None;
            }
            if let Some(room) = self.symbol_room(capacity, w.remaining(), packet.pn_len) {
                return self.write_symbol(packet, room, w);
            }
        }
        // RFC 9221 §5 SHOULD-1: a datagram leaves as soon as it may
        if self.datagrams.wants_to_send() {
            self.datagrams.write(packet.now, w, &mut |f| packet.ledger.record(f));
        }
        if self.streams.wants_to_send() {
            match tail {
                Some(tail) => *tail = self.streams.write_frames_but_tail(w, &mut |f| packet.ledger.record(f)),
                None => self.streams.write_frames(w, &mut |f| packet.ledger.record(f)),
            }
        }
        None
    }

    /// Returns whether the peer should acknowledge the next packet on `path` at once, regardless of the frequency requested.
    #[cold]
    pub(super) fn needs_prompt_ack(&self, path: &Path, id: SpaceId, permit: Permit) -> bool {
        if !matches!(id, SpaceId::Data(_)) || !self.ack_requests.is_understood() {
            return false;
        }
        // draft-ietf-quic-ack-frequency-14 §7: a probe has waited long enough.
        if permit.probe {
            return true;
        }
        // The packet fills the window, and with it the peer still collects: neither end would move until its timer does.
        let Path { recovery, mtu, .. } = path;
        recovery.window().saturating_sub(recovery.bytes_in_flight()) < 2 * u64::from(*mtu)
            && recovery.ack_eliciting_in_flight(id) + 1 < self.ack_requests.packets_per_ack()
    }

    /// The next event of a stream, or of datagrams.
    #[inline]
    pub(super) fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.streams.poll_event() {
            return Some(Event::Stream(event));
        }
        Some(match self.datagrams.poll_event()? {
            DatagramEvent::Readable => Event::DatagramsReadable,
            DatagramEvent::Writable => Event::DatagramsWritable,
            DatagramEvent::SendDropped { count, .. } => Event::DatagramsDropped { count },
            DatagramEvent::ReceiveDropped { count, .. } => Event::DatagramsUnread { count },
        })
    }

    /// Sets how much buffers may have beyond what is kept of them.
    pub(super) fn set_slack(&mut self, slack: u64) {
        self.streams.set_slack(slack);
        self.datagrams.set_slack(slack);
    }

    /// Sets the size of DATAGRAM frames to the room in a packet of `mtu` bytes with a destination ID of `id_len` bytes.
    pub(super) fn fit_datagrams(&mut self, mtu: u16, id_len: usize) {
        // First byte, ID, the longest packet number, tag.
        let mut overhead = 1 + id_len + 4 + crate::crypto::TAG_LEN;
        if self.fec.sender.is_some() {
            // The frame in front of a repair symbol with the longest ID that is ever reached, and the length in it.
            overhead += wire::RepairFrame::header_len(1 << 30) + 2;
        }
        self.datagrams.set_packet_room(usize::from(mtu) - overhead);
    }

    /// Bytes that the peer makes these parts hold.
    #[inline]
    pub(super) fn received_memory(&self) -> u64 {
        let symbols = self.fec.receiver.as_ref().map_or(0, |receiver| receiver.received_memory());
        self.streams.received_memory()
            + self.datagrams.received_memory()
            + (self.handshake.received_memory() + symbols) as u64
    }

    /// Returns memory that is not in use.
    pub(super) fn shrink(&mut self) {
        if let Some(crypto) = self.handshake.crypto(Level::OneRtt) {
            crypto.shrink();
        }
        self.streams.shrink();
        self.datagrams.shrink();
    }

    /// The connection has ended: forgets data and symbols.
    pub(super) fn forget(&mut self) {
        self.streams.forget();
        self.datagrams.forget();
        self.fec.forget();
    }
}
