//! Servers of ill will that have the keys, and somebody else who has not: what a client computes, holds and sends for them is bounded.

use crate::support;

use bytes::Bytes;
use support::{
    direct::sent,
    puppet::{Puppet, bytes},
};
use transport::{CloseReason, Code, Event, Profile, fec::DatagramFlow, tls::Level};
use units::Duration;
use wire::{Dir, Frame, ResetToken, TransportParameters, varint};

/// A server that continues with tickets: the work for them is bounded by the bytes that are taken, 256 KiB and 1 KiB a second.
#[test]
fn handshake_bytes_without_end_after_the_handshake_end_the_connection() {
    let ticket = [&[4, 0, 3, 0xe4][..], &[0; 996]].concat();
    // As fast as it can; copies of what has come are no way around it.
    for repeats in [false, true] {
        let mut puppet = Puppet::server(&Profile::default(), |_, _| {}).connected();
        let (mut offset, mut taken) = (200, 0);
        while puppet.close_code().is_none() {
            puppet.send(Level::OneRtt, &bytes(&[Frame::Crypto { offset, data: &ticket }]));
            taken += ticket.len();
            offset += if repeats { 0 } else { ticket.len() as u64 };
            puppet.collect();
            assert!(taken <= 300_000, "{taken} bytes were taken");
        }
        assert_eq!(puppet.close_code(), Some(Code::CRYPTO_BUFFER_EXCEEDED));
        assert!(taken > 250_000, "{taken} bytes were taken");
    }
    // A ticket of the usual size every minute, for a day.
    let mut puppet = Puppet::server(&Profile::default(), |_, _| {}).connected();
    let ticket = [&[4, 0, 0, 246][..], &[0; 246]].concat();
    for minute in 0..1_440_u64 {
        puppet.send(Level::OneRtt, &bytes(&[Frame::Crypto { offset: 200 + minute * 250, data: &ticket }]));
        for _ in 0..6 {
            puppet.send(Level::OneRtt, &bytes(&[Frame::Ping]));
            puppet.collect();
            puppet.wait(Duration::from_secs(10));
            puppet.acknowledge(Level::OneRtt);
        }
    }
    assert_eq!(puppet.close_code(), None);
}

/// The largest values that can be said, and the least, are used by both ends: nothing overflows, and all has its bounds.
#[test]
fn extreme_parameters_are_used_without_harm() {
    let all = |p: &mut TransportParameters, _: &mut Vec<u8>| {
        p.max_idle_timeout_ms = varint::MAX;
        p.max_ack_delay_ms = (1 << 14) - 1;
        p.ack_delay_exponent = 20;
        p.active_connection_id_limit = varint::MAX;
        p.max_datagram_frame_size = varint::MAX;
        p.max_udp_payload_size = varint::MAX;
        p.initial_max_data = varint::MAX;
        p.initial_max_stream_data_bidi_local = varint::MAX;
        p.initial_max_stream_data_bidi_remote = varint::MAX;
        p.initial_max_stream_data_uni = varint::MAX;
        p.initial_max_streams_bidi = 1 << 60;
        p.initial_max_streams_uni = 1 << 60;
    };
    let nothing = |p: &mut TransportParameters, _: &mut Vec<u8>| {
        let (initial_source_cid, original_dcid) = (p.initial_source_cid, p.original_dcid);
        *p = TransportParameters { initial_source_cid, original_dcid, ..TransportParameters::default() };
    };
    let profile = Profile { idle_timeout: Duration::ZERO, ..Profile::default() };
    type Change = fn(&mut TransportParameters, &mut Vec<u8>);
    let changes: [(&str, Change); 2] = [("all", all), ("nothing", nothing)];
    for (name, change) in changes {
        for puppet in [Puppet::client(&profile, change), Puppet::server(&profile, change)] {
            let mut puppet = puppet.connected();
            let handle = puppet.handle.unwrap();
            let mut opened = 0;
            for round in 0..200 {
                let now = puppet.now;
                let connection = puppet.victim.connection_mut(handle).expect(name);
                for dir in [Dir::Bi, Dir::Uni] {
                    if let Some(id) = connection.open(dir) {
                        opened += 1;
                        let _ = connection.write(id, &mut Bytes::from(vec![7; 3_000]));
                        let _ = connection.finish(id);
                    }
                }
                let _ = connection.send_datagram_in(now, &DatagramFlow::default(), Bytes::from(vec![7; 1_000]));
                connection.ping();
                puppet.collect();
                if round % 2 == 0 {
                    puppet.acknowledge(Level::OneRtt);
                }
                // A window that can grow no more, or does at last.
                puppet.send(Level::OneRtt, &bytes(&[Frame::MaxData(varint::MAX), Frame::Ping]));
                puppet.wait(Duration::from_millis(100));
            }
            assert_eq!(puppet.close_code(), None, "{name}");
            assert_eq!(opened > 0, name == "all", "{opened} streams were opened");
            let budget = puppet.victim.connection(handle).expect(name).memory_budget();
            assert!(budget.held() <= budget.limit(), "{name}: {} of {} bytes", budget.held(), budget.limit());
        }
    }
}

