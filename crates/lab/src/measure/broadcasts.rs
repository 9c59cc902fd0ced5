//! Figures of live broadcasts.

use units::Duration;

use super::percentile_of_all;
use crate::{
    contender::Measured,
    figure::Figure,
    reading::{Provenance, Reading, share},
    tally::BroadcastTally,
};

/// Pictures and audio in time, latencies, groups that were reset, and bytes that were of no use.
pub(super) fn figures(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let all: Option<Vec<&BroadcastTally>> =
        connections.iter().map(|connection| connection.broadcast.as_ref()).collect();
    let Some(all) = all else { return Vec::new() };
    let sum = |read: fn(&BroadcastTally) -> u64| -> u64 { all.iter().map(|tally| read(tally)).sum() };
    let of = |part: u64, whole: u64| Reading::from_option(share(part, whole), Provenance::Measured);
    let mut latencies: Vec<Duration> = all.iter().flat_map(|tally| tally.latencies.iter().copied()).collect();
    latencies.sort_unstable();
    let due = sum(|tally| tally.pictures_due);
    let never = usize::try_from(due).unwrap_or(usize::MAX).saturating_sub(latencies.len());
    let reset: Option<u64> = all.iter().map(|tally| tally.groups_reset).sum();
    // A stack that cannot reset does not tell what has left, either.
    let of_groups =
        |part, whole| if reset.is_some() { of(part, whole) } else { Reading::none(Provenance::Unsupported) };
    let sent = sum(|tally| tally.group_bytes);
    vec![
        (Figure::PicturesInTime, of(sum(|tally| tally.pictures_in_time), due)),
        (Figure::PictureP50, percentile_of_all(&latencies, never, 0.5)),
        (Figure::PictureP95, percentile_of_all(&latencies, never, 0.95)),
        (Figure::PictureP99, percentile_of_all(&latencies, never, 0.99)),
        (Figure::GroupsReset, of_groups(reset.unwrap_or(0), sum(|tally| tally.groups_due))),
        (Figure::PicturesWasted, of_groups(sent.saturating_sub(sum(|tally| tally.useful_bytes)), sent)),
        (Figure::AudioInTime, of(sum(|tally| tally.audio_in_time), sum(|tally| tally.audio_due))),
    ]
}
