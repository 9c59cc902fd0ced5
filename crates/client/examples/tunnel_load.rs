//! Load for a proxy of UDP: datagrams to a target or from it, through a tunnel (CONNECT-UDP) or through a plain relay.
//!
//! ```sh
//! cargo run --profile dist -p tiderace-client --example tunnel_load -- relay 127.0.0.1:5000 127.0.0.1:5001
//! cargo run --profile dist -p tiderace-client --example tunnel_load -- through-relay 127.0.0.1:5000 127.0.0.1:5001 up 100000
//! cargo run --profile dist -p tiderace-client --example tunnel_load -- through-tunnel 127.0.0.1:8443 root.pem 127.0.0.1:5001 down 100000
//! ```
//!
//! The relay needs its own address and that of the target. The load is the target, too: it opens a socket at that address, sends datagrams of
//! [`PAYLOAD`] bytes at one end and counts them at the other, with at most [`WINDOW`] in between. Prints datagrams that arrived, datagrams
//! that were lost, and seconds.

use std::{
    net::{SocketAddr, UdpSocket as StdSocket},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tiderace_client::{
    Settings, Trust,
    masque::{ProxyClient, SentPayload, UdpReceiver, UdpSender},
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
        _ => Err("expected: relay LISTEN TARGET | through-relay RELAY TARGET up|down DATAGRAMS | \
                  through-tunnel PROXY ROOT TARGET up|down DATAGRAMS"
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

/// The client's end.
enum Near {
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
        }
        Ok(())
    }

    /// Waits for datagrams. Returns how many have come together.
    async fn receive(&mut self, buffer: &mut [u8]) -> Result<u64, Error> {
        let mut count = 1;
        match self {
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
        let Self::Tunnel(tunnel) = self else { return Ok(()) };
        for _ in 0..ATTEMPTS {
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
                        Direction::Down => drop(self.far.send(&payload).await?),
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
    far.connect(from.ok_or("no datagram reaches the target")?).await?;
    // What was sent before the path was known does not count.
    while tokio::time::timeout(PATIENCE, receive(&far, &mut buffer)).await.is_ok() {}
    let mut load = Load { near, far, direction, buffer };
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
