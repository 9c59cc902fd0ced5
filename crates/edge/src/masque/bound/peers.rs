//! Peers of a tunnel: those to which a client may send, and those from which datagrams come back.
//!
//! A client names peers by address, in any datagram. So the rules for targets hold for each datagram, in both directions. Unless the
//! configuration says otherwise, a peer is heard only after the client has sent to its address or registered a context for it, whatever the
//! port of its answer is: address-dependent filtering (RFC 4787 §5), which is the permission of TURN (RFC 8656 §2.3).

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::super::{
    clients::TunnelPlace,
    listeners::Listeners,
    local_address_for,
    rules::{Prohibited, Rules},
};
use crate::observe::DropReason;

/// Memory of a peer.
const PEER: usize = 96;

/// Rules for peers.
pub(in super::super) struct Policy {
    rules: Arc<Rules>,
    listeners: Arc<Listeners>,
}

impl Policy {
    pub(in super::super) fn new(rules: Arc<Rules>, listeners: Arc<Listeners>) -> Self {
        Self { rules, listeners }
    }

    /// Checks a peer that is reached from `local`.
    // draft-ietf-masque-connect-udp-listen §9: targets of datagrams and registrations are checked as those of requests
    fn check(&self, peer: SocketAddr, local: Option<IpAddr>) -> Result<(), Prohibited> {
        // A socket of IPv6 alone does not reach them, and no datagram comes from one.
        let is_mapped = matches!(peer.ip(), IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        if is_mapped || peer.port() == 0 {
            return Err(Prohibited::NotPublic);
        }
        self.rules.check(peer)?;
        local.map_or(Ok(()), |local| self.listeners.check(&self.rules, peer, local))
    }
}

/// A peer to which the client has sent.
struct Peer {
    /// Number of the last use.
    at: u64,
    /// Address of this machine from which the peer is reached, if it has a route. The way there is looked up once.
    local: Option<IpAddr>,
}

/// Peers of a tunnel.
pub(super) struct Peers {
    policy: Policy,
    known: HashMap<IpAddr, Peer>,
    max: usize,
    is_open: bool,
    uses: u64,
}

impl Peers {
    /// At most `max` peers; with `is_open`, datagrams of all others are heard, too.
    pub(super) fn new(policy: Policy, max: usize, is_open: bool) -> Self {
        Self { policy, known: HashMap::new(), max, is_open, uses: 0 }
    }

    /// Checks a peer to which the client sends, or for which it registers a context, and remembers it.
    pub(super) fn permit(&mut self, peer: SocketAddr, place: &TunnelPlace) -> Result<(), DropReason> {
        self.uses += 1;
        if let Some(known) = self.known.get_mut(&peer.ip()) {
            self.policy.check(peer, known.local).map_err(|_| DropReason::Prohibited)?;
            known.at = self.uses;
            return Ok(());
        }
        // Before the way there is looked up, which takes system calls.
        self.policy.check(peer, None).map_err(|_| DropReason::Prohibited)?;
        if !place.may_add_peer() {
            return Err(DropReason::Rate);
        }
        let local = local_address_for(peer).ok().map(|local| local.ip());
        self.policy.check(peer, local).map_err(|_| DropReason::Prohibited)?;
        if self.known.len() >= self.max
            && let Some(oldest) = self.known.iter().min_by_key(|(_, peer)| peer.at).map(|(ip, _)| *ip)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(peer.ip(), Peer { at: self.uses, local });
        Ok(())
    }

    /// Checks a peer whose datagram has come. `has_context` says whether it has one of its own.
    pub(super) fn may_come(&self, peer: SocketAddr, has_context: bool) -> Result<(), DropReason> {
        let known = self.known.get(&peer.ip());
        if !self.is_open && !has_context && known.is_none() {
            return Err(DropReason::UnknownPeer);
        }
        // Also by these rules no one is heard who could not be answered.
        self.policy.check(peer, known.and_then(|known| known.local)).map_err(|_| DropReason::Prohibited)
    }

