//! Queueing delay that a flow aims at.

/// Queueing delay in seconds that a flow of [`REFERENCE_RATE`] aims at.
const REFERENCE_WAIT: f64 = 0.003;
/// Datagrams per second of that flow: 20 Mbit/s in datagrams of 1,500 bytes.
const REFERENCE_RATE: f64 = 1667.0;
/// Bounds of the queueing delay aimed at, in seconds.
const TARGETS: (f64, f64) = (0.001, 0.006);
/// Queueing delay aimed at on slow links in datagrams of the flow, and its largest share of the RTT.
const SLOW_LINK: (f64, f64) = (1.5, 0.1);

/// Queueing delay in seconds that a flow with this window in datagrams and RTT in seconds aims at.
///
/// On a slow link one datagram takes longer than the usual target: there the flow aims at the time of one and a half, as
/// long as that is little beside the RTT.
pub(super) fn target(window: f64, rtt: f64) -> f64 {
    let rate = window / rtt.max(1e-4);
    let usual = (REFERENCE_WAIT * (REFERENCE_RATE / rate).sqrt().sqrt()).clamp(TARGETS.0, TARGETS.1);
    usual.max((SLOW_LINK.0 / rate).min(rtt * SLOW_LINK.1))
}
