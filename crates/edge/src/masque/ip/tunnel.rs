//! IP tunnel (RFC 9484): the TUN device, and on the client's side HTTP datagrams or capsules.
//!
//! - Towards the kernel: a packet that the policy permits is written to the device at once. There is no queue here.
//! - Towards the client: a packet that does not fit into a QUIC datagram is dropped, and its sender is told. Over HTTP/2 and HTTP/1.1 all
//!   packets are capsules.
//!
//! The kernel is the router. It decrements the hop limit of what it forwards in both directions, and reports packets whose hop limit is
//! used up (RFC 9484 §7.2 leaves that to it), so that the gateway is one hop.

use std::{net::IpAddr, sync::Arc, time::Duration};

use h3_quic::{
    capsule::{self, Capsules},
    connect_ip::{
        ADDRESS_ASSIGN, ADDRESS_REQUEST, AddressAssign, AddressRequest, AssignedAddress, Content, MAX_PACKET,
        ROUTE_ADVERTISEMENT, RouteAdvertisement,
    },
};
use tiderace::Charge;
use tokio::{sync::mpsc, time::Instant};

use super::{
    super::{clients::TunnelPlace, udp::End},
    device::Lease,
    policy::{Judgement, Policy, singles},
    queue::Queued,
};
use crate::{
    ending::{Ending, ErrorWithEnding},
    observe::{Direction, DropReason, Traffic},
};

/// The longest DATAGRAM capsule: the longest packet, and the longest form of its context ID.
pub(super) const MAX_CAPSULE: usize = MAX_PACKET + 8;
/// The longest capsule about addresses and routes.
const MAX_CONTROL: usize = 4 * 1024;
/// Requests for addresses in the life of a tunnel: their IDs are remembered, since none may come twice.
const MAX_REQUESTS: usize = 64;
/// Reports to the senders of packets per second (RFC 4443 §2.4).
const REPORTS_PER_SECOND: u32 = 100;

/// Reports of the current second.
pub(super) struct Reports {
    since: Instant,
    count: u32,
}

impl Reports {
    pub(super) fn may_send(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            *self = Self { since: now, count: 0 };
        }
        self.count += 1;
        self.count <= REPORTS_PER_SECOND
    }
}

/// Message for the client.
pub(super) enum Reply {
    Packet(Vec<u8>),
    Capsule(u64, Vec<u8>),
}

/// A tunnel.
pub(in super::super) struct IpTunnel {
    pub(super) lease: Lease,
    pub(super) waiting: mpsc::Receiver<Queued>,
    pub(super) policy: Policy,
    pub(in super::super) traffic: Arc<Traffic>,
    place: TunnelPlace,
    pub(super) idle_timeout: Duration,
    pub(super) reports: Reports,
    /// IDs of the client's requests for addresses.
    requests: Vec<u64>,
}

impl IpTunnel {
    pub(super) fn new(
        lease: Lease,
        waiting: mpsc::Receiver<Queued>,
        policy: Policy,
        traffic: Arc<Traffic>,
        place: TunnelPlace,
        idle_timeout: Duration,
    ) -> Self {
        let reports = Reports { since: Instant::now(), count: 0 };
        Self { lease, waiting, policy, traffic, place, idle_timeout, reports, requests: Vec::new() }
    }

    pub(super) fn has_ipv6(&self) -> bool {
        self.lease.addresses().iter().any(IpAddr::is_ipv6)
    }

    /// Addresses and routes, which the client gets before it asks.
    // RFC 9484 §4.7.1 SHALL-2
    pub(super) fn introduction(&self) -> [Reply; 2] {
        let assigned = singles(self.lease.addresses()).into_iter();
        let assigned = AddressAssign(assigned.map(|prefix| AssignedAddress { request_id: 0, prefix }).collect());
        [
            Reply::Capsule(ADDRESS_ASSIGN, assigned.encode()),
            Reply::Capsule(ROUTE_ADVERTISEMENT, self.policy.routes.encode()),
        ]
    }

    /// Takes a packet of the client.
    // RFC 9484 §7.2.1 SHOULD-1: what is wrong with a packet is no violation of the protocol
    pub(super) fn up(&mut self, datagram: &[u8]) -> Option<Reply> {
        let Content::Packet(packet) = Content::parse(datagram) else {
            self.traffic.on_drop(Direction::Up, DropReason::UnknownContext);
            return None;
        };
        if !self.place.may_carry(packet.len()) {
            self.traffic.on_drop(Direction::Up, DropReason::Rate);
            return None;
        }
        match self.policy.judge(packet, &self.lease.device().own()) {
            Judgement::Forward => {
                match self.lease.device().write(packet) {
                    Ok(()) => self.traffic.on_datagram(Direction::Up, packet.len()),
                    Err(error) => self.traffic.on_drop(Direction::Up, DropReason::of(&error)),
                }
                None
            }
            Judgement::Answer(answer) => self.reports.may_send(Instant::now()).then_some(Reply::Packet(answer)),
            Judgement::Drop(reason, report) => {
                self.traffic.on_drop(Direction::Up, reason);
                report.filter(|_| self.reports.may_send(Instant::now())).map(Reply::Packet)
            }
        }
    }

