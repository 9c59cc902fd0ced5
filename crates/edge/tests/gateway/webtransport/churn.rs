//! Sessions that are begun and closed without end, on one connection and on many.

use super::*;

/// Clients at a time, one of which keeps its connection.
const CLIENTS: u64 = 4;
/// Sessions of a connection of the others.
const PER_CONNECTION: u64 = 250;
/// Memory that the gateway may hold for these clients, by its own account.
const HELD: f64 = 4.0 * 1024.0 * 1024.0;
/// Growth of the process, clients included, from a tenth of the sessions on.
const GROWTH: u64 = 32 * 1024;

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = crate::site::read(std::path::Path::new("/proc/self/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Begins and closes sessions on one connection; each opens a stream, of which every second is used.
async fn churn(site: &Site, count: u64) {
    let (_endpoint, mut client) = client(site, Config::default()).await;
    for number in 0..count {
        let session = begin(&mut client).await.unwrap();
        let (mut send, mut recv) = within(session.open_bi()).await.unwrap();
        send.write_all(b"x").await.unwrap();
        if number % 2 == 0 {
            assert_eq!(within(recv.read_chunk(1)).await.unwrap().unwrap(), "x");
        }
        // The reset of the stream may overtake its header.
        session.close(0, "");
    }
}

/// Sessions of `EDGE_SESSIONS`, or some thousands: all are counted, none stays, and memory does not grow with their number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_without_end_leave_nothing() {
    let count: u64 = std::env::var("EDGE_SESSIONS").map_or(4_000, |text| text.parse().unwrap());
    let more = "begun-per-second = 1000000\nsessions-per-client = 64";
    let site = std::sync::Arc::new(Site::start("wt-churn", &route(&format!("to = \"echo:\"\n{more}"))));
    let opened = || site.figure("tiderace_edge_tunnels_opened_total{kind=\"webtransport\"}");
    let held = || site.figure("tiderace_edge_memory_bytes{reason=\"held\"}");
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        let site = site.clone();
        tasks.spawn(async move {
            let mut left = count / CLIENTS;
            while left > 0 {
                let now = if number == 0 { left } else { left.min(PER_CONNECTION) };
                churn(&site, now).await;
                left -= now;
            }
        });
    }
    let (mut most, mut most_open, mut before) = (0.0_f64, 0.0_f64, None);
    while !tasks.is_empty() {
        if let Ok(Some(ended)) = tokio::time::timeout(Duration::from_millis(50), tasks.join_next()).await {
            ended.unwrap();
        }
        (most, most_open) = (most.max(held()), most_open.max(open_sessions(&site)));
        if before.is_none() && opened() >= count as f64 / 10.0 {
            before = Some(resident());
        }
    }
    let growth = resident().saturating_sub(before.expect("a tenth of the sessions was counted"));
    until(|| open_sessions(&site), 0.0).await;
    assert_eq!(opened(), count as f64);
    println!("measured sessions that were begun and closed: {count}");
    println!("measured sessions that were open at a time: {most_open}");
    println!("measured bytes that the gateway held for them: {most}");
    println!("measured KiB by which the process grew meanwhile: {growth}");
    assert!(most_open <= 64.0 && most < HELD && growth < GROWTH, "{most_open} open, {most} bytes, {growth} KiB");
}

/// A client whose sessions are too many, or come too fast, is refused, and each refusal is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_begins_sessions_without_end_is_bounded() {
    let site = Site::start("wt-many", &route("to = \"echo:\"\nsessions-per-client = 5\nbegun-per-second = 20"));
    let (_one, mut first) = client(&site, Config::default()).await;
    let (_other, mut second) = client(&site, Config::default()).await;
    let (mut kept, mut refused) = (Vec::new(), 0);
    for number in 0..400 {
        match begin(if number % 2 == 0 { &mut first } else { &mut second }).await {
            Ok(session) => kept.push(session),
            Err(ConnectError::Refused(status)) => {
                assert_eq!(status, http::StatusCode::TOO_MANY_REQUESTS);
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((kept.len(), refused), (5, 395));
    let figure = |reason: &str| {
        site.figure(&format!("tiderace_edge_tunnels_refused_total{{kind=\"webtransport\",reason=\"{reason}\"}}"))
    };
    assert_eq!(figure("sessions") + figure("rate"), 395.0);
    assert_eq!(open_sessions(&site), 5.0);
}

/// A client that breaks its sessions off as soon as they are begun loses its connection (H3_EXCESSIVE_LOAD).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_gives_sessions_up_without_end_loses_its_connection() {
    let more = "to = \"echo:\"\nbegun-per-second = 1000000";
    let site = Site::start("wt-given-up", &route(more));
    let (_endpoint, mut client) = client(&site, Config::default()).await;
    let error = loop {
        match begin(&mut client).await {
            Ok(session) => session.abort(),
            Err(error) => break error,
        }
        let opened = site.figure("tiderace_edge_tunnels_opened_total{kind=\"webtransport\"}");
        assert!(opened < 20_000.0, "nothing ends it");
    };
    assert!(error.to_string().contains("given up") || format!("{error:?}").contains("code: 263"), "{error:?}");
    until(|| open_sessions(&site), 0.0).await;
}
