//! Floods, and clients that do not read: what they make the gateway hold is bounded, and what it refuses is counted.

use super::*;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

fn memory(site: &Site) -> f64 {
    site.figure("tiderace_edge_memory_bytes{reason=\"held\"}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_holds_the_back_ends_up() {
    let (back_end, address) = listener().await;
    let site = Site::start("wt-unread", &format!("[limits]\nmemory = \"64 MiB\"\n{}", to(address, "")));
    let (_endpoint, session) = session(&site).await;
    let written = Arc::new(AtomicU64::new(0));
    let mut kept = Vec::new();
    for _ in 0..20 {
        let (mut send, recv) = within(session.open_bi()).await.unwrap();
        send.write_all(b"go").await.unwrap();
        let (mut accepted, _) = within(back_end.accept()).await.unwrap();
        let count = written.clone();
        tokio::spawn(async move {
            while accepted.write_all(&[1; 50_000]).await.is_ok() {
                count.fetch_add(50_000, Relaxed);
            }
        });
        kept.push((send, recv));
    }
    // Until nothing moves.
    let mut before = 1;
    while before != written.load(Relaxed) {
        before = written.load(Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let held = memory(&site);
    assert!(held < 4.0 * 1024.0 * 1024.0, "{held} bytes are held for a client that reads nothing");
    // All continue when it reads.
    let mut readers = JoinSet::new();
    for (send, mut recv) in kept {
        readers.spawn(async move {
            let mut read = 0;
            while read < 1_000_000 {
                let data = within(recv.read_chunk(usize::MAX)).await.unwrap().unwrap();
                assert!(data.iter().all(|byte| *byte == 1));
                read += data.len();
            }
            drop(send);
        });
    }
    while let Some(read) = readers.join_next().await {
        read.unwrap();
    }
    session.close(0, "");
    until(|| open_sessions(&site), 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_beyond_the_limit_of_the_route_are_reset() {
    let (back_end, address) = listener().await;
    let more = "[[route]]\npath = \"/more\"\n[route.webtransport]\norigins = \"*\"\nto = \"tcp://127.0.0.1:1\"\n";
    // The settings of connections have the largest limit of all routes.
    let site = Site::start("wt-excess", &format!("{}{more}", to(address, "streams-per-session = 4")));
    for config in [Config::default(), browser()] {
        let before = streams(&site, "excess");
        let (_endpoint, mut client) = client(&site, config).await;
        let session = begin(&mut client).await.unwrap();
        let mut kept = Vec::new();
        for _ in 0..4 {
            let (mut send, recv) = within(session.open_bi()).await.unwrap();
            send.write_all(b"x").await.unwrap();
            kept.push((send, recv, within(back_end.accept()).await.unwrap()));
        }
        for _ in 0..30 {
            let (mut send, mut recv) = within(session.open_bi()).await.unwrap();
            let _ = send.write_all(b"x").await;
            assert_eq!(within(recv.read_chunk(10)).await, Err(ReadError::Reset(Some(4))));
        }
        assert_eq!(streams(&site, "excess"), before + 30.0);
        // A place that is free is used again.
        let (mut send, mut recv, (mut accepted, _)) = kept.pop().unwrap();
        assert_eq!(within(accepted.read_u8()).await.unwrap(), b'x');
        drop(accepted);
        send.finish().unwrap();
        let _ = within(recv.read_to_end(10)).await;
        until(|| site.figure("tiderace_edge_streams_in_flight{protocol=\"webtransport\"}"), 3.0).await;
        let (mut send, _recv) = within(session.open_bi()).await.unwrap();
        send.write_all(b"y").await.unwrap();
        let (mut accepted, _) = within(back_end.accept()).await.unwrap();
        assert_eq!(within(accepted.read_u8()).await.unwrap(), b'y');
        session.close(0, "");
        until(|| site.figure("tiderace_edge_streams_in_flight{protocol=\"webtransport\"}"), 0.0).await;
    }
}

/// Streams that arrive together are charged more until they are accepted than afterwards. HTTP/3 rejects some of them, and gives their credit back; those that
/// were accepted wait for memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_find_no_memory_leave_their_session_usable() {
    let back_end = echo().await;
    let limits = "connection-memory = \"1 MiB\"\nsessions-per-connection = 200\nrequests-per-connection = 300";
    let more = "sessions-per-client = 200\nbegun-per-second = 1000";
    let site = Site::start("wt-room", &format!("[limits]\n{limits}\n{}", to(back_end, more)));
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    // Sessions take the memory of the connection, but for less than another one would take.
    let mut sessions = Vec::new();
    loop {
        match begin(&mut client).await {
            Ok(session) => sessions.push(session),
            Err(ConnectError::Refused(status)) => break assert_eq!(status, http::StatusCode::SERVICE_UNAVAILABLE),
            Err(other) => panic!("{other}"),
        }
    }
    let session = sessions.pop().unwrap();
    let count = sessions.len() as f64;
    for closed in sessions.drain(..2) {
        closed.close(0, "");
    }
    until(|| open_sessions(&site), count - 1.0).await;
    let (mut passed, mut rejected) = (0, 0);
    // What waits with a stream is charged, too: some length leaves next to nothing.
    for round in 0..3_000 {
        // More were rejected than a session has credit for. How many pass in a round depends on what the sessions have left.
        if round >= 100 && rejected > 64 && passed >= 100 {
            break;
        }
        let data = pattern(1 + round % 100 * 10);
        let mut opened = Vec::new();
        for _ in 0..12 {
            opened.push(within(session.open_bi()).await.unwrap());
        }
        for (send, _) in &mut opened {
            // It may have been rejected already.
            if send.write_all(&data).await.is_ok() {
                let _ = send.finish();
            }
        }
        for (_, mut recv) in opened {
            match within(recv.read_to_end(10_000)).await {
                Ok(back) => {
                    assert!(back == data);
                    passed += 1;
                }
                // One that finds no memory before it is accepted (WT_BUFFERED_STREAM_REJECTED): no code of an application.
                Err(ReadError::Reset(None)) => rejected += 1,
                Err(other) => panic!("{other:?} after {passed} streams that passed and {rejected} that were rejected"),
            }
        }
    }
    assert!(passed >= 100 && rejected > 64, "{passed} passed, {rejected} were rejected");
    assert_eq!(streams(&site, "completed"), f64::from(passed));
}

/// A page may have so many streams open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_at_a_time_are_within_the_default() {
    let site = Site::start("wt-hundred", &to(echo().await, ""));
    let (_endpoint, session) = session(&site).await;
    let mut open = Vec::new();
    for _ in 0..100 {
        let (mut send, recv) = within(session.open_bi()).await.unwrap();
        send.write_all(b"open").await.unwrap();
        open.push((send, recv));
    }
    for (mut send, mut recv) in open {
        send.finish().unwrap();
        assert_eq!(within(recv.read_to_end(100)).await.unwrap(), b"open");
    }
    assert_eq!((streams(&site, "completed"), streams(&site, "excess")), (100.0, 0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_come_and_go_at_once_leave_nothing() {
    let back_end = echo().await;
    let site = Site::start("wt-flood", &to(back_end, ""));
    let (_endpoint, session) = session(&site).await;
    for round in 0..20 {
        for _ in 0..30 {
            let (mut send, recv) = within(session.open_bi()).await.unwrap();
            send.write_all(b"x").await.unwrap();
            send.reset(round);
            drop(recv);
        }
    }
    exchange(session.clone(), pattern(100_000)).await;
    until(|| site.figure("tiderace_edge_streams_in_flight{protocol=\"webtransport\"}"), 0.0).await;
    session.close(0, "");
    until(|| open_sessions(&site), 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_datagrams_is_dropped_and_counted() {
    // It reads nothing, so that its socket is full soon; and nothing takes datagrams on the other route.
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    let back_end = echo().await;
    let none =
        format!("[[route]]\npath = \"/none\"\n[route.webtransport]\norigins = \"*\"\nto = \"tcp://{back_end}\"\n");
    let site =
        Site::start("wt-datagram-flood", &format!("{}{none}", route(&format!("datagrams-to = \"udp://{address}\""))));
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let session = begin(&mut client).await.unwrap();
    let request = Request::get("https://localhost/none").body(()).unwrap();
    let other = within(client.connect(request, &[])).await.unwrap();
    let dropped = "tiderace_edge_tunnel_datagrams_dropped_total{direction=\"up\",reason=\"no-target\"}";
    let begun = std::time::Instant::now();
    let mut sent = 0_u64;
    while site.figure(dropped) < 500.0 {
        assert!(begun.elapsed() < LIMIT, "nothing is dropped");
        for _ in 0..100 {
            sent += u64::from(session.send_datagram(&[7; 1_000]).is_ok());
            let _ = other.send_datagram(&[7; 1_000]);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Streams continue meanwhile, and what is held is what the queues may have.
    exchange(other.clone(), pattern(100_000)).await;
    let held = memory(&site);
    assert!(held < 2.0 * 1024.0 * 1024.0, "{held} bytes are held");
    let up = site.figure("tiderace_edge_tunnel_datagrams_total{kind=\"webtransport\",direction=\"up\"}");
    assert!(up > 0.0 && up <= sent as f64, "{up} of {sent}");
    session.close(0, "");
    other.close(0, "");
    let line = line_with(&site, "path", "/none").await;
    assert!(line["datagrams_dropped"].as_u64().unwrap() >= 500, "{line}");
}