    /// Memory of the peers, in bytes.
    pub(super) fn held(&self) -> usize {
        self.known.len() * PEER
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{
        config::Many,
        masque::{ClientKey, ClientLimits, Clients},
    };

    fn peers(max: usize, is_open: bool, listeners: &Arc<Listeners>) -> Peers {
        let many = |list: &[&str]| Many(list.iter().map(|text| (*text).to_owned()).collect());
        let rules = Rules::new(&many(&["127.0.0.0/8", "::1", "192.0.2.0/24"]), &many(&["192.0.2.66"]), &[25]);
        Peers::new(Policy::new(Arc::new(rules), listeners.clone()), max, is_open)
    }

    fn place(opened_per_second: u32) -> TunnelPlace {
        let limits = ClientLimits { total: 9, tunnels: 9, opened_per_second, bytes_per_second: None };
        let clients = Arc::new(Clients::default());
        clients.enter(ClientKey::Address(1), limits, Instant::now()).unwrap()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap_or_else(|_| panic!("{text}"))
    }

    /// RFC 9298 §7, draft-ietf-masque-connect-udp-listen §9: no datagram gets around the rules.
    #[test]
    fn the_rules_hold_for_every_datagram() {
        let listeners = Arc::new(Listeners::default());
        listeners.set(vec![address("127.0.0.1:443"), address("[::]:8443")]);
        let (mut peers, place) = (peers(1_000, true, &listeners), place(1_000));
        for permitted in ["127.0.0.1:53", "127.0.0.2:53", "[::1]:53", "192.0.2.1:1", "1.1.1.1:443"] {
            assert_eq!(peers.permit(address(permitted), &place), Ok(()), "{permitted}");
        }
        // Those that are known already, at another port, among them.
        for _ in 0..2 {
            for prohibited in [
                "127.0.0.1:443",
                "127.0.0.1:25",
                "127.0.0.1:0",
                "[::1]:8443",
                "127.0.0.1:8443",
                "192.0.2.66:53",
                "10.0.0.1:53",
                "169.254.169.254:53",
                "168.63.129.16:53",
                "[fd00:ec2::254]:53",
                "224.0.0.1:53",
                "255.255.255.255:53",
                "0.0.0.0:53",
                "[::ffff:127.0.0.1]:53",
                "[::ffff:10.0.0.1]:53",
                "[64:ff9b::7f00:1]:53",
                "[fe80::1]:53",
            ] {
                let peer = address(prohibited);
                assert_eq!(peers.permit(peer, &place), Err(DropReason::Prohibited), "{prohibited}");
                assert_eq!(peers.may_come(peer, true), Err(DropReason::Prohibited), "{prohibited}");
            }
        }
    }

    #[test]
    fn a_peer_is_heard_when_the_client_has_spoken_to_it() {
        let (listeners, place) = (Arc::default(), place(1_000));
        let mut closed = peers(2, false, &listeners);
        let [one, other] = [address("192.0.2.1:53"), address("192.0.2.2:53")];
        assert_eq!(closed.may_come(one, false), Err(DropReason::UnknownPeer));
        closed.permit(one, &place).unwrap();
        assert_eq!(closed.may_come(one, false), Ok(()));
        assert_eq!(closed.may_come(address("192.0.2.1:9999"), false), Ok(()), "from another port");
        assert_eq!(closed.may_come(other, false), Err(DropReason::UnknownPeer));
        assert_eq!(closed.may_come(other, true), Ok(()), "one with a context");
        assert_eq!(peers(2, true, &listeners).may_come(other, false), Ok(()));
    }

    #[test]
    fn peers_are_bounded_in_number_and_rate() {
        let (listeners, slow) = (Arc::default(), place(10));
        let mut few = peers(3, false, &listeners);
        let peer = |number: u8| SocketAddr::from(([192, 0, 2, number], 53));
        for number in [1, 2, 3, 1, 4] {
            few.permit(peer(number), &slow).unwrap();
        }
        // 2 was not used for the longest time.
        let heard = (1..=4).filter(|number| few.may_come(peer(*number), false).is_ok()).collect::<Vec<_>>();
        assert_eq!((heard, few.held()), (vec![1, 3, 4], 3 * PEER));
        // The tunnel is one of ten, and the peers are four.
        let added = (5..60).filter(|number| few.permit(peer(*number), &slow).is_ok()).count();
        assert!((5..10).contains(&added), "{added}");
        assert_eq!(few.permit(peer(99), &slow), Err(DropReason::Rate));
        assert_eq!(few.held(), 3 * PEER);
    }
}
