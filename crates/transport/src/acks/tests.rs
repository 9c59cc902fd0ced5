//! Tests of acknowledgements to send: when they are due, and what they report.

use std::collections::BTreeSet;

use proptest::prelude::*;
use wire::{Frame, Frames};

use super::*;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn state() -> AckState {
    AckState::new(AckPolicy::default())
}

/// Content of an ACK frame: ranges, raw delay, counts.
fn written(acks: &mut AckState, now: Instant) -> (Vec<std::ops::RangeInclusive<u64>>, u64, Option<EcnCounts>) {
    let mut buffer = [0; 1000];
    let mut w = Writer::new(&mut buffer);
    acks.write(&mut w, now, 3).expect("something to acknowledge");
    let Some(Ok(Frame::Ack(ack))) = Frames::new(w.written()).next() else { panic!("no ACK frame") };
    (ack.ranges().collect(), ack.delay, ack.ecn)
}

// RFC 9000 §13.2.1 SHOULD-1, MUST-1, MUST NOT-1; RFC 9000 §13.2.2 SHOULD-1
#[test]
fn every_second_or_after_the_delay() {
    let mut acks = state();
    acks.on_packet(0, at(0), true, None);
    assert!(!acks.wants_ack(at(24)));
    assert_eq!(acks.deadline(), Some(at(25)));
    assert!(acks.wants_ack(at(25)));
    acks.on_packet(1, at(2), true, None);
    assert!(acks.wants_ack(at(2)));
    assert_eq!(written(&mut acks, at(10)), (vec![0..=1], 1000, None), "8 ms in units of 8 us");
    assert_eq!((acks.wants_ack(at(1000)), acks.deadline()), (false, None));
}

// RFC 9000 §13.2.1 MUST NOT-2
#[test]
fn what_asks_for_nothing_is_not_acknowledged_by_itself() {
    let mut acks = state();
    for pn in 0..10 {
        acks.on_packet(pn, at(pn), false, None);
    }
    assert_eq!((acks.wants_ack(at(1000)), acks.deadline(), acks.has_news()), (false, None, true));
    // Nor does it make a gap of those that ask.
    acks.on_packet(10, at(10), true, None);
    assert!(!acks.wants_ack(at(10)));
}

// RFC 9000 §13.2.1 SHOULD-3
#[test]
fn gaps_and_late_packets_are_reported_at_once() {
    let mut acks = state();
    acks.on_packet(0, at(0), true, None);
    acks.on_packet(2, at(0), true, None);
    assert!(acks.at_once);
    written(&mut acks, at(0));
    acks.on_packet(3, at(1), true, None);
    assert!(!acks.wants_ack(at(1)), "the gap has been reported");
    acks.on_packet(1, at(1), true, None);
    assert!(acks.at_once);
}

// RFC 9000 §13.2.1 MUST-2, SHOULD-4; RFC 9000 §13.4.1 MUST-1
#[test]
fn handshake_packets_and_congestion_marks_are_reported_at_once() {
    let mut acks = AckState::handshake();
    acks.on_packet(0, at(0), true, None);
    assert!(acks.wants_ack(at(0)));
    let mut acks = state();
    acks.on_packet(0, at(0), true, Some(Ecn::Ce));
    assert!(acks.wants_ack(at(0)));
    assert_eq!(written(&mut acks, at(0)).2, Some(EcnCounts { ect0: 0, ect1: 0, ce: 1 }));
}

/// The table of draft-ietf-quic-ack-frequency §6.2.1 for a threshold of 3.
#[test]
fn reordering_threshold_of_three() {
    let mut acks =
        AckState::new(AckPolicy { ack_eliciting_threshold: 1000, reordering_threshold: 3, ..AckPolicy::default() });
    for (pn, expected) in [(0, false), (1, false), (3, false), (4, false), (5, true), (8, false), (9, true), (10, true)]
    {
        acks.on_packet(pn, at(0), true, None);
        assert_eq!(acks.wants_ack(at(0)), expected, "{pn}");
        if expected {
            written(&mut acks, at(0));
        }
    }
}

/// The table of draft-ietf-quic-ack-frequency-14 §6.2.1 for a threshold of 5.
#[test]
fn reordering_threshold_of_five() {
    let mut acks =
        AckState::new(AckPolicy { ack_eliciting_threshold: 1000, reordering_threshold: 5, ..AckPolicy::default() });
    for (pn, expected) in [(0, false), (1, false), (3, false), (5, false), (6, false), (7, true), (8, false), (9, true)]
    {
        acks.on_packet(pn, at(0), true, None);
        assert_eq!(acks.wants_ack(at(0)), expected, "{pn}");
        if expected {
            written(&mut acks, at(0));
        }
    }
    // draft-ietf-quic-ack-frequency-14 §6.2: what the peer has declared lost by then arrives.
    acks.on_packet(4, at(0), true, None);
    assert!(acks.wants_ack(at(0)));
}

/// A threshold of 0: reordering alone makes no acknowledgement.
#[test]
fn reordering_threshold_of_none() {
    let mut acks =
        AckState::new(AckPolicy { ack_eliciting_threshold: 10, reordering_threshold: 0, ..AckPolicy::default() });
    for pn in [0, 5, 3, 20, 30, 1, 2, 40, 39] {
        acks.on_packet(pn, at(0), true, None);
        assert!(!acks.wants_ack(at(24)), "{pn}");
    }
    acks.on_packet(50, at(0), true, None);
    assert!(acks.wants_ack(at(0)), "the tenth");
}

