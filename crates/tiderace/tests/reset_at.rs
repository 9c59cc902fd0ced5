//! Streams that are reset behind a reliable size, over real sockets: the reader has the bytes, and then the error.

use std::{net::SocketAddr, sync::Arc};

use tiderace::{
    ClientConfig, Connection, Endpoint, Identity, Profile, ReadError, ResetAtError, RustlsClient, RustlsServer,
    ServerConfig, WriteError, transport::streams::StreamsConfig,
};
use tokio::io::AsyncReadExt;

fn profile(reset_stream_at: bool) -> Arc<Profile> {
    let streams = StreamsConfig { reset_stream_at, ..StreamsConfig::default() };
    Arc::new(Profile { streams, ..Profile::default() })
}

/// A client, and a server that accepts RESET_STREAM_AT or not.
async fn pair(accepts: bool) -> (Endpoint, Connection, Endpoint, Connection) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn("test").build().unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(any, ServerConfig::new(Arc::new(server), profile(accepts))).unwrap();
    let client_endpoint = Endpoint::client_for(server.local_addr()).unwrap();
    let config = ClientConfig::new(Arc::new(client), profile(false));
    let connecting = client_endpoint.connect(&config, server.local_addr(), "localhost").unwrap();
    let (accepted, connected) = tokio::join!(server.accept(), connecting);
    (server, accepted.unwrap(), client_endpoint, connected.unwrap())
}

#[tokio::test]
async fn the_reader_has_the_bytes_and_then_the_error() {
    let (_server, accepted, _client, connected) = pair(true).await;
    // More than the flow control window, so that the reset waits for the reader.
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut send = connected.open_uni().await.unwrap();
    send.write_all(&data).await.unwrap();
    assert_eq!(send.reset_at(5, 3_000_001), Err(ResetAtError::TooLarge { limit: 3_000_000 }));
    send.reset_at(5, 2_900_000).unwrap();
    assert_eq!(send.write_all(b"more").await, Err(WriteError::StreamClosed));
    assert_eq!(send.finish(), Err(WriteError::StreamClosed));
    let mut recv = accepted.accept_uni().await.unwrap();
    let mut all = Vec::new();
    let end = loop {
        match recv.read_chunk(100_000).await {
            Ok(chunk) => all.extend_from_slice(&chunk.expect("no clean end")),
            Err(error) => break error,
        }
    };
    assert_eq!(end, ReadError::Reset(5));
    assert!(all == data[..2_900_000], "{} bytes", all.len());
    send.finished().await.unwrap();
    assert_eq!(send.reset_at(5, 1), Err(ResetAtError::StreamClosed));
}

#[tokio::test]
async fn delivery_goes_on_without_the_handle() {
    let (_server, accepted, _client, connected) = pair(true).await;
    let (mut send, _back) = connected.open_bi().await.unwrap();
    send.write_all(b"header, body").await.unwrap();
    send.reset_at(6, 12).unwrap();
    send.reset_at(9, 7).unwrap();
    drop(send);
    let (_send, mut recv) = accepted.accept_bi().await.unwrap();
    let mut header = [0; 7];
    recv.read_exact(&mut header).await.unwrap();
    assert_eq!(&header, b"header,");
    let error = recv.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    assert!(error.to_string().contains("code 6"), "{error}");
}

#[tokio::test]
async fn a_peer_that_does_not_accept_it_gets_the_rest_of_the_stream() {
    let (_server, accepted, _client, connected) = pair(false).await;
    let mut send = connected.open_uni().await.unwrap();
    send.write_all(b"half").await.unwrap();
    assert_eq!(send.reset_at(6, 4), Err(ResetAtError::Unsupported));
    send.write_all(b" and half").await.unwrap();
    send.finish().unwrap();
    assert_eq!(accepted.accept_uni().await.unwrap().read_to_end(100).await.unwrap(), b"half and half");
    accepted.close(0, b"");
    connected.closed().await;
    assert!(matches!(send.reset_at(6, 4), Err(ResetAtError::ConnectionClosed(_))));
}

#[tokio::test]
async fn who_waits_for_delivery_learns_of_what_takes_it_back() {
    let (_server, accepted, _client, connected) = pair(true).await;
    let (mut send, _back) = connected.open_bi().await.unwrap();
    send.write_all(b"half").await.unwrap();
    send.finish().unwrap();
    send.reset(3).unwrap();
    assert_eq!(send.finished().await, Err(WriteError::StreamClosed));
    for by_size in [true, false] {
        let (mut send, _back) = connected.open_bi().await.unwrap();
        send.write_all(b"half").await.unwrap();
        send.reset_at(3, 4).unwrap();
        if by_size {
            send.reset_at(3, 0).unwrap();
        } else {
            send.reset(3).unwrap();
        }
        assert_eq!(send.finished().await, Err(WriteError::StreamClosed));
    }
    // The peer stops a stream whose reset waits for credit.
    let (mut send, _back) = connected.open_bi().await.unwrap();
    send.write_all(&[7; 1_000_000]).await.unwrap();
    send.reset_at(3, 1_000_000).unwrap();
    let mut last = None;
    for _ in 0..4 {
        last = Some(accepted.accept_bi().await.unwrap());
    }
    last.unwrap().1.stop(8).unwrap();
    assert_eq!(send.finished().await, Err(WriteError::Stopped(8)));
    assert_eq!(send.reset_at(3, 10), Err(ResetAtError::Stopped(8)));
}

#[tokio::test]
async fn both_ends_count_a_reset_stream_alike() {
    let (_server, accepted, _client, connected) = pair(true).await;
    assert_eq!((accepted.accept_reset_at(), connected.accept_reset_at()), ((true, false), (false, true)));
    for reliable in [0, 4] {
        let mut send = connected.open_uni().await.unwrap();
        send.count_sent();
        assert_eq!(send.sent(), Some(0));
        // More than the stream's window, so that a part is never sent.
        let data = vec![1; 3_000_000];
        send.write_all(&data).await.unwrap();
        let mut recv = accepted.accept_uni().await.unwrap();
        recv.count_received();
        recv.read_chunk(1).await.unwrap();
        if reliable == 0 {
            send.reset(5).unwrap()
        } else {
            send.reset_at(5, reliable).unwrap()
        }
        let sent = send.sent().unwrap();
        assert!((1..3_000_000).contains(&sent), "{sent}");
        let end = loop {
            if let Err(error) = recv.read_chunk(100_000).await {
                break error;
            }
        };
        assert_eq!((end, recv.received().unwrap().highest), (ReadError::Reset(5), sent));
    }
}
