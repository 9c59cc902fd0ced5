//! `cargo xtask shows congestion`: what congestion control and its feedback promise.

use super::{Case, ack_frequency, bbr, hazards, laboratory, matrices, one_way, random_loss, wrong_settings};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("bbr-suite", "the 22 example cases of draft-ietf-ccwg-bbr with our BBRv3", bbr::cases),
        case("suite-others", "the same with other controllers, ours and other stacks'", bbr::others),
        case("loss", "NewReno and CUBIC against RFC 9438 at 0.1 % and 1 % loss", laboratory::model),
        case("full-queue", "CUBIC fills buffers of 0.5, 1, 2 and 4 BDP", laboratory::queue),
        case("bbr-loss", "BBRv1 and BBRv3 below and beyond the loss that they bear", bbr::losses),
        case("bbr-cliff", "where BBRv1 and BBRv3 break", bbr::cliffs),
        case("bbr-queue", "how long packets wait, whatever the buffer", bbr::queues),
        case("bbr-many", "what the models of 1 to 50 BBRv3 flows add up to, and the queue that follows", bbr::crowds),
        case("bbr-fairness", "two BBRv3 flows that start at different times", bbr::shares),
        case("shares", "who gets how much: BBRv3, BBRv1 and NewReno beside CUBIC, flows of a kind", bbr::neighbours),
        case("ack-frequency", "acknowledgements on request: saved, and what they cost", ack_frequency::measure),
        case("one-way", "variation of delay in each direction, from receive times", one_way::measure),
        case("random-loss", "random loss passed over: goodput, queue, neighbours", random_loss::measure),
        case("hazards", "the dips of ProbeRTT; reordering together with sparse acknowledgements", hazards::measure),
        case("cost", "instructions of a sender per packet, beside NewReno's; needs valgrind", bbr::cost),
        case("bad-input", "unknown controllers and settings out of range", wrong_settings::measure),
        case("seed-matrix", "RTT, load, connections and ACK frequency from one scenario file", matrices::seed_matrix),
    ]
}
