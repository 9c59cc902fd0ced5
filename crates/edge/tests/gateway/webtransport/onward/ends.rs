//! Ends: of streams, of sessions, and of connections; drains and reloads.

use webtransport::SessionEnd;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_and_stops_pass_with_their_codes() {
    let Joined { site, client, back_end, .. } = &joined("wt-onward-resets", Config::default(), "").await;
    for (one, other) in [(client, back_end), (back_end, client)] {
        for code in [0, 29, 30, u32::MAX] {
            let (mut send, mut back) = within(one.open_bi()).await.unwrap();
            send.reset(code);
            let (mut reply, mut recv) = within(other.accept_bi()).await.unwrap();
            assert_eq!(within(recv.read_to_end(10)).await, Err(ReadError::Reset(Some(code))));
            // The other direction goes on.
            within(reply.write_all(b"reply")).await.unwrap();
            assert_eq!(within(back.read_chunk(5)).await.unwrap().unwrap(), "reply");
            // A stop is heard at once, although nothing is written.
            back.stop(code);
            assert_eq!(within(reply.stopped()).await, WriteError::Stopped(Some(code)));
        }
    }
    until(|| [streams(site, "reset"), streams(site, "broken")], [4.0, 4.0]).await;
}

/// RESET_STREAM_AT: what the sender had written arrives before the reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_before_a_reset_arrives() {
    let Joined { client, back_end, .. } = &joined("wt-onward-reliable", Config::default(), "").await;
    for (one, other) in [(client, back_end), (back_end, client)] {
        let data = pattern(200_000);
        let mut send = within(one.open_uni()).await.unwrap();
        within(send.write_chunk(data.clone())).await.unwrap();
        send.reset_after_written(7);
        let mut recv = within(other.accept_uni()).await.unwrap();
        let mut came = Vec::new();
        let end = loop {
            match within(recv.read_chunk(100_000)).await {
                Ok(Some(part)) => came.extend(part),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        assert_eq!((end, came == data), (Some(ReadError::Reset(Some(7))), true), "{} bytes", came.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closes_pass_with_code_and_message() {
    for (by_client, code, reason) in [(true, 7, "ä"), (false, 4_000_000_000, "over"), (true, 0, ""), (false, 0, "")] {
        let Joined { site, client, back_end, .. } = &joined("wt-onward-close", Config::default(), "").await;
        let (closing, other) = if by_client { (client, back_end) } else { (back_end, client) };
        let (_send, _recv) = within(closing.open_bi()).await.unwrap();
        closing.close(code, reason);
        let end = within(other.closed()).await;
        assert_eq!(end, SessionEnd::ClosedByPeer { code, reason: reason.to_owned() });
        let line = line_with(site, "path", "/session").await;
        assert_eq!((line["status"].as_u64(), line["reason"].as_str()), (Some(200), Some("complete")), "{line}");
        let said = line["error"].as_str().unwrap_or_default();
        assert_eq!((said.contains(&code.to_string()), said.contains(reason)), (code > 0, true), "{line}");
        until(|| open_sessions(site), 0.0).await;
    }
}

/// An end without a code at one side is one at the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_side_is_no_close() {
    let Joined { site, client, back_end, host, endpoint, .. } = joined("wt-onward-lost", Config::default(), "").await;
    drop(client);
    endpoint.close(9, b"gone");
    let end = within(back_end.closed()).await;
    // The handle of the client closes its session as it goes, if that is still sent. The connection of the session ends with it.
    let gone = match &end {
        SessionEnd::Reset(_) | SessionEnd::Connection(_) => true,
        SessionEnd::ClosedByPeer { code, .. } => *code == 0,
        _ => false,
    };
    assert!(gone, "{end}");
    until(|| open_sessions(&site), 0.0).await;
    drop((host, endpoint));

    let Joined { site, client, back_end: _first, mut host, endpoint: _own, _roots, .. } =
        joined("wt-onward-lost-back-end", Config::default(), "").await;
    let (second, mut again) = super::super::client(&site, Config::default()).await;
    let another = begin(&mut again).await.unwrap();
    let (there, _, quic) = within(host.begun.recv()).await.unwrap();
    quic.close(9, b"gone");
    let end = within(another.closed()).await;
    assert!(matches!(end, SessionEnd::Reset(_)), "{end}");
    let line = line_with(&site, "reason", "broken").await;
    assert_eq!(line["ended_by"].as_str(), Some("back_end"), "{line}");
    drop(there);
    // A session is alone on its connection: others go on.
    assert!(client.end().is_none());
    second.close(0, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drains_pass_both_ways() {
    let Joined { client, back_end, .. } = &joined("wt-onward-drain", Config::default(), "").await;
    let early = tokio::time::timeout(Duration::from_millis(200), async {
        tokio::select! { () = client.draining() => {}, () = back_end.draining() => {} }
    });
    assert!(early.await.is_err(), "nobody has asked");
    back_end.drain();
    within(client.draining()).await;
    client.drain();
    within(back_end.draining()).await;
    streams_of(client, back_end, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_reloads_and_is_asked_to_end_with_its_route() {
    let Joined { host, site, client, back_end, _roots, .. } = &joined("wt-onward-reload", Config::default(), "").await;
    let roots = _roots.0.join("roots.pem");
    let own = onward(host.address, "").replace("ROOTS", roots.to_str().unwrap());
    let (mut send, _recv) = within(client.open_bi()).await.unwrap();
    let (_reply, mut there) = within(back_end.accept_bi()).await.unwrap();
    for number in 0..3 {
        let route = format!("[[route]]\npath = \"/other-{number}\"\nto = \"http://127.0.0.1:1\"\n");
        site.configure(&format!("{own}{route}"));
        site.process.reload().await.unwrap();
        let data = pattern(50_000 + number);
        let (written, ()) = tokio::join!(within(send.write_chunk(data.clone())), async {
            let mut came = Vec::new();
            while came.len() < data.len() {
                came.extend(within(there.read_chunk(data.len() - came.len())).await.unwrap().unwrap());
            }
            assert!(came == data, "part {number}");
        });
        written.unwrap();
        streams_of(back_end, client, 2).await;
        client.send_datagram(&[number as u8; 100]).unwrap();
        assert_eq!(within(back_end.read_datagram()).await.unwrap(), vec![number as u8; 100]);
    }
    let is_asked = tokio::time::timeout(Duration::from_millis(200), client.draining()).await;
    assert!(is_asked.is_err(), "the session's route is what it was");
    site.configure("[[route]]\nto = \"http://127.0.0.1:1\"\n");
    site.process.reload().await.unwrap();
    within(client.draining()).await;
    within(back_end.draining()).await;
    streams_of(client, back_end, 2).await;
    // A stop closes it, at both sides.
    let process = site.process.clone();
    let stopping = tokio::spawn(async move { process.drain().await });
    let ends = tokio::join!(within(client.closed()), within(back_end.closed()));
    for end in [ends.0, ends.1] {
        assert!(matches!(end, SessionEnd::ClosedByPeer { code: 16, .. }), "{end}");
    }
    within(stopping).await.unwrap();
}
