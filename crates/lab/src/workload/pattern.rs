//! Bytes sent by workloads: known at every offset, so that each received byte can be compared, and static, so that sending them copies
//! nothing.

use bytes::Bytes;

/// Length after which the pattern repeats. A prime, so that data which slipped by a power of two is noticed.
const PERIOD: usize = 65_521;

static PATTERN: [u8; PERIOD] = make();

const fn make() -> [u8; PERIOD] {
    let mut bytes = [0; PERIOD];
    let (mut state, mut i) = (0x2545_f491_4f6c_dd1d_u64, 0);
    while i < PERIOD {
        // Marsaglia's xorshift: no neighbourhood looks like another.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[i] = state.to_le_bytes()[3];
        i += 1;
    }
    bytes
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder is below PERIOD")]
const fn place(offset: u64) -> usize {
    (offset % PERIOD as u64) as usize
}

/// The bytes of a stream from `offset`, at most `len` of them and at least one unless `len` is zero.
pub fn pattern(offset: u64, len: u64) -> Bytes {
    let start = place(offset);
    let room = PERIOD - start;
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(room);
    Bytes::from_static(&PATTERN[start..start + len])
}

/// Number of bytes of `data`, received from `offset` of a stream, that are not what was sent.
pub fn mismatches(mut offset: u64, mut data: &[u8]) -> u64 {
    let mut wrong = 0;
    while !data.is_empty() {
        let expected = &PATTERN[place(offset)..];
        let (head, rest) = data.split_at(data.len().min(expected.len()));
        if head != &expected[..head.len()] {
            wrong += head.iter().zip(expected).filter(|(a, b)| a != b).count() as u64;
        }
        offset += head.len() as u64;
        data = rest;
    }
    wrong
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_sent_matches(offset in 0u64..1 << 40, len in 0u64..200_000) {
            let mut sent = Vec::new();
            while (sent.len() as u64) < len {
                sent.extend_from_slice(&pattern(offset + sent.len() as u64, len - sent.len() as u64));
            }
            prop_assert_eq!(sent.len() as u64, len);
            prop_assert_eq!(mismatches(offset, &sent), 0);
            if let Some(byte) = sent.last_mut() {
                *byte ^= 1;
                prop_assert_eq!(mismatches(offset, &sent), 1);
            }
        }

        #[test]
        fn a_slip_is_noticed(offset in 0u64..1 << 40, slip in 1u64..60_000) {
            prop_assert!(mismatches(offset + slip, &pattern(offset, 1_000)) > 900 || pattern(offset, 1_000).len() < 1_000);
        }
    }
}
