//! TLS steps that run elsewhere: how many may be out, which goes first, and what happens to a connection meanwhile.

use crate::support;

use std::{net::SocketAddr, sync::Arc};

use support::{
    client_config, client_endpoint,
    direct::{converse, events, give, sent},
    server_config, server_endpoint,
};
use transport::{
    Endpoint, Event, Handle, Profile, ServerConfig,
    tls::{
        Level, Waiting,
        testing::{Delay, Delayed},
    },
};
use units::{Duration, Instant};

const NOW: Instant = Instant::ZERO;

fn address(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

fn server(limit: usize) -> Endpoint {
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    server.hand_out_tls(limit);
    server
}

/// A client whose first flight the server has received.
fn knock(server: &mut Endpoint, number: u16) -> (Endpoint, Handle) {
    let mut client = client_endpoint(number.into());
    let handle = client.connect(NOW, &client_config(&Profile::default()), address(0), "server.test").unwrap();
    deliver(&mut client, server, number, NOW);
    (client, handle)
}

fn deliver(client: &mut Endpoint, server: &mut Endpoint, number: u16, now: Instant) {
    sent(client, now).iter().for_each(|d| give(server, now, address(number), &d.payload));
}

/// Carries datagrams both ways and runs the server's steps, until all is quiet.
fn finish(client: &mut Endpoint, server: &mut Endpoint, number: u16, now: Instant) {
    loop {
        converse(now, (client, address(number)), (server, address(0)));
        let Some(step) = server.poll_tls_step() else { return };
        server.handle_tls_done(now, step.run());
    }
}

fn connected(endpoint: &mut Endpoint) -> bool {
    events(endpoint).iter().any(|(_, event)| *event == Event::Connected)
}

#[test]
fn a_handshake_waits_for_its_step_and_goes_on() {
    let mut server = server(8);
    let (mut client, _) = knock(&mut server, 1);
    assert!(sent(&mut server, NOW).is_empty(), "acknowledgements wait for the flight");
    let step = server.poll_tls_step().expect("the ClientHello is work");
    assert!(!step.has_begun());
    assert!(server.poll_tls_step().is_none(), "a session is in one place at a time");
    // Its copy changes nothing while the session is away.
    client.handle_timeout(client.poll_timeout().unwrap().0);
    let later = NOW + Duration::from_secs(2);
    deliver(&mut client, &mut server, 1, later);
    assert!(server.poll_tls_step().is_none());
    server.handle_tls_done(later, step.run());
    finish(&mut client, &mut server, 1, later);
    assert!(connected(&mut client) && connected(&mut server));
}

/// The answer from outside comes while the session is still on its way back to say that it waits for it.
#[test]
fn an_answer_is_not_lost_while_the_session_is_away() {
    let config = server_config(&Profile::default());
    let delay = Delay { level: Level::Initial, waiting: Waiting::Signature, refusals: 0 };
    let tls = Arc::new(Delayed::new(config.tls.clone(), [delay]));
    for early in [true, false] {
        let mut server = server_endpoint(1, ServerConfig { tls: tls.clone(), ..config.clone() });
        server.hand_out_tls(8);
        let (mut client, _) = knock(&mut server, 1);
        let handle = server.poll_accept().unwrap();
        let done = server.poll_tls_step().unwrap().run();
        if early {
            server.resume_handshake(NOW, handle);
        }
        server.handle_tls_done(NOW, done);
        assert_eq!(server.connection(handle).unwrap().handshake_waits_for(), Some(Waiting::Signature));
        finish(&mut client, &mut server, 1, NOW);
        assert_eq!(connected(&mut client), early);
        if !early {
            server.resume_handshake(NOW, handle);
            finish(&mut client, &mut server, 1, NOW);
            assert!(connected(&mut client));
        }
    }
}

#[test]
fn what_has_begun_goes_first() {
    let mut server = server(8);
    let (mut first, _) = knock(&mut server, 1);
    sent(&mut server, NOW);
    let step = server.poll_tls_step().unwrap();
    server.handle_tls_done(NOW, step.run());
    let flight = sent(&mut server, NOW);
    flight.iter().for_each(|d| give(&mut first, NOW, address(0), &d.payload));
    // Another client comes before the first one's Finished.
    let (_second, _) = knock(&mut server, 2);
    sent(&mut server, NOW);
    deliver(&mut first, &mut server, 1, NOW);
    sent(&mut server, NOW);
    let order: Vec<bool> = std::iter::from_fn(|| server.poll_tls_step()).map(|step| step.has_begun()).collect();
    assert_eq!(order, [true, false]);
}

#[test]
fn a_client_too_many_tries_again() {
    let mut server = server(1);
    let (mut first, _) = knock(&mut server, 1);
    sent(&mut server, NOW);
    let step = server.poll_tls_step().unwrap();
    let (mut second, _) = knock(&mut server, 2);
    assert!(sent(&mut server, NOW).is_empty());
    assert!(server.poll_tls_step().is_none());
    assert_eq!((server.stats().overloaded > 0, server.open_connections()), (true, 1));

    server.handle_tls_done(NOW, step.run());
    finish(&mut first, &mut server, 1, NOW);
    assert!(connected(&mut first));
    let (later, ..) = second.poll_timeout().unwrap();
    second.handle_timeout(later);
    finish(&mut second, &mut server, 2, later);
    assert!(connected(&mut second));
}

#[test]
fn a_step_of_a_connection_that_is_gone_comes_back_to_nobody() {
    let mut server = server(1);
    let (..) = knock(&mut server, 1);
    sent(&mut server, NOW);
    let step = server.poll_tls_step().unwrap();
    let mut now = NOW;
    while server.open_connections() > 0 {
        now = now.max(server.poll_timeout().expect("a handshake has a deadline").0);
        server.handle_timeout(now);
        sent(&mut server, now);
    }
    server.handle_tls_done(now, step.run());
    assert!(sent(&mut server, now).is_empty());
    // Its place is free for others.
    let (mut next, _) = knock(&mut server, 2);
    finish(&mut next, &mut server, 2, now);
    assert!(connected(&mut next));
}
