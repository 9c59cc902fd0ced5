//! Bits of packet headers that say nothing: drawn so that nobody comes to depend on them (RFC 9287, RFC 9000 §17.4).

use rand_core::RngCore;
use units::RandomStream;

use super::Connection;

/// Random bits, drawn 64 at a time.
#[derive(Debug, Default)]
pub(super) struct RandomBits {
    bits: u64,
    left: u8,
    /// The peer accepts packets whose fixed bit is 0.
    pub(super) grease: bool,
}

impl RandomBits {
    #[inline]
    fn draw(&mut self, random: &mut RandomStream) -> bool {
        if self.left == 0 {
            self.bits = random.next_u64();
            self.left = 64;
        }
        self.left -= 1;
        self.bits >> self.left & 1 != 0
    }
}

impl Connection {
    /// The first byte of a packet with a short header on the path in use, with its spin bit and its fixed bit.
    // RFC 9287 §3.1 SHOULD-1, MUST-1, MUST NOT-1, MUST NOT-2, MUST NOT-3: for a peer that permits it the fixed bit is
    // unpredictable.
    #[inline]
    pub(super) fn short_first_byte(&mut self, first: u8) -> u8 {
        let noise = self.random_bits.draw(&mut self.random);
        let spin = u8::from(self.paths[self.active].spin.bit(noise)) * wire::bits::SPIN;
        let cleared = self.random_bits.grease && self.random_bits.draw(&mut self.random);
        (first | spin) & !(u8::from(cleared) * wire::bits::FIXED)
    }
}
