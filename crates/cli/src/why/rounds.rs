//! Rounds: exchanges over both transports, one after the other, within limits of time and bytes.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    evidence::{Evidence, Exchange, Transport},
    exchange::{self, Limits, Target},
};
use crate::{failure::Failure, interrupt::Interrupt};

/// Rounds in which nothing comes over a transport, after which no more are tried.
const DEAD: usize = 3;
/// Beginning of the reason that Ctrl-C gives.
pub(super) const INTERRUPTED: &str = "interrupted";
/// Shortest time for an exchange.
const SHORTEST: Duration = Duration::from_secs(1);

/// Limits of all rounds together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) rounds: u32,
    /// Each exchange transfers the whole object.
    pub(super) is_whole: bool,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

/// Makes the rounds. What was measured before an interruption is kept.
///
/// # Errors
/// When signals cannot be listened for.
pub(super) async fn run(target: &Target, budget: Budget, evidence: &mut Evidence) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut interrupt = Interrupt::listen()?;
    let bar = bar(budget.rounds);
    evidence.rounds = budget.rounds;
    let mut spent = 0;
    for round in 0..budget.rounds {
        // Whoever is first meets what the other leaves behind: they take turns.
        let order = if round % 2 == 0 { [Transport::H3, Transport::H2] } else { [Transport::H2, Transport::H3] };
        for (place, transport) in order.into_iter().enumerate() {
            let left = u32::try_from(place).map_or(1, |place| (budget.rounds - round) * 2 - place);
            let time = (budget.time.saturating_sub(begun.elapsed()) / left).max(SHORTEST);
            let limits = Limits { bytes: evidence.wanted, is_whole: budget.is_whole, time };
            bar.set_message(transport.name());
            let exchange = tokio::select! {
                exchange = exchange::run(target, transport, round, limits) => exchange,
                () = interrupt.wait() => {
                    evidence.ended_early = Some(format!("{INTERRUPTED} in round {} of {}", round + 1, budget.rounds));
                    bar.finish_and_clear();
                    return Ok(());
                }
            };
            spent += exchange.bytes;
            evidence.exchanges.push(exchange);
        }
        bar.inc(1);
        if let Some(dead) = Transport::BOTH.into_iter().find(|transport| is_dead(evidence, *transport)) {
            evidence.ended_early = Some(format!("nothing came over {} in {DEAD} rounds", dead.name()));
        } else if let Some((refuser, error)) = refusals(evidence) {
            // A server that limits its clients is not asked further.
            evidence.ended_early = Some(format!("{} was refused {DEAD} times: {error}", refuser.name()));
        } else if begun.elapsed() >= budget.time && round + 1 < budget.rounds {
            evidence.ended_early = Some(format!("`--time` was used up after {} rounds", round + 1));
        } else if spent >= budget.bytes && round + 1 < budget.rounds {
            evidence.ended_early = Some(format!("`--bytes` was used up after {} rounds", round + 1));
        }
        if evidence.ended_early.is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn is_dead(evidence: &Evidence, transport: Transport) -> bool {
    let nothing = |exchange: &Exchange| exchange.bytes == 0 && exchange.error.is_some();
    evidence.of(transport).count() >= DEAD && evidence.of(transport).all(nothing)
}

/// A transport over which the server has refused too often, and its last words.
fn refusals(evidence: &Evidence) -> Option<(Transport, String)> {
    Transport::BOTH.into_iter().find_map(|transport| {
        let refused = evidence.of(transport).filter(|exchange| !exchange.is_comparable());
        let last = refused.clone().last()?.error.clone()?;
        (refused.count() >= DEAD).then_some((transport, last))
    })
}

fn bar(rounds: u32) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(rounds.into());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} round {pos} of {len}, {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar
}
