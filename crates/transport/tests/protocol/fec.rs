//! Forward error correction over simulated paths: what is recovered, what is not sent again, and what congestion control sees
//! all the same. And peers that abuse it.

use crate::support;

use std::collections::BTreeSet;

use bytes::Bytes;
use netem::{LinkConfig, Loss, Queue};
use sim::{client_address, point_to_point, server_address};
use support::{
    App, Host, client_config, client_endpoint,
    exchange::Exchange,
    puppet::{Puppet, bytes},
    server_config, server_endpoint,
};
use transport::{
    Code, Endpoint, Event, Handle, Profile, Stats,
    congestion::Algorithm,
    fec::{DatagramFlow, Protection},
    tls::Level,
};
use units::{Bitrate, Duration, Instant, Probability, Seed};
use wire::{Dir, Frame, Frames, RepairFrame, StreamFrame, StreamId, SymbolAck, Writer};

const MS: Duration = Duration::from_millis(1);

fn profile(fec: &str) -> Profile {
    let fec = fec.parse().unwrap();
    // One size of packets, which is above that of the handshake.
    Profile { fec, congestion: Algorithm::Bbr1, initial_mtu: 1400, max_mtu: 1400, ..Profile::default() }
}

fn link(loss: Loss) -> LinkConfig {
    let rate = Bitrate::from_mbps(20);
    let queue = Queue::DropTail { bytes: rate.in_time(200 * MS) };
    LinkConfig { rate: Some(rate), queue, delay: 25 * MS, loss, ..LinkConfig::default() }
}

fn iid(share: f64) -> Loss {
    Loss::Iid { p: Probability::new(share).unwrap() }
}

/// A client that sends numbered datagrams at a constant rate, and a server that notes which arrive.
struct Numbered {
    flow: DatagramFlow,
    client: Option<Handle>,
    peer: Option<Handle>,
    interval: Duration,
    count: u64,
    next: Option<Instant>,
    sent: u64,
    arrived: BTreeSet<u64>,
    twice: u64,
    done_at: Option<Instant>,
}

impl Numbered {
    fn new(client: Option<Handle>, count: u64, interval: Duration) -> Self {
        let (next, done_at) = (None, None);
        let flow = DatagramFlow::default();
        Self { flow, client, peer: client, interval, count, next, sent: 0, arrived: BTreeSet::new(), twice: 0, done_at }
    }
}

impl App for Numbered {
    fn act(&mut self, now: Instant, endpoint: &mut Endpoint, events: Vec<(Handle, Event)>) {
        while let Some(handle) = endpoint.poll_accept() {
            self.peer = Some(handle);
        }
        for (_, event) in events {
            match event {
                Event::Connected if self.client.is_some() => self.next = Some(now + 300 * MS),
                Event::Closed(reason) => panic!("{reason}"),
                _ => {}
            }
        }
        let Some(connection) = self.peer.and_then(|handle| endpoint.connection_mut(handle)) else { return };
        while let Some(data) = connection.recv_datagram() {
            let number = u64::from_be_bytes(data[..8].try_into().unwrap());
            assert!(data[8..].iter().all(|byte| *byte == number as u8), "a wrong byte in {number}");
            self.twice += u64::from(!self.arrived.insert(number));
        }
        while let Some(at) = self.next.filter(|at| *at <= now) {
            if self.sent < self.count {
                let mut data = self.sent.to_be_bytes().to_vec();
                data.resize(1300, self.sent as u8);
                connection.send_datagram_in(now, &self.flow, data.into()).unwrap();
                self.sent += 1;
                self.next = Some(at + self.interval);
            } else {
                self.next = None;
                self.done_at = Some(now + 2_000 * MS);
            }
        }
    }

    fn finished(&self) -> bool {
        false
    }
}

/// Wakes the application at its own times.
struct Clocked(Host<Numbered>);

impl sim::Node for Clocked {
    fn handle(&mut self, now: Instant, datagram: Option<sim::Datagram>, out: &mut sim::Outbox) {
        self.0.handle(now, datagram, out);
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let own = self.0.app.next.map(|at| (at, "the next datagram"));
        self.0.deadline().into_iter().chain(own).min_by_key(|(at, _)| *at)
    }
    fn finished(&self) -> bool {
        self.0.app.client.is_some() && self.0.app.next.is_none() && self.0.app.sent > 0 && self.0.deadline().is_none()
    }
}

