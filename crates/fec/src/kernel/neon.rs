//! NEON: table look-ups in registers give products of half bytes. The table processes the rest that does not fill a vector.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::aarch64::*;

use super::{Term, table};
use crate::gf::NIBBLES;

/// Every string is at least as long as the sum: the caller has checked that.
pub(super) fn add_products(sum: &mut [u8], terms: &[Term<'_>]) {
    const LANES: usize = 4;
    let mut at = 0;
    while at + 16 <= sum.len() {
        let lanes = ((sum.len() - at) / 16).min(LANES);
        // SAFETY: NEON is part of the architecture; `at + 16 * lanes` bytes of each string and of the sum exist, and tables
        // have 32 bytes.
        unsafe {
            let low = vdupq_n_u8(0x0f);
            let mut lane = [vdupq_n_u8(0); LANES];
            for term in terms {
                let table = NIBBLES[usize::from(term.coefficient)].as_ptr();
                let (lows, highs) = (vld1q_u8(table), vld1q_u8(table.add(16)));
                for (i, lane) in lane.iter_mut().enumerate().take(lanes) {
                    let x = vld1q_u8(term.data.as_ptr().add(at + 16 * i));
                    let a = vqtbl1q_u8(lows, vandq_u8(x, low));
                    let b = vqtbl1q_u8(highs, vshrq_n_u8::<4>(x));
                    *lane = veorq_u8(*lane, veorq_u8(a, b));
                }
            }
            for (i, lane) in lane.iter().enumerate().take(lanes) {
                let place = sum.as_mut_ptr().add(at + 16 * i);
                vst1q_u8(place, veorq_u8(vld1q_u8(place), *lane));
            }
        }
        at += 16 * lanes;
    }
    if at < sum.len() {
        for term in terms {
            table::add_products(&mut sum[at..], &[Term { data: &term.data[at..], ..*term }]);
        }
    }
}
