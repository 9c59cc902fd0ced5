//! Rate, queue and policer of a direction: each train is four times as fast as the last one until the path is the limit. Then a train of
//! twice its rate fills the queue.

use std::time::Duration;

use super::{
    Direction,
    path::Path,
    sample::{Sample, Shape},
};
use crate::probe::protocol::ExchangeError;

/// Rate of the first train.
const FIRST: f64 = 1e6;
/// No slower path is looked for.
const SLOWEST: f64 = 16e3;
/// No faster path: a thread sends no more.
const FASTEST: f64 = 2.4e9;
/// Trains of a rate that the sender may fail to keep up.
const TRIES: u32 = 3;
/// Length of a train of the search.
const STEP: Duration = Duration::from_millis(200);
/// UDP payload that every path for QUIC carries.
const LARGEST: u16 = 1_200;
/// Packets that a train should have.
const PACKETS: f64 = 150.0;

/// Finds the rate of a direction: returns the train that loaded it, or `None` when nothing arrived. Uses at most `share` of the remaining
/// bytes.
///
/// # Errors
/// When the server does not answer.
pub(super) async fn find(
    path: &Path,
    direction: Direction,
    lasts: Duration,
    share: f64,
) -> Result<Option<Sample>, ExchangeError> {
    #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
    let bytes = path.left() as f64 * share;
    let (mut rate, mut best, mut late, mut fastest) = (FIRST, None, 0, 0.0);
    while rate <= FASTEST {
        let step = STEP.as_secs_f64().min(bytes * 0.25 * 8.0 / rate);
        if step < 0.02 {
            break;
        }
        let sample = path.train(direction, shape(path, rate, Duration::from_secs_f64(step))).await?;
        let Some(found) = sample.train.analyse(0.0) else {
            // Hardly anything came: the path is much slower than the train.
            rate /= 4.0;
            if rate < SLOWEST || best.is_some() {
                break;
            }
            continue;
        };
        if found.is_limited {
            let filled = fill(path, direction, found.rate.value, (lasts, bytes)).await?;
            let Some(again) = filled.train.analyse(0.0).filter(|again| !again.is_limited) else {
                return Ok(Some(filled));
            };
            // A burst of losses looked like a limit.
            (fastest, best) = (again.rate.value, Some(filled));
            rate = rate.max(again.offered) * 2.0;
            continue;
        }
        if fastest < found.rate.value {
            (fastest, best) = (found.rate.value, Some(sample));
        }
        // A sender that was held up for a moment is not the limit; one that always is may be.
        if found.offered < rate * 0.7 {
            late += 1;
            if late == TRIES {
                break;
            }
            continue;
        }
        (rate, late) = (rate * 4.0, 0);
    }
    Ok(best)
}

/// Fills the queue of a path of this rate; a second time where once was not enough.
async fn fill(
    path: &Path,
    direction: Direction,
    rate: f64,
    (lasts, bytes): (Duration, f64),
) -> Result<Sample, ExchangeError> {
    let train = async |factor: f64, times: f64| {
        let span = (lasts.as_secs_f64() * times).min(bytes * 0.35 * 8.0 / (rate * factor));
        path.train(direction, shape(path, rate * factor, Duration::from_secs_f64(span))).await
    };
    let first = train(2.0, 1.0).await?;
    let is_filled = first.train.analyse(0.0).is_none_or(|found| found.queue.is_none_or(|queue| queue.high.is_some()));
    if is_filled || path.left() < path.spent() {
        return Ok(first);
    }
    train(3.0, 2.0).await
}

/// Train of this rate, in packets as large as its length allows.
fn shape(path: &Path, rate: f64, lasts: Duration) -> Shape {
    let size = (rate * lasts.as_secs_f64() / 8.0 / PACKETS).clamp(100.0, f64::from(LARGEST));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 100 and 1200")]
    Shape::at(rate, size as u16, path.overhead(), lasts)
}
