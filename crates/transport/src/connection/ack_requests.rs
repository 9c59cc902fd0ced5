//! Acknowledgement frequency requests (draft-ietf-quic-ack-frequency-14): those of this endpoint, and those of the peer.

use units::{Duration, Instant};
use wire::{Frame, Writer};

use super::{
    Connection,
    control::{FrameSource, write_one},
    receive::PacketSeen,
    spaces::{SpaceId, Spaces},
};
use crate::{
    ack_frequency::{AckRequests, MAX_DELAY_US, Request},
    acks::{AckPolicy, AckState},
    error::{Code, TransportError},
    profile::Profile,
    sent::ControlFrame,
    stats::Counts,
};

impl FrameSource for AckRequests {
    #[inline]
    fn wants_to_send(&self) -> bool {
        AckRequests::wants_to_send(self)
    }

    fn write(&mut self, now: Instant, w: &mut Writer<'_>, mut record: impl FnMut(ControlFrame)) -> bool {
        if let Some((sequence, request)) = self.next_request()
            && write_one(w, &frame(sequence, &request), || record(ControlFrame::AckFrequency(sequence)))
        {
            self.on_sent(now);
        }
        true
    }

    fn on_acked(&mut self, frame: &ControlFrame) {
        if let ControlFrame::AckFrequency(sequence) = frame {
            AckRequests::on_acked(self, *sequence);
        }
    }

    fn on_lost(&mut self, frame: &ControlFrame) {
        if let ControlFrame::AckFrequency(sequence) = frame {
            AckRequests::on_lost(self, *sequence);
        }
    }

    fn is_repeated(&self) -> bool {
        false
    }
}

/// The frame of a request.
fn frame(sequence: u64, request: &Request) -> Frame<'static> {
    Frame::AckFrequency {
        sequence,
        // So many packets need no acknowledgement; the next one does.
        eliciting_threshold: request.packets - 1,
        max_ack_delay_us: u64::try_from(request.delay.as_micros()).unwrap_or(u64::MAX).min(MAX_DELAY_US - 1),
        reordering_threshold: request.reordering,
    }
}

/// Asks the peer to acknowledge the packet at once.
pub(super) fn write_immediate_ack(stats: &mut Counts, w: &mut Writer<'_>) {
    if w.remaining() > 0 {
        let before = w.position();
        Frame::ImmediateAck.encode(w);
        stats.control_bytes_sent += (w.position() - before) as u64;
        stats.immediate_acks_asked += 1;
    }
}

impl Connection {
    /// Obeys an ACK_FREQUENCY frame.
    pub(super) fn on_ack_frequency(
        &mut self,
        _now: Instant,
        _seen: &PacketSeen<'_>,
        sequence: u64,
        eliciting_threshold: u64,
        max_ack_delay_us: u64,
        reordering_threshold: u64,
    ) -> Result<(), TransportError> {
        let asked = (eliciting_threshold, max_ack_delay_us, reordering_threshold);
        let min_delay = self.profile.acks.min_delay().unwrap_or_default();
        on_ack_request(acks_on_request(&mut self.packets.spaces, &self.profile)?, min_delay, sequence, asked)?;
        self.stats.ack_requests_received += 1;
        Ok(())
    }

    /// Obeys an IMMEDIATE_ACK frame.
    pub(super) fn on_immediate_ack(&mut self) -> Result<(), TransportError> {
        acks_on_request(&mut self.packets.spaces, &self.profile)?.on_immediate();
        self.stats.immediate_acks_received += 1;
        Ok(())
    }
}

/// Acknowledgement state that the peer may set, if this end has offered it.
fn acks_on_request<'s>(spaces: &'s mut Spaces, profile: &Profile) -> Result<&'s mut AckState, TransportError> {
    let space = spaces.get_mut(SpaceId::DATA).filter(|_| profile.acks.obey);
    // RFC 9000 §12.4 MUST-4: a type that was not negotiated is as good as unknown.
    space
        .map(|space| &mut space.acks)
        .ok_or_else(|| TransportError::new(Code::FRAME_ENCODING_ERROR, "the frame type is unknown"))
}

/// Processes the peer's request for another acknowledgement frequency: number of packets, microseconds, and reordering threshold.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_obeyed_with_the_values_that_were_asked() {
        let request = Request { packets: 10, delay: Duration::from_millis(5), reordering: 3 };
        let Frame::AckFrequency { sequence, eliciting_threshold, max_ack_delay_us, reordering_threshold } =
            frame(7, &request)
        else {
            panic!("another frame");
        };
        assert_eq!((sequence, eliciting_threshold), (7, 9));
        let mut acks = AckState::new(AckPolicy::default());
        let asked = (eliciting_threshold, max_ack_delay_us, reordering_threshold);
        on_ack_request(&mut acks, Duration::from_millis(1), sequence, asked).unwrap();
        let expected = AckPolicy { ack_eliciting_threshold: 10, max_ack_delay: request.delay, reordering_threshold: 3 };
        assert_eq!(*acks.policy(), expected);
    }
}
