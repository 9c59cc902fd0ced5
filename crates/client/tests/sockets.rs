//! The race over real sockets, with a gateway at the other end.

mod site;

use std::time::Duration;

use site::{Site, content};
use tiderace_client::{Client, FetchError, Leg, Verdict, race::Avoided};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_is_used_where_it_works() {
    let site = Site::new("works", "");
    let client = Client::new(&site.trust).unwrap();
    let fetched = client.get(&site.url, None, None).await.unwrap();
    assert_eq!((fetched.protocol, fetched.response.status().as_u16()), ("h3", 200));
    assert_eq!(content(fetched).await, ("hello".to_owned(), Verdict::Works));
    let fetched = client.get(&site.url, Some(Leg::Tcp), None).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert_eq!(fetched.alternative.as_ref().unwrap().port, site.port());
    assert_eq!(content(fetched).await.1, Verdict::NotTried(Avoided::Unwanted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sheds_is_told_from_a_network_that_blocks() {
    let shedding = Site::new("sheds", "[http3]\nshed = true\n");
    let client = Client::new(&shedding.trust).unwrap();
    let fetched = client.get(&shedding.url, None, None).await.unwrap();
    assert_eq!(fetched.protocol, "h2");
    assert_eq!(content(fetched).await.1, Verdict::Refused);
    let again = client.get(&shedding.url, None, None).await.unwrap();
    assert_eq!(content(again).await.1, Verdict::NotTried(Avoided::RefusedBefore));

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
    assert_eq!(content(again).await.1, Verdict::NotTried(Avoided::BlockedBefore));
    let error = client.get("https://127.0.0.1:1/", Some(Leg::Tcp), None).await.err().unwrap();
    assert!(!matches!(error, FetchError::Url(_)), "{error}");
}
