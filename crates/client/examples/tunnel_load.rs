//! Load for a proxy of UDP or of IP: datagrams to a target or from it, through a tunnel (CONNECT-UDP, CONNECT-IP) or through a plain relay.
//!
//! ```sh
//! cargo run --profile dist -p tiderace-client --example tunnel_load -- relay 127.0.0.1:5000 127.0.0.1:5001
//! cargo run --profile dist -p tiderace-client --example tunnel_load -- through-relay 127.0.0.1:5000 127.0.0.1:5001 up 100000
//! cargo run --profile dist -p tiderace-client --example tunnel_load -- through-tunnel 127.0.0.1:8443 root.pem 127.0.0.1:5001 down 100000
//! cargo run --profile dist -p tiderace-client --example tunnel_load -- through-ip 127.0.0.1:8443 root.pem 10.77.0.1:5001 down 100000
//! ```
//!
//! The relay needs its own address and that of the target. The load is the target, too: it opens a socket at that address, sends datagrams of
//! [`PAYLOAD`] bytes at one end and counts them at the other, with at most [`WINDOW`] in between. Through CONNECT-IP it writes the headers of IP
//! and UDP itself, and the target is an address in the network namespace of the proxy, where the load has to run. Prints datagrams that arrived, datagrams
//! that were lost, and seconds.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket as StdSocket},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use quinn_udp::UdpSocketState;
use tiderace_client::{
    Settings, Trust,
    masque::{
        IpEvent, IpReceiver, IpSender, ProxyClient, SentPacket, SentPayload, UdpReceiver, UdpSender,
        connect_ip::{Prefix, Scope},
    },
    race::Leg,
};
use tokio::net::UdpSocket;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a datagram: those of a full packet of QUIC on a path whose MTU is not known.
const PAYLOAD: usize = 1_200;
/// Datagrams on their way. So many fit into the queues of the proxy (64 KiB for a tunnel) and of sockets, so that none has to be dropped.
const WINDOW: u64 = 32;
/// Datagrams that are sent together, as senders do that pace bursts. Without it, answers to single arrivals would make a load of single
/// datagrams, or of more, by chance.
const BURST: u64 = 16;
/// Time without an arrival after which the datagrams on their way count as lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// Headers of IPv4, without options, and UDP.
const HEADERS: usize = 28;
/// Port of the client's end of a tunnel for IP packets.
const NEAR_PORT: u16 = 40_000;
/// Attempts to get the first datagram through.
const ATTEMPTS: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl std::str::FromStr for Direction {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "up" => Ok(Self::Up),
            "down" => Ok(Self::Down),
            _ => Err("expected up or down".into()),
        }
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments[..] {
        ["relay", listen, target] => relay(listen.parse()?, target.parse()?),
        ["through-relay", relay, target, direction, datagrams] => runtime.block_on(async {
            let near = UdpSocket::bind("127.0.0.1:0").await?;
            near.connect(relay).await?;
            carry(Near::Socket(near), target.parse()?, direction.parse()?, datagrams.parse()?).await
        }),
        ["through-tunnel", proxy, root, target, direction, datagrams] => runtime.block_on(async {
            let (proxy, target): (SocketAddr, SocketAddr) = (proxy.parse()?, target.parse()?);
            let settings = Settings { trust: Trust::Pem(std::fs::read(root)?), ..Settings::default() };
            let client = ProxyClient::new(&settings, &format!("localhost:{}", proxy.port()), None)?.only(Leg::Quic);
            let (sender, receiver) = client.open_udp(&target.ip().to_string(), target.port()).await?.split();
            let near = Near::Tunnel(Box::new((sender, receiver)));
            carry(near, target, direction.parse()?, datagrams.parse()?).await?;
            client.close().await;
            Ok(())
        }),
        ["through-ip", proxy, root, target, direction, datagrams] => runtime.block_on(async {
            let (proxy, target): (SocketAddr, SocketAddrV4) = (proxy.parse()?, target.parse()?);
            let settings = Settings { trust: Trust::Pem(std::fs::read(root)?), ..Settings::default() };
            let client = ProxyClient::for_ip(&settings, &format!("localhost:{}", proxy.port()), None)?.only(Leg::Quic);
            let near = Near::Ip(Box::new(IpEnd::open(&client, target).await?));
            carry(near, target.into(), direction.parse()?, datagrams.parse()?).await?;
            client.close().await;
            Ok(())
        }),
        _ => Err("expected: relay LISTEN TARGET | through-relay RELAY TARGET up|down DATAGRAMS | \
                  through-tunnel PROXY ROOT TARGET up|down DATAGRAMS | through-ip PROXY ROOT TARGET up|down DATAGRAMS"
            .into()),
    }
}