/// Runs both ends until everything has arrived that will.
fn numbered(
    up: &LinkConfig,
    down: &LinkConfig,
    seed: u64,
    client: (Endpoint, Handle, u64),
    server: Endpoint,
) -> (Clocked, Clocked) {
    numbered_in(DatagramFlow::default(), up, down, seed, client, server)
}

fn numbered_in(
    flow: DatagramFlow,
    up: &LinkConfig,
    down: &LinkConfig,
    seed: u64,
    (client, handle, count): (Endpoint, Handle, u64),
    server: Endpoint,
) -> (Clocked, Clocked) {
    let sends = Numbered { flow, ..Numbered::new(Some(handle), count, 2 * MS) };
    let client = Clocked(Host::new(client_address(0), client, sends));
    let server = Clocked(Host::new(server_address(0), server, Numbered::new(None, 0, MS)));
    let mut simulation = point_to_point(Seed::from_number(seed), up, down, client, server).unwrap();
    let _ = simulation.run_until(Instant::from_millis(2 * count + 3_000)).unwrap();
    let mut nodes = simulation.into_nodes();
    (nodes.next().unwrap(), nodes.next().unwrap())
}

/// Sends `count` datagrams, 500 a second; the figures of both ends and what arrived.
fn datagrams(fec: (&str, &str), loss: Loss, count: u64, seed: u64) -> (Stats, Stats, BTreeSet<u64>) {
    flow_of(DatagramFlow::default(), fec, &link(loss), count, seed)
}

/// The same of one flow.
fn flow_of(
    flow: DatagramFlow,
    fec: (&str, &str),
    up: &LinkConfig,
    count: u64,
    seed: u64,
) -> (Stats, Stats, BTreeSet<u64>) {
    let mut client = client_endpoint(seed);
    let server = server_endpoint(seed, server_config(&profile(fec.1)));
    let handle =
        client.connect(Instant::ZERO, &client_config(&profile(fec.0)), server_address(0), "server.test").unwrap();
    let (client, server) = numbered_in(flow, up, &link(Loss::None), seed, (client, handle, count), server);
    let stats = |host: &Host<Numbered>| host.endpoint.connection(host.app.peer.unwrap()).unwrap().stats();
    assert_eq!(server.0.app.twice, 0, "a datagram was delivered twice");
    (stats(&client.0), stats(&server.0), server.0.app.arrived)
}

#[test]
fn without_it_the_wire_is_plain() {
    for (ours, theirs) in [("off", "rlc:1/5:40"), ("rlc:1/5:40", "off"), ("off", "receive")] {
        let (client, server, arrived) = datagrams((ours, theirs), iid(0.05), 500, 1);
        assert_eq!((client.fec_symbols_sent, client.fec_repairs_sent, server.fec_symbols_recovered), (0, 0, 0));
        assert!(arrived.len() < 490, "{}", arrived.len());
    }
}

#[test]
fn who_only_receives_protects_nothing_and_recovers() {
    let (client, server, arrived) = datagrams(("rlc:1/5:40", "receive"), iid(0.05), 1_000, 2);
    assert_eq!(server.fec_symbols_sent, 0);
    assert!(client.fec_symbols_sent >= 1_000 && server.fec_symbols_recovered > 20, "{server:?}");
    assert!(arrived.len() > 995, "{}", arrived.len());
}

/// Residual loss of each code at 5 %, within what theory says (see docs/fec.md) and 4,000 packets can show.
#[test]
fn codes_leave_what_theory_says() {
    for (code, low, high) in
        [("off", 0.04, 0.06), ("xor:10", 0.012, 0.03), ("rs:10+2", 0.0015, 0.01), ("rlc:1/5:40", 0.0, 0.0005)]
    {
        let (client, server, arrived) = datagrams((code, code), iid(0.05), 4_000, 3);
        let missing = 1.0 - arrived.len() as f64 / 4_000.0;
        assert!((low..=high).contains(&missing), "{code}: {missing}");
        if code == "off" {
            continue;
        }
        // Rate on the wire, and every recovery reported and none of it hidden from congestion control.
        let rate = client.fec_repairs_sent as f64 / client.fec_symbols_sent as f64;
        let expected = code.parse::<fec::Scheme>().unwrap().overhead();
        assert!((rate / expected - 1.0).abs() < 0.03, "{code}: {rate} instead of {expected}");
        let reported = client.fec_packets_recovered + client.fec_packets_recovered_late;
        assert!(reported * 100 >= server.fec_symbols_recovered * 95, "{code}: {reported} {server:?}");
        assert!(client.packets_lost as f64 > 0.04 * client.packets_sent as f64, "{code}: {client:?}");
    }
}

