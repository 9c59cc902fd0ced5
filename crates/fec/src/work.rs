//! Cost of decoding, counted in operations, and its limit.
//!
//! A repair symbol of one byte may combine 192 symbols, and each stored equation may have as many terms. So a sender decides how much a
//! packet costs its receiver. To bound this, the bytes of arriving symbols add to a budget, from which decoding is paid. Repair symbols of
//! a conforming sender are as long as the symbols that they repair, and pay for nearly all of their cost.

/// Work of one term of an equation, where a byte that is multiplied and added is 1.
pub(crate) const TERM: usize = 32;
/// A source symbol earns as if it had this many bytes at least: as many as its packet.
const LEAST: usize = 64;

/// Limit on work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLimit {
    /// Work that each byte of a symbol earns.
    pub per_byte: u64,
    /// Work that can be saved up, which is also there at the beginning.
    pub most: u64,
}

/// Budget of decoding work: work done, and work left where there is a limit.
#[derive(Debug, Default)]
pub(crate) struct Work {
    spent: u64,
    limit: Option<WorkLimit>,
    /// Negative after work that turned out to cost more than was left: it is never stopped half-way.
    left: i64,
}

impl Work {
    pub(crate) fn limited(limit: WorkLimit) -> Self {
        Self { spent: 0, limit: Some(limit), left: i64::try_from(limit.most).unwrap_or(i64::MAX) }
    }

    /// Work done since the beginning.
    #[inline]
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    #[inline]
    pub(crate) fn spend(&mut self, work: usize) {
        self.spent += work as u64;
        if self.limit.is_some() {
            self.left = self.left.saturating_sub_unsigned(work as u64);
        }
    }

    /// Credits the budget for a repair symbol of this many bytes.
    #[inline]
    pub(crate) fn earn(&mut self, bytes: usize) {
        if let Some(WorkLimit { per_byte, most }) = self.limit {
            let earned = per_byte.saturating_mul(bytes as u64);
            self.left = self.left.saturating_add_unsigned(earned).min(i64::try_from(most).unwrap_or(i64::MAX));
        }
    }

    /// Credits the budget for a source symbol of this many bytes.
    #[inline]
    pub(crate) fn earn_source(&mut self, bytes: usize) {
        self.earn(bytes.max(LEAST));
    }

    /// Returns whether more work may begin.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.limit.is_none() || self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_was_earned() {
        let mut work = Work::limited(WorkLimit { per_byte: 10, most: 1_000 });
        assert!(work.is_left());
        work.spend(5_000);
        assert!(!work.is_left(), "what began was done");
        work.earn(399);
        assert!(!work.is_left());
        work.earn(2);
        assert!(work.is_left());
        work.earn(1 << 40);
        work.spend(1_000);
        assert!(!work.is_left(), "no more is saved up than the limit says");
        work.earn_source(1);
        assert!(work.is_left());
        assert_eq!(work.spent(), 6_000);
    }

    #[test]
    fn without_a_limit_work_is_only_counted() {
        let mut work = Work::default();
        work.spend(1 << 40);
        assert!(work.is_left());
        assert_eq!(work.spent(), 1 << 40);
    }
}
