//! Target queueing delay of a flow.

/// Target queueing delay in seconds of a flow with [`REFERENCE_RATE`].
const REFERENCE_WAIT: f64 = 0.003;
/// Datagrams per second of that flow: 20 Mbit/s in datagrams of 1,500 bytes.
const REFERENCE_RATE: f64 = 1667.0;
/// Bounds of the target in seconds.
const TARGETS: (f64, f64) = (0.001, 0.006);
/// Target on slow links in datagrams of the flow, and its largest share of the RTT.
const SLOW_LINK: (f64, f64) = (1.5, 0.1);

/// Target queueing delay in seconds of a flow with this window in datagrams and RTT in seconds.
///
/// On a slow link one datagram takes longer than the usual target. The target there is the time of 1.5 datagrams, but at most
/// a tenth of the RTT.
pub(super) fn target(window: f64, rtt: f64) -> f64 {
    let rate = window / rtt.max(1e-4);
    let usual = (REFERENCE_WAIT * (REFERENCE_RATE / rate).sqrt().sqrt()).clamp(TARGETS.0, TARGETS.1);
    usual.max((SLOW_LINK.0 / rate).min(rtt * SLOW_LINK.1))
}
