//! Two flows packet by packet at one drop-tail queue: shares that follow from the laws of growth alone.
//!
//! A packet is sent as soon as the window has room (no pacing), waits behind those before it, and is acknowledged individually. A loss is
//! detected when the packet behind it would have been acknowledged.

use std::{cmp::Ordering, collections::BinaryHeap};

use crate::window::{Cubic, Law, NewReno};

/// A bottleneck: packets a second, seconds of round trip without a queue, packets that may wait.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Packets that leave it in a second.
    pub rate: f64,
    /// Seconds of a round trip through an empty queue.
    pub rtt: f64,
    /// Packets that may wait.
    pub queue: f64,
}

struct Flow {
    law: Box<dyn Law>,
    window: f64,
    in_flight: f64,
    slow_start: bool,
    /// Ends slow start when the queue grows (RFC 9406 §4.2), as CUBIC does here.
    careful: bool,
    /// Time of the last reaction to a loss.
    reaction: f64,
    delivered: u64,
}

/// Event that a sender learns of.
struct Event {
    at: f64,
    /// Orders events of the same time.
    number: u64,
    flow: usize,
    left: f64,
    lost: bool,
    /// Begins to send.
    start: bool,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest: [`BinaryHeap`] gives that one first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

/// Share of a `NewReno` flow beside a CUBIC one, between seconds `from` and `to`. `starts` are the seconds at which they begin.
pub fn of_newreno_beside_cubic(path: Bottleneck, starts: [f64; 2], from: f64, to: f64) -> f64 {
    let flow = |law: Box<dyn Law>, careful| Flow {
        law,
        window: 10.0,
        in_flight: 0.0,
        slow_start: true,
        careful,
        reaction: f64::NEG_INFINITY,
        delivered: 0,
    };
    let mut flows = [flow(Box::new(NewReno), false), flow(Box::new(Cubic::new(path.rtt)), true)];
    let mut events = BinaryHeap::new();
    let mut number = 0;
    for (flow, at) in starts.into_iter().enumerate() {
        number += 1;
        events.push(Event { at, number, flow, left: at, lost: false, start: true });
    }
    // When the link has sent what waits.
    let mut free = 0.0f64;
    while let Some(event) = events.pop() {
        let now = event.at;
        if now > to {
            break;
        }
        let flow = &mut flows[event.flow];
        if !event.start {
            flow.in_flight -= 1.0;
            learn(flow, &event, path.rtt);
            flow.delivered += u64::from(!event.lost && now > from);
        }
        while flow.in_flight + 1.0 <= flow.window {
            flow.in_flight += 1.0;
            number += 1;
            let waiting = (free - now).max(0.0) * path.rate;
            let lost = waiting >= path.queue + 1.0;
            let at = if lost {
                now + path.rtt + (waiting + 3.0) / path.rate
            } else {
                free = free.max(now) + 1.0 / path.rate;
                free + path.rtt
            };
            events.push(Event { at, number, flow: event.flow, left: now, lost, start: false });
        }
    }
    let [newreno, cubic] = flows.map(|flow| flow.delivered as f64);
    newreno / (newreno + cubic)
}

fn learn(flow: &mut Flow, event: &Event, rtt: f64) {
    let (now, measured) = (event.at, event.at - event.left);
    // What left before the last reaction says nothing about the window after it.
    if event.left <= flow.reaction {
        return;
    }
    if event.lost {
        flow.reaction = now;
        flow.slow_start = false;
        flow.law.fall(&mut flow.window, now);
        return;
    }
    if flow.slow_start {
        flow.window += 1.0;
        // RFC 9406 §4.2: an eighth of the least RTT, but 4 to 16 ms.
        if flow.careful && measured > rtt + (rtt / 8.0).clamp(0.004, 0.016) {
            flow.slow_start = false;
            flow.law.resume(flow.window);
        }
        return;
    }
    flow.law.measured(measured);
    flow.law.grow(&mut flow.window, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a deep queue both lose at every overflow: CUBIC regains its plateau W after K = (0.75 W)^(1/3) seconds, in which `NewReno`, from a half
    /// to its largest window, has grown by K / RTT packets.
    #[test]
    fn a_deep_queue_is_cubics() {
        let path = Bottleneck { rate: 2_000.0, rtt: 0.05, queue: 400.0 };
        let share = of_newreno_beside_cubic(path, [0.0, 1.0], 30.0, 120.0);
        assert!((0.1..0.3).contains(&share), "{share}");
        let shallow = of_newreno_beside_cubic(Bottleneck { queue: 50.0, ..path }, [0.0, 1.0], 30.0, 120.0);
        assert!(shallow > share + 0.1, "{shallow} {share}");
    }
}
