//! Sessions that the back end does not take.

use http::StatusCode;

use super::*;

fn refused(site: &Site, reason: &str) -> f64 {
    site.figure(&format!("tiderace_edge_tunnels_refused_total{{kind=\"webtransport\",reason=\"{reason}\"}}"))
}

/// Asks for a session, and returns the status of the refusal.
async fn ask(site: &Site, protocols: &[&str]) -> StatusCode {
    let (_endpoint, mut client) = client(site, Config::default()).await;
    let refused = within(client.connect(Request::get(URI).body(()).unwrap(), protocols)).await;
    let Err(ConnectError::Refused(status)) = refused else { panic!("{refused:?}") };
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_without_sessions_is_a_bad_gateway() {
    let plain = crate::quic_back_ends::origin::Origin::start(|_, _| {
        std::future::ready(http::Response::new(crate::site::full("page")))
    })
    .await;
    let (site, _roots) = gateway("wt-onward-plain", &plain.certificate, &onward(plain.address, ""));
    assert_eq!(ask(&site, &[]).await, StatusCode::BAD_GATEWAY);
    assert_eq!(refused(&site, "back-end-unsupported"), 1.0);
    let line = line_with(&site, "reason", "broken").await;
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with(&format!("h3://{}: no session is possible", plain.address)), "{line}");
    assert_eq!((line["ended_by"].as_str(), line["status"].as_u64()), (Some("back_end"), Some(502)), "{line}");
    // It holds nothing.
    until(|| open_sessions(&site), 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_refusal_passes() {
    // It lets no page in.
    let host = Host::start(Config::default(), profile());
    let (site, _roots) = in_front("wt-onward-403", &host, "");
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let page = Request::get(URI).header("origin", "https://www.example.org").body(()).unwrap();
    let answer = within(client.connect(page, &[])).await;
    assert!(matches!(answer, Err(ConnectError::Refused(StatusCode::FORBIDDEN))), "{answer:?}");
    assert_eq!(refused(&site, "back-end-refused"), 1.0);
    // A page of another origin does not reach it.
    let other = Request::get(URI).header("origin", "https://evil.example").body(()).unwrap();
    let answer = within(client.connect(other, &[])).await;
    assert!(matches!(answer, Err(ConnectError::Refused(StatusCode::FORBIDDEN))), "{answer:?}");
    assert_eq!((refused(&site, "origin"), refused(&site, "back-end-refused")), (1.0, 1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_that_is_not_there_is_a_bad_gateway_or_a_timeout() {
    let host = Host::open();
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    // It takes packets and answers none.
    let route = onward(closed.local_addr().unwrap(), "connect-timeout = \"300 ms\"");
    let (site, _roots) = gateway("wt-onward-silent", &host.certificate, &route);
    assert_eq!(ask(&site, &[]).await, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(refused(&site, "timeout"), 1.0);
    // Its certificate has another name.
    let route = onward(host.address, "").replace("app.internal", "other.internal");
    let (site, _roots) = gateway("wt-onward-name", &host.certificate, &route);
    assert_eq!(ask(&site, &[]).await, StatusCode::BAD_GATEWAY);
    assert_eq!(refused(&site, "unreachable"), 1.0);
    let line = line_with(&site, "reason", "unreachable").await;
    assert!(line["error"].as_str().unwrap().contains("certificate"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocols_that_the_gateway_does_not_let_through_do_not_reach_the_back_end() {
    let mut host = Host::open();
    let (site, _roots) = in_front("wt-onward-protocols", &host, "protocols = \"chat-1\"");
    assert_eq!(ask(&site, &["chat-2"]).await, StatusCode::BAD_REQUEST);
    assert_eq!(refused(&site, "protocol"), 1.0);
    assert!(host.begun.try_recv().is_err());
}
