//! A session of WebTransport whose gateway is replaced continues with the older process, and is asked to end.

use std::{net::SocketAddr, sync::Arc};

use tiderace::{Endpoint, Identity, Profile, RustlsServer, ServerConfig, transport::streams::StreamsConfig};
use tokio::{io::AsyncWriteExt, net::TcpListener};
use webtransport::{Client, Config, Origins, Session, h3, server};

use crate::{
    clients::Site,
    fleet::{Fleet, LIMIT},
};

/// Waits for what has to come.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("it comes")
}

/// A session on a connection of its own.
pub(crate) async fn session(site: &Site) -> (tiderace::Endpoint, Session) {
    let (endpoint, connection) = site.quic().await;
    let mut client = Client::begin(connection, Config::default()).await.unwrap();
    let request = http::Request::get("https://localhost/session").body(()).unwrap();
    (endpoint, within(client.connect(request, &[])).await.unwrap())
}

/// A back end over TCP that sends back what comes.
pub(crate) async fn echo_tcp() -> SocketAddr {
    let back_end = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = back_end.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = back_end.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    address
}

/// A back end that speaks WebTransport, and sends back what comes.
fn echo_sessions() -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3::ALPN).build().unwrap();
    let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
    let profile = Profile { streams, ..Profile::default() };
    let config = ServerConfig::new(Arc::new(tls), Arc::new(profile));
    let endpoint = Endpoint::server("127.0.0.1:0".parse().unwrap(), config).unwrap();
    let address = endpoint.local_addr();
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            let config = Config { origins: Origins::Any, ..Config::default() };
            let handler = |request: server::SessionRequest| async move {
                let (session, response) = request.accept(None);
                tokio::spawn(async move {
                    while let Ok((mut send, mut recv)) = session.accept_bi().await {
                        tokio::spawn(async move {
                            while let Ok(Some(part)) = recv.read_chunk(10_000).await {
                                if send.write_chunk(part).await.is_err() {
                                    return;
                                }
                            }
                            let _ = send.finish();
                        });
                    }
                });
                response
            };
            let options = h3::server::Options::default();
            tokio::spawn(server::serve(connection, config, options, std::future::pending(), handler));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_asked_to_end_and_loses_nothing() {
    let to = echo_tcp().await;
    is_asked_to_end("session", &format!("webtransport = {{ origins = \"*\", to = \"tcp://{to}\" }}")).await;
}

/// The back end is asked, too, by its own session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_to_a_back_end_that_speaks_webtransport_loses_nothing() {
    let to = echo_sessions();
    let section = format!("webtransport = {{ origins = \"*\", to = \"h3://{to}\" }}\ntls = {{ verify = false }}");
    is_asked_to_end("session-onward", &section).await;
}

async fn is_asked_to_end(name: &str, section: &str) {
    let route = format!("[[route]]\npath = \"/session\"\n{section}\n");
    let mut fleet = Fleet::with(name, "", &route);
    let site = Site::of(&fleet);
    let (_endpoint, held) = session(&site).await;
    let (mut send, mut recv) = within(held.open_bi()).await.unwrap();
    send.write_all(&[7; 10_000]).await.unwrap();
    let (_, second) = fleet.upgrade();
    within(held.draining()).await;
    assert!(held.end().is_none(), "it goes on");
    // Under way before, and begun after.
    send.write_all(&[8; 10_000]).await.unwrap();
    send.finish().unwrap();
    let back = within(recv.read_to_end(100_000)).await.unwrap();
    assert_eq!(back, [[7; 10_000], [8; 10_000]].concat());
    let (mut send, mut recv) = within(held.open_bi()).await.unwrap();
    send.write_all(b"more").await.unwrap();
    send.finish().unwrap();
    assert_eq!(within(recv.read_to_end(100)).await.unwrap(), b"more");
    // A client that does what it is asked for begins again, with the new process.
    let (_other, next) = session(&site).await;
    held.close(0, "");
    held.connection().close(0, b"");
    fleet.wait_for_end(fleet.first_id());
    let (mut send, mut recv) = within(next.open_bi()).await.unwrap();
    send.write_all(b"again").await.unwrap();
    send.finish().unwrap();
    assert_eq!(within(recv.read_to_end(100)).await.unwrap(), b"again");
    assert_eq!(fleet.running(), [second]);
}