/// Forwards datagrams both ways, each with a call that reads and one that writes. Answers go to the address that has sent last.
fn relay(listen: SocketAddr, target: SocketAddr) -> Result<(), Error> {
    let (near, far) = (Arc::new(StdSocket::bind(listen)?), Arc::new(StdSocket::bind("127.0.0.1:0")?));
    far.connect(target)?;
    let client = Arc::new(Mutex::new(None));
    let (to, back, last) = (near.clone(), far.clone(), client.clone());
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        loop {
            // Errors are reports about what was sent before.
            let Ok(length) = back.recv(&mut buffer) else { continue };
            let client = *last.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(client) = client {
                let _ = to.send_to(&buffer[..length], client);
            }
        }
    });
    let mut buffer = [0; 65_536];
    let mut known = None;
    loop {
        let Ok((length, from)) = near.recv_from(&mut buffer) else { continue };
        if known != Some(from) {
            known = Some(from);
            *client.lock().unwrap_or_else(PoisonError::into_inner) = known;
        }
        let _ = far.send(&buffer[..length]);
    }
}

/// The client's end of a tunnel for IP packets.
struct IpEnd {
    sender: IpSender,
    receiver: IpReceiver,
    /// Headers of IPv4 and UDP, and room for a payload.
    packet: Vec<u8>,
}

impl IpEnd {
    /// Opens a tunnel and waits for an address.
    async fn open(client: &ProxyClient, target: SocketAddrV4) -> Result<Self, Error> {
        let (mut sender, mut receiver) = client.open_ip(&Scope::default()).await?.split();
        sender.request(&[Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 32)?]);
        loop {
            let event = tokio::time::timeout(PATIENCE * 10, receiver.recv()).await.map_err(|_| "no address comes")?;
            let IpEvent::Addresses(assigned) = event?.ok_or("the proxy has closed the tunnel")? else { continue };
            let of_v4 = assigned.0.iter().find_map(|one| match one.prefix.address() {
                IpAddr::V4(address) if !address.is_unspecified() => Some(address),
                _ => None,
            });
            if let Some(source) = of_v4 {
                return Ok(Self { sender, receiver, packet: packet(source, target) });
            }
        }
    }

    fn send(&mut self, payload: &[u8]) -> SentPacket {
        self.packet[HEADERS..].copy_from_slice(payload);
        self.sender.send(&self.packet)
    }

    async fn receive(&mut self) -> Result<u64, Error> {
        let mut count = 0;
        if let IpEvent::Packet(packet) = self.receiver.recv().await?.ok_or("the proxy has closed the tunnel")? {
            count += is_payload(&packet);
        }
        while let Some(packet) = self.receiver.try_recv() {
            count += is_payload(&packet);
        }
        Ok(count)
    }
}

/// Returns 1 for a packet of the load. The kernel may send others.
fn is_payload(packet: &[u8]) -> u64 {
    u64::from(packet.len() == HEADERS + PAYLOAD && packet[9] == 17)
}

/// A packet without payload: a checksum of UDP of 0 means none (RFC 768).
fn packet(source: Ipv4Addr, target: SocketAddrV4) -> Vec<u8> {
    let length = (HEADERS + PAYLOAD) as u16;
    let mut packet = vec![0; HEADERS + PAYLOAD];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[6] = 0x40;
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&target.ip().octets());
    let words = packet[..20].chunks_exact(2);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet[20..22].copy_from_slice(&NEAR_PORT.to_be_bytes());
    packet[22..24].copy_from_slice(&target.port().to_be_bytes());
    packet[24..26].copy_from_slice(&(length - 20).to_be_bytes());
    packet
}

/// The client's end.
enum Near {
    Ip(Box<IpEnd>),
    Socket(UdpSocket),
    Tunnel(Box<(UdpSender, UdpReceiver)>),
}

impl Near {
    async fn send(&mut self, payload: &[u8]) -> Result<(), Error> {
        match self {
            Self::Socket(socket) => drop(socket.send(payload).await?),
            Self::Tunnel(tunnel) => match tunnel.0.send(payload) {
                SentPayload::Datagram => {}
                other => return Err(format!("a payload was not sent in a datagram: {other:?}").into()),
            },
            Self::Ip(end) => match end.send(payload) {
                SentPacket::Sent => {}
                other => return Err(format!("a packet was not sent: {other:?}").into()),
            },
        }
        Ok(())
    }

