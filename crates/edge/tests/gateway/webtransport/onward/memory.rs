//! Memory of the client's connection: streams of the back end wait for it, and none is refused.

use super::*;

/// Time within which a stream comes that has not to wait for memory, by far.
const SOON: Duration = Duration::from_secs(2);

/// Sessions of a route beside, on the same connection, until there is no memory for another one.
async fn sessions_until_memory_is_used(client: &mut Client) -> Vec<Session> {
    let mut sessions = Vec::new();
    loop {
        let request = Request::get("https://localhost/beside").body(()).unwrap();
        match within(client.connect(request, &[])).await {
            Ok(session) => sessions.push(session),
            Err(ConnectError::Refused(status)) => {
                assert_eq!(status, http::StatusCode::SERVICE_UNAVAILABLE);
                return sessions;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Streams that the back end opens find less memory at the client's connection with each, until one of them waits. A session ends, and what
/// has waited arrives, byte for byte.
///
/// Streams of a client do not come so far: HTTP/3 asks for more at their arrival than the gateway does afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_wait_for_memory_and_are_served_when_some_is_given_back() {
    let mut host = Host::open();
    let limits = "connection-memory = \"1 MiB\"\nsessions-per-connection = 200\nrequests-per-connection = 300";
    let more = "sessions-per-client = 200\nbegun-per-second = 1000";
    let beside =
        format!("[[route]]\npath = \"/beside\"\n[route.webtransport]\norigins = \"*\"\nto = \"echo:\"\n{more}");
    let routes = format!("[limits]\n{limits}\n{}{beside}\n", onward(host.address, more));
    let (site, _roots) = gateway("wt-onward-memory", &host.certificate, &routes);
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let session = begin(&mut client).await.unwrap();
    let back_end = host.session().await;
    let mut beside = sessions_until_memory_is_used(&mut client).await;
    let figure = |name: &str| site.figure(&format!("tiderace_edge_streams_{name}{{protocol=\"webtransport\"}}"));

    // Streams that stay open hold what is left.
    let (mut open, mut waiting) = (Vec::new(), None);
    while waiting.is_none() {
        assert!(open.len() < 60, "no stream has to wait for memory");
        let (mut send, recv) = within(back_end.open_bi()).await.unwrap();
        send.write_all(b"open").await.expect("none is refused");
        until(|| figure("begun_total"), open.len() as f64 + 1.0).await;
        match tokio::time::timeout(SOON, session.accept_bi()).await {
            Ok(accepted) => open.push((send, recv, accepted.unwrap())),
            Err(_) => waiting = Some((send, recv)),
        }
    }
    let (mut send, mut recv) = waiting.unwrap();
    // One of the other kind waits behind it.
    let mut one_way = within(back_end.open_uni()).await.unwrap();
    one_way.write_all(b"behind").await.expect("none is refused");
    one_way.finish().unwrap();
    let count = open.len() as f64 + 2.0;
    until(|| figure("begun_total"), count).await;
    assert!(tokio::time::timeout(Duration::ZERO, recv.read_chunk(1)).await.is_err(), "it was reset");
    assert!(tokio::time::timeout(Duration::ZERO, send.stopped()).await.is_err(), "it was stopped");
    assert!(
        tokio::time::timeout(SOON, session.accept_uni()).await.is_err(),
        "there was memory for one that came later"
    );
    assert_eq!(figure("in_flight"), count, "one has ended");

    beside.pop().unwrap().close(0, "");
    let (back, mut there) = within(session.accept_bi()).await.unwrap();
    assert_eq!(within(there.read_chunk(4)).await.unwrap().unwrap(), "open");
    tokio::join!(pass(send, there, pattern(100_003)), pass(back, recv, pattern(200_001)));
    let mut behind = within(session.accept_uni()).await.unwrap();
    assert_eq!(within(behind.read_to_end(100)).await.unwrap(), b"behind");
    // Those that held the memory are whole, too.
    for (mut send, recv, (back, mut there)) in open {
        send.finish().unwrap();
        assert_eq!(within(there.read_to_end(100)).await.unwrap(), b"open");
        pass(back, recv, pattern(1_000)).await;
    }
    until(|| streams(&site, "completed"), count).await;
    for result in ["memory", "excess", "refused", "reset", "broken", "unreachable", "queued"] {
        assert_eq!(streams(&site, result), 0.0, "{result}");
    }
}
