//! Datagrams as large as those of WireGuard whose device has an MTU of 1,280, through a tunnel for UDP; and IP packets of 1,280 bytes
//! through a tunnel for IP. Neither is fragmented, inside or outside.

use std::{
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use super::{PROXY, TARGET, TARGET_V6, Tunnel, dropped, folder};
use crate::{LIMIT, program::Service};

/// A packet of 1,280 bytes, with the header (16 bytes) and the tag (16 bytes) of WireGuard.
const WIREGUARD: usize = 1_280 + 32;
/// Payloads that make IP packets of 1,280 bytes.
const PAYLOADS: [(&str, usize); 2] = [(TARGET, 1_280 - 28), (TARGET_V6, 1_280 - 48)];
const DATAGRAMS: u16 = 300;

/// Fragments that this end has made, and packets that it has put together.
fn fragments() -> u64 {
    let column = |text: &str, name: &str| -> u64 {
        let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|column| column == name).unwrap();
        values.split(' ').nth(at).unwrap().parse().unwrap()
    };
    let v4 = std::fs::read_to_string("/proc/self/net/snmp").unwrap();
    let v6 = std::fs::read_to_string("/proc/self/net/snmp6").unwrap();
    let v6 = v6.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let v6 = v6.filter(|(name, _)| ["Ip6FragCreates", "Ip6ReasmReqds"].contains(name));
    let v6: u64 = v6.map(|(_, value)| value.trim().parse::<u64>().unwrap()).sum();
    column(&v4, "FragCreates") + column(&v4, "ReasmReqds") + v6
}

/// Sends datagrams one by one, each until it comes back.
fn exchange(to: SocketAddr, size: usize) {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.connect(to).unwrap();
    let mut answer = vec![0; 65_536];
    for number in 0..DATAGRAMS {
        // The target sends back the third byte as 0x81.
        let mut payload = vec![0x81; size];
        payload[..2].copy_from_slice(&number.to_be_bytes());
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "{size} bytes do not come back from {to}");
            let _ = socket.send(&payload);
            let answered =
                std::iter::from_fn(|| socket.recv(&mut answer).ok().map(|length| answer[..length] == payload));
            // An answer that comes late is one to an earlier copy.
            if answered.into_iter().any(|is_own| is_own) {
                break;
            }
        }
    }
}

pub(super) fn run() {
    let ca = folder().join("cert.pem");
    let arguments = ["masque", "udp", "--http3", "--json", "--listen", "127.0.0.1:0", "--proxy", PROXY, "--ca"];
    let target = format!("{TARGET}:53");
    let udp = Service::start(&[&arguments[..], &[ca.to_str().unwrap(), &target]].concat());
    let before = fragments();
    exchange(udp.address().parse().unwrap(), WIREGUARD);
    println!("measured datagrams of {WIREGUARD} bytes that came back: {DATAGRAMS}");
    udp.interrupt();
    let tunnel = Tunnel::start(&["--http3"]);
    // The tunnel for UDP has dropped the datagrams that came before the MTU was known.
    let too_large = dropped("down", "too-large");
    for (target, size) in PAYLOADS {
        exchange(SocketAddr::new(target.parse().unwrap(), 53), size);
    }
    println!("measured IP packets of 1280 bytes that came back: {}", 2 * DATAGRAMS);
    assert_eq!(dropped("down", "too-large"), too_large);
    tunnel.end();
    // A tunnel without IPv6 does not wait until the path is known to carry 1,280 bytes: the search begins all the same.
    let tunnel = Tunnel::start(&["--http3", "--target", TARGET, "--protocol", "udp"]);
    std::thread::sleep(Duration::from_millis(500));
    let (target, size) = PAYLOADS[0];
    exchange(SocketAddr::new(target.parse().unwrap(), 53), size);
    assert_eq!(dropped("down", "too-large"), too_large);
    tunnel.end();
    println!("measured fragments: {}", fragments() - before);
    assert_eq!(fragments(), before);
}
