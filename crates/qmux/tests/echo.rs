//! Connections over a pipe: streams and datagrams come back, and what one end does the other sees.

use bytes::Bytes;
use tiderace_qmux::{Closed, Config, Connection, Refused};
use tokio::io::duplex;
use wire::Side;

fn pair(size: usize) -> (Connection, Connection) {
    let (one, other) = duplex(size);
    (Connection::start(one, Side::Client, Config::default()), Connection::start(other, Side::Server, Config::default()))
}

async fn echo(server: Connection) {
    let datagrams = server.clone();
    tokio::spawn(async move {
        while let Ok(data) = datagrams.read_datagram().await {
            let _ = datagrams.send_datagram(data);
        }
    });
    while let Ok((mut send, mut recv)) = server.accept_bi().await {
        tokio::spawn(async move {
            while let Ok(Some(data)) = recv.read_chunk(10_000).await {
                send.write_chunk(data).await?;
            }
            send.finish()
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_datagrams_come_back() {
    for size in [100, 1 << 20] {
        let (client, server) = pair(size);
        tokio::spawn(echo(server));
        let mut tasks = Vec::new();
        // More than may be open at a time.
        for number in 0..150_u8 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let length = if size == 100 { 2_000 } else { 300_000 };
                let sent = Bytes::from(vec![number; length]);
                let (mut send, mut recv) = client.open_bi().await.unwrap();
                let whole = sent.clone();
                let writes = tokio::spawn(async move {
                    send.write_chunk(whole).await.unwrap();
                    send.finish().unwrap();
                });
                let mut got = Vec::new();
                while let Some(data) = recv.read_chunk(usize::MAX).await.unwrap() {
                    got.extend_from_slice(&data);
                }
                writes.await.unwrap();
                assert!(got == sent, "{number}: {} of {} bytes", got.len(), sent.len());
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        client.connected().await.unwrap();
        for number in 0..20_u8 {
            client.send_datagram(Bytes::from(vec![number; 1_000])).unwrap();
            assert_eq!(client.read_datagram().await.unwrap(), vec![number; 1_000]);
        }
        client.close(5, "done");
        assert_eq!(client.closed().await, Closed::Local(5));
    }
}

#[tokio::test]
async fn ends_are_seen_at_the_other_end() {
    let (client, server) = pair(1 << 16);
    let (mut send, mut recv) = client.open_bi().await.unwrap();
    send.write_chunk(Bytes::from_static(b"abc")).await.unwrap();
    let (mut back, mut there) = server.accept_bi().await.unwrap();
    assert_eq!(there.read_chunk(9).await.unwrap().unwrap(), "abc");
    send.reset(7).unwrap();
    assert_eq!(there.read_chunk(9).await, Err(Refused::Reset(7)));
    back.write_chunk(Bytes::from_static(b"de")).await.unwrap();
    back.finish().unwrap();
    assert_eq!(recv.read_chunk(9).await.unwrap().unwrap(), "de");
    assert_eq!(recv.read_chunk(9).await.unwrap(), None);
    // A stream that nobody reads is stopped.
    let (mut send, recv) = client.open_bi().await.unwrap();
    send.write_chunk(Bytes::from_static(b"abc")).await.unwrap();
    drop(server.accept_bi().await.unwrap());
    let refused = loop {
        if let Err(refused) = send.write_chunk(Bytes::from(vec![0; 1_000])).await {
            break refused;
        }
    };
    assert_eq!(refused, Refused::Stopped(0));
    drop(recv);
    server.close(9, "enough");
    assert_eq!(client.closed().await, Closed::Application { code: 9, reason: "enough".to_owned() });
}

#[tokio::test]
async fn a_pipe_that_breaks_ends_the_connection() {
    let (one, other) = duplex(1 << 16);
    let client = Connection::start(one, Side::Client, Config::default());
    drop(other);
    assert_eq!(client.closed().await, Closed::Ended);
    assert!(client.open_bi().await.is_err());
}
