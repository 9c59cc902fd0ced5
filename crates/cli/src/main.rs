//! The command line of tiderace.
fn main() {}
