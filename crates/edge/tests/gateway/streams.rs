//! Other protocols than HTTP through the gateway.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::site::{Site, pattern, until, within};
use bytes::Bytes;
use tiderace::{ClientConfig, Connection, Endpoint, RustlsClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket, UnixListener},
    sync::watch,
};

fn stream(rest: &str) -> String {
    format!("[[stream]]\nalpn = \"test\"\n{rest}\n")
}

/// A listener, and what names it in a configuration.
async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = format!("to = \"tcp://{}\"", listener.local_addr().unwrap());
    (listener, to)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_stream_is_a_connection_and_ends_are_ends() {
    let (back_end, to) = listener().await;
    let site = Site::start("streams", &stream(&to));
    let (_endpoint, quic) = site.quic(b"test").await;
    let data = pattern(3_000_000);
    for _ in 0..3 {
        let (mut send, mut recv) = quic.open_bi().await.unwrap();
        let expected = data.clone();
        let serving = async {
            let (mut stream, _) = back_end.accept().await.unwrap();
            let mut all = Vec::new();
            // The end of the stream is the end of the connection's reading side, while the other side continues.
            stream.read_to_end(&mut all).await.unwrap();
            assert!(all == expected);
            stream.write_all(b"got it, ").await.unwrap();
            stream.write_all(&all).await.unwrap();
        };
        let asking = async {
            send.write_chunk(data.clone()).await.unwrap();
            send.finish().unwrap();
            let back = recv.read_to_end(10_000_000).await.unwrap();
            assert!(back.starts_with(b"got it, ") && back[8..] == data);
        };
        within(async { tokio::join!(serving, asking) }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_off_here_breaks_off_there() {
    let (back_end, to) = listener().await;
    let site = Site::start("resets", &stream(&to));
    let (_endpoint, quic) = site.quic(b"test").await;
    // The client resets: the back end sees no end, but an error.
    let (mut send, _recv) = quic.open_bi().await.unwrap();
    send.write_all(b"half").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    let mut half = [0; 4];
    accepted.read_exact(&mut half).await.unwrap();
    send.reset(99).unwrap();
    let error = within(accepted.read(&mut half)).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // The back end breaks off: the stream is reset.
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    // Only with this here the gateway is known to have heard that it is connected.
    assert_eq!(within(accepted.read_u8()).await.unwrap(), b'x');
    socket_reset(accepted);
    assert_eq!(within(recv.read_chunk(10)).await, Err(tiderace::ReadError::Reset(3)));
    assert!(quic.close_reason().is_none());
    // Nobody is there.
    drop(back_end);
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    assert_eq!(within(recv.read_chunk(10)).await, Err(tiderace::ReadError::Reset(2)));
    for (result, count) in [("reset", 1.0), ("broken", 1.0), ("unreachable", 1.0)] {
        let line = format!("tiderace_edge_streams_total{{protocol=\"stream\",result=\"{result}\"}}");
        until(|| site.figure(&line), count).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_looks_complete_to_no_back_end() {
    let (back_end, to) = listener().await;
    let site = Site::start("lost", &stream(&to));
    let (_endpoint, quic) = site.quic(b"test").await;
    let (mut send, _recv) = quic.open_bi().await.unwrap();
    send.write_all(b"half").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    let mut half = [0; 4];
    within(accepted.read_exact(&mut half)).await.unwrap();
    quic.close(0, b"");
    let error = within(accepted.read(&mut half)).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

fn socket_reset(stream: TcpStream) {
    let socket = socket2::SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stands_still_holds_the_back_end_up() {
    let (back_end, to) = listener().await;
    let site = Site::start("pressure", &stream(&to));
    let (_endpoint, quic) = site.quic(b"test").await;
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    send.write_all(b"go").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    let written = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = written.clone();
    tokio::spawn(async move {
        while accepted.write_all(&[1; 100_000]).await.is_ok() {
            count.fetch_add(100_000, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let mut before = 1;
    while before != written.load(std::sync::atomic::Ordering::Relaxed) {
        before = written.load(std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert!(before < 60_000_000, "{before} bytes went to a client that read none");
    let mut read = 0;
    while read < before + 1_000_000 {
        read += within(recv.read_chunk(usize::MAX)).await.unwrap().unwrap().len() as u64;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_and_the_address_of_the_client() {
    let directory = crate::site::Directory::new("unix-socket");
    let path = directory.0.join("back-end");
    let back_end = UnixListener::bind(&path).unwrap();
    let site = Site::start("unix", &stream(&format!("to = \"unix:{}\"\nproxy-protocol = true", path.display())));
    let (endpoint, quic) = site.quic(b"test").await;
    let (mut send, _recv) = quic.open_bi().await.unwrap();
    send.write_all(b"hello").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    let mut head = [0; 16];
    accepted.read_exact(&mut head).await.unwrap();
    assert_eq!(head[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[14], head[15]]))];
    accepted.read_exact(&mut rest).await.unwrap();
    assert_eq!(rest[..4], [127, 0, 0, 1]);
    assert_eq!(rest[8..10], endpoint.local_addr().port().to_be_bytes());
    assert_eq!(rest[10..12], site.address.port().to_be_bytes());
    assert_eq!(rest[12..], *b"\x01\x00\x04test\x02\x00\x09localhost");
    let mut hello = [0; 5];
    accepted.read_exact(&mut hello).await.unwrap();
    assert_eq!(hello, *b"hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_go_to_udp_and_come_back() {
    let back_end = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let site = Site::start("udp", &stream(&format!("datagrams-to = \"udp://{}\"", back_end.local_addr().unwrap())));
    let (_endpoint, quic) = site.quic(b"test").await;
    for number in 0..20_u8 {
        quic.send_datagram(Bytes::from(vec![number; 500])).unwrap();
        let mut buffer = [0; 2_000];
        let (length, from) = within(back_end.recv_from(&mut buffer)).await.unwrap();
        back_end.send_to(&buffer[..length], from).await.unwrap();
        assert_eq!(within(quic.read_datagram()).await.unwrap(), vec![number; 500]);
    }
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    assert_eq!(within(recv.read_chunk(10)).await, Err(tiderace::ReadError::Reset(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_choose_and_strangers_are_told() {
    let (_back_end, to) = listener().await;
    let site = Site::start("names", &stream(&format!("sni = \"elsewhere\"\n{to}")));
    // The close may come together with the end of the handshake: then there never is a connection.
    let reason = match site.try_quic(b"test").await {
        Ok((_endpoint, quic)) => within(quic.closed()).await,
        Err(error) => match error.downcast_ref() {
            Some(tiderace::ConnectError::Closed(reason)) => reason.clone(),
            _ => panic!("{error}"),
        },
    };
    assert!(matches!(reason, tiderace::CloseReason::PeerApplication { code: 1, .. }), "{reason}");
    // A protocol that nobody speaks ends in the handshake.
    assert!(site.try_quic(b"other").await.is_err());
}

/// A path to the gateway on which the gateway's datagrams wait while the switch is off.
async fn path(gateway: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let back = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    back.connect(gateway).await.unwrap();
    let address = front.local_addr().unwrap();
    let (switch, mut on) = watch::channel(true);
    tokio::spawn(async move {
        let (mut there, mut here) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            let passes = *on.borrow_and_update();
            tokio::select! {
                Ok((length, from)) = front.recv_from(&mut there) => {
                    client = Some(from);
                    let _ = back.send(&there[..length]).await;
                }
                Ok(length) = back.recv(&mut here), if passes => {
                    let _ = front.send_to(&here[..length], client.unwrap()).await;
                }
                changed = on.changed() => if changed.is_err() { return },
            }
        }
    });
    (address, switch)
}

/// A connection of a client that comes back, whose handshake gets no answer until the switch is on.
async fn comes_back(site: &Site) -> (Endpoint, Connection, watch::Sender<bool>) {
    let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(b"test").early_data(true);
    let config = ClientConfig::new(Arc::new(tls.build().unwrap()), Arc::new(crate::site::patient()));
    for _ in 0..100 {
        let (through, switch) = path(site.address).await;
        switch.send(false).unwrap();
        let endpoint = Endpoint::client_for(through).unwrap();
        match endpoint.connect(&config, through, "localhost").unwrap().into_early() {
            Ok(connection) => return (endpoint, connection, switch),
            Err(connecting) => {
                switch.send(true).unwrap();
                let connection = connecting.await.unwrap();
                // The ticket comes a little later.
                tokio::time::sleep(Duration::from_millis(100)).await;
                connection.close(0, b"");
            }
        }
    }
    panic!("there is no ticket");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_in_early_data_wait_unless_both_the_stream_and_the_policy_take_them() {
    let careful = "[[policy]]\nname = \"careful\"\nnetwork = \"127.0.0.0/8\"\nearly-data = false\n";
    for (name, stream_takes, policy, at_once) in
        [("both", true, "", true), ("stream", false, "", false), ("policy", true, careful, false)]
    {
        let (back_end, to) = listener().await;
        let rest = format!(
            "[transport]\nearly-data = true\n{policy}{}",
            stream(&format!("{to}\nearly-data = {stream_takes}"))
        );
        let site = Site::start(&format!("early-{name}"), &rest);
        let (_endpoint, quic, switch) = comes_back(&site).await;
        let (mut send, _recv) = quic.open_bi_early().await.unwrap();
        send.write_chunk(Bytes::from_static(b"early")).await.unwrap();
        send.finish().unwrap();
        let patience = Duration::from_secs(if at_once { 60 } else { 1 });
        let early = tokio::time::timeout(patience, back_end.accept()).await;
        assert_eq!((early.is_ok(), quic.is_established()), (at_once, false), "{name}");
        switch.send(true).unwrap();
        let accepted = match early {
            Ok(accepted) => accepted,
            Err(_) => tokio::time::timeout(Duration::from_secs(60), back_end.accept()).await.expect("it comes"),
        };
        let mut all = Vec::new();
        accepted.unwrap().0.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"early", "{name}");
    }
}
