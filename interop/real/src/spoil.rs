//! Loss and damage of many packets, with a limit on the number in a row, as the interop runner has it (`burst_to_server=3`).
//!
//! Without the limit a case fails by chance: eight lost answers to probes, each twice as late as the one before, are the idle timeout of
//! 30 s, and with 30 % of losses that came in one of some sixty runs of a case, whatever the stacks.

use rand_core::RngCore;
use units::{RandomStream, Seed};

/// Treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// Loss: it does not arrive.
    Drop,
    /// Damage: up to three of its bits are flipped.
    Damage,
}

/// Share of packets that are spoiled, in percent.
const SHARE: u64 = 30;
/// Most packets in a row.
const BURST: u32 = 3;

/// Decides about the packets of one direction.
#[derive(Debug)]
pub struct Spoiler {
    how: Spoil,
    draws: RandomStream,
    in_a_row: u32,
}

impl Spoiler {
    /// Begins with a direction: 0 or 1.
    pub fn new(how: Spoil, direction: u64) -> Self {
        let draws = Seed::from_number(1).child("spoil", direction).stream("packets");
        Self { how, draws, in_a_row: 0 }
    }

    /// Decides about the next packet, and damages it. `None`: it passes as it is.
    pub fn treat(&mut self, packet: &mut [u8]) -> Option<Spoil> {
        // The same number of draws for every packet.
        let (decision, places) = (self.draws.next_u64() % 100, self.draws.next_u64());
        if decision >= SHARE || self.in_a_row == BURST {
            self.in_a_row = 0;
            return None;
        }
        self.in_a_row += 1;
        if self.how == Spoil::Damage && !packet.is_empty() {
            let bits = packet.len() * 8;
            for part in [places & 0xffff, places >> 16 & 0xffff, places >> 32 & 0xffff] {
                let bit = usize::try_from(part).unwrap_or(0) % bits;
                packet[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Some(self.how)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_spoiled_and_never_more_than_three_in_a_row() {
        let mut spoiler = Spoiler::new(Spoil::Damage, 0);
        let (mut spoiled, mut row, mut longest) = (0, 0, 0);
        for _ in 0..20_000 {
            let mut packet = [0; 100];
            match spoiler.treat(&mut packet) {
                Some(_) => (spoiled, row) = (spoiled + 1, row + 1),
                None => {
                    assert_eq!(packet, [0; 100]);
                    row = 0;
                }
            }
            longest = longest.max(row);
        }
        assert_eq!(longest, 3);
        // 30 % less the packets that pass after three: 29.2 %.
        assert!((5_700..6_000).contains(&spoiled), "{spoiled}");
    }

    #[test]
    fn damage_changes_bits_and_loss_does_not() {
        let spoiled = |how| {
            let mut spoiler = Spoiler::new(how, 1);
            let mut packet = [0; 100];
            while spoiler.treat(&mut packet).is_none() {}
            packet.iter().map(|byte: &u8| byte.count_ones()).sum::<u32>()
        };
        assert!((1..=3).contains(&spoiled(Spoil::Damage)));
        assert_eq!(spoiled(Spoil::Drop), 0);
    }
}
