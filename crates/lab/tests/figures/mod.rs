//! Figures of the runs of tests.

use lab::{figure::Figure, record::Record};

/// The value of a figure that the run has to have.
pub(crate) fn value(record: &Record, figure: Figure) -> f64 {
    record.figures[&figure].value.unwrap_or_else(|| panic!("{figure:?} of {record:?}"))
}
