//! Path MTU of each direction: the largest packet that arrives, by a search with Don't Fragment set (RFC 8899 §5).

use std::time::Duration;

use serde::Serialize;

use super::{Direction, path::Path, sample::Shape};
use crate::probe::protocol::ExchangeError;

/// Copies of each size: a size counts as too large when all of them are lost.
const COPIES: u32 = 4;
/// Time between copies, so that a burst of losses does not take all.
const APART: Duration = Duration::from_millis(12);
/// UDP payload that every path for QUIC carries.
const SMALLEST: u16 = 1_200;
/// Largest payload that is tried: a jumbo frame.
const LARGEST: u16 = 8_972;

/// Largest packet of a direction, in bytes with its IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in crate::probe) struct Mtu {
    /// Largest that arrived.
    pub(in crate::probe) passes: u32,
    /// Smallest larger one that did not; `None`: the largest that was tried arrived.
    pub(in crate::probe) lost: Option<u32>,
    /// The sender's own interface takes none of the size in `lost`.
    pub(in crate::probe) is_of_interface: bool,
}

/// Fate of a size.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrived,
    Lost,
    /// The sender's interface does not take it.
    Refused,
}

/// Searches the MTU of a direction. `None` when not even 1200 bytes arrive.
///
/// # Errors
/// When the server does not answer.
pub(super) async fn search(path: &Path, direction: Direction) -> Result<Option<Mtu>, ExchangeError> {
    let head = path.overhead();
    // Ethernet first, which most paths are; then the search has few steps.
    let usual = 1_500 - u16::try_from(head).unwrap_or(48);
    if fate(path, direction, SMALLEST).await? != Fate::Arrived {
        return Ok(None);
    }
    let (mut passes, mut fails) = (SMALLEST, LARGEST + 1);
    let mut of_interface = false;
    for first in [usual, LARGEST] {
        if first <= passes || first >= fails {
            continue;
        }
        match fate(path, direction, first).await? {
            Fate::Arrived => passes = first,
            bad => {
                fails = first;
                of_interface = bad == Fate::Refused;
                break;
            }
        }
    }
    while passes + 1 < fails {
        let middle = u16::midpoint(passes, fails);
        // Behind Ethernet most interfaces end at once.
        let next = if passes == usual && fails == LARGEST { usual + 1 } else { middle };
        match fate(path, direction, next).await? {
            Fate::Arrived => passes = next,
            bad => {
                fails = next;
                of_interface = bad == Fate::Refused;
            }
        }
    }
    let lost = (fails <= LARGEST).then(|| u32::from(fails) + head);
    Ok(Some(Mtu { passes: u32::from(passes) + head, lost, is_of_interface: of_interface && lost.is_some() }))
}

/// Sends a size.
async fn fate(path: &Path, direction: Direction, size: u16) -> Result<Fate, ExchangeError> {
    let (arrived, refused) = match direction {
        Direction::Up => {
            let pings = path.pings(COPIES, APART, size.into()).await;
            (pings.pongs.len(), pings.is_too_large)
        }
        Direction::Down => {
            let gap_ns = u64::try_from(APART.as_nanos()).unwrap_or(u64::MAX);
            let sample = path.train_down(Shape { size, count: COPIES, gap_ns, ecn: 0 }, false).await?;
            (sample.train.arrivals.len(), sample.is_too_large)
        }
    };
    Ok(match (arrived, refused) {
        (1.., _) => Fate::Arrived,
        (0, true) => Fate::Refused,
        (0, false) => Fate::Lost,
    })
}
