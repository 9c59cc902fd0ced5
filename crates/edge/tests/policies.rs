//! Policies: which congestion control a connection gets, and when that changes; roll-out to a share, with figures of both arms.

mod site;

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use site::{BackEnd, Site, full, get, read};

/// The policies that requests were under, from the access log.
fn logged(site: &Site) -> Vec<Option<String>> {
    let text = read(&site.directory.0.join("access.log"));
    text.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["policy"].as_str().map(str::to_owned))
        .collect()
}

async fn until<T: PartialEq + std::fmt::Debug>(what: impl Fn() -> T, expected: T) {
    for _ in 0..600 {
        if what() == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(what(), expected);
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
    // All that fitted are written down, when the connection is over.
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
