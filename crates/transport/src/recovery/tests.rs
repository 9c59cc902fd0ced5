//! Recovery as a whole: sent packets, acknowledgements, time.

mod against_model;
mod left_path;
mod memory;
mod persistent;
mod throughput;
mod window;

use units::{Duration, Instant, Seed};
use wire::{Ack, EcnCounts, Frame, Frames, Writer};

use super::*;
use crate::error::{Code, TransportError};
use crate::range_set::RangeSet;
use crate::sent::{Entry, SentFrame, Verdict};

const MS: Duration = Duration::from_millis(1);
/// Controllers whose window answers to loss, and to nothing else.
const LOSS_BASED: [Algorithm; 2] = [Algorithm::NewReno, Algorithm::Cubic];
const SIZE: u16 = 1200;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// One path with its ledger of one space, and the verdicts of all frames.
struct Path {
    recovery: Recovery,
    ledger: Ledger,
    space: SpaceId,
    progress: Progress,
    verdicts: Vec<(Verdict, u64)>,
}

impl Path {
    fn new(algorithm: Algorithm) -> Self {
        let config = Config { algorithm, ..Config::default() };
        Self {
            recovery: Recovery::new(&config, SIZE, Seed::from_number(1), Instant::ZERO),
            ledger: Ledger::new(),
            space: SpaceId::DATA,
            progress: Progress::CONFIRMED,
            verdicts: Vec::new(),
        }
    }

    fn reno() -> Self {
        Self::new(Algorithm::NewReno)
    }

    /// Sends a packet with one frame, whose number is the packet's.
    fn send_packet(&mut self, packet: SentPacket) -> u64 {
        self.ledger.record(SentFrame::Datagram(self.ledger.next_pn()));
        self.recovery.on_packet_sent(&mut self.ledger, self.space, &packet)
    }

    fn send(&mut self, millis: u64) -> u64 {
        self.send_packet(SentPacket::new(at(millis), SIZE))
    }

    fn send_many(&mut self, millis: u64, count: usize) {
        for _ in 0..count {
            self.send(millis);
        }
    }

    fn try_ack(&mut self, now: Instant, pns: &[u64], ecn: Option<EcnCounts>) -> Result<AckOutcome, TransportError> {
        let mut buffer = [0; 4096];
        let written = ack_frame(&mut buffer, pns, ecn);
        let Some(Ok(Frame::Ack(ack))) = Frames::new(written).next() else { panic!("no ACK frame") };
        let verdicts = &mut self.verdicts;
        on_ack_received(
            &mut self.ledger,
            &mut self.recovery,
            self.space,
            &ack,
            now,
            Duration::ZERO,
            &self.progress,
            &mut |verdict: Verdict, frame: SentFrame| verdicts.push((verdict, number(frame))),
        )
    }

    fn ack(&mut self, millis: u64, pns: &[u64]) -> AckOutcome {
        self.try_ack(at(millis), pns, None).expect("all of them were sent")
    }

    fn loss_timer(&mut self, now: Instant) -> AckOutcome {
        let verdicts = &mut self.verdicts;
        on_loss_timer(
            &mut self.ledger,
            &mut self.recovery,
            self.space,
            now,
            &mut |verdict: Verdict, frame: SentFrame| {
                verdicts.push((verdict, number(frame)));
            },
        )
    }

    fn deadline(&self) -> Option<(Instant, Reason)> {
        self.recovery.deadline(&self.progress).map(|deadline| (deadline.at, deadline.reason))
    }

    fn with(&self, verdict: Verdict) -> Vec<u64> {
        self.verdicts.iter().filter(|seen| seen.0 == verdict).map(|seen| seen.1).collect()
    }
}

fn number(frame: SentFrame) -> u64 {
    match frame {
        SentFrame::Datagram(number) => number,
        other => panic!("no test sends {other:?}"),
    }
}

