//! Requests for tunnels that are refused: by target, by client, by number.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, channel::Channel};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
};

use super::{Tunnel, connect, echo, line_with, proxy_status, route, uri};
use crate::site::{Site, full, until, within};

const TOKEN: &str = "0123456789abcdef";

/// RFC 9298 §3, §7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_told_and_counted() {
    let site = Site::start("masque-refused", &route("deny-ports = [25, 53]\nconnect-timeout = \"20 s\""));
    let (_endpoint, mut h3) = site.h3().await;
    for (path, status, expected, reason) in [
        ("/udp/127.0.0.1/25/", 403, "http_request_denied", "port"),
        ("/udp/127.0.0.2/443/", 403, "destination_ip_prohibited", "address"),
        ("/udp/10.0.0.1/443/", 403, "destination_ip_prohibited", "address"),
        ("/udp/169.254.169.254/80/", 403, "destination_ip_prohibited", "address"),
        ("/udp/%3A%3A1/443/", 403, "destination_ip_prohibited", "address"),
        ("/udp/%3A%3Affff%3A10.0.0.1/443/", 403, "destination_ip_prohibited", "address"),
        ("/udp/64%3Aff9b%3A%3A7f00%3A1/443/", 403, "destination_ip_prohibited", "address"),
        ("/udp/127.0.0.1/0/", 400, "http_request_error", "malformed"),
        ("/udp/127.0.0.1/", 400, "http_request_error", "malformed"),
        ("/udp/127.0.0.1/443/more", 400, "http_request_error", "malformed"),
        ("/udp", 400, "http_request_error", "malformed"),
        ("/udp/no-such-host.invalid/443/", 502, "dns_error", "dns"),
    ] {
        let line = format!("tiderace_edge_tunnels_refused_total{{kind=\"udp\",reason=\"{reason}\"}}");
        let before = site.figure(&line);
        let request = connect(&format!("https://localhost{path}")).body(full("")).unwrap();
        let response = within(h3.send(request)).await.unwrap();
        let said = proxy_status(&response);
        // A machine without a resolver may take its time to say so.
        let is_dns = reason == "dns" && response.status() == 504;
        assert!(
            is_dns || response.status() == status && said.contains(expected),
            "{path}: {} {said}",
            response.status()
        );
        assert!(is_dns || site.figure(&line) == before + 1.0, "{path}");
    }
    let content = connect("https://localhost/udp/127.0.0.1/443/").header("content-type", "a/b").body(full("")).unwrap();
    assert_eq!(h3.send(content).await.unwrap().status(), 400);
    for (target, status) in [("127.0.0.1:25", 403), ("10.0.0.1:443", 403), ("[::1]:443", 403)] {
        let response = within(h3.send(Request::connect(target).body(full("")).unwrap())).await.unwrap();
        assert_eq!(response.status(), status, "{target}");
    }
    assert_eq!(site.figure("tiderace_edge_tunnels_opened_total{kind=\"udp\"}"), 0.0);
}

