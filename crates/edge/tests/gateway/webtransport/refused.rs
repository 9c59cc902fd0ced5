//! Requests that get no session.

use super::*;
use http::StatusCode;

fn refused(site: &Site, reason: &str) -> f64 {
    site.figure(&format!("tiderace_edge_tunnels_refused_total{{kind=\"webtransport\",reason=\"{reason}\"}}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_get_no_session() {
    let back_end = echo().await;
    let site = Site::start("wt-origins", &to(back_end, ""));
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let others = [
        "https://evil.example",
        "http://www.example.org",
        "https://www.example.org:8443",
        "https://www.example.org.evil.example",
        "https://WWW.example.org",
        "null",
        "",
    ];
    for origin in others {
        let request = Request::get(URI).header("origin", origin).body(()).unwrap();
        let answer = within(client.connect(request, &[])).await;
        assert!(matches!(answer, Err(ConnectError::Refused(StatusCode::FORBIDDEN))), "{origin}: {answer:?}");
    }
    let good = "https://www.example.org";
    let two = Request::get(URI).header("origin", good).header("origin", good).body(()).unwrap();
    assert!(matches!(within(client.connect(two, &[])).await, Err(ConnectError::Refused(StatusCode::FORBIDDEN))));
    assert_eq!(refused(&site, "origin"), others.len() as f64 + 1.0);
    let page = Request::get(URI).header("origin", good).body(()).unwrap();
    within(client.connect(page, &[])).await.unwrap();
    // A client that is no browser.
    begin(&mut client).await.unwrap();
    let line = line_with(&site, "reason", "refused").await;
    assert_eq!((line["status"].as_u64(), line["ended_by"].as_str()), (Some(403), Some("gateway")), "{line}");
    assert!(line["error"].as_str().unwrap().contains("`origins`"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_let_in_where_that_is_said() {
    let back_end = echo().await;
    let section = format!("to = \"tcp://{back_end}\"\norigins = \"*\"\n");
    let site = Site::start("wt-any", &format!("[[route]]\npath = \"/session\"\n[route.webtransport]\n{section}"));
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let request = Request::get(URI).header("origin", "https://anyone.example").body(()).unwrap();
    within(client.connect(request, &[])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_requests_are_told_what_the_route_has() {
    let back_end = echo().await;
    let site = Site::start("wt-others", &to(back_end, ""));
    let (_endpoint, mut h3) = site.h3().await;
    let response = within(h3.send(crate::site::get(URI))).await.unwrap();
    assert_eq!(
        (response.status(), response.headers()["allow"].as_bytes()),
        (StatusCode::METHOD_NOT_ALLOWED, &b"CONNECT"[..])
    );
    let response = site.h1().await.send_request(crate::site::get1("/session")).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    // A client whose settings have nothing of sessions.
    let request = Request::connect(URI).extension(h3_quic::Protocol::from_static("webtransport-h3"));
    let answer = within(h3.send(request.body(crate::site::full("")).unwrap())).await;
    assert!(answer.is_err(), "it is malformed without what sessions need");
    // Another protocol.
    let request = Request::connect(URI).extension(h3_quic::Protocol::from_static("websocket"));
    let response = within(h3.send(request.body(crate::site::full("")).unwrap())).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_IMPLEMENTED);
    // HTTP/2 has another form of sessions, which is not implemented.
    let mut h2 = site.h2().await;
    let request = Request::connect(URI).extension(hyper::ext::Protocol::from_static("webtransport"));
    let response = within(h2.send_request(request.body(crate::site::full("")).unwrap())).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_IMPLEMENTED);
    assert_eq!(
        (refused(&site, "malformed"), refused(&site, "requirements"), refused(&site, "unsupported")),
        (2.0, 1.0, 1.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_beyond_a_limit_are_refused_and_counted() {
    let back_end = echo().await;
    let limits = "[limits]\nsessions = 5\nsessions-per-connection = 2\n";
    let site = Site::start("wt-sessions", &format!("{limits}{}", to(back_end, "sessions-per-client = 4")));
    let (_one, mut first) = client(&site, Config::default()).await;
    let (_two, mut second) = client(&site, Config::default()).await;
    let (_three, mut third) = client(&site, Config::default()).await;
    let mut sessions = Vec::new();
    for client in [&mut first, &mut second] {
        for _ in 0..2 {
            sessions.push(begin(client).await.unwrap());
        }
    }
    // On the connection, and of the client's address.
    let again = begin(&mut third).await;
    assert!(matches!(again, Err(ConnectError::Refused(StatusCode::TOO_MANY_REQUESTS))), "{again:?}");
    sessions.pop().unwrap().close(0, "");
    until(|| open_sessions(&site), 3.0).await;
    let again = begin(&mut first).await;
    assert!(
        matches!(again, Err(ConnectError::Http(h3_quic::Error::Reset(h3_quic::Code::REQUEST_REJECTED)))),
        "{again:?}"
    );
    assert_eq!((refused(&site, "sessions"), refused(&site, "connection")), (1.0, 1.0));
    sessions.push(begin(&mut second).await.unwrap());
    for session in sessions {
        exchange(session, pattern(10_000)).await;
    }
    // All clients together: another limit of the same number.
    site.configure(&format!("[limits]\nsessions = 4\n{}", to(back_end, "")));
    site.process.reload().await.unwrap();
    until(|| open_sessions(&site), 0.0).await;
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let mut kept = Vec::new();
    for _ in 0..4 {
        kept.push(begin(&mut client).await.unwrap());
    }
    let again = begin(&mut client).await;
    assert!(matches!(again, Err(ConnectError::Refused(StatusCode::SERVICE_UNAVAILABLE))), "{again:?}");
    assert_eq!(refused(&site, "total"), 1.0);
}
