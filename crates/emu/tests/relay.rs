//! A relay on loopback: does what passes through it look like what was configured?

#![cfg(target_os = "linux")]
#![expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use emu::{Relay, RelayConfig, RelayError, Statistics};
use netem::{DropReason, Fate, Loss, NatConfig, Outage, Queue, Rebinding};
use tiderace_emu as emu;
use units::{Bitrate, DataSize, Probability};

const PATIENCE: Duration = Duration::from_secs(120);

/// Does what a signal interrupted again: a process that is stopped and continues has its waits end.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return ended,
        }
    }
}

fn loopback() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A client connected to a relay, and the server behind it.
fn path(change: impl FnOnce(&mut RelayConfig)) -> (Relay, UdpSocket, UdpSocket) {
    let (client, server) = (loopback(), loopback());
    let mut config = RelayConfig::new("127.0.0.1:0".parse().unwrap(), server.local_addr().unwrap());
    change(&mut config);
    let relay = Relay::start(&config).unwrap();
    client.connect(relay.address()).unwrap();
    (relay, client, server)
}

/// Waits until the figures satisfy a condition.
fn wait(relay: &Relay, what: &str, condition: impl Fn(&Statistics) -> bool) -> Statistics {
    let started = Instant::now();
    loop {
        let statistics = relay.statistics().unwrap();
        if condition(&statistics) {
            return statistics;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: {statistics:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn probability(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

#[test]
fn datagrams_pass_both_ways_unchanged_and_apart() {
    let (relay, one, server) = path(|_| {});
    let other = loopback();
    other.connect(relay.address()).unwrap();
    let mut buffer = [0; 65_536];
    let sizes = [0, 1, 1200, 1472, 9000, 65_507];
    for (client, mark) in [(&one, 1u8), (&other, 2)] {
        for size in sizes {
            client.send(&vec![mark; size]).unwrap();
            let (len, from) = again(|| server.recv_from(&mut buffer)).unwrap();
            assert_eq!(buffer[..len], vec![mark; size]);
            server.send_to(&buffer[..len], from).unwrap();
            let len = again(|| client.recv(&mut buffer)).unwrap();
            assert_eq!(buffer[..len], vec![mark; size]);
        }
    }
    let statistics = relay.stop().unwrap();
    assert_eq!(statistics.clients, 2);
    assert_eq!(statistics.sent, 4 * sizes.len() as u64);
    assert_eq!(statistics.up, statistics.down);
    assert_eq!(statistics.lateness.count(), statistics.sent);
}

/// The loss through real sockets lies within the 99 % interval of what was asked for, and the relay's own count is what
/// the receiver misses, packet for packet.
#[test]
fn loss_is_as_configured() {
    const PACKETS: u32 = 30_000;
    const LOSS: f64 = 0.05;
    let (relay, client, server) = path(|config| config.up.loss = Loss::Iid { p: probability(LOSS) });
    server.set_nonblocking(true).unwrap();
    let mut seen = vec![false; PACKETS as usize];
    let mut payload = [0; 200];
    // In steps small enough for any socket buffer: a packet lost there would not be the link's.
    for step in 0..PACKETS / 100 {
        for number in step * 100..(step + 1) * 100 {
            payload[..4].copy_from_slice(&number.to_be_bytes());
            client.send(&payload).unwrap();
        }
        let sent = u64::from(step + 1) * 100;
        let statistics = wait(&relay, "all packets pass", |now| now.up.offered.packets == sent && now.held == 0);
        let delivered = statistics.up.delivered.packets;
        let started = Instant::now();
        while (seen.iter().filter(|seen| **seen).count() as u64) < delivered {
            assert!(started.elapsed() < PATIENCE, "packets are missing that the relay has sent");
            while let Ok(len) = again(|| server.recv(&mut payload)) {
                assert_eq!(len, 200);
                let number = u32::from_be_bytes(*payload.first_chunk().unwrap()) as usize;
                assert!(!std::mem::replace(&mut seen[number], true), "twice");
            }
        }
    }
    let statistics = relay.stop().unwrap();
    assert_eq!(statistics.kernel_dropped, 0);
    let lost = seen.iter().filter(|seen| !**seen).count();
    assert_eq!(lost as u64, statistics.up.dropped(DropReason::Loss).packets);
    // 2.576 standard deviations of a binomial distribution.
    let expected = f64::from(PACKETS) * LOSS;
    let interval = 2.576 * (expected * (1.0 - LOSS)).sqrt();
    assert!((lost as f64 - expected).abs() <= interval, "{lost} lost; expected {expected} ± {interval}");
}

/// The time of a round trip.
fn round_trip(client: &UdpSocket, server: &UdpSocket) -> Duration {
    let mut buffer = [0; 100];
    let started = Instant::now();
    client.send(&[7; 100]).unwrap();
    let (len, from) = again(|| server.recv_from(&mut buffer)).unwrap();
    server.send_to(&buffer[..len], from).unwrap();
    again(|| client.recv(&mut buffer)).unwrap();
    started.elapsed()
}

/// No round trip is shorter than the configured delay. And at least one is longer by no more than half a millisecond, a round trip
/// through a relay that adds nothing, and what a thread that only sleeps comes late by at the same time: the machine can hold every
/// packet up, but then it does that to others as well.
#[test]
fn delay_is_as_configured() {
    let there = Duration::from_millis(20);
    let back = there / 2;
    let (_bare_relay, bare_client, bare_server) = path(|_| {});
    let (relay, client, server) = path(|config| {
        config.up.delay = there;
        config.down.delay = back;
    });
    let begun = Instant::now();
    loop {
        let bare = round_trip(&bare_client, &bare_server);
        let (sleeper, took) = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let started = Instant::now();
                std::thread::sleep(there);
                std::thread::sleep(back);
                started.elapsed()
            });
            let took = round_trip(&client, &server);
            (sleeper.join().unwrap(), took)
        });
        assert!(took >= there + back, "{took:?}");
        if took <= sleeper + bare + Duration::from_micros(500) {
            break;
        }
        let statistics = relay.statistics().unwrap();
        assert!(begun.elapsed() < PATIENCE, "{took:?}, and {sleeper:?} for who only sleeps; {statistics}");
    }
}

/// At 80 kbit/s a packet takes 123 ms: the first one is being sent while the queue fills and the rest is dropped.
#[test]
fn the_queue_holds_its_bytes() {
    let (relay, client, _server) = path(|config| {
        config.up.rate = Some(Bitrate::from_bps(80_000));
        config.up.queue = Queue::DropTail { bytes: DataSize::from_bytes(100 * 1228) };
    });
    let begun = Instant::now();
    for _ in 0..150 {
        client.send(&[0; 1200]).unwrap();
    }
    let statistics = wait(&relay, "all packets arrive", |now| now.up.offered.packets == 150);
    let dropped = statistics.up.dropped(DropReason::Queue).packets;
    // Of a sender that is interrupted, the queue takes a packet more for each that has left by then.
    let left = (begun.elapsed().as_secs_f64() / (1228.0 * 8.0 / 80_000.0)) as u64;
    assert!((49_u64.saturating_sub(left)..=49).contains(&dropped), "{statistics}");
    assert_eq!(statistics.up.queue_peak_bytes, 100 * 1228);
}

/// The rate is that of the packets' bits whatever the thread's lateness: 80 packets of 1228 bytes at 1 Mbit/s take 786 ms, and
/// never less. So many fit into the buffers of sockets, whichever end is late. A receiver may be late at either end, but not each time; a drift of the relay would be many times the tolerance.
#[test]
fn the_rate_is_exact() {
    let exact = 80.0 * 1228.0 * 8.0 / 1e6;
    let begun = Instant::now();
    loop {
        let (relay, client, server) = path(|config| {
            config.up.rate = Some(Bitrate::from_mbps(1));
            config.up.queue = Queue::DropTail { bytes: DataSize::from_bytes(1_000_000) };
        });
        let started = Instant::now();
        for _ in 0..80 {
            client.send(&[0; 1200]).unwrap();
        }
        let mut buffer = [0; 2000];
        for _ in 0..80 {
            again(|| server.recv(&mut buffer)).unwrap();
        }
        let took = started.elapsed().as_secs_f64();
        assert!(took >= exact, "took {took} s instead of {exact} s");
        if took < exact + 0.05 {
            return;
        }
        let statistics = relay.stop().unwrap();
        assert!(begun.elapsed() < PATIENCE, "took {took} s instead of {exact} s; {statistics}");
    }
}

#[test]
fn ecn_marks_pass_both_ways() {
    let (_relay, client, server) = path(|_| {});
    ecn_exchange(&client, &server);
}

/// The same over IPv6, where the bits travel in another way.
#[test]
fn ipv6_passes_with_its_marks() {
    let Ok(server) = UdpSocket::bind("[::1]:0") else {
        eprintln!("no IPv6 on this machine: nothing tested");
        return;
    };
    let client = UdpSocket::bind("[::1]:0").unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut config = RelayConfig::new("[::1]:0".parse().unwrap(), server.local_addr().unwrap());
    config.up.mtu = Some(1300);
    let relay = Relay::start(&config).unwrap();
    client.connect(relay.address()).unwrap();
    // 40 + 8 bytes of headers: 1252 bytes just fit, 1253 do not.
    client.send(&[0; 1253]).unwrap();
    client.send(&[0; 1252]).unwrap();
    let mut buffer = [0; 2000];
    assert_eq!(again(|| server.recv(&mut buffer)).unwrap(), 1252);
    ecn_exchange(&client, &server);
    assert_eq!(relay.stop().unwrap().up.dropped(DropReason::Mtu).packets, 1);
}

fn ecn_exchange(client: &UdpSocket, server: &UdpSocket) {
    for (there, back) in [(1, 2), (2, 3), (3, 1), (0, 0)] {
        marks::set(client, there);
        // Asking for the marks of later packets comes before they are sent.
        marks::ask(server);
        marks::ask(client);
        client.send(&[0; 10]).unwrap();
        let (found, from) = marks::receive(server);
        assert_eq!(found, there);
        marks::set(server, back);
        server.send_to(&[0; 10], from).unwrap();
        assert_eq!(marks::receive(client).0, back);
    }
}

/// Setting and reading ECN bits with what socket2 offers.
mod marks {
    use std::{
        mem::MaybeUninit,
        net::{SocketAddr, UdpSocket},
    };

    use socket2::{MaybeUninitSlice, MsgHdrMut, SockAddr, SockRef};

    pub(super) fn set(socket: &UdpSocket, bits: u32) {
        let ipv6 = socket.local_addr().unwrap().is_ipv6();
        let socket = SockRef::from(socket);
        if ipv6 { socket.set_tclass_v6(bits).unwrap() } else { socket.set_tos_v4(bits).unwrap() }
    }

    pub(super) fn ask(socket: &UdpSocket) {
        let ipv6 = socket.local_addr().unwrap().is_ipv6();
        let socket = SockRef::from(socket);
        if ipv6 { socket.set_recv_tclass_v6(true).unwrap() } else { socket.set_recv_tos_v4(true).unwrap() }
    }

    /// The bits of the next packet and its sender.
    #[expect(unsafe_code, reason = "socket2 hands out control bytes as possibly uninitialised")]
    pub(super) fn receive(socket: &UdpSocket) -> (u32, SocketAddr) {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 100];
        let mut control = [MaybeUninit::<u8>::uninit(); 64];
        let mut parts = [MaybeUninitSlice::new(&mut buffer)];
        let mut from = SockAddr::from(socket.local_addr().unwrap());
        let mut message = MsgHdrMut::new().with_addr(&mut from).with_buffers(&mut parts).with_control(&mut control);
        SockRef::from(socket).recvmsg(&mut message, 0).unwrap();
        let length = message.control_len();
        assert!(length >= 17, "a control message");
        // The header is 16 bytes (length, level, type), then comes the traffic class, its lowest byte first.
        // SAFETY: the call has just said that it wrote at least 17 bytes.
        let class = unsafe { control[16].assume_init() };
        (u32::from(class) & 3, from.as_socket().unwrap())
    }
}

