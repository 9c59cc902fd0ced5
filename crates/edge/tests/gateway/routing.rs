//! Client identity and routing: what the gateway believes of a client, and where its requests go.

use std::{
    net::SocketAddr,
    os::unix::fs::symlink,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::site::{
    BackEnd, Directory, Site, full, get, get1, mirror, text,
    wire::{Wire, raw_h1, raw_h2, raw_h3},
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::Value;
use tiderace::{ClientConfig, Connection, Endpoint, RustlsClient};
use tokio::{io::AsyncReadExt, net::TcpListener, sync::mpsc};

fn route(back_end: &BackEnd) -> String {
    format!("[[route]]\nto = \"{}\"\n", back_end.url())
}

fn client(site: &Site, alpn: &str, early: bool) -> ClientConfig {
    let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(alpn).early_data(early);
    ClientConfig::new(Arc::new(tls.build().unwrap()), Arc::new(crate::site::patient()))
}

/// A back end that says whom it was told that a request is of, when it comes.
async fn telling() -> (BackEnd, mpsc::UnboundedReceiver<HeaderMap>) {
    let (tell, told) = mpsc::unbounded_channel();
    let back_end = BackEnd::start(move |request: Request<Incoming>| {
        let _ = tell.send(request.headers().clone());
        async { Response::new(full("ok")) }
    })
    .await;
    (back_end, told)
}

async fn lines(site: &Site, count: usize) -> Vec<Value> {
    let path = site.directory.0.join("access.log");
    loop {
        let log = crate::site::read(&path);
        let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if lines.len() >= count {
            return lines;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_packet_with_a_forged_source_names_nobody() {
    let (back_end, mut told) = telling().await;
    let site = Site::start("forged", &format!("[log]\naccess = \"access.log\"\n{}", route(&back_end)));
    let wire = Wire::new(site.address).await;
    let (_endpoint, connection) = wire.connect(&client(&site, "h3", false)).await;
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    assert_eq!(h3.send(get("https://localhost/first")).await.unwrap().status(), 200);
    assert_eq!(told.recv().await.unwrap()["x-forwarded-for"], "127.0.0.1");
    // From here on, authentic packets come from elsewhere, until the gateway has taken the bait.
    wire.will.forges.store(true, Ordering::SeqCst);
    let mut sender = h3.clone();
    let asking = tokio::spawn(async move { sender.send(get("https://localhost/second")).await.unwrap().status() });
    assert_eq!(told.recv().await.unwrap()["x-forwarded-for"], "127.0.0.1");
    wire.asked().await;
    let list = site.process.connections();
    assert_eq!(list["connections"][0]["client"], wire.near.to_string(), "{list}");
    assert_eq!(list["connections"][0]["validated"], true);
    wire.will.forges.store(false, Ordering::SeqCst);
    assert_eq!(asking.await.unwrap(), 200);
    assert_eq!(h3.send(get("https://localhost/third")).await.unwrap().status(), 200);
    assert_eq!(told.recv().await.unwrap()["x-forwarded-for"], "127.0.0.1");
    for line in lines(&site, 3).await {
        assert_eq!(line["client"], wire.near.to_string(), "{line}");
        assert!(line["client_unvalidated"].is_null());
    }
    assert!(wire.will.forged.load(Ordering::SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_header_has_the_validated_address() {
    let back_end = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = back_end.local_addr().unwrap();
    let site = Site::start(
        "forged-stream",
        &format!("[[stream]]\nalpn = \"test\"\nto = \"tcp://{to}\"\nproxy-protocol = true\n"),
    );
    let wire = Wire::new(site.address).await;
    let (_endpoint, connection) = wire.connect(&client(&site, "test", false)).await;
    connection.established().await.unwrap();
    let open = async |data: &'static [u8]| {
        let (mut send, recv) = connection.open_bi().await.unwrap();
        send.write_all(data).await.unwrap();
        let (mut stream, _) = back_end.accept().await.unwrap();
        let mut header = [0; 28];
        stream.read_exact(&mut header).await.unwrap();
        let address: [u8; 4] = header[16..20].try_into().unwrap();
        let port = u16::from_be_bytes(header[24..26].try_into().unwrap());
        drop((send, recv));
        SocketAddr::from((address, port))
    };
    assert_eq!(open(b"a").await, wire.near);
    wire.will.forges.store(true, Ordering::SeqCst);
    // The first packets may be acknowledgements: until one of them has moved the path.
    assert_eq!(open(b"b").await, wire.near);
    wire.asked().await;
    assert_eq!(open(b"c").await, wire.near);
}

/// A connection with early data of somebody who has come from elsewhere before, so that no token says that it is at this address. Its
/// handshake gets no answer, as where the address is forged.
async fn unanswered(site: &Site, config: &ClientConfig) -> (Wire, Endpoint, Connection) {
    loop {
        let elsewhere = Wire::from("127.0.0.3:0", site.address).await;
        let (endpoint, connection) = elsewhere.connect(config).await;
        // The ticket comes a little later; when it does not, there is another round.
        tokio::time::sleep(Duration::from_millis(100)).await;
        connection.close(0x100, b"");
        endpoint.wait_idle().await;
        let wire = Wire::new(site.address).await;
        let endpoint = Endpoint::client_for(wire.address).unwrap();
        wire.will.is_mute.store(true, Ordering::SeqCst);
        if let Ok(connection) = endpoint.connect(config, wire.address, "localhost").unwrap().into_early() {
            return (wire, endpoint, connection);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_data_from_a_forged_address_takes_nothing_from_its_owner() {
    let (back_end, mut told) = telling().await;
    let config = format!(
        "[transport]\nearly-data = true\n[limits]\nconnections-per-address = 2\nhandshake-timeout = \"600 s\"\n\
         [log]\naccess = \"access.log\"\n{}early-data = true\n",
        route(&back_end)
    );
    let site = Site::start("forged-early", &config);
    let mut forged = Vec::new();
    for _ in 0..5 {
        let config = client(&site, "h3", true);
        let (wire, endpoint, connection) = unanswered(&site, &config).await;
        let h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        let mut sender = h3.clone();
        let asking = tokio::spawn(async move { sender.send(get("https://localhost/early")).await.map(drop) });
        let fields = told.recv().await.unwrap();
        // A back end knows what it is worth.
        assert_eq!(
            (&fields["early-data"], &fields["x-forwarded-for"]),
            (&"1".parse().unwrap(), &"127.0.0.1".parse().unwrap())
        );
        forged.push((wire, endpoint, connection, h3, asking));
    }
    // With what is left of those that have closed.
    assert!(site.process.status()["connections"].as_u64().unwrap() >= 5, "they are there");
    let list = site.process.connections();
    let here = |one: &&Value| one["client"].as_str().unwrap().starts_with("127.0.0.1:");
    let forged_here: Vec<&Value> = list["connections"].as_array().unwrap().iter().filter(here).collect();
    assert!(forged_here.len() == 5 && forged_here.iter().all(|one| one["validated"] == false), "{list}");
    let early: Vec<Value> = lines(&site, 5)
        .await
        .into_iter()
        .filter(|line| line["path"] == "/early" && line["early_data"] == true)
        .collect();
    assert!(early.len() == 5 && early.iter().all(|line| line["client_unvalidated"] == true), "{early:?}");
    // The owner of the address has both of its places.
    let (_first, mut h3) = site.h3().await;
    assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 200);
    let mut h2 = site.h2().await;
    assert_eq!(h2.send_request(get("https://localhost/")).await.unwrap().status(), 200);
    let refused = "tiderace_edge_connections_refused_total{reason=\"address\"}";
    assert_eq!(site.figure(refused), 0.0);
    // Whose handshake is complete counts, also when it was accepted before: this one finds no place.
    let (wire, _, connection, ..) = &forged[0];
    wire.will.is_mute.store(false, Ordering::SeqCst);
    let reason = connection.closed().await;
    assert!(matches!(reason, tiderace::CloseReason::PeerApplication { code: 0x107, .. }), "{reason}");
    assert_eq!(site.figure(refused), 1.0);
}

/// A back end that says its name before what it was asked.
async fn named(name: &'static str) -> BackEnd {
    BackEnd::start(move |request: Request<Incoming>| {
        let said = format!("<{name} {}>", request.uri());
        async { Response::new(full(said)) }
    })
    .await
}

/// Parses the echo of a back end.
fn said(answer: &str) -> Option<(String, String)> {
    let (name, uri) = answer.rsplit_once('<')?.1.split_once('>')?.0.split_once(' ')?;
    Some((name.to_owned(), uri.to_owned()))
}

const SITE: [(&str, &str); 3] = [("any", "/"), ("admin", "/admin"), ("pub", "/pub")];

async fn three_routes(name: &str) -> (Site, Vec<BackEnd>) {
    let (mut back_ends, mut config) = (Vec::new(), String::new());
    for (name, path) in SITE {
        let back_end = named(name).await;
        config += &format!("[[route]]\npath = \"{path}\"\nto = \"{}\"\n", back_end.url());
        back_ends.push(back_end);
    }
    (Site::start(name, &config), back_ends)
}

fn h1_get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spelling_of_a_path_goes_around_a_route() {
    let (site, _back_ends) = three_routes("spellings").await;
    let (_endpoint, quic) = site.quic(b"h3").await;
    for (path, expected) in [
        ("/x?y=/../admin", Some(("any", "/x?y=/../admin"))),
        ("/pub/../admin", Some(("admin", "/admin"))),
        ("/pub/%2e%2e/admin", Some(("admin", "/admin"))),
        ("/pub/.%2E/admin/x?q", Some(("admin", "/admin/x?q"))),
        ("/%61dmin", Some(("admin", "/admin"))),
        ("//admin", Some(("admin", "/admin"))),
        ("/./admin/.", Some(("admin", "/admin/"))),
        ("/admin/..", Some(("any", "/"))),
        ("/administrator", Some(("any", "/administrator"))),
        ("/pub/a%2Fb", Some(("pub", "/pub/a%2Fb"))),
        ("/pub/a;v=1/b", Some(("pub", "/pub/a;v=1/b"))),
        ("/admin%2f..", None),
        ("/pub/..%2fadmin", None),
        ("/admin%2Fx", None),
        ("/%2Fadmin", None),
        ("/admin;x=1", None),
        ("/;/admin", None),
        ("/pub/..;/admin", None),
        ("/../admin", None),
        ("/pub/../../admin", None),
        ("/x\\..\\admin", None),
        ("/pub%5c..%5cadmin", None),
        ("/admin%00", None),
        ("/%zz", None),
        ("admin", None),
        ("*", None),
    ] {
        let expected = expected.map(|(name, uri)| (name.to_owned(), uri.to_owned()));
        let h1 = raw_h1(&site, &h1_get(path)).await;
        assert_eq!(said(&h1), expected, "h1 {path}: {h1}");
        assert!(expected.is_some() || h1.starts_with("HTTP/1.1 400"), "{path}: {h1}");
        assert_eq!(said(&raw_h2(&site, path.as_bytes()).await), expected, "h2 {path}");
        assert_eq!(said(&raw_h3(&quic, path.as_bytes()).await), expected, "h3 {path}");
    }
    // The target names the host, and its path is a path like others.
    for (target, expected) in [
        ("http://localhost//admin", Some(("admin", "/admin"))),
        ("http://localhost/pub/../admin", Some(("admin", "/admin"))),
        ("http://localhost?x", Some(("any", "/?x"))),
        ("http://localhost", Some(("any", "/"))),
        ("http://user@localhost/admin", None),
        ("localhost:443", None),
        ("//localhost/admin/../pub", Some(("any", "/localhost/pub"))),
    ] {
        let answer = raw_h1(&site, &h1_get(target)).await;
        let expected = expected.map(|(name, uri)| (name.to_owned(), uri.to_owned()));
        assert_eq!(said(&answer), expected, "{target}: {answer}");
    }
    let options = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(said(&raw_h1(&site, options).await), Some(("any".to_owned(), "*".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_back_end_gets_leads_to_it_again() {
    let (site, _back_ends) = three_routes("again").await;
    let (_endpoint, mut h3) = site.h3().await;
    let (mut routed, mut number) = (0, 1_u64);
    for _ in 0..600 {
        let mut path = String::from("/");
        for _ in 0..6 {
            const PIECES: [&str; 14] =
                ["/", "admin", "pub", "..", ".", "%2e", "%2F", ";", "a", "%61", "//", "/../", "%3b", "%64"];
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            path += PIECES[(number >> 33) as usize % PIECES.len()];
        }
        let uri = format!("https://localhost{path}");
        let Some((name, got)) = said(&text(h3.send(get(&uri)).await.unwrap()).await) else { continue };
        let again = said(&text(h3.send(get(&format!("https://localhost{got}"))).await.unwrap()).await);
        assert_eq!(again, Some((name.clone(), got.clone())), "{path}");
        let prefix = SITE.iter().find(|(own, _)| *own == name).unwrap().1;
        assert!(got.starts_with(prefix), "{path} went to {name} as {got}");
        routed += 1;
    }
    assert!(routed > 100, "{routed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_of_the_client_is_the_gateways() {
    let back_end = BackEnd::start(mirror).await;
    let site = Site::start("introduced", &route(&back_end));
    let lies = [
        ("x-forwarded-for", "10.0.0.1"),
        ("x_forwarded_for", "10.0.0.1"),
        ("x-forwarded_for", "10.0.0.1"),
        ("x-forwarded-port", "1"),
        ("x-forwarded-user", "root"),
        ("forwarded", "for=10.0.0.1"),
        ("x-real-ip", "10.0.0.1"),
        ("x_real_ip", "10.0.0.1"),
        ("true-client-ip", "10.0.0.1"),
        ("cf-connecting-ip", "10.0.0.1"),
        ("x-original-url", "/admin"),
        ("early_data", "1"),
    ];
    let lying = |mut request: Request<crate::site::Body>| {
        for (name, value) in lies {
            request.headers_mut().append(name, value.parse().unwrap());
        }
        request
    };
    let (_endpoint, mut h3) = site.h3().await;
    let answers = [
        text(site.h1().await.send_request(lying(get1("/"))).await.unwrap()).await,
        text(site.h2().await.send_request(lying(get("https://localhost/"))).await.unwrap()).await,
        text(h3.send(lying(get("https://localhost/"))).await.unwrap()).await,
    ];
    for answer in answers {
        let said: Value = serde_json::from_str(&answer).unwrap();
        let names: Vec<&String> = said["fields"].as_object().unwrap().keys().collect();
        assert_eq!(said["fields"]["x-forwarded-for"], "127.0.0.1");
        assert_eq!(names, ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"], "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_say_nothing_that_only_the_gateway_may_say() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let service = move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            let content = request.into_body().collect().await.unwrap();
            let _ = tell.send(content.trailers().cloned().unwrap_or_default());
            let mut trailers = HeaderMap::new();
            for (name, value) in
                [("grpc-status", "0"), ("x-forwarded-for", "::1"), ("content-length", "7"), ("alt-svc", "clear")]
            {
                trailers.insert(name, value.parse().unwrap());
            }
            let body = Full::new(Bytes::from("ok")).with_trailers(std::future::ready(Some(Ok(trailers))));
            Response::new(body.map_err(|never: std::convert::Infallible| match never {}).boxed_unsync())
        }
    };
    let back_end = BackEnd::start_at("127.0.0.1:0".parse().unwrap(), true, service).await;
    let site = Site::start("trailers", &format!("[[route]]\nto = \"h2c://{}\"\n", back_end.address));
    let post = || {
        let mut trailers = HeaderMap::new();
        for (name, value) in [
            ("grpc-status", "0"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x_real_ip", "10.0.0.1"),
            ("forwarded", "for=x"),
            ("host", "a"),
        ] {
            trailers.insert(name, value.parse().unwrap());
        }
        let body = Full::new(Bytes::from("content")).with_trailers(std::future::ready(Some(Ok(trailers))));
        let body = body.map_err(|never: std::convert::Infallible| match never {}).boxed_unsync();
        Request::post("https://localhost/").body(body).unwrap()
    };
    let status = |trailers: &HeaderMap| trailers.keys().map(ToString::to_string).collect::<Vec<_>>();
    let chunked = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: x-forwarded-for\r\n\r\n\
                    3\r\nabc\r\n0\r\nx-forwarded-for: 10.0.0.1\r\nx_forwarded_for: 10.0.0.1\r\ngrpc-status: 0\r\n\r\n";
    raw_h1(&site, chunked).await;
    assert_eq!(status(&told.recv().await.unwrap()), ["grpc-status"], "h1");
    let answer = site.h2().await.send_request(post()).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(status(&told.recv().await.unwrap()), ["grpc-status"], "h2");
    assert_eq!(status(answer.trailers().unwrap()), ["grpc-status", "x-forwarded-for"]);
    let (_endpoint, mut h3) = site.h3().await;
    let answer = h3.send(post()).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(status(&told.recv().await.unwrap()), ["grpc-status"], "h3");
    assert_eq!(status(answer.trailers().unwrap()), ["grpc-status", "x-forwarded-for"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_body_is_the_clients_fault() {
    for h2c in [false, true] {
        let whole = Arc::new(AtomicUsize::new(0));
        let counted = whole.clone();
        let service = move |request: Request<Incoming>| {
            let counted = counted.clone();
            async move {
                if request.into_body().collect().await.is_ok() {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                Response::new(full("ok"))
            }
        };
        let back_end = BackEnd::start_at("127.0.0.1:0".parse().unwrap(), h2c, service).await;
        let scheme = if h2c { "h2c" } else { "http" };
        let site =
            Site::start(&format!("bodies-{scheme}"), &format!("[[route]]\nto = \"{scheme}://{}\"\n", back_end.address));
        let head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
        for body in
            ["zz\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3\r\nabc\r\n-1\r\n", "ffffffffffffffffff\r\n", "3\r\nabc\r\n\0\r\n"]
        {
            let answer = raw_h1(&site, format!("{head}{body}").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 400") || answer.is_empty(), "{body:?}: {answer}");
        }
        let lie = || Request::post("https://localhost/").header("content-length", "10").body(full("12345")).unwrap();
        let over_h2 = site.h2().await.send_request(lie()).await;
        assert!(over_h2.is_err() || over_h2.unwrap().status() == 400);
        let (_endpoint, mut h3) = site.h3().await;
        let over_h3 = h3.send(lie()).await;
        assert!(over_h3.is_err() || over_h3.unwrap().status() == 400);
        assert_eq!(whole.load(Ordering::SeqCst), 0, "nothing arrives as a whole");
        let result = |result: &str| {
            let name = back_end.address;
            site.figure(&format!(
                "tiderace_edge_back_end_requests_total{{back_end=\"{scheme}://{name}\",result=\"{result}\"}}"
            ))
        };
        assert_eq!(
            (result("broken"), result("unreachable"), result("timeout")),
            (0.0, 0.0, 0.0),
            "the back end is not to blame"
        );
        assert_eq!(
            site.figure(&format!("tiderace_edge_back_end_up{{back_end=\"{scheme}://{}\"}}", back_end.address)),
            1.0
        );
        let good = Request::post("https://localhost/").body(full("12345")).unwrap();
        assert_eq!(text(h3.send(good).await.unwrap()).await, "ok");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn symbolic_links_do_not_lead_out_of_a_site() {
    let folder = Directory::new("links");
    folder.write("site/sub/page.txt", "page");
    folder.write("outside/secret.txt", "secret");
    folder.write("outside/sub/page.txt", "secret page");
    let link = |to: &str, name: &str| symlink(to, folder.0.join(name)).unwrap();
    link("sub/page.txt", "site/inside.txt");
    link("../outside/secret.txt", "site/out.txt");
    link("../outside", "site/out");
    link("/etc", "site/etc");
    let at = folder.0.join("site");
    let routes = format!(
        "[[route]]\npath = \"/closed\"\nfiles = \"{0}\"\n[[route]]\npath = \"/open\"\nfiles = \"{0}\"\nsymlinks-outside = true\n",
        at.display()
    );
    let site = Site::start("links-site", &routes);
    let (_endpoint, mut h3) = site.h3().await;
    let mut ask = async |path: &str| {
        let response = h3.send(get(&format!("https://localhost{path}"))).await.unwrap();
        let status = response.status().as_u16();
        (status, text(response).await)
    };
    assert_eq!(ask("/closed/inside.txt").await, (200, "page".to_owned()));
    // Until it is served from memory: what has changed a moment ago is not kept there.
    while site.figure("tiderace_edge_file_bytes{source=\"memory\"}") == 0.0 {
        assert_eq!(ask("/open/out.txt").await, (200, "secret".to_owned()));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for path in [
        "/closed/out.txt",
        "/closed/out/secret.txt",
        "/closed/out/sub/page.txt",
        "/closed/out/",
        "/closed/etc/passwd",
        "/closed/sub%2Fpage.txt",
    ] {
        assert_eq!(ask(path).await.0, 404, "{path}");
    }
    assert_eq!(ask("/open/out/sub/page.txt").await.1, "secret page");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_with_one_ring_accept_copies_only_when_told_that_they_do_no_harm() {
    let (back_end, mut told) = telling().await;
    let config = |keys: &str| {
        format!(
            "[transport]\nearly-data = true\n[keys]\nfile = \"ring\"\n{keys}{}early-data = true\n",
            route(&back_end)
        )
    };
    let one = Site::start("ring-one", &route(&back_end));
    let ring = one.directory.0.join("ring");
    tiderace_edge::keys::rotate(&ring, tiderace_edge::keys::now(), Duration::ZERO, Duration::from_secs(60)).unwrap();
    one.configure(&config(""));
    let refused = one.process.reload().await.unwrap_err();
    assert!(refused.to_string().contains("copy of the same early data"), "{refused}");
    assert!(refused.hint().unwrap().contains("copies-do-no-harm"));
    let file = one.directory.write("fresh.toml", format!("{}{}", crate::site::TOP, config("")));
    assert!(tiderace_edge::Process::start(&file).is_err());
    assert!(tiderace_edge::config::load(&file).is_err(), "that is what `check` reads");
    // Without early data, or with a register, nothing is wrong with the ring.
    one.configure(&config("strikes = \"redis://127.0.0.1:1/\"\n"));
    one.process.reload().await.unwrap();
    one.configure(&config("copies-do-no-harm = true\n"));
    one.process.reload().await.unwrap();
    let two = Site::start("ring-two", &route(&back_end));
    for name in ["ring", "cert.pem", "key.pem"] {
        std::fs::copy(one.directory.0.join(name), two.directory.0.join(name)).unwrap();
    }
    two.configure(&config("copies-do-no-harm = true\n"));
    two.process.reload().await.unwrap();
    // What the setting says: each accepts the flight once.
    let config = client(&one, "h3", true);
    let (wire, _endpoint, connection) = unanswered(&one, &config).await;
    let h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    let mut sender = h3.clone();
    let _asking = tokio::spawn(async move { sender.send(get("https://localhost/")).await.map(drop) });
    assert_eq!(told.recv().await.unwrap()["early-data"], "1");
    let flight = wire.will.seen.lock().unwrap().clone();
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let copy = async {
        // What came before its keys may have been dropped.
        loop {
            for datagram in &flight {
                socket.send_to(datagram, two.address).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = copy => {}
        served = told.recv() => assert_eq!(served.unwrap()["early-data"], "1"),
    }
    let register =
        |site: &Site, reason: &str| site.figure(&format!("tiderace_edge_early_data_register{{reason=\"{reason}\"}}"));
    assert!(register(&one, "first") >= 1.0, "it is noted there");
    assert_eq!((register(&two, "first"), register(&two, "again")), (1.0, 0.0), "and news here");
}
