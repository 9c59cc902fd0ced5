//! Requests that are none for bound UDP, violations of its rules, and limits.

use std::net::SocketAddr;

use h3_quic::{capsule, connect_udp::bound::Compression};
use http_body_util::BodyExt;

use super::{
    super::{connect, proxy_status, uri},
    ANY, Bound, assign, dropped, route, socket, uncompressed, written,
};
use crate::site::{Site, full, pattern, until, within};

/// draft-ietf-masque-connect-udp-listen §2, §3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_a_target_has_it_in_context_0() {
    let site = Site::start("bound-target", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let [target, other] = [socket("127.0.0.1:0").await, socket("[::1]:0").await];
    let uri = uri(target.local_addr().unwrap());
    let mut tunnel = Bound::open(&mut h3, &uri).await;
    tunnel.exchange(&target, b"\0to the target", b"to the target", b"\0to the target").await;
    tunnel.registered(2, None).await;
    let datagram = uncompressed(2, other.local_addr().unwrap(), b"other");
    tunnel.exchange(&other, &datagram, b"other", &datagram).await;
    let port = target.local_addr().unwrap().port();
    // Where there is no bound UDP, the same request is one for the target alone.
    let without = Site::start("bound-without", &route("").replace("bound-udp = true", "bound-udp = false"));
    let (_endpoint, mut h3) = without.h3().await;
    let response =
        within(h3.send(connect(&uri).header("connect-udp-bind", "?1").body(full("")).unwrap())).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().get("connect-udp-bind")), (200, None));
    for (site, path, bind, status) in [
        (&without, "%2A/%2A/".to_owned(), "?1", 400),
        (&site, "%2A/%2A/".to_owned(), "?0", 400),
        (&site, "%2A/%2A/".to_owned(), "?1, ?1", 400),
        (&site, format!("%2A/{port}/"), "?1", 400),
        (&site, "127.0.0.1/%2A/".to_owned(), "?1", 400),
        (&site, "10.0.0.1/53/".to_owned(), "?1", 403),
        (&site, "127.0.0.1/25/".to_owned(), "?1", 403),
    ] {
        let (_endpoint, mut h3) = site.h3().await;
        let request = connect(&format!("https://localhost/udp/{path}")).header("connect-udp-bind", bind);
        let response = within(h3.send(request.body(full("")).unwrap())).await.unwrap();
        assert_eq!(response.status(), status, "{path} {bind}: {}", proxy_status(&response));
        assert!(!response.headers().contains_key("connect-udp-bind"));
    }
}

