//! One server, first in first out: the recursion of Lindley (1952), in whole nanoseconds.

use std::collections::VecDeque;

/// The stay of a packet that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Time that it waits until its first bit is sent, in nanoseconds.
    pub wait: u64,
    /// Time at which its last bit has been sent.
    pub leaves: u64,
}

/// Packets as (arrival in nanoseconds, bytes), in the order of time, through a server that takes `nanos_per_byte`; a packet that would
/// make more than `room` bytes wait is dropped, unless the server is idle. `None` for a packet that was dropped.
pub fn lindley(packets: &[(u64, u64)], nanos_per_byte: u64, room: u64) -> Vec<Option<Stay>> {
    let mut free_at = 0;
    // Begin of sending, bytes.
    let mut waiting: VecDeque<(u64, u64)> = VecDeque::new();
    packets
        .iter()
        .map(|&(arrival, bytes)| {
            while waiting.front().is_some_and(|(begin, _)| *begin <= arrival) {
                waiting.pop_front();
            }
            let backlog: u64 = waiting.iter().map(|(_, bytes)| bytes).sum();
            if free_at > arrival && backlog + bytes > room {
                return None;
            }
            let begin = free_at.max(arrival);
            free_at = begin + bytes * nanos_per_byte;
            waiting.push_back((begin, bytes));
            Some(Stay { wait: begin - arrival, leaves: free_at })
        })
        .collect()
}

/// Mean wait of M/D/1 in units of the service time: load / (2 (1 - load)) (Pollaczek 1930, Khinchine 1932).
pub fn mean_wait_md1(load: f64) -> f64 {
    load / (2.0 * (1.0 - load))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Draws;

    #[test]
    fn the_recursion_meets_the_formula() {
        let mut draws = Draws::new(1);
        let mut now = 0.0;
        let packets: Vec<(u64, u64)> = (0..400_000)
            .map(|_| {
                now -= draws.unit().ln() * 1000.0 / 0.6;
                (now as u64, 1)
            })
            .collect();
        let waits: Vec<u64> = lindley(&packets, 1000, u64::MAX).into_iter().map(|stay| stay.unwrap().wait).collect();
        let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64 / 1000.0;
        assert!((mean / mean_wait_md1(0.6) - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn room_counts_what_waits() {
        let stays = lindley(&[(0, 10), (0, 10), (0, 10), (0, 10), (150, 10)], 10, 20);
        let waits: Vec<Option<u64>> = stays.iter().map(|stay| stay.map(|stay| stay.wait)).collect();
        assert_eq!(waits, [Some(0), Some(100), Some(200), None, Some(150)]);
    }
}