    /// Takes a capsule of the client.
    // RFC 9484 §4.7.1 MUST-4, RFC 9484 §4.7.2 MUST-4, RFC 9484 §4.7.3 MUST-3: a malformed one ends the stream
    fn control(&mut self, capsule: &capsule::Capsule) -> Result<Option<Reply>, End> {
        match capsule.ty {
            capsule::DATAGRAM => return Ok(self.up(&capsule.value)),
            _ if capsule.value.len() > MAX_CONTROL => {
                return Err(End::malformed("a capsule of more than 4 KiB about addresses or routes"));
            }
            ADDRESS_REQUEST => return self.assign(&capsule.value).map(Some),
            // Networks behind the client are not routed to.
            ADDRESS_ASSIGN => drop(AddressAssign::parse(&capsule.value).map_err(End::malformed)?),
            _ => drop(RouteAdvertisement::parse(&capsule.value).map_err(End::malformed)?),
        }
        Ok(None)
    }

    /// Answers a request for addresses with those that the tunnel has: the first request of a version gets the address of that version, and
    /// others none.
    // RFC 9484 §4.7.1 SHALL-1, SHALL-2, RFC 9484 §4.7.2 SHOULD-1, SHALL-3, SHALL-4, SHOULD NOT-1: each answer is made anew, so that none
    // repeats a refusal
    fn assign(&mut self, value: &[u8]) -> Result<Reply, End> {
        let requested = AddressRequest::parse(value).map_err(End::malformed)?.0;
        let mut left = singles(self.lease.addresses());
        let mut answer = Vec::new();
        for request in &requested {
            // RFC 9484 §4.7.2 MUST NOT-1
            if self.requests.contains(&request.request_id) {
                return Err(End::malformed(format_args!("the request ID {} is used twice", request.request_id)));
            }
            if self.requests.len() == MAX_REQUESTS {
                return Err(End::malformed(format_args!("more than {MAX_REQUESTS} requests for addresses")));
            }
            self.requests.push(request.request_id);
            let is_v4 = request.prefix.address().is_ipv4();
            answer.push(match left.iter().position(|prefix| prefix.address().is_ipv4() == is_v4) {
                Some(at) => AssignedAddress { request_id: request.request_id, prefix: left.swap_remove(at) },
                None => AssignedAddress::refused(request),
            });
        }
        // All addresses are in each capsule.
        answer.extend(left.into_iter().map(|prefix| AssignedAddress { request_id: 0, prefix }));
        Ok(Reply::Capsule(ADDRESS_ASSIGN, AddressAssign(answer).encode()))
    }

    /// Takes the capsules of the next bytes of the client's stream.
    pub(super) fn take_capsules(
        &mut self,
        capsules: &mut Capsules,
        piece: &[u8],
        (charge, base): (&mut Charge, u64),
        mut reply: impl FnMut(&mut Self, Reply) -> Result<(), End>,
    ) -> Result<(), End> {
        capsules.push(piece);
        while let Some(capsule) = capsules.take().map_err(End::malformed)? {
            if let Some(said) = self.control(&capsule)? {
                reply(self, said)?;
            }
        }
        if !charge.try_set(base + capsules.held() as u64) {
            return Err(held_too_much("the connection holds too much for another capsule"));
        }
        Ok(())
    }

    /// Returns whether a packet may go to the client.
    pub(super) fn may_go_down(&self, queued: &Queued) -> bool {
        let reason = if !self.policy.may_come(&queued.header) {
            DropReason::NoRoute
        } else if !self.place.may_carry(queued.packet.len()) {
            DropReason::Rate
        } else {
            return true;
        };
        self.traffic.on_drop(Direction::Down, reason);
        false
    }
}

pub(super) fn new_capsules() -> Capsules {
    Capsules::among(&[capsule::DATAGRAM, ADDRESS_ASSIGN, ADDRESS_REQUEST, ROUTE_ADVERTISEMENT], MAX_CAPSULE)
}

pub(super) fn held_too_much(what: &str) -> End {
    End::Broken(ErrorWithEnding::error(Ending::Memory, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4443 §2.4
    #[test]
    fn reports_of_a_second_are_bounded() {
        let begun = Instant::now();
        let mut reports = Reports { since: begun, count: 0 };
        let mut sent = |millis| (0..1_000).filter(|_| reports.may_send(begun + Duration::from_millis(millis))).count();
        assert_eq!([0, 999, 1_000, 1_500, 9_000].map(&mut sent), [100, 0, 100, 0, 100]);
    }
}
