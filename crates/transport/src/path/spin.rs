//! Spin bit (RFC 9000 §17.4): lets observers of a path measure its RTT; disabled on a share of the paths.

use wire::Side;

/// RFC 9000 §17.4 MUST-1, MUST-3: at least one path in this number does not spin, so that paths without the spin bit do not stand out.
const SILENT_ONE_IN: u64 = 16;

/// Owns the spin bit of one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    /// The bit of the next packet; `None` when the path does not spin.
    value: Option<bool>,
}

impl Spin {
    /// The spin bit of a new path; `random` decides whether it spins, if it is `wanted` at all.
    // RFC 9000 §17.4: it begins with 0, and does so again with another connection ID.
    pub(crate) fn new(wanted: bool, random: u64) -> Self {
        Self { value: (wanted && !random.is_multiple_of(SILENT_ONE_IN)).then_some(false) }
    }

    /// Processes the bit of the packet with the highest number.
    // RFC 9000 §17.4: a server returns what it saw, a client the opposite.
    #[inline]
    pub(crate) fn on_packet(&mut self, side: Side, bit: bool) {
        if let Some(value) = &mut self.value {
            *value = bit != side.is_client();
        }
    }

    /// The bit for a packet. `random` is a bit for paths that do not spin.
    // RFC 9000 §17.4 MUST-4, RECOMMENDED-1: such a path has another random bit in each packet.
    #[inline]
    pub(crate) fn bit(self, random: bool) -> bool {
        self.value.unwrap_or(random)
    }
}

#[cfg(test)]
mod tests {
    use rand_core::RngCore;
    use units::Seed;

    use super::*;

    #[test]
    fn one_end_returns_the_bit_and_the_other_turns_it() {
        let (mut client, mut server) = (Spin::new(true, 1), Spin::new(true, 1));
        let mut seen = Vec::new();
        for _ in 0..4 {
            server.on_packet(Side::Server, client.bit(false));
            client.on_packet(Side::Client, server.bit(false));
            seen.push(client.bit(false));
        }
        assert_eq!(seen, [true, false, true, false]);
    }

    #[test]
    fn one_path_in_sixteen_is_silent() {
        let mut random = Seed::from_number(1).stream("spin");
        let silent = (0..16_000).filter(|_| Spin::new(true, random.next_u64()).value.is_none()).count();
        assert!((900..1_100).contains(&silent), "{silent}");
        let mut off = Spin::new(false, 1);
        off.on_packet(Side::Server, true);
        assert!(off.bit(true) && !off.bit(false));
    }
}
