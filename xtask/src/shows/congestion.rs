//! `cargo xtask shows congestion`: what congestion control and its feedback promise.

use super::{Case, ack_frequency};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![case("ack-frequency", "acknowledgements on request: saved, and what they cost", ack_frequency::measure)]
}
