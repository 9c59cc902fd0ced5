//! Vector instructions of x86: shuffles look up products of half bytes, GFNI multiplies by a matrix over bits.
//!
//! Each kernel keeps a few vectors of the sum in registers while it goes through the terms; the table processes the rest that does not fill
//! a vector.
//!
//! The kernels differ in their intrinsics only. Each instruction set needs its own functions (`target_feature`), and a macro over
//! intrinsics would hide the differences.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;

use super::{Kernel, Term, Twin, table};
use crate::gf::{MATRICES, NIBBLES};

/// The kernel is available, and every string is at least as long as the sum: the caller has checked both.
pub(super) fn add_products(kernel: Kernel, sum: &mut [u8], terms: &[Term<'_>]) {
    debug_assert!(terms.iter().all(|term| term.data.len() >= sum.len()));
    // SAFETY: the processor has the instructions, and strings are long enough, see above.
    let done = unsafe {
        match kernel {
            Kernel::Ssse3 => ssse3(sum, terms),
            Kernel::Avx2 => avx2(sum, terms),
            Kernel::Gfni256 => gfni_256(sum, terms),
            Kernel::Gfni512 => gfni_512(sum, terms),
            Kernel::Table | Kernel::Neon => 0,
        }
    };
    if done < sum.len() {
        for term in terms {
            table::add_products(&mut sum[done..], &[Term { data: &term.data[done..], ..*term }]);
        }
    }
}

/// Bytes that are done: whole vectors.
///
/// # Safety
/// The processor has SSSE3, and no string is shorter than the sum.
#[target_feature(enable = "ssse3")]
unsafe fn ssse3(sum: &mut [u8], terms: &[Term<'_>]) -> usize {
    let whole = sum.len() / 16 * 16;
    let mut at = 0;
    // SAFETY: each step stays below `whole`.
    unsafe {
        while at + 16 * 4 <= whole {
            ssse3_step::<4>(sum, terms, at);
            at += 16 * 4;
        }
        while at < whole {
            ssse3_step::<1>(sum, terms, at);
            at += 16;
        }
    }
    whole
}

/// As many vectors as fit into registers, over all terms.
///
/// # Safety
/// As above, and `at + 16 * N` bytes exist.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn ssse3_step<const N: usize>(sum: &mut [u8], terms: &[Term<'_>], at: usize) {
    let low = _mm_set1_epi8(0x0f);
    let mut lanes = [_mm_setzero_si128(); N];
    for term in terms {
        let table = &NIBBLES[usize::from(term.coefficient)];
        // SAFETY: the table has 32 bytes.
        let (lows, highs) =
            unsafe { (_mm_loadu_si128(table.as_ptr().cast()), _mm_loadu_si128(table.as_ptr().add(16).cast())) };
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: `at + 16 * N` bytes of the string exist.
            let x = unsafe { _mm_loadu_si128(term.data.as_ptr().add(at + 16 * i).cast()) };
            let a = _mm_shuffle_epi8(lows, _mm_and_si128(x, low));
            let b = _mm_shuffle_epi8(highs, _mm_and_si128(_mm_srli_epi64::<4>(x), low));
            *lane = _mm_xor_si128(*lane, _mm_xor_si128(a, b));
        }
    }
    for (i, lane) in lanes.into_iter().enumerate() {
        // SAFETY: `at + 16 * N` bytes of the sum exist.
        unsafe {
            let place = sum.as_mut_ptr().add(at + 16 * i).cast();
            _mm_storeu_si128(place, _mm_xor_si128(_mm_loadu_si128(place), lane));
        }
    }
}

