//! Content of streams: every byte is a function of the stream, the direction and the offset, so that a byte at
//! the wrong place, of the wrong stream or of the wrong direction is seen at once.

use crate::peer::Side;

/// The bytes one side sends on one stream.
#[derive(Clone, Copy, Debug)]
pub struct Pattern(u64);

/// A received byte that is not the one that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongByte {
    /// Offset in the stream.
    pub offset: u64,
    /// The byte that was sent there.
    pub expected: u8,
    /// The byte that was read there.
    pub got: u8,
}

impl Pattern {
    /// The pattern of what `sender` sends on the stream with the QUIC stream ID `id`.
    pub fn new(id: u64, sender: Side) -> Self {
        Self(scramble(id << 1 | u64::from(sender == Side::Server)))
    }

    /// The eight bytes that start at the multiple of eight `8 * word`.
    fn word(self, word: u64) -> [u8; 8] {
        scramble(self.0.wrapping_add(word)).to_le_bytes()
    }

    /// Calls `apply(index in the slice, byte)` for `len` bytes from `offset`; stops at the first `false`.
    fn walk(self, offset: u64, len: usize, mut apply: impl FnMut(usize, u8) -> bool) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let skip = usize::from(at.to_le_bytes()[0] & 7);
            for byte in self.word(at / 8).into_iter().skip(skip).take(len - done) {
                if !apply(done, byte) {
                    return;
                }
                done += 1;
            }
        }
    }

    /// Fills `out` with the bytes from `offset` on.
    pub fn fill(self, offset: u64, out: &mut [u8]) {
        self.walk(offset, out.len(), |index, byte| {
            out[index] = byte;
            true
        });
    }

    /// Compares all of `data`, read at `offset`.
    ///
    /// # Errors
    /// With the first byte that differs.
    pub fn check(self, offset: u64, data: &[u8]) -> Result<(), WrongByte> {
        let mut wrong = None;
        self.walk(offset, data.len(), |index, expected| {
            if data[index] == expected {
                return true;
            }
            wrong = Some(WrongByte { offset: offset + index as u64, expected, got: data[index] });
            false
        });
        wrong.map_or(Ok(()), Err)
    }
}

/// A bijection of 64-bit words in which each input bit reaches each output bit (the finalizer of SplitMix64).
fn scramble(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_agree_with_the_whole() {
        let pattern = Pattern::new(7, Side::Client);
        let mut whole = [0; 100];
        pattern.fill(0, &mut whole);
        for start in 0..60 {
            let mut piece = [0; 37];
            pattern.fill(start as u64, &mut piece);
            assert_eq!(piece, whole[start..start + 37]);
            assert_eq!(pattern.check(start as u64, &piece), Ok(()));
        }
    }

    #[test]
    fn sees_a_shift_another_stream_and_the_other_direction() {
        let mut data = [0; 64];
        Pattern::new(4, Side::Client).fill(0, &mut data);
        assert!(Pattern::new(4, Side::Client).check(1, &data).is_err());
        assert!(Pattern::new(0, Side::Client).check(0, &data).is_err());
        assert!(Pattern::new(4, Side::Server).check(0, &data).is_err());
        data[63] ^= 1;
        assert_eq!(Pattern::new(4, Side::Client).check(0, &data).unwrap_err().offset, 63);
    }
}
