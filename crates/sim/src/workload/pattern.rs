//! Verifiable bytes: each depends on the seed and its offset, so a lost, repeated, moved or foreign byte is detected.

/// An endless sequence of bytes that can be read and checked at any offset, without keeping it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern(u64);

impl Pattern {
    /// The sequence for one stream: another `number` gives other bytes.
    pub const fn new(number: u64) -> Self {
        Self(mix(number ^ 0x7469_6465_7261_6365))
    }

    /// Writes the bytes from `offset` on.
    pub fn fill(&self, offset: u64, bytes: &mut [u8]) {
        self.each(offset, bytes.len(), |range, expected| bytes[range].copy_from_slice(expected));
    }

    /// Compares bytes that were received at `offset`; returns the offset of the first one that is wrong.
    pub fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), u64> {
        let mut wrong = None;
        self.each(offset, bytes.len(), |range, expected| {
            if wrong.is_none() && bytes[range.clone()] != *expected {
                let within = bytes[range.clone()].iter().zip(expected).position(|(got, right)| got != right);
                wrong = Some(offset + (range.start + within.unwrap_or(0)) as u64);
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    /// Calls `apply` for each word that lies within the `len` bytes from `offset` on: the place in them, and the bytes.
    fn each(&self, offset: u64, len: usize, mut apply: impl FnMut(core::ops::Range<usize>, &[u8])) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let word = mix(self.0.wrapping_add(at / 8)).to_le_bytes();
            let skip = usize::try_from(at % 8).unwrap_or(0);
            let take = (8 - skip).min(len - done);
            apply(done..done + take, &word[skip..skip + take]);
            done += take;
        }
    }
}

/// A bijection of 64-bit words under which neighbours look unrelated.
const fn mix(word: u64) -> u64 {
    let mut word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_part_is_part_of_the_whole(number: u64, from in 0usize..500, len in 0usize..500) {
            let pattern = Pattern::new(number);
            let mut whole = [0; 1000];
            pattern.fill(0, &mut whole);
            let mut part = vec![0; len];
            pattern.fill(from as u64, &mut part);
            prop_assert_eq!(&part[..], &whole[from..from + len]);
            prop_assert_eq!(pattern.check(from as u64, &part), Ok(()));
        }

        #[test]
        fn one_wrong_byte_is_found(number: u64, offset in 0u64..1_000_000, len in 1usize..500, at: usize, flip in 1u8..) {
            let pattern = Pattern::new(number);
            let mut bytes = vec![0; len];
            pattern.fill(offset, &mut bytes);
            bytes[at % len] ^= flip;
            prop_assert_eq!(pattern.check(offset, &bytes), Err(offset + (at % len) as u64));
        }
    }

    #[test]
    fn moved_bytes_and_other_streams_show() {
        let mut bytes = [0; 64];
        Pattern::new(1).fill(100, &mut bytes);
        assert!(Pattern::new(1).check(101, &bytes).is_err());
        assert!(Pattern::new(1).check(108, &bytes).is_err());
        assert!(Pattern::new(2).check(100, &bytes).is_err());
    }
}
