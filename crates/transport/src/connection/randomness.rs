//! Randomness of a connection: its random stream, its seed, skipped packet numbers, and greased header bits (RFC 9287, RFC 9000 §17.4),
//! which are random so that no implementation depends on them.

use rand_core::RngCore;
use units::{RandomStream, Seed};

use crate::path::Spin;

/// Owns what a connection draws at random.
pub(super) struct Randomness {
    pub(super) stream: RandomStream,
    /// Seed of parts with a separate random stream: paths, congestion controllers.
    seed: Seed,
    skip: Skip,
    bits: RandomBits,
    /// Number of changes of congestion control: the seed of the next controller.
    controllers: u64,
}

impl Randomness {
    pub(super) fn new(stream: RandomStream, seed: Seed) -> Self {
        Self { stream, seed, skip: Skip::new(), bits: RandomBits::default(), controllers: 0 }
    }

    /// Returns whether packet number `pn` of application data is to be left out.
    #[inline]
    pub(super) fn skips(&mut self, pn: u64) -> bool {
        self.skip.due(pn, &mut self.stream)
    }

    /// Lets the fixed bit be cleared, which the peer accepts.
    pub(super) fn set_grease(&mut self, grease: bool) {
        self.bits.grease = grease;
    }

    /// The seed of the path that is opened as number `opened`.
    pub(super) fn path_seed(&self, opened: u64) -> Seed {
        self.seed.child("path", opened)
    }

    /// Data of a path challenge.
    // RFC 9000 §8.2.1 MUST-1: unpredictable, and other data each time.
    pub(super) fn challenge_data(&mut self) -> [u8; 8] {
        self.stream.next_u64().to_be_bytes()
    }

    /// The seeds of congestion controllers that are changed together, by the place of their path.
    pub(super) fn controller_seeds(&mut self) -> impl Fn(usize) -> Seed + use<'_> {
        let change = self.controllers;
        self.controllers += 1;
        move |path| self.seed.child("controller", change << 8 | path as u64)
    }

    /// The first byte of a packet with a short header, with the bit of `spin` and its fixed bit.
    // RFC 9287 §3.1 SHOULD-1, MUST-1, MUST NOT-1, MUST NOT-2, MUST NOT-3: for a peer that permits it the fixed bit is
    // unpredictable.
    #[inline]
    pub(super) fn short_first_byte(&mut self, spin: Spin, first: u8) -> u8 {
        let noise = self.draw_bit();
        let spin = u8::from(spin.bit(noise)) * wire::bits::SPIN;
        let cleared = self.bits.grease && self.draw_bit();
        (first | spin) & !(u8::from(cleared) * wire::bits::FIXED)
    }

    #[inline]
    fn draw_bit(&mut self) -> bool {
        self.bits.draw(&mut self.stream)
    }
}

/// Packet numbers that are left out now and then (RFC 9000 §21.4): a peer that acknowledges one has not seen what it
/// acknowledges. The gaps grow, as there is ever less to gain.
struct Skip {
    next: u64,
    gap: u64,
}

impl Skip {
    /// Packets before the first gap, at least.
    const FIRST: u64 = 64;
    const LONGEST: u64 = 1 << 16;

    fn new() -> Self {
        Self { next: 0, gap: Self::FIRST }
    }

    /// Returns whether `pn` is to be left out.
    #[inline]
    fn due(&mut self, pn: u64, random: &mut RandomStream) -> bool {
        if pn < self.next {
            return false;
        }
        let first = self.next == 0;
        self.next = pn + self.gap + random.next_u64() % self.gap;
        self.gap = (self.gap * 2).min(Self::LONGEST);
        !first
    }
}

/// Random bits, drawn 64 at a time.
#[derive(Debug, Default)]
struct RandomBits {
    bits: u64,
    left: u8,
    /// The peer accepts packets whose fixed bit is 0.
    grease: bool,
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
