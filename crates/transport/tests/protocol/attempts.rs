//! Events of connection attempts that an endpoint reports.

use crate::support;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use netem::{Forced, LinkConfig, PacketMeta, Script};
use sim::{Dumbbell, LinkId, client_address, point_to_point, server_address};
use support::{
    Host, client_config, client_endpoint,
    direct::{give, sent},
    exchange::{Exchange, Goal},
    server_config, server_endpoint,
};
use transport::{AttemptEvent, AttemptLog, CloseReason, Profile, RetryPolicy, ServerConfig};
use units::{Duration, Instant, Seed};

/// Receiver that writes events down, in words.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl AttemptLog for Log {
    fn note(&self, remote: SocketAddr, event: AttemptEvent<'_>) {
        assert_eq!(remote, client_address(0));
        let word = match event {
            AttemptEvent::Ended { reason, completed, reached, busy } => {
                let reason = match reason {
                    CloseReason::PeerApplication { .. } => "closed",
                    CloseReason::IdleTimeout => "idle",
                    CloseReason::HandshakeTimeout => "too slow",
                    CloseReason::HandshakeFailed { .. } => "failed",
                    _ => "otherwise",
                };
                let is = |yes, word: &'static str| if yes { word } else { "" };
                format!("{reason}{}{}{}", is(completed, " completed"), is(reached, " reached"), is(busy, " busy"))
            }
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(word);
    }
}

/// Runs a client that asks for 100 kB over a path of 25 ms and closes when it has them, for two minutes. Returns the events.
fn told(
    config: ServerConfig,
    alpn: &str,
    fate: impl Fn(LinkId, &PacketMeta) -> Option<Forced> + Clone + Send + 'static,
) -> Vec<String> {
    let link = LinkConfig { delay: Duration::from_millis(25), ..LinkConfig::default() };
    let tls = transport::tls::rustls_backend::RustlsClient::builder().roots([support::identity().1.clone()]);
    let tls = tls.alpn(alpn.as_bytes()).clock(Arc::new(support::CLOCK)).build().unwrap();
    let asks = transport::ClientConfig { tls: Arc::new(tls), ..client_config(&Profile::default()) };
    let mut client = client_endpoint(1);
    let handle = client.connect(Instant::ZERO, &asks, server_address(0), "server.test").unwrap();
    let mut app = Exchange::client(handle, 100, 100_000).until(Goal::Never);
    app.close_when_answered = true;
    let log = Arc::new(Log::default());
    let mut server = server_endpoint(1, config);
    server.set_attempt_log(Some(log.clone()));
    let hosts = (
        Host::new(client_address(0), client, app),
        Host::new(server_address(0), server, Exchange::server(100_000).until(Goal::Never)),
    );
    let mut sim = point_to_point(Seed::from_number(1), &link, &link, hosts.0, hosts.1).unwrap();
    for link in [Dumbbell::UP, Dumbbell::DOWN] {
        let fate = fate.clone();
        sim.network_mut().link_mut(link).set_script(Script::new(move |packet| fate(link, packet)));
    }
    let _ = sim.run_until(Instant::from_millis(120_000)).unwrap();
    log.0.lock().unwrap().clone()
}

fn config() -> ServerConfig {
    server_config(&Profile::default())
}

fn all_arrives(_: LinkId, _: &PacketMeta) -> Option<Forced> {
    None
}

/// Of packets of one direction only so many arrive.
fn only(link: LinkId, most: u64) -> impl Fn(LinkId, &PacketMeta) -> Option<Forced> + Clone + Send + 'static {
    move |of, packet| (of == link && packet.number >= most).then_some(Forced::Drop)
}

#[test]
fn a_connection_that_goes_well_is_reported_at_its_begin_and_its_end() {
    assert_eq!(told(config(), "test", all_arrives), ["Begun", "Completed", "closed completed reached"]);
}

#[test]
fn a_client_that_hears_nothing_was_never_reached() {
    assert_eq!(told(config(), "test", only(Dumbbell::DOWN, 0)), ["Begun", "too slow busy"]);
}

#[test]
fn a_path_that_breaks_leaves_something_under_way() {
    for (link, most) in [(Dumbbell::DOWN, 20), (Dumbbell::UP, 12)] {
        let told = told(config(), "test", only(link, most));
        assert_eq!(told, ["Begun", "Completed", "idle completed reached busy"], "{link:?}");
    }
}

#[test]
fn those_who_get_no_connection() {
    // A Retry that does not arrive is one of several: the client tries again.
    let told_of = told(ServerConfig { retry: RetryPolicy::Always, ..config() }, "test", only(Dumbbell::DOWN, 0));
    assert!(told_of.len() > 1 && told_of.iter().all(|word| word == "Retried"), "{told_of:?}");
    let full = told(ServerConfig { max_connections: 0, ..config() }, "test", all_arrives);
    assert_eq!(full.first().map(String::as_str), Some("Refused"), "{full:?}");
    let sheds = told(ServerConfig { versions: Vec::new(), ..config() }, "test", all_arrives);
    assert_eq!(sheds.first().map(String::as_str), Some("Negotiated { offered: false }"), "{sheds:?}");
    let newer = told(ServerConfig { versions: vec![wire::version::V2], ..config() }, "test", all_arrives);
    assert_eq!(newer.first().map(String::as_str), Some("Negotiated { offered: true }"), "{newer:?}");
    let other = told(config(), "other", all_arrives);
    assert_eq!(other.first().map(String::as_str), Some("Begun"));
    assert!(other.last().is_some_and(|word| word.starts_with("failed")), "{other:?}");
    assert!(!other.contains(&"Completed".to_owned()));
}

#[test]
fn a_reserved_version_is_no_connection_attempt() {
    let log = Arc::new(Log::default());
    let mut server = server_endpoint(1, config());
    server.set_attempt_log(Some(log.clone()));
    for (version, attempts) in [(0x5a6a_7a8a_u32, 0), (0x5a6a_7a8b, 1)] {
        let mut question = vec![0xc0];
        question.extend(version.to_be_bytes());
        question.extend([8, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
        question.resize(1_200, 0);
        give(&mut server, Instant::ZERO, client_address(0), &question);
        assert_eq!(sent(&mut server, Instant::ZERO).len(), 1, "it is answered");
        assert_eq!(log.0.lock().unwrap().len(), attempts);
    }
}
