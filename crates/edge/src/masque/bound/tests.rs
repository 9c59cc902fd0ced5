//! Clients that make a tunnel hold as much as they can.

use http_body_util::channel::Channel;
use tiderace::{ConnectionBudget, ProcessBudget};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use super::*;
use crate::{
    config::Many,
    ending::BodyError,
    masque::{ClientKey, ClientLimits, Clients, PARTS, TUNNEL, rules::Rules},
    metrics::{Metrics, TunnelKind},
};

/// Bytes that a tunnel may hold in these tests.
const ROOM: u64 = 256 * 1024;

async fn tunnel() -> BoundTunnel {
    let many = |text: &str| Many(vec![text.to_owned()]);
    let config = config::Proxy { bound_udp_addresses: many("127.0.0.1"), ..config::Proxy::default() };
    let sockets = Sockets::open(&config.bound_udp_addresses).await.unwrap_or_else(|why| panic!("{why:?}"));
    let rules = Rules::new(&many("127.0.0.0/8"), &Many::default(), &[]);
    let metrics = Arc::new(Metrics::default());
    let traffic = Traffic::new(TunnelKind::BoundUdp, "*".to_owned(), String::new(), None, &metrics);
    let limits = ClientLimits { total: 9, tunnels: 9, opened_per_second: u32::MAX, bytes_per_second: None };
    let place = Arc::new(Clients::default()).enter(ClientKey::Address(1), limits, Instant::now()).unwrap();
    let policy = Policy::new(Arc::new(rules), Arc::default());
    BoundTunnel::new(&config, sockets, (policy, None), Arc::new(traffic), place)
}

fn written(capsule: Compression) -> Vec<u8> {
    let mut out = Vec::new();
    capsule.write(&mut out);
    out
}

fn assign(number: u64) -> Vec<u8> {
    let peer = SocketAddr::from((std::net::Ipv4Addr::from(0x7f00_0000 | (number as u32 & 0xff_ffff)), 9));
    written(Compression::Assign { context: 2 * number, peer: Some(peer) })
}

/// Has a client send a million capsules to a tunnel over a stream of bytes, a thousand at a time, and read `answers` to each of them. Returns
/// the most that was charged.
async fn million(capsule: impl Fn(u64) -> Vec<u8>, answers: usize) -> u64 {
    let budget = ConnectionBudget::new(ROOM, &ProcessBudget::default());
    let (client, far_end) = tokio::io::duplex(64 * 1024);
    let charge = budget.charge(TUNNEL).unwrap();
    let carrying = tokio::spawn(tunnel().await.over_stream(client, charge));
    let (mut from, mut to) = tokio::io::split(far_end);
    let mut capsules = Capsules::new(100);
    let mut buffer = vec![0; 64 * 1024];
    let mut most = 0;
    for thousand in 0..1_000 {
        let piece: Vec<u8> = (1..=1_000).flat_map(|number| capsule(1_000 * thousand + number)).collect();
        let reading = async {
            let mut left = 1_000 * answers;
            while left > 0 {
                match capsules.take().unwrap() {
                    Some(_) => left -= 1,
                    None => {
                        let length = from.read(&mut buffer).await.unwrap();
                        assert!(length > 0, "the tunnel has ended");
                        capsules.push(&buffer[..length]);
                    }
                }
            }
        };
        let (written, ()) = tokio::join!(to.write_all(&piece), reading);
        written.unwrap();
        most = most.max(budget.held());
    }
    to.shutdown().await.unwrap();
    let end = carrying.await.unwrap();
    assert!(matches!(end, End::Client), "{end:?}");
    assert_eq!(budget.held(), 0, "what was charged is given back");
    most
}

/// draft-ietf-masque-connect-udp-listen §9 MUST: contexts are bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_capsules_hold_a_bounded_amount() {
    let defaults = config::Proxy::default();
    // The smallest capsule, to which there is no answer.
    let closes = million(|_| written(Compression::Close(2)), 0).await;
    assert!(closes <= TUNNEL + 2 * MAX_CAPSULE as u64, "{closes} bytes");
    // Registrations, of which the first are accepted; their answers are read.
    let assigns = million(assign, 1).await;
    // By the limits on contexts and peers; what is read and written at a time is added.
    let contexts = (defaults.bound_udp_contexts * 192 + defaults.bound_udp_peers * 96 + 256 * 32) as u64;
    assert!(assigns > TUNNEL + 64 * 192, "{assigns} bytes: contexts and peers are charged");
    assert!(assigns <= TUNNEL + contexts + 64 * 1024, "{assigns} bytes");
}

/// draft-ietf-masque-connect-udp-listen §9 MUST: the stream is aborted when too many answers wait.
#[tokio::test]
async fn a_client_that_does_not_read_answers_is_aborted() {
    let budget = ConnectionBudget::new(ROOM, &ProcessBudget::default());
    let (client, mut far_end) = tokio::io::duplex(1_000);
    let carrying = tokio::spawn(tunnel().await.over_stream(client, budget.charge(TUNNEL).unwrap()));
    for number in 1.. {
        if far_end.write_all(&assign(number)).await.is_err() {
            break;
        }
        assert!(number < 100_000 && budget.held() <= ROOM);
        // The tunnel ends on its own, and its end of the stream a second later.
        if carrying.is_finished() {
            break;
        }
    }
    let end = carrying.await.unwrap();
    assert!(matches!(&end, End::Broken(error) if error.to_string().contains("does not read")), "{end:?}");
    assert_eq!(budget.held(), 0);
}

/// The same over HTTP/3, where answers are parts of the stream.
#[tokio::test]
async fn answers_that_the_stream_does_not_take_wait_up_to_a_limit() {
    let mut tunnel = tunnel().await;
    let (mut answer, _unread) = Channel::<bytes::Bytes, BodyError>::new(PARTS);
    let mut taken = 0_u64;
    let end = loop {
        taken += 1;
        let capsule = Compression::Assign { context: 2 * taken, peer: Some("10.0.0.1:9".parse().unwrap()) };
        match tunnel.on_compression(&capsule) {
            Ok(()) => tunnel.state.answer_h3(&mut answer),
            Err(end) => break end,
        }
        assert!(tunnel.state.answers.len() <= MAX_ANSWERS && taken < 100_000);
    };
    assert!(matches!(&end, End::Broken(error) if error.to_string().contains("does not read")), "{end:?}");
    assert!(taken > 500, "{taken} answers");
}

/// RFC 9298 §3.1 MUST-7: datagrams of peers that are not heard are no traffic.
#[tokio::test]
async fn strangers_are_no_traffic() {
    let mut tunnel = tunnel().await;
    let to = tunnel.sockets.public_addresses()[0].clone();
    let stranger = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.send_to(b"x", &to).await.unwrap();
    let socket = tunnel.sockets.readable().await.unwrap();
    let mut out = bytes::BytesMut::new();
    let mut charge = ConnectionBudget::new(ROOM, &ProcessBudget::default()).charge(1).unwrap();
    assert!(!tunnel.state.down_stream(socket, &mut out, &mut charge) && out.is_empty());
    tunnel.state.contexts.take(&Compression::Assign { context: 2, peer: None }, |_| true, &mut Vec::new()).unwrap();
    tunnel.state.peers.permit(stranger.local_addr().unwrap(), &tunnel.state.place).unwrap();
    stranger.send_to(b"x", &to).await.unwrap();
    let socket = tunnel.sockets.readable().await.unwrap();
    assert!(tunnel.state.down_stream(socket, &mut out, &mut charge) && !out.is_empty());
}
