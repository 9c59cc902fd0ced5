//! Tunnel for many peers (bound UDP, draft-ietf-masque-connect-udp-listen): sockets that are not connected, and on the client's side HTTP
//! datagrams or capsules, whose context IDs say which peer they are for.
//!
//! - Towards peers: `peers` judges each datagram. One for which the socket has no room is dropped. There is no queue here.
//! - Towards the client: as in a tunnel to one target, `super::udp`.
//! - The gateway registers no contexts of its own. Answers to capsules wait for the client up to a limit, at which the tunnel is aborted.

mod addresses;
mod over_h3;
mod over_stream;
mod peers;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use h3_quic::{
    capsule::{self, Capsules},
    connect_udp::{
        MAX_PAYLOAD,
        bound::{Compression, ContextHeader, Contexts, End as TunnelEnd, Received},
    },
};
use http::HeaderMap;
use tiderace::Charge;

use self::peers::Peers;
pub(super) use self::{addresses::Sockets, peers::Policy};
use super::{clients::TunnelPlace, udp::End};
use crate::{
    config,
    ending::{Ending, ErrorWithEnding},
    observe::{Direction, DropReason, Traffic},
};

/// The longest DATAGRAM capsule: the longest UDP payload, with the longest context ID and an address.
const MAX_CAPSULE: usize = MAX_PAYLOAD + 8 + 19;
/// Bytes of answers to capsules that wait for a client: more than those to registrations of as many contexts as a tunnel can have.
// draft-ietf-masque-connect-udp-listen §9 MUST: at this limit the stream is aborted
const MAX_ANSWERS: usize = 8 * 1024;

/// A tunnel.
pub(super) struct BoundTunnel {
    sockets: Sockets,
    state: State,
    idle_timeout: Duration,
}

/// All of a tunnel but its sockets.
struct State {
    contexts: Contexts,
    peers: Peers,
    /// The target of the request, which has context 0.
    target: Option<SocketAddr>,
    traffic: Arc<Traffic>,
    place: TunnelPlace,
    /// Capsules that wait for the client.
    answers: Vec<u8>,
}

impl BoundTunnel {
    pub(super) fn new(
        config: &config::Proxy,
        sockets: Sockets,
        (policy, target): (Policy, Option<SocketAddr>),
        traffic: Arc<Traffic>,
        place: TunnelPlace,
    ) -> Self {
        let contexts = Contexts::new(TunnelEnd::Proxy, config.bound_udp_contexts, target.is_some());
        let peers = Peers::new(policy, config.bound_udp_peers, config.bound_udp_any_peer);
        let state = State { contexts, peers, target, traffic, place, answers: Vec::new() };
        Self { sockets, state, idle_timeout: config.idle_timeout.0 }
    }

    pub(super) fn traffic(&self) -> &Arc<Traffic> {
        &self.state.traffic
    }

    /// Adds the fields of the answer by which the client learns that it has a bound tunnel.
    pub(super) fn announce(&self, fields: &mut HeaderMap) {
        self.sockets.announce(fields);
    }

    /// Takes the capsules of the next bytes of the client's stream.
    fn take_capsules(&mut self, capsules: &mut Capsules, piece: &[u8], charge: &mut Held<'_>) -> Result<(), End> {
        capsules.push(piece);
        while let Some(capsule) = capsules.take().map_err(End::malformed)? {
            if capsule.ty == capsule::DATAGRAM {
                self.up(&capsule.value)?;
            } else {
                let parsed = Compression::parse(capsule.ty, &capsule.value).map_err(End::malformed)?;
                self.on_compression(&parsed)?;
            }
        }
        charge.settle(&self.state, capsules.held())
    }

    /// Takes a capsule about a context ID, and adds the answers to those that wait.
    fn on_compression(&mut self, capsule: &Compression) -> Result<(), End> {
        let Self { sockets, state: State { contexts, peers, place, answers, .. }, .. } = self;
        let permits = |peer: SocketAddr| sockets.reach(peer.ip()) && peers.permit(peer, place).is_ok();
        let mut said = Vec::new();
        contexts.take(capsule, permits, &mut said).map_err(End::malformed)?;
        said.iter().for_each(|capsule| capsule.write(answers));
        if answers.len() > MAX_ANSWERS {
            return Err(held_too_much("the client does not read the capsules of its tunnel"));
        }
        Ok(())
    }

