//! Random histories, compared between the ledger and a slow, literal implementation of RFC 9002 appendix A.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Send {
        eliciting: bool,
        in_flight: bool,
        size: u16,
        frames: u8,
    },
    Skip,
    /// Acknowledge what the mask picks among the packets sent so far, the newest first.
    Ack {
        mask: u64,
    },
    Wait {
        micros: u64,
    },
    Timer,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (any::<bool>(), 0u8..8, 40u16..1500, 0u8..4).prop_map(|(eliciting, kind, size, frames)| Op::Send {
            eliciting: eliciting || kind > 1,
            in_flight: eliciting || kind > 0,
            size,
            frames,
        }),
        1 => Just(Op::Skip),
        4 => prop_oneof![any::<u64>(), (0u64..16).prop_map(|bits| 1 << bits)].prop_map(|mask| Op::Ack { mask }),
        3 => (0u64..60_000).prop_map(|micros| Op::Wait { micros }),
        1 => Just(Op::Timer),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Outstanding,
    Acked,
    Lost,
    AckedLate,
}

#[derive(Clone, Debug)]
struct Packet {
    sent_at: Instant,
    eliciting: bool,
    in_flight: bool,
    size: u16,
    frames: Vec<u64>,
    fate: Fate,
}

/// RFC 9002 appendix A, without any shortcut.
#[derive(Default)]
struct Model {
    packets: BTreeMap<u64, Packet>,
    largest_acked: Option<u64>,
    rtt: Rtt,
    reordering: Reordering,
}

impl Model {
    fn ack(&mut self, now: Instant, pns: &[u64]) {
        let largest = *pns.last().unwrap();
        let newly = |fate| pns.iter().copied().filter(|pn| self.packets[pn].fate == fate).collect::<Vec<_>>();
        let acked = newly(Fate::Outstanding);
        self.largest_acked = self.largest_acked.max(Some(largest));
        for pn in &acked {
            self.packets.get_mut(pn).unwrap().fate = Fate::Acked;
        }
        if acked.last() == Some(&largest) && acked.iter().any(|pn| self.packets[pn].eliciting) {
            self.rtt.sample(now, now - self.packets[&largest].sent_at, Duration::ZERO);
        }
    }

    fn detect(&mut self, now: Instant, skipped: &[u64]) {
        let Some(largest) = self.largest_acked else { return };
        let delay = self.reordering.time_threshold(&self.rtt);
        for (&pn, packet) in self.packets.iter_mut().filter(|(_, packet)| packet.fate == Fate::Outstanding) {
            let left_out = skipped.iter().filter(|&&skip| pn < skip && skip < largest).count() as u64;
            let by_number = pn + self.reordering.packet_threshold() + left_out <= largest;
            if pn < largest && (by_number || packet.sent_at + delay <= now) {
                packet.fate = Fate::Lost;
            }
        }
    }

    fn in_flight(&self) -> u64 {
        let outstanding = self.packets.values().filter(|packet| packet.fate == Fate::Outstanding && packet.in_flight);
        outstanding.map(|packet| u64::from(packet.size)).sum()
    }

    fn eliciting(&self) -> u64 {
        self.packets.values().filter(|packet| packet.fate == Fate::Outstanding && packet.eliciting).count() as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn agrees_with_the_appendix(ops in proptest::collection::vec(op(), 1..60)) {
        let mut path = Path::reno();
        let mut model = Model::default();
        let (mut now, mut frame, mut skipped) = (at(1), 0, Vec::new());
        for op in ops {
            // Adaptation is tested by itself: the model takes the thresholds over.
            let before = path.recovery.reordering().clone();
            match op {
                Op::Send { eliciting, in_flight, size, frames } => {
                    let frames: Vec<u64> = (0..u64::from(frames)).map(|i| frame + i).collect();
                    frame += frames.len() as u64;
                    for number in &frames {
                        path.ledger.record(SentFrame::Datagram(*number));
                    }
                    let in_flight = in_flight || eliciting;
                    let packet = SentPacket { ack_eliciting: eliciting, in_flight, ..SentPacket::new(now, size) };
                    let pn = path.recovery.on_packet_sent(&mut path.ledger, SpaceId::DATA, &packet);
                    let fate = Fate::Outstanding;
                    let sent = Packet { sent_at: now, eliciting, in_flight, size, frames, fate };
                    prop_assert!(model.packets.insert(pn, sent).is_none());
                }
                Op::Skip => skipped.push(path.ledger.skip()),
                Op::Ack { mask } => {
                    let newest_first = model.packets.keys().rev().enumerate();
                    let mut pns: Vec<u64> = newest_first.filter(|(i, _)| mask >> (i % 64) & 1 == 1).map(|(_, pn)| *pn).collect();
                    pns.reverse();
                    if pns.is_empty() {
                        continue;
                    }
                    path.verdicts.clear();
                    let outcome = path.try_ack(now, &pns, None).unwrap();
                    let newly: u64 = pns.iter().filter(|pn| model.packets[pn].fate == Fate::Outstanding).count() as u64;
                    prop_assert_eq!(outcome.acked_packets, newly);
                    let late: Vec<u64> = path.with(Verdict::AckedLate);
                    model.ack(now, &pns);
                    if outcome.persistent_congestion {
                        model.rtt.restart_min();
                    }
                    if newly > 0 || outcome.spurious_packets > 0 {
                        // Losses that were none raise the thresholds before new losses are looked for; a new reaction
                        // lowers them only afterwards.
                        model.reordering = if outcome.spurious_packets > 0 { path.recovery.reordering().clone() } else { before };
                        model.detect(now, &skipped);
                    }
                    for packet in model.packets.values_mut().filter(|packet| packet.frames.iter().any(|f| late.contains(f))) {
                        prop_assert_eq!(packet.fate, Fate::Lost);
                        packet.fate = Fate::AckedLate;
                    }
                }
                Op::Wait { micros } => now += Duration::from_micros(micros),
                Op::Timer => {
                    path.verdicts.clear();
                    if path.loss_timer(now).persistent_congestion {
                        model.rtt.restart_min();
                    }
                    model.reordering = before;
                    model.detect(now, &skipped);
                }
            }
            for (verdict, number) in std::mem::take(&mut path.verdicts) {
                let fate = model.packets.values().find(|packet| packet.frames.contains(&number)).unwrap().fate;
                let expected = match verdict {
                    Verdict::Acked => Fate::Acked,
                    Verdict::Lost => Fate::Lost,
                    Verdict::AckedLate => Fate::AckedLate,
                    other => return Err(TestCaseError::fail(format!("{other:?}"))),
                };
                prop_assert_eq!(fate, expected, "frame {}", number);
            }
            prop_assert_eq!(path.recovery.rtt(), &model.rtt);
            prop_assert_eq!(path.recovery.bytes_in_flight(), model.in_flight());
            prop_assert_eq!(path.recovery.ack_eliciting_in_flight(SpaceId::DATA), model.eliciting());
            for (&pn, packet) in &model.packets {
                prop_assert_eq!(path.ledger.is_outstanding(pn), packet.fate == Fate::Outstanding, "packet {}", pn);
            }
            if let Some(deadline) = path.recovery.deadline(&Progress::CONFIRMED) {
                prop_assert!(deadline.reason == Reason::LossTime || model.eliciting() > 0);
            } else {
                prop_assert_eq!(model.eliciting(), 0, "no timer with packets in flight");
            }
        }
        // Every frame of a packet with a fate has had exactly one verdict: the rings are in step.
        let next = path.ledger.next_pn();
        prop_assert_eq!(next, model.packets.len() as u64 + skipped.len() as u64);
    }
}
