//! Repair `auto` on connections that know little of their path: new ones, sparsely used ones, and many on one link.

use anyhow::{Result, anyhow};
use lab::reference::{Failed, Finding, cold};

use super::{Case, Context, row::Row};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case(
            "cold-requests",
            "requests of 12 kB on new and on sparsely used connections, and the share of repair",
            requests,
        ),
        case("cold-handshakes", "the handshake with its first request at 5 % loss in both directions", handshakes),
        case("cold-shared", "20 connections on one link: goodput, requests and fairness with auto beside off", shared),
    ]
}

fn seeds(context: &Context) -> u64 {
    if context.long { 20 } else { 6 }
}

fn rows(findings: Result<Vec<Finding>, Failed>) -> Result<Vec<Row>> {
    Ok(findings.map_err(|error| anyhow!("{error}"))?.into_iter().map(Row::from).collect())
}

fn requests(context: &Context) -> Result<Vec<Row>> {
    rows(cold::requests(seeds(context)))
}

fn handshakes(context: &Context) -> Result<Vec<Row>> {
    rows(cold::handshakes(seeds(context)))
}

fn shared(context: &Context) -> Result<Vec<Row>> {
    rows(cold::shared(seeds(context)))
}
