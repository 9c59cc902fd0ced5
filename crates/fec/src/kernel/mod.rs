//! Sums of products over long strings of bytes, with the widest vector instructions of the processor.
//!
//! All kernels give the same bytes; [`Kernel::Table`] is the plain form against which the others are tested.

#[cfg(target_arch = "aarch64")]
mod neon;
mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

/// One summand: a string times a factor.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    /// The factor.
    pub coefficient: u8,
    /// The string; what a shorter one lacks counts as zeros.
    pub data: &'a [u8],
}

/// A string that goes into two sums, with a factor for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Twin<'a> {
    pub(crate) coefficients: [u8; 2],
    pub(crate) data: &'a [u8],
}

/// Implementation of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Byte by byte from a table.
    Table,
    /// 16 bytes at a time by shuffles (SSSE3).
    Ssse3,
    /// 32 bytes at a time by shuffles (AVX2).
    Avx2,
    /// 32 bytes at a time by matrices over bits (GFNI and AVX2).
    Gfni256,
    /// 64 bytes at a time by matrices over bits (GFNI and AVX-512).
    Gfni512,
    /// 16 bytes at a time by table look-ups in registers (NEON).
    Neon,
}

impl Kernel {
    /// All of them, from the plainest.
    pub const ALL: [Self; 6] = [Self::Table, Self::Ssse3, Self::Avx2, Self::Gfni256, Self::Gfni512, Self::Neon];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Ssse3 => "SSSE3",
            Self::Avx2 => "AVX2",
            Self::Gfni256 => "GFNI-256",
            Self::Gfni512 => "GFNI-512",
            Self::Neon => "NEON",
        }
    }

    /// Returns whether this processor supports it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Self::Table => true,
            Self::Ssse3 => is_x86_feature_detected!("ssse3"),
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Gfni256 => is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2"),
            Self::Gfni512 => {
                is_x86_feature_detected!("gfni")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
            }
            Self::Neon => false,
        };
        // NEON is part of every processor of this architecture.
        #[cfg(target_arch = "aarch64")]
        return matches!(self, Self::Table | Self::Neon);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return self == Self::Table;
    }

    /// The fastest that this processor can.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|kernel| kernel.is_available()).unwrap_or(Self::Table)
    }

    /// Adds the sum of products to `sum`; a longer string is cut at the end of `sum`.
    ///
    /// # Panics
    /// When the processor cannot do what the kernel needs.
    pub fn add_products(self, sum: &mut [u8], terms: &[Term<'_>]) {
        if terms.iter().all(|term| term.data.len() >= sum.len()) {
            self.add_full(sum, terms);
        } else {
            for term in terms {
                let len = term.data.len().min(sum.len());
                self.add_full(&mut sum[..len], &[*term]);
            }
        }
    }

    /// Adds to two sums of one length at once, so that each string is read once.
    pub(crate) fn add_twins(self, sums: [&mut [u8]; 2], terms: &[Twin<'_>]) {
        debug_assert_eq!(sums[0].len(), sums[1].len());
        #[cfg(target_arch = "x86_64")]
        if self == Self::Gfni512 && terms.iter().all(|term| term.data.len() >= sums[0].len()) {
            assert!(self.is_available(), "this processor has no {}", self.name());
            return x86::add_twins(sums, terms);
        }
        for (i, sum) in sums.into_iter().enumerate() {
            for term in terms {
                self.add_product(sum, term.coefficients[i], term.data);
            }
        }
    }

    /// Returns whether two sums at once are cheaper than one after the other.
    pub(crate) fn has_twins(self) -> bool {
        self == Self::Gfni512
    }

    /// Adds one product to `sum`.
    #[inline]
    pub fn add_product(self, sum: &mut [u8], coefficient: u8, data: &[u8]) {
        self.add_products(sum, &[Term { coefficient, data }]);
    }

    /// Multiplies a string.
    pub fn scale(self, data: &mut [u8], factor: u8) {
        // x + (factor + 1) x = factor x. Strings are scaled once for each loss; a copy is cheap enough.
        if factor != 1 {
            let copy = data.to_vec();
            self.add_product(data, factor ^ 1, &copy);
        }
    }

    fn add_all(self, sum: &mut [u8], terms: &[Term<'_>]) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Gfni256 | Self::Gfni512 => {
                assert!(self.is_available(), "this processor has no {}", self.name());
                x86::add_plain(self, sum, terms);
            }
            _ => add_plain(sum, terms),
        }
    }

    /// Every string is at least as long as the sum.
    fn add_full(self, sum: &mut [u8], terms: &[Term<'_>]) {
        if terms.iter().all(|term| term.coefficient == 1) {
            return self.add_all(sum, terms);
        }
        match self {
            Self::Table => table::add_products(sum, terms),
            #[cfg(target_arch = "x86_64")]
            _ => {
                assert!(self.is_available(), "this processor has no {}", self.name());
                x86::add_products(self, sum, terms);
            }
            #[cfg(target_arch = "aarch64")]
            _ => {
                assert!(self.is_available(), "this processor has no {}", self.name());
                neon::add_products(sum, terms);
            }
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            _ => panic!("this processor has no {}", self.name()),
        }
    }
}

/// Row 0 of the matrix is all ones: exclusive or, which compilers turn into vectors by themselves, as wide as they may.
#[inline(always)]
fn add_plain(sum: &mut [u8], terms: &[Term<'_>]) {
    const BLOCK: usize = 256;
    let whole = sum.len() / BLOCK * BLOCK;
    let (blocks, rest) = sum.split_at_mut(whole);
    for (at, block) in blocks.chunks_exact_mut(BLOCK).enumerate() {
        let mut lanes = [0u64; BLOCK / 8];
        for term in terms {
            let source = &term.data[at * BLOCK..(at + 1) * BLOCK];
            for (lane, bytes) in lanes.iter_mut().zip(source.as_chunks::<8>().0) {
                *lane ^= u64::from_ne_bytes(*bytes);
            }
        }
        for (lane, bytes) in lanes.iter().zip(block.as_chunks_mut::<8>().0) {
            *bytes = (u64::from_ne_bytes(*bytes) ^ lane).to_ne_bytes();
        }
    }
    for term in terms {
        for (sum, byte) in rest.iter_mut().zip(&term.data[whole..]) {
            *sum ^= byte;
        }
    }
}
