//! GHASH (NIST SP 800-38D §6.4): sums of products in GF(2^128).
//!
//! Blocks have their bytes in reverse, as in POLYVAL (RFC 8452 §3 and appendix A): the product of `a` and `b` there is
//! `a * b * x^-128`, whose reduction takes two multiplications, and GHASH under `H` is POLYVAL under `x * H`.

use std::arch::x86_64::*;

use crate::vector::{four, load, on_vectors, store};

/// Powers of the hash key: as many blocks as are multiplied before a reduction.
pub(crate) const POWERS: usize = 17;

/// The powers of one hash key, the highest first, and zeros for the lanes of a vector that begins with a low one.
pub(crate) type Powers = [[u8; 16]; POWERS + 3];

/// A sum of products that are not reduced yet, in four lanes.
pub(crate) struct Sum {
    low: __m512i,
    middle: __m512i,
    high: __m512i,
}

on_vectors! {
    #[inline]
    pub(crate) fn empty() -> Sum {
        let zero = _mm512_setzero_si512();
        Sum { low: zero, middle: zero, high: zero }
    }

    /// Adds the products of four blocks and four powers.
    #[inline]
    pub(crate) fn add(sum: &mut Sum, blocks: __m512i, powers: __m512i) {
        const XOR: i32 = 0x96;
        let middle = [_mm512_clmulepi64_epi128(blocks, powers, 0x01), _mm512_clmulepi64_epi128(blocks, powers, 0x10)];
        sum.low = _mm512_xor_si512(sum.low, _mm512_clmulepi64_epi128(blocks, powers, 0x00));
        sum.middle = _mm512_ternarylogic_epi64(sum.middle, middle[0], middle[1], XOR);
        sum.high = _mm512_xor_si512(sum.high, _mm512_clmulepi64_epi128(blocks, powers, 0x11));
    }

    /// The remainder of each lane.
    #[inline]
    pub(crate) fn reduced(sum: Sum) -> __m512i {
        // The polynomial without its first and last term, of which the shuffles take care.
        let polynomial = four(_mm_set_epi64x(0, 0xc2 << 56));
        let low = _mm512_xor_si512(sum.low, _mm512_bslli_epi128(sum.middle, 8));
        let high = _mm512_xor_si512(sum.high, _mm512_bsrli_epi128(sum.middle, 8));
        let fold = |x| _mm512_xor_si512(_mm512_shuffle_epi32(x, SWAP), _mm512_clmulepi64_epi128(x, polynomial, 0x00));
        _mm512_xor_si512(fold(fold(low)), high)
    }

    /// The remainder of the sum of all lanes, in the first one; the others are zero.
    #[inline]
    pub(crate) fn total(sum: Sum) -> __m512i {
        let lanes = |x| {
            let halves = _mm256_xor_si256(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
            let lane = _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
            _mm512_zextsi128_si512(lane)
        };
        let sum = Sum { low: lanes(sum.low), middle: lanes(sum.middle), high: lanes(sum.high) };
        reduced(sum)
    }

    /// The product of each lane.
    #[inline]
    fn product(a: __m512i, b: __m512i) -> __m512i {
        let mut sum = empty();
        add(&mut sum, a, b);
        reduced(sum)
    }

    /// The powers of a hash key, whose bytes are in reverse.
    pub(crate) fn powers(key: __m128i) -> Powers {
        // Times x: a shift, and the polynomial where a bit falls out.
        let fallen = _mm_shuffle_epi32(_mm_srai_epi32(key, 31), 0xff);
        let shifted = _mm_or_si128(_mm_slli_epi64(key, 1), _mm_slli_si128(_mm_srli_epi64(key, 63), 8));
        let first = _mm_xor_si128(shifted, _mm_and_si128(fallen, _mm_set_epi64x(0xc2 << 56, 1)));
        let one = four(first);
        let two = product(one, one);
        let (three, fourth) = (product(two, one), product(two, two));
        // The highest in the first lane.
        let low = _mm512_mask_blend_epi64(0b0000_0011, one, fourth);
        let low = _mm512_mask_blend_epi64(0b0000_1100, low, three);
        let low = _mm512_mask_blend_epi64(0b0011_0000, low, two);
        let eighth = product(fourth, fourth);
        let next = product(low, fourth);
        let (third, last) = (product(low, eighth), product(next, eighth));
        let seventeenth = _mm512_castsi512_si128(product(last, one));
        let mut bytes = [0; 16 * (POWERS + 3)];
        let (head, rest) = bytes.split_first_chunk_mut::<16>().expect("20 blocks");
        crate::vector::store_block(head, seventeenth);
        let (rest, _) = rest.as_chunks_mut::<64>();
        for (to, four) in rest.iter_mut().zip([last, third, next, low]) {
            store(to, four);
        }
        let mut powers = [[0; 16]; POWERS + 3];
        powers.as_flattened_mut().copy_from_slice(&bytes);
        powers
    }

    /// Four powers, of which the first is given (1 to 17). Those below the first power are zero.
    #[inline]
    pub(crate) fn from_power(powers: &Powers, first: usize) -> __m512i {
        load(powers.as_flattened()[16 * (POWERS - first)..].first_chunk().expect("three blocks of zeros follow"))
    }
}

const SWAP: _MM_PERM_ENUM = 0x4e;
