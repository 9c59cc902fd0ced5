//! Each cause from evidence that shows it, and none from evidence that shows none.

use super::*;
use crate::why::{
    arrivals::{ArrivalFacts, Stall},
    evidence::{CpuFacts, Cut, Discovery, Fault, HandshakeFacts, QuicFacts, Tail, TcpFacts},
};

const WANTED: u64 = 2_000_000;

/// A transfer of 2 MB without a sign of anything, in this time.
fn exchange(transport: Transport, round: u32, seconds: f64) -> Exchange {
    let rate = 16e6 / seconds;
    let arrivals = Some(ArrivalFacts { peak: Some(rate * 1.1), mean: rate, silent: 0.0 });
    let quic = QuicFacts {
        connected: true,
        datagrams: 1_700,
        largest_datagram: 1_452,
        numbers: 1_700,
        stream_bytes: WANTED,
        data_ms: Some(seconds * 1e3 - 80.0),
        blocked_ms: Some(0.0),
        pauses_ms: Some(0.0),
        rtt_min_ms: Some(40.0),
        rtt_median_ms: Some(44.0),
        rtt_samples: 30,
        eliciting_received: 1_650,
        acks_sent: 830,
        eliciting_sent: 40,
        arrivals,
        ..QuicFacts::default()
    };
    let tcp = TcpFacts { rtt_min_ms: Some(40.0), rtt_median_ms: Some(44.0), packets: 1_400, out_of_order: 0 };
    let is_quic = transport == Transport::H3;
    Exchange {
        transport,
        round,
        protocol: Some(if is_quic { "h3" } else { "h2" }),
        handshake_ms: Some(if is_quic { 42.0 } else { 82.0 }),
        first_byte_ms: Some(if is_quic { 84.0 } else { 124.0 }),
        seconds,
        bytes: WANTED,
        cut: None,
        loaded_ms: vec![45.0],
        cpu: Some(CpuFacts { ran: 0.1, waited: 0.01 }),
        arrivals,
        quic: is_quic.then_some(quic),
        tcp: (!is_quic).then_some(tcp),
        path_answers: None,
        fault: None,
        error: None,
    }
}

/// Eight rounds in these times, with a change of each exchange over one of the transports.
fn evidence(h3: f64, h2: f64, transport: Transport, change: impl Fn(&mut Exchange)) -> Evidence {
    let exchanges = (0..8).flat_map(|round| {
        let spread = 1.0 + f64::from(round) / 200.0;
        [exchange(Transport::H3, round, h3 * spread), exchange(Transport::H2, round, h2 * spread)]
    });
    let mut exchanges: Vec<Exchange> = exchanges.collect();
    exchanges.iter_mut().filter(|exchange| exchange.transport == transport).for_each(change);
    let discovery = Discovery { alt_svc: Some("h3=\":443\"".to_owned()), ..Discovery::default() };
    Evidence { discovery, exchanges, wanted: WANTED, rounds: 8, ..Evidence::default() }
}

fn quic(change: impl Fn(&mut QuicFacts)) -> impl Fn(&mut Exchange) {
    move |exchange| change(exchange.quic.as_mut().unwrap())
}

/// The first cause of a slow HTTP/3.
fn of_h3(change: impl Fn(&mut Exchange)) -> Cause {
    let judgement = diagnose(&evidence(4.0, 1.0, Transport::H3, change)).completion;
    assert_eq!(judgement.outcome, Outcome::Slower(Transport::H3));
    assert_eq!(judgement.causes[0].confidence, Confidence::Strong, "{:?}", judgement.causes);
    judgement.causes[0].cause
}

#[test]
fn equal_transports_have_no_cause() {
    let diagnosis = diagnose(&evidence(1.02, 1.0, Transport::H3, |_| {}));
    assert_eq!(diagnosis.completion.outcome, Outcome::Equivalent);
    assert_eq!(diagnosis.completion.causes, []);
    // A difference of 12 % is sure, and too small to matter.
    let diagnosis = diagnose(&evidence(1.12, 1.0, Transport::H3, |_| {}));
    assert_eq!(diagnosis.completion.outcome, Outcome::Equivalent);
    assert_eq!(diagnosis.response.unwrap().outcome, Outcome::Equivalent);
}