#[test]
fn a_port_in_use_is_one_clear_message() {
    let taken = loopback();
    let address = taken.local_addr().unwrap();
    let error = Relay::start(&RelayConfig::new(address, "127.0.0.1:9".parse().unwrap())).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {address}: Address already in use (os error 98)"));
    assert!(error.hint().unwrap().contains("another program has this port"));
}

#[test]
fn other_mistakes_are_told_apart() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let error = Relay::start(&RelayConfig::new("192.0.2.1:1".parse().unwrap(), listen)).unwrap_err();
    assert!(matches!(error, RelayError::Target { .. }), "{error}");
    assert!(error.hint().is_some());
    let to = "127.0.0.1:9".parse().unwrap();
    let error = Relay::start(&RelayConfig::new("192.0.2.1:1".parse().unwrap(), to)).unwrap_err();
    assert!(matches!(error, RelayError::Listen { .. }) && error.hint().is_some(), "{error}");
    let mut config = RelayConfig::new(listen, to);
    config.down.rate = Some(Bitrate::from_mbps(1));
    let error = Relay::start(&config).unwrap_err();
    assert!(error.to_string().starts_with("down: a link with a rate needs a queue"), "{error}");
}

#[test]
fn clients_and_memory_are_bounded_and_a_dead_server_is_no_end() {
    let (relay, client, server) = path(|config| {
        config.max_clients = 1;
        // Long enough that nothing leaves while the packets come.
        config.up.delay = Duration::from_secs(4);
        config.max_held = DataSize::from_bytes(5000);
    });
    for _ in 0..10 {
        client.send(&[0; 1000]).unwrap();
    }
    let stranger = loopback();
    stranger.connect(relay.address()).unwrap();
    stranger.send(&[0; 100]).unwrap();
    let statistics = wait(&relay, "all arrive", |now| now.up.offered.packets == 10 && now.refused == 1);
    assert_eq!((statistics.overflowed, statistics.held), (5, 5));
    assert!(statistics.doubt().unwrap().contains("held too many bytes"));
    drop(server);
    wait(&relay, "all leave", |now| now.held == 0);
    // Nobody listens any more; the news comes back and the relay continues.
    client.send(&[0; 1000]).unwrap();
    let statistics = wait(&relay, "the last one leaves", |now| now.up.offered.packets == 11 && now.held == 0);
    assert!(statistics.unreachable > 0, "{statistics:?}");
    drop(relay);
}

