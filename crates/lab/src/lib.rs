//! Scenario, matrix, run, records, statistics, report.
pub mod stats;
