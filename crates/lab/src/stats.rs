//! Statistics of runs: conclusions, and their confidence.
//!
//! One file per question: [`quantile`] (what is the percentile of many samples, and may it be quoted), [`interval`]
//! (how sure is the median of one contender over its seeds), [`compare`] (is one contender better than another on the
//! same seeds), [`fairness`] (how evenly was the link shared), [`coverage`] (does an interval keep its promise).
//! [`distribution`] holds the two distributions they need.
//! Every random draw comes from a seed, so the same records give the same report.

pub mod compare;
pub mod coverage;
pub mod distribution;
pub mod fairness;
pub mod interval;
pub mod quantile;
