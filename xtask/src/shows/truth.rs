//! Every number true: what is compared, watched and booked is what happened. One file for each case.

mod cross_mode;
mod edge_books;
mod gate;
mod intervals;
mod ledgers;
mod mutants;
mod references;

use super::Case;

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("intervals", "coverage of 95 % intervals over few and skewed runs", intervals::measure),
        case("edge-books", "100,000 requests ended at random: the books of the edge balance", edge_books::edge_books),
        case(
            "references",
            "links, codes and controllers beside independent programs, cells of the day",
            references::measure,
        ),
        case("mutants", "planted faults, and what catches each; builds a copy of the workspace", mutants::measure),
        case("comparisons", "zeros, what never came and what is unknown take part", gate::comparisons),
        case("gate", "twelve regressions of twelve figures", gate::measure),
        case(
            "ledgers",
            "books of both ends and of the links, in random simulations and in runs of the lab",
            ledgers::ledgers,
        ),
        case(
            "cross-mode",
            "cubic, bbr1 and bbr3 in real and in virtual time; needs an idle machine",
            cross_mode::measure,
        ),
    ]
}
