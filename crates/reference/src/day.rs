//! Seed of the day: other cells every day, the same ones on every machine.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::draws::Draws;

/// Repeats a day: the number that its tests printed.
pub const VARIABLE: &str = "TIDERACE_REFERENCE_DAY";

/// Days since 1970, or what [`VARIABLE`] says; printed, so that a failure can be repeated.
///
/// # Panics
/// When the variable is no number: a day that was asked for and not taken would hide the failure.
pub fn day() -> u64 {
    let asked = std::env::var(VARIABLE).ok();
    let today = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    let day = asked.map_or_else(today, |text| text.parse().expect("a number of days"));
    println!("cells of day {day}: repeat with {VARIABLE}={day}");
    day
}

/// The draws of the day for one test.
pub fn draws(test: u64) -> Draws {
    let mut mixed = Draws::new(day());
    Draws::new(mixed.bits() ^ test.wrapping_mul(0xd134_2543_de82_ef95))
}
