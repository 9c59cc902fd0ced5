//! Packets in datagrams, and datagrams in batches: datagrams of one size share a buffer, whatever filled them; keys change when
//! both ends can follow.

use crate::support;

use std::net::SocketAddr;

use bytes::Bytes;
use support::{
    client_config, client_endpoint,
    direct::{converse, events, give, sent},
    server_config, server_endpoint,
};
use transport::{Endpoint, Event, Handle, Profile, Transmit};
use units::Instant;
use wire::Dir;

const NOW: Instant = Instant::ZERO;

fn address(last: u8) -> SocketAddr {
    ([192, 0, 2, last], 4433).into()
}

/// A client and the server that it is connected with. The window is that of the start: twelve datagrams.
fn connected() -> (Endpoint, Handle, Endpoint) {
    let profile = Profile { max_mtu: 1452, initial_mtu: 1452, ..Profile::default() };
    let mut server = server_endpoint(1, server_config(&profile));
    let mut client = client_endpoint(2);
    let handle = client.connect(NOW, &client_config(&profile), address(2), "server.test").unwrap();
    converse(NOW, (&mut client, address(1)), (&mut server, address(2)));
    events(&mut client);
    // Acknowledgements that wait leave with this.
    client.connection_mut(handle).unwrap().send_datagram(Bytes::new()).unwrap();
    converse(NOW, (&mut client, address(1)), (&mut server, address(2)));
    (client, handle, server)
}

/// The sends that wait, each with the size of its datagrams.
fn sends(endpoint: &mut Endpoint) -> Vec<(usize, usize)> {
    let mut buffer = vec![0; 64 * 1500];
    let next =
        || endpoint.poll_transmit(NOW, &mut buffer).map(|Transmit { len, segment_size, .. }| (len, segment_size));
    std::iter::from_fn(next).collect()
}

#[test]
fn datagrams_of_one_size_leave_with_one_send() {
    let (mut client, handle, _) = connected();
    let connection = client.connection_mut(handle).unwrap();
    for byte in 0..8 {
        connection.send_datagram(Bytes::from(vec![byte; 1000])).unwrap();
    }
    let sends = sends(&mut client);
    let [(len, size)] = sends[..] else { panic!("{sends:?}") };
    assert!((1000..1100).contains(&size), "{sends:?}");
    assert_eq!(len, 8 * size);
}

#[test]
fn a_longer_datagram_begins_a_send_of_its_own() {
    let (mut client, handle, _) = connected();
    let connection = client.connection_mut(handle).unwrap();
    for len in [800, 800, 1200, 1200, 900] {
        connection.send_datagram(Bytes::from(vec![1; len])).unwrap();
    }
    let segments: Vec<usize> = sends(&mut client).iter().map(|(len, size)| len.div_ceil(*size)).collect();
    // Two of 800 do not fit into one packet; 900 is the shorter end of its batch.
    assert_eq!(segments, [2, 3]);
}

#[test]
fn requests_on_many_streams_leave_with_one_send() {
    let (mut client, handle, mut server) = connected();
    let connection = client.connection_mut(handle).unwrap();
    for byte in 0..60 {
        let id = connection.open(Dir::Bi).unwrap();
        connection.write(id, &mut Bytes::from(vec![byte; 100])).unwrap();
        connection.finish(id).unwrap();
    }
    let sends = sends(&mut client);
    let [(len, size)] = sends[..] else { panic!("{sends:?}") };
    assert_eq!(size, 1452, "padded to the end where a request does not fit");
    assert_eq!(len.div_ceil(size), 5);
    converse(NOW, (&mut client, address(1)), (&mut server, address(2)));
}

/// A server that updates its keys the moment it is connected: HANDSHAKE_DONE still travels under the first keys.
#[test]
fn the_first_key_update_waits_for_an_acknowledgement() {
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    let mut client = client_endpoint(2);
    client.connect(NOW, &client_config(&Profile::default()), address(2), "server.test").unwrap();
    let mut accepted = None;
    for _ in 0..8 {
        for d in sent(&mut client, NOW) {
            give(&mut server, NOW, address(1), &d.payload);
        }
        for (handle, event) in events(&mut server) {
            if event == Event::Connected {
                let connection = server.connection_mut(handle).unwrap();
                connection.update_keys();
                accepted = Some(handle);
            }
        }
        let flight = sent(&mut server, NOW);
        if let Some(handle) = accepted {
            assert!(!flight.is_empty());
            assert_eq!(server.connection(handle).unwrap().stats().key_updates, 0);
            return;
        }
        flight.iter().for_each(|d| give(&mut client, NOW, address(2), &d.payload));
    }
    panic!("the handshake did not complete");
}

/// A client that closes the moment it is connected: the server sees the connection, and its end.
#[test]
fn a_close_at_once_does_not_take_the_handshake_with_it() {
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    let mut client = client_endpoint(2);
    client.connect(NOW, &client_config(&Profile::default()), address(2), "server.test").unwrap();
    let mut seen = Vec::new();
    for _ in 0..8 {
        sent(&mut client, NOW).iter().for_each(|d| give(&mut server, NOW, address(1), &d.payload));
        seen.extend(events(&mut server).into_iter().map(|(_, event)| event));
        sent(&mut server, NOW).iter().for_each(|d| give(&mut client, NOW, address(2), &d.payload));
        for (handle, event) in events(&mut client) {
            if event == Event::Connected {
                client.connection_mut(handle).unwrap().close(NOW, 7, b"");
            }
        }
    }
    assert!(seen.contains(&Event::Connected), "{seen:?}");
    assert!(seen.iter().any(|event| matches!(event, Event::Closed(_))), "{seen:?}");
}
