//! Statistics of runs: conclusions, and their confidence.
//!
//! A file per question: [`quantile`] (percentiles of many samples, and the number of samples that they need), [`interval`] (interval of the
//! median of one contender over its seeds), [`compare`] (whether one contender is better than another on the same seeds), [`fairness`]
//! (fairness of shares), [`clusters`] (two sets of clients with many requests each), [`coverage`] (coverage of intervals). [`distribution`]
//! holds the two distributions that they need. Every random draw comes from a seed, so the same records give the same report.

pub mod clusters;
pub mod compare;
pub mod coverage;
pub mod distribution;
pub mod fairness;
pub mod interval;
pub mod quantile;
