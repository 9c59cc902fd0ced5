//! `cargo xtask shows congestion`: what congestion control and its feedback promise.

use super::{Case, ack_frequency, one_way, random_loss};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("ack-frequency", "acknowledgements on request: saved, and what they cost", ack_frequency::measure),
        case("one-way", "variation of delay in each direction, from receive times", one_way::measure),
        case("random-loss", "random loss passed over: goodput, queue, neighbours", random_loss::measure),
    ]
}
