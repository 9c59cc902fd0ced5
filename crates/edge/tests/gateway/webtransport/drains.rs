//! Reloads and stops: sessions continue, are asked to end where their route has changed, and are closed when their time has ended.

use super::*;
use webtransport::SessionEnd;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_takes_nothing_from_a_session() {
    let back_end = echo().await;
    let udp = echo_udp().await;
    let own = to(back_end, &format!("datagrams-to = \"udp://{udp}\""));
    let site = Site::start("wt-reload", &own);
    let (_endpoint, session) = session(&site).await;
    let (mut send, mut recv) = within(session.open_bi()).await.unwrap();
    let data = pattern(300_000);
    for number in 0..6_usize {
        let part = data.slice(number * 50_000..(number + 1) * 50_000);
        send.write_chunk(part.clone()).await.unwrap();
        // Another route and another setting of the transport; the route of the session stays.
        let others = format!("[transport]\ncongestion = \"{}\"\n", ["bbr3", "cubic", "newreno"][number % 3]);
        let route = format!("[[route]]\npath = \"/other-{number}\"\nto = \"http://127.0.0.1:1\"\n");
        site.configure(&format!("{others}{own}{route}"));
        site.process.reload().await.unwrap();
        let mut back = Vec::new();
        while back.len() < part.len() {
            back.extend(within(recv.read_chunk(part.len() - back.len())).await.unwrap().unwrap());
        }
        assert!(back == part, "part {number}");
        session.send_datagram(&[number as u8; 100]).unwrap();
        assert_eq!(within(session.read_datagram()).await.unwrap(), vec![number as u8; 100]);
        exchange(session.clone(), pattern(20_000)).await;
    }
    send.finish().unwrap();
    assert_eq!(within(recv.read_chunk(1)).await.unwrap(), None);
    let is_asked = tokio::time::timeout(Duration::from_millis(200), session.draining()).await;
    assert!(is_asked.is_err(), "the session's route is what it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_asked_to_end_when_its_route_has_changed_and_closed_when_its_time_is_over() {
    let back_end = echo().await;
    let other = echo().await;
    let site = Site::start("wt-changed", &to(back_end, "drain = \"1 h\""));
    let (_patient, patient) = session(&site).await;
    site.configure(&to(back_end, "drain = \"1 s\""));
    site.process.reload().await.unwrap();
    within(patient.draining()).await;
    assert!(patient.end().is_none(), "it goes on under the configuration under which it began");
    exchange(patient.clone(), pattern(100_000)).await;
    // Another session, whose time is short.
    let (_endpoint, session) = session(&site).await;
    let (mut send, mut recv) = within(session.open_bi()).await.unwrap();
    send.write_all(b"under way").await.unwrap();
    let mut back = Vec::new();
    while back.len() < 9 {
        back.extend(within(recv.read_chunk(100)).await.unwrap().unwrap());
    }
    site.configure(&to(other, ""));
    site.process.reload().await.unwrap();
    within(session.draining()).await;
    let end = within(session.closed()).await;
    let SessionEnd::ClosedByPeer { code: 16, reason } = &end else { panic!("{end}") };
    assert_eq!(reason, "the gateway ends the session");
    let line = line_with(&site, "reason", "drained").await;
    assert_eq!((line["ended_by"].as_str(), line["status"].as_u64()), (Some("gateway"), Some(200)), "{line}");
    exchange(patient.clone(), pattern(100_000)).await;
    patient.close(0, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_asks_waits_and_closes() {
    let back_end = echo().await;
    let site = Site::start("wt-stop", &to(back_end, ""));
    let (_one, session_that_ends) = session(&site).await;
    let (_two, session_that_stays) = session(&site).await;
    let process = site.process.clone();
    let stopping = tokio::spawn(async move { process.drain().await });
    within(session_that_ends.draining()).await;
    within(session_that_stays.draining()).await;
    // What is asked for meanwhile is carried.
    exchange(session_that_ends.clone(), pattern(200_000)).await;
    session_that_ends.close(0, "");
    let end = within(session_that_stays.closed()).await;
    assert!(matches!(end, SessionEnd::ClosedByPeer { code: 16, .. }), "{end}");
    within(stopping).await.unwrap();
    let lines = crate::site::read(&site.directory.0.join("access.log"));
    let reasons: Vec<bool> =
        ["complete", "drained"].map(|reason| lines.contains(&format!("\"reason\":\"{reason}\""))).into();
    assert_eq!(reasons, [true, true], "{lines}");
}