/// An outage written at the beginning of a path's time meets the first packets, whatever the machine's clock shows and
/// however long the relay has waited for them.
#[test]
fn time_begins_with_the_first_packet() {
    let (relay, client, server) = path(|config| {
        let lasts = units::Duration::from_millis(2_000);
        config.up.outages = vec![Outage { at: units::Duration::ZERO, lasts, every: None, packets: Fate::default() }];
    });
    std::thread::sleep(Duration::from_millis(2_500));
    client.send(b"into the outage").unwrap();
    let statistics = wait(&relay, "the first packet is judged", |now| now.up.offered.packets == 1);
    assert_eq!(statistics.up.dropped(DropReason::Outage).packets, 1);
    std::thread::sleep(Duration::from_millis(2_500));
    client.send(b"behind it").unwrap();
    let mut buffer = [0; 100];
    let len = again(|| server.recv(&mut buffer)).unwrap();
    assert_eq!(&buffer[..len], b"behind it");
}

fn rebinding(millis: u64, address: bool) -> Rebinding {
    Rebinding { at: units::Duration::from_millis(millis), address }
}

/// The server's view of a client behind a NAT, packet by packet; answers to a mapping that is gone go nowhere.
#[test]
fn a_nat_changes_the_mapping_when_it_is_told() {
    let (relay, client, server) = path(|config| {
        config.nat =
            Some(NatConfig { rebind: vec![rebinding(500, false), rebinding(1_000, true)], ..NatConfig::default() });
    });
    let mut buffer = [0; 100];
    let mut seen: Vec<SocketAddr> = Vec::new();
    let begun = Instant::now();
    // A client that is held up for half a second meets both changes at once.
    while seen.last().is_none_or(|last| last.ip() == seen[0].ip()) {
        client.send(b"?").unwrap();
        let (_, from) = again(|| server.recv_from(&mut buffer)).unwrap();
        if seen.last() != Some(&from) {
            assert!(!seen.contains(&from), "an old mapping has come back: {from} of {seen:?}");
            seen.push(from);
        }
        assert!(begun.elapsed() < PATIENCE, "{seen:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (last, changes) = (seen[seen.len() - 1], seen.len() as u64 - 1);
    // To the mappings of before, and then to the one there is.
    for to in &seen {
        server.send_to(to.to_string().as_bytes(), to).unwrap();
    }
    let len = again(|| client.recv(&mut buffer)).unwrap();
    assert_eq!(&buffer[..len], last.to_string().as_bytes());
    let statistics = wait(&relay, "all are judged", |now| now.unmapped == changes && now.held == 0);
    assert_eq!((statistics.rebindings, statistics.clients, statistics.unreachable), (changes, 1, 0), "{statistics}");
    let delivered = statistics.down.delivered.packets + statistics.up.delivered.packets;
    assert_eq!(delivered, statistics.sent + statistics.unmapped);
    let line = format!("nat   {changes} rebindings, {changes} packets to mappings that were gone");
    assert!(statistics.to_string().contains(&line), "{statistics}");
}

/// A mapping that no packet has used for its timeout is gone, and others stay.
#[test]
fn a_nat_forgets_silent_clients() {
    let timeout = units::Duration::from_millis(400);
    let (relay, client, server) = path(|config| config.nat = Some(NatConfig { timeout, ..NatConfig::default() }));
    let mut buffer = [0; 100];
    client.send(b"first").unwrap();
    let (_, first) = again(|| server.recv_from(&mut buffer)).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    server.send_to(b"too late", first).unwrap();
    wait(&relay, "the answer finds nobody", |now| now.unmapped == 1);
    client.send(b"second").unwrap();
    let (_, second) = again(|| server.recv_from(&mut buffer)).unwrap();
    assert!(first != second && first.ip() == second.ip());
    assert_eq!(relay.stop().unwrap().rebindings, 1);
}

#[test]
fn another_address_takes_a_server_on_this_machine() {
    let mut config = RelayConfig::new("127.0.0.1:0".parse().unwrap(), "192.0.2.1:9".parse().unwrap());
    config.nat = Some(NatConfig { rebind: vec![rebinding(1, false), rebinding(2, true)], ..NatConfig::default() });
    let error = Relay::start(&config).unwrap_err();
    assert!(matches!(error, RelayError::OtherAddress { index: 1 }), "{error}");
}
