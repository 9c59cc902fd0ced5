//! Packet numbers: their encoded length, and their recovery from truncated bytes (RFC 9000 §17.1, appendix A).

/// Number of bytes, 1 to 4, in which packet number `pn` has to be sent when the peer has acknowledged up to
/// `largest_acked`.
///
/// Four bytes serve for up to 2^31 packets without acknowledgement; a sender stops long before.
#[inline]
pub const fn packet_number_len(pn: u64, largest_acked: Option<u64>) -> usize {
    let unacked = match largest_acked {
        Some(acked) => pn.saturating_sub(acked),
        // RFC 9000 §17.1 MUST-1: before the first acknowledgement packet numbers are not truncated beyond recognition
        None => pn.saturating_add(1),
    };
    // RFC 9000 §17.1 MUST-2, SHOULD-1: the encoding has to span more than twice the distance to the largest
    // acknowledged packet.
    if unacked < 1 << 7 {
        1
    } else if unacked < 1 << 15 {
        2
    } else if unacked < 1 << 23 {
        3
    } else {
        4
    }
}

/// Packet number whose lowest `len` bytes (1 to 4) are `truncated` and that is closest to `expected`, the largest received one plus one.
#[inline]
pub const fn decode_packet_number(truncated: u64, len: usize, expected: u64) -> u64 {
    let window = 1u64 << (8 * if len < 4 { len } else { 4 });
    let mask = window - 1;
    let candidate = expected & !mask | truncated & mask;
    // RFC 9000 A.3: one window up or down when that is closer, as long as the result stays a packet number.
    if candidate.saturating_add(window / 2) <= expected && candidate < (1 << 62) - window {
        candidate + window
    } else if candidate > expected.saturating_add(window / 2) && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn examples_of_rfc_9000_a_2() {
        assert_eq!(packet_number_len(0xac_5c02, Some(0xab_e8b3)), 2);
        assert_eq!(packet_number_len(0xac_e8fe, Some(0xab_e8b3)), 3);
    }

    #[test]
    fn example_of_rfc_9000_a_3() {
        assert_eq!(decode_packet_number(0x9b32, 2, 0xa82f_30ea + 1), 0xa82f_9b32);
    }

    #[test]
    fn examples_of_rfc_9001_appendix_a() {
        assert_eq!(decode_packet_number(2, 4, 0), 2);
        assert_eq!(decode_packet_number(1, 2, 0), 1);
        // A.5: number 654360564 sent in three bytes.
        assert_eq!(decode_packet_number(0x00bff4, 3, 654_360_564), 654_360_564);
    }

    #[test]
    fn edges() {
        assert_eq!(packet_number_len(0, None), 1);
        assert_eq!(packet_number_len(127, None), 2);
        assert_eq!(packet_number_len(5, Some(9)), 1);
        assert_eq!(packet_number_len(u64::MAX, None), 4);
        // Nothing lies below the first window or above the last.
        assert_eq!(decode_packet_number(0xff, 1, 0), 0xff);
        assert_eq!(decode_packet_number(0, 1, (1 << 62) - 1), (1 << 62) - 256);
    }

    proptest! {
        // RFC 9000 §17.1 MUST-1, MUST-2, SHOULD-1
        #[test]
        fn what_the_length_promises_is_decoded(
            acked in 0..1u64 << 61,
            ahead in 1..1u64 << 31,
            shift in 0..31u32,
            seen in 0..=1000u64,
        ) {
            let ahead = (ahead >> shift).max(1);
            let pn = acked + ahead;
            let len = packet_number_len(pn, Some(acked));
            // The peer has received at least what it acknowledged, and at most everything sent.
            let expected = acked + 1 + ahead * seen / 1000;
            prop_assert_eq!(decode_packet_number(pn & ((1 << (8 * len)) - 1), len, expected), pn);
        }

        #[test]
        fn the_closest_number_wins(truncated: u32, len in 1..=4usize, expected in 0..1u64 << 62) {
            let window = 1u64 << (8 * len);
            let truncated = u64::from(truncated) & (window - 1);
            let pn = decode_packet_number(truncated, len, expected);
            prop_assert!(pn < 1 << 62);
            prop_assert_eq!(pn & (window - 1), truncated);
            for other in [pn.checked_sub(window), pn.checked_add(window).filter(|&n| n < 1 << 62)].into_iter().flatten() {
                prop_assert!(pn.abs_diff(expected) <= other.abs_diff(expected));
            }
        }

        #[test]
        fn no_input_panics(truncated: u64, len: usize, expected: u64) {
            decode_packet_number(truncated, len, expected);
        }
    }
}