    /// Sends the payload of an HTTP datagram to its peer.
    // RFC 9298 §6 SHOULD-1, SHOULD NOT-1: at once, and nothing waits for more
    fn up(&mut self, datagram: &[u8]) -> Result<(), End> {
        let Self { sockets, state, .. } = self;
        match state.judge_up(sockets, datagram)? {
            Ok((peer, payload)) => match sockets.try_send(peer, payload) {
                Ok(()) => state.traffic.on_datagram(Direction::Up, payload.len()),
                // That one peer cannot be reached is no end of a tunnel to others.
                Err(error) => state.traffic.on_drop(Direction::Up, DropReason::of(&error)),
            },
            Err(reason) => state.traffic.on_drop(Direction::Up, reason),
        }
        Ok(())
    }
}

impl State {
    /// Finds peer and payload of an HTTP datagram of the client, or the reason why it is dropped.
    fn judge_up<'a>(
        &mut self,
        sockets: &Sockets,
        datagram: &'a [u8],
    ) -> Result<Result<(SocketAddr, &'a [u8]), DropReason>, End> {
        let (peer, payload) = match (self.contexts.receive(datagram).map_err(End::malformed)?, self.target) {
            (Received::Payload(peer, payload), _) | (Received::Target(payload), Some(peer)) => (peer, payload),
            // RFC 9298 §5 SHALL-1, draft-ietf-masque-connect-udp-listen §3.3 MUST
            (Received::Unknown | Received::Target(_), _) => return Ok(Err(DropReason::UnknownContext)),
            (Received::Malformed, _) => return Ok(Err(DropReason::Malformed)),
        };
        // draft-ietf-masque-connect-udp-listen §7: datagrams to another IP version are dropped
        if !sockets.reach(peer.ip()) {
            return Ok(Err(DropReason::NoRoute));
        }
        Ok(match self.peers.permit(peer, &self.place) {
            Err(reason) => Err(reason),
            Ok(()) if !self.place.may_carry(payload.len()) => Err(DropReason::Rate),
            Ok(()) => Ok((peer, payload)),
        })
    }

    /// Header of a datagram of a peer for the client, or the reason why it is dropped.
    // draft-ietf-masque-connect-udp-listen §8: what has no registration is dropped
    fn judge_down(&self, peer: SocketAddr, payload: &[u8]) -> Result<ContextHeader, DropReason> {
        let is_target = self.target == Some(peer);
        let has_context = self.contexts.context_of(peer).is_some();
        self.peers.may_come(peer, has_context || is_target)?;
        let header = match is_target && !has_context {
            true => ContextHeader::target(),
            false => self.contexts.header(peer).ok_or(DropReason::UnknownPeer)?,
        };
        if self.place.may_carry(payload.len()) { Ok(header) } else { Err(DropReason::Rate) }
    }

    fn held(&self) -> usize {
        self.contexts.held() + self.peers.held() + self.answers.capacity()
    }
}

/// Memory of a tunnel, charged to the connection of its client.
struct Held<'a> {
    charge: &'a mut Charge,
    base: u64,
}

impl<'a> Held<'a> {
    fn new(charge: &'a mut Charge) -> Self {
        let base = charge.bytes();
        Self { charge, base }
    }

    /// Charges contexts, peers and answers, and `capsules` of the stream that are incomplete.
    fn settle(&mut self, state: &State, capsules: usize) -> Result<(), End> {
        let is_charged = self.charge.try_set(self.base + (state.held() + capsules) as u64);
        if is_charged {
            Ok(())
        } else {
            Err(held_too_much("the connection holds too much for another peer or capsule"))
        }
    }
}

fn new_capsules() -> Capsules {
    Capsules::among(&[&[capsule::DATAGRAM][..], &Compression::TYPES].concat(), MAX_CAPSULE)
}

fn held_too_much(what: &str) -> End {
    End::Broken(ErrorWithEnding::error(Ending::Memory, what))
}

/// A UDP payload behind its header, as a DATAGRAM capsule.
fn in_capsule(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(header.len() + payload.len() + 16);
    capsule::write_parts(&mut out, capsule::DATAGRAM, &[header, payload]);
    out
}