/// Datagrams that look like stateless resets, with tokens that miss the right one by a bit: each costs a comparison and, when it names the
/// connection, an attempt to open it (RFC 9000 §10.3.1). None is held or believed.
#[test]
fn forged_resets_end_nothing_and_leave_nothing() {
    let token = [0x77; 16];
    let mut puppet =
        Puppet::server(&Profile::default(), |p, _| p.stateless_reset_token = Some(ResetToken(token))).connected();
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    let handle = puppet.handle.unwrap();
    let stats = |puppet: &Puppet| puppet.victim.connection(handle).unwrap().stats();
    let held = |puppet: &Puppet| puppet.victim.connection(handle).unwrap().memory_budget().held();
    let (before, held_before, resets_before) = (stats(&puppet), held(&puppet), puppet.victim.stats().resets);
    let forge = |number: u32, is_named: bool, id: &[u8]| {
        let mut datagram = vec![0x41];
        if is_named {
            datagram.extend_from_slice(id);
        }
        datagram.resize(9 + (number % 1_150) as usize, number as u8);
        let mut near = token;
        near[(number / 8 % 16) as usize] ^= 1 << (number % 8);
        datagram.extend(near);
        datagram
    };
    let (mut named, mut answers) = (0, 0);
    for number in 0..20_000 {
        let is_named = number % 2 == 0;
        let datagram = forge(number, is_named, puppet.dcid.as_slice());
        // What is shorter is no packet of this connection.
        named += u64::from(is_named && datagram.len() >= 1 + puppet.dcid.len() + 20);
        puppet.give(&datagram);
        let said = sent(&mut puppet.victim, puppet.now);
        // What names no connection may be answered by a reset of this end, shorter than it is.
        assert!(said.iter().all(|answer| !is_named && answer.payload.len() < datagram.len()), "datagram {number}");
        answers += said.len() as u64;
    }
    assert_eq!(answers, puppet.victim.stats().resets - resets_before);
    assert!(answers <= 200, "{answers} answers within a second");
    puppet.collect_quietly();
    let was_reset = puppet.events.iter().any(|event| matches!(event, Event::Closed(CloseReason::Reset)));
    assert!(!was_reset && !puppet.victim.connection(handle).unwrap().is_closed());
    let after = stats(&puppet);
    assert!(after.packets_undecryptable - before.packets_undecryptable >= named, "{named} were tried");
    assert_eq!(held(&puppet), held_before);
    // The right one is believed still.
    puppet.give(&[&[0x41; 24][..], &token].concat());
    puppet.collect_quietly();
    puppet.events.extend(support::direct::events(&mut puppet.victim).into_iter().map(|(_, event)| event));
    assert!(puppet.events.iter().any(|event| matches!(event, Event::Closed(CloseReason::Reset))));
}