fn ack_frame<'a>(buffer: &'a mut [u8], pns: &[u64], ecn: Option<EcnCounts>) -> &'a [u8] {
    let mut set = RangeSet::new();
    for pn in pns {
        set.insert(*pn);
    }
    let room = buffer.len();
    let mut w = Writer::new(buffer);
    let ranges = Ack::encode(&mut w, 0, set.descending(), set.range_count(), ecn, room);
    assert_eq!(ranges, set.range_count());
    let len = w.position();
    &buffer[..len]
}

#[test]
fn an_entry_is_one_cache_line() {
    assert_eq!(size_of::<crate::sent::Entry>(), 64);
}

#[test]
fn acknowledged_packets_leave_the_flight() {
    let mut path = Path::reno();
    path.send_many(0, 3);
    assert_eq!((path.recovery.bytes_in_flight(), path.recovery.ack_eliciting_in_flight(SpaceId::DATA)), (3600, 3));
    let outcome = path.ack(40, &[0, 2]);
    assert_eq!((outcome.acked_packets, outcome.acked_bytes, outcome.largest_newly_acked), (2, 2400, Some(2)));
    assert_eq!(outcome.rtt, Some((PathIndex::FIRST, 40 * MS)));
    assert_eq!((path.recovery.bytes_in_flight(), path.recovery.ack_eliciting_in_flight(SpaceId::DATA)), (1200, 1));
    assert_eq!(path.with(Verdict::Acked), [2, 0]);
    // The same again is no news.
    assert_eq!(path.ack(50, &[0, 2]), AckOutcome::default());
}

// RFC 9002 §5.1 SHOULD NOT-1, MUST NOT-1
#[test]
fn rtt_needs_the_largest_and_something_ack_eliciting() {
    let mut path = Path::reno();
    path.send_many(0, 3);
    path.ack(40, &[2]);
    assert_eq!(path.ack(60, &[0, 1, 2]).rtt, None, "the largest was acknowledged before");
    path.send_packet(SentPacket { ack_eliciting: false, in_flight: false, ..SentPacket::new(at(60), 40) });
    assert_eq!(path.ack(90, &[3]).rtt, None, "nothing ack-eliciting");
}

// RFC 9000 §13.3 MUST-3; RFC 9002 §6.1.1 RECOMMENDED-1, SHOULD NOT-1; RFC 9002 §7.4 MUST NOT-1
// RFC 9002 §7.3.1 MUST-1
#[test]
fn lost_by_packets() {
    let mut path = Path::reno();
    path.send_many(0, 5);
    path.ack(40, &[2]);
    assert!(path.with(Verdict::Lost).is_empty());
    let outcome = path.ack(41, &[2, 3]);
    assert_eq!((path.with(Verdict::Lost), outcome.lost_packets, outcome.lost_bytes), (vec![0], 1, 1200));
    path.ack(42, &[2, 3, 4]);
    assert_eq!(path.with(Verdict::Lost), [0, 1]);
    assert_eq!(path.recovery.bytes_in_flight(), 0);
    assert_eq!(path.recovery.window(), 6000, "one reaction for both");
}

#[test]
fn skipped_numbers_are_no_reordering() {
    let mut path = Path::reno();
    path.send_many(0, 2);
    path.ledger.skip();
    path.send_many(0, 2);
    path.ack(40, &[3]);
    assert!(path.with(Verdict::Lost).is_empty(), "only two packets after packet 0 have arrived");
    path.ack(40, &[3, 4]);
    assert_eq!(path.with(Verdict::Lost), [0]);
}

// RFC 9002 §6.1.2 SHOULD-1, SHOULD-2, RECOMMENDED-1; RFC 9002 §6.2.1 MUST NOT-2
#[test]
fn lost_by_time() {
    let mut path = Path::reno();
    path.send(5);
    path.send(10);
    path.ack(90, &[1]);
    // 9/8 of the 80 ms of the only sample, from the departure of packet 0.
    assert_eq!(path.deadline(), Some((at(95), Reason::LossTime)));
    assert_eq!(path.loss_timer(at(94)).lost_packets, 0);
    assert_eq!(path.loss_timer(at(95)).lost_packets, 1);
    assert_eq!((path.with(Verdict::Lost), path.deadline()), (vec![0], None));
}

