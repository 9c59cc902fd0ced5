//! The test page, and the echo behind it.

use http_body_util::BodyExt;

use super::*;
use crate::site::{full, get, get1};

fn page(more: &str) -> String {
    route(&format!("to = \"echo:\"\ndatagrams-to = \"echo:\"\n{more}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_sends_back_what_comes() {
    let site = Site::start("wt-echo", &page(""));
    let (_endpoint, session) = session(&site).await;
    let mut exchanges: JoinSet<_> = (0..20).map(|number| exchange(session.clone(), pattern(size(number)))).collect();
    while let Some(exchanged) = exchanges.join_next().await {
        exchanged.unwrap();
    }
    for number in 0..50_u8 {
        session.send_datagram(&[number; 300]).unwrap();
        assert_eq!(within(session.read_datagram()).await.unwrap(), vec![number; 300]);
    }
    let (mut send, mut recv) = within(session.open_bi()).await.unwrap();
    send.write_all(b"half").await.unwrap();
    send.reset(5);
    let broken_off = within(recv.read_to_end(10)).await;
    assert_eq!(broken_off, Err(ReadError::Reset(Some(3))));
    // Off by default.
    let response = site.h1().await.send_request(get1("/session")).await.unwrap();
    assert_eq!(response.status(), 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_its_download_and_its_upload_are_there_when_asked_for() {
    let site = Site::start("wt-page", &page("test-page = true"));
    let (_endpoint, mut h3) = site.h3().await;
    let response = within(h3.send(get(URI))).await.unwrap();
    assert_eq!(response.status(), http::StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    assert!(response.headers()["content-security-policy"].to_str().unwrap().contains("connect-src 'self'"));
    assert!(crate::site::text(response).await.contains("new WebTransport"));
    let response = within(h3.send(get(&format!("{URI}?download")))).await.unwrap();
    let content = within(response.into_body().collect()).await.unwrap().to_bytes();
    assert!(content == pattern(1 << 20), "the page expects these bytes");
    let upload = Request::post(format!("{URI}?upload")).body(full(pattern(1_000_000))).unwrap();
    let response = within(h3.send(upload)).await.unwrap();
    let said: serde_json::Value = serde_json::from_str(&crate::site::text(response).await).unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &pattern(1_000_000));
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((said["bytes"].as_u64(), said["sha256"].as_str()), (Some(1_000_000), Some(&*hex)));
    for (method, path, status) in
        [("GET", "/session?other", 405), ("PUT", "/session?upload", 405), ("POST", "/session", 405)]
    {
        let request = Request::builder().method(method).uri(path).header("host", "localhost").body(full("")).unwrap();
        assert_eq!(site.h1().await.send_request(request).await.unwrap().status(), status, "{method} {path}");
    }
}
