//! Causes of missing datagrams: lost in the network, dropped or expired at the sender, or not arrived at the end of the run.

use crate::{
    contender::Measured,
    figure::Figure,
    reading::{Provenance, Reading, share},
    tally::Missing,
};

/// The parts of residual loss, as shares of the datagrams that were due; empty where a stack does not report them.
pub(crate) fn parts(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let read = |connection: &Measured| connection.datagrams.as_ref().and_then(|all| Some((all.due, all.missing?)));
    let Some(all) = connections.iter().map(read).collect::<Option<Vec<_>>>() else { return Vec::new() };
    let due = all.iter().map(|(due, _)| due).sum();
    let part = |read: fn(&Missing) -> u64| {
        let count = all.iter().map(|(_, missing)| read(missing)).sum();
        Reading::from_option(share(count, due), Provenance::Measured)
    };
    vec![
        (Figure::ResidualNetwork, part(|missing| missing.network)),
        (Figure::ResidualDropped, part(|missing| missing.dropped)),
        (Figure::ResidualExpired, part(|missing| missing.expired)),
        (Figure::ResidualLate, part(|missing| missing.late)),
    ]
}

#[cfg(test)]
mod tests {
    use units::Instant;

    use super::*;
    use crate::{contender::DatagramsMeasured, host::DatagramFate};

    #[test]
    fn each_missing_datagram_has_one_reason() {
        let at = Instant::from_millis;
        let mut missing = Missing::default();
        for fate in [
            None,
            Some(DatagramFate::Sent(at(10))),
            Some(DatagramFate::Sent(at(20))),
            Some(DatagramFate::Dropped),
            Some(DatagramFate::Dropped),
            Some(DatagramFate::Expired),
        ] {
            missing.add(fate, at(20));
        }
        assert_eq!((missing, missing.sum()), (Missing { network: 1, dropped: 2, expired: 1, late: 2 }, 6));
        let datagrams = DatagramsMeasured { due: 60, arrived: 54, missing: Some(missing), ..Default::default() };
        let known = Measured { datagrams: Some(datagrams.clone()), ..Measured::default() };
        let figures = parts(&[known.clone(), known.clone()]);
        let values: Vec<_> = figures.iter().map(|(_, reading)| reading.value.unwrap() * 60.0).collect();
        assert_eq!(values, [1.0, 2.0, 1.0, 2.0]);
        let silent =
            Measured { datagrams: Some(DatagramsMeasured { missing: None, ..datagrams }), ..Measured::default() };
        assert!(parts(&[known, silent]).is_empty());
    }
}
