//! Settings of routes around their handlers: redirections, header fields, compression, pages for errors, files in other forms, logs.

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZstdDecoder};
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::Value;
use tiderace_edge::Process;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::site::{BackEnd, Body, Site, full, get, get1, mirror, read, text, until};

fn asking(path: &str, accept: &str) -> Request<Body> {
    let mut request = get(&format!("https://localhost{path}"));
    request.headers_mut().insert("accept-encoding", accept.parse().unwrap());
    request
}

fn field<B>(response: &Response<B>, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

/// The content without its coding.
async fn decoded<B>(response: Response<B>) -> Vec<u8>
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: std::fmt::Debug,
{
    let coding = field(&response, "content-encoding");
    let data = std::io::Cursor::new(response.into_body().collect().await.unwrap().to_bytes());
    let mut plain = Vec::new();
    match coding.as_deref() {
        None => std::io::Read::read_to_end(&mut data.clone(), &mut plain).unwrap(),
        Some("zstd") => ZstdDecoder::new(data).read_to_end(&mut plain).await.unwrap(),
        Some("br") => BrotliDecoder::new(data).read_to_end(&mut plain).await.unwrap(),
        Some("gzip") => GzipDecoder::new(data).read_to_end(&mut plain).await.unwrap(),
        Some(other) => panic!("{other}"),
    };
    plain
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_http_is_redirected() {
    let back_end = BackEnd::start(mirror).await;
    let site =
        Site::start("plain", &format!("redirect-from = \"127.0.0.1:0\"\n[[route]]\nto = \"{}\"\n", back_end.url()));
    let plain = site.process.redirecting()[0];
    let asked = |request: &'static str| async move {
        let mut stream = TcpStream::connect(plain).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // The connection ends with the answer.
        stream.read_to_string(&mut answer).await.unwrap();
        answer.to_ascii_lowercase()
    };
    let answer = asked("GET /a/b?c=d HTTP/1.1\r\nhost: localhost:80\r\n\r\n").await;
    assert!(answer.starts_with("http/1.1 308"), "{answer}");
    assert!(answer.contains(&format!("location: https://localhost:{}/a/b?c=d\r\n", site.address.port())), "{answer}");
    assert!(asked("GET / HTTP/1.1\r\nhost: a b\r\n\r\n").await.starts_with("http/1.1 400"));
    assert_eq!(site.figure("tiderace_edge_redirected_requests_total"), 2.0);
    // A connection that asks for nothing is charged to the process.
    let held = || site.figure("tiderace_edge_memory_bytes{reason=\"held\"}");
    until(held, 0.0).await;
    let idle = TcpStream::connect(plain).await.unwrap();
    until(|| held() >= 32_768.0, true).await;
    drop(idle);
    until(held, 0.0).await;
    // A reload that names the address no longer closes it.
    site.configure(&format!("[[route]]\nto = \"{}\"\n", back_end.url()));
    site.process.reload().await.unwrap();
    assert!(site.process.redirecting().is_empty());
    until(|| std::net::TcpStream::connect(plain).is_err(), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_redirect_and_rewrite() {
    let back_end = BackEnd::start(mirror).await;
    let site = Site::start(
        "redirect",
        &format!(
            "[[route]]\npath = \"/old\"\nredirect = \"https://www.example.org/new/{{path}}\"\nredirect-status = 301\n\
             [[route]]\npath = \"/api\"\nto = \"{}\"\nrewrite = \"/v2\"\n",
            back_end.url()
        ),
    );
    let mut h2 = site.h2().await;
    let response = h2.send_request(get("https://localhost/old/a%20b?c=d")).await.unwrap();
    assert_eq!(response.status(), 301);
    assert_eq!(field(&response, "location").as_deref(), Some("https://www.example.org/new/a%20b?c=d"));
    let said: Value =
        serde_json::from_str(&text(h2.send_request(get("https://localhost/api/x?y")).await.unwrap()).await).unwrap();
    assert_eq!(said["uri"], "/v2/x?y");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_rules_hold_for_all_versions() {
    let back_end = BackEnd::start(|request| async {
        let mut response = mirror(request).await;
        response.headers_mut().insert("server", "secret/1.0".parse().unwrap());
        response.headers_mut().insert("x-frame-options", "ALLOWALL".parse().unwrap());
        response
    })
    .await;
    let rules = "hsts = \"365 d\"\n\
                 response-headers = { remove = \"server\", set = { x-frame-options = \"DENY\" }, add = { link = \"</a.css>\" } }\n\
                 request-headers = { remove = \"cookie\", set = { x-site = \"main\" } }\n";
    let site = Site::start("rules", &format!("[[route]]\nto = \"{}\"\n{rules}", back_end.url()));
    let mut request = get("https://localhost/");
    request.headers_mut().insert("cookie", "a=b".parse().unwrap());
    request.headers_mut().insert("x-site", "mine".parse().unwrap());
    let (_endpoint, mut h3) = site.h3().await;
    let response = h3.send(request).await.unwrap();
    assert_eq!(field(&response, "server"), None);
    assert_eq!(field(&response, "x-frame-options").as_deref(), Some("DENY"));
    assert_eq!(field(&response, "link").as_deref(), Some("</a.css>"));
    assert_eq!(field(&response, "strict-transport-security").as_deref(), Some("max-age=31536000"));
    let said: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!((said["fields"]["cookie"].as_str(), said["fields"]["x-site"].as_str()), (None, Some("main")));
    let response = site.h1().await.send_request(get1("/")).await.unwrap();
    assert_eq!(field(&response, "x-frame-options").as_deref(), Some("DENY"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_is_compressed_for_who_accepts_it() {
    let page = "<p>a line of text that comes again and again</p>\n".repeat(5_000);
    let length = page.len();
    let content = page.clone();
    let back_end = BackEnd::start(move |request: Request<hyper::body::Incoming>| {
        let content = content.clone();
        async move {
            let kind = if request.uri().path() == "/picture" { "image/png" } else { "text/html" };
            Response::builder().header("content-type", kind).header("etag", "\"1\"").body(full(content)).unwrap()
        }
    })
    .await;
    let site = Site::start("compressed", &format!("[[route]]\nto = \"{}\"\ncompression = {{}}\n", back_end.url()));
    let mut h2 = site.h2().await;
    let (_endpoint, mut h3) = site.h3().await;
    for (accept, coding) in [("gzip", "gzip"), ("gzip, br", "br"), ("gzip, deflate, br, zstd", "zstd")] {
        for over_h3 in [false, true] {
            let asked = asking("/", accept);
            let (fields, length_there, plain) = if over_h3 {
                let response = h3.send(asked).await.unwrap();
                (field(&response, "content-encoding"), field(&response, "content-length"), decoded(response).await)
            } else {
                let response = h2.send_request(asked).await.unwrap();
                (field(&response, "content-encoding"), field(&response, "content-length"), decoded(response).await)
            };
            assert_eq!((fields.as_deref(), length_there), (Some(coding), None));
            assert!(plain == page.as_bytes(), "{accept}");
        }
    }
    let response = h2.send_request(asking("/picture", "gzip")).await.unwrap();
    assert_eq!((field(&response, "content-encoding"), field(&response, "vary")), (None, None));
    let response = h2.send_request(asking("/", "identity")).await.unwrap();
    assert_eq!(
        (field(&response, "content-encoding"), field(&response, "vary").as_deref()),
        (None, Some("accept-encoding"))
    );
    assert_eq!(field(&response, "content-length"), Some(length.to_string()));
    let mut head = asking("/", "gzip");
    *head.method_mut() = http::Method::HEAD;
    let response = h2.send_request(head).await.unwrap();
    assert_eq!(
        (field(&response, "content-encoding").as_deref(), field(&response, "content-length")),
        (Some("gzip"), None)
    );
    assert_eq!(field(&response, "etag").as_deref(), Some("W/\"1\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_have_indexes_fallbacks_and_other_forms() {
    let directory = crate::site::Directory::new("forms-files");
    directory.write("app.html", "app");
    directory.write("docs/start.html", "start");
    directory.write("a.css", "plain css");
    directory.write("a.css.br", "brotli css");
    directory.write("a.css.gz", "gzip css");
    let site = Site::start(
        "forms",
        &format!(
            "[[route]]\nfiles = \"{}\"\nindex = [\"index.html\", \"start.html\"]\nfallback = \"app.html\"\nprecompressed = true\n",
            directory.0.display()
        ),
    );
    let mut h2 = site.h2().await;
    for (path, accept, content, coding) in [
        ("/docs/", "", "start", None),
        ("/nowhere/at/all", "", "app", None),
        ("/docs/nothing/", "", "app", None),
        ("/", "", "app", None),
        ("/a.css", "", "plain css", None),
        ("/a.css", "gzip", "gzip css", Some("gzip")),
        ("/a.css", "zstd, br, gzip", "brotli css", Some("br")),
        ("/a.css", "zstd", "plain css", None),
    ] {
        let response = h2.send_request(asking(path, accept)).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), field(&response, "content-encoding").as_deref()),
            (200, coding),
            "{path} {accept}"
        );
        assert_eq!(field(&response, "vary").as_deref(), Some("accept-encoding"));
        if path == "/a.css" {
            assert_eq!(field(&response, "content-type").as_deref(), Some("text/css; charset=utf-8"));
        }
        assert_eq!(text(response).await, content, "{path} {accept}");
    }
    for hidden in ["/.env", "/%2e%2e/x"] {
        assert_ne!(h2.send_request(asking(hidden, "")).await.unwrap().status(), 200, "{hidden}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_gateway_get_the_sites_pages() {
    let back_end =
        BackEnd::start(|_| async { Response::builder().status(404).body(full("the back end's own")).unwrap() }).await;
    let pages = crate::site::Directory::new("pages");
    pages.write("404.html", "<h1>not here</h1>");
    pages.write("502.html", "<h1>down</h1>");
    let files = pages.0.display();
    let both = format!("error-pages = {{ 404 = \"{files}/404.html\", 502 = \"{files}/502.html\" }}\n");
    let site = Site::start(
        "errors",
        &format!(
            "[[route]]\nfiles = \"{files}\"\n{both}[[route]]\npath = \"/app\"\nto = \"{}\"\n{both}\
             [[route]]\npath = \"/down\"\nto = \"http://127.0.0.1:1\"\n{both}",
            back_end.url()
        ),
    );
    let mut h2 = site.h2().await;
    for (path, status, content) in
        [("/nothing", 404, "<h1>not here</h1>"), ("/app", 404, "the back end's own"), ("/down", 502, "<h1>down</h1>")]
    {
        let response = h2.send_request(asking(path, "")).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        if path != "/app" {
            assert_eq!(field(&response, "content-type").as_deref(), Some("text/html; charset=utf-8"));
            assert_eq!(field(&response, "content-length"), Some(content.len().to_string()));
        }
        assert_eq!(text(response).await, content);
    }
    let missing = site.directory.write("broken.toml", "certificate = \"cert.pem\"\nkey = \"key.pem\"\n[[route]]\nfiles = \".\"\nerror-pages = { 404 = \"gone.html\" }\n");
    let error = tiderace_edge::config::load(&missing).unwrap_err();
    assert_eq!((error.line, error.field.as_deref()), (Some(5), Some("route[1].error-pages")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_who_asks_with_what_and_is_opened_again() {
    let back_end = BackEnd::start(mirror).await;
    let rest = |format: &str| {
        // Under another name than the log that the books of a site read.
        format!("[log]\naccess = \"requests.log\"\nformat = \"{format}\"\n[[route]]\nto = \"{}\"\n", back_end.url())
    };
    let site = Site::start("log-form", &rest("json"));
    let mut h2 = site.h2().await;
    let asking = || {
        let mut request = get("https://localhost/a");
        request.headers_mut().insert("user-agent", "curl/8 \"x\"".parse().unwrap());
        request.headers_mut().insert("referer", "https://example.org/".parse().unwrap());
        request
    };
    text(h2.send_request(asking()).await.unwrap()).await;
    let (now, before) = (site.directory.0.join("requests.log"), site.directory.0.join("requests.log.1"));
    until(|| read(&now).lines().count(), 1).await;
    let line: Value = serde_json::from_str(&read(&now)).unwrap();
    assert_eq!(
        (line["user_agent"].as_str(), line["referer"].as_str()),
        (Some("curl/8 \"x\""), Some("https://example.org/"))
    );
    std::fs::rename(&now, &before).unwrap();
    // Nothing else has changed.
    site.process.reload().await.unwrap();
    text(h2.send_request(asking()).await.unwrap()).await;
    until(|| read(&now).lines().count(), 1).await;
    assert_eq!(read(&before).lines().count(), 1);
    site.configure(&rest("combined"));
    site.process.reload().await.unwrap();
    text(h2.send_request(asking()).await.unwrap()).await;
    until(|| read(&now).lines().count(), 2).await;
    let line = read(&now).split_inclusive('\n').nth(1).unwrap().to_owned();
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
    assert!(line.contains("\"GET /a HTTP/2.0\" 200 "), "{line}");
    assert!(line.ends_with("\"https://example.org/\" \"curl/8 \\x22x\\x22\"\n"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_at_the_same_port_is_refused() {
    let back_end = BackEnd::start(mirror).await;
    let route = format!("[[route]]\nto = \"{}\"\n", back_end.url());
    let site = Site::start("first", &route);
    let second = site.directory.write(
        "second.toml",
        format!("listen = \"{}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 2\n{route}", site.address),
    );
    let error = Process::start(&second).err().expect("it is refused");
    assert!(error.to_string().contains(&format!("cannot listen at {}", site.address)), "{error}");
    assert!(error.hint().unwrap().contains("tiderace edge reload"));
    // Who serves an address already may be told so again.
    site.process.reload().await.unwrap();
    let mut h2 = site.h2().await;
    assert!(!text(h2.send_request(get("https://localhost/")).await.unwrap()).await.is_empty());
}