#[test]
fn the_newest_request_counts() {
    let mut acks = state();
    let policy = |packets, millis| AckPolicy {
        ack_eliciting_threshold: packets,
        max_ack_delay: Duration::from_millis(millis),
        reordering_threshold: 3,
    };
    acks.on_packet(0, at(0), true, None);
    assert!(acks.on_request(4, policy(10, 60)));
    assert_eq!(acks.deadline(), Some(at(60)), "what waits may wait as long as what follows");
    assert!(!acks.on_request(3, policy(2, 5)) && !acks.on_request(4, policy(2, 5)));
    for pn in 1..9 {
        acks.on_packet(pn, at(1), true, None);
    }
    assert!(!acks.wants_ack(at(59)));
    acks.on_packet(9, at(1), true, None);
    assert!(acks.wants_ack(at(1)));
    written(&mut acks, at(1));
    acks.on_packet(10, at(2), true, None);
    assert!(acks.on_request(5, policy(10, 5)));
    assert_eq!(acks.deadline(), Some(at(7)));
    acks.on_immediate();
    assert!(acks.wants_ack(at(2)));
}

/// draft-ietf-quic-ack-frequency-14 §6.3.
#[test]
fn congestion_is_reported_where_it_begins() {
    let mut acks = AckState::new(AckPolicy { ack_eliciting_threshold: 10, ..AckPolicy::default() });
    for (pn, mark, expected) in
        [(0, Ecn::Ect0, false), (1, Ecn::Ce, true), (2, Ecn::Ce, false), (3, Ecn::Ect0, false), (4, Ecn::Ce, true)]
    {
        acks.on_packet(pn, at(0), true, Some(mark));
        assert_eq!(acks.wants_ack(at(0)), expected, "{pn}");
        if expected {
            written(&mut acks, at(0));
        }
    }
}

/// However few acknowledgements the peer wants: every range is reported once before it is forgotten.
#[test]
fn no_range_is_forgotten_unreported() {
    let policy = AckPolicy { ack_eliciting_threshold: 1000, reordering_threshold: 0, ..AckPolicy::default() };
    let mut acks = AckState::new(policy);
    let mut reported = BTreeSet::new();
    for pn in (0..2000).step_by(2) {
        acks.on_packet(pn, at(0), true, None);
        if acks.wants_ack(at(0)) {
            reported.extend(written(&mut acks, at(0)).0.into_iter().flatten());
        }
    }
    assert!((0..1900).step_by(2).all(|pn| reported.contains(&pn)));
}

// RFC 9000 §13.2.5 MUST NOT-1
#[test]
fn arrival_of_the_largest_gives_the_delay() {
    let mut acks = state();
    acks.on_packet(5, at(10), true, None);
    acks.on_packet(4, at(17), true, None);
    assert_eq!(written(&mut acks, at(18)), (vec![4..=5], 1000, None));
}

// RFC 9000 §12.3 MUST-3; RFC 9000 §13.2.3 SHOULD-2, MUST-1, MUST-2
#[test]
fn forgets_what_the_peer_knows() {
    let mut acks = state();
    for pn in [0, 1, 3, 4, 8] {
        acks.on_packet(pn, at(0), true, None);
    }
    acks.on_ack_acked(3);
    assert_eq!(written(&mut acks, at(0)).0, [8..=8, 4..=4]);
    assert!(acks.is_duplicate(2), "unknown whether it is one: treated as such");
    assert!(!acks.is_duplicate(5));
    acks.on_ack_acked(100);
    assert_eq!(written(&mut acks, at(0)).0, [8..=8]);
    assert!(acks.is_duplicate(8) && acks.is_duplicate(7) && !acks.is_duplicate(9));
}

#[test]
fn memory_is_bounded() {
    let mut acks = state();
    for pn in 0..100_000 {
        if !acks.is_duplicate(pn * 2) {
            acks.on_packet(pn * 2, at(0), true, None);
        }
    }
    assert_eq!(acks.received.range_count(), MAX_RANGES);
    assert!(acks.memory() <= 2048);
    assert!(acks.is_duplicate(3));
    let mut small = [0; 20];
    let mut w = Writer::new(&mut small);
    assert_eq!(acks.write(&mut w, at(0), 3), Some(199_998), "as many ranges as fit");
}

proptest! {
    /// No packet is taken twice, and all that is reported was received.
    // RFC 9000 §13.2.3 SHOULD-1, SHOULD-3
    #[test]
    fn reports_only_what_arrived(pns in proptest::collection::vec(0u64..300, 1..400), acked in 0u64..300) {
        let mut acks = state();
        let mut model = BTreeSet::new();
        for (i, pn) in pns.into_iter().enumerate() {
            if !acks.is_duplicate(pn) {
                acks.on_packet(pn, at(0), true, None);
                prop_assert!(model.insert(pn), "{} twice", pn);
            }
            if i == 100 {
                acks.on_ack_acked(acked);
            }
        }
        prop_assert_eq!(acks.largest(), model.last().copied());
        for pn in written(&mut acks, at(0)).0.into_iter().flatten() {
            prop_assert!(model.contains(&pn));
        }
    }
}
