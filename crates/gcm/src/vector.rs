//! Loads and stores of vectors, and the bytes of blocks in reverse.
#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;

/// Declares functions of the instruction sets that a [`Key`](crate::Key) has found.
macro_rules! on_vectors {
    ($($(#[$meta:meta])* $visibility:vis fn $name:ident $(<$(const $constant:ident: $type:ty),+>)? ($($arguments:tt)*) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,sse4.1,ssse3")]
            $visibility fn $name $(<$(const $constant: $type),+>)? ($($arguments)*) $(-> $result)? $body
        )*
    };
}
pub(crate) use on_vectors;

/// Returns whether the processor has what [`on_vectors`] enables.
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.1")
        && is_x86_feature_detected!("ssse3")
}

on_vectors! {
    #[inline]
    pub(crate) fn load_block(block: &[u8; 16]) -> __m128i {
        // SAFETY: 16 bytes are read.
        unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
    }

    #[inline]
    pub(crate) fn store_block(block: &mut [u8; 16], value: __m128i) {
        // SAFETY: 16 bytes are written.
        unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), value) }
    }

    #[inline]
    pub(crate) fn load(blocks: &[u8; 64]) -> __m512i {
        // SAFETY: 64 bytes are read.
        unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) }
    }

    #[inline]
    pub(crate) fn store(blocks: &mut [u8; 64], value: __m512i) {
        // SAFETY: 64 bytes are written.
        unsafe { _mm512_storeu_si512(blocks.as_mut_ptr().cast(), value) }
    }

    /// Ones for as many of the 64 bytes as there are.
    #[inline]
    pub(crate) fn mask(len: usize) -> __mmask64 {
        assert!((1..=64).contains(&len));
        u64::MAX >> (64 - len)
    }

    /// 1 to 64 bytes, and zeros.
    #[inline]
    pub(crate) fn load_part(bytes: &[u8]) -> __m512i {
        // SAFETY: the bytes whose mask is one are read.
        unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
    }

    /// The first 1 to 64 bytes of a vector.
    #[inline]
    pub(crate) fn store_part(bytes: &mut [u8], value: __m512i) {
        // SAFETY: the bytes whose mask is one are written.
        unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask(bytes.len()), value) }
    }

    /// The same block four times.
    #[inline]
    pub(crate) fn four(block: __m128i) -> __m512i {
        _mm512_broadcast_i32x4(block)
    }

    /// The bytes of each block in reverse.
    #[inline]
    pub(crate) fn reverse(blocks: __m512i) -> __m512i {
        _mm512_shuffle_epi8(blocks, four(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)))
    }
}
