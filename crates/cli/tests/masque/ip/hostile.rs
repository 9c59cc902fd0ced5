//! A client that breaks the rules: spoofed and malformed packets, and requests without end.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use client::{
    Settings, Trust,
    masque::{
        IpEvent, IpReceiver, IpSender, ProxyClient, ProxyError,
        connect_ip::{AddressAssign, Packet, Prefix, Scope, protocol},
    },
};

use super::{PROXY, QUERY, TARGET, dropped, figure, folder};
use crate::LIMIT;

/// The gateway in the network of its clients.
const GATEWAY: &str = "10.89.0.1";
/// Time after which a packet is sent again: datagrams may be lost.
const AGAIN: Duration = Duration::from_millis(300);

pub(super) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(LIMIT, client()).await.unwrap();
    });
}

/// A UDP datagram, with a sum of 0 for none.
fn udp(source: Ipv4Addr) -> Vec<u8> {
    let destination: Ipv4Addr = TARGET.parse().unwrap();
    let payload = [&[0x30, 0x39, 0, 53, 0, u8::try_from(8 + QUERY.len()).unwrap(), 0, 0], QUERY].concat();
    let total = u8::try_from(20 + payload.len()).unwrap();
    let head = [0x45, 0, 0, total, 0, 0, 0, 0, 64, 17, 0, 0];
    let mut packet = [&head[..], &source.octets(), &destination.octets()].concat();
    let mut sum: u32 = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
    [packet, payload].concat()
}

/// The next message of the proxy for which `find` has something.
async fn next<T>(receiver: &mut IpReceiver, mut find: impl FnMut(IpEvent) -> Option<T>) -> T {
    loop {
        let event = receiver.recv().await.unwrap().expect("the tunnel has ended");
        if let Some(found) = find(event) {
            return found;
        }
    }
}

async fn addresses(receiver: &mut IpReceiver) -> AddressAssign {
    next(receiver, |event| if let IpEvent::Addresses(assigned) = event { Some(assigned) } else { None }).await
}

/// Sends a packet until one from `source` with this protocol comes back.
async fn exchange(
    sender: &mut IpSender,
    receiver: &mut IpReceiver,
    packet: &[u8],
    source: &str,
    number: u8,
) -> Vec<u8> {
    let source: IpAddr = source.parse().unwrap();
    let is_answer = |packet: &[u8]| {
        let header = Packet::parse(packet).unwrap();
        (header.source, header.protocol) == (source, number)
    };
    loop {
        sender.send(packet);
        let answer = next(receiver, |event| match event {
            IpEvent::Packet(packet) if is_answer(&packet) => Some(packet.to_vec()),
            _ => None,
        });
        if let Ok(answer) = tokio::time::timeout(AGAIN, answer).await {
            return answer;
        }
    }
}

async fn client() {
    let certificate = std::fs::read(folder().join("cert.pem")).unwrap();
    let settings = Settings { trust: Trust::Pem(certificate), ..Settings::default() };
    let proxy = ProxyClient::for_ip(&settings, PROXY, None).unwrap();
    let (mut sender, mut receiver) = proxy.open_ip(&Scope::default()).await.unwrap().split();
    let assigned = addresses(&mut receiver).await.prefixes();
    let own = assigned.iter().find_map(|prefix| if let IpAddr::V4(v4) = prefix.address() { Some(v4) } else { None });
    let own = own.unwrap();
    // A packet from the assigned address has its answer.
    exchange(&mut sender, &mut receiver, &udp(own), TARGET, protocol::UDP).await;
    // The address of a neighbour is spoofed: the packet is dropped and counted, and the sender is told (type 3, code 13).
    let spoofed = udp(Ipv4Addr::from(u32::from(own) ^ 1));
    let up = || figure("tiderace_edge_tunnel_datagrams_total{kind=\"ip\",direction=\"up\"}");
    let before = up();
    let report = exchange(&mut sender, &mut receiver, &spoofed, GATEWAY, protocol::ICMP).await;
    assert_eq!((report[20], report[21]), (3, 13));
    assert_eq!(report[28..48], spoofed[..20], "the packet is quoted");
    // Nor does one of many go on.
    for _ in 0..2_000 {
        sender.send(&spoofed);
        tokio::task::yield_now().await;
    }
    while dropped("up", "spoofed") < 100.0 {
        sender.send(&spoofed);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(up(), before, "none of them went on");
    // Text, a bit pattern, and nothing at all are no packets.
    while dropped("up", "malformed") < 3.0 {
        for packet in [&b"no packet"[..], &[0x45; 60], &[]] {
            sender.send(packet);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    exchange(&mut sender, &mut receiver, &udp(own), TARGET, protocol::UDP).await;
    request_without_end(&mut sender, &mut receiver).await;
    proxy.close().await;
}

/// The first request of a version has the address again. More requests than a tunnel may have end it.
async fn request_without_end(sender: &mut IpSender, receiver: &mut IpReceiver) {
    let any = [Prefix::of(IpAddr::from([0; 4])); 2];
    sender.request(&any);
    let answer = addresses(receiver).await;
    let entries: Vec<_> = answer.0.iter().map(|entry| (entry.request_id, entry.is_refusal())).collect();
    assert_eq!(entries[..2], [(1, false), (2, true)], "one address of a version: {answer:?}");
    assert_eq!(answer.prefixes().len(), 2);
    let mut requests = 1;
    let error = loop {
        sender.request(&any);
        requests += 1;
        match receiver.recv().await {
            Ok(Some(_)) => assert!(requests < 1_000, "requests have no end"),
            Ok(None) => panic!("a clean end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ProxyError::Broken(_)), "{error:?}");
}
