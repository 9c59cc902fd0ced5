//! Bound UDP (draft-ietf-masque-connect-udp-listen): tunnels for many peers. Their peers and rules are here, violations and limits in
//! `limits`, HTTP/2 and HTTP/1.1 in `streams`.

mod limits;
mod streams;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h3_quic::{
    Datagrams,
    capsule::{self, Capsules},
    connect_udp::bound::{Compression, public_addresses},
};
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use tokio::net::UdpSocket;

use super::{connect, line_with};
use crate::site::{LIMIT, Site, pattern, until, within};

const ANY: &str = "https://localhost/udp/%2A/%2A/";
/// Time after which a datagram is sent again: UDP may lose it.
const AGAIN: Duration = Duration::from_secs(1);

/// A proxy of bound UDP to loopback.
fn route(more: &str) -> String {
    format!(
        "[[route]]\npath = \"/udp\"\n[route.proxy]\nopen = true\nallow = [\"127.0.0.0/8\", \"::1\"]\nbound-udp = true\n\
         bound-udp-addresses = [\"127.0.0.1\", \"::1\"]\n{more}\n"
    )
}

async fn socket(address: &str) -> UdpSocket {
    UdpSocket::bind(address).await.unwrap()
}

fn written(capsule: Compression) -> Vec<u8> {
    let mut out = Vec::new();
    capsule.write(&mut out);
    out
}

fn assign(context: u64, peer: Option<SocketAddr>) -> Vec<u8> {
    written(Compression::Assign { context, peer })
}

