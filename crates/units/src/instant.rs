//! Instant: a point in time, independent of any clock.

use core::{
    fmt,
    ops::{Add, AddAssign, Sub},
    time::Duration,
};

/// Nanoseconds since an origin that the caller chooses (the start of a simulation, or of the process).
///
/// Unlike the standard library's instant it can be made from an integer, so virtual and real time are the same type.
/// Additions saturate: an instant that cannot be represented (584 years) behaves as "never".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than everything that happens.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `micros` microseconds after the origin.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// The instant `millis` milliseconds after the origin.
    #[inline]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin, for reports.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 ns")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time that has passed since `earlier`; zero when `earlier` is later.
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds that have passed since `earlier`; zero when `earlier` is later.
    #[inline]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The first multiple of `step`, counted from the origin, that is not earlier; the instant itself when `step` is zero.
    #[inline]
    #[must_use]
    pub fn round_up(self, step: Duration) -> Self {
        self.0.checked_next_multiple_of(nanos(step)).map_or(self, Self)
    }

    /// Instant moved back by `span`; never before the origin.
    #[inline]
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

/// A span as integer nanoseconds, saturating.
#[inline]
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Saturates at zero, as [`Instant::saturating_since`].
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_wraps() {
        let late = Instant::FAR_FUTURE + Duration::from_secs(1);
        assert_eq!(late, Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO - late, Duration::ZERO);
        assert_eq!(Instant::ZERO.saturating_sub(Duration::from_secs(1)), Instant::ZERO);
    }

    #[test]
    fn prints_as_seconds() {
        assert_eq!(format!("{:?}", Instant::from_micros(1_000_001)), "1.000001000s");
    }
}
