//! Fluid model of flows with a target queueing delay: windows and one queue, without packets, losses and states.
//!
//! Flow `i` has window `w`, propagation delay `p` and rate `w / (p + q)` through a queue with delay `q`, which the sum of all
//! rates determines. Once per round trip the window moves half of the way to `w * (p + t) / (p + q)`, where the target `t` falls
//! with the fourth root of the flow's own rate. In equilibrium, `q = t` for all flows, so all rates are equal.

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Bytes in flight.
    pub window: f64,
    /// Seconds of a round trip through an empty queue.
    pub propagation: f64,
}

/// Bytes of a packet.
const PACKET: f64 = 1_452.0;
/// Seconds of a step.
const STEP: f64 = 0.001;

/// Target delay in seconds of a flow with this rate in bytes per second: 3 ms at 1,667 packets per second, from 1 to 6 ms.
pub fn target(rate: f64) -> f64 {
    (0.003 * (1_667.0 * PACKET / rate).powf(0.25)).clamp(0.001, 0.006)
}

/// Queueing delay in seconds at a link with this rate in bytes per second.
pub fn wait(capacity: f64, flows: &[Flow]) -> f64 {
    let load = |wait: f64| flows.iter().map(|flow| flow.window / (flow.propagation + wait)).sum::<f64>();
    if load(0.0) <= capacity {
        return 0.0;
    }
    // No window is served in less time than all bytes take.
    let (mut low, mut high) = (0.0, flows.iter().map(|flow| flow.window).sum::<f64>() / capacity);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if load(middle) > capacity { low = middle } else { high = middle }
    }
    high
}

/// Advances the model by a number of seconds. Returns the final queueing delay.
pub fn settle(capacity: f64, flows: &mut [Flow], seconds: f64) -> f64 {
    let mut clocks: Vec<f64> = flows.iter().map(|flow| flow.propagation).collect();
    // Growth of each flow for a second: it is spread over the round trip.
    let mut growth = vec![0.0; flows.len()];
    let mut now = 0.0;
    while now < seconds {
        now += STEP;
        let wait = wait(capacity, flows);
        for (index, flow) in flows.iter_mut().enumerate() {
            flow.window += growth[index] * STEP;
            if now < clocks[index] {
                continue;
            }
            let rtt = flow.propagation + wait;
            clocks[index] = now + rtt;
            let aim = flow.window * (flow.propagation + target(flow.window / rtt)) / rtt;
            let step = (aim - flow.window) / 2.0;
            growth[index] = if step > 0.0 { step / rtt } else { 0.0 };
            flow.window += step.min(0.0);
        }
    }
    wait(capacity, flows)
}

/// Rate of each flow in bytes per second at a queueing delay.
pub fn rates(flows: &[Flow], wait: f64) -> Vec<f64> {
    flows.iter().map(|flow| flow.window / (flow.propagation + wait)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 Mbit/s.
    const CAPACITY: f64 = 5e6;

    fn spread(rates: &[f64]) -> f64 {
        let (low, high) =
            rates.iter().fold((f64::INFINITY, 0.0f64), |(low, high), &rate| (low.min(rate), high.max(rate)));
        high / low
    }

    #[test]
    fn rates_become_equal_from_any_start_whatever_the_round_trips() {
        for windows in [[10.0, 10.0, 10.0, 10.0], [400.0, 4.0, 4.0, 4.0], [4.0, 4.0, 4.0, 400.0]] {
            let mut flows: Vec<Flow> = [0.025, 0.050, 0.075, 0.100]
                .into_iter()
                .zip(windows)
                .map(|(propagation, packets)| Flow { window: packets * PACKET, propagation })
                .collect();
            let wait = settle(CAPACITY, &mut flows, 120.0);
            let rates = rates(&flows, wait);
            assert!(spread(&rates) < 1.05, "{windows:?}: {rates:?}");
            let expected = target(CAPACITY / 4.0);
            assert!((wait / expected - 1.0).abs() < 0.05, "{wait} {expected}");
        }
    }

    #[test]
    fn the_delay_grows_with_the_fourth_root_of_the_number() {
        let wait_of = |count: u32| {
            let mut flows = vec![Flow { window: 20.0 * PACKET, propagation: 0.05 }; count as usize];
            settle(50e6, &mut flows, 60.0)
        };
        let ratio = wait_of(16) / wait_of(1);
        assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
    }

    #[test]
    fn at_a_bound_of_the_target_nothing_moves_unequal_flows() {
        // Below 104 packets a second every flow aims at 6 ms.
        let slow = |packets: f64| Flow { window: packets * PACKET, propagation: 0.05 };
        let mut flows = [slow(4.0), slow(2.0)];
        let wait = settle(140.0 * PACKET, &mut flows, 120.0);
        let rates = rates(&flows, wait);
        assert!(spread(&rates) > 1.8, "{rates:?}");
    }
}
