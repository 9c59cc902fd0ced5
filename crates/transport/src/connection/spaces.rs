//! Packet number spaces: ledger of sent packets, and packets to acknowledge.

use units::{Duration, Instant};
use wire::{TransportParameters, Writer};

use super::sources::ACK_DELAY_EXPONENT;
pub(crate) use crate::sent::SpaceId;
use crate::{
    PathId,
    acks::{AckState, ArrivalTimes},
    profile::Profile,
    sent::{Ledger, SentFrame},
    tls::Level,
};

impl SpaceId {
    /// The level whose handshake bytes travel in this space.
    pub(crate) fn level(self) -> Level {
        match self {
            Self::Initial => Level::Initial,
            Self::Handshake => Level::Handshake,
            Self::Data(_) => Level::OneRtt,
        }
    }
}

/// One packet number space.
pub(crate) struct Space {
    pub(crate) ledger: Ledger,
    pub(crate) acks: AckState,
    /// Probes that a timeout requires; they may exceed the congestion window.
    pub(crate) probes: u8,
}

impl Space {
    /// Enables receive timestamps, if the peer has requested them.
    pub(super) fn report_times(&mut self, now: Instant, peer: &TransportParameters) {
        if let Some(most) = peer.max_receive_timestamps_per_ack.filter(|&most| most > 0) {
            // Before every packet that is to be reported, those included that wait for their keys.
            let basis = now.saturating_sub(Duration::from_secs(10));
            self.acks.report_times(ArrivalTimes::new(basis, peer.receive_timestamps_exponent, most));
        }
    }

    /// An acknowledgement, when one is due or another packet leaves anyway. Returns the largest packet number that it names.
    #[inline]
    // RFC 9000 §13.2 SHOULD-1: an acknowledgement travels with whatever packet leaves
    // RFC 9000 §13.2.1 SHOULD-2: new acknowledgements travel with other frames
    pub(super) fn write_ack(&mut self, now: Instant, w: &mut Writer<'_>) -> Option<u64> {
        if !self.acks.has_news() {
            return None;
        }
        let largest = self.acks.write(w, now, ACK_DELAY_EXPONENT)?;
        // RFC 9000 §13.2.6 MUST-1: ACK frames travel in the space that they speak of
        // RFC 9000 §13.2.6 MUST-2: 1-RTT packets are acknowledged in 1-RTT packets
        // RFC 9000 §17.2.3 MUST-2: 1-RTT packets are acknowledged in 1-RTT packets
        self.ledger.record(SentFrame::Ack { largest });
        Some(largest)
    }
}

/// Owns the packet number spaces. Those of the handshake are freed with their keys.
pub(crate) struct Spaces {
    initial: Option<Box<Space>>,
    handshake: Option<Box<Space>>,
    data: Vec<Space>,
}

/// Frames of application data that the first packets of a connection carry.
const FIRST_FRAMES: usize = 8;

impl Spaces {
    pub(crate) fn new(profile: &Profile) -> Self {
        let handshake = || Some(Box::new(Space { ledger: Ledger::new(), acks: AckState::handshake(), probes: 0 }));
        let data =
            Space { ledger: Ledger::with_frames(FIRST_FRAMES), acks: AckState::new(profile.acks.policy()), probes: 0 };
        Self { initial: handshake(), handshake: handshake(), data: vec![data] }
    }

    #[inline]
    pub(crate) fn get(&self, id: SpaceId) -> Option<&Space> {
        match id {
            SpaceId::Data(path) => self.data.get(path.0 as usize),
            SpaceId::Initial => self.initial.as_deref(),
            SpaceId::Handshake => self.handshake.as_deref(),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SpaceId) -> Option<&mut Space> {
        match id {
            SpaceId::Data(path) => self.data.get_mut(path.0 as usize),
            SpaceId::Initial => self.initial.as_deref_mut(),
            SpaceId::Handshake => self.handshake.as_deref_mut(),
        }
    }

    /// Returns whether a timeout requires application data probes.
    #[inline]
    pub(crate) fn wants_probes(&self) -> bool {
        self.data[0].probes > 0
    }

    /// The packet number to expect next: what truncated numbers are completed with (RFC 9000 §A.3).
    #[inline]
    pub(crate) fn expected_pn(&self, id: SpaceId) -> u64 {
        self.get(id).and_then(|s| s.acks.largest()).map_or(0, |largest| largest + 1)
    }

    /// Takes a space of the handshake out, to settle its account.
    pub(crate) fn take(&mut self, id: SpaceId) -> Option<Box<Space>> {
        match id {
            SpaceId::Initial => self.initial.take(),
            SpaceId::Handshake => self.handshake.take(),
            SpaceId::Data(_) => None,
        }
    }

    /// Returns memory that is not in use.
    pub(crate) fn shrink(&mut self) {
        for id in self.ids() {
            if let Some(space) = self.get_mut(id) {
                space.ledger.shrink();
                space.acks.shrink();
            }
        }
    }

    /// Discards the records of sent packets; the connection has ended.
    pub(crate) fn forget_sent(&mut self) {
        for id in self.ids() {
            if let Some(space) = self.get_mut(id) {
                space.ledger.clear(|_, _| {});
            }
        }
    }

    /// Bytes of memory that the records of packets hold: those sent and not yet accounted for, and those received.
    pub(crate) fn records_memory(&self) -> usize {
        let spaces = self.ids().filter_map(|id| self.get(id));
        spaces.map(|space| space.ledger.memory() + space.acks.memory()).sum()
    }

    /// The earliest deadline of an acknowledgement.
    pub(crate) fn ack_deadline(&self) -> Option<Instant> {
        self.ids().filter_map(|id| self.get(id)?.acks.deadline()).min()
    }

    /// Restores the space of Initial packets after a Retry.
    pub(crate) fn put_initial(&mut self, space: Box<Space>) {
        self.initial = Some(space);
    }

    /// Bytes of memory for sent packets, and bytes of those records among them that are in use.
    #[inline]
    pub(crate) fn sent_memory(&self) -> (usize, usize) {
        let of = |space: &Space| (space.ledger.memory(), space.ledger.records());
        let mut sum = of(&self.data[0]);
        for space in [&self.initial, &self.handshake].into_iter().flatten() {
            let (memory, records) = of(space);
            sum = (sum.0 + memory, sum.1 + records);
        }
        sum
    }

    /// The spaces that exist, in the order of the handshake.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SpaceId> + use<> {
        let initial = self.initial.as_ref().map(|_| SpaceId::Initial);
        let handshake = self.handshake.as_ref().map(|_| SpaceId::Handshake);
        let data = (0..u32::try_from(self.data.len()).unwrap_or(0)).map(|p| SpaceId::Data(PathId(p)));
        initial.into_iter().chain(handshake).chain(data)
    }
}
