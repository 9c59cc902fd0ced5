//! Causes of failures, told apart by type, over both legs.

use std::{net::SocketAddr, time::Duration};

use tiderace::Profile;
use tiderace_client::{Cause, FetchError, Leg, Timeouts};
use tokio::net::{TcpListener, UdpSocket};

use crate::servers::{PATIENT, SHORT, ask, certificate, client, http3, quic, tls};

/// Cause of a failed request.
async fn cause(at: SocketAddr, trust: &tiderace_client::Trust, leg: Leg) -> Cause {
    let error = ask(&client(trust, PATIENT), at, leg).await.err().expect("the request fails");
    // `?` takes it wherever errors are boxed.
    fn boxed(error: FetchError) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err(error)?
    }
    let cause = error.cause().cloned();
    let text = boxed(error).unwrap_err().to_string();
    cause.unwrap_or_else(|| panic!("no cause: {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_not_trusted_is_its_own_cause() {
    let (_, _, other) = certificate();
    let (at, _) = quic(
        Profile::default(),
        |_| {},
        |connection| async move {
            let _ = connection.accept_bi().await;
        },
    );
    let found = cause(at, &other, Leg::Quic).await;
    assert!(matches!(found, Cause::Certificate { .. }), "{found:?}");
    let (at, _) = tls(b"h2", |_stream| async {}).await;
    let found = cause(at, &other, Leg::Tcp).await;
    assert!(matches!(found, Cause::Certificate { .. }), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_port_is_a_refusal() {
    let at = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let found = cause(at, &certificate().2, Leg::Tcp).await;
    assert!(matches!(found, Cause::Refused { code: None, .. }), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_closed_with_a_code_is_a_refusal_with_it() {
    let (at, trust) = quic(
        Profile::default(),
        |_| {},
        |connection| async move {
            connection.close(0x107, b"no");
        },
    );
    let found = cause(at, &trust, Leg::Quic).await;
    assert!(matches!(found, Cause::Refused { code: Some(0x107), .. }), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_stream_is_a_reset_with_its_code() {
    let (at, trust) = http3(|mut send, _recv| async move {
        let _ = send.reset(0x102);
    });
    let found = cause(at, &trust, Leg::Quic).await;
    assert!(matches!(found, Cause::Reset { code: Some(0x102), .. }), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_before_the_response_is_a_reset() {
    let (at, trust) = tls(b"http/1.1", |_stream| async {}).await;
    let found = cause(at, &trust, Leg::Tcp).await;
    assert!(matches!(found, Cause::Reset { code: None, .. }), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_a_timeout() {
    // Takes everything and says nothing.
    let hole = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let timeouts = Timeouts { connect: SHORT, ..PATIENT };
    let error = ask(&client(&certificate().2, timeouts), hole.local_addr().unwrap(), Leg::Quic).await.err().unwrap();
    assert!(error.is_timeout() && error.cause().is_none(), "{error}");
    assert!(matches!(error, FetchError::TimedOut { limit, .. } if limit == SHORT));
    assert!(SHORT < Duration::from_secs(1));
}
