//! Packets in flight on a path that was left.

use super::*;

/// Data in flight on a slow path that was left, and data on a fast one, whose packets are acknowledged one by one.
#[test]
fn records_do_not_wait_for_a_probe_timeout_of_a_slow_path() {
    let mut recoveries =
        [0, 1].map(|path| Recovery::new(&Config::default(), SIZE, Seed::from_number(path), Instant::ZERO));
    let mut ledger = Ledger::new();
    let send = |ledger: &mut Ledger, recoveries: &mut [Recovery; 2], path: usize, pn: u64| {
        ledger.record(SentFrame::Datagram(pn));
        let packet = SentPacket { path: PathIndex::new(path), ..SentPacket::new(at(0), SIZE) };
        recoveries[path].on_packet_sent(ledger, SpaceId::DATA, &packet);
    };
    (0..10).for_each(|pn| send(&mut ledger, &mut recoveries, 1, pn));
    let (mut lost, mut lost_at) = (0, None);
    for pn in 10..3_000 {
        send(&mut ledger, &mut recoveries, 0, pn);
        let mut buffer = [0; 64];
        let Some(Ok(Frame::Ack(ack))) = Frames::new(ack_frame(&mut buffer, &[pn], None)).next() else { panic!() };
        let (none, zero, confirmed) = (&mut |_: Verdict, _: SentFrame| {}, Duration::ZERO, &Progress::CONFIRMED);
        let outcome =
            on_ack_received(&mut ledger, &mut recoveries[..], SpaceId::DATA, &ack, at(1), zero, confirmed, none)
                .unwrap();
        lost += outcome.lost_packets;
        if outcome.lost_packets > 0 {
            lost_at.get_or_insert(pn);
        }
    }
    assert_eq!((lost, lost_at), (10, Some(10 + 1_024)), "all at once");
    assert_eq!(recoveries[1].bytes_in_flight(), 0);
    assert_eq!(ledger.oldest_outstanding(), None);
}
