//! A session of WebTransport whose gateway is replaced continues with the older process, and is asked to end.

use tokio::{io::AsyncWriteExt, net::TcpListener};
use webtransport::{Client, Config, Session};

use crate::{
    clients::Site,
    fleet::{Fleet, LIMIT},
};

/// Waits for what has to come.
async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("it comes")
}

/// A session on a connection of its own.
async fn session(site: &Site) -> (tiderace::Endpoint, Session) {
    let (endpoint, connection) = site.quic().await;
    let mut client = Client::begin(connection, Config::default()).await.unwrap();
    let request = http::Request::get("https://localhost/session").body(()).unwrap();
    (endpoint, within(client.connect(request, &[])).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_asked_to_end_and_loses_nothing() {
    let back_end = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = back_end.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = back_end.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    let route = format!("[[route]]\npath = \"/session\"\nwebtransport = {{ origins = \"*\", to = \"tcp://{to}\" }}\n");
    let mut fleet = Fleet::with("session", "", &route);
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
