//! A proxy that gives no tunnel, or one that breaks off: each failure has its variant.

use std::net::SocketAddr;

use bytes::Bytes;
use http::StatusCode;
use tiderace::Profile;
use tiderace_client::{
    Cause, FetchError, Settings, Timeouts, Trust,
    masque::{ProxyClient, ProxyError},
};
use tokio::net::UdpSocket;

use crate::servers::{LIMIT, PATIENT, SHORT, certificate, control, frame, headers, quic};

/// Code with which the proxy gives a tunnel up (RFC 9114 §8.1: `H3_CONNECT_ERROR`).
const CONNECT_ERROR: u64 = 0x10f;

/// Action of the proxy on the stream of a tunnel after its answer.
#[derive(Clone, Copy, Debug)]
enum Afterwards {
    Wait,
    Reset,
    StopReading,
}

/// A proxy without extended CONNECT that answers each request with these bytes.
fn proxy(answer: &[u8], afterwards: Afterwards) -> (SocketAddr, Trust) {
    let answer = Bytes::copy_from_slice(answer);
    quic(
        Profile::default(),
        |_| {},
        move |connection| {
            let answer = answer.clone();
            async move {
                let _control = control(&connection, &[]).await;
                let mut kept = Vec::new();
                while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                    let _ = send.write_all(&answer).await;
                    match afterwards {
                        Afterwards::Wait => {}
                        Afterwards::Reset => drop(send.reset(CONNECT_ERROR)),
                        Afterwards::StopReading => drop(recv.stop(CONNECT_ERROR)),
                    }
                    kept.push((send, recv));
                }
            }
        },
    )
}

fn client((address, trust): (SocketAddr, Trust), timeouts: Timeouts) -> ProxyClient {
    ProxyClient::new(&Settings { trust, timeouts, ..Settings::default() }, &address.to_string(), None).unwrap()
}

/// Opens a tunnel for TCP and reads from it.
async fn read(client: &ProxyClient) -> Result<Option<Bytes>, ProxyError> {
    let reading = async { client.open_tcp("a.example", 80).await?.split().1.recv().await };
    tokio::time::timeout(LIMIT, reading).await.expect("a tunnel fails in time")
}

fn status(status: &str, more: &[(&str, &str)]) -> Vec<u8> {
    headers(&[&[(":status", status)], more].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_that_gives_no_tunnel_has_its_variant() {
    type Expected = fn(&ProxyError) -> bool;
    let cases: [(&str, Vec<u8>, Afterwards, Expected); 5] = [
        ("no tunnel", status("204", &[]), Afterwards::Wait, |error| {
            matches!(error, ProxyError::NoTunnel(StatusCode::NO_CONTENT))
        }),
        (
            "refused",
            status("403", &[("proxy-status", "p; error=x")]),
            Afterwards::Wait,
            |error| matches!(error, ProxyError::Refused { status: StatusCode::FORBIDDEN, proxy_status: Some(text) } if text == "p; error=x"),
        ),
        ("refused without a reason", status("502", &[]), Afterwards::Wait, |error| {
            matches!(error, ProxyError::Refused { status: StatusCode::BAD_GATEWAY, proxy_status: None })
        }),
        ("reset", status("200", &[]), Afterwards::Reset, |error| {
            matches!(error, ProxyError::Broken(Cause::Reset { code: Some(CONNECT_ERROR), .. }))
        }),
        // SETTINGS has no place on the stream of a request.
        ("misbehaved", [status("200", &[]), frame(4, &[])].concat(), Afterwards::Wait, |error| {
            matches!(error, ProxyError::Broken(Cause::Protocol { code: Some(0x105), .. }))
        }),
    ];
    for (name, answer, afterwards, is_expected) in cases {
        let client = client(proxy(&answer, afterwards), PATIENT);
        let error = read(&client).await.unwrap_err();
        assert!(is_expected(&error), "{name}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_told_apart_from_an_unreachable_proxy() {
    let silent = client(proxy(&[], Afterwards::Wait), Timeouts { response: SHORT, ..PATIENT });
    let error = read(&silent).await.unwrap_err();
    assert!(matches!(error, ProxyError::TimedOut(limit) if limit == SHORT), "{error:?}");
    // Takes everything and says nothing.
    let hole = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = (hole.local_addr().unwrap(), certificate().2);
    let error = read(&client(at, Timeouts { connect: SHORT, ..PATIENT })).await.unwrap_err();
    let is_connection = matches!(error, ProxyError::Connection(FetchError::TimedOut { limit, .. }) if limit == SHORT);
    assert!(is_connection, "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_needs_extended_connect() {
    let client = client(proxy(&[], Afterwards::Wait), PATIENT);
    let error = tokio::time::timeout(LIMIT, client.open_udp("a.example", 53)).await.unwrap().err().unwrap();
    assert!(matches!(error, ProxyError::NoExtendedConnect), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_takes_no_more_data_says_so() {
    let client = client(proxy(&status("200", &[]), Afterwards::StopReading), PATIENT);
    let (mut sender, _receiver) = client.open_tcp("a.example", 80).await.unwrap().split();
    let sending = async {
        loop {
            if let Err(error) = sender.send(Bytes::from_static(b"data")).await {
                break error;
            }
        }
    };
    let error = tokio::time::timeout(LIMIT, sending).await.unwrap();
    assert!(matches!(&error, ProxyError::Broken(Cause::Reset { code: None, .. })), "{error:?}");
    assert_eq!(error.to_string(), "the tunnel broke off: the proxy takes no more data");
}

#[tokio::test]
async fn what_cannot_be_asked_has_its_variant() {
    let settings = Settings { trust: Trust::Anyone, ..Settings::default() };
    let of = |proxy: &str, token| ProxyClient::new(&settings, proxy, token).err().unwrap();
    let template = of("https://proxy.example/{target_host}", None);
    assert!(matches!(template, ProxyError::Template(_)), "{template:?}");
    let token = of("proxy.example", Some("two\nlines"));
    assert!(matches!(token, ProxyError::Token(_)), "{token:?}");
    let client = ProxyClient::new(&settings, "proxy.example", None).unwrap();
    let target = client.open_tcp("no host", 80).await.err().unwrap();
    assert!(matches!(target, ProxyError::Target(_)), "{target:?}");
    assert!(std::error::Error::source(&target).unwrap().is::<http::Error>());
}