/// Bytes that are done: whole vectors.
///
/// # Safety
/// The processor has AVX2, and no string is shorter than the sum.
#[target_feature(enable = "avx2")]
unsafe fn avx2(sum: &mut [u8], terms: &[Term<'_>]) -> usize {
    let whole = sum.len() / 32 * 32;
    let mut at = 0;
    // SAFETY: each step stays below `whole`.
    unsafe {
        while at + 32 * 4 <= whole {
            avx2_step::<4>(sum, terms, at);
            at += 32 * 4;
        }
        while at < whole {
            avx2_step::<1>(sum, terms, at);
            at += 32;
        }
    }
    whole
}

/// As many vectors as fit into registers, over all terms.
///
/// # Safety
/// As above, and `at + 32 * N` bytes exist.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn avx2_step<const N: usize>(sum: &mut [u8], terms: &[Term<'_>], at: usize) {
    let low = _mm256_set1_epi8(0x0f);
    let mut lanes = [_mm256_setzero_si256(); N];
    for term in terms {
        let table = &NIBBLES[usize::from(term.coefficient)];
        // SAFETY: the table has 32 bytes.
        let (lows, highs) = unsafe {
            let lows = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let highs = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().add(16).cast()));
            (lows, highs)
        };
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: `at + 32 * N` bytes of the string exist.
            let x = unsafe { _mm256_loadu_si256(term.data.as_ptr().add(at + 32 * i).cast()) };
            let a = _mm256_shuffle_epi8(lows, _mm256_and_si256(x, low));
            let b = _mm256_shuffle_epi8(highs, _mm256_and_si256(_mm256_srli_epi64::<4>(x), low));
            *lane = _mm256_xor_si256(*lane, _mm256_xor_si256(a, b));
        }
    }
    for (i, lane) in lanes.into_iter().enumerate() {
        // SAFETY: `at + 32 * N` bytes of the sum exist.
        unsafe {
            let place = sum.as_mut_ptr().add(at + 32 * i).cast();
            _mm256_storeu_si256(place, _mm256_xor_si256(_mm256_loadu_si256(place), lane));
        }
    }
}

/// Bytes that are done: whole vectors.
///
/// # Safety
/// The processor has GFNI and AVX2, and no string is shorter than the sum.
#[target_feature(enable = "gfni,avx2")]
unsafe fn gfni_256(sum: &mut [u8], terms: &[Term<'_>]) -> usize {
    let whole = sum.len() / 32 * 32;
    let mut at = 0;
    // SAFETY: each step stays below `whole`.
    unsafe {
        while at + 32 * 8 <= whole {
            gfni_256_step::<8>(sum, terms, at);
            at += 32 * 8;
        }
        while at + 32 * 2 <= whole {
            gfni_256_step::<2>(sum, terms, at);
            at += 32 * 2;
        }
        if at < whole {
            gfni_256_step::<1>(sum, terms, at);
        }
    }
    whole
}

/// As many vectors as fit into registers, over all terms.
///
/// # Safety
/// As above, and `at + 32 * N` bytes exist.
#[inline]
#[target_feature(enable = "gfni,avx2")]
unsafe fn gfni_256_step<const N: usize>(sum: &mut [u8], terms: &[Term<'_>], at: usize) {
    let mut lanes = [_mm256_setzero_si256(); N];
    for term in terms {
        let matrix = _mm256_set1_epi64x(MATRICES[usize::from(term.coefficient)].cast_signed());
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: `at + 32 * N` bytes of the string exist.
            let x = unsafe { _mm256_loadu_si256(term.data.as_ptr().add(at + 32 * i).cast()) };
            *lane = _mm256_xor_si256(*lane, _mm256_gf2p8affine_epi64_epi8::<0>(x, matrix));
        }
    }
    for (i, lane) in lanes.into_iter().enumerate() {
        // SAFETY: `at + 32 * N` bytes of the sum exist.
        unsafe {
            let place = sum.as_mut_ptr().add(at + 32 * i).cast();
            _mm256_storeu_si256(place, _mm256_xor_si256(_mm256_loadu_si256(place), lane));
        }
    }
}

/// Bytes that are done: whole vectors.
///
/// # Safety
/// The processor has GFNI and AVX-512 (F and BW), and no string is shorter than the sum.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn gfni_512(sum: &mut [u8], terms: &[Term<'_>]) -> usize {
    let whole = sum.len() / 64 * 64;
    let mut at = 0;
    // SAFETY: each step stays below `whole`.
    unsafe {
        while at + 64 * 8 <= whole {
            gfni_512_step::<8>(sum, terms, at);
            at += 64 * 8;
        }
        while at + 64 * 2 <= whole {
            gfni_512_step::<2>(sum, terms, at);
            at += 64 * 2;
        }
        if at < whole {
            gfni_512_step::<1>(sum, terms, at);
        }
    }
    whole
}

