//! Figures of paths: how long handshakes of each kind take, over QUIC and TCP, and round trips, by policy.

use std::{sync::Arc, time::Duration};

use crate::site::{BackEnd, Site, full, get};
use http::Response;
use http_body_util::BodyExt;
use tiderace::RustlsClient;

/// The figure's value, once it is there.
async fn until(site: &Site, line: &str, enough: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..600 {
        let value = site.figure(line);
        if enough(value) {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{line} is {}\n{}", site.figure(line), site.process.figures());
}

/// One request on a connection of its own.
async fn ask(site: &Site, tls: &Arc<RustlsClient>) {
    let (endpoint, connection, _) = site.returning(tls).await.unwrap();
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    h3.send(get("https://localhost/")).await.unwrap().into_body().collect().await.unwrap();
    connection.established().await.unwrap();
    // The ticket for the next time.
    tokio::time::sleep(Duration::from_millis(200)).await;
    connection.close(0x100, b"");
    endpoint.wait_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_and_round_trips_by_kind_and_policy() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let site = Site::start(
        "paths",
        &format!(
            "[transport]\nearly-data = true\n[[policy]]\nname = \"all\"\nnetwork = \"127.0.0.0/8\"\ncongestion = \"bbr3\"\n\
             [[route]]\nto = \"{}\"\n",
            back_end.url()
        ),
    );
    let builder = |early| {
        let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(b"h3").early_data(early);
        Arc::new(tls.build().unwrap())
    };
    let listener = site.address;
    let figure = |transport: &str, kind: &str, part: &str| {
        format!(
            "tiderace_edge_handshake_seconds_{part}{{listener=\"{listener}\",transport=\"{transport}\",kind=\"{kind}\"}}"
        )
    };
    for (kind, early) in [("resumed", false), ("0-rtt", true)] {
        let tls = builder(early);
        // On a busy machine a ticket may come too late for the next connection.
        for _ in 0..40 {
            ask(&site, &tls).await;
            if site.figure(&figure("quic", kind, "count")) >= 1.0 {
                break;
            }
        }
        until(&site, &figure("quic", kind, "count"), |value| value >= 1.0).await;
    }
    let all = until(&site, &figure("quic", "full", "count"), |value| value >= 2.0).await;
    let sum = site.figure(&figure("quic", "full", "sum"));
    assert!(sum > 0.0 && sum < 30.0 * all, "{sum} s");
    site.h2().await.send_request(get("https://localhost/")).await.unwrap();
    until(&site, &figure("tcp", "full", "count"), |value| value == 1.0).await;
    assert!(site.figure(&figure("tcp", "full", "sum")) > 0.0);
    for kind in ["full", "resumed", "0-rtt"] {
        let line = format!(
            "tiderace_edge_policy_handshake_seconds_count{{policy=\"all\",arm=\"with\",listener=\"{listener}\",kind=\"{kind}\"}}"
        );
        until(&site, &line, |value| value >= 1.0).await;
    }
    let by_policy = |name: &str, part: &str| {
        format!("tiderace_edge_policy_{name}_{part}{{policy=\"all\",arm=\"with\",listener=\"{listener}\"}}")
    };
    let ended = until(&site, &by_policy("connections", "total"), |value| value >= 4.0).await;
    for name in ["rtt_seconds", "min_rtt_seconds"] {
        let count = site.figure(&by_policy(name, "count"));
        assert!(count > 0.0 && count <= ended, "{name}: {count} of {ended}");
        assert!(site.figure(&by_policy(name, "sum")) > 0.0, "{name}");
    }
    let (smoothed, smallest) =
        (site.figure(&by_policy("rtt_seconds", "sum")), site.figure(&by_policy("min_rtt_seconds", "sum")));
    assert!(smallest <= smoothed, "{smallest} {smoothed}");
    let all = site.figure("tiderace_edge_quic_min_rtt_seconds_count");
    assert!(all >= site.figure(&by_policy("min_rtt_seconds", "count")), "{all}");
}