/// One packet of each block of ten and its repair is lost, never two: XOR repairs all.
#[test]
fn xor_repairs_one_loss_in_each_block() {
    // The handshake has ended by then: groups begin with the first block.
    let loss = Loss::Group { size: 11, drop: 1, min_bytes: 1_300, after: 300 * MS };
    let (client, server, arrived) = datagrams(("xor:10", "xor:10"), loss, 2_000, 4);
    assert!(server.fec_symbols_recovered > 150, "{server:?} {client:?}");
    assert!(arrived.len() >= 1_990, "{} of 2000 arrived", arrived.len());
}

/// The client loads `answer` bytes; figures of client and server.
fn transfer(fec: &str, loss: Loss, answer: usize, seed: u64) -> (Stats, Stats, Duration) {
    let mut client = client_endpoint(seed);
    let server = server_endpoint(seed, server_config(&profile(fec)));
    let handle =
        client.connect(Instant::ZERO, &client_config(&profile(fec)), server_address(0), "server.test").unwrap();
    let client = Host::new(client_address(0), client, Exchange::client(handle, 10, answer));
    let server = Host::new(server_address(0), server, Exchange::server(answer));
    let mut simulation =
        point_to_point(Seed::from_number(seed), &link(Loss::None), &link(loss), client, server).unwrap();
    let outcome = simulation.run_until(Instant::from_millis(120_000)).unwrap();
    assert!(outcome.is_finished(), "{outcome}");
    let mut nodes = simulation.into_nodes();
    let (client, server) = (nodes.next().unwrap(), nodes.next().unwrap());
    let answered = client.app.answered.expect("the answer is complete") - client.app.connected.unwrap();
    let stats = |host: &Host<Exchange>, handle| host.endpoint.connection(handle).unwrap().stats();
    (stats(&client, handle), stats(&server, server.app.accepted[0]), answered)
}

#[test]
fn streams_arrive_whole_and_little_is_sent_twice() {
    let (_, plain, _) = transfer("off", iid(0.03), 3_000_000, 5);
    for code in ["xor:10", "rs:10+2", "rlc:1/5:40", "rs:20+4/6"] {
        let (client, server, _) = transfer(code, iid(0.03), 3_000_000, 5);
        assert!(client.fec_symbols_recovered > 20, "{code}: {client:?}");
        assert!(
            server.stream_bytes_retransmitted * 2 < plain.stream_bytes_retransmitted,
            "{code}: {} again, {} without repair: {server:?} {client:?}",
            server.stream_bytes_retransmitted,
            plain.stream_bytes_retransmitted
        );
        assert!(server.packets_lost as f64 > 0.02 * server.packets_sent as f64, "{code}: losses are hidden");
    }
}

#[test]
fn reordering_delivers_nothing_twice() {
    for seed in 0..5 {
        let mut shuffled = link(iid(0.03));
        (shuffled.jitter, shuffled.jitter_reorders) = (8 * MS, true);
        let mut client = client_endpoint(seed);
        let profile = profile("rlc:1/5:40");
        let server = server_endpoint(seed, server_config(&profile));
        let handle = client.connect(Instant::ZERO, &client_config(&profile), server_address(0), "server.test").unwrap();
        let (_, server) = numbered(&shuffled, &shuffled, seed, (client, handle, 1_000), server);
        assert_eq!(server.0.app.twice, 0);
        assert!(server.0.app.arrived.len() > 990, "{}", server.0.app.arrived.len());
    }
}

fn tolerating(share: f64) -> DatagramFlow {
    DatagramFlow { tolerated_loss: Probability::new(share).unwrap(), ..DatagramFlow::default() }
}

