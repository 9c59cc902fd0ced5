//! Scenario, matrix, run, records, statistics, report.
