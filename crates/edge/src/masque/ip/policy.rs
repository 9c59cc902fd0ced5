//! Policy for the packets of a client: which go on, and what the sender of the others is told (RFC 9484 §7).

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use h3_quic::connect_ip::{
    Packet, Prefix, RouteAdvertisement,
    icmp::{self, Report},
};

use super::super::{listeners::Listeners, rules::Rules};
use crate::observe::DropReason;

/// Fate of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Given to the kernel.
    Forward,
    /// Answered by the gateway with this packet.
    Answer(Vec<u8>),
    /// Dropped, with this packet to the sender.
    Drop(DropReason, Option<Vec<u8>>),
}

/// Policy of a tunnel.
pub(super) struct Policy {
    pub(super) rules: Arc<Rules>,
    pub(super) listeners: Arc<Listeners>,
    /// Addresses of the client.
    pub(super) assigned: Vec<IpAddr>,
    /// The gateway's addresses in the networks of clients, from which its own messages come.
    pub(super) routers: Vec<IpAddr>,
    /// Ranges that were advertised to the client.
    pub(super) routes: RouteAdvertisement,
}

impl Policy {
    /// The gateway's address of the same version.
    fn router(&self, like: IpAddr) -> Option<IpAddr> {
        self.routers.iter().copied().find(|router| router.is_ipv4() == like.is_ipv4())
    }

    fn router_v6(&self) -> Option<Ipv6Addr> {
        self.routers.iter().find_map(|router| if let IpAddr::V6(v6) = router { Some(*v6) } else { None })
    }

    /// Judges a packet of the client. `own` are the addresses of this machine.
    // RFC 9484 §7.2: local checks of policy, that of the source among them, and then the kernel's routing table
    pub(super) fn judge(&self, packet: &[u8], own: &[IpAddr]) -> Judgement {
        let Ok(header) = Packet::parse(packet) else { return Judgement::Drop(DropReason::Malformed, None) };
        let dropped = |reason, report| {
            let from = self.router(header.source);
            Judgement::Drop(reason, from.and_then(|from| icmp::report(packet, &header, report, from)))
        };
        // RFC 9484 §11 MUST-1, RFC 2827
        if !self.assigned.contains(&header.source) {
            return if header.is_link_local() {
                Judgement::Drop(DropReason::Spoofed, None)
            } else {
                dropped(DropReason::Spoofed, Report::SourceRefused)
            };
        }
        if header.is_multicast() || header.is_link_local() {
            let answer = self.router_v6().and_then(|from| icmp::answer_all_nodes(packet, &header, from));
            return answer.map_or(Judgement::Drop(DropReason::NoRoute, None), Judgement::Answer);
        }
        if !self.routes.takes(header.destination, header.protocol) {
            let is_in_range = self.routes.0.iter().any(|range| range.contains(header.destination));
            return if is_in_range {
                dropped(DropReason::Prohibited, Report::Prohibited)
            } else {
                dropped(DropReason::NoRoute, Report::NoRoute)
            };
        }
        // Port 0 is in no list: later fragments and protocols without ports go by their addresses.
        let target = SocketAddr::new(header.destination, header.ports.map_or(0, |(_, port)| port));
        if self.rules.check(target).is_err() || own.contains(&target.ip()) && !self.may_reach_own(target, &header) {
            return dropped(DropReason::Prohibited, Report::Prohibited);
        }
        Judgement::Forward
    }

    /// Returns whether a packet may go to this machine: as for UDP, to programs beside the gateway where `allow` names the address.
    fn may_reach_own(&self, target: SocketAddr, header: &Packet) -> bool {
        // The ports of later fragments are unknown.
        self.rules.allows(target.ip()) && !header.is_later_fragment && !self.listeners.take(target, target.ip())
    }

    /// Judges a packet for the client.
    // RFC 9484 §7.2: the same checks in the other direction
    pub(super) fn may_come(&self, header: &Packet) -> bool {
        self.routes.takes_from(header.source, header.protocol)
    }
}

/// Prefixes of single addresses.
pub(super) fn singles(addresses: &[IpAddr]) -> Vec<Prefix> {
    addresses.iter().map(|address| Prefix::of(*address)).collect()
}

#[cfg(test)]
mod tests {
    use h3_quic::connect_ip::{AddressRange, protocol};

    use super::*;
    use crate::config::Many;

    const CLIENT: [u8; 4] = [10, 89, 0, 9];

    fn many(list: &[&str]) -> Many {
        Many(list.iter().map(|text| (*text).to_owned()).collect())
    }

