//! `cargo xtask shows congestion`: what congestion control and its feedback promise.

use super::{Case, ack_frequency, bbr, one_way, random_loss};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("bbr-suite", "the 22 example cases of draft-ietf-ccwg-bbr with our BBRv3", bbr::cases),
        case("bbr-loss", "BBRv1 and BBRv3 below and beyond the loss that they bear", bbr::losses),
        case("bbr-queue", "how long packets wait, whatever the buffer", bbr::queues),
        case("bbr-fairness", "two BBRv3 flows that start at different times", bbr::shares),
        case("shares", "who gets how much: BBRv3 and NewReno beside CUBIC, flows of a kind", bbr::neighbours),
        case("ack-frequency", "acknowledgements on request: saved, and what they cost", ack_frequency::measure),
        case("one-way", "variation of delay in each direction, from receive times", one_way::measure),
        case("cost", "instructions of a sender per packet, beside NewReno's; needs valgrind", bbr::cost),
        case("random-loss", "random loss passed over: goodput, queue, neighbours", random_loss::measure),
    ]
}
