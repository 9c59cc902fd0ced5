//! Endpoints without a network: datagrams are carried by hand.

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use transport::{Datagram, Endpoint, Event, Handle, Transmit};
use units::Instant;

/// A datagram that an endpoint sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub to: SocketAddr,
    /// The address that it is to leave from, where the endpoint names one.
    pub from: Option<IpAddr>,
    pub payload: Vec<u8>,
}

/// Returns what `endpoint` sends at `now`, one entry for each UDP payload.
pub fn sent(endpoint: &mut Endpoint, now: Instant) -> Vec<Sent> {
    let mut buffer = vec![0; 64 * 1500];
    let mut all = Vec::new();
    while let Some(Transmit { remote, local, len, segment_size, .. }) = endpoint.poll_transmit(now, &mut buffer) {
        let payloads = buffer[..len].chunks(segment_size);
        all.extend(payloads.map(|payload| Sent { to: remote, from: local, payload: payload.to_vec() }));
        assert!(all.len() < 100_000, "the endpoint sends without end");
    }
    all
}

/// Gives a payload from `from` to `endpoint`.
pub fn give(endpoint: &mut Endpoint, now: Instant, from: SocketAddr, payload: &[u8]) {
    give_at(endpoint, now, from, None, payload);
}

/// The same; the endpoint learns at which of its addresses the payload arrived.
pub fn give_at(endpoint: &mut Endpoint, now: Instant, from: SocketAddr, local: Option<IpAddr>, payload: &[u8]) {
    let segment_size = payload.len();
    let payload = BytesMut::from(payload);
    endpoint.handle_datagram(now, Datagram { remote: from, local, ecn: None, received_at: now, segment_size, payload });
}

/// All events that wait.
pub fn events(endpoint: &mut Endpoint) -> Vec<(Handle, Event)> {
    std::iter::from_fn(|| endpoint.poll_event()).collect()
}

/// Carries datagrams between the two until both are silent.
pub fn converse(now: Instant, client: (&mut Endpoint, SocketAddr), server: (&mut Endpoint, SocketAddr)) {
    loop {
        let up = sent(client.0, now);
        let down = sent(server.0, now);
        if up.is_empty() && down.is_empty() {
            return;
        }
        up.iter().for_each(|d| give(server.0, now, client.1, &d.payload));
        down.iter().for_each(|d| give(client.0, now, server.1, &d.payload));
    }
}
