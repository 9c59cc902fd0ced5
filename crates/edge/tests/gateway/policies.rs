//! Policies: which congestion control a connection gets, and when that changes; roll-out to a share, with figures of both arms.

use std::{sync::Arc, time::Duration};

use crate::site::{BackEnd, Site, full, get, read, until};
use http::{Request, Response};
use http_body_util::BodyExt;
use tiderace::{EarlyData, RustlsClient};

/// The policies that requests were under, from the access log.
fn logged(site: &Site) -> Vec<Option<String>> {
    let text = read(&site.directory.0.join("access.log"));
    text.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["policy"].as_str().map(str::to_owned))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_policy_that_fits_wins_and_a_route_moves_a_connection_up() {
    let back_end = BackEnd::start(|_| async { Response::new(full(vec![1; 300_000])) }).await;
    let to = back_end.url();
    let site = Site::start(
        "policy-order",
        &format!(
            "[log]\naccess = \"access.log\"\n\
             [[policy]]\nname = \"video\"\nroute = \"*/video\"\ncongestion = \"bbr3\"\n\
             [[policy]]\nname = \"feed\"\nroute = \"*/feed\"\ncongestion = \"newreno\"\n\
             [[policy]]\nname = \"name\"\nsni = \"localhost\"\ncongestion = \"bbr1\"\n\
             [[policy]]\nname = \"here\"\nnetwork = \"127.0.0.0/8\"\nfec = \"receive\"\n\
             [[route]]\nto = \"{to}\"\n[[route]]\npath = \"/video\"\nto = \"{to}\"\n[[route]]\npath = \"/feed\"\nto = \"{to}\"\n"
        ),
    );
    let (_endpoint, mut h3) = site.h3().await;
    // The last one moves nothing: what stands before it has been asked for already.
    for path in ["/", "/feed", "/", "/video", "/feed"] {
        let response = h3.send(get(&format!("https://localhost{path}"))).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 300_000);
    }
    let expected = ["name", "feed", "feed", "video", "video"].map(|name| Some(name.to_owned()));
    until(|| logged(&site), expected.to_vec()).await;
    drop(h3);
    // All that fitted are written down, when the connection has ended.
    until(
        || {
            let arms = site.process.arms();
            ["video", "feed", "name", "here"].map(|name| arms["arms"][name]["with"]["connections"].as_u64())
        },
        [Some(1), Some(1), Some(1), None],
    )
    .await;
    let arms = site.process.arms();
    let rate = arms["arms"]["video"]["with"]["samples"][0]["rate"].as_f64().unwrap();
    assert!(rate > 1_000.0, "{arms}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_gets_it_and_the_rest_is_compared_with_it() {
    let back_end = BackEnd::start(|_| async { Response::new(full(vec![1; 100_000])) }).await;
    let site = Site::start(
        "policy-share",
        &format!(
            "[log]\naccess = \"access.log\"\n\
             [[policy]]\nname = \"trial\"\nnetwork = [\"127.0.0.0/8\", \"::1\"]\nshare = \"50 %\"\ncongestion = \"bbr3\"\n\
             [[route]]\nto = \"{}\"\n",
            back_end.url()
        ),
    );
    let count = 40;
    for _ in 0..count {
        let (_endpoint, mut h3) = site.h3().await;
        let response = h3.send(get("https://localhost/")).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 100_000);
    }
    let arm = |name: &str| site.process.arms()["arms"]["trial"][name]["connections"].as_u64().unwrap_or(0);
    until(|| arm("with") + arm("without"), count).await;
    // Of 40 with even chances, fewer than 5 in an arm come once in ten million times.
    assert!(arm("with") >= 5 && arm("without") >= 5, "{} and {}", arm("with"), arm("without"));
    let under = logged(&site).iter().filter(|policy| policy.as_deref() == Some("trial")).count() as u64;
    assert_eq!(under, arm("with"), "who is drawn with the first packet is drawn later, too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_path_shows_changes_the_policy() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    // Every path is longer than nothing.
    let site = Site::start(
        "policy-rtt",
        &format!(
            "[log]\naccess = \"access.log\"\n\
             [[policy]]\nname = \"far\"\nrtt-above = \"10 min\"\ncongestion = \"bbr3\"\n\
             [[policy]]\nname = \"near\"\nrtt-above = \"0 ms\"\ncongestion = \"newreno\"\n[[route]]\nto = \"{}\"\n",
            back_end.url()
        ),
    );
    let (_endpoint, mut h3) = site.h3().await;
    let mut last = None;
    for _ in 0..600 {
        h3.send(get("https://localhost/")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        last = logged(&site).pop().flatten();
        if last.is_some() {
            break;
        }
    }
    assert_eq!(last.as_deref(), Some("near"));
}

/// A Request of a client that comes back: whether its request left as early data, what became of that, and the answer.
async fn request_again(site: &Site, tls: &Arc<RustlsClient>) -> (bool, EarlyData, String) {
    let (_endpoint, connection, early) = site.returning(tls).await.unwrap();
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    let body = h3.send(get("https://localhost/")).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    // The ticket for the next time.
    connection.established().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    (early, connection.early_data(), String::from_utf8(body.to_vec()).unwrap())
}

/// Sends a request of a returning client; returns the field that tells the back end whether it came as early data.
async fn comes_back(site: &Site, tls: &Arc<RustlsClient>) -> (bool, String) {
    let (early, _, answer) = request_again(site, tls).await;
    (early, answer)
}

/// RFC 9114 §10.9 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_may_refuse_to_serve_early_data() {
    let back_end = BackEnd::start(|request: Request<hyper::body::Incoming>| async move {
        let early = request.headers().get("early-data").is_some();
        Response::new(full(if early { "early" } else { "late" }))
    })
    .await;
    for (name, network, expected) in
        [("early-refused", "127.0.0.0/8", "late"), ("early-taken", "192.0.2.0/24", "early")]
    {
        let site = Site::start(
            name,
            &format!(
                "[transport]\nearly-data = true\n[[policy]]\nname = \"careful\"\nnetwork = \"{network}\"\nearly-data = false\n\
                 [[route]]\nto = \"{}\"\nearly-data = true\n",
                back_end.url()
            ),
        );
        let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(b"h3").early_data(true);
        let tls = Arc::new(tls.build().unwrap());
        assert_eq!(comes_back(&site, &tls).await, (false, "late".to_owned()), "there is nothing to resume");
        // On a busy machine a ticket may come late, and the handshake before the request.
        let mut served = Vec::new();
        for _ in 0..40 {
            if let (true, how) = comes_back(&site, &tls).await {
                served.push(how);
            }
            if served.len() >= 5 && served.iter().any(|how| how == expected) {
                break;
            }
        }
        assert!(served.iter().any(|how| how == expected), "{name}: {served:?}");
        assert!(expected == "early" || served.iter().all(|how| how == "late"), "{name}: {served:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_told_of_http3_and_came() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let site = Site::start("told", &format!("[[route]]\nto = \"{}\"\n", back_end.url()));
    assert_eq!(site.h2().await.send_request(get("https://localhost/")).await.unwrap().status(), 200);
    let told = "tiderace_edge_alt_svc_clients_total{protocol=\"h2\",result=\"advertised\"}";
    assert_eq!(site.figure(told), 1.0);
    let (_endpoint, mut h3) = site.h3().await;
    for _ in 0..3 {
        assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 200);
    }
    assert_eq!(site.figure("tiderace_edge_alt_svc_clients_total{protocol=\"h3\",result=\"used\"}"), 1.0);
    assert_eq!(site.figure("tiderace_edge_quic_versions_total{version=\"1\"}"), 1.0);
    let bytes = |direction, form| {
        site.figure(&format!("tiderace_edge_field_bytes{{direction=\"{direction}\",form=\"{form}\"}}"))
    };
    assert!(bytes("in", "plain") > bytes("in", "compressed") && bytes("in", "compressed") > 0.0);
    assert_eq!(site.h2().await.send_request(get("https://localhost/")).await.unwrap().status(), 200);
    assert_eq!(site.figure(told), 1.0, "each client is counted once");
}

/// RFC 9114 §7.2.4.2 MUST NOT-3, MUST NOT-4, RFC 9204 §3.2.3 MUST-1, RFC 9297 §2.1.1 MUST-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_data_by_other_settings_is_refused() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let config = |fields: u32| {
        format!(
            "[transport]\nearly-data = true\n[limits]\nfields = \"{fields} KiB\"\n[[route]]\nto = \"{}\"\nearly-data = true\n",
            back_end.url()
        )
    };
    let site = Site::start("early-settings", &config(64));
    let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(b"h3").early_data(true);
    let tls = Arc::new(tls.build().unwrap());
    // On a busy machine a ticket may come late: then there is nothing to offer, and another round.
    for fields in (10..50).rev() {
        while request_again(&site, &tls).await.1 != EarlyData::Accepted {}
        site.configure(&config(fields));
        site.process.reload().await.unwrap();
        match request_again(&site, &tls).await.1 {
            EarlyData::Rejected => return,
            EarlyData::Accepted => panic!("a client may have gone by the limit of before"),
            _ => {}
        }
    }
    panic!("no ticket ever came in time");
}
