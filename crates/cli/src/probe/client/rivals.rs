//! Contenders over the real path: downloads of the congestion controllers and of the kernel's TCP in turn, with round trips beside each.

use std::time::Duration;

use tiderace::transport::congestion::Algorithm;
use tokio::time::{Instant, sleep, timeout};

use super::{Direction, load, path::Path, tcp};
use crate::{
    probe::{
        estimate::delay::RoundTrips,
        protocol::{Answer, ExchangeError, Request},
        verify::{Contender, Plan, Rounds, Transfer},
    },
    stop::Stop,
};

/// Time between two pings beside a transfer.
const APART: Duration = Duration::from_millis(20);
/// Time that a transfer may take beyond its own.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the rounds of a plan. The order rotates, so that none always follows the same one. An interruption ends them early.
pub(super) async fn run(path: &Path, plan: &Plan, stop: &Stop) -> Rounds {
    let mut rounds = Rounds::default();
    let (begun, before) = (Instant::now(), path.spent());
    for round in 0..plan.rounds {
        let mut transfers = vec![None; plan.contenders.len()];
        for place in 0..plan.contenders.len() {
            let index = (place + round) % plan.contenders.len();
            // The shares of those that used less are not given to others: all have the same.
            let transfer = async {
                let found = match plan.contenders[index] {
                    Contender::Quic(algorithm) => quic(path, algorithm, plan).await,
                    Contender::Kernel => kernel(path, plan).await,
                };
                path.settle().await;
                found
            };
            let found = tokio::select! {
                found = transfer => found,
                () = stop.wait() => {
                    rounds.is_partial = true;
                    break;
                }
            };
            match found {
                Ok(found) => transfers[index] = Some(found),
                Err(error) => rounds.note(plan.contenders[index], &error.to_string()),
            }
        }
        if rounds.is_partial {
            break;
        }
        rounds.list.push(transfers);
    }
    rounds.bytes = path.spent() - before;
    rounds.seconds = begun.elapsed().as_secs_f64();
    rounds
}

/// A download on a connection of its own, which the server sends with this controller.
async fn quic(path: &Path, algorithm: Algorithm, plan: &Plan) -> Result<Transfer, ExchangeError> {
    let connection = load::join(path).await?.0;
    let name = algorithm.name().to_owned();
    match load::exchange(&connection, &Request::Congestion { name }).await? {
        Answer::Done => {}
        Answer::Refused(refusal) => return Err(refusal.into()),
        _ => return Err(ExchangeError::Protocol),
    }
    let moved = || load::moved(std::slice::from_ref(&connection), Direction::Down);
    let work = async {
        sleep(plan.lasts / 3).await;
        let (before, from) = (moved(), Instant::now());
        let rtts = pings(path, plan).await;
        #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
        let goodput = (moved() - before) as f64 * 8.0 / from.elapsed().as_secs_f64();
        Transfer { goodput, rtt_ms: median(&rtts) }
    };
    let found = tokio::select! {
        found = timeout(plan.lasts + PATIENCE, work) => found.map_err(|_| ExchangeError::Silence),
        ended = load::download(connection.clone(), plan.share) => Err(ended.err().unwrap_or(ExchangeError::Bytes)),
    };
    path.charge_load(moved());
    connection.close(0, b"");
    found
}

/// A download of the kernel's TCP.
async fn kernel(path: &Path, plan: &Plan) -> Result<Transfer, ExchangeError> {
    let beside = async {
        sleep(plan.lasts / 3).await;
        pings(path, plan).await
    };
    let (goodput, rtts) = tokio::join!(tcp::goodput(path, Direction::Down, plan.lasts, plan.share), beside);
    Ok(Transfer { goodput: goodput.ok_or(ExchangeError::Silence)?, rtt_ms: median(&rtts) })
}

/// Round trips of the last two thirds of a transfer.
async fn pings(path: &Path, plan: &Plan) -> Vec<u64> {
    let count = (plan.lasts * 2 / 3).as_millis() / APART.as_millis();
    path.pings(u32::try_from(count).unwrap_or(u32::MAX), APART, crate::probe::wire::HEAD).await.rtts()
}

fn median(rtts: &[u64]) -> Option<f64> {
    RoundTrips::of(rtts).map(|found| found.median.value)
}