/// A flow that is content with what the path loses is left alone; one that is not gets what it asks for, and no more than that.
#[test]
fn a_flow_gets_the_protection_that_it_asks_for() {
    let run = |flow, code, loss| flow_of(flow, (code, code), &link(iid(loss)), 4_000, 7);
    for code in ["rlc:1/5:40", "auto"] {
        let (client, _, arrived) = run(tolerating(0.2), code, 0.05);
        // Until the share that is lost is known, a fixed code protects.
        assert!(client.fec_symbols_sent < 400, "{code}: {} symbols", client.fec_symbols_sent);
        assert!(arrived.len() < 3_900, "{code}: {} arrived", arrived.len());
    }
    let never = DatagramFlow { protection: Protection::Never, ..DatagramFlow::default() };
    let (client, _, arrived) = run(never, "rlc:1/5:40", 0.05);
    assert_eq!((client.fec_symbols_sent, client.fec_repairs_sent), (0, 0));
    assert!(arrived.len() < 3_900);
    let share = |flow| {
        let (client, server, arrived) = run(flow, "auto", 0.05);
        assert!(server.fec_symbols_recovered > 50, "{server:?}");
        (client.fec_repairs_sent as f64 / client.fec_symbols_sent as f64, 1.0 - arrived.len() as f64 / 4_000.0)
    };
    let (strict, tolerant) = (share(tolerating(0.0)), share(tolerating(0.03)));
    assert!(tolerant.0 < 0.7 * strict.0, "{tolerant:?} {strict:?}");
    assert!(strict.1 < 0.012 && tolerant.1 < 0.03, "{tolerant:?} {strict:?}");
}

/// A path that carries less than the flow, beside the same flow without an expiry: what waited too long is not sent, and what it
/// would have repaired is not repaired.
#[test]
fn what_is_worthless_is_neither_sent_nor_repaired() {
    let flow = DatagramFlow { expiry: Some(60 * MS), ..DatagramFlow::default() };
    let narrow = LinkConfig { rate: Some(Bitrate::from_mbps(2)), ..link(iid(0.02)) };
    let (kept, _, _) = flow_of(DatagramFlow::default(), ("rlc:1/5:40", "receive"), &narrow, 1_500, 9);
    let (client, _, arrived) = flow_of(flow, ("rlc:1/5:40", "receive"), &narrow, 1_500, 9);
    assert!(client.datagram_frames_expired > 300, "{client:?}");
    assert_eq!(client.datagram_frames_sent + client.datagram_frames_expired, 1_500);
    assert!(client.fec_symbols_sent <= client.datagram_frames_sent + 20 && arrived.len() < 1_200);
    // Repair of what nobody wants is dropped: less of it leaves than the code would make.
    let share = |stats: &Stats| stats.fec_repairs_sent as f64 / stats.fec_symbols_sent as f64;
    assert!(client.fec_repairs_sent < kept.fec_repairs_sent && share(&client) <= share(&kept) + 0.01, "{client:?}");
}

/// Streams in one connection, one protected, one not: the symbols hold the first alone.
#[test]
fn protection_is_chosen_by_stream() {
    let mut puppet = fec_peer();
    let handle = puppet.handle.unwrap();
    for (protection, protected) in [(Protection::Never, false), (Protection::Policy, true)] {
        puppet.received.clear();
        let connection = puppet.victim.connection_mut(handle).unwrap();
        let stream = connection.open(Dir::Uni).unwrap();
        connection.set_protection(stream, protection).unwrap();
        connection.write(stream, &mut Bytes::from(vec![7; 3_000])).unwrap();
        puppet.collect();
        puppet.wait(100 * MS);
        let data = puppet.frames().filter(|(_, frame)| matches!(frame, Frame::Stream(_))).count();
        let symbols = puppet.frames().filter(|(_, frame)| matches!(frame, Frame::SourceSymbol { .. })).count();
        assert!(data >= 2 && (symbols > 0) == protected, "{data} {symbols}");
    }
    // Both wait: the one that is not to be protected is in packets without a symbol, and alone there.
    puppet.received.clear();
    let connection = puppet.victim.connection_mut(handle).unwrap();
    let (plain, safe) = (connection.open(Dir::Uni).unwrap(), connection.open(Dir::Uni).unwrap());
    connection.set_protection(plain, Protection::Never).unwrap();
    connection.write(plain, &mut Bytes::from(vec![1; 500])).unwrap();
    connection.write(safe, &mut Bytes::from(vec![2; 500])).unwrap();
    puppet.collect();
    puppet.wait(100 * MS);
    let mut seen = BTreeSet::new();
    for (_, payload) in &puppet.received {
        let frames: Vec<_> = Frames::new(payload).map(Result::unwrap).collect();
        let symbol = frames.iter().any(|frame| matches!(frame, Frame::SourceSymbol { .. }));
        for frame in frames {
            if let Frame::Stream(StreamFrame { id, .. }) = frame {
                seen.insert((id, symbol));
            }
        }
    }
    assert_eq!(seen, BTreeSet::from([(plain, false), (safe, true)]));
}

