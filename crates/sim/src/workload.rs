//! Transport-independent work.
