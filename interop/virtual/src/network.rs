//! The bad network of a seed: each direction drawn by itself.

use netem::{Duplicate, LinkConfig, Loss, Queue, Reorder};
use units::{Bitrate, DataSize, Duration, Probability, RandomStream, Seed};

use crate::plan::{below, chance};

/// Both directions of the path.
#[derive(Clone, Debug)]
pub struct Network {
    /// From client to server.
    pub up: LinkConfig,
    /// From server to client.
    pub down: LinkConfig,
}

impl Network {
    /// The network of a seed. One in ten is clean, so that a failure there points at the stacks alone.
    pub fn new(seed: &Seed) -> Self {
        let mut random = seed.stream("network");
        let clean = chance(&mut random, 10);
        let delay = Duration::from_micros(100 + below(&mut random, 120_000));
        let mtu = mtu(&mut random);
        let link = |purpose: &str| link(&mut seed.stream(purpose), delay, mtu, clean);
        Self { up: link("network up"), down: link("network down") }
    }

    /// Returns whether everything that is sent arrives once, in order and whole (unless larger than the MTU).
    pub fn is_clean(&self) -> bool {
        [&self.up, &self.down].iter().all(|link| {
            link.loss == Loss::None
                && link.corrupt == Probability::ZERO
                && link.duplicate.is_none()
                && link.reorder.is_none()
                && link.jitter.is_zero()
        })
    }
}

/// The largest IP packet, such that UDP payloads of 1200 to 1472 bytes pass.
fn mtu(random: &mut RandomStream) -> u32 {
    let payload = match below(random, 4) {
        0 => 1_200,
        1 => 1_472,
        _ => 1_200 + below(random, 273),
    };
    u32::try_from(payload).unwrap_or(1_200) + netem::IPV4_OVERHEAD
}

/// A probability in ten-thousandths.
fn share(ten_thousandths: u64) -> Probability {
    Probability::new(ten_thousandths as f64 / 10_000.0).unwrap_or(Probability::ZERO)
}

fn link(random: &mut RandomStream, delay: Duration, mtu: u32, clean: bool) -> LinkConfig {
    let rate = Bitrate::from_bps(1_000_000 << below(random, 7));
    // Half a round trip to four, and never less than a burst of ten packets.
    let bdp = rate.in_time(delay * 2).as_bytes().max(30_000);
    let bytes = DataSize::from_bytes(bdp / 2 + below(random, bdp * 4));
    let mut config = LinkConfig {
        rate: Some(rate),
        queue: Queue::DropTail { bytes },
        delay,
        mtu: Some(mtu),
        ..LinkConfig::default()
    };
    if clean {
        return config;
    }
    config.loss = match below(random, 5) {
        0 => Loss::None,
        1 | 2 => Loss::Iid { p: share(below(random, 2_001)) },
        // Bursts are counted in packets. Two ends that are down to a probe now and then walk through a burst so slowly,
        // each wait twice the last, that one of 16 packets outlasts any idle timeout: at a mean of 2.5 that is one burst
        // in 3,500, at a mean of 6 one in 18.
        _ => Loss::Burst { mean: share(1 + below(random, 2_000)), length: 1.0 + below(random, 16) as f64 / 10.0 },
    };
    if chance(random, 60) {
        config.jitter = Duration::from_micros(1 + below(random, 30_000));
        config.jitter_reorders = chance(random, 50);
    }
    if chance(random, 50) {
        let delay = Duration::from_micros(100 + below(random, 40_000));
        config.reorder = Some(Reorder { probability: share(below(random, 1_500)), delay });
    }
    if chance(random, 50) {
        let delay = Duration::from_micros(below(random, 50_000));
        config.duplicate = Some(Duplicate { probability: share(below(random, 1_000)), delay });
    }
    if chance(random, 50) {
        config.corrupt = share(below(random, 300));
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_makes_a_link() {
        for number in 0..2_000 {
            let network = Network::new(&Seed::from_number(number));
            network.up.check().unwrap();
            network.down.check().unwrap();
            assert!(network.up.loss.mean() <= 0.2001 && network.down.loss.mean() <= 0.2001);
        }
    }

    #[test]
    fn every_impairment_occurs_and_some_networks_are_clean() {
        let networks: Vec<_> = (0..300).map(|n| Network::new(&Seed::from_number(n))).collect();
        let some = |test: &dyn Fn(&LinkConfig) -> bool| networks.iter().filter(|n| test(&n.up)).count() > 20;
        assert!(some(&|l| matches!(l.loss, Loss::Burst { .. })));
        assert!(some(&|l| matches!(l.loss, Loss::Iid { .. })));
        assert!(some(&|l| l.reorder.is_some()));
        assert!(some(&|l| l.duplicate.is_some()));
        assert!(some(&|l| l.corrupt > Probability::ZERO));
        assert!(some(&|l| l.mtu == Some(1_228)));
        assert!(some(&|l| l.jitter_reorders));
        assert!(networks.iter().filter(|n| n.is_clean()).count() > 15);
    }
}
