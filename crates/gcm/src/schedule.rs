//! The round keys of AES (FIPS 197 §5.2).

use std::arch::x86_64::*;

use crate::vector::{load_block, on_vectors, store_block};

/// Rounds of AES with a key of 128 bits.
pub(crate) const ROUNDS_128: usize = 10;
/// Rounds of AES with a key of 256 bits.
pub(crate) const ROUNDS_256: usize = 14;

/// Round keys; those of a short key leave the last ones zero.
pub(crate) type RoundKeys = [[u8; 16]; ROUNDS_256 + 1];

on_vectors! {
    /// The next round key, from the one before it of the same place and four bytes of a helper.
    #[inline]
    fn next(key: __m128i, word: __m128i) -> __m128i {
        let pairs = _mm_xor_si128(key, _mm_slli_si128(key, 4));
        _mm_xor_si128(_mm_xor_si128(pairs, _mm_slli_si128(pairs, 8)), word)
    }

    pub(crate) fn expand_128(key: &[u8; 16]) -> RoundKeys {
        let mut keys = [[0; 16]; ROUNDS_256 + 1];
        keys[0] = *key;
        let mut last = load_block(key);
        macro_rules! round {
            ($index:literal, $constant:literal) => {
                last = next(last, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(last, $constant), 0xff));
                store_block(&mut keys[$index], last);
            };
        }
        round!(1, 0x01);
        round!(2, 0x02);
        round!(3, 0x04);
        round!(4, 0x08);
        round!(5, 0x10);
        round!(6, 0x20);
        round!(7, 0x40);
        round!(8, 0x80);
        round!(9, 0x1b);
        round!(10, 0x36);
        keys
    }

    pub(crate) fn expand_256(key: &[u8; 32]) -> RoundKeys {
        let mut keys = [[0; 16]; ROUNDS_256 + 1];
        let (halves, _) = key.as_chunks::<16>();
        keys[..2].copy_from_slice(halves);
        let (mut even, mut odd) = (load_block(&halves[0]), load_block(&halves[1]));
        macro_rules! even {
            ($index:literal, $constant:literal) => {
                even = next(even, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(odd, $constant), 0xff));
                store_block(&mut keys[$index], even);
            };
        }
        macro_rules! odd {
            ($index:literal) => {
                odd = next(odd, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(even, 0), 0xaa));
                store_block(&mut keys[$index], odd);
            };
        }
        even!(2, 0x01);
        odd!(3);
        even!(4, 0x02);
        odd!(5);
        even!(6, 0x04);
        odd!(7);
        even!(8, 0x08);
        odd!(9);
        even!(10, 0x10);
        odd!(11);
        even!(12, 0x20);
        odd!(13);
        even!(14, 0x40);
        keys
    }
}
