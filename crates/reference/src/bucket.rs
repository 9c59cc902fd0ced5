//! Token bucket as the generic cell rate algorithm (ITU-T I.371, virtual scheduling): no tokens, but the time at which the next packet
//! would be due.

/// Conformance of each packet, (arrival in nanoseconds, bytes), to a rate of one byte per `nanos_per_byte` and a burst of `burst`
/// bytes.
pub fn conforming(packets: &[(u64, u64)], nanos_per_byte: u64, burst: u64) -> Vec<bool> {
    let tolerance = burst * nanos_per_byte;
    // When the bucket would be full again.
    let mut due = 0;
    packets
        .iter()
        .map(|&(arrival, bytes)| {
            let next = due.max(arrival) + bytes * nanos_per_byte;
            let conforms = next - arrival <= tolerance;
            if conforms {
                due = next;
            }
            conforms
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        // A byte per nanosecond, a burst of 30: three of ten at once, then one each ten.
        let at_once = conforming(&[(0, 10), (0, 10), (0, 10), (0, 10), (9, 10), (10, 10)], 1, 30);
        assert_eq!(at_once, [true, true, true, false, false, true]);
    }
}
