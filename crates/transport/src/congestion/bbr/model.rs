//! Model of the path: bandwidth, delay, their product, and the resulting bytes in flight.

use super::super::rate::mul_div;
use super::tuning::{MIN_PIPE_PACKETS, UNITY};
use super::{Bbr, State};

/// Bits times nanoseconds that make a byte at one bit per second.
const BYTE: u64 = 8_000_000_000;

/// Bytes that leave at `bps` within `nanos`.
#[inline]
pub(super) fn bytes_in(bps: u64, nanos: u64) -> u64 {
    // The divisor is a constant, so that no division is left, as long as the product fits: 10 Gbit/s for 1.8 s.
    match bps.checked_mul(nanos) {
        Some(bits) => bits / BYTE,
        None => mul_div(bps, nanos, BYTE),
    }
}

/// `value` times a gain in per cent.
#[inline]
pub(super) fn scaled(value: u64, percent: u64) -> u64 {
    value.saturating_mul(percent) / UNITY
}

impl Bbr {
    /// BDPMultiple: `gain` per cent of the path's capacity at the rate `bw`.
    #[inline]
    pub(super) fn bdp(&self, bw: u64, gain: u64) -> u64 {
        match self.min_rtt.get() {
            Some(rtt) => scaled(bytes_in(bw, rtt), gain),
            None => self.initial_window,
        }
    }

    /// MinPipeCwnd in bytes.
    #[inline]
    pub(super) fn min_pipe(&self) -> u64 {
        MIN_PIPE_PACKETS * self.mtu
    }

    /// QuantizationBudget: what senders and receivers need beyond the model to work in batches.
    #[inline]
    pub(super) fn quantised(&self, bytes: u64) -> u64 {
        // The draft's offload budget for QUIC is the send quantum.
        let bytes = bytes.max(self.quantum).max(self.min_pipe());
        if self.state == State::Up { bytes + 2 * self.mtu } else { bytes }
    }

    /// Inflight: what fills the path at the rate `bw` and no more.
    #[inline]
    pub(super) fn target(&self, bw: u64) -> u64 {
        self.quantised(self.bdp(bw, UNITY))
    }

    /// TargetInflight: the BDP, unless congestion has cut the window below it.
    pub(super) fn target_inflight(&self) -> u64 {
        self.bdp(self.bw, UNITY).min(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_do_not_overflow() {
        assert_eq!(bytes_in(8_000_000, 1_000_000), 1000);
        assert_eq!(bytes_in(10_000_000_000, 1_000_000_000), 1_250_000_000);
        assert_eq!(bytes_in(100_000_000_000, 10_000_000_000), 125_000_000_000);
        assert_eq!(bytes_in(0, u64::MAX), 0);
        assert_eq!(scaled(1000, 277), 2770);
    }
}
