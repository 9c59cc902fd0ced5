//! Requirements of the application for the protection of its data.

use units::{Duration, Probability};

/// Protection of data by repair symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protection {
    /// As the connection's policy has it.
    #[default]
    Policy,
    /// No protection: what is lost is sent again, or not at all where it is a datagram.
    Never,
}

/// A flow of datagrams: what each of them is worth. Given with every datagram, so that a connection need not remember flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatagramFlow {
    /// Choice of protection.
    pub protection: Protection,
    /// Share of its datagrams that may stay lost. It is not protected while the path loses less. The policy `auto` uses no stronger code
    /// than this share needs.
    pub tolerated_loss: Probability,
    /// After this time a datagram is worthless: it is neither sent nor repaired any more. `None`: never.
    pub expiry: Option<Duration>,
}

impl Default for DatagramFlow {
    /// Protected as the connection's policy has it, and never worthless.
    fn default() -> Self {
        Self { protection: Protection::Policy, tolerated_loss: Probability::ZERO, expiry: None }
    }
}

impl DatagramFlow {
    /// Share that may stay lost, protection included.
    pub(crate) fn tolerance(&self) -> Tolerance {
        match self.protection {
            Protection::Never => Tolerance::ALL,
            Protection::Policy => Tolerance((self.tolerated_loss.get() * 1e6).round() as u32),
        }
    }
}

/// A share of packets that may stay lost, in millionths: what sorts what a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tolerance(u32);

impl Tolerance {
    /// No loss is tolerated: streams.
    pub(crate) const NONE: Self = Self(0);
    /// No protection: all may be lost.
    pub(crate) const ALL: Self = Self(u32::MAX);

    /// The share, 0 to 1; more where everything may stay lost.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

impl From<Protection> for Tolerance {
    fn from(protection: Protection) -> Self {
        match protection {
            Protection::Policy => Self::NONE,
            Protection::Never => Self::ALL,
        }
    }
}
