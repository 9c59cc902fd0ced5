//! Scenario, matrix, run, records, statistics, report.
mod digest;
pub mod scenario;
pub mod stats;
