//! Fate of a sent frame, passed to the owner of the frame.

use units::{Duration, Instant};
use wire::StreamId;

use super::{identity::Identity, sources::Sources, spaces::SpaceId};
use crate::{
    acks::AckState,
    observe::{LossEvent, Observer},
    recovery::{Fates, LossTrigger},
    sent::{SentFrame, Verdict},
};

/// The parts that put frames into packets, borrowed for the time in which an acknowledgement is worked through.
pub(super) struct Carriers<'a> {
    pub(super) space: SpaceId,
    pub(super) acks: &'a mut AckState,
    pub(super) sources: &'a mut Sources,
    pub(super) identity: &'a mut Identity,
    /// Observer of losses.
    pub(super) observer: Option<(Instant, &'a mut (dyn Observer + 'static))>,
    /// Stream data that arrived and was not passed on yet.
    pub(super) arrived: Option<ArrivedRun>,
}

/// Neighbouring parts of one stream that arrived. Packets of a bulk transfer carry one part each, and an acknowledgement covers
/// dozens of them: the stream is called once for all.
pub(super) struct ArrivedRun {
    id: StreamId,
    start: u64,
    end: u64,
}

impl ArrivedRun {
    /// Takes in a neighbour; false when it is none.
    #[inline]
    fn extend(&mut self, id: StreamId, start: u64, end: u64) -> bool {
        if self.id != id {
            return false;
        }
        if self.end == start {
            self.end = end;
        } else if self.start == end {
            self.start = start;
        } else {
            return false;
        }
        true
    }
}

impl Fates for Carriers<'_> {
    #[inline]
    fn frame(&mut self, verdict: Verdict, frame: SentFrame) {
        self.tell(verdict, &frame);
    }

    fn packet_lost(&mut self, pn: u64, size: u16, mtu_probe: bool, trigger: LossTrigger, after: Duration) {
        if !mtu_probe {
            self.sources.fec.on_packet_lost(pn);
        }
        if let Some((now, observer)) = &mut self.observer {
            let space = self.space.level();
            observer.packet_lost(*now, &LossEvent { space, pn, size, mtu_probe, trigger, after });
        }
    }
}

impl<'a> Carriers<'a> {
    /// Receivers of verdicts on packets of a space.
    #[inline]
    pub(super) fn new(
        space: SpaceId,
        acks: &'a mut AckState,
        sources: &'a mut Sources,
        identity: &'a mut Identity,
        observer: Option<(Instant, &'a mut (dyn Observer + 'static))>,
    ) -> Self {
        Self { space, acks, sources, identity, observer, arrived: None }
    }
}

impl Carriers<'_> {
    #[inline]
    pub(super) fn tell(&mut self, verdict: Verdict, frame: &SentFrame) {
        // What stood beside the symbol in a packet that was rebuilt is lost.
        let arrived = match verdict {
            Verdict::Acked | Verdict::AckedLate => true,
            Verdict::Recovered => frame.is_in_symbol(),
            Verdict::Lost | Verdict::Discarded => false,
        };
        if let (false, Some((now, observer))) = (arrived, &mut self.observer) {
            observer.frame_lost(*now, frame);
        }
        match *frame {
            SentFrame::Stream { id, offset, len, fin: false } if arrived => {
                let end = offset + u64::from(len);
                if !self.arrived.as_mut().is_some_and(|run| run.extend(id, offset, end)) {
                    self.settle();
                    self.arrived = Some(ArrivedRun { id, start: offset, end });
                }
            }
            SentFrame::Ack { .. } => self.tell_rare(arrived, frame),
            SentFrame::Symbol(id) => self.sources.fec.on_symbol(verdict, id),
            _ => {
                // What concerns a stream is told in the order in which it happened.
                self.settle();
                self.tell_rare(arrived, frame);
            }
        }
    }

    /// Passes on the verdicts that were held back. To be called when the verdicts of an acknowledgement are complete.
    #[inline]
    pub(super) fn settle(&mut self) {
        if let Some(ArrivedRun { id, start, end }) = self.arrived.take() {
            self.sources.streams.on_data_acked(id, start, end, false);
        }
    }

    /// Queues a frame again although its packet is still in flight; what is not worth repeating is left out.
    pub(super) fn repeat(&mut self, frame: &SentFrame) {
        debug_assert!(self.arrived.is_none());
        match frame {
            SentFrame::Datagram(_) | SentFrame::Ack { .. } | SentFrame::Symbol(_) | SentFrame::SymbolAck { .. } => {}
            SentFrame::Control(control) if !self.is_control_repeated(control) => {}
            frame => self.tell(Verdict::Lost, frame),
        }
    }

    fn tell_rare(&mut self, arrived: bool, frame: &SentFrame) {
        match *frame {
            SentFrame::Stream { .. }
            | SentFrame::MaxData
            | SentFrame::MaxStreamData(_)
            | SentFrame::MaxStreams(_)
            | SentFrame::DataBlocked(_)
            | SentFrame::StreamDataBlocked(_)
            | SentFrame::StreamsBlocked(_)
            | SentFrame::ResetStream(_)
            | SentFrame::ResetStreamAt { .. }
            | SentFrame::StopSending(_) => {
                if arrived {
                    self.sources.streams.on_acked(frame);
                } else {
                    self.sources.streams.on_lost(frame);
                }
            }
            SentFrame::Ack { largest } => {
                if arrived {
                    self.acks.on_ack_acked(largest);
                }
            }
            SentFrame::Crypto { offset, len } => {
                // RFC 9001 §4 MUST-1: lost handshake data is sent again under the keys that it had
                // RFC 9001 §4.9 MUST-1: handshake data goes out again at the level that it had
                if let Some(stream) = self.sources.handshake.crypto(self.space.level()) {
                    if arrived {
                        stream.on_acked(offset, len);
                    } else {
                        stream.on_lost(offset, len);
                    }
                }
            }
            SentFrame::Datagram(number) => {
                if arrived {
                    self.sources.datagrams.on_acked(number);
                } else {
                    self.sources.datagrams.on_lost(number);
                }
            }
            SentFrame::SymbolAck { largest } => self.sources.fec.on_report(arrived, largest),
            SentFrame::Symbol(_) => unreachable!("told above"),
            SentFrame::Control(ref control) => self.settle_control(arrived, control),
        }
    }
}
