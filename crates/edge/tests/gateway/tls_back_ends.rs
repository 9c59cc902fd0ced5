//! Back ends over TLS: HTTP/2 or HTTP/1.1 by what they choose, and only those whose certificate is good.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use crate::site::{Body, Directory, Site, get, get1, mirror, read, text};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

/// A back end over TLS whose certificate is for `name`.
pub(crate) struct Secure {
    pub(crate) address: SocketAddr,
    /// Certificate in PEM.
    pub(crate) certificate: String,
    task: JoinHandle<()>,
}

impl Drop for Secure {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Secure {
    async fn start(name: &str, alpn: &[&[u8]]) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        Self::start_at("127.0.0.1:0".parse().unwrap(), &made, alpn).await
    }

    pub(crate) async fn start_at(
        address: SocketAddr,
        made: &rcgen::CertifiedKey<rcgen::KeyPair>,
        alpn: &[&[u8]],
    ) -> Self {
        Self::start_on(TcpListener::bind(address).await.unwrap(), made, alpn)
    }

    pub(crate) fn start_on(listener: TcpListener, made: &rcgen::CertifiedKey<rcgen::KeyPair>, alpn: &[&[u8]]) -> Self {
        let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    // Whoever does not believe the certificate goes away here.
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let name = stream.get_ref().1.server_name().unwrap_or("none").to_owned();
                    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let service = service_fn(move |request| answer(request, name.clone()));
                    let io = TokioIo::new(stream);
                    if is_h2 {
                        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = builder.serve_connection(io, service).await;
                    } else {
                        let builder = hyper::server::conn::http1::Builder::new();
                        let _ = builder.serve_connection(io, service).with_upgrades().await;
                    }
                });
            }
        });
        Self { address, certificate: made.cert.pem(), task }
    }

    fn route(&self, tls: &str) -> String {
        format!("[[route]]\nto = \"https://{}\"\ntls = {{ {tls} }}\n", self.address)
    }
}

/// Says what it was asked, and under what name; a WebSocket gets its bytes back.
async fn answer(mut request: Request<Incoming>, name: String) -> Result<Response<Body>, Infallible> {
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            stream.flush().await.unwrap();
        });
        let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "websocket");
        return Ok(response.body(crate::site::full("")).unwrap());
    }
    let mut response = mirror(request).await;
    response.headers_mut().insert("x-asked-for", name.parse().unwrap());
    Ok(response)
}

/// The gateway in front of `back_end`, and what it says to a request.
async fn ask(name: &str, back_end: &Secure, tls: &str) -> (Site, u16, Option<String>, Value) {
    let log = "[log]\naccess = \"access.log\"\n";
    // The roots have to be there before the gateway is.
    let roots = Directory::new(&format!("{name}-roots"));
    let file = roots.write("roots.pem", &back_end.certificate);
    let tls = tls.replace("ROOTS", file.to_str().unwrap());
    let site = Site::start(name, &format!("{log}{}", back_end.route(&tls)));
    let response = site.h1().await.send_request(get1("/a?b")).await.unwrap();
    let status = response.status().as_u16();
    let asked_for = response.headers().get("x-asked-for").map(|name| name.to_str().unwrap().to_owned());
    let said = serde_json::from_str(&text(response).await).unwrap_or_default();
    (site, status, asked_for, said)
}

