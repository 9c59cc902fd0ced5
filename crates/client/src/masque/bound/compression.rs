//! Choice of the peers that have a context ID of their own: those that are sent to repeatedly.
//!
//! The second payload for a peer registers a context, since the MTU changes with it. When there are too many, the one that was not used for
//! the longest time gives way, if that is long enough ago: peers that take turns do not take each other's contexts.

use std::{collections::HashMap, net::SocketAddr};

use h3_quic::connect_udp::bound::{Compression, Contexts};

/// Remembered peers, with a context or without.
const MAX_PEERS: usize = 256;
/// Payloads to other peers after which a context gives way to another.
const UNUSED: u64 = 4 * MAX_PEERS as u64;

#[derive(Clone, Copy, Debug)]
struct Use {
    /// Number of the last payload.
    at: u64,
    /// A context was registered. If it is not open, the proxy has rejected or closed it, and is not asked again.
    is_registered: bool,
}

/// Peers that were sent to.
#[derive(Debug)]
pub(super) struct Repeated {
    peers: HashMap<SocketAddr, Use>,
    max_contexts: usize,
    sent: u64,
}

impl Repeated {
    pub(super) fn new(max_contexts: usize) -> Self {
        Self { peers: HashMap::new(), max_contexts, sent: 0 }
    }

    /// Notes a payload for a peer. Returns the capsules that register its context, and end another one.
    pub(super) fn on_send(&mut self, peer: SocketAddr, contexts: &mut Contexts) -> Vec<Compression> {
        self.sent += 1;
        let mut capsules = Vec::new();
        let at = self.sent;
        let Some(known) = self.peers.get_mut(&peer) else {
            if self.peers.len() >= MAX_PEERS
                && let Some(oldest) = self.oldest(|_| true)
            {
                capsules.extend(self.forget(oldest, contexts));
            }
            self.peers.insert(peer, Use { at, is_registered: false });
            return capsules;
        };
        known.at = at;
        if known.is_registered {
            return capsules;
        }
        let has_context = |(peer, _): (&SocketAddr, &Use)| contexts.context_of(*peer).is_some();
        if self.peers.iter().filter(|entry| has_context(*entry)).count() >= self.max_contexts {
            let unused = self.oldest(|peer| contexts.context_of(peer).is_some());
            let Some(unused) = unused.filter(|unused| at - self.peers[unused].at >= UNUSED) else { return capsules };
            capsules.extend(self.forget(unused, contexts));
        }
        if let Some(registration) = contexts.open_compressed(peer) {
            capsules.push(registration);
            self.peers.insert(peer, Use { at, is_registered: true });
        }
        capsules
    }

    /// Peers that are remembered.
    pub(super) fn peers(&self) -> impl Iterator<Item = SocketAddr> {
        self.peers.keys().copied()
    }

    /// The peer to which nothing was sent for the longest time.
    fn oldest(&self, is_meant: impl Fn(SocketAddr) -> bool) -> Option<SocketAddr> {
        let meant = self.peers.iter().filter(|(peer, _)| is_meant(**peer));
        meant.min_by_key(|(_, known)| known.at).map(|(peer, _)| *peer)
    }

    fn forget(&mut self, peer: SocketAddr, contexts: &mut Contexts) -> Option<Compression> {
        self.peers.remove(&peer);
        contexts.close(contexts.context_of(peer)?)
    }
}

#[cfg(test)]
mod tests {
    use h3_quic::connect_udp::bound::End;

    use super::*;

    fn peer(number: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], number))
    }

    /// Contexts of a client whose proxy confirms each.
    fn confirmed(contexts: &mut Contexts, capsules: &[Compression]) {
        for capsule in capsules {
            if let Compression::Assign { context, .. } = capsule {
                contexts.take(&Compression::Ack(*context), |_| true, &mut Vec::new()).unwrap();
            }
        }
    }

    fn begun() -> (Repeated, Contexts) {
        let mut contexts = Contexts::new(End::Client, 5, false);
        let opened = contexts.open_uncompressed();
        confirmed(&mut contexts, opened.as_slice());
        (Repeated::new(4), contexts)
    }

    #[test]
    fn the_second_payload_registers_a_context() {
        let (mut repeated, mut contexts) = begun();
        assert_eq!(repeated.on_send(peer(1), &mut contexts), []);
        let registered = repeated.on_send(peer(1), &mut contexts);
        assert_eq!(registered, [Compression::Assign { context: 4, peer: Some(peer(1)) }]);
        // One that the proxy rejects is not asked for again.
        contexts.take(&Compression::Close(4), |_| true, &mut Vec::new()).unwrap();
        assert!((0..100).all(|_| repeated.on_send(peer(1), &mut contexts).is_empty()));
        assert_eq!(contexts.header(peer(1)).unwrap()[0], 2, "uncompressed");
    }

    #[test]
    fn a_context_that_is_not_used_gives_way() {
        let (mut repeated, mut contexts) = begun();
        let mut send = |number: u16, repeated: &mut Repeated| {
            let capsules = repeated.on_send(peer(number), &mut contexts);
            confirmed(&mut contexts, &capsules);
            assert!(contexts.open() <= 5);
            capsules.len()
        };
        // Six take turns: four have a context, and keep it.
        let said: usize = (0..100).flat_map(|_| 1..=6).map(|number| send(number, &mut repeated)).sum();
        assert_eq!(said, 4);
        // The first one falls silent.
        let said: usize = (0..1_000).flat_map(|_| 2..=5).map(|number| send(number, &mut repeated)).sum();
        assert_eq!(said, 2, "one is closed, and another registered");
        assert!(contexts.context_of(peer(1)).is_none() && contexts.context_of(peer(5)).is_some());
    }

    #[test]
    fn peers_are_bounded() {
        let (mut repeated, mut contexts) = begun();
        for number in 0..60_000 {
            repeated.on_send(peer(number), &mut contexts);
            repeated.on_send(peer(number), &mut contexts);
        }
        assert_eq!((repeated.peers.len(), contexts.open()), (MAX_PEERS, 5));
    }
}
