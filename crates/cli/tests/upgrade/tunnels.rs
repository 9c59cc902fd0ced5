//! Tunnels and a session of WebTransport through reloads and upgrades: the process that has accepted them goes on with them.

use std::net::SocketAddr;

use bytes::Bytes;
use client::{
    Settings, Trust,
    masque::{
        BoundReceiver, BoundSender, ProxyClient, ProxyError, SentPayload, TcpReceiver, TcpSender, UdpReceiver,
        UdpSender,
    },
};
use tokio::net::UdpSocket;
use webtransport::Session;

use crate::{
    clients::Site,
    fleet::Fleet,
    number,
    sessions::{echo_tcp, session, within},
};

/// A target over UDP that sends back what comes.
async fn echo_udp() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 2_000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..length], from).await;
        }
    });
    address
}

/// One tunnel of each kind, and a session.
struct Held {
    proxy: ProxyClient,
    udp: (UdpSender, UdpReceiver),
    bound: (BoundSender, BoundReceiver),
    tcp: (TcpSender, TcpReceiver),
    session: (tiderace::Endpoint, Session),
}

/// Targets over UDP and TCP.
#[derive(Clone, Copy)]
struct Targets {
    udp: SocketAddr,
    tcp: SocketAddr,
}

impl Held {
    async fn open(site: &Site, proxy: &str, targets: Targets) -> Self {
        let settings = Settings { trust: Trust::Anyone, ..Settings::default() };
        let proxy = ProxyClient::new(&settings, proxy, None).unwrap();
        let host = targets.udp.ip().to_string();
        let opening = async {
            let udp = proxy.open_udp(&host, targets.udp.port()).await?.split();
            let bound = proxy.open_bound_udp().await?.split();
            Ok::<_, ProxyError>((udp, bound, proxy.open_tcp(&host, targets.tcp.port()).await?.split()))
        };
        let (udp, bound, tcp) = within(opening).await.unwrap();
        Self { udp, bound, tcp, session: session(site).await, proxy }
    }

    /// Uses each of them once. A UDP payload may be lost on the way, and is sent again; a tunnel that has ended is not there any more.
    async fn exchange(&mut self, targets: Targets, number: u64) {
        let said = Bytes::copy_from_slice(&number.to_be_bytes());
        let (sender, receiver) = &mut self.udp;
        let udp = async {
            loop {
                assert_ne!(sender.send(&said), SentPayload::TooLarge);
                let heard = tokio::time::timeout(std::time::Duration::from_secs(1), receiver.recv()).await;
                if heard.is_ok_and(|heard| heard.unwrap().expect("CONNECT-UDP goes on") == said) {
                    break;
                }
            }
        };
        let (sender, receiver) = &mut self.bound;
        let bound = async {
            loop {
                assert_ne!(sender.send(targets.udp, &said), SentPayload::TooLarge);
                let heard = tokio::time::timeout(std::time::Duration::from_secs(1), receiver.recv()).await;
                if heard.is_ok_and(|heard| heard.unwrap().expect("bound UDP goes on") == (targets.udp, said.clone())) {
                    break;
                }
            }
        };
        let (sender, receiver) = &mut self.tcp;
        let tcp = async {
            sender.send(said.clone()).await.unwrap();
            let mut heard = Vec::new();
            while heard.len() < said.len() {
                heard.extend(receiver.recv().await.unwrap().expect("CONNECT goes on"));
            }
            assert_eq!(heard, said);
        };
        let session = async {
            let (mut send, mut recv) = self.session.1.open_bi().await.unwrap();
            send.write_all(&said).await.unwrap();
            send.finish().unwrap();
            assert_eq!(recv.read_to_end(100).await.unwrap(), said);
        };
        within(async { tokio::join!(udp, bound, tcp, session) }).await;
    }

    async fn close(self) {
        let (_endpoint, session) = self.session;
        session.close(0, "");
        session.connection().close(0, b"");
        self.proxy.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_and_sessions_outlive_reloads_and_upgrades() {
    let (upgrades, reloads) = (number("EDGE_UPGRADES", 3), number("EDGE_RELOADS", 6));
    let targets = Targets { udp: echo_udp().await, tcp: echo_tcp().await };
    let sections = format!(
        "[[route]]\npath = \"/session\"\nwebtransport = {{ origins = \"*\", to = \"tcp://{}\" }}\n\
         [[route]]\npath = \"/.well-known/masque/udp\"\n[route.proxy]\nopen = true\ntcp = true\nallow = \"127.0.0.1\"\n\
         bound-udp = true\nbound-udp-addresses = \"127.0.0.1\"\n",
        targets.tcp
    );
    let mut fleet = Fleet::with("tunnels", "", &sections);
    let site = Site::of(&fleet);
    let address = fleet.address.to_string();
    // From the first process to the end.
    let mut first = Held::open(&site, &address, targets).await;
    let (mut upgraded, mut reloaded, mut exchanges) = (0, 0, 0);
    while upgraded < upgrades {
        // From this process into the next.
        let mut own = Held::open(&site, &address, targets).await;
        fleet.upgrade();
        upgraded += 1;
        while reloaded * upgrades < reloads * upgraded {
            reloaded += 1;
            fleet.reload_with(reloaded, "", &sections);
            for held in [&mut first, &mut own] {
                held.exchange(targets, exchanges).await;
                exchanges += 1;
            }
        }
        own.close().await;
    }
    first.close().await;
    println!("measured upgrades: {upgraded}");
    println!("measured reloads: {reloaded}");
    println!("measured exchanges on each kind of tunnel and session: {exchanges}");
    let last = fleet.status()["processes"].as_array().unwrap().last().unwrap()["pid"].as_u64();
    let older: Vec<u32> = fleet.running().into_iter().filter(|pid| Some(u64::from(*pid)) != last).collect();
    older.iter().for_each(|pid| fleet.wait_for_end(*pid));
}
