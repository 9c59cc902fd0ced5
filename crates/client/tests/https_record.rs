//! HTTPS records, from a name server in the test to a request that they lead.

mod dns;
mod site;

use std::time::Duration;

use dns::{Server, alpn, hint, port};
use site::{Site, content};
use tiderace_client::{
    Client, FetchError, Leg, Route, Settings, Verdict,
    race::SkipReason,
    resolve::{Found, ResolveError, Resolver},
};

/// Time limit for an answer on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

async fn found(server: &Server, host: &str, port: u16) -> Found {
    Resolver::at(server.address).unwrap().with_delay(LIMIT).resolve(host, port).await.unwrap()
}

fn addresses(list: &[&str]) -> Vec<std::net::SocketAddr> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_record_says_where_and_how() {
    let server = Server::start().await;
    server.address_of("a.example.net.", "192.0.2.1").address_of("a.example.net.", "2001:db8::1");
    server.https("a.example.net.", 1, ".", &[alpn(&["h3", "h2"])]);
    let a = found(&server, "a.example.net", 443).await;
    let mut both = a.quic.clone();
    both.sort();
    assert_eq!(both, addresses(&["192.0.2.1:443", "[2001:db8::1]:443"]));
    assert_eq!(a.tcp, a.quic);
    assert!(a.offer.unwrap().has_http3());

    // Another host and port, by their hints; the origin itself is what is left for TCP when that fails.
    server.address_of("b.example.net.", "192.0.2.2");
    server.https("b.example.net.", 1, "svc.example.net.", &[alpn(&["h3", "h2"]), port(8_443), hint("192.0.2.3")]);
    let b = found(&server, "b.example.net", 443).await;
    assert_eq!(b.quic, addresses(&["192.0.2.3:8443"]));
    assert_eq!(b.tcp, addresses(&["192.0.2.3:8443", "192.0.2.2:443"]));
    assert!(!server.was_asked("svc.example.net. A"), "the hint saves the question");

    // Without hints the target is asked for; of two offers the better one is used.
    server.address_of("c.example.net.", "192.0.2.4").address_of("svc2.example.net.", "192.0.2.5");
    server.https("c.example.net.", 9, ".", &[alpn(&["h2"])]);
    server.https("c.example.net.", 3, "svc2.example.net.", &[alpn(&["h3"])]);
    let c = found(&server, "c.example.net", 443).await;
    assert_eq!(c.quic, addresses(&["192.0.2.5:443"]));

    // A record that offers no HTTP/3 says that there is none; no record says nothing.
    server.address_of("d.example.net.", "192.0.2.6").https("d.example.net.", 1, ".", &[alpn(&["h2"])]);
    let d = found(&server, "d.example.net", 443).await;
    assert_eq!((d.quic, d.tcp), (vec![], addresses(&["192.0.2.6:443"])));
    server.address_of("e.example.net.", "192.0.2.7");
    let e = found(&server, "e.example.net", 443).await;
    assert_eq!((e.quic.len(), e.offer), (1, None));
}

#[tokio::test]
async fn aliases_are_followed_and_loops_end() {
    let server = Server::start().await;
    server.https("a.example.net.", 0, "b.example.net.", &[]).https("b.example.net.", 1, ".", &[alpn(&["h3"])]);
    server.address_of("b.example.net.", "192.0.2.9");
    let a = found(&server, "a.example.net", 443).await;
    assert_eq!(a.quic, addresses(&["192.0.2.9:443"]), "the alias has the addresses: {a:?}");
    server.https("x.example.net.", 0, "y.example.net.", &[]).https("y.example.net.", 0, "x.example.net.", &[]);
    server.address_of("x.example.net.", "192.0.2.10");
    assert_eq!(found(&server, "x.example.net", 443).await.tcp, addresses(&["192.0.2.10:443"]));
    // RFC 9460 §9.1
    server.address_of("p.example.net.", "192.0.2.11");
    server.https("_8443._https.p.example.net.", 1, "p.example.net.", &[alpn(&["h3"]), port(9_443)]);
    assert_eq!(found(&server, "p.example.net", 8_443).await.quic, addresses(&["192.0.2.11:9443"]));
    let nothing = Resolver::at(server.address).unwrap().resolve("nobody.example.net", 443).await;
    assert!(matches!(nothing, Err(ResolveError::NoAddress)), "{nothing:?}");
}