#[test]
fn few_rounds_do_not_suffice_and_it_is_said_what_would() {
    let mut few = evidence(4.0, 1.0, Transport::H3, |_| {});
    few.exchanges.retain(|exchange| exchange.round < 3);
    let judgement = diagnose(&few).completion;
    assert_eq!((judgement.outcome, judgement.causes.len()), (Outcome::Undecided, 0));
    assert!(judgement.missing[0].contains("--rounds"), "{:?}", judgement.missing);
    let judgement = diagnose(&Evidence::default()).completion;
    assert_eq!((judgement.outcome, judgement.missing.len()), (Outcome::Undecided, 1));
}

#[test]
fn without_a_sign_nothing_is_named() {
    let judgement = diagnose(&evidence(1.0, 2.0, Transport::H2, |_| {})).completion;
    assert_eq!((judgement.outcome, judgement.causes.len()), (Outcome::Slower(Transport::H2), 0));
    assert!(judgement.missing[0].contains("qlog of the server"), "{:?}", judgement.missing);
}

#[test]
fn losses_of_chance_are_left_to_congestion_control() {
    let lossy = quic(|quic| (quic.lost, quic.lost_together) = (17, Some(0.1)));
    assert_eq!(of_h3(lossy), Cause::CongestionControl);
}

#[test]
fn losses_of_a_policer_and_a_queue_of_its_own_are_shaping() {
    assert_eq!(of_h3(quic(|quic| (quic.lost, quic.lost_together) = (70, Some(0.9)))), Cause::Shaped);
    assert_eq!(of_h3(quic(|quic| quic.rtt_median_ms = Some(140.0))), Cause::Shaped);
    // The end of slow start loses many together as well; a rate that changes is no shaper's.
    let overshoot = quic(|quic| {
        (quic.lost, quic.lost_together) = (70, Some(0.9));
        let arrivals = quic.arrivals.as_mut().unwrap();
        arrivals.peak = Some(arrivals.mean * 1.6);
    });
    assert_eq!(of_h3(overshoot), Cause::CongestionControl);
}

#[test]
fn credit_that_is_used_up_is_flow_control() {
    assert_eq!(of_h3(quic(|quic| quic.blocked_ms = quic.data_ms.map(|data| 0.6 * data))), Cause::FlowControl);
    // Over HTTP/2 the window of the client and the round trip give the rate.
    let long = |exchange: &mut Exchange| {
        exchange.seconds = 7.0;
        (exchange.bytes, exchange.first_byte_ms) = (20_000_000, Some(0.0));
        exchange.tcp.as_mut().unwrap().rtt_min_ms = Some(700.0);
    };
    let mut slow = evidence(1.0, 7.0, Transport::H2, long);
    slow.wanted = 20_000_000;
    slow.exchanges.iter_mut().for_each(|exchange| exchange.bytes = 20_000_000);
    assert_eq!(diagnose(&slow).completion.causes[0].cause, Cause::FlowControl);
}

#[test]
fn udp_that_dies_is_blocked_if_the_server_announces_it() {
    let dead = |exchange: &mut Exchange| {
        (exchange.bytes, exchange.error) = (0, Some("handshake timeout".to_owned()));
        (exchange.fault, exchange.quic) = (Some(Fault::Silence), Some(QuicFacts::default()));
    };
    assert_eq!(of_h3(dead), Cause::UdpBlocked);
    // After the handshake: nothing is answered, or only small packets pass between losses.
    assert_eq!(of_h3(cut(|exchange| exchange.path_answers = Some(false))), Cause::UdpBlocked);
    let trickle = |exchange: &mut Exchange| {
        exchange.path_answers = Some(true);
        exchange.quic.as_mut().unwrap().tail = Tail { packets: 9, largest: 1_452, missing: 12 };
    };
    assert_eq!(of_h3(cut(trickle)), Cause::UdpBlocked);
    // A handshake that the server began and did not complete is not the path's doing for certain.
    let begun = |handshake: HandshakeFacts| {
        move |exchange: &mut Exchange| {
            dead(exchange);
            let quic = exchange.quic.as_mut().unwrap();
            (quic.datagrams, quic.handshake) = (3, Some(handshake));
        }
    };
    let all_came = HandshakeFacts { sent: 5, unacknowledged: 1, received: 4, missing: 1 };
    assert_eq!(diagnose(&evidence(4.0, 1.0, Transport::H3, begun(all_came))).completion.causes, []);
    // Some acknowledgements are small enough to pass.
    for (unacknowledged, missing) in [(3, 0), (1, 3)] {
        let lost = HandshakeFacts { unacknowledged, missing, ..all_came };
        assert_eq!(of_h3(begun(lost)), Cause::UdpBlocked, "{lost:?}");
    }
}

