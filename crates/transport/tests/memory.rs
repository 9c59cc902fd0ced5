//! Memory of a server's idle connections, counted in bytes that are really allocated, those of the cryptography library
//! included. It runs without the test harness: in the main thread all memory comes from one arena, which can be asked.

mod support;

use std::net::SocketAddr;

use bytes::Bytes;
use support::{
    client_config, client_endpoint,
    direct::{converse, events, give, sent},
    server_config, server_endpoint,
};
use transport::{Endpoint, Event, Handle, Profile, streams::Order};
use units::{Duration, Instant};
use wire::Dir;

const CONNECTIONS: u16 = 200;
/// Largest memory of an idle connection, in bytes.
const LIMIT: usize = 10 * 1024;
/// Charge of a connection during its handshake, in bytes.
const IN_HANDSHAKE: usize = 32 * 1024;
/// Smallest plausible memory of a connection, in bytes: a broken count must not pass.
const PLAUSIBLE: usize = 2 * 1024;

/// Bytes that are allocated at the moment.
#[expect(unsafe_code, reason = "mallinfo2 has no safe wrapper")]
fn allocated() -> usize {
    // SAFETY: the call has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

fn address(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

struct Pair {
    client: Endpoint,
    handle: Handle,
    port: u16,
}

/// The time that passes for both until `until`, with all that is due meanwhile.
fn wait(now: &mut Instant, until: Instant, pair: &mut Pair, server: &mut Endpoint) {
    loop {
        converse(*now, (&mut pair.client, address(pair.port)), (server, address(0)));
        let next = [pair.client.poll_timeout(), server.poll_timeout()].into_iter().flatten().map(|(at, ..)| at).min();
        match next.filter(|at| *at <= until) {
            Some(at) => *now = at.max(*now),
            None => break,
        }
        pair.client.handle_timeout(*now);
        server.handle_timeout(*now);
    }
    *now = until;
}

/// A request of 100 bytes and an answer of 1,000.
fn request(now: &mut Instant, pair: &mut Pair, server: &mut Endpoint, served: Handle) {
    let client = pair.client.connection_mut(pair.handle).unwrap();
    let id = client.open(Dir::Bi).unwrap();
    client.write(id, &mut Bytes::from_static(&[1; 100])).unwrap();
    client.finish(id).unwrap();
    converse(*now, (&mut pair.client, address(pair.port)), (server, address(0)));
    let connection = server.connection_mut(served).unwrap();
    assert_eq!(connection.accept(Dir::Bi), Some(id));
    while connection.read(id, 1000, Order::Ordered).unwrap().is_some() {}
    connection.write(id, &mut Bytes::from_static(&[2; 1000])).unwrap();
    connection.finish(id).unwrap();
    converse(*now, (&mut pair.client, address(pair.port)), (server, address(0)));
    let client = pair.client.connection_mut(pair.handle).unwrap();
    while client.read(id, 1000, Order::Ordered).unwrap().is_some() {}
    wait(now, *now + Duration::from_secs(5), pair, server);
}

/// Bytes per connection of a server whose connections have each done what `act` does, and were then left alone.
fn measure(name: &str, mut act: impl FnMut(&mut Instant, &mut Pair, &mut Endpoint, Handle)) -> usize {
    let profile = Profile { idle_timeout: Duration::from_secs(86_400), ..Profile::default() };
    let mut server = server_endpoint(1, server_config(&profile));
    let mut now = Instant::ZERO;
    let mut pairs = Vec::new();
    for port in 1..=CONNECTIONS {
        let mut client = client_endpoint(port.into());
        let handle = client.connect(now, &client_config(&profile), address(0), "server.test").unwrap();
        let mut pair = Pair { client, handle, port };
        let until = now + Duration::from_secs(5);
        wait(&mut now, until, &mut pair, &mut server);
        let connected = events(&mut server).into_iter().find(|(_, event)| *event == Event::Connected);
        let (served, _) = connected.expect("the handshake is complete");
        while server.poll_accept().is_some() {}
        act(&mut now, &mut pair, &mut server, served);
        events(&mut server);
        events(&mut pair.client);
        pairs.push(pair);
    }
    assert_eq!(server.open_connections(), usize::from(CONNECTIONS));
    let with = allocated();
    drop(server);
    let each = (with - allocated()) / usize::from(CONNECTIONS);
    println!("{name}: {each} bytes per idle server connection");
    each
}

/// Bytes per connection of a server whose clients have sent their first flight and no more.
fn half_open() -> usize {
    let profile = Profile::default();
    let mut server = server_endpoint(1, server_config(&profile));
    let before = allocated();
    for port in 1..=CONNECTIONS {
        let mut client = client_endpoint(port.into());
        client.connect(Instant::ZERO, &client_config(&profile), address(0), "server.test").unwrap();
        sent(&mut client, Instant::ZERO)
            .iter()
            .for_each(|d| give(&mut server, Instant::ZERO, address(port), &d.payload));
        sent(&mut server, Instant::ZERO);
    }
    assert_eq!(server.open_connections(), usize::from(CONNECTIONS));
    let each = (allocated() - before) / usize::from(CONNECTIONS);
    println!("in the handshake: {each} bytes per server connection");
    each
}

fn main() {
    // What is made once, such as the certificates, is not a connection's.
    measure("warm-up", |_, _, _, _| {});
    half_open();
    let in_handshake = half_open();
    assert!((PLAUSIBLE..=IN_HANDSHAKE).contains(&in_handshake), "{in_handshake} bytes, {IN_HANDSHAKE} are charged");
    let fresh = measure("after the handshake", |_, _, _, _| {});
    let used = measure("after 20 requests", |now, pair, server, served| {
        (0..20).for_each(|_| request(now, pair, server, served));
    });
    for bytes in [fresh, used] {
        assert!((PLAUSIBLE..=LIMIT).contains(&bytes), "{bytes} bytes, at most {LIMIT} are allowed");
    }
}