/// draft-ietf-masque-connect-udp-listen §3, §4; RFC 9297 §3.3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_the_rules_resets_the_stream() {
    let site = Site::start("bound-faults", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let peer = Some("127.0.0.1:9".parse().unwrap());
    let in_capsule = |datagram: &[u8]| {
        let mut out = Vec::new();
        capsule::write(&mut out, capsule::DATAGRAM, datagram);
        out
    };
    for (what, bytes) in [
        ("context 0 without a target", in_capsule(b"\0x")),
        ("an odd context", assign(3, None)),
        ("two uncompressed contexts", [assign(2, None), assign(4, None)].concat()),
        ("an ID twice", [assign(2, peer), written(Compression::Close(2)), assign(2, peer)].concat()),
        ("two contexts for a peer", [assign(2, peer), assign(4, peer)].concat()),
        ("a confirmation of nothing", written(Compression::Ack(1))),
        ("the end of context 0", vec![0x13, 1, 0]),
        ("version 5", vec![0x11, 2, 2, 5]),
        ("a payload that is too long", [assign(2, peer), in_capsule(&[&[2], &vec![0; 65_528][..]].concat())].concat()),
    ] {
        let mut tunnel = Bound::open(&mut h3, ANY).await;
        tunnel.say(bytes).await;
        assert!(!tunnel.ended().await, "{what}");
    }
    until(|| site.figure("tiderace_edge_tunnels{kind=\"bound-udp\"}"), 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_and_peers_are_bounded() {
    let limits = "bound-udp-contexts = 2\nbound-udp-peers = 2\nopened-per-second = 10";
    let site = Site::start("bound-limits", &route(limits));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Bound::open(&mut h3, ANY).await;
    tunnel.registered(2, None).await;
    let peers = [socket("127.0.0.2:0").await, socket("127.0.0.3:0").await, socket("127.0.0.4:0").await];
    let address = |number: usize| peers[number].local_addr().unwrap();
    tunnel.registered(4, Some(address(0))).await;
    tunnel.say(assign(6, Some(address(1)))).await;
    assert_eq!(tunnel.answer().await, Compression::Close(6));
    tunnel.say(written(Compression::Close(4))).await;
    tunnel.registered(8, Some(address(1))).await;
    tunnel.say(written(Compression::Close(8))).await;
    // The first one is forgotten for the third.
    for number in [1, 2] {
        let datagram = uncompressed(2, address(number), b"hello");
        tunnel.exchange(&peers[number], &datagram, b"hello", &datagram).await;
    }
    let before = site.figure(&dropped("down", "unknown-peer"));
    peers[0].send_to(b"forgotten", tunnel.public(address(0))).await.unwrap();
    until(|| site.figure(&dropped("down", "unknown-peer")), before + 1.0).await;
    // Ever new peers: at the rate of new tunnels.
    let begun = std::time::Instant::now();
    for number in 0..250_u8 {
        tunnel.up(&uncompressed(2, SocketAddr::from(([127, 0, 1, number], 9)), b"")).await;
    }
    until(|| site.figure(&dropped("up", "rate")) > 0.0, true).await;
    let most = 10.0 * (1.0 + begun.elapsed().as_secs_f64());
    until(|| site.figure(&dropped("up", "rate")) >= 250.0 - most, true).await;
}

/// A reload changes what new tunnels may do; open ones go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_leaves_open_tunnels_alone() {
    let site = Site::start("bound-reload", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut tunnel = Bound::open(&mut h3, ANY).await;
    tunnel.registered(2, None).await;
    let peer = socket("127.0.0.1:0").await;
    let datagram = uncompressed(2, peer.local_addr().unwrap(), b"before");
    tunnel.exchange(&peer, &datagram, b"before", &datagram).await;
    site.configure(&route("").replace("bound-udp = true", "bound-udp = false"));
    site.process.reload().await.unwrap();
    let request = || connect(ANY).header("connect-udp-bind", "?1").body(full("")).unwrap();
    assert_eq!(within(h3.send(request())).await.unwrap().status(), 400);
    tunnel.registered(4, Some(peer.local_addr().unwrap())).await;
    tunnel.exchange(&peer, b"\x04after", b"after", b"\x04after").await;
}

/// RFC 9298 §6.1: what a QUIC connection inside needs always gets through; what is larger is dropped where it does not fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_that_fit_into_no_datagram() {
    let site = Site::start("bound-mtu", &route(""));
    let profile = tiderace::Profile { max_mtu: 1_200, ..crate::site::patient() };
    let (_endpoint, connection) = site.quic_with(b"h3", profile).await.unwrap();
    let mut h3 = h3_quic::client::begin(connection).await.unwrap();
    let mut tunnel = Bound::open(&mut h3, ANY).await;
    tunnel.registered(2, None).await;
    let peer = socket("[::1]:0").await;
    let address = peer.local_addr().unwrap();
    let first = uncompressed(2, address, b"first");
    tunnel.exchange(&peer, &first, b"first", &first).await;
    peer.send_to(&pattern(9_000), tunnel.public(address)).await.unwrap();
    until(|| site.figure(&dropped("down", "too-large")), 1.0).await;
    peer.send_to(&pattern(1_200), tunnel.public(address)).await.unwrap();
    let expected = uncompressed(2, address, &pattern(1_200));
    let got = loop {
        if let Some(capsule) = tunnel.capsules.take().unwrap() {
            break capsule.value;
        }
        tokio::select! {
            datagram = within(tunnel.datagrams.recv()) => break datagram.unwrap(),
            frame = within(tunnel.heard.frame()) => tunnel.capsules.push(&frame.unwrap().unwrap().into_data().unwrap()),
        }
    };
    assert!(got == expected);
}