    fn policy(allow: &[&str], routes: &[(&str, u8)]) -> Policy {
        let ranges = routes.iter().map(|(prefix, protocol)| AddressRange::of(prefix.parse().unwrap(), *protocol));
        Policy {
            rules: Arc::new(Rules::new(&many(allow), &many(&["8.8.8.0/24"]), &[25])),
            listeners: Arc::default(),
            assigned: vec![CLIENT.into(), "fd00::9".parse().unwrap()],
            routers: vec!["10.89.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            routes: RouteAdvertisement::of(ranges),
        }
    }

    fn v4(source: [u8; 4], destination: &str, number: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(20 + payload.len()).unwrap();
        let head = [0x45, 0, 0, length, 0, 0, 0, 0, 64, number, 0, 0];
        let destination: std::net::Ipv4Addr = destination.parse().unwrap();
        [&head[..], &source, &destination.octets(), payload].concat()
    }

    fn udp(port: u16) -> [u8; 8] {
        [0, 99, port.to_be_bytes()[0], port.to_be_bytes()[1], 0, 8, 0, 0]
    }

    /// Type and code of the report, if there is one.
    fn outcome(policy: &Policy, packet: &[u8], own: &[&str]) -> (Option<DropReason>, Option<(u8, u8)>) {
        let own: Vec<IpAddr> = own.iter().map(|text| text.parse().unwrap()).collect();
        match policy.judge(packet, &own) {
            Judgement::Forward => (None, None),
            Judgement::Answer(_) => panic!("an answer"),
            Judgement::Drop(reason, report) => {
                let report = report.map(|report| {
                    assert_eq!(report[12..16], [10, 89, 0, 1], "from the gateway");
                    assert_eq!(report[16..20], packet[12..16], "to the sender");
                    (report[20], report[21])
                });
                (Some(reason), report)
            }
        }
    }

    /// RFC 9484 §7.2.1 SHOULD-1, RFC 9484 §11 MUST-1
    #[test]
    fn packets_go_to_public_hosts_from_the_client_s_address_alone() {
        let policy = policy(&["10.1.0.0/16"], &[("0.0.0.0/0", 0), ("::/0", 0)]);
        let own = ["192.0.2.77", "93.184.216.34", "10.1.0.1"];
        let prohibited = (Some(DropReason::Prohibited), Some((3, 13)));
        let forward = (None, None);
        for (destination, port, expected) in [
            ("1.1.1.1", 53, forward),
            ("10.1.2.3", 53, forward),
            // The port, `deny`, and addresses without a public host.
            ("1.1.1.1", 25, prohibited),
            ("8.8.8.8", 53, prohibited),
            ("10.2.0.1", 53, prohibited),
            ("10.89.0.1", 53, prohibited),
            ("10.89.0.7", 53, prohibited),
            ("127.0.0.1", 53, prohibited),
            ("100.100.100.200", 80, prohibited),
            // This machine, unless it is allowed.
            ("93.184.216.34", 22, prohibited),
            ("10.1.0.1", 22, forward),
            // Links and groups: nobody is told.
            ("169.254.169.254", 80, (Some(DropReason::NoRoute), None)),
            ("224.0.0.1", 53, (Some(DropReason::NoRoute), None)),
            ("255.255.255.255", 67, (Some(DropReason::NoRoute), None)),
        ] {
            let packet = v4(CLIENT, destination, protocol::UDP, &udp(port));
            assert_eq!(outcome(&policy, &packet, &own), expected, "{destination}:{port}");
        }
        let spoofed = v4([192, 0, 2, 1], "1.1.1.1", protocol::UDP, &udp(53));
        assert_eq!(outcome(&policy, &spoofed, &own), (Some(DropReason::Spoofed), Some((3, 13))));
        let link_local = v4([169, 254, 0, 1], "1.1.1.1", protocol::UDP, &udp(53));
        assert_eq!(outcome(&policy, &link_local, &own), (Some(DropReason::Spoofed), None));
        assert_eq!(outcome(&policy, b"no packet", &own), (Some(DropReason::Malformed), None));
        // No fragment goes around the ports of this machine's programs.
        let mut fragment = v4(CLIENT, "10.1.0.1", protocol::UDP, &udp(22));
        fragment[7] = 1;
        assert_eq!(outcome(&policy, &fragment, &own).0, Some(DropReason::Prohibited));
    }

    #[test]
    fn an_allowed_network_does_not_open_the_gateway_s_own_listeners() {
        let policy = policy(&["0.0.0.0/0"], &[("0.0.0.0/0", 0)]);
        policy.listeners.set(vec!["0.0.0.0:443".parse().unwrap()]);
        let own = ["192.0.2.77"];
        let to = |port| outcome(&policy, &v4(CLIENT, "192.0.2.77", protocol::TCP, &udp(port)), &own).0;
        assert_eq!((to(443), to(80)), (Some(DropReason::Prohibited), None));
    }

    /// RFC 9484 §4.6, §4.7.3
    #[test]
    fn packets_stay_within_the_scope() {
        let policy = policy(&[], &[("1.1.1.0/24", protocol::UDP)]);
        let to = |destination, number| outcome(&policy, &v4(CLIENT, destination, number, &udp(53)), &[]);
        assert_eq!(to("1.1.1.1", protocol::UDP), (None, None));
        assert_eq!(to("1.1.1.1", protocol::ICMP), (None, None));
        assert_eq!(to("1.1.1.1", protocol::TCP), (Some(DropReason::Prohibited), Some((3, 13))));
        assert_eq!(to("1.1.2.1", protocol::UDP), (Some(DropReason::NoRoute), Some((3, 0))));
        let from = |source: [u8; 4], number| {
            policy.may_come(&Packet::parse(&v4(source, "10.89.0.9", number, &udp(53))).unwrap())
        };
        assert!(from([1, 1, 1, 1], protocol::UDP) && from([9, 9, 9, 9], protocol::ICMP));
        assert!(!from([1, 1, 1, 1], protocol::TCP) && !from([9, 9, 9, 9], protocol::UDP));
    }

    /// RFC 9484 §7.2
    #[test]
    fn an_echo_request_to_all_nodes_is_answered() {
        let policy = policy(&[], &[("::/0", 0)]);
        let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let request = |source: &str| {
            [&[0x60, 0, 0, 0, 0, 8, 58, 255][..], &octets(source), &octets("ff02::1"), &[128, 0, 0, 0, 0, 1, 0, 2]]
                .concat()
        };
        let Judgement::Answer(answer) = policy.judge(&request("fd00::9"), &[]) else { panic!("no answer") };
        let header = Packet::parse(&answer).unwrap();
        assert_eq!((header.source, header.destination), ("fd00::1".parse().unwrap(), "fd00::9".parse().unwrap()));
        assert_eq!(policy.judge(&request("fe80::1"), &[]), Judgement::Drop(DropReason::Spoofed, None));
    }
}
