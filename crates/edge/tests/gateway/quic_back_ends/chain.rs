//! A gateway behind a gateway: client, edge, edge, back end.

use std::sync::Arc;

use http::{Request, Response};
use tiderace::{EarlyData, RustlsClient};

use super::origin::gateway;
use crate::site::{BackEnd, Directory, Site, full, get, mirror, pattern, text, within};

/// A gateway in front of the one of `behind`, over HTTP/3.
pub(super) fn in_front(name: &str, behind: &Site, rest: &str, top: &str) -> (Site, Directory) {
    let pem = std::fs::read_to_string(behind.directory.0.join("cert.pem")).unwrap();
    let tls = "tls = { roots = 'ROOTS', name = 'localhost' }";
    gateway(name, &pem, &format!("{top}[[route]]\nto = \"h3://{}\"\n{tls}\n{rest}", behind.address))
}

/// Sends requests until one is answered over QUIC: on a busy machine TCP may be there first.
async fn over_quic(site: &Site, requests: &mut h3_quic::client::SendRequest) {
    let begun = std::time::Instant::now();
    loop {
        assert_eq!(within(requests.send(get("https://localhost/"))).await.unwrap().status(), 200);
        if super::back_end(site, "protocol") == "h3" {
            return;
        }
        assert!(begun.elapsed() < crate::site::LIMIT, "{}", super::back_end(site, "fall_back"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_pass_two_gateways() {
    let back_end = BackEnd::start(mirror).await;
    let behind = Site::start("chain-behind", &format!("[[route]]\nto = \"{}\"\n", back_end.url()));
    let (front, _roots) = in_front("chain-front", &behind, "", "");
    let (_endpoint, mut h3) = front.h3().await;
    over_quic(&front, &mut h3).await;
    let by = |protocol: &str| behind.figure(&format!("tiderace_edge_requests_begun_total{{protocol=\"{protocol}\"}}"));
    let before = (by("h3"), by("h2"));
    let request =
        Request::post("https://localhost/a").header("priority", "u=6").body(full(pattern(1_000_000))).unwrap();
    let said = text(within(h3.send(request)).await.unwrap()).await;
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["content"], &said["fields"]["priority"]), (&1_000_000.into(), &"u=6".into()), "{said}");
    // The second does not believe what the first says of the client, unless it is told to.
    assert_eq!(said["fields"]["x-forwarded-for"], "127.0.0.1");
    assert_eq!(front.process.status()["back_ends"][0]["protocol"], "h3");
    assert_eq!((by("h3"), by("h2")), (before.0 + 1.0, before.1));
}

/// RFC 8470 §5: what came as early data is marked for the next, whose 425 comes back; and leaves none as early data itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_data_is_marked_and_refused_by_the_back_end() {
    let back_end = super::Origin::start(|request: Request<_>, _| {
        let is_early = request.headers().get("early-data").is_some_and(|value| value == "1");
        std::future::ready(Response::builder().status(if is_early { 425 } else { 200 }).body(full("")).unwrap())
    })
    .await;
    let config = format!("[transport]\nearly-data = true\n{}", super::route(back_end.address, "early-data = true"));
    let (site, _roots) = gateway("chain-early", &back_end.certificate, &config);
    let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(b"h3").early_data(true);
    let tls = Arc::new(tls.build().unwrap());
    let mut early = 0;
    for _ in 0..40 {
        let (_endpoint, connection, _) = site.returning(&tls).await.unwrap();
        let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        let status = within(h3.send(get("https://localhost/"))).await.unwrap().status().as_u16();
        connection.established().await.unwrap();
        match (connection.early_data(), status) {
            (EarlyData::Accepted, 425) => early += 1,
            // On a busy machine the handshake may be complete before the request is looked at.
            (_, 200) => {}
            other => panic!("{other:?}"),
        }
        if early > 2 {
            break;
        }
        // The ticket for the next time.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert!(early > 0);
}