/// Waits for the request's line in the access log.
async fn logged(site: &Site) -> Value {
    let path = site.directory.0.join("access.log");
    crate::site::until(|| read(&path).contains('\n'), true).await;
    serde_json::from_str(read(&path).lines().next().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_back_end_chooses_the_version() {
    for (case, alpn, version) in [
        ("tls-h2", &[&b"h2"[..], b"http/1.1"][..], "HTTP/2.0"),
        ("tls-h1", &[b"http/1.1"], "HTTP/1.1"),
        ("tls-none", &[], "HTTP/1.1"),
    ] {
        let back_end = Secure::start("app.internal", alpn).await;
        let (site, status, asked_for, said) = ask(case, &back_end, "roots = 'ROOTS', name = 'app.internal'").await;
        let said_of = |field: &str| site.process.status()["back_ends"][0][field].clone();
        assert_eq!((status, asked_for.as_deref()), (200, Some("app.internal")), "{case}");
        assert_eq!(said["version"], version, "{case}");
        assert!(said["uri"].as_str().unwrap().ends_with("/a?b"), "{said}");
        // It is asked under its own name, in whichever way its version says it; the client's is beside it.
        let own = back_end.address.to_string();
        match version {
            "HTTP/2.0" => {
                assert!(said["uri"].as_str().unwrap().contains(&own) && said["fields"]["host"].is_null(), "{said}")
            }
            _ => assert_eq!(said["fields"]["host"], own.as_str()),
        }
        assert_eq!(said["fields"]["x-forwarded-host"], "localhost");
        let named = if version == "HTTP/2.0" { "h2" } else { "http/1.1" };
        assert_eq!((said_of("protocol"), said_of("tls")), (named.into(), true.into()));
        let (_endpoint, mut h3) = site.h3().await;
        // What gRPC asks with: a back end of HTTP/1.1 would have to be told that it is for this connection alone.
        let request = Request::get("https://localhost/").header("te", "trailers").body(crate::site::full("")).unwrap();
        let said: Value = serde_json::from_str(&text(h3.send(request).await.unwrap()).await).unwrap();
        let te = if named == "h2" { "trailers".into() } else { Value::Null };
        assert_eq!((&said["version"], &said["fields"]["te"]), (&version.into(), &te), "{said}");
        let body = crate::site::full(crate::site::pattern(300_000));
        let request = Request::post("https://localhost/").body(body).unwrap();
        let said: Value = serde_json::from_str(&text(h3.send(request).await.unwrap()).await).unwrap();
        assert_eq!(said["content"], 300_000, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_certificate_is_a_bad_gateway_and_the_log_says_why() {
    let back_end = Secure::start("app.internal", &[b"h2"]).await;
    // Another's name; a certificate that nobody has vouched for.
    for (case, tls, why) in [
        ("tls-name", "roots = 'ROOTS', name = 'other.internal'", "not valid for name"),
        ("tls-root", "name = 'app.internal'", "certificate"),
    ] {
        let (site, status, _, _) = ask(case, &back_end, tls).await;
        assert_eq!(status, 502, "{case}");
        let line = logged(&site).await;
        let error = line["error"].as_str().unwrap();
        assert!(error.starts_with(&format!("https://{}: ", back_end.address)), "{error}");
        assert!(error.contains("invalid peer certificate") && error.contains(why), "{error}");
        let unreachable = format!(
            "tiderace_edge_back_end_requests_total{{back_end=\"https://{}\",result=\"unreachable\"}}",
            back_end.address
        );
        assert!(site.figure(&unreachable) >= 1.0);
    }
    let (_site, status, _, said) = ask("tls-unverified", &back_end, "verify = false").await;
    assert_eq!((status, &said["version"]), (200, &"HTTP/2.0".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_without_tls_is_a_bad_gateway() {
    let plain = crate::site::BackEnd::start(mirror).await;
    let tls = "tls = { verify = false }\n";
    let site = Site::start("tls-plain", &format!("[[route]]\nto = \"https://{}\"\n{tls}", plain.address));
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 502);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_goes_through_where_requests_go_over_http2() {
    let back_end = Secure::start("app.internal", &[b"h2", b"http/1.1"]).await;
    let (site, status, _, said) = ask("tls-websocket", &back_end, "verify = false").await;
    assert_eq!((status, &said["version"]), (200, &"HTTP/2.0".into()));
    let mut request = get1("/ws");
    for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let mut h1 = site.h1().await;
    let response = h1.send_request(request).await.unwrap();
    assert_eq!(response.status(), 101, "{:?}", response.into_body().collect().await.map(|body| body.to_bytes()));
    // A WebSocket has no choice, and says nothing about what other requests get.
    assert_eq!(site.process.status()["back_ends"][0]["protocol"], "h2");
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(b"ping").await.unwrap();
    stream.flush().await.unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roots_that_cannot_be_read_refuse_the_configuration() {
    let back_end = Secure::start("app.internal", &[]).await;
    let site = Site::start("tls-roots", &back_end.route("verify = false"));
    site.configure(&back_end.route("roots = 'none.pem'"));
    let error = site.process.reload().await.unwrap_err().to_string();
    assert!(error.contains("route[1].tls") && error.contains("none.pem"), "{error}");
    assert_eq!(site.h1().await.send_request(get1("/")).await.unwrap().status(), 200);
}
