//! One key, which seals and opens.
#![allow(unsafe_code, reason = "functions for certain processors are called where the processor was asked")]

use std::arch::x86_64::*;

use crate::{
    NONCE_LEN, TAG_LEN,
    ghash::{self, POWERS, Powers, Sum, from_power},
    schedule::{ROUNDS_128, ROUNDS_256, RoundKeys, expand_128, expand_256},
    vector::{
        four, is_available, load, load_block, load_part, mask, on_vectors, reverse, store, store_block, store_part,
    },
};

/// Bytes of the blocks that are made together.
const STEP: usize = 256;

/// An AES-GCM key of 128 or 256 bits.
pub struct Key {
    powers: Powers,
    rounds: RoundKeys,
    is_long: bool,
}

impl Key {
    /// A key of 16 or 32 bytes. Returns `None` for another length, and where the processor lacks an instruction.
    pub fn new(key: &[u8]) -> Option<Self> {
        if !is_available() {
            return None;
        }
        // SAFETY: the processor has the instructions.
        let (rounds, is_long) = match key.len() {
            16 => (unsafe { expand_128(key.first_chunk()?) }, false),
            32 => (unsafe { expand_256(key.first_chunk()?) }, true),
            _ => return None,
        };
        // SAFETY: as above.
        let powers = unsafe {
            match is_long {
                false => hash_key::<ROUNDS_128>(&rounds),
                true => hash_key::<ROUNDS_256>(&rounds),
            }
        };
        Some(Self { powers, rounds, is_long })
    }

    /// Encrypts `text` in place; returns the tag over it and `header`. The last bytes of the text are read from `tail` and not from
    /// `text`, which has room for them.
    ///
    /// Never seal two texts with the same nonce.
    ///
    /// # Panics
    /// If `tail` is longer than `text`, or a text longer than 2^32 bytes.
    #[inline]
    pub fn seal(&self, nonce: &[u8; NONCE_LEN], header: &[u8], text: &mut [u8], tail: &[u8]) -> [u8; TAG_LEN] {
        // SAFETY: a key exists only where the processor has the instructions.
        unsafe {
            match self.is_long {
                false => run::<ROUNDS_128, true>(self, nonce, header, text, tail),
                true => run::<ROUNDS_256, true>(self, nonce, header, text, tail),
            }
        }
    }