    /// Waits for datagrams. Returns how many have come together.
    async fn receive(&mut self, buffer: &mut [u8]) -> Result<u64, Error> {
        let mut count = 1;
        match self {
            Self::Ip(end) => count = end.receive().await?,
            Self::Socket(socket) => {
                check(socket.recv(buffer).await?)?;
                while let Ok(length) = socket.try_recv(buffer) {
                    check(length)?;
                    count += 1;
                }
            }
            Self::Tunnel(tunnel) => {
                check(tunnel.1.recv().await?.ok_or("the proxy has closed the tunnel")?.len())?;
                while let Some(payload) = tunnel.1.try_recv() {
                    check(payload.len())?;
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// Waits until the path of a tunnel is known to carry payloads in datagrams.
    async fn ready(&mut self) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let tunnel = match self {
                Self::Socket(_) => return Ok(()),
                Self::Tunnel(tunnel) => tunnel,
                Self::Ip(end) if end.sender.mtu().is_some_and(|mtu| mtu >= HEADERS + PAYLOAD) => return Ok(()),
                Self::Ip(_) => {
                    tokio::time::sleep(PATIENCE).await;
                    continue;
                }
            };
            if tunnel.0.max_datagram().is_some_and(|max| max >= PAYLOAD) {
                return Ok(());
            }
            // Goes as a capsule, and begins the search for the MTU.
            tunnel.0.send(&[0; PAYLOAD]);
            tokio::time::sleep(PATIENCE).await;
        }
        Err("the path carries no datagram of this size".into())
    }
}

fn check(length: usize) -> Result<(), Error> {
    if length == PAYLOAD { Ok(()) } else { Err(format!("a datagram of {length} bytes").into()) }
}

/// Waits for datagrams at a socket. Returns how many have come together.
async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<u64, Error> {
    socket.recv(buffer).await?;
    let mut count = 1;
    while socket.try_recv(buffer).is_ok() {
        count += 1;
    }
    Ok(count)
}

/// Both ends of a path, and the direction of its load.
struct Load {
    near: Near,
    far: UdpSocket,
    /// Set where `far` is not connected.
    far_to: Option<SocketAddr>,
    direction: Direction,
    buffer: Vec<u8>,
}

impl Load {
    /// Sends so many datagrams. Returns how many have arrived, and how many were lost.
    async fn run(&mut self, datagrams: u64) -> Result<(u64, u64), Error> {
        let payload = [7; PAYLOAD];
        let (mut sent, mut arrived, mut lost) = (0, 0, 0);
        while arrived + lost < datagrams {
            let burst = (WINDOW - (sent - arrived - lost)).min(datagrams - sent);
            if burst >= BURST || sent == arrived + lost {
                for _ in 0..burst {
                    match self.direction {
                        Direction::Up => self.near.send(&payload).await?,
                        Direction::Down => drop(match self.far_to {
                            None => self.far.send(&payload).await?,
                            Some(to) => self.far.send_to(&payload, to).await?,
                        }),
                    }
                }
                sent += burst;
            }
            let receiving = async {
                match self.direction {
                    Direction::Up => receive(&self.far, &mut self.buffer).await,
                    Direction::Down => self.near.receive(&mut self.buffer).await,
                }
            };
            match tokio::time::timeout(PATIENCE, receiving).await {
                Ok(count) => arrived += count?,
                Err(_) => lost = sent - arrived,
            }
        }
        Ok((arrived, lost))
    }
}

/// Carries so many datagrams and prints how it went.
async fn carry(mut near: Near, target: SocketAddr, direction: Direction, datagrams: u64) -> Result<(), Error> {
    let far = UdpSocket::bind(target).await?;
    let probes = direction == Direction::Down && matches!(near, Near::Ip(_));
    if probes {
        // The proxy answers packets by ICMP until it knows the MTU of its path to the client. The kernel would remember that for minutes, and
        // refuse to send: this makes the socket probe, as those of QUIC do.
        UdpSocketState::new((&far).into())?;
    }
    let mut buffer = vec![0; 65_536];
    near.ready().await?;
    // The first datagram tells the target where the other end is.
    let mut from = None;
    for _ in 0..ATTEMPTS {
        near.send(&[0; PAYLOAD]).await?;
        if let Ok(received) = tokio::time::timeout(PATIENCE, far.recv_from(&mut buffer)).await {
            from = Some(received?.1);
            break;
        }
    }
    let from = from.ok_or("no datagram reaches the target")?;
    if !probes {
        // A connected socket would report each ICMP message as an error.
        far.connect(from).await?;
    }
    // What was sent before the path was known does not count.
    while tokio::time::timeout(PATIENCE, receive(&far, &mut buffer)).await.is_ok() {}
    let far_to = probes.then_some(from);
    let mut load = Load { near, far, far_to, direction, buffer };
    // The proxy, too, has to find the MTU of its path: until then it has room for a few payloads only.
    let mut attempts = 0..ATTEMPTS;
    while load.run(WINDOW).await?.1 > 0 {
        attempts.next().ok_or("datagrams are lost whenever they are sent")?;
    }
    let begun = Instant::now();
    let (arrived, lost) = load.run(datagrams).await?;
    println!("{arrived} {lost} {}", begun.elapsed().as_secs_f64());
    Ok(())
}
