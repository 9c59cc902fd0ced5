//! Choice among back ends: the one with the fewest requests, and the same one for a client.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Method, Request, Response};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

use crate::{
    access::{field, with},
    site::{
        BackEnd, Site,
        client::{Client, VERSIONS},
        full, text, until,
    },
};

/// Back ends that say their number.
async fn numbered(count: usize) -> Vec<BackEnd> {
    let mut all = Vec::new();
    for number in 0..count {
        let answer = move |_: Request<Incoming>| async move { Response::new(full(number.to_string())) };
        all.push(BackEnd::start(answer).await);
    }
    all
}

fn urls(back_ends: &[BackEnd]) -> String {
    let urls: Vec<_> = back_ends.iter().map(|back_end| format!("\"{}\"", back_end.url())).collect();
    format!("to = [{}]\n", urls.join(", "))
}

/// Asks on one connection; gives what was said, and the cookie that was set.
async fn ask(client: &mut Client, cookie: &str) -> (String, Option<String>) {
    let fields: &[_] = if cookie.is_empty() { &[] } else { &[("cookie", cookie)] };
    let response = client.send(with(client.request(Method::GET, "/", full("")), fields)).await.unwrap();
    assert_eq!(response.status(), 200);
    let set = field(&response, "set-cookie");
    (text(response).await, set)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_back_end_gets_fewer_requests() {
    let hold = Arc::new(Semaphore::new(0));
    let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let start = |slow: bool| {
        let (hold, count) = (hold.clone(), counts[usize::from(slow)].clone());
        BackEnd::start(move |_: Request<Incoming>| {
            let (hold, count) = (hold.clone(), count.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                if slow {
                    hold.acquire().await.unwrap().forget();
                }
                Response::new(full("ok"))
            }
        })
    };
    let back_ends = vec![start(true).await, start(false).await];
    let site = Site::start("least", &format!("[[route]]\n{}balance = \"least-connections\"\n", urls(&back_ends)));
    let mut tasks = Vec::new();
    for number in 0..21 {
        let mut h2 = site.h2().await;
        tasks.push(tokio::spawn(async move {
            h2.send_request(crate::site::get("https://localhost/")).await.unwrap().status()
        }));
        // One after the other, so that each is counted when the next is sent.
        let seen = || counts.iter().map(|count| count.load(Ordering::SeqCst)).sum::<usize>();
        until(seen, number + 1).await;
        let status = || site.process.status()["back_ends"][1]["requests"].clone();
        until(status, 0.into()).await;
    }
    let [fast, slow] = [&counts[0], &counts[1]].map(|count| count.load(Ordering::SeqCst));
    // Its first request stays, and no other follows while the fast one has none.
    assert_eq!((fast, slow), (20, 1));
    hold.add_permits(100);
    for task in tasks {
        assert_eq!(task.await.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cookie_keeps_a_client_at_its_back_end() {
    let mut back_ends = numbered(4).await;
    let route = format!(
        "[[route]]\n{}sticky = {{ max-age = \"1 h\" }}\nhealth = {{ interval = \"50 ms\" }}\n",
        urls(&back_ends)
    );
    let site = Site::start("sticky", &route);
    let mut by_number = HashMap::new();
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        for _ in 0..8 {
            let (number, set) = ask(&mut client, "").await;
            let set = set.unwrap();
            let (cookie, attributes) = set.split_once("; ").unwrap();
            assert_eq!(attributes, "Path=/; Max-Age=3600; Secure; HttpOnly; SameSite=Lax");
            let code = cookie.strip_prefix("edge-back-end=").unwrap();
            assert!(code.len() == 32 && code.bytes().all(|byte| byte.is_ascii_hexdigit()), "{code}");
            by_number.insert(number, cookie.to_owned());
        }
    }
    assert_eq!(by_number.len(), 4, "new clients are spread");
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        for (number, cookie) in &by_number {
            for cookie in [cookie.clone(), format!("a=b; {cookie}; c=d")] {
                assert_eq!(ask(&mut client, &cookie).await, (number.clone(), None), "{version} {cookie}");
            }
        }
        // Nobody makes a code of an address.
        let url = back_ends[2].url();
        for forged in
            ["edge-back-end=2", &format!("edge-back-end={url}"), "edge-back-end=00000000000000000000000000000000"]
        {
            assert!(ask(&mut client, forged).await.1.is_some(), "{version} {forged}");
        }
    }
    // A reload changes nothing; a back end that is gone is replaced.
    site.process.reload().await.unwrap();
    let mut client = Client::new(&site, "h2").await;
    let own = &by_number["3"];
    assert_eq!(ask(&mut client, own).await, ("3".to_owned(), None));
    let gone = back_ends.pop().unwrap();
    let up = format!("tiderace_edge_back_end_up{{back_end=\"{}\"}}", gone.url());
    drop(gone);
    until(|| site.figure(&up), 0.0).await;
    let (number, set) = ask(&mut client, own).await;
    assert!(number != "3" && set.is_some(), "{number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_a_back_end_for_each_of_its_addresses() {
    let back_ends = numbered(1).await;
    let port = back_ends[0].address.port();
    let site = Site::start("name", &format!("[[route]]\nto = \"http://localhost:{port}\"\nrefresh = \"1 s\"\n"));
    let mut client = Client::new(&site, "h3").await;
    assert_eq!(ask(&mut client, "").await.0, "0");
    let status = site.process.status();
    let names: Vec<_> = status["back_ends"].as_array().unwrap().iter().map(|it| it["to"].as_str().unwrap()).collect();
    assert!(names.contains(&format!("http://localhost:{port} at 127.0.0.1").as_str()), "{names:?}");
    // Under the next configuration they are the same ones.
    site.process.reload().await.unwrap();
    assert_eq!(ask(&mut client, "").await.0, "0");
    let found =
        format!("tiderace_edge_back_end_look_ups_total{{back_end=\"http://localhost:{port}\",result=\"found\"}}");
    until(|| site.figure(&found) >= 2.0, true).await;
}