/// Address and payload as they stand in an uncompressed context of this ID.
fn uncompressed(context: u8, peer: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![context];
    match peer {
        SocketAddr::V4(v4) => {
            out.push(4);
            out.extend(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            out.push(6);
            out.extend(v6.ip().octets());
        }
    }
    out.extend(peer.port().to_be_bytes());
    out.extend(payload);
    out
}

fn dropped(direction: &str, reason: &str) -> String {
    format!("tiderace_edge_tunnel_datagrams_dropped_total{{direction=\"{direction}\",reason=\"{reason}\"}}")
}

/// A bound tunnel over HTTP/3.
struct Bound {
    say: Option<Sender<Bytes, std::io::Error>>,
    heard: h3_quic::ResponseBody,
    datagrams: Datagrams,
    capsules: Capsules,
    public: Vec<SocketAddr>,
}

impl Bound {
    async fn open(h3: &mut h3_quic::client::SendRequest, uri: &str) -> Self {
        let (say, body) = Channel::new(1);
        let request = connect(uri).header("connect-udp-bind", "?1").body(body).unwrap();
        let response = within(h3.send(request)).await.unwrap();
        assert_eq!(response.status(), 200, "{:?}", response.headers());
        assert_eq!(
            (&response.headers()["connect-udp-bind"], &response.headers()["capsule-protocol"]),
            (&"?1".parse().unwrap(), &"?1".parse().unwrap())
        );
        let public = public_addresses(response.headers());
        let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
        Self { say: Some(say), heard: response.into_body(), datagrams, capsules: Capsules::new(70_000), public }
    }

    /// Public address of the IP version of a peer.
    fn public(&self, peer: SocketAddr) -> SocketAddr {
        *self.public.iter().find(|public| public.is_ipv4() == peer.is_ipv4()).unwrap()
    }

    async fn say(&mut self, bytes: Vec<u8>) {
        within(self.say.as_mut().unwrap().send_data(bytes.into())).await.unwrap();
    }

    /// Sends an HTTP datagram as a capsule, which is not lost.
    async fn up(&mut self, datagram: &[u8]) {
        let mut out = Vec::new();
        capsule::write(&mut out, capsule::DATAGRAM, datagram);
        self.say(out).await;
    }

    /// Next capsule about a context.
    async fn answer(&mut self) -> Compression {
        loop {
            while let Some(capsule) = self.capsules.take().unwrap() {
                if capsule.ty != capsule::DATAGRAM {
                    return Compression::parse(capsule.ty, &capsule.value).unwrap();
                }
            }
            let frame = within(self.heard.frame()).await.expect("the tunnel is open").unwrap();
            self.capsules.push(&frame.into_data().unwrap());
        }
    }

    async fn registered(&mut self, context: u64, peer: Option<SocketAddr>) {
        self.say(assign(context, peer)).await;
        assert_eq!(self.answer().await, Compression::Ack(context));
    }

    /// Sends a payload from a peer until it comes. Returns the HTTP datagram.
    async fn down(&mut self, peer: &UdpSocket, payload: &[u8]) -> Vec<u8> {
        let to = self.public(peer.local_addr().unwrap());
        let begun = std::time::Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "nothing comes");
            peer.send_to(payload, to).await.unwrap();
            // Others are copies of those before.
            while let Ok(datagram) = tokio::time::timeout(AGAIN, self.datagrams.recv()).await {
                let datagram = datagram.unwrap();
                if datagram.ends_with(payload) {
                    return datagram.to_vec();
                }
            }
        }
    }

    /// Checks that a peer gets a datagram, from the public address, and that its answer comes in this form.
    async fn exchange(&mut self, peer: &UdpSocket, datagram: &[u8], payload: &[u8], expected: &[u8]) {
        self.up(datagram).await;
        let mut buffer = [0; 2_000];
        let (length, from) = within(peer.recv_from(&mut buffer)).await.unwrap();
        assert_eq!((&buffer[..length], from), (payload, self.public(peer.local_addr().unwrap())));
        assert_eq!(self.down(peer, payload).await, expected);
    }

    /// Waits until the end of the stream; says whether it is a clean one.
    async fn ended(&mut self) -> bool {
        loop {
            match within(self.heard.frame()).await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(_)) => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tunnel_has_peers_of_both_ip_versions() {
    let site = Site::start("bound-peers", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Bound::open(&mut h3, ANY).await;
    assert_eq!(tunnel.public.iter().filter(|public| public.is_ipv4()).count(), 1, "{:?}", tunnel.public);
    assert_eq!(tunnel.public.len(), 2);
    tunnel.registered(2, None).await;
    let peers = [socket("127.0.0.1:0").await, socket("127.0.0.2:0").await, socket("[::1]:0").await];
    for (number, peer) in peers.iter().enumerate() {
        let (address, payload) = (peer.local_addr().unwrap(), pattern(10 * number));
        let datagram = uncompressed(2, address, &payload);
        tunnel.exchange(peer, &datagram, &payload, &datagram).await;
    }
    // A context of its own takes the address away, in both directions.
    let last = peers[2].local_addr().unwrap();
    tunnel.registered(4, Some(last)).await;
    tunnel.exchange(&peers[2], b"\x04compressed", b"compressed", b"\x04compressed").await;
    // As a QUIC datagram.
    let mut buffer = [0; 100];
    let quic = async {
        loop {
            tunnel.datagrams.send(b"\x04quic").unwrap();
            let got = tokio::time::timeout(AGAIN, peers[2].recv_from(&mut buffer)).await;
            if let Ok(got) = got {
                return got.unwrap().0;
            }
        }
    };
    assert_eq!((within(quic).await, &buffer[..4]), (4, &b"quic"[..]));
    // Others go on without.
    let first = uncompressed(2, peers[0].local_addr().unwrap(), b"first");
    tunnel.exchange(&peers[0], &first, b"first", &first).await;

    // Closed, the context is unknown, and the address is there again.
    tunnel.say(written(Compression::Close(4))).await;
    let again = uncompressed(2, last, b"again");
    tunnel.exchange(&peers[2], &again, b"again", &again).await;
    let before = site.figure(&dropped("up", "unknown-context"));
    tunnel.up(b"\x04closed").await;
    tunnel.up(b"\x40\x64never opened").await;
    until(|| site.figure(&dropped("up", "unknown-context")), before + 2.0).await;
    assert_eq!(site.figure("tiderace_edge_tunnels{kind=\"bound-udp\"}"), 1.0);
    tunnel.say = None;
    assert!(tunnel.ended().await);
    let line = line_with(&site, "target", "*").await;
    let public: Vec<String> = tunnel.public.iter().map(ToString::to_string).collect();
    assert_eq!(
        (line["back_end"].as_str(), line["reason"].as_str()),
        (Some(&*public.join(" ")), Some("complete")),
        "{line}"
    );
    assert!(line["datagrams_up"].as_u64().unwrap() >= 6 && line["datagrams_dropped"].as_u64().unwrap() >= 2, "{line}");
}

/// Addresses to which the client has not sent are not heard, unless the configuration says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_peers_that_were_spoken_to_are_heard() {
    let site = Site::start("bound-unknown", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Bound::open(&mut h3, ANY).await;
    tunnel.registered(2, None).await;
    let [known, port, stranger] =
        [socket("127.0.0.2:0").await, socket("127.0.0.2:0").await, socket("127.0.0.3:0").await];
    let unknown = dropped("down", "unknown-peer");
    stranger.send_to(b"stranger", tunnel.public(stranger.local_addr().unwrap())).await.unwrap();
    until(|| site.figure(&unknown), 1.0).await;
    let datagram = uncompressed(2, known.local_addr().unwrap(), b"known");
    tunnel.exchange(&known, &datagram, b"known", &datagram).await;
    // The address is known, whatever the port.
    assert_eq!(tunnel.down(&port, b"port").await, uncompressed(2, port.local_addr().unwrap(), b"port"));
    stranger.send_to(b"stranger", tunnel.public(stranger.local_addr().unwrap())).await.unwrap();
    until(|| site.figure(&unknown), 2.0).await;
    // Without the uncompressed context, those with a context of their own are left.
    tunnel.registered(4, Some(known.local_addr().unwrap())).await;
    tunnel.say(written(Compression::Close(2))).await;
    tunnel.exchange(&known, b"\x04mine", b"mine", b"\x04mine").await;
    port.send_to(b"port", tunnel.public(port.local_addr().unwrap())).await.unwrap();
    until(|| site.figure(&unknown), 3.0).await;
    assert_eq!(tunnel.datagrams.try_recv().filter(|datagram| !datagram.ends_with(b"mine")), None);

    let open = Site::start("bound-any-peer", &route("bound-udp-any-peer = true"));
    let (_endpoint, mut h3) = open.h3().await;
    let mut tunnel = Bound::open(&mut h3, ANY).await;
    tunnel.registered(2, None).await;
    let heard = tunnel.down(&stranger, b"stranger").await;
    assert_eq!(heard, uncompressed(2, stranger.local_addr().unwrap(), b"stranger"));
}

/// RFC 9298 §7, draft-ietf-masque-connect-udp-listen §9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rules_for_targets_hold_for_each_datagram() {
    let site = Site::start("bound-rules", &route("deny = \"127.0.0.66\""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Bound::open(&mut h3, ANY).await;
    tunnel.registered(2, None).await;
    let peer = socket("127.0.0.1:0").await;
    let address = peer.local_addr().unwrap();
    let datagram = uncompressed(2, address, b"permitted");
    tunnel.exchange(&peer, &datagram, b"permitted", &datagram).await;
    let own = SocketAddr::new(address.ip(), site.address.port());
    let prohibited: Vec<SocketAddr> =
        ["10.0.0.1:53", "127.0.0.66:53", "127.0.0.1:25", "169.254.169.254:80", "[::ffff:127.0.0.1]:53", "127.0.0.1:0"]
            .iter()
            .map(|text| text.parse().unwrap())
            .chain([own])
            .collect();
    for (number, peer) in prohibited.iter().enumerate() {
        tunnel.up(&uncompressed(2, *peer, b"x")).await;
        until(|| site.figure(&dropped("up", "prohibited")), number as f64 + 1.0).await;
        let context = 4 + 2 * number as u64;
        tunnel.say(assign(context, Some(*peer))).await;
        assert_eq!(tunnel.answer().await, Compression::Close(context), "{peer}");
    }
    // Half an address.
    tunnel.up(&datagram[..6]).await;
    until(|| site.figure(&dropped("up", "malformed")), 1.0).await;
    tunnel.exchange(&peer, &datagram, b"permitted", &datagram).await;
}