#[test]
fn loss_ends_an_empty_flight() {
    let mut path = Path::reno();
    path.send_many(0, 10);
    path.ack(50, &[9]);
    assert_eq!(path.with(Verdict::Lost), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(path.recovery.bytes_in_flight(), 2400);
}

// RFC 9000 §13.1 SHOULD-1
#[test]
fn what_was_never_sent_cannot_be_acknowledged() {
    let mut path = Path::reno();
    path.send_many(0, 2);
    let skipped = path.ledger.skip();
    path.send_many(0, 2);
    for pns in [&[5][..], &[0, 1, skipped], &[4, 3, skipped, 1]] {
        let mut path = Path { recovery: path.recovery.clone(), ..Path::reno() };
        path.send_many(0, 2);
        path.ledger.skip();
        path.send_many(0, 2);
        assert_eq!(path.try_ack(at(1), pns, None).unwrap_err().code, Code::PROTOCOL_VIOLATION, "{pns:?}");
    }
    // Even when all before and after it has been acknowledged.
    path.ack(10, &[0, 1, 3, 4]);
    assert_eq!(path.try_ack(at(20), &[0, 1, skipped, 3, 4], None).unwrap_err().code, Code::PROTOCOL_VIOLATION);
}

// RFC 9002 §6.2 MUST NOT-1; RFC 9002 §6.2.1 SHOULD-1, MUST-3
#[test]
fn probe_timeout_backs_off_and_comes_back() {
    let mut path = Path::reno();
    assert_eq!(path.deadline(), None);
    path.send(0);
    // 333 + 4 * 166.5 + 25 ms.
    let first = Duration::from_micros(999_000 + 25_000);
    assert_eq!(path.deadline(), Some((Instant::ZERO + first, Reason::Probe)));
    path.recovery.on_probe_timeout(Instant::ZERO + first);
    assert_eq!(path.deadline(), Some((Instant::ZERO + first * 2, Reason::Probe)));
    path.send(2000);
    assert_eq!(path.deadline(), Some((at(2000) + first * 2, Reason::Probe)));
    path.ack(2040, &[1]);
    assert_eq!(path.recovery.pto_count(), 0);
    // Packet 0 is overtaken by only one packet, but long ago.
    assert_eq!(path.with(Verdict::Lost), [0]);
    assert_eq!(path.deadline(), None);
}

// RFC 9002 §6.2.1 MUST NOT-1; RFC 9002 §6.2.2.1 MUST NOT-1
#[test]
fn no_application_probe_before_confirmation_and_no_delay_in_the_handshake() {
    let mut path = Path::reno();
    path.progress.confirmed = false;
    path.send(0);
    assert_eq!(path.deadline(), None);
    path.space = SpaceId::Handshake;
    path.ledger = Ledger::new();
    path.send(3);
    assert_eq!(path.deadline(), Some((at(3 + 999), Reason::Probe)));
    path.progress.at_amplification_limit = true;
    assert_eq!(path.deadline(), None);
}

// RFC 9000 §8.1 MUST-3, MUST-4; RFC 9002 §6.2.2.1 MUST-1, MUST-2, MUST-3
#[test]
fn client_keeps_the_server_from_a_deadlock() {
    let mut path = Path::reno();
    path.space = SpaceId::Initial;
    path.progress = Progress {
        has_handshake_keys: false,
        confirmed: false,
        peer_validated_us: false,
        at_amplification_limit: false,
        ..Progress::CONFIRMED
    };
    path.send(0);
    path.recovery.on_probe_timeout(at(999));
    path.ack(1100, &[0]);
    // An Initial packet proves nothing: the backoff stays.
    assert_eq!(path.recovery.pto_count(), 1);
    let deadline = path.recovery.deadline(&path.progress).unwrap();
    assert_eq!((deadline.reason, deadline.space), (Reason::AntiDeadlock, SpaceId::Initial));
    assert_eq!(deadline.at, at(1100) + path.recovery.rtt().probe_timeout() * 2);
    path.progress.has_handshake_keys = true;
    assert_eq!(path.recovery.deadline(&path.progress).unwrap().space, SpaceId::Handshake);
    path.progress.peer_validated_us = true;
    assert_eq!(path.deadline(), None);
}

#[test]
fn spurious_loss_is_noticed_undone_and_learnt_from() {
    for algorithm in LOSS_BASED {
        let mut path = Path::new(algorithm);
        path.send_many(0, 10);
        path.ack(40, &[4, 5]);
        assert_eq!(path.with(Verdict::Lost), [0, 1, 2]);
        let reduced = path.recovery.window();
        assert!(reduced < 12_000);
        let outcome = path.ack(42, &[0, 1, 4, 5]);
        assert_eq!((outcome.spurious_packets, path.recovery.window()), (2, reduced), "packet 2 is still lost");
        let outcome = path.ack(44, &[0, 1, 2, 4, 5, 6]);
        assert_eq!(path.with(Verdict::AckedLate), [1, 0, 2]);
        assert_eq!(outcome.spurious_packets, 1);
        assert!(path.recovery.window() >= 12_000, "{algorithm}: {}", path.recovery.window());
        assert_eq!(path.recovery.reordering().packet_threshold(), 6);
        assert_eq!(path.recovery.rate().lost(), 0);
        // Once is enough.
        assert_eq!(path.ack(46, &[0, 1, 2, 4, 5, 6]).spurious_packets, 0);
    }
}

#[test]
fn losses_are_forgotten_in_time() {
    let mut path = Path::reno();
    path.send_many(0, 10);
    path.ack(40, &[9]);
    let pto = path.recovery.pto();
    path.send(100);
    path.ack(140, &[10]);
    let late = at(40) + pto * 2 + MS;
    path.send_packet(SentPacket::new(late, SIZE));
    path.try_ack(late + 40 * MS, &[11], None).unwrap();
    assert_eq!(path.try_ack(late + 50 * MS, &[0, 11], None).unwrap().spurious_packets, 0);
}

// RFC 9002 §6.2.2 MUST-1; RFC 9002 §6.4 MUST-1, MUST-2; RFC 9000 §17.2.5.3 MUST NOT-1
#[test]
fn discarding_a_space_empties_the_flight() {
    let mut path = Path::reno();
    path.space = SpaceId::Initial;
    path.send_many(0, 3);
    path.recovery.on_probe_timeout(at(999));
    let verdicts = &mut path.verdicts;
    discard_space(
        &mut path.ledger,
        &mut path.recovery,
        SpaceId::Initial,
        at(1000),
        &mut |verdict: Verdict, frame: SentFrame| {
            verdicts.push((verdict, number(frame)));
        },
    );
    assert_eq!(path.with(Verdict::Discarded), [0, 1, 2]);
    assert_eq!((path.recovery.bytes_in_flight(), path.recovery.pto_count(), path.deadline()), (0, 0, None));
    assert_eq!((path.ledger.next_pn(), path.ledger.memory()), (3, 0));
    // A Retry continues with the next number, and an acknowledgement of the old ones is ignored.
    path.send(1001);
    assert_eq!(path.ack(1100, &[0, 1, 2]), AckOutcome::default());
}

// RFC 9000 §14.4 SHOULD NOT-1
#[test]
fn a_lost_mtu_probe_is_no_congestion() {
    let mut path = Path::reno();
    path.send_packet(SentPacket { mtu_probe: true, ..SentPacket::new(at(0), 1452) });
    path.send_many(0, 3);
    let outcome = path.ack(40, &[1, 2, 3]);
    assert_eq!((outcome.mtu_probe_lost, outcome.lost_packets), (Some((PathIndex::FIRST, 1452)), 0));
    assert_eq!((path.recovery.bytes_in_flight(), path.recovery.window()), (0, 12_000));
    path.send_packet(SentPacket { mtu_probe: true, ..SentPacket::new(at(50), 1400) });
    assert_eq!(path.ack(90, &[4]).mtu_probe_acked, Some((PathIndex::FIRST, 1400)));
}

// RFC 9000 §19.3 SHOULD-1; RFC 9002 §7.3.1 MUST-1
#[test]
fn congestion_marks() {
    let mut path = Path::reno();
    let marked = |millis| SentPacket { ecn: true, ..SentPacket::new(at(millis), SIZE) };
    for _ in 0..4 {
        path.send_packet(marked(0));
    }
    let counts = |ect0, ce| Some(EcnCounts { ect0, ect1: 0, ce });
    let outcome = path.try_ack(at(40), &[0, 1], counts(1, 1)).unwrap();
    assert_eq!((outcome.ecn, path.recovery.window()), (EcnFeedback::Valid { newly_ce: 1 }, 6000));
    let outcome = path.try_ack(at(41), &[0, 1, 2], counts(1, 2)).unwrap();
    assert_eq!((outcome.ecn, path.recovery.window()), (EcnFeedback::Valid { newly_ce: 1 }, 6000));
    let outcome = path.try_ack(at(42), &[0, 1, 2, 3], None).unwrap();
    assert_eq!(outcome.ecn, EcnFeedback::Failed);
}

#[test]
fn recovered_packets_count_as_lost_for_the_controller_only() {
    let mut path = Path::reno();
    path.send_many(0, 3);
    let verdicts = &mut path.verdicts;
    let mut out = |verdict: Verdict, frame: SentFrame| verdicts.push((verdict, number(frame)));
    let outcome = on_recovered(&mut path.ledger, &mut path.recovery, SpaceId::DATA, 1, at(40), &mut out);
    assert_eq!(outcome.map(|outcome| outcome.lost_packets), Some(1));
    assert_eq!(on_recovered(&mut path.ledger, &mut path.recovery, SpaceId::DATA, 1, at(41), &mut out), None);
    assert_eq!(path.verdicts, [(Verdict::Recovered, 1)]);
    assert_eq!((path.recovery.bytes_in_flight(), path.recovery.window()), (2400, 6000));
    path.ack(50, &[0, 2]);
    assert_eq!((path.ledger.oldest_outstanding(), path.with(Verdict::Lost)), (None, vec![]));
}

#[test]
fn zero_rtt_in_flight_does_not_hide_a_deadlock() {
    let mut path = Path::reno();
    path.progress = Progress {
        has_handshake_keys: false,
        confirmed: false,
        peer_validated_us: false,
        at_amplification_limit: false,
        ..Progress::CONFIRMED
    };
    path.send(7);
    assert_eq!(path.deadline(), Some((at(7 + 999), Reason::AntiDeadlock)));
}

#[test]
fn probes_repeat_the_oldest_frames() {
    let mut path = Path::reno();
    path.send_many(0, 4);
    path.ack(10, &[0]);
    let mut frames = Vec::new();
    path.ledger.oldest_unacked(2, |frame| frames.push(number(frame)));
    assert_eq!(frames, [1, 2]);
}

#[test]
fn paths_are_judged_apart() {
    let mut recoveries =
        [0, 1].map(|path| Recovery::new(&Config::default(), SIZE, Seed::from_number(path), Instant::ZERO));
    let mut ledger = Ledger::new();
    for pn in 0..8 {
        let path = PathIndex::new(pn / 4);
        let packet = SentPacket { path, ..SentPacket::new(at(0), SIZE) };
        recoveries[path.get()].on_packet_sent(&mut ledger, SpaceId::DATA, &packet);
    }
    let mut buffer = [0; 64];
    let mut acknowledge = |ledger: &mut Ledger, recoveries: &mut [Recovery], millis, pns: &[u64]| {
        let Some(Ok(Frame::Ack(ack))) = Frames::new(ack_frame(&mut buffer, pns, None)).next() else { panic!() };
        let none = &mut |_: Verdict, _: SentFrame| {};
        let zero = Duration::ZERO;
        on_ack_received(ledger, recoveries, SpaceId::DATA, &ack, at(millis), zero, &Progress::CONFIRMED, none).unwrap()
    };
    // The second path is faster: its acknowledgement says nothing about the first.
    let outcome = acknowledge(&mut ledger, &mut recoveries, 10, &[7]);
    assert_eq!((outcome.lost_packets, outcome.rtt), (1, Some((PathIndex::new(1), 10 * MS))));
    assert_eq!(recoveries.each_ref().map(Recovery::bytes_in_flight), [4800, 2400]);
    assert_eq!(recoveries.each_ref().map(Recovery::window), [12_000, 8400]);
    assert_eq!(recoveries[0].rtt().min(), None);
    let outcome = acknowledge(&mut ledger, &mut recoveries, 100, &[0, 1, 2, 3, 7]);
    assert_eq!(recoveries[0].bytes_in_flight(), 0);
    assert_eq!(outcome.lost_packets, 2, "those of the second path, by time");
    assert_eq!(ledger.next_pn(), 8);
}

/// A probe of a path that leads nowhere, and data on the path in use, whose packets are acknowledged one by one.
#[test]
fn records_do_not_wait_for_a_path_that_does_not_answer() {
    let mut recoveries =
        [0, 1].map(|path| Recovery::new(&Config::default(), SIZE, Seed::from_number(path), Instant::ZERO));
    let mut ledger = Ledger::new();
    let probe = SentPacket { path: PathIndex::new(1), ..SentPacket::new(at(0), SIZE) };
    recoveries[1].on_packet_sent(&mut ledger, SpaceId::DATA, &probe);
    let mut most = 0;
    for pn in 1..1_000 {
        ledger.record(SentFrame::Datagram(pn));
        recoveries[0].on_packet_sent(&mut ledger, SpaceId::DATA, &SentPacket::new(at(pn), SIZE));
        let mut buffer = [0; 64];
        let Some(Ok(Frame::Ack(ack))) = Frames::new(ack_frame(&mut buffer, &[pn], None)).next() else { panic!() };
        let (now, none) = (at(pn), &mut |_: Verdict, _: SentFrame| {});
        let (zero, confirmed) = (Duration::ZERO, &Progress::CONFIRMED);
        on_ack_received(&mut ledger, &mut recoveries[..], SpaceId::DATA, &ack, now, zero, confirmed, none).unwrap();
        most = most.max(ledger.records());
        // For a while it may still be answered.
        assert_eq!(ledger.is_outstanding(0), pn < 64, "{pn}");
    }
    let of_64 = 65 * (size_of::<Entry>() + size_of::<SentFrame>());
    assert!(most <= of_64, "{most} bytes of records, {of_64} expected");
    let probed = &recoveries[1];
    assert_eq!((probed.bytes_in_flight(), probed.ack_eliciting_in_flight(SpaceId::DATA)), (0, 0));
    assert_eq!(probed.deadline(&Progress::CONFIRMED), None, "nothing is waited for there");
}

// RFC 9002 §6.2.1 MUST-2
#[test]
fn the_earlier_probe_timeout_of_the_handshake_counts() {
    let mut path = Path::reno();
    path.progress.confirmed = false;
    path.space = SpaceId::Handshake;
    path.send(3);
    path.space = SpaceId::Initial;
    path.ledger = Ledger::new();
    path.send(7);
    let deadline = path.recovery.deadline(&path.progress).unwrap();
    assert_eq!((deadline.at, deadline.space), (at(3 + 999), SpaceId::Handshake));
}

// RFC 9002 §5.3 SHOULD-1, SHOULD-2, MUST-1
#[test]
fn the_peers_delay_is_held_to_its_promise_once_the_handshake_is_confirmed() {
    for (confirmed, smoothed) in [(false, 100), (true, 106)] {
        let mut path = Path::reno();
        path.progress.confirmed = confirmed;
        path.send(0);
        path.ack(100, &[0]);
        path.send(1_000);
        let mut buffer = [0; 100];
        let frame = ack_frame(&mut buffer, &[0, 1], None);
        let Some(Ok(Frame::Ack(ack))) = Frames::new(frame).next() else { panic!("no ACK frame") };
        // 180 ms, of which the peer claims to have held 80 ms back; it had promised 25 ms.
        let (now, delay) = (at(1_180), 80 * MS);
        on_ack_received(
            &mut path.ledger,
            &mut path.recovery,
            SpaceId::DATA,
            &ack,
            now,
            delay,
            &path.progress,
            &mut |_: Verdict, _: SentFrame| {},
        )
        .unwrap();
        assert_eq!(path.recovery.rtt().smoothed().as_millis(), smoothed, "{confirmed}");
    }
}

// RFC 9002 §7.6.2 MUST-1
#[test]
fn persistent_congestion_lies_between_packets_that_ask_for_acknowledgements() {
    for (eliciting, persistent) in [(true, true), (false, false)] {
        let mut path = Path::reno();
        path.send(0);
        path.ack(100, &[0]);
        let pto = u64::try_from(path.recovery.pto().as_millis()).unwrap();
        path.send_packet(SentPacket { ack_eliciting: eliciting, ..SentPacket::new(at(200), SIZE) });
        path.send(200 + 2 * pto);
        path.send(200 + 4 * pto);
        path.send_many(210 + 4 * pto, 4);
        let outcome = path.ack(400 + 4 * pto, &[0, 4, 5, 6, 7]);
        assert_eq!((outcome.lost_packets, outcome.persistent_congestion), (3, persistent), "{eliciting}");
    }
}

// RFC 9000 §13.4.2.1 MUST NOT-1
#[test]
fn an_old_acknowledgement_does_not_end_marking() {
    let mut path = Path::reno();
    for _ in 0..4 {
        path.send_packet(SentPacket { ecn: true, ..SentPacket::new(at(0), SIZE) });
    }
    let counts = Some(EcnCounts { ect0: 2, ect1: 0, ce: 0 });
    assert_eq!(path.try_ack(at(40), &[2, 3], counts).unwrap().ecn, EcnFeedback::Valid { newly_ce: 0 });
    // Sent before, overtaken on the way: no counts, or smaller ones, and packets that are news.
    assert_eq!(path.try_ack(at(41), &[0], None).unwrap().ecn, EcnFeedback::None);
    let fewer = Some(EcnCounts { ect0: 1, ect1: 0, ce: 0 });
    assert_eq!(path.try_ack(at(41), &[1], fewer).unwrap().ecn, EcnFeedback::None);
}

#[test]
fn another_controller_goes_on_with_what_the_path_has_shown() {
    for from in Algorithm::ALL {
        for to in Algorithm::ALL {
            let mut path = Path::new(from);
            let mut millis = 0;
            for round in 0..20 {
                let first = path.ledger.next_pn();
                // A flight that fills the window; in a few of them, a packet in the middle is lost.
                let count = path.recovery.window() / u64::from(SIZE);
                path.send_many(millis, usize::try_from(count.min(400)).unwrap());
                millis += 40;
                let last = path.ledger.next_pn();
                let lost = (round % 5 == 4).then_some(first + 2);
                let acked: Vec<u64> = (first..last).filter(|pn| Some(*pn) != lost).collect();
                path.ack(millis, &acked);
            }
            path.send_many(millis, 3);
            let (window, in_flight) = (path.recovery.window(), path.recovery.bytes_in_flight());
            let config = Config { algorithm: to, ..Config::default() };
            path.recovery.change_controller(at(millis), &config, Seed::from_number(2));
            let after = path.recovery.window();
            assert!(after >= 2 * u64::from(SIZE) && after <= window, "{from:?} to {to:?}: {window} became {after}");
            assert_eq!(path.recovery.bytes_in_flight(), in_flight, "{from:?} to {to:?}");
            // What was in flight is acknowledged under the new one.
            let last = path.ledger.next_pn();
            path.ack(millis + 40, &[last - 3, last - 2, last - 1]);
            assert_eq!(path.recovery.bytes_in_flight(), 0, "{from:?} to {to:?}");
            assert!(path.recovery.window() >= 2 * u64::from(SIZE), "{from:?} to {to:?}");
        }
    }
}