/// As many vectors as fit into registers, over all terms.
///
/// # Safety
/// As above, and `at + 64 * N` bytes exist.
#[inline]
#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn gfni_512_step<const N: usize>(sum: &mut [u8], terms: &[Term<'_>], at: usize) {
    let mut lanes = [_mm512_setzero_si512(); N];
    for term in terms {
        let matrix = _mm512_set1_epi64(MATRICES[usize::from(term.coefficient)].cast_signed());
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: `at + 64 * N` bytes of the string exist.
            let x = unsafe { _mm512_loadu_si512(term.data.as_ptr().add(at + 64 * i).cast()) };
            *lane = _mm512_xor_si512(*lane, _mm512_gf2p8affine_epi64_epi8::<0>(x, matrix));
        }
    }
    for (i, lane) in lanes.into_iter().enumerate() {
        // SAFETY: `at + 64 * N` bytes of the sum exist.
        unsafe {
            let place = sum.as_mut_ptr().add(at + 64 * i).cast();
            _mm512_storeu_si512(place, _mm512_xor_si512(_mm512_loadu_si512(place), lane));
        }
    }
}

/// Two sums in one pass over the strings. The caller has checked that AVX-512 and GFNI are available and that every string is at least as
/// long as the sums.
pub(super) fn add_twins(sums: [&mut [u8]; 2], terms: &[Twin<'_>]) {
    debug_assert!(terms.iter().all(|term| term.data.len() >= sums[0].len()) && sums[0].len() == sums[1].len());
    let [a, b] = sums;
    let whole = a.len() / 64 * 64;
    let mut at = 0;
    // SAFETY: the processor has the instructions, and each step stays below `whole`.
    unsafe {
        while at + 64 * 8 <= whole {
            twins_step::<8>([a, b], terms, at);
            at += 64 * 8;
        }
        while at < whole {
            twins_step::<1>([a, b], terms, at);
            at += 64;
        }
    }
    if whole < a.len() {
        for term in terms {
            for (sum, coefficient) in [(&mut *a, term.coefficients[0]), (&mut *b, term.coefficients[1])] {
                table::add_products(&mut sum[whole..], &[Term { coefficient, data: &term.data[whole..] }]);
            }
        }
    }
}

/// # Safety
/// The processor has GFNI and AVX-512 (F and BW), and `at + 64 * N` bytes of all strings exist.
#[inline]
#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn twins_step<const N: usize>(sums: [&mut [u8]; 2], terms: &[Twin<'_>], at: usize) {
    let mut lanes = [[_mm512_setzero_si512(); N]; 2];
    for term in terms {
        let [a, b] = term.coefficients.map(|c| _mm512_set1_epi64(MATRICES[usize::from(c)].cast_signed()));
        let [first, second] = &mut lanes;
        for (i, (first, second)) in first.iter_mut().zip(second).enumerate() {
            // SAFETY: `at + 64 * N` bytes of the string exist.
            let x = unsafe { _mm512_loadu_si512(term.data.as_ptr().add(at + 64 * i).cast()) };
            *first = _mm512_xor_si512(*first, _mm512_gf2p8affine_epi64_epi8::<0>(x, a));
            *second = _mm512_xor_si512(*second, _mm512_gf2p8affine_epi64_epi8::<0>(x, b));
        }
    }
    for (lanes, sum) in lanes.into_iter().zip(sums) {
        for (i, lane) in lanes.into_iter().enumerate() {
            // SAFETY: `at + 64 * N` bytes of the sum exist.
            unsafe {
                let place = sum.as_mut_ptr().add(at + 64 * i).cast();
                _mm512_storeu_si512(place, _mm512_xor_si512(_mm512_loadu_si512(place), lane));
            }
        }
    }
}

/// Exclusive or alone, for a row of ones.
pub(super) fn add_plain(kernel: Kernel, sum: &mut [u8], terms: &[Term<'_>]) {
    debug_assert!(terms.iter().all(|term| term.data.len() >= sum.len()));
    // SAFETY: the processor has the instructions.
    unsafe {
        match kernel {
            Kernel::Gfni512 => plain_512(sum, terms),
            _ => plain_256(sum, terms),
        }
    }
}

/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn plain_256(sum: &mut [u8], terms: &[Term<'_>]) {
    super::add_plain(sum, terms);
}

/// # Safety
/// The processor has AVX-512 (F and BW).
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn plain_512(sum: &mut [u8], terms: &[Term<'_>]) {
    super::add_plain(sum, terms);
}