// Peers that abuse it.

const ID: StreamId = StreamId(0);

fn fec_peer() -> Puppet {
    let mut puppet =
        Puppet::client(&profile("rlc:1/5:40"), |parameters, _| parameters.fec_window = Some(256)).connected();
    puppet.send(Level::OneRtt, &bytes(&[Frame::Ping]));
    puppet.collect();
    puppet
}

fn stream_bytes(offset: u64, data: &[u8]) -> Vec<u8> {
    bytes(&[Frame::Stream(StreamFrame { id: ID, offset, fin: false, data })])
}

fn symbol(id: u64, content: &[u8]) -> Vec<u8> {
    let mut payload = bytes(&[Frame::SourceSymbol { id }]);
    payload.extend_from_slice(content);
    payload
}

fn repair(first: u64, count: u8, stride: u8, row: u8, data: &[u8]) -> Vec<u8> {
    bytes(&[Frame::Repair(RepairFrame { first, count, stride, row, data })])
}

fn symbol_ack(ranges: &[std::ops::RangeInclusive<u64>]) -> Vec<u8> {
    let mut buffer = [0; 200];
    let mut w = Writer::new(&mut buffer);
    assert!(SymbolAck::encode(&mut w, ranges.iter().cloned(), ranges.len()));
    w.written().to_vec()
}

/// A repair symbol of these contents, as a conforming sender makes it.
fn conforming(contents: &[&[u8]], row: u8) -> Vec<u8> {
    let mut encoder = fec::Encoder::new(fec::Kernel::Table, 192);
    contents.iter().for_each(|content| {
        encoder.push(content);
    });
    let made = fec::Repair { first: 0, count: contents.len() as u8, stride: 1, row };
    repair(0, made.count, 1, row, encoder.repair(&made, None).unwrap())
}

fn expect(mut puppet: Puppet, payloads: &[Vec<u8>], expected: Option<Code>, what: &str) {
    for payload in payloads {
        puppet.send(Level::OneRtt, payload);
        puppet.collect();
    }
    assert_eq!(puppet.close_code(), expected, "{what}: {:?}", puppet.events.last());
}

#[test]
fn who_has_not_agreed_does_not_know_the_frames() {
    for payload in [symbol(0, &bytes(&[Frame::Ping])), repair(0, 1, 1, 0, &[0; 8]), symbol_ack(&[0..=0])] {
        let puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
        expect(puppet, &[payload], Some(Code::FRAME_ENCODING_ERROR), "not agreed");
    }
}

#[test]
fn a_conforming_peer_is_served() {
    let mut puppet = fec_peer();
    let contents = [stream_bytes(0, b"abc"), stream_bytes(3, b"def"), stream_bytes(6, b"ghi")];
    puppet.send(Level::OneRtt, &symbol(0, &contents[0]));
    puppet.next_pn[2] += 1;
    puppet.send(Level::OneRtt, &symbol(2, &contents[2]));
    let all: Vec<&[u8]> = contents.iter().map(|c| &c[..]).collect();
    puppet.send(Level::OneRtt, &conforming(&all, 0));
    puppet.collect();
    let told = puppet.frames().any(|(_, frame)| matches!(frame, Frame::SymbolAck(ack) if ack.ranges().eq([1..=1])));
    assert!(told, "the sender hears of it");
    let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
    let mut read = Vec::new();
    while let Ok(Some(chunk)) = connection.read(ID, 100, transport::streams::Order::Ordered) {
        read.extend_from_slice(&chunk.data);
    }
    assert_eq!(read, b"abcdefghi");
    let stats = connection.stats();
    assert_eq!((stats.fec_symbols_recovered, stats.fec_symbols_received), (1, 2));
    // The packet arrives after all, once.
    puppet.send(Level::OneRtt, &symbol(1, &contents[1]));
    assert_eq!(puppet.close_code(), None);
    let stats = puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats();
    assert_eq!(stats.fec_symbols_recovered_needlessly, 1);
}