/// Little comes, and then nothing until the time is used up.
fn cut(change: impl Fn(&mut Exchange)) -> impl Fn(&mut Exchange) {
    move |exchange| {
        (exchange.bytes, exchange.cut, exchange.seconds) = (20_000, Some(Cut::Time), 8.0);
        exchange.quic.as_mut().unwrap().data_ms = Some(50.0);
        change(exchange);
    }
}

#[test]
fn a_silent_server_is_no_blocked_udp() {
    assert_eq!(of_h3(cut(|exchange| exchange.path_answers = Some(true))), Cause::SendPace);
    // Header section, and then nothing.
    let header_only = |exchange: &mut Exchange| {
        (exchange.bytes, exchange.path_answers) = (0, Some(true));
        exchange.quic.as_mut().unwrap().data_ms = Some(0.0);
    };
    assert_eq!(of_h3(cut(header_only)), Cause::SendPace);
    // Without an answer of the connection nothing is claimed.
    let judgement = diagnose(&evidence(4.0, 1.0, Transport::H3, cut(|_| {}))).completion;
    assert!(judgement.causes.iter().all(|cause| cause.cause != Cause::UdpBlocked), "{:?}", judgement.causes);
}

#[test]
fn refusals_are_no_blocked_udp_and_are_not_compared() {
    for fault in [Fault::Status, Fault::Refused] {
        let refused = |exchange: &mut Exchange| {
            if exchange.round < 3 {
                (exchange.bytes, exchange.seconds) = (0, 0.1);
                (exchange.fault, exchange.error) = (Some(fault), Some("the answer is 429".to_owned()));
            }
        };
        let diagnosis = diagnose(&evidence(1.0, 1.0, Transport::H3, refused));
        assert_eq!(diagnosis.completion.causes, [], "{diagnosis:?}");
        assert_eq!(diagnosis.completion.comparison.unwrap().pairs, 5);
        assert!(diagnosis.notes.join(" ").contains("refused in 3 of 8 rounds"), "{:?}", diagnosis.notes);
    }
    let all = |exchange: &mut Exchange| {
        (exchange.bytes, exchange.fault, exchange.error) = (0, Some(Fault::Status), Some("503".to_owned()));
    };
    let completion = diagnose(&evidence(1.0, 1.0, Transport::H3, all)).completion;
    assert_eq!((completion.outcome, completion.causes.len()), (Outcome::Undecided, 0));
}

#[test]
fn what_was_not_measured_is_no_figure() {
    let unknown = |exchange: &mut Exchange| {
        exchange.quic = Some(QuicFacts { connected: true, ..QuicFacts::default() });
        (exchange.handshake_ms, exchange.cpu, exchange.arrivals) = (None, None, None);
    };
    let judgement = diagnose(&evidence(4.0, 1.0, Transport::H3, unknown)).completion;
    assert_eq!((judgement.outcome, judgement.causes.len()), (Outcome::Slower(Transport::H3), 0));
    // A handshake of the other transport that nobody timed explains nothing.
    let mut seen = evidence(4.0, 1.0, Transport::H3, |exchange| exchange.handshake_ms = Some(3_500.0));
    seen.exchanges.iter_mut().filter(|one| one.transport == Transport::H2).for_each(|one| one.handshake_ms = None);
    let causes = diagnose(&seen).completion.causes;
    assert!(causes.iter().all(|cause| cause.cause != Cause::Handshake), "{causes:?}");
    // Short transfers have no highest rate: nothing is flat.
    let short = quic(|quic| {
        quic.rtt_median_ms = Some(140.0);
        quic.arrivals.as_mut().unwrap().peak = None;
    });
    let causes = diagnose(&evidence(4.0, 1.0, Transport::H3, short)).completion.causes;
    assert!(causes.iter().all(|cause| cause.cause != Cause::Shaped), "{causes:?}");
}

#[test]
fn different_objects_are_said() {
    let mut seen = evidence(1.0, 1.0, Transport::H3, |exchange| exchange.bytes = WANTED + 1);
    assert!(diagnose(&seen).notes.join(" ").contains("not the same"), "{:?}", diagnose(&seen).notes);
    seen.exchanges.iter_mut().for_each(|exchange| exchange.bytes = WANTED);
    assert_eq!(diagnose(&seen).notes, [] as [String; 0]);
}

