//! Losses of connections inside tunnels, and of the tunnels around them.

use crate::{
    contender::{Losses, Measured},
    figure::Figure,
    reading::{Provenance, Reading, share},
};

/// Losses inside and outside of a tunnel, at both ends. What a connection does not report, as one without a tunnel, is unsupported.
pub(super) fn losses(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let of = |end: usize, read: fn(&Losses) -> Option<(u64, u64)>| {
        let parts = connections.iter().map(|connection| read(&connection.losses[end])).collect::<Option<Vec<_>>>();
        let Some(parts) = parts else { return Reading::none(Provenance::Unsupported) };
        let (part, whole) = parts.iter().fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        Reading::from_option(share(part, whole), Provenance::Measured)
    };
    let inner = |losses: &Losses| losses.packets_lost.zip(losses.packets_sent);
    let outer = |losses: &Losses| losses.tunnel.and_then(|tunnel| tunnel.packets_lost.zip(tunnel.packets_sent));
    let dropped = |losses: &Losses| losses.tunnel.map(|tunnel| (tunnel.dropped, tunnel.given));
    vec![
        (Figure::InnerLost, of(0, inner)),
        (Figure::InnerLostBack, of(1, inner)),
        (Figure::OuterLost, of(0, outer)),
        (Figure::OuterLostBack, of(1, outer)),
        (Figure::TunnelDropped, of(0, dropped)),
    ]
}
