//! `cargo xtask shows auto`: what the controller `auto` promises, in virtual time; repair `auto` on cold connections is in [`cold`].

use anyhow::{Result, anyhow};
use lab::reference::{
    Failed, Finding,
    auto::{self, Effort},
    tolerance,
};

use super::{Case, Context, cold, regret::regret, row::Row, row::Target};
use crate::instructions;

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    let mut all = vec![
        case("random-loss", "1 and 20 flows on the path of the preset `mobile`", random_loss),
        case(
            "beside-cubic",
            "share of `auto` beside 1, 4 and 16 flows of CUBIC, and what it leaves them",
            beside_cubic,
        ),
        case("alike", "flows of `auto` alone: 2 to 50 of them, and four with different round trips", alike),
        case("policer", "a policer at a twentieth of the line's rate, 1 and 4 flows", policer),
        case(
            "tolerance",
            "1, 20 and 30 flows that pass over 15 % of random loss, and CUBIC beside 8 of them",
            random_loss_tolerance,
        ),
        case("paths", "goodput, queue and loss of four controllers on eight paths, without targets", paths),
        case("regret", "what `auto` loses against the best fixed controller of each cell that is held out", regret),
        case("cost", "instructions of a sender per packet, beside CUBIC's; needs valgrind", cost),
    ];
    all.extend(cold::cases());
    all
}

fn effort(context: &Context) -> Effort {
    if context.long { Effort { seeds: 12, seconds: 60 } } else { Effort { seeds: 6, seconds: 30 } }
}

fn rows(findings: Result<Vec<Finding>, Failed>) -> Result<Vec<Row>> {
    Ok(findings.map_err(|error| anyhow!("{error}"))?.into_iter().map(Row::from).collect())
}

fn random_loss(context: &Context) -> Result<Vec<Row>> {
    rows(auto::random_loss(effort(context)))
}

fn beside_cubic(context: &Context) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for rivals in [1, 4, 16] {
        for buffer in [0.5, 1.0, 2.0, 4.0, 8.0] {
            all.extend(rows(auto::beside_cubic(rivals, buffer, effort(context)))?);
        }
    }
    Ok(all)
}

fn alike(context: &Context) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for (count, mbps, rtt) in [(2, 20, 50), (4, 20, 50), (20, 20, 50), (20, 100, 20), (50, 100, 40)] {
        all.extend(rows(auto::alike(count, mbps, rtt, effort(context)))?);
    }
    all.extend(rows(auto::round_trips(effort(context)).map(|finding| vec![finding]))?);
    Ok(all)
}

fn policer(context: &Context) -> Result<Vec<Row>> {
    let mut all = rows(auto::policer(1, effort(context)))?;
    all.extend(rows(auto::policer(4, effort(context)))?);
    Ok(all)
}

fn random_loss_tolerance(context: &Context) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for controller in ["cubic", "bbr3"] {
        all.extend(rows(tolerance::alone(controller, effort(context)).map(|finding| vec![finding]))?);
        all.extend(rows(tolerance::alike(controller, effort(context)))?);
        for buffer in [0.25, 1.0, 4.0] {
            all.extend(rows(
                tolerance::beside_cubic(controller, buffer, effort(context)).map(|finding| vec![finding]),
            )?);
        }
    }
    Ok(all)
}

fn paths(context: &Context) -> Result<Vec<Row>> {
    rows(auto::paths(effort(context)))
}

fn cost(_: &Context) -> Result<Vec<Row>> {
    let counts = instructions::controllers(&["cubic", "auto"])?;
    let [(_, cubic), (_, auto)] = counts[..] else { return Err(anyhow!("two counts were asked for")) };
    let row =
        Row::new("auto: instructions of the sender / cubic's", auto as f64 / cubic as f64, "x", Target::AtMost(1.03));
    Ok(vec![row.detail(format!("{auto} and {cubic} per 1,452 bytes of stream data; both ends in memory, callgrind"))])
}