#[test]
fn stalls_that_end_with_smaller_datagrams_are_a_black_hole() {
    let stall = Stall { ms: 900.0, before: 1_452, after: 1_200, missing: 20 };
    assert_eq!(of_h3(quic(|quic| (quic.stalls, quic.lost) = (vec![stall], 20))), Cause::MtuBlackHole);
    // A stall that does not end: small packets come, large ones are missing.
    let endless = |exchange: &mut Exchange| {
        (exchange.cut, exchange.bytes) = (Some(Cut::Time), 1_000_000);
        let quic = exchange.quic.as_mut().unwrap();
        (quic.data_ms, quic.tail) = (Some(1_000.0), Tail { packets: 9, largest: 60, missing: 40 });
    };
    assert_eq!(of_h3(endless), Cause::MtuBlackHole);
}

#[test]
fn without_any_sign_the_server_is_slow() {
    assert_eq!(of_h3(|_| {}), Cause::SendPace);
    // Pauses are the server's, even where its bursts overflow a queue and its answers come late.
    let paused = quic(|quic| {
        (quic.pauses_ms, quic.rtt_median_ms) = (quic.data_ms.map(|data| 0.6 * data), Some(90.0));
        (quic.lost, quic.lost_together) = (40, Some(0.9));
    });
    assert_eq!(of_h3(paused), Cause::SendPace);
}

#[test]
fn a_busy_client_is_named() {
    let busy = |exchange: &mut Exchange| exchange.cpu = Some(CpuFacts { ran: 0.4, waited: 0.55 });
    assert_eq!(of_h3(busy), Cause::ClientCpu);
    let judgement = diagnose(&evidence(1.0, 4.0, Transport::H2, busy)).completion;
    assert_eq!(judgement.causes[0].cause, Cause::ClientCpu);
}

#[test]
fn a_handshake_counts_where_it_explains_the_difference() {
    let small = |exchange: &mut Exchange| (exchange.handshake_ms, exchange.loaded_ms) = (Some(200.0), Vec::new());
    let judgement = diagnose(&evidence(0.2, 0.32, Transport::H2, small)).completion;
    assert_eq!(judgement.causes[0].cause, Cause::Handshake);
    let slow = |exchange: &mut Exchange| exchange.handshake_ms = Some(3_000.0);
    assert_eq!(of_h3(slow), Cause::Handshake);
}

#[test]
fn late_packets_that_are_sent_again_are_reordering() {
    let late = quic(|quic| (quic.late, quic.late_by_three, quic.stream_bytes_again, quic.lost) = (90, 60, 40_000, 2));
    assert_eq!(of_h3(late), Cause::Reordering);
}

#[test]
fn acknowledgements_that_are_rare_or_lost() {
    let rare = quic(|quic| (quic.ack_threshold, quic.acks_sent, quic.ack_requests) = (Some(100), 20, 1));
    assert_eq!(of_h3(rare), Cause::FewAcks);
    assert_eq!(of_h3(quic(|quic| quic.sent_lost = 12)), Cause::FewAcks);
}

#[test]
fn small_requests_wait_in_a_queue_or_behind_data() {
    let response = |transport, change: &dyn Fn(&mut Exchange)| {
        let diagnosis = diagnose(&evidence(1.0, 1.0, transport, change));
        assert_eq!(diagnosis.completion.outcome, Outcome::Equivalent);
        diagnosis.response.unwrap()
    };
    let bloated = response(Transport::H3, &|exchange| {
        exchange.loaded_ms = vec![620.0, 650.0];
        exchange.quic.as_mut().unwrap().rtt_median_ms = Some(560.0);
    });
    assert_eq!((bloated.outcome, bloated.causes[0].cause), (Outcome::Slower(Transport::H3), Cause::Bufferbloat));
    let behind = response(Transport::H2, &|exchange| exchange.loaded_ms = vec![400.0]);
    assert_eq!((behind.outcome, behind.causes[0].cause), (Outcome::Slower(Transport::H2), Cause::HeadOfLine));
}

#[test]
fn verdicts_are_as_sure_as_the_share_of_rounds() {
    let shares = [(8, "strong"), (7, "strong"), (6, "likely"), (4, "likely"), (3, "possible"), (2, "possible")];
    for (shown, name) in shares {
        assert_eq!(Confidence::of(shown, 8).unwrap().name(), name, "{shown}");
    }
    assert_eq!((Confidence::of(1, 8), Confidence::of(0, 0)), (None, None));
}

#[test]
fn notes_tell_what_costs_new_clients_time() {
    let mut seen = evidence(1.0, 1.0, Transport::H3, |exchange| exchange.quic.as_mut().unwrap().retry = true);
    seen.discovery.record = Some(false);
    let notes = diagnose(&seen).notes.join(" ");
    assert!(notes.contains("Retry") && notes.contains("HTTPS record"), "{notes}");
}
