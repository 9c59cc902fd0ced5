//! HTTP on loopback: the files of the page, and runs for it.
//!
//! A page of another site that the user looks at can send requests here, too. So `host` has to name this machine (a name of that site
//! may lead here), and `sec-fetch-site`, which every browser sends, has to say that the page is ours.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore};

use super::{outcome::run, request::Asked};

/// Connections at a time: browsers have six.
const CONNECTIONS: usize = 32;
/// Time in which the fields of a request have to come.
const FIELDS: Duration = Duration::from_secs(30);
/// Bytes of the fields of a request.
const BUFFER: usize = 16 * 1024;
/// The page loads nothing from elsewhere, and no other page shows it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const FILES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/play.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/play.js", "text/javascript; charset=utf-8", include_str!("page.js")),
];

/// Answers connections for ever.
pub(super) async fn serve(listener: TcpListener, port: u16) {
    let (places, running) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(1)));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is free: others end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let running = running.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let running = running.clone();
                async move { Ok::<_, Infallible>(answer(request, port, running).await) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(FIELDS).max_buf_size(BUFFER);
            // A browser that goes away is no failure.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
}

async fn answer(request: Request<Incoming>, port: u16, running: Arc<Semaphore>) -> Response<Full<Bytes>> {
    if !is_ours(&request, port) {
        return text(StatusCode::FORBIDDEN, "This page is for browsers of this machine, at its own address.\n");
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "GET only.\n");
    }
    if request.uri().path() == "/run" {
        return compared(request.uri().query().unwrap_or_default(), running).await;
    }
    match FILES.iter().find(|(path, ..)| *path == request.uri().path()) {
        Some((_, kind, content)) => response(StatusCode::OK, kind, Bytes::from_static(content.as_bytes())),
        None => text(StatusCode::NOT_FOUND, "There is nothing here.\n"),
    }
}

/// Returns whether a browser asks for this machine by its name, on behalf of our page or of its user.
fn is_ours<B>(request: &Request<B>, port: u16) -> bool {
    let field = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let host = field(header::HOST).unwrap_or_default();
    let names = ["127.0.0.1", "localhost", "[::1]"];
    let at_home = names.iter().any(|name| host.strip_prefix(name).is_some_and(|rest| rest == format!(":{port}")))
        || (port == 80 && names.contains(&host));
    let site = field(header::HeaderName::from_static("sec-fetch-site"));
    at_home && site.is_none_or(|site| site == "same-origin" || site == "none")
}

/// Stops the run of a browser that has gone away, or has moved a slider since.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn compared(query: &str, running: Arc<Semaphore>) -> Response<Full<Bytes>> {
    let asked = match Asked::read(query) {
        Ok(asked) => asked,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, &why),
    };
    let gone = Gone(Arc::default());
    // Runs wait for one another, so that none is slow because of the others. A run that nobody waits for any more ends at its next moment.
    let Ok(turn) = running.acquire_owned().await else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "the program ends");
    };
    let stop = gone.0.clone();
    let ended = tokio::task::spawn_blocking(move || {
        let outcome = run(&asked, &stop);
        drop(turn);
        outcome
    });
    match ended.await {
        Ok(Ok(outcome)) => match serde_json::to_vec(&outcome) {
            Ok(json) => response(StatusCode::OK, "application/json", json.into()),
            Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        Ok(Err(why)) => refusal(StatusCode::BAD_REQUEST, &why),
        Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "the run panicked: please report it, with the scenario"),
    }
}

fn refusal(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    response(status, "application/json", serde_json::json!({ "error": why }).to_string().into())
}

fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn response(status: StatusCode, kind: &str, content: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(content));
    *response.status_mut() = status;
    let fields = [
        ("content-type", kind),
        ("cache-control", "no-store"),
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ];
    for (name, value) in fields {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_browsers_of_this_machine_are_answered() {
        let ours = |host: &str, site: Option<&str>| {
            let mut request = Request::builder().header("host", host);
            if let Some(site) = site {
                request = request.header("sec-fetch-site", site);
            }
            is_ours(&request.body(()).unwrap(), 8137)
        };
        assert!(
            ours("127.0.0.1:8137", None)
                && ours("localhost:8137", Some("same-origin"))
                && ours("[::1]:8137", Some("none"))
        );
        for (host, site) in [
            ("evil.example:8137", None),
            ("127.0.0.1.evil.example:8137", None),
            ("127.0.0.1:8138", None),
            ("127.0.0.1", None),
            ("127.0.0.1:8137", Some("cross-site")),
            ("localhost:8137", Some("same-site")),
        ] {
            assert!(!ours(host, site), "{host} {site:?}");
        }
    }
}
