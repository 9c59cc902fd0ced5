//! Signs: what a cause shows in one round, counted over the rounds.

use super::{Cause, Confidence, Figure, Verdict};
use crate::why::evidence::{Evidence, Exchange, QuicFacts, Transport};

/// Median of some values.
pub(in crate::why) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut ascending: Vec<f64> = values.collect();
    ascending.sort_by(f64::total_cmp);
    lab::stats::quantile::median(&ascending)
}

/// One number over another; `None` where there is nothing.
#[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 packets and bytes")]
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A count as a figure.
#[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 packets and bytes")]
pub(super) fn count(number: u64) -> Option<f64> {
    Some(number as f64)
}

/// A share in percent.
pub(super) fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| share * 100.0)
}

/// Returns whether a value was measured, and is no less than a limit.
pub(super) fn reaches(value: Option<f64>, limit: f64) -> bool {
    value.is_some_and(|value| value >= limit)
}

/// A rule: the sign in one round.
pub(super) struct Sign<'a> {
    pub(super) cause: Cause,
    pub(super) shows: Box<dyn Fn(&Exchange) -> bool + 'a>,
    pub(super) figures: Vec<Named<'a>>,
}

/// A figure of one round.
pub(super) struct Named<'a> {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) of: Measure<'a>,
}

/// Value of one round.
type Measure<'a> = Box<dyn Fn(&Exchange) -> Option<f64> + 'a>;

/// Makes a figure.
pub(super) fn figure<'a>(
    name: &'static str,
    unit: &'static str,
    of: impl Fn(&Exchange) -> Option<f64> + 'a,
) -> Named<'a> {
    Named { name, unit, of: Box::new(of) }
}

/// Makes a figure of QUIC.
pub(super) fn quic<'a>(
    name: &'static str,
    unit: &'static str,
    of: impl Fn(&QuicFacts) -> Option<f64> + 'a,
) -> Named<'a> {
    figure(name, unit, move |exchange| of(exchange.quic.as_ref()?))
}

/// Returns whether an exchange over QUIC shows something.
pub(super) fn of_quic(exchange: &Exchange, is: impl Fn(&QuicFacts) -> bool) -> bool {
    exchange.quic.as_ref().is_some_and(is)
}

impl Sign<'_> {
    /// Verdict of the rounds; `None` where too few of them show the sign.
    pub(super) fn judge(&self, evidence: &Evidence, transport: Transport) -> Option<Verdict> {
        let judged = || evidence.of(transport).filter(|exchange| exchange.is_comparable());
        let rounds = judged().count();
        let shown = judged().filter(|exchange| (self.shows)(exchange)).count();
        let confidence = Confidence::of(shown, rounds)?;
        let value = |named: &Named<'_>| {
            let value = median(judged().filter_map(|exchange| (named.of)(exchange)))?;
            Some(Figure { name: named.name, unit: named.unit, value })
        };
        let figures = self.figures.iter().filter_map(value).collect();
        Some(Verdict { cause: self.cause, confidence, shown: [shown, rounds], figures })
    }
}

/// Verdicts of the signs in their order, in which causes stand above what they explain; those that are only possible come last.
pub(super) fn judge_all(signs: &[Sign<'_>], evidence: &Evidence, transport: Transport) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = signs.iter().filter_map(|sign| sign.judge(evidence, transport)).collect();
    verdicts.sort_by_key(|verdict| verdict.confidence == Confidence::Possible);
    verdicts
}