#[test]
fn impossible_symbols_close_the_connection() {
    let ping = bytes(&[Frame::Ping]);
    let violation = Some(Code::PROTOCOL_VIOLATION);
    let malformed = Some(Code::FRAME_ENCODING_ERROR);
    type Case = (&'static str, Vec<Vec<u8>>, Option<Code>);
    let cases: Vec<Case> = vec![
        ("more symbols than packets", vec![symbol(1 << 40, &ping)], violation),
        ("a symbol without frames", vec![symbol(0, &[])], violation),
        ("a symbol in a symbol", vec![symbol(0, &symbol(1, &ping))], violation),
        ("a repair symbol in a symbol", vec![symbol(0, &repair(0, 1, 1, 0, &[0; 8]))], violation),
        ("an acknowledgement in a symbol", vec![symbol(0, &support::puppet::ack(&BTreeSet::from([0])))], violation),
        ("a handshake in a symbol", vec![symbol(0, &bytes(&[Frame::Crypto { offset: 0, data: b"x" }]))], violation),
        ("an ID twice", vec![symbol(0, &ping), symbol(0, &ping)], violation),
        ("a repair of nothing", vec![repair(0, 0, 1, 0, &[0; 8])], malformed),
        ("a repair without a stride", vec![repair(0, 2, 0, 0, &[0; 8])], malformed),
        ("too wide a window", vec![repair(0, 255, 1, 0, &[0; 8])], malformed),
        ("too wide a stride", vec![repair(0, 20, 20, 0, &[0; 8])], malformed),
        ("no such row", vec![repair(0, 1, 1, 64, &[0; 8])], malformed),
        ("no bytes", vec![repair(0, 1, 1, 0, &[])], malformed),
        ("a repair of the future", vec![repair(1 << 30, 2, 1, 0, &[0; 8])], violation),
        ("what is no symbol", vec![repair(0, 1, 1, 0, &[0xff; 40])], violation),
        ("more than was sent", vec![symbol_ack(&[0..=1 << 20])], violation),
        ("two reports", vec![[symbol_ack(&[0..=0]), symbol_ack(&[0..=0])].concat()], violation),
    ];
    for (what, payloads, expected) in cases {
        expect(fec_peer(), &payloads, expected, what);
    }
}

#[test]
fn contradictions_close_the_connection() {
    let violation = Some(Code::PROTOCOL_VIOLATION);
    let (a, b) = (stream_bytes(0, b"aaaa"), stream_bytes(4, b"bbbb"));
    let rebuilt = conforming(&[&a, &b], 0);
    // What arrives is not what was rebuilt.
    let other = stream_bytes(4, b"cccc");
    expect(fec_peer(), &[symbol(0, &a), rebuilt.clone(), symbol(1, &other)], violation, "another content");
    expect(fec_peer(), &[symbol(0, &a), rebuilt, symbol(1, &b)], None, "the same content");
    // Two repairs over two unknowns and a third that does not follow.
    let pad = vec![Vec::from(*b"\x01"); 6];
    let mut payloads: Vec<Vec<u8>> = pad.clone();
    payloads.extend([1, 2, 3].map(|row| repair(0, 2, 1, row, &[row; 64])));
    expect(fec_peer(), &payloads, violation, "equations without a solution");
    // A frame that a symbol may not have, in a symbol that never arrived.
    let done = bytes(&[Frame::NewToken { token: b"t" }]);
    expect(fec_peer(), &[pad[0].clone(), conforming(&[&done], 0)], violation, "a forbidden frame");
    let broken = [0x08];
    expect(
        fec_peer(),
        &[pad[0].clone(), conforming(&[&broken], 0)],
        Some(Code::FRAME_ENCODING_ERROR),
        "a broken frame",
    );
}

/// A bit of a repair symbol that flips on the way: the packet is not authentic, and nothing comes of it.
#[test]
fn a_flipped_bit_in_repair_is_a_lost_packet() {
    let (a, b) = (stream_bytes(0, b"aaaa"), stream_bytes(4, b"bbbb"));
    for bit in (0..64).map(|bit| bit * 7) {
        let mut puppet = fec_peer();
        puppet.send(Level::OneRtt, &symbol(0, &a));
        let mut packet = puppet.packet(Level::OneRtt, &conforming(&[&a, &b], 0));
        let place = packet.len() - 1 - (bit / 8) % (packet.len() - 14);
        packet[place] ^= 1 << (bit % 8);
        puppet.give(&packet);
        let stats = puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats();
        assert_eq!((stats.fec_repairs_received, stats.fec_symbols_recovered), (0, 0), "bit {bit}");
        assert_eq!(puppet.close_code(), None);
        puppet.send(Level::OneRtt, &conforming(&[&a, &b], 0));
        let stats = puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats();
        assert_eq!((stats.fec_repairs_received, stats.fec_symbols_recovered), (1, 1));
    }
}

/// Repair without end, over symbols that never come: memory stays where it is.
#[test]
fn repair_without_end_keeps_memory_bounded() {
    let mut puppet = fec_peer();
    let handle = puppet.handle.unwrap();
    let mut encoder = fec::Encoder::new(fec::Kernel::best(), 192);
    let mut most = 0;
    for step in 0..3_000u64 {
        encoder.push(&stream_bytes(0, &[7; 1000]));
        puppet.next_pn[2] += 1;
        if step >= 192 {
            let made = fec::Repair { first: step - 191, count: 192, stride: 1, row: (step % 64) as u8 };
            let data = encoder.repair(&made, None).unwrap().to_vec();
            puppet.send(Level::OneRtt, &repair(made.first, made.count, 1, made.row, &data));
        }
        most = most.max(puppet.victim.connection(handle).unwrap().records_memory());
        puppet.received.clear();
    }
    assert_eq!(puppet.close_code(), None);
    assert!(most < 2 << 20, "{most} bytes");
}

/// Operations of decoding for each byte received, in hundredths.
fn work_per_byte(stats: &Stats) -> u64 {
    assert!(stats.fec_repairs_received > 0);
    stats.fec_work * 100 / stats.bytes_received
}

/// Repair symbols of one zero over windows of 192 symbols that never came: without a limit each byte received costs 16,700 operations.
#[test]
fn the_work_of_decoding_follows_what_arrives() {
    let mut conforming = 0;
    for (code, loss) in [("rlc:1/5:40", 0.1), ("rlc:1/5:192", 0.1), ("rs:20+4", 0.1), ("rlc:1/3:128", 0.2)] {
        let (client, server, _) = transfer(code, iid(loss), 1_000_000, 1);
        let receiver = if client.fec_repairs_received > 0 { client } else { server };
        println!(
            "conforming: {code} at {loss} | work per byte {} | rebuilt {} | refused {}",
            work_per_byte(&receiver) as f64 / 100.0,
            receiver.fec_symbols_recovered,
            receiver.fec_repairs_refused
        );
        assert_eq!(receiver.fec_repairs_refused, 0, "{code}: a conforming sender earns what it costs");
        conforming = conforming.max(work_per_byte(&receiver));
    }
    let mut puppet = fec_peer();
    let handle = puppet.handle.unwrap();
    puppet.next_pn[2] += 1_000;
    for step in 0..10_000_u64 {
        puppet.send(Level::OneRtt, &repair(step / 64, 192, 1, (step % 64) as u8, &[0]));
        puppet.received.clear();
    }
    assert_eq!(puppet.close_code(), None);
    let stats = puppet.victim.connection(handle).unwrap().stats();
    let attack = work_per_byte(&stats);
    println!(
        "attack: fec-zeroed-repair | work per byte {} | conforming {} | refused {} of {}",
        attack as f64 / 100.0,
        conforming as f64 / 100.0,
        stats.fec_repairs_refused,
        stats.fec_repairs_received
    );
    assert!(attack <= 4 * conforming, "{attack} hundredths for a byte, {conforming} of a conforming peer");
    assert!(stats.fec_repairs_refused > 9_000, "{}", stats.fec_repairs_refused);
}

#[test]
fn what_is_small_is_refused_in_the_parameters() {
    let mut puppet = Puppet::client(&profile("auto"), |parameters, _| parameters.fec_window = Some(15));
    puppet.flush(&support::puppet::LEVELS);
    puppet.collect_quietly();
    assert_eq!(puppet.close_code(), Some(Code::TRANSPORT_PARAMETER_ERROR));
}
