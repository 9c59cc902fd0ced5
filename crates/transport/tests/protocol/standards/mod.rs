//! Requirements of the standards that show on the wire, one by one; the marks name them (`docs/compliance.md`).

mod rfc9000_endings;
mod rfc9000_first_packets;
mod rfc9000_packets;
mod rfc9000_streams;
mod rfc9001_rfc9002;

use crate::support;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sim::{client_address, server_address};
use support::{
    client_config, client_endpoint,
    direct::{converse, events, give, sent},
    puppet::{LEVELS, Puppet, ack, bytes},
    server_config, server_endpoint,
};
use transport::{
    CloseReason, Code, Endpoint, Event, Handle, PathId, Profile, RetryPolicy,
    crypto::{Labels, TAG_LEN, retry_tag},
    keys::{KeyLimits, Keys},
    tls::Level,
};
use units::{Duration, Instant};
use wire::{
    ConnectionId, Dir, Frame, Frames, Header, LongHeader, LongType, ResetToken, Side, StreamFrame, StreamId, Writer,
};

const MS: Duration = Duration::from_millis(1);

fn client() -> Puppet {
    Puppet::client(&Profile::default(), |_, _| {})
}

fn server() -> Puppet {
    Puppet::server(&Profile::default(), |_, _| {})
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn processed(puppet: &Puppet) -> u64 {
    puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats().packets_received
}

/// A client that nobody answers, and what it sends first.
fn lonely_client() -> (Endpoint, Handle, Vec<Vec<u8>>) {
    let mut client = client_endpoint(1);
    let config = client_config(&Profile::default());
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    let flight = sent(&mut client, Instant::ZERO).into_iter().map(|d| d.payload).collect();
    (client, handle, flight)
}

/// Returns what a client sends until `end`, unanswered.
fn keeps_sending(client: &mut Endpoint, mut now: Instant, end: Instant) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some((due, ..)) = client.poll_timeout().filter(|(due, ..)| *due <= end) {
        now = now.max(due);
        client.handle_timeout(now);
        all.extend(sent(client, now).into_iter().map(|d| d.payload));
    }
    all
}

/// A packet with a long header, opened: its IDs, token, number and frames.
struct Opened {
    dcid: ConnectionId,
    scid: ConnectionId,
    token: Vec<u8>,
    pn: u64,
    payload: Vec<u8>,
}

/// The Initial packets in a datagram of `sender`, opened with keys for `id`.
fn initials(datagram: &[u8], sender: Side, id: &ConnectionId) -> Vec<Opened> {
    let mut keys = Keys::new(sender.peer(), Labels::of(1).unwrap(), KeyLimits::default());
    keys.set_initial(id.as_slice());
    let mut rest = datagram;
    let mut opened = Vec::new();
    while let Ok(header) = Header::parse(rest, 8) {
        let (packet, after) = rest.split_at(header.packet_len());
        if let Header::Long { ty: LongType::Initial, dcid, scid, token, pn_offset, .. } = header {
            let mut packet = packet.to_vec();
            let token = packet[token].to_vec();
            let open = keys.open_long(Level::Initial, &mut packet, pn_offset, 0).expect("the keys of this ID");
            opened.push(Opened { dcid, scid, token, pn: open.pn, payload: packet[open.payload].to_vec() });
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    opened
}

/// The handshake bytes in payloads, put together.
fn handshake_bytes<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut all = BTreeMap::new();
    for payload in payloads {
        for frame in Frames::new(payload).flatten() {
            if let Frame::Crypto { offset, data } = frame {
                all.extend(data.iter().enumerate().map(|(n, &byte)| (offset + n as u64, byte)));
            }
        }
    }
    assert!(all.keys().copied().eq(0..all.len() as u64), "no gaps");
    all.into_values().collect()
}

/// Both roles of a victim, connected, with a stream and a datagram each way.
fn conversations() -> Vec<(Side, Puppet)> {
    let mut all = Vec::new();
    for mut puppet in [client(), server()] {
        puppet.flush(&[Level::Initial]);
        puppet.collect();
        let mut puppet = puppet.connected();
        let handle = puppet.handle.unwrap();
        let connection = puppet.victim.connection_mut(handle).unwrap();
        let id = connection.open(Dir::Bi).unwrap();
        connection.write(id, &mut Bytes::from(vec![7; 5_000])).unwrap();
        connection.send_datagram(Bytes::from_static(b"datagram")).unwrap();
        puppet.collect();
        puppet.wait(Duration::from_secs(3));
        puppet.acknowledge(Level::OneRtt);
        puppet.collect();
        all.push((if puppet.side == Side::Client { Side::Server } else { Side::Client }, puppet));
    }
    all
}

fn count(puppet: &Puppet, wanted: impl Fn(&Frame<'_>) -> bool) -> usize {
    puppet.frames().filter(|(_, frame)| wanted(frame)).count()
}

/// Opens a datagram with a short header. Returns its destination connection ID and its frames.
fn open_short(puppet: &mut Puppet, datagram: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut packet = datagram.to_vec();
    let dcid = packet[1..9].to_vec();
    let expected = puppet.seen[2].last().map_or(0, |pn| pn + 1);
    let opened = puppet.keys.open_short(&mut packet, 9, PathId(0), expected).expect("an authentic packet");
    puppet.seen[2].insert(opened.pn);
    (dcid, packet[opened.payload].to_vec())
}
