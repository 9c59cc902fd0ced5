//! The race over real sockets, with a gateway at the other end.

mod site;

use std::time::Duration;

use site::{PATIENT, Site, client, content};
use tiderace_client::{
    Client, FetchError, Leg, Route, Trust, Verdict,
    proxy::{self, Proxy, Secure},
    race::SkipReason,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_is_used_where_it_works() {
    let site = Site::new("works", "");
    let client = client(&site.trust, PATIENT);
    let fetched = client.get(&site.url, None, None).await.unwrap();
    assert_eq!((fetched.protocol, fetched.response.status().as_u16()), ("h3", 200));
    assert_eq!(content(fetched).await, ("hello".to_owned(), Verdict::Works));
    let fetched = client.get(&site.url, Some(Leg::Tcp), None).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert_eq!(fetched.alternative.as_ref().unwrap().port, site.port());
    assert_eq!(content(fetched).await.1, Verdict::NotTried(SkipReason::Unwanted));
}

/// RFC 9114 §3.1 SHOULD-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sheds_is_told_from_a_network_that_blocks() {
    let shedding = Site::new("sheds", "[http3]\nshed = true\n");
    // A refusal is an answer: nobody waits for the head start.
    let client = client(&shedding.trust, PATIENT);
    let fetched = client.get(&shedding.url, None, None).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert_eq!(content(fetched).await.1, Verdict::Refused);
    let again = client.get(&shedding.url, None, None).await.unwrap();
    assert_eq!(content(again).await.1, Verdict::NotTried(SkipReason::RefusedBefore));

    let site = Site::new("blocked", "");
    let client = Client::new(&site.trust).unwrap();
    // Takes everything and says nothing.
    let hole = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let udp = Some(hole.local_addr().unwrap());
    let fetched = client.get(&site.url, None, udp).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert!(fetched.first_byte >= Duration::from_millis(200), "QUIC has its head start: {:?}", fetched.first_byte);
    let verdict = content(fetched).await.1;
    assert!(matches!(verdict, Verdict::Blocked { questions: 12, .. }), "{verdict}");
    let again = client.get(&site.url, None, udp).await.unwrap();
    assert_eq!(content(again).await.1, Verdict::NotTried(SkipReason::BlockedBefore));
    let error = client.get("https://127.0.0.1:1/", Some(Leg::Tcp), None).await.err().unwrap();
    assert!(!matches!(error, FetchError::Url(_)), "{error}");
}

/// A program that continues sending what nobody reads gets the proxy's answer nevertheless: no reset overtakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_the_proxy_arrives_although_the_program_still_sends() {
    let root = rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert.pem();
    let client = Client::new(&Trust::Pem(root.into_bytes())).unwrap();
    let (listener, address) = proxy::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let serving = Proxy::new(client, Secure::Never, |_| {}).serve(listener, std::future::pending());
    let serving = tokio::spawn(serving);
    let (mut from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
    // Asked as if it were the origin, which is refused.
    to.write_all(b"POST / HTTP/1.1\r\nhost: a.example\r\ncontent-length: 1000000000\r\n\r\n").await.unwrap();
    to.flush().await.unwrap();
    let sending = tokio::spawn(async move { while to.write_all(&[1; 1000]).await.is_ok() {} });
    // The reset, if one comes, comes before the first byte is read.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut answer = String::new();
    from.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("and CONNECT\n"), "{answer}");
    sending.abort();
    serving.abort();
}

/// RFC 9114 §3.1.2 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_https_is_asked_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = [0; 1_000];
        let _ = stream.read(&mut asked).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let _ = stream.read(&mut asked).await;
    });
    // Where QUIC would be spoken, nothing is heard.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let route = Route { udp: Some(silent.local_addr().unwrap()), ..Route::default() };
    let request = http::Request::get(format!("http://{address}/")).body(http_body_util::Empty::<bytes::Bytes>::new());
    let fetched = Client::new(&Trust::Platform).unwrap().send(request.unwrap(), &route).await.unwrap();
    assert_eq!((fetched.protocol, fetched.response.status().as_u16()), ("http/1.1", 200));
    assert!(silent.try_recv(&mut [0; 10]).is_err());
}
