//! Packets between the TUN device and the tunnel.

use std::net::IpAddr;

use client::masque::{
    IpSender, SentPacket,
    connect_ip::{
        Packet, RouteAdvertisement,
        icmp::{self, Report},
    },
};
use serde_json::{Value, json};

use super::device::TunnelDevice;

/// Packets carried and dropped.
#[derive(Debug, Default)]
pub(super) struct Counts {
    up: u64,
    up_bytes: u64,
    down: u64,
    down_bytes: u64,
    too_large: u64,
    /// Dropped because source, destination or protocol are not what the proxy and this end have agreed on.
    foreign: u64,
    dropped: u64,
}

impl Counts {
    pub(super) fn json(&self) -> Value {
        json!({
            "up_packets": self.up, "up_bytes": self.up_bytes, "down_packets": self.down, "down_bytes": self.down_bytes,
            "too_large": self.too_large, "foreign": self.foreign, "dropped": self.dropped,
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{} packets up, {} down", self.up, self.down);
        let lost = [(self.too_large, "too large"), (self.foreign, "foreign"), (self.dropped, "dropped")];
        for (count, what) in lost.into_iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!(", {count} {what}"));
        }
        text
    }
}

/// Sends a packet of the device to the proxy.
pub(super) fn up(
    packet: &[u8],
    device: &TunnelDevice,
    routes: &RouteAdvertisement,
    sender: &mut IpSender,
    counts: &mut Counts,
) {
    let Ok(header) = Packet::parse(packet) else {
        counts.dropped += 1;
        return;
    };
    // The kernel speaks to its neighbours on each device: the tunnel has none.
    if header.is_multicast() || header.is_link_local() {
        return;
    }
    // From the far end: packets from an address of this machine are none that arrive.
    let tell = |report| {
        let report = icmp::report(packet, &header, report, header.destination);
        // One that is lost is sent again with the next packet.
        let _ = report.is_some_and(|report| device.write(&report));
    };
    // RFC 9484 §11 MUST-1: other sources would be spoofed
    if !device.has(header.source) || !routes.takes(header.destination, header.protocol) {
        counts.foreign += 1;
        return tell(if device.has(header.source) { Report::Prohibited } else { Report::SourceRefused });
    }
    // RFC 9484 §10.1 SHOULD-1
    match sender.send(packet) {
        SentPacket::Sent => {
            counts.up += 1;
            counts.up_bytes += packet.len() as u64;
        }
        SentPacket::TooLarge(mtu) => {
            counts.too_large += 1;
            tell(Report::TooBig { mtu });
        }
        SentPacket::Dropped => counts.dropped += 1,
    }
}

/// Gives a packet of the proxy to the kernel. Only those to the addresses of the tunnel: the proxy reaches nothing else on this machine.
pub(super) fn down(
    packet: &[u8],
    device: &TunnelDevice,
    own: Option<IpAddr>,
    routes: &RouteAdvertisement,
    sender: &mut IpSender,
    counts: &mut Counts,
) {
    let Ok(header) = Packet::parse(packet) else {
        counts.dropped += 1;
        return;
    };
    if let Some(IpAddr::V6(own)) = own
        && let Some(answer) = icmp::answer_all_nodes(packet, &header, own)
    {
        let _ = sender.send(&answer);
        return;
    }
    if !device.has(header.destination) || !routes.takes_from(header.source, header.protocol) {
        counts.foreign += 1;
    } else if device.write(packet) {
        counts.down += 1;
        counts.down_bytes += packet.len() as u64;
    } else {
        counts.dropped += 1;
    }
}