    /// Decrypts `text` in place; returns whether the tag is that of it and `header`. If not, the text is overwritten with zeros.
    ///
    /// # Panics
    /// If the text is longer than 2^32 bytes.
    #[inline]
    #[must_use]
    pub fn open(&self, nonce: &[u8; NONCE_LEN], header: &[u8], text: &mut [u8], tag: &[u8; TAG_LEN]) -> bool {
        // SAFETY: as above.
        let is_authentic = unsafe {
            let own = match self.is_long {
                false => run::<ROUNDS_128, false>(self, nonce, header, text, &[]),
                true => run::<ROUNDS_256, false>(self, nonce, header, text, &[]),
            };
            is_same(&own, tag)
        };
        if !is_authentic {
            text.fill(0);
        }
        is_authentic
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.powers.as_flattened_mut().fill(0);
        self.rounds.as_flattened_mut().fill(0);
        // Keeps the compiler from removing the stores above as dead.
        std::hint::black_box((&self.powers, &self.rounds));
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

on_vectors! {
    /// Returns whether two tags are the same, in the same time for all.
    #[inline]
    fn is_same(one: &[u8; TAG_LEN], other: &[u8; TAG_LEN]) -> bool {
        let difference = _mm_xor_si128(load_block(one), load_block(other));
        _mm_testz_si128(difference, difference) == 1
    }

    /// The hash key is the encryption of zeros.
    fn hash_key<const ROUNDS: usize>(rounds: &RoundKeys) -> Powers {
        let mut block = load_block(&rounds[0]);
        for key in &rounds[1..ROUNDS] {
            block = _mm_aesenc_si128(block, load_block(key));
        }
        block = _mm_aesenclast_si128(block, load_block(&rounds[ROUNDS]));
        ghash::powers(_mm512_castsi512_si128(reverse(_mm512_zextsi128_si512(block))))
    }

    /// Sixteen blocks of key stream; moves the counter behind them.
    #[inline]
    fn key_stream<const ROUNDS: usize>(keys: &[__m512i; ROUNDS_256 + 1], counter: &mut __m512i) -> [__m512i; 4] {
        let mut stream = [_mm512_setzero_si512(); 4];
        for blocks in &mut stream {
            *blocks = _mm512_xor_si512(reverse(*counter), keys[0]);
            *counter = _mm512_add_epi32(*counter, four(_mm_set_epi32(0, 0, 0, 4)));
        }
        for key in &keys[1..ROUNDS] {
            for blocks in &mut stream {
                *blocks = _mm512_aesenc_epi128(*blocks, *key);
            }
        }
        for blocks in &mut stream {
            *blocks = _mm512_aesenclast_epi128(*blocks, keys[ROUNDS]);
        }
        stream
    }

    /// Powers for the sixteen blocks of a step whose lanes are added up later, since lanes that stay apart cost less: all four lanes are
    /// as far from the same lane of the next step.
    #[inline]
    fn powers_of_lanes(powers: &Powers) -> [__m512i; 4] {
        let of = |power| four(load_block(&powers[POWERS - power]));
        [of(16), of(12), of(8), of(4)]
    }

    /// Powers for the sixteen blocks of a step after which the lanes are added up.
    #[inline]
    fn powers_of_blocks(powers: &Powers) -> [__m512i; 4] {
        [from_power(powers, 16), from_power(powers, 12), from_power(powers, 8), from_power(powers, 4)]
    }

    /// The products of a step's blocks, the first of which go on with a hash.
    #[inline]
    fn sum(hash: __m512i, blocks: [__m512i; 4], powers: [__m512i; 4]) -> Sum {
        let mut sum = ghash::empty();
        ghash::add(&mut sum, _mm512_xor_si512(blocks[0], hash), powers[0]);
        for (blocks, powers) in blocks.into_iter().zip(powers).skip(1) {
            ghash::add(&mut sum, blocks, powers);
        }
        sum
    }

    /// The hash of the header.
    #[inline]
    fn of_header(powers: &Powers, header: &[u8]) -> __m512i {
        let mut hash = _mm512_setzero_si512();
        for part in header.chunks(64) {
            let mut sum = ghash::empty();
            let blocks = _mm512_xor_si512(reverse(load_part(part)), hash);
            ghash::add(&mut sum, blocks, from_power(powers, part.len().div_ceil(16)));
            hash = ghash::total(sum);
        }
        hash
    }
}

/// One text that is sealed or opened.
struct Pass<'a, const ROUNDS: usize> {
    powers: &'a Powers,
    keys: [__m512i; ROUNDS_256 + 1],
    /// Numbers of the next four blocks.
    counter: __m512i,
    /// GHASH of all blocks so far: the sum of its lanes.
    hash: __m512i,
    /// Encrypts the tag.
    of_tag: __m128i,
}

on_vectors! {
    /// Encrypts or decrypts a text; returns its tag.
    fn run<const ROUNDS: usize, const SEALS: bool>(
        key: &Key,
        nonce: &[u8; NONCE_LEN],
        header: &[u8],
        text: &mut [u8],
        tail: &[u8],
    ) -> [u8; TAG_LEN] {
        let len = text.len();
        assert!(u32::try_from(len).is_ok(), "a text of more than 2^32 bytes");
        let mut pass = Pass::<ROUNDS>::begin(key, nonce, header);
        // Steps read either from the text or from the tail.
        let own = len.checked_sub(tail.len()).expect("the text has room for the tail");
        let border = own.next_multiple_of(STEP).min(len);
        let (joined, tail) = tail.split_at(border - own);
        text[own..border].copy_from_slice(joined);
        let (steps, rest) = text.as_chunks_mut::<STEP>();
        let (sources, tail) = tail.as_chunks::<STEP>();
        pass.steps::<SEALS>(steps, sources);
        if !tail.is_empty() {
            rest.copy_from_slice(tail);
        }
        pass.end::<SEALS>(rest, _mm_set_epi64x(8 * header.len() as i64, 8 * len as i64))
    }
}

impl<'a, const ROUNDS: usize> Pass<'a, ROUNDS> {
    on_vectors! {
        #[inline]
        fn begin(key: &'a Key, nonce: &[u8; NONCE_LEN], header: &[u8]) -> Self {
            let mut keys = [_mm512_setzero_si512(); ROUNDS_256 + 1];
            for (vector, block) in keys.iter_mut().zip(&key.rounds).take(ROUNDS + 1) {
                *vector = four(load_block(block));
            }
            let mut block = [0; 16];
            block[..NONCE_LEN].copy_from_slice(nonce);
            // Block 1 encrypts the tag, the text begins with block 2 (NIST SP 800-38D §7.1).
            let before = reverse(four(load_block(&block)));
            let first = reverse(_mm512_add_epi32(before, four(_mm_set_epi32(0, 0, 0, 1))));
            let mut of_tag = _mm512_castsi512_si128(_mm512_xor_si512(first, keys[0]));
            for key in &keys[1..ROUNDS] {
                of_tag = _mm_aesenc_si128(of_tag, _mm512_castsi512_si128(*key));
            }
            of_tag = _mm_aesenclast_si128(of_tag, _mm512_castsi512_si128(keys[ROUNDS]));
            let numbers = _mm512_set_epi32(0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2);
            let counter = _mm512_add_epi32(before, numbers);
            Self { powers: &key.powers, keys, counter, hash: of_header(&key.powers, header), of_tag }
        }

        /// Whole steps. The last ones are read from `sources`.
        #[inline]
        fn steps<const SEALS: bool>(&mut self, steps: &mut [[u8; STEP]], sources: &[[u8; STEP]]) {
            let own = steps.len() - sources.len();
            let powers = powers_of_lanes(self.powers);
            // Blocks are hashed while the next ones are encrypted.
            let mut waiting = None;
            for (index, step) in steps.iter_mut().enumerate() {
                let source = index.checked_sub(own).map(|index| &sources[index]);
                let stream = key_stream::<ROUNDS>(&self.keys, &mut self.counter);
                if let Some(blocks) = waiting {
                    self.hash = ghash::reduced(sum(self.hash, blocks, powers));
                }
                let mut blocks = [_mm512_setzero_si512(); 4];
                let (vectors, _) = step.as_chunks_mut::<64>();
                for (at, (bytes, stream)) in vectors.iter_mut().zip(stream).enumerate() {
                    let part = |source: &[u8; STEP]| load(source[64 * at..].first_chunk().expect("a whole step"));
                    let input = source.map_or_else(|| load(bytes), part);
                    let output = _mm512_xor_si512(input, stream);
                    store(bytes, output);
                    blocks[at] = reverse(if SEALS { output } else { input });
                }
                waiting = Some(blocks);
            }
            if let Some(blocks) = waiting {
                self.hash = ghash::total(sum(self.hash, blocks, powers_of_blocks(self.powers)));
            }
        }

        /// The rest of a text, up to sixteen blocks, and the block of the lengths.
        #[inline]
        fn end<const SEALS: bool>(mut self, rest: &mut [u8], lengths: __m128i) -> [u8; TAG_LEN] {
            let mut power = rest.len().div_ceil(16) + 1;
            let mut sum = ghash::empty();
            if !rest.is_empty() {
                let stream = key_stream::<ROUNDS>(&self.keys, &mut self.counter);
                for (bytes, stream) in rest.chunks_mut(64).zip(stream) {
                    let input = load_part(bytes);
                    let output = _mm512_maskz_mov_epi8(mask(bytes.len()), _mm512_xor_si512(input, stream));
                    store_part(bytes, output);
                    let blocks = _mm512_xor_si512(reverse(if SEALS { output } else { input }), self.hash);
                    self.hash = _mm512_setzero_si512();
                    ghash::add(&mut sum, blocks, from_power(self.powers, power));
                    power = power.saturating_sub(4);
                }
            }
            let last = _mm512_xor_si512(_mm512_zextsi128_si512(lengths), self.hash);
            ghash::add(&mut sum, last, from_power(self.powers, 1));
            let hash = _mm512_castsi512_si128(reverse(ghash::total(sum)));
            let mut tag = [0; TAG_LEN];
            store_block(&mut tag, _mm_xor_si128(hash, self.of_tag));
            tag
        }
    }
}
