//! Fall-back of a back end to TCP: QUIC is blocked, or its handshake fails.

use http::Response;
use tiderace::Profile;

use super::{
    back_end, mirror,
    origin::{Origin, certified, gateway, route},
    text_of,
};
use crate::{
    site::{full, get, get1, read, until, within},
    tls_back_ends::Secure,
};

/// Requests go over TCP while UDP leads nowhere; the reason can be seen, and QUIC is used once it works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_udp_requests_go_over_tcp_until_quic_works() {
    let made = certified();
    // Nobody reads this UDP socket, which keeps the port for the origin that comes later.
    let (tcp, unread) = loop {
        let tcp = Secure::start_at("127.0.0.1:0".parse().unwrap(), &made, &[b"h2", b"http/1.1"]).await;
        if let Ok(unread) = std::net::UdpSocket::bind(tcp.address) {
            break (tcp, unread);
        }
    };
    let config = route(tcp.address, "connect-timeout = \"1 s\"");
    let (site, _roots) = gateway("h3-blocked", &tcp.certificate, &config);
    let (_endpoint, mut h3) = site.h3().await;
    let said = within(h3.send(get("https://localhost/a"))).await.unwrap();
    let said: serde_json::Value = serde_json::from_str(&within(text_of(said)).await).unwrap();
    assert_eq!(said["version"], "HTTP/2.0", "{said}");
    until(|| back_end(&site, "fall_back").as_str().is_some_and(|why| why.starts_with("timeout: ")), true).await;
    let failures = |reason: &str| {
        site.figure(&format!(
            "tiderace_edge_back_end_quic_failures_total{{back_end=\"h3://{}\",reason=\"{reason}\"}}",
            tcp.address
        ))
    };
    assert!(failures("timeout") >= 1.0);
    // Others do not wait for QUIC meanwhile, with content or without.
    for _ in 0..10 {
        let request = http::Request::post("https://localhost/").body(full("content")).unwrap();
        let said = text_of(within(h3.send(request)).await.unwrap()).await;
        assert!(said.contains("\"content\":7") && said.contains("HTTP/2.0"), "{said}");
    }
    assert_eq!(back_end(&site, "protocol"), "h2");
    drop(unread);
    let origin = Origin::start_at(tcp.address, &made, Profile::default(), mirror).await;
    // Requests bring it back, and none of them fails.
    let begun = std::time::Instant::now();
    while back_end(&site, "protocol") != "h3" {
        assert!(begun.elapsed() < crate::site::LIMIT, "{}", back_end(&site, "fall_back"));
        assert_eq!(within(h3.send(get("https://localhost/"))).await.unwrap().status(), 200);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(back_end(&site, "fall_back").is_null() && origin.accepted() > 0);
    // The connection is lost, and there is no other: requests go over TCP again.
    drop(origin);
    until(|| back_end(&site, "requests"), 0.into()).await;
    for _ in 0..3 {
        assert_eq!(within(h3.send(get("https://localhost/"))).await.unwrap().status(), 200);
    }
    assert_eq!(back_end(&site, "protocol"), "h2");
}

/// A handshake that fails leads to TCP at once, and the certificate is judged there, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_fails_is_a_bad_gateway_over_both() {
    let (made, other) = (certified(), certified());
    let (origin, reserved) = Origin::start_beside_tcp(&made, mirror).await;
    let (site, _roots) = gateway("h3-certificate", &other.cert.pem(), &route(origin.address, ""));
    let mut h1 = site.h1().await;
    assert_eq!(within(h1.send_request(get1("/"))).await.unwrap().status(), 502);
    let log = site.directory.0.join("access.log");
    until(|| read(&log).contains('\n'), true).await;
    let line: serde_json::Value = serde_json::from_str(read(&log).lines().next().unwrap()).unwrap();
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("over QUIC: certificate: ") && error.contains("over TCP: "), "{error}");
    // With TCP, it is judged there.
    let tcp = Secure::start_on(reserved.listen(16).unwrap(), &made, &[b"h2"]);
    h1.ready().await.unwrap();
    assert_eq!(within(h1.send_request(get1("/"))).await.unwrap().status(), 502);
    until(|| read(&log).lines().count(), 2).await;
    let line: serde_json::Value = serde_json::from_str(read(&log).lines().nth(1).unwrap()).unwrap();
    assert!(line["error"].as_str().unwrap().contains("invalid peer certificate"), "{line}");
    drop(tcp);
}

/// A back end without TCP is waited for over QUIC when it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_over_quic_alone_comes_back() {
    let made = certified();
    let ok = |_, _| async { Response::new(full("ok")) };
    let origin = Origin::start_at("127.0.0.1:0".parse().unwrap(), &made, Profile::default(), ok).await;
    let address = origin.address;
    let config = route(address, "connect-timeout = \"1 s\"");
    let (site, _roots) = gateway("h3-alone", &origin.certificate, &config);
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(within(h3.send(get("https://localhost/"))).await.unwrap().status(), 200);
    drop(origin);
    let begun = std::time::Instant::now();
    // Its socket is closed a moment later.
    while within(h3.send(get("https://localhost/"))).await.unwrap().status() != 502 {
        assert!(begun.elapsed() < crate::site::LIMIT);
    }
    let begun = std::time::Instant::now();
    let origin = loop {
        if let Ok(socket) = std::net::UdpSocket::bind(address) {
            drop(socket);
            break Origin::start_at(address, &made, Profile::default(), ok).await;
        }
        assert!(begun.elapsed() < crate::site::LIMIT);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    let begun = std::time::Instant::now();
    while within(h3.send(get("https://localhost/"))).await.unwrap().status() != 200 {
        assert!(begun.elapsed() < crate::site::LIMIT);
    }
    assert!(origin.accepted() > 0);
    assert_eq!((back_end(&site, "protocol"), back_end(&site, "fall_back").is_null()), ("h3".into(), true));
}
