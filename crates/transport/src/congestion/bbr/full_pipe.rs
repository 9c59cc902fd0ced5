//! Detection of the bandwidth plateau, above which a higher rate delivers no more (draft "Exiting Acceleration Based on Bandwidth
//! Plateau").

/// Rounds without growth that prove a plateau.
const ROUNDS: u32 = 3;

/// Owner of the search for the plateau.
#[derive(Clone, Debug, Default)]
pub(super) struct FullPipe {
    /// The rate that has to be exceeded by a quarter, in bits per second.
    baseline: u64,
    count: u32,
    /// A plateau was found since the search began.
    now: bool,
    /// A plateau was found at any time.
    reached: bool,
}

impl FullPipe {
    /// Begins the search anew, from `baseline`.
    pub(super) fn restart(&mut self, baseline: u64) {
        self.baseline = baseline;
        self.count = 0;
        self.now = false;
    }

    /// Takes in the sample with which a round begins. `rate` 0 is no sample.
    pub(super) fn on_round(&mut self, rate: u64, app_limited: bool) {
        // A sender without data shows nothing about the path.
        if self.now || app_limited || rate == 0 {
            return;
        }
        if rate >= self.baseline + self.baseline / 4 {
            self.restart(rate);
            return;
        }
        self.count += 1;
        if self.count >= ROUNDS {
            self.now = true;
            self.reached = true;
        }
    }

    /// Notes that the pipe is full, because of losses.
    pub(super) fn set_full(&mut self) {
        self.now = true;
        self.reached = true;
    }

    /// Takes the finding back: Startup continues.
    pub(super) fn unreach(&mut self) {
        self.reached = false;
    }

    #[inline]
    pub(super) fn is_full_now(&self) -> bool {
        self.now
    }

    #[inline]
    pub(super) fn is_reached(&self) -> bool {
        self.reached
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_rounds_without_growth() {
        let mut pipe = FullPipe::default();
        for rate in [100, 200, 400, 440] {
            pipe.on_round(rate, false);
        }
        assert_eq!((pipe.count(), pipe.is_full_now()), (1, false));
        pipe.on_round(450, true);
        assert_eq!(pipe.count(), 1, "a sender without data proves nothing");
        pipe.on_round(460, false);
        pipe.on_round(470, false);
        assert!(pipe.is_full_now() && pipe.is_reached());
        pipe.restart(0);
        assert!(!pipe.is_full_now() && pipe.is_reached());
    }

    #[test]
    fn growth_begins_the_count_anew() {
        let mut pipe = FullPipe::default();
        for rate in [100, 110, 120, 150, 160, 170, 200, 210] {
            pipe.on_round(rate, false);
        }
        assert!(!pipe.is_reached());
    }
}
