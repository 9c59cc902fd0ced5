//! Work and memory that acknowledgements cost.

use super::*;

/// Work is proportional to what is newly acknowledged, however much an ACK frame repeats.
#[test]
fn repeated_ranges_cost_nothing() {
    let mut path = Path::reno();
    let mut acked: Vec<u64> = Vec::new();
    for round in 0..200 {
        // In each round every other packet arrives; the rest is lost.
        for pn in round * 6..round * 6 + 6 {
            path.send(round * 1000);
            if pn % 2 == 1 {
                acked.push(pn);
            }
        }
        path.ack(round * 1000 + 10, &acked[acked.len().saturating_sub(64)..]);
    }
    // Time enough that the losses are final.
    let next = path.send(900_000);
    path.ack(900_010, &[next]);
    let next = path.send(900_020);
    acked.push(next);
    path.ledger.steps = 0;
    path.ack(900_030, &acked[acked.len() - 64..]);
    assert!(path.ledger.steps <= 4, "{} steps for one packet", path.ledger.steps);
    path.ledger.steps = 0;
    path.ack(900_031, &acked[acked.len() - 64..]);
    assert!(path.ledger.steps <= 4, "{} steps for nothing", path.ledger.steps);
}

#[test]
fn an_idle_connection_holds_little() {
    let mut path = Path::new(Algorithm::Cubic);
    let mut acks = crate::acks::AckState::new(crate::acks::AckPolicy::default());
    for pn in 0..5000 {
        path.send(pn / 100);
        acks.on_packet(pn * 2, at(0), true, None);
    }
    path.ack(60, &(0..5000).filter(|pn| pn % 50 != 7).collect::<Vec<_>>());
    path.loss_timer(at(2000));
    path.ledger.shrink();
    acks.on_ack_acked(10_000);
    acks.shrink();
    let held = path.ledger.memory() + acks.memory() + size_of::<Ledger>() + size_of_val(&acks);
    assert!(held < 2048, "{held} bytes");
}

#[test]
fn acknowledgements_alone_are_not_hoarded() {
    let mut path = Path::reno();
    for i in 0..10_000 {
        path.ledger.record(SentFrame::Ack { largest: i });
        let packet = SentPacket { ack_eliciting: false, in_flight: false, ..SentPacket::new(at(i), 40) };
        path.recovery.on_packet_sent(&mut path.ledger, SpaceId::DATA, &packet);
    }
    assert_eq!((path.recovery.bytes_in_flight(), path.ledger.since_ack_eliciting()), (0, 10_000));
    assert!(path.ledger.memory() < 12_000, "{}", path.ledger.memory());
    assert_eq!(path.deadline(), None);
    // The old ones may still be acknowledged.
    let mut buffer = [0; 64];
    let Some(Ok(Frame::Ack(ack))) = Frames::new(ack_frame(&mut buffer, &[5, 9999], None)).next() else { panic!() };
    let mut seen = Vec::new();
    let out = &mut |verdict: Verdict, frame: SentFrame| seen.push((verdict, frame));
    let (zero, progress) = (Duration::ZERO, Progress::CONFIRMED);
    on_ack_received(&mut path.ledger, &mut path.recovery, SpaceId::DATA, &ack, at(10_000), zero, &progress, out)
        .unwrap();
    assert_eq!(seen[0], (Verdict::Acked, SentFrame::Ack { largest: 9999 }));
}
