//! Congestion window and pacing.

use super::*;

// RFC 9002 §7 MUST NOT-1; RFC 9221 §5.4 MUST-1
#[test]
fn the_window_is_enforced_and_one_packet_starts_the_repair() {
    let mut path = Path::reno();
    assert_eq!(path.recovery.allowance(at(0), u64::MAX), Allowance::Bytes(12_000));
    path.send_many(0, 10);
    assert_eq!(path.recovery.allowance(at(0), 1), Allowance::WindowFull);
    path.ack(40, &[3]);
    // Halved to 6000 with 8 packets in flight; RFC 9002 §7.3.2 lets one more go.
    assert_eq!(path.recovery.bytes_in_flight(), 8 * 1200);
    assert_eq!(path.recovery.allowance(at(40), u64::MAX), Allowance::Bytes(1200));
    path.send(40);
    assert_eq!(path.recovery.allowance(at(40), u64::MAX), Allowance::WindowFull);
}

// RFC 9002 §7.8 SHOULD NOT-1
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut path = Path::reno();
    let mut millis = 0;
    for round in 0..5 {
        path.send_many(millis, 5);
        millis += 50;
        let first = round * 5;
        path.ack(millis, &(first..first + 5).collect::<Vec<_>>());
    }
    assert_eq!(path.recovery.window(), 12_000);
    // A response that fills the window once doubles it, even though the connection was idle before.
    path.send_many(millis, 10);
    assert_eq!(path.recovery.allowance(at(millis), u64::MAX), Allowance::WindowFull);
    for pn in 25..35 {
        path.ack(millis + 50, &(0..=pn).collect::<Vec<_>>());
    }
    assert_eq!(path.recovery.window(), 24_000);
}

// RFC 9002 §7.7 SHOULD-1; RFC 9002 §7.8 SHOULD NOT-2
#[test]
fn pacing_spreads_what_exceeds_a_burst() {
    let mut path = Path::reno();
    path.send_many(0, 10);
    path.ack(50, &(0..10).collect::<Vec<_>>());
    // Twice 24,000 bytes over 50 ms.
    assert_eq!(path.recovery.pacing_rate(), Some(Bitrate::from_bps(2 * 24_000 * 8 * 20)));
    path.send_many(50, 10);
    let Allowance::PacedUntil(release) = path.recovery.allowance(at(50), u64::MAX) else { panic!("not paced") };
    assert_eq!(release, at(50) + Duration::from_micros(2500), "two packets at 960 bytes per millisecond");
    // A window that pacing kept from being used grows all the same.
    path.ack(100, &(0..20).collect::<Vec<_>>());
    assert_eq!(path.recovery.window(), 36_000);
}

#[test]
fn data_that_runs_out_after_pacing_does_not_open_the_window() {
    let mut path = Path::reno();
    path.send_many(0, 10);
    path.ack(50, &(0..10).collect::<Vec<_>>());
    path.send_many(50, 10);
    assert!(matches!(path.recovery.allowance(at(50), u64::MAX), Allowance::PacedUntil(_)));
    path.send(53);
    path.recovery.on_app_limited(at(53));
    path.ack(103, &(0..21).collect::<Vec<_>>());
    assert_eq!(path.recovery.window(), 24_000);
}

// RFC 9002 §7.2 SHOULD-2
#[test]
fn the_initial_window_follows_the_datagram_size() {
    for algorithm in Algorithm::ALL {
        let mut path = Path::new(algorithm);
        path.recovery.set_mtu(at(0), 1452);
        assert_eq!(path.recovery.window(), 14_520);
        path.send_many(0, 12);
        path.ack(50, &(0..12).collect::<Vec<_>>());
        let window = path.recovery.window();
        path.recovery.set_mtu(at(51), 9000);
        assert_eq!(path.recovery.window(), window);
    }
}

/// Also one that is just what another datagram size would give.
#[test]
fn a_configured_initial_window_stays_when_the_datagram_size_changes() {
    for algorithm in Algorithm::ALL {
        for window in [12_000, 20_000] {
            let parameters = Parameters { initial_window: Some(window), ..Parameters::for_mtu(1200) };
            let mut controller = algorithm.build(&parameters);
            controller.on_mtu(1452);
            assert_eq!(controller.window(), window, "{algorithm:?}");
        }
    }
}

#[test]
fn short_paths_are_not_paced() {
    let mut path = Path::reno();
    path.send_many(0, 10);
    path.try_ack(Instant::from_micros(200), &(0..10).collect::<Vec<_>>(), None).unwrap();
    assert_eq!(path.recovery.pacing_rate(), None);
    assert_eq!(path.recovery.allowance(Instant::from_micros(200), u64::MAX), Allowance::Bytes(24_000));
}
