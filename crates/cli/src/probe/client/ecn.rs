//! ECN marks in both directions.

use super::{Direction, SMALL, path::Path, sample::Shape};
use crate::probe::{
    estimate::ecn::{CE, ECT0, ECT1, Ecn, Marked},
    protocol::ExchangeError,
};

/// Packets of each mark in each direction.
const COUNT: u32 = 8;
/// Time between two of them, in nanoseconds.
const GAP_NS: u64 = 5_000_000;

/// Measures the fate of each mark, upwards and downwards. `None`: no marked packet arrives in either direction.
///
/// Each direction has trains of its own, so that the marks of one do not depend on the other: the sender sets the mark, the receiver
/// records the one that arrives.
pub(super) async fn measure(path: &Path) -> Result<Option<[Ecn; 2]>, ExchangeError> {
    if !path.is_answered() {
        return Ok(None);
    }
    let (mut up, mut down) = (Ecn::default(), Ecn::default());
    for mark in [ECT0, ECT1, CE] {
        let [sent_up, sent_down] = [Direction::Up, Direction::Down].map(|direction| train(path, direction, mark));
        let (sent_up, sent_down) = tokio::try_join!(sent_up, sent_down)?;
        up.set(mark, sent_up);
        down.set(mark, sent_down);
    }
    Ok((up.has_arrivals() || down.has_arrivals()).then_some([up, down]))
}

async fn train(path: &Path, direction: Direction, mark: u8) -> Result<Marked, ExchangeError> {
    let shape = Shape { size: SMALL, count: COUNT, gap_ns: GAP_NS, ecn: mark };
    // Few packets fill no queue that would have to empty.
    let sample = match direction {
        Direction::Up => path.train_up(shape, false).await?,
        Direction::Down => path.train_down(shape, false).await?,
    };
    let sent = u32::try_from(sample.train.sent.len()).unwrap_or(u32::MAX);
    Ok(Marked::new(sent, sample.fields))
}
