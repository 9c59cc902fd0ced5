//! Requests through the gateway, over each version of HTTP.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::site::{BackEnd, Site, full, get, get1, mirror, pattern, text};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn route(to: &str) -> String {
    format!("[[route]]\nto = \"{to}\"\n")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_versions_reach_the_back_end() {
    let back_end = BackEnd::start(mirror).await;
    let log = "[log]\naccess = \"access.log\"\n";
    let site = Site::start("versions", &format!("{log}{}", route(&back_end.url())));
    let mut request = get1("/a/b?c=d");
    request.headers_mut().insert("x-forwarded-for", "10.9.8.7".parse().unwrap());
    request.headers_mut().insert("connection", "x-private".parse().unwrap());
    request.headers_mut().insert("x-private", "1".parse().unwrap());
    let response = site.h1().await.send_request(request).await.unwrap();
    let alt_svc = response.headers()["alt-svc"].to_str().unwrap().to_owned();
    assert_eq!(alt_svc, format!("h3=\":{}\"; ma=86400", site.address.port()));
    let said = json(&text(response).await);
    assert_eq!((said["method"].as_str(), said["uri"].as_str()), (Some("GET"), Some("/a/b?c=d")));
    assert_eq!(said["fields"]["x-forwarded-for"], "127.0.0.1");
    assert_eq!(said["fields"]["x-forwarded-proto"], "https");
    assert_eq!(said["fields"]["host"], "localhost");
    assert!(said["fields"]["x-private"].is_null());

    let mut h2 = site.h2().await;
    let response = h2.send_request(get("https://localhost/h2")).await.unwrap();
    assert_eq!(response.headers()["alt-svc"], alt_svc.as_str());
    let said = json(&text(response).await);
    assert_eq!((said["uri"].as_str(), said["fields"]["host"].as_str()), (Some("/h2"), Some("localhost")));

    let (_endpoint, mut h3) = site.h3().await;
    let response = h3.send(get("https://localhost/h3")).await.unwrap();
    assert!(!response.headers().contains_key("alt-svc"));
    let said = json(&text(response).await);
    assert_eq!((said["uri"].as_str(), said["version"].as_str()), (Some("/h3"), Some("HTTP/1.1")));
    // RFC 9114 §4.3.1 MUST-2
    assert_eq!(said["fields"]["host"], "localhost");

    let path = site.directory.0.join("access.log");
    crate::site::until(|| crate::site::read(&path).lines().count(), 3).await;
    let log = crate::site::read(&path);
    let lines: Vec<Value> = log.lines().map(json).collect();
    let of =
        |name: &str| lines.iter().map(|line| line[name].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    assert_eq!(of("protocol"), ["http/1.1", "h2", "h3"], "{log}");
    assert_eq!(of("path"), ["/a/b?c=d", "/h2", "/h3"]);
    assert!(
        lines.iter().all(|line| line["status"] == 200 && line["complete"] == true && line["ms"].as_f64() > Some(0.0))
    );
    for protocol in ["http/1.1", "h2", "h3"] {
        let line = format!(
            "tiderace_edge_requests_total{{protocol=\"{protocol}\",route=\"*/\",status=\"2xx\",ended_by=\"answer\"}}"
        );
        assert_eq!(site.figure(&line), 1.0, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_streams_both_ways_and_back_ends_of_http2() {
    let echo = |request: Request<hyper::body::Incoming>| async {
        Response::new(request.into_body().map_err(Into::into).boxed_unsync())
    };
    let back_end = BackEnd::start_at("127.0.0.1:0".parse().unwrap(), true, echo).await;
    let site = Site::start("echo", &route(&format!("h2c://{}", back_end.address)));
    let data = pattern(8_000_000);
    let post = || Request::post("https://localhost/").body(full(data.clone())).unwrap();
    let (_endpoint, mut h3) = site.h3().await;
    let mut h2 = site.h2().await;
    let (over_h3, over_h2) =
        tokio::join!(async { h3.send(post()).await.unwrap().into_body().collect().await.unwrap().to_bytes() }, async {
            h2.send_request(post()).await.unwrap().into_body().collect().await.unwrap().to_bytes()
        },);
    assert!(over_h3 == data && over_h2 == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_and_paths_choose_and_nobody_else_answers() {
    let [a, b] = [BackEnd::start(|_| async { Response::new(full("a")) }).await, BackEnd::start(mirror).await];
    let config = format!(
        "[[route]]\nhost = \"localhost\"\npath = \"/a\"\nto = \"{}\"\n[[route]]\nhost = \"localhost\"\npath = \"/b/\"\nstrip = true\nto = \"{}\"\n",
        a.url(),
        b.url()
    );
    let site = Site::start("routes", &config);
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(text(h3.send(get("https://localhost/a/x")).await.unwrap()).await, "a");
    assert_eq!(json(&text(h3.send(get("https://localhost/b/x?y")).await.unwrap()).await)["uri"], "/x?y");
    for nowhere in ["https://localhost/", "https://localhost/ab", "https://elsewhere/a"] {
        assert_eq!(h3.send(get(nowhere)).await.unwrap().status(), 404, "{nowhere}");
    }
    let mut h1 = site.h1().await;
    let trace = Request::builder().method("TRACE").uri("/a").header("host", "localhost").body(full("")).unwrap();
    assert_eq!(h1.send_request(trace).await.unwrap().status(), 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_ranges_and_conditions() {
    let site_directory = crate::site::Directory::new("www");
    site_directory.write("index.html", "<p>hello</p>");
    site_directory.write("sub/index.html", "sub");
    site_directory.write("big.bin", pattern(1_000_000));
    site_directory.write(".secret", "no");
    let site = Site::start("files", &format!("[[route]]\nfiles = \"{}\"\n", site_directory.0.display()));
    let (_endpoint, mut h3) = site.h3().await;
    let response = h3.send(get("https://localhost/")).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    let tag = response.headers()["etag"].clone();
    assert_eq!(text(response).await, "<p>hello</p>");
    let mut conditional = get("https://localhost/index.html");
    conditional.headers_mut().insert("if-none-match", tag);
    assert_eq!(h3.send(conditional).await.unwrap().status(), 304);
    let big = h3.send(get("https://localhost/big.bin")).await.unwrap();
    assert_eq!(big.headers()["content-length"], "1000000");
    assert!(big.into_body().collect().await.unwrap().to_bytes() == pattern(1_000_000));
    let mut part = get("https://localhost/big.bin");
    part.headers_mut().insert("range", "bytes=300000-700000".parse().unwrap());
    let response = h3.send(part).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-range"]),
        (206, &"bytes 300000-700000/1000000".parse().unwrap())
    );
    assert!(response.into_body().collect().await.unwrap().to_bytes() == pattern(1_000_000).slice(300_000..700_001));
    let moved = h3.send(get("https://localhost/sub")).await.unwrap();
    assert_eq!((moved.status().as_u16(), &moved.headers()["location"]), (308, &"/sub/".parse().unwrap()));
    for hidden in ["/.secret", "/nothing", "/index.html/"] {
        assert_eq!(h3.send(get(&format!("https://localhost{hidden}"))).await.unwrap().status(), 404, "{hidden}");
    }
    // A path that leads above its root has no place to be compared with.
    assert_eq!(h3.send(get("https://localhost/%2e%2e/etc/passwd")).await.unwrap().status(), 400);
    let post = Request::post("https://localhost/").body(full("x")).unwrap();
    assert_eq!(h3.send(post).await.unwrap().status(), 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_in_memory_are_what_they_are_on_disk() {
    let www = crate::site::Directory::new("www-memory");
    let begun = std::time::Instant::now();
    let large = pattern(2_000_000);
    www.write("small", "one");
    www.write("large", large.clone());
    www.write("scan", vec![b'x'; 24 << 20]);
    let routes = format!("[[route]]\nfiles = \"{}\"\n", www.0.display());
    let site = Site::start("memory", &routes);
    let (_endpoint, mut h3) = site.h3().await;
    let mut ask = async |path: &str, range: Option<&str>| {
        let mut request = get(&format!("https://localhost{path}"));
        if let Some(range) = range {
            request.headers_mut().insert("range", range.parse().unwrap());
        }
        let response = h3.send(request).await.unwrap();
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    };
    let from_memory = || site.figure("tiderace_edge_file_bytes{source=\"memory\"}");
    // What was just written is read each time.
    for _ in 0..2 {
        assert_eq!(ask("/small", None).await.1, "one");
    }
    let held = site.figure("tiderace_edge_file_memory_bytes");
    // On a machine that is slow enough, it was not just written.
    assert!(begun.elapsed() > Duration::from_secs(3) || (from_memory(), held) == (0.0, 0.0));
    let before = from_memory();
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    for _ in 0..2 {
        assert_eq!(ask("/small", None).await.1, "one");
        assert!(ask("/large", None).await.1 == large);
    }
    // The first round has brought it there, where nothing had before.
    assert!((2_000_003.0..=2_000_006.0).contains(&(from_memory() - before)));
    let (status, part) = ask("/large", Some("bytes=65530-131080")).await;
    assert!(status == 206 && part == large.slice(65_530..131_081));
    assert_eq!(ask("/large", Some("bytes=-1")).await, (206, large.slice(1_999_999..)));
    let mut h1 = site.h1().await;
    assert!(h1.send_request(get1("/large")).await.unwrap().into_body().collect().await.unwrap().to_bytes() == large);
    // Another content of the same length, whose time is set to what it was.
    let small = www.0.join("small");
    let modified = std::fs::metadata(&small).unwrap().modified().unwrap();
    std::fs::write(&small, "two").unwrap();
    std::fs::File::options().write(true).open(&small).unwrap().set_modified(modified).unwrap();
    assert_eq!(ask("/small", None).await.1, "two");
    // Who has begun to read a file that is replaced gets what it was, to its end.
    h1.ready().await.unwrap();
    let begun = h1.send_request(get1("/scan")).await.unwrap();
    www.write("next", vec![b'y'; 24 << 20]);
    std::fs::rename(www.0.join("next"), www.0.join("scan")).unwrap();
    assert!(begun.into_body().collect().await.unwrap().to_bytes() == vec![b'x'; 24 << 20]);
    assert!(ask("/scan", None).await.1 == vec![b'y'; 24 << 20]);
    std::fs::remove_file(&small).unwrap();
    assert_eq!(ask("/small", None).await.0, 404);
    site.configure(&format!("[files]\nmemory = \"0 B\"\n{routes}"));
    site.process.reload().await.unwrap();
    assert_eq!(site.figure("tiderace_edge_file_memory_bytes"), 0.0);
    assert!(ask("/large", None).await.1 == large);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_that_is_gone_costs_no_request() {
    let gone = BackEnd::start(mirror).await;
    let there = BackEnd::start(|_| async { Response::new(full("there")) }).await;
    let url = gone.url();
    drop(gone);
    let site = Site::start("gone", &format!("[[route]]\nto = [\"{url}\", \"{}\"]\n", there.url()));
    let (_endpoint, mut h3) = site.h3().await;
    for _ in 0..20 {
        assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "there");
    }
    assert!(site.figure("tiderace_edge_retries_total") >= 1.0);
    assert_eq!(site.figure(&format!("tiderace_edge_back_end_up{{back_end=\"{url}\"}}")), 0.0);
    let site = Site::start("all-gone", &format!("[[route]]\nto = \"{url}\"\n"));
    assert_eq!(site.h1().await.send_request(get1("/")).await.unwrap().status(), 502);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_may_happen_twice_is_tried_again() {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    // It takes a request and breaks off.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 10_000];
            let _ = stream.read(&mut buffer).await;
            counting.fetch_add(1, Ordering::Relaxed);
        }
    });
    let site = Site::start("twice", &format!("[[route]]\nretries = 3\nto = \"http://{address}\"\n"));
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 502);
    assert_eq!(count.swap(0, Ordering::Relaxed), 4);
    for content in ["", "content"] {
        let post = Request::post("https://localhost/").body(full(content)).unwrap();
        assert_eq!(h3.send(post).await.unwrap().status(), 502);
        assert_eq!(count.swap(0, Ordering::Relaxed), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_that_says_it_is_ill_gets_nothing() {
    let ill = Arc::new(AtomicUsize::new(0));
    let reached = Arc::new(AtomicUsize::new(0));
    let (state, count) = (ill.clone(), reached.clone());
    let first = BackEnd::start(move |request| {
        let (state, count) = (state.clone(), count.clone());
        async move {
            let mut response = Response::new(full("first"));
            if request.uri().path() == "/health" {
                if state.load(Ordering::Relaxed) == 1 {
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                }
            } else {
                count.fetch_add(1, Ordering::Relaxed);
            }
            response
        }
    })
    .await;
    let second = BackEnd::start(|_| async { Response::new(full("second")) }).await;
    let health = "[route.health]\npath = \"/health\"\ninterval = \"50 ms\"\n";
    let site = Site::start("health", &format!("[[route]]\nto = [\"{}\", \"{}\"]\n{health}", first.url(), second.url()));
    let (_endpoint, mut h3) = site.h3().await;
    let up = format!("tiderace_edge_back_end_up{{back_end=\"{}\"}}", first.url());
    let wait = async |value: f64| crate::site::until(|| site.figure(&up), value).await;
    wait(1.0).await;
    ill.store(1, Ordering::Relaxed);
    wait(0.0).await;
    reached.store(0, Ordering::Relaxed);
    for _ in 0..10 {
        assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "second");
    }
    assert_eq!(reached.load(Ordering::Relaxed), 0);
    ill.store(0, Ordering::Relaxed);
    wait(1.0).await;
    for _ in 0..4 {
        h3.send(get("https://localhost/")).await.unwrap();
    }
    assert!(reached.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_back_end_is_a_timeout() {
    let slow = BackEnd::start(|_| async { std::future::pending::<Response<crate::site::Body>>().await }).await;
    let site = Site::start("slow", &format!("[[route]]\ntimeout = \"200 ms\"\nto = \"{}\"\n", slow.url()));
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 504);
}

/// RFC 9204 §7.1.3 MUST-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_to_be_indexed_stays_so() {
    // `x-secret` as a new name in HPACK (RFC 7541 §6.2), in Huffman codes.
    const NAME: [u8; 7] = [0x86, 0xf2, 0xb2, 0x0a, 0x4b, 0x0a, 0x9f];
    for (sensitive, kind) in [(true, 0x10), (false, 0x40)] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = Site::start("sensitive", &route(&format!("h2c://{}", listener.local_addr().unwrap())));
        // What stands before the name says whether it may be indexed.
        let heard = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            stream.flush().await.unwrap();
            let mut seen = Vec::new();
            loop {
                if let Some(at) = seen.windows(NAME.len()).position(|bytes| bytes == NAME) {
                    return seen[at - 1];
                }
                assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "it does not come: {seen:x?}");
            }
        });
        let (_endpoint, mut h3) = site.h3().await;
        let mut value = http::HeaderValue::from_static("value");
        value.set_sensitive(sensitive);
        let mut request = get("https://localhost/");
        request.headers_mut().insert("x-secret", value);
        let asking = tokio::spawn(async move { h3.send(request).await.map(|_| ()) });
        assert_eq!(heard.await.unwrap(), kind);
        asking.abort();
    }
}