/// RFC 9298 §7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_allowed_does_not_lead_to_the_gateway_itself() {
    let site = Site::start("masque-own", &format!("redirect-from = \"127.0.0.1:0\"\n{}", route("")));
    let own = site.address;
    let (_endpoint, mut h3) = site.h3().await;
    let plain = Request::connect(site.process.redirecting()[0].to_string());
    assert_eq!(within(h3.send(plain.body(full("")).unwrap())).await.unwrap().status(), 403);
    for request in [connect(&uri(own)), Request::connect(own.to_string())] {
        let response = within(h3.send(request.body(full("")).unwrap())).await.unwrap();
        assert_eq!(response.status(), 403);
        assert!(proxy_status(&response).contains("destination_ip_prohibited"));
    }
    // After a reload, too.
    site.process.reload().await.unwrap();
    let response = within(h3.send(Request::connect(own.to_string()).body(full("")).unwrap())).await.unwrap();
    assert_eq!(response.status(), 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_owners_of_tokens_are_served() {
    let target = echo().await;
    let directory = crate::site::Directory::new("masque-tokens");
    let tokens = directory.write("tokens", format!("alice {TOKEN}\n"));
    std::fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = route("").replace("open = true", &format!("tokens = \"{}\"", tokens.display()));
    let site = Site::start("masque-access", &config);
    let (_endpoint, mut h3) = site.h3().await;
    for (name, value, status) in [
        ("x", "y", 401),
        ("authorization", "Bearer 0123456789abcdeF", 401),
        ("authorization", "Basic 0123456789abcdef", 401),
        ("authorization", "Bearer 0123456789abcdef", 200),
        ("proxy-authorization", "Bearer 0123456789abcdef", 200),
    ] {
        let (_say, body) = Channel::<Bytes, std::io::Error>::new(1);
        let response = h3.send(connect(&uri(target)).header(name, value).body(body).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{name}: {value}");
        assert_eq!(response.headers().contains_key("www-authenticate"), status == 401);
        // Where nobody may look, the answer does not depend on the target.
        if status == 401 {
            let other = connect("https://localhost/udp/10.0.0.1/443/").header(name, value).body(full("")).unwrap();
            assert_eq!(h3.send(other).await.unwrap().status(), 401);
        }
    }
    let response = h3.send(Request::connect("127.0.0.1:443").body(full("")).unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().contains_key("proxy-authenticate")), (407, true));
    let line = line_with(&site, "user", "alice").await;
    assert_eq!(line["target"].as_str(), Some(&*target.to_string()));
    let log = crate::site::read(&site.directory.0.join("access.log"));
    assert!(!log.contains(TOKEN), "no token is written down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_opens_tunnels_without_end_is_bounded() {
    let target = echo().await;
    let limits = "tunnels-per-client = 5\nopened-per-second = 1000";
    let site = Site::start("masque-many", &route(limits));
    // On two connections: the limit is the client's.
    let mut held = Vec::new();
    let mut refused = 0;
    let clients = [site.h3().await, site.h3().await];
    for number in 0..200 {
        let mut h3 = clients[number % 2].1.clone();
        let (say, body) = Channel::<Bytes, std::io::Error>::new(1);
        let response = within(h3.send(connect(&uri(target)).body(body).unwrap())).await.unwrap();
        match response.status().as_u16() {
            200 => held.push((say, response)),
            429 => {
                assert!(response.headers().contains_key("retry-after"));
                refused += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((held.len(), refused), (5, 195));
    let count =
        |reason| site.figure(&format!("tiderace_edge_tunnels_refused_total{{kind=\"udp\",reason=\"{reason}\"}}"));
    assert_eq!(count("tunnels") + count("rate"), 195.0);
    // What is given back is there for the next.
    held.clear();
    until(|| site.figure("tiderace_edge_tunnels{kind=\"udp\"}"), 0.0).await;
    let mut h3 = clients[0].1.clone();
    let mut tunnel = Tunnel::open(&mut h3, &uri(target)).await;
    assert_eq!(tunnel.exchange(b"again").await, b"\0again");
}

/// A target that answers with a redirect, over HTTP or from another address over UDP, leads the proxy nowhere: it passes bytes of the target on, and a client that follows
/// a redirect asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_of_a_target_leads_around_no_rule() {
    let secret = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let hidden = secret.local_addr().unwrap();
    let moved = format!("HTTP/1.1 302 Found\r\nlocation: http://{hidden}/\r\ncontent-length: 0\r\n\r\n");
    let target = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    let said = moved.clone();
    tokio::spawn(async move {
        let (mut stream, _) = target.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1_000]).await;
        stream.write_all(said.as_bytes()).await.unwrap();
    });
    let site = Site::start("masque-redirect", &route(""));
    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let response = within(h3.send(Request::connect(address.to_string()).body(body).unwrap())).await.unwrap();
    assert_eq!(response.status(), 200);
    say.send_data(Bytes::from("GET / HTTP/1.1\r\nhost: a\r\n\r\n")).await.unwrap();
    drop(say);
    let came = within(response.into_body().collect()).await.unwrap().to_bytes();
    assert_eq!(came, moved.as_bytes(), "the redirect passes as it is");
    // The client follows it.
    for request in [Request::connect(hidden.to_string()), connect(&uri(hidden))] {
        let response = within(h3.send(request.body(full("")).unwrap())).await.unwrap();
        assert_eq!(response.status(), 403);
        assert!(proxy_status(&response).contains("destination_ip_prohibited"));
    }

    // Over UDP, another address answers, and tells the proxy nothing.
    let (first, other) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.2:0").await.unwrap());
    let asked = first.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 100];
        while let Ok((length, from)) = first.recv_from(&mut buffer).await {
            // What the kernel refuses because of the target's address is lost on the way.
            let _ = other.send_to(b"elsewhere", from).await;
            let _ = first.send_to(&buffer[..length], from).await;
        }
    });
    let mut tunnel = Tunnel::open(&mut h3, &uri(asked)).await;
    for number in 0..10 {
        let payload = [number; 20];
        assert_eq!(tunnel.exchange(&payload).await[1..], payload, "of another address");
    }
    let followed = tokio::time::timeout(Duration::from_millis(200), secret.accept()).await;
    assert!(followed.is_err(), "the proxy connects to where the redirect leads");
}
