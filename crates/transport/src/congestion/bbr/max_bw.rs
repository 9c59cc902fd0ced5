//! Bandwidth of the path: the largest delivery rate of this and the last cycle of probing (draft "BBR.max_bw: Estimated Maximum
//! Bandwidth").

/// Owns the filter. Rates are bits per second.
#[derive(Clone, Debug, Default)]
pub(super) struct MaxBandwidth {
    previous: u64,
    current: u64,
}

impl MaxBandwidth {
    /// Adds a sample. A sample of an application-limited sender counts only if it is larger than the estimate: it is a lower bound.
    #[inline]
    pub(super) fn update(&mut self, rate: u64, app_limited: bool) {
        if rate > 0 && (!app_limited || rate >= self.get()) {
            self.current = self.current.max(rate);
        }
    }

    /// A cycle of probing has ended: the one before the last is forgotten.
    pub(super) fn advance(&mut self) {
        // Without a sample in the cycle there is nothing to replace what is known.
        if self.current > 0 {
            self.previous = self.current;
            self.current = 0;
        }
    }

    /// The estimate; 0 before the first sample.
    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.previous.max(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_two_cycles() {
        let mut bandwidth = MaxBandwidth::default();
        bandwidth.update(100, true);
        bandwidth.update(50, true);
        assert_eq!(bandwidth.get(), 100);
        bandwidth.advance();
        bandwidth.update(60, false);
        assert_eq!(bandwidth.get(), 100);
        bandwidth.advance();
        assert_eq!(bandwidth.get(), 60);
        // Nothing was measured: what is known stays.
        bandwidth.advance();
        bandwidth.advance();
        assert_eq!(bandwidth.get(), 60);
        bandwidth.update(40, true);
        assert_eq!(bandwidth.get(), 60, "an application-limited sample lowers nothing");
    }
}
