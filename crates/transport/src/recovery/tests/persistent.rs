//! Persistent congestion.

use super::*;

/// The example of RFC 9002 §7.6.3, where a probe timeout is 2 s: packets 1 to 7 are lost over 6.5 s, except those of which
/// the last acknowledgement speaks.
fn persistent(acked: &[u64]) -> (Path, AckOutcome) {
    let mut path = Path::reno();
    path.recovery.set_max_ack_delay(Duration::from_millis(1400));
    // A first sample of 200 ms: 200 + 400 + 1400 ms.
    path.send(1000);
    path.ack(1200, &[0]);
    assert_eq!(path.recovery.pto(), 2000 * MS);
    for millis in [1500, 2000, 3000, 4000, 5000, 6000, 8000, 12_000] {
        path.send(millis);
    }
    let outcome = path.ack(12_200, acked);
    (path, outcome)
}

// RFC 9002 §5.2 SHOULD-1; RFC 9002 §7.6.1 RECOMMENDED-1; RFC 9002 §7.6.2 MUST-2
#[test]
fn persistent_congestion() {
    let (path, outcome) = persistent(&[8]);
    assert_eq!(path.with(Verdict::Lost), [1, 2, 3, 4, 5, 6, 7]);
    assert!(outcome.persistent_congestion);
    assert_eq!(path.recovery.window(), 2 * u64::from(SIZE));
    assert_eq!(path.recovery.rtt().min(), Some(200 * MS));
}

#[test]
fn an_acknowledgement_in_between_is_no_persistent_congestion() {
    let (path, outcome) = persistent(&[4, 8]);
    assert_eq!(path.with(Verdict::Lost), [1, 2, 3, 5, 6, 7]);
    assert!(!outcome.persistent_congestion);
}

// RFC 9002 §7.6.2 SHOULD NOT-1
#[test]
fn persistent_congestion_needs_an_rtt_sample_before() {
    let mut path = Path::reno();
    for second in 0..8 {
        path.send(second * 1000);
    }
    let outcome = path.ack(8100, &[7]);
    assert_eq!((outcome.lost_packets, outcome.persistent_congestion), (7, false));
}
