//! Receive times in acknowledgements (draft-ietf-quic-receive-ts-02): negotiated, bounded, and no way to harm who reads
//! them.

use crate::support;

use support::puppet::{Puppet, bytes};
use transport::{Code, Profile, Stats, tls::Level};
use units::Duration;
use wire::{Ack, Dir, Frame, Frames, Writer};

/// An end that asks for up to four receive times in an acknowledgement.
fn asking() -> Profile {
    Profile { receive_timestamps: 4, ..Profile::default() }
}

/// An acknowledgement of everything up to `largest` with these times, in units of 8 us.
fn ack(largest: u64, times: &[(u64, u64)]) -> Vec<u8> {
    let mut buffer = vec![0; 1000];
    let mut w = Writer::new(&mut buffer);
    let told = times.iter().copied();
    let (ranges, written) = Ack::encode_with_times(&mut w, 0, std::iter::once(0..=largest), 1, None, told, 100, 1000);
    assert_eq!((ranges, written), (1, times.len()));
    w.written().to_vec()
}

fn stats(puppet: &Puppet) -> Stats {
    puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats()
}

/// The victim, a client, sends a packet of its own at each of these times in milliseconds; returns their numbers.
fn sending(puppet: &mut Puppet, pauses: &[u64]) -> Vec<u64> {
    let handle = puppet.handle.unwrap();
    let id = puppet.victim.connection_mut(handle).unwrap().open(Dir::Bi).unwrap();
    let send = |&pause: &u64| {
        puppet.wait(Duration::from_millis(pause));
        let before = puppet.seen[2].last().copied();
        puppet.victim.connection_mut(handle).unwrap().write(id, &mut bytes::Bytes::from_static(b"x")).unwrap();
        puppet.collect();
        let sent = *puppet.seen[2].last().unwrap();
        assert_ne!(Some(sent), before);
        sent
    };
    pauses.iter().map(send).collect()
}

#[test]
fn times_become_the_variation_of_each_direction() {
    let mut puppet = Puppet::server(&asking(), |_, _| {}).connected();
    puppet.acknowledge(Level::OneRtt);
    let numbers = sending(&mut puppet, &[10, 10, 10]);
    // They left 10 ms apart; the last one took 4 ms longer than the others. The clock says what it likes.
    let (base, unit) = (1_000_000_000, |millis: u64| millis * 125);
    let times = [(numbers[2], base + unit(24)), (numbers[1], base + unit(10)), (numbers[0], base)];
    puppet.send(Level::OneRtt, &ack(numbers[2], &times));
    let figures = stats(&puppet);
    assert_eq!(figures.receive_times_received, 3);
    assert_eq!(figures.forward_delay_variation_latest, 4_000_000);
    assert_eq!(figures.forward_delay_variation, 4_000_000 / 16);
    assert_eq!(figures.reverse_delay_variation_latest, 0);
}

#[test]
fn more_times_than_asked_for_are_a_violation() {
    for (count, expected) in [(4, None), (5, Some(Code::PROTOCOL_VIOLATION))] {
        let mut puppet = Puppet::server(&asking(), |_, _| {}).connected();
        let largest = *puppet.seen[2].last().unwrap();
        let times: Vec<_> = (0..count).map(|place| (largest, 1_000 - place)).collect();
        puppet.send(Level::OneRtt, &ack(largest, &times));
        assert_eq!(puppet.close_code(), expected, "{count}");
    }
}

#[test]
fn who_has_not_asked_does_not_know_the_frame() {
    let mut puppet = Puppet::server(&Profile::default(), |_, _| {}).connected();
    let largest = *puppet.seen[2].last().unwrap();
    puppet.send(Level::OneRtt, &ack(largest, &[]));
    assert_eq!(puppet.close_code(), Some(Code::FRAME_ENCODING_ERROR));
}

#[test]
fn times_that_cannot_be_true_break_nothing() {
    let mut puppet = Puppet::server(&asking(), |_, _| {}).connected();
    puppet.acknowledge(Level::OneRtt);
    for time in [0, 1, (1 << 62) - 1, 5, 1 << 60] {
        let numbers = sending(&mut puppet, &[10]);
        puppet.send(Level::OneRtt, &ack(numbers[0], &[(numbers[0], time)]));
        assert_eq!(puppet.close_code(), None, "{time}");
    }
    // Nor do times of packets that nobody sent, as long as nothing else claims them.
    let numbers = sending(&mut puppet, &[10]);
    let long_gone = [(numbers[0], 9), (0, 8), (1, 8)];
    puppet.send(Level::OneRtt, &ack(numbers[0], &long_gone));
    assert_eq!(puppet.close_code(), None);
}

/// The victim reports to a peer that wants times: no more than that, in its unit, the most recent first, each once.
#[test]
fn reports_what_the_peer_wants_and_no_more() {
    for (most, exponent) in [(0, 0), (1, 0), (3, 10), (1 << 40, 3)] {
        let change = |parameters: &mut wire::TransportParameters, _: &mut Vec<u8>| {
            parameters.max_receive_timestamps_per_ack = Some(most);
            parameters.receive_timestamps_exponent = exponent;
        };
        let mut puppet = Puppet::client(&Profile::default(), change).connected();
        puppet.wait(Duration::from_millis(100));
        puppet.collect();
        puppet.received.clear();
        let first = puppet.next_pn[2];
        // A rhythm in which five packets make one acknowledgement.
        for _ in 0..5 {
            puppet.send(Level::OneRtt, &bytes(&[Frame::Ping]));
            puppet.now += Duration::from_millis(4);
        }
        puppet.collect();
        let mut told = Vec::new();
        for (_, payload) in &puppet.received {
            for frame in Frames::new(payload).flatten() {
                let Frame::Ack(ack) = frame else { continue };
                let times: Vec<_> = ack.receive_times().into_iter().flatten().collect();
                assert!(times.len() as u64 <= most, "{times:?}");
                assert!(times.windows(2).all(|pair| pair[0].1 >= pair[1].1));
                told.extend(times);
            }
        }
        let numbers: Vec<u64> = told.iter().map(|time| time.0).collect();
        let kept = most.min(5);
        assert_eq!(numbers, (first + 5 - kept..first + 5).rev().collect::<Vec<_>>());
        if kept > 1 {
            let apart = (told[0].1 - told[1].1) << exponent;
            assert!(apart.abs_diff(4_000) <= 1 << exponent, "{apart} us");
        }
    }
}
