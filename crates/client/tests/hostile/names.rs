//! Hostile names: HTTPS records and `alt-svc` of an origin that wants its clients elsewhere.

use std::{net::SocketAddr, time::Duration};

use tiderace_client::{
    memory::{Memory, Network},
    resolve::Resolver,
};
use units::Instant;

use crate::{
    dns::{Server, alpn, hint, hints, port},
    servers::LIMIT,
};

async fn found(server: &Server, host: &str) -> tiderace_client::resolve::Found {
    Resolver::at(server.address).unwrap().with_delay(LIMIT).resolve(host, 443).await.unwrap()
}

/// An origin on the Internet does not send its clients to this host, its links or its networks, by hint or by name.
#[tokio::test]
async fn records_do_not_lead_nearer_than_the_origin() {
    let server = Server::start().await;
    for (n, inside) in
        ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "::1", "fe80::1", "fd00::1", "224.0.0.1", "0.0.0.0"]
            .into_iter()
            .enumerate()
    {
        let (by_hint, by_name, target) =
            (format!("h{n}.example.net."), format!("n{n}.example.net."), format!("t{n}.example.net."));
        for host in [&by_hint, &by_name] {
            server.address_of(host, "198.51.100.1");
        }
        server.address_of(&target, inside);
        if inside.contains('.') {
            server.https(&by_hint, 1, "svc.example.net.", &[alpn(&["h3", "h2"]), hint(inside)]);
        } else {
            server.https(&by_hint, 1, &target, &[alpn(&["h3", "h2"])]);
        }
        server.https(&by_name, 1, &target, &[alpn(&["h3", "h2"])]);
        for host in [&by_hint, &by_name] {
            let found = found(&server, host.trim_end_matches('.')).await;
            let own: Vec<SocketAddr> = vec!["198.51.100.1:443".parse().unwrap()];
            assert_eq!((found.quic, found.tcp), (vec![], own), "{host} to {inside}");
        }
    }
    // Within a network, as between this host's own.
    server.address_of("inside.example.net.", "10.0.0.1").address_of("target.example.net.", "10.0.0.2");
    server.https("inside.example.net.", 1, "target.example.net.", &[alpn(&["h3"])]);
    assert_eq!(found(&server, "inside.example.net").await.quic, ["10.0.0.2:443".parse().unwrap()]);
    // No port is no place.
    server.address_of("port.example.net.", "198.51.100.1");
    server.https("port.example.net.", 1, ".", &[alpn(&["h3"]), port(0)]);
    assert!(found(&server, "port.example.net").await.quic.is_empty());
}

/// Records and hints without end: sixteen addresses of the offer and sixteen of the origin are used.
#[tokio::test]
async fn records_are_bounded() {
    let server = Server::start().await;
    for n in 1..=20 {
        server.address_of("many.example.net.", &format!("198.51.100.{n}"));
    }
    for n in 0..3 {
        let hints: Vec<_> = (1..=20).map(|last| format!("203.0.113.{}", n * 20 + last).parse().unwrap()).collect();
        server.https("many.example.net.", n + 1, "svc.example.net.", &[alpn(&["h3", "h2"]), self::hints(hints)]);
    }
    let found = found(&server, "many.example.net").await;
    assert_eq!((found.quic.len(), found.tcp.len()), (16, 32));
}

/// A thousand origins and one host name of 255 letters each, for a week, are what `alt-svc` can fill.
#[test]
fn what_alt_svc_says_is_bounded() {
    let mut memory = Memory::default();
    let network = Network([192, 0, 2, 1].into());
    let now = Instant::ZERO;
    let entries: String =
        (1..20_000).map(|n| format!("h3=\"h{n}.example:{}\"; ma={}, ", n % 65_536, u64::MAX)).collect();
    memory.hear(now, network, "https://a", &entries);
    assert_eq!(
        memory.alternative(now, network, "https://a"),
        Some((Some("h1.example".to_owned()), 1)),
        "one of them is kept"
    );
    let week = Duration::from_secs(7 * 86_400);
    assert_eq!(memory.alternative(now + week, network, "https://a"), None, "for a week at most");
    for garbage in [
        "h3=\":0\"".to_owned(),
        format!("h3=\"{}:443\"", "a".repeat(256)),
        "h3=".to_owned(),
        "\"".repeat(9_999),
        ",;=".repeat(9_999),
    ] {
        memory.hear(now, network, "https://b", &garbage);
        assert_eq!(memory.alternative(now, network, "https://b"), None);
    }
    // An origin that says something again pushes out no other.
    memory.hear(now, network, "https://first", "h3=\":443\"; ma=1");
    for n in 0..998 {
        memory.hear(now, network, &format!("https://{n}"), "h3=\":443\"; ma=60");
    }
    for _ in 0..10 {
        memory.hear(now, network, "https://997", "h3=\":444\"; ma=60");
    }
    assert!(memory.alternative(now, network, "https://first").is_some());
}