/// A name server that answers each question with this code (RFC 1035 §4.1.1).
async fn failing(code: u8) -> std::net::SocketAddr {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4_096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            buffer[2] |= 0x80;
            buffer[3] = 0x80 | code;
            socket.send_to(&buffer[..length], from).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn each_failure_of_a_look_up_has_its_variant() {
    // No name has an empty label: the system asks nobody.
    let system = Resolver::system().addresses("a..example", 443).await.unwrap_err();
    assert!(matches!(system, ResolveError::System(_)), "{system:?}");
    for (code, name) in [(2, "SERVFAIL"), (5, "REFUSED")] {
        let resolver = Resolver::at(failing(code).await).unwrap();
        let error = tokio::time::timeout(LIMIT, resolver.addresses("a.example", 443)).await.unwrap().unwrap_err();
        assert!(matches!(error, ResolveError::NameServer { .. }), "{name}: {error:?}");
    }
    // NXDOMAIN is an answer.
    let resolver = Resolver::at(failing(3).await).unwrap();
    let nobody = resolver.addresses("a.example", 443).await.unwrap_err();
    assert!(matches!(nobody, ResolveError::NoAddress), "{nobody:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_leads_nowhere_does_not_cost_quic_the_others() {
    let site = Site::new("addresses", "");
    // It hears everything and says nothing.
    let silent = tokio::net::UdpSocket::bind(("127.0.0.9", site.port())).await.unwrap();
    for order in [["127.0.0.9", "127.0.0.1"], ["127.0.0.1", "127.0.0.9"]] {
        let server = Server::start().await;
        server.address_of("www.example.net.", order[0]).address_of("www.example.net.", order[1]);
        let settings = Settings { trust: site.trust.clone(), dns: Some(server.address), ..Settings::default() };
        let client = Client::with(&settings).unwrap();
        let url = format!("https://www.example.net:{}/", site.port());
        let fetched = client.get(&url, Some(Leg::Quic), None).await.unwrap();
        assert_eq!(fetched.protocol, "h3");
        assert_eq!(content(fetched).await, ("hello".to_owned(), Verdict::Works));
        client.close().await;
    }
    let mut first = [0; 2_048];
    assert!(silent.try_recv(&mut first).unwrap() >= 1_200, "it was tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_follows_the_record() {
    let site = Site::new("record", "");
    let server = Server::start().await;
    // Nobody is at port 443 of the origin: only the record leads anywhere.
    server.address_of("www.example.net.", "127.0.0.1");
    server.https("www.example.net.", 1, ".", &[alpn(&["h3", "h2"]), port(site.port())]);
    let settings = Settings {
        trust: site.trust.clone(),
        dns: Some(server.address),
        record_delay: LIMIT,
        head_start: LIMIT,
        ..Settings::default()
    };
    let client = Client::with(&settings).unwrap();
    let fetched = client.get("https://www.example.net/", None, None).await.unwrap();
    assert_eq!(fetched.protocol, "h3");
    assert_eq!(fetched.offer.as_ref().unwrap().port, Some(site.port()));
    assert_eq!(content(fetched).await, ("hello".to_owned(), Verdict::Works));
    assert!(server.was_asked("www.example.net. HTTPS") && server.was_asked("www.example.net. A"));
    let fetched = client.get("https://www.example.net/", Some(Leg::Tcp), None).await.unwrap();
    assert_eq!(fetched.protocol, "h2");

    let other = Server::start().await;
    other.address_of("www.example.net.", "127.0.0.1");
    other.https("www.example.net.", 1, ".", &[alpn(&["h2"]), port(site.port())]);
    let client = Client::with(&Settings { dns: Some(other.address), ..settings.clone() }).unwrap();
    let fetched = client.get("https://www.example.net/", None, None).await.unwrap();
    // What was fetched says where HTTP/3 is after all: RFC 7838.
    assert_eq!((fetched.protocol, fetched.alternative.as_ref().map(|found| found.port)), ("h2", Some(site.port())));
    assert_eq!(content(fetched).await.1, Verdict::NotTried(SkipReason::NotOffered));
    let route = Route { fresh: true, ..Route::default() };
    let fetched = client.get_by("https://www.example.net/", &route).await.unwrap();
    assert_eq!(fetched.protocol, "h3", "the alternative is remembered");
    assert_eq!(content(fetched).await.1, Verdict::Works);
    let error = client.get("https://nobody.example.net/", None, None).await.err().unwrap();
    assert!(matches!(error, FetchError::Resolve { .. }), "{error}");
}
