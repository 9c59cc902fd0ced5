//! Emulated networks with real sockets, over each kind of devices. Where the system does not permit namespaces or devices, each test says so and checks that
//! the message helps.
#![cfg(target_os = "linux")]

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
};

use emu::network::{CLIENT, DeviceKind, Network, NetworkConfig, NetworkError, NetworkStatistics, SERVER};
use netem::{Codel, DropReason, FqCodel, LinkConfig, Loss, NatConfig, Queue, Rebinding};
use tiderace_emu as emu;
use units::{Bitrate, DataSize, Duration, Probability, Seed};

/// Longer than any of these exchanges takes on a machine that works.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Does what a signal interrupted again: a process that is stopped and continues has its waits end.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return ended,
        }
    }
}

/// Declares tests for each kind of devices: functions of this file that take one.
macro_rules! over_each_device {
    ($($test:ident),* $(,)?) => {
        mod tun {
            $(#[test] fn $test() { super::$test(super::DeviceKind::Tun); })*
        }
        mod veth {
            $(#[test] fn $test() { super::$test(super::DeviceKind::Veth); })*
        }
    };
}

over_each_device! {
    packets_take_the_delay_of_each_direction,
    losses_are_those_of_the_link_packet_for_packet,
    tcp_meets_the_rate_in_packets_that_a_wire_carries,
    the_mtu_of_the_path_is_what_tcp_learns,
    the_kernel_drops_damaged_packets,
    managed_queues_work_in_real_time,
    a_rebinding_gives_the_client_another_port_and_answers_find_it,
    nothing_is_left_of_a_network,
}

fn network(device: DeviceKind, config: &NetworkConfig) -> Option<Network> {
    match Network::start(&NetworkConfig { device: Some(device), ..config.clone() }) {
        Ok(network) => Some(network),
        Err(error @ (NetworkError::Namespace { .. } | NetworkError::Tun { .. } | NetworkError::Veth { .. })) => {
            assert!(error.hint().is_some(), "{error}");
            eprintln!("not tested, since this system refuses: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn link(delay_ms: u64) -> LinkConfig {
    LinkConfig { delay: Duration::from_millis(delay_ms), ..LinkConfig::default() }
}

fn config(up: LinkConfig, down: LinkConfig) -> NetworkConfig {
    NetworkConfig::new(up, down, Seed::from_number(7))
}

/// A socket on each side.
fn sockets(network: &Network) -> [UdpSocket; 2] {
    [(network.client(), CLIENT), (network.server(), SERVER)].map(|(side, address)| {
        let socket = side.run(|| UdpSocket::bind((address, 0))).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    })
}

/// Packets that a side's device has received and sent.
fn device_packets(side: &emu::network::Namespace) -> [u64; 2] {
    let text = side.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
    let device = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() != "lo" && !name.contains('|'));
    let columns: Vec<u64> = device.unwrap().1.split_whitespace().map(|column| column.parse().unwrap()).collect();
    [columns[1], columns[9]]
}

fn sound(network: Network) -> NetworkStatistics {
    let statistics = network.stop().unwrap();
    assert_eq!((statistics.device_drops, statistics.emulator.write_failed), (0, 0), "{statistics}");
    statistics
}

fn packets_take_the_delay_of_each_direction(device: DeviceKind) {
    let Some(network) = network(device, &config(link(20), link(50))) else { return };
    let [client, server] = sockets(&network);
    let mut buffer = [0; 2_000];
    // Who may ask for it gets it, and what reading tells is the shortest time that anybody has asked for.
    let latency = std::fs::OpenOptions::new().read(true).write(true).open("/dev/cpu_dma_latency");
    let kept_awake = latency.is_ok();
    if let Ok(mut latency) = latency {
        let mut micros = [0xff; 4];
        latency.read_exact(&mut micros).unwrap();
        assert_eq!(i32::from_ne_bytes(micros), 0);
    }
    for size in [1, 100, 1_472] {
        let payload: Vec<u8> = (0..size).map(|index| u8::try_from(index % 251).unwrap()).collect();
        let sent = std::time::Instant::now();
        client.send_to(&payload, server.local_addr().unwrap()).unwrap();
        let (length, from) = again(|| server.recv_from(&mut buffer)).unwrap();
        // Never earlier: the emulator delivers when a packet is due or later. How much later is measured, not tested.
        assert!(sent.elapsed() >= Duration::from_millis(20));
        assert_eq!((&buffer[..length], from), (&payload[..], client.local_addr().unwrap()));
        server.send_to(&buffer[..length], from).unwrap();
        let (length, _) = again(|| client.recv_from(&mut buffer)).unwrap();
        assert!(sent.elapsed() >= Duration::from_millis(70));
        assert_eq!(buffer[..length], payload);
    }
    // Nothing else went over the devices: no ARP, no IPv6, nothing of the kernel between them.
    for side in [network.client(), network.server()] {
        assert_eq!(device_packets(side), [3, 3]);
    }
    let statistics = sound(network);
    assert_eq!(statistics.device, device);
    assert_eq!((statistics.emulator.up.delivered.packets, statistics.emulator.down.delivered.packets), (3, 3));
    assert_eq!(statistics.emulator.ignored, 0);
    // 28 bytes of headers each.
    assert_eq!(statistics.emulator.up.delivered.bytes, 1 + 100 + 1_472 + 3 * 28);
    assert!(statistics.emulator.calibration.count() > 0);
    assert_eq!(statistics.kept_awake, kept_awake);
}

fn losses_are_those_of_the_link_packet_for_packet(device: DeviceKind) {
    const PACKETS: u32 = 2_000;
    let loss = Loss::Iid { p: Probability::new(0.2).unwrap() };
    let Some(network) = network(device, &config(LinkConfig { loss, ..link(1) }, link(0))) else { return };
    let [client, server] = sockets(&network);
    let to = server.local_addr().unwrap();
    // In small bursts, each of which has arrived or is lost before the next one, so that no buffer of the kernel overflows.
    let mut arrived = 0;
    let mut buffer = [0; 100];
    server.set_nonblocking(true).unwrap();
    for burst in 0..PACKETS / 50 {
        for number in 0..50 {
            client.send_to(&(burst * 50 + number).to_be_bytes(), to).unwrap();
        }
        loop {
            while again(|| server.recv_from(&mut buffer)).is_ok() {
                arrived += 1;
            }
            let snapshot = network.snapshot().unwrap();
            if snapshot.up.offered.packets == u64::from((burst + 1) * 50) && arrived == snapshot.up.delivered.packets {
                break;
            }
            thread::yield_now();
        }
    }
    let emulator = sound(network).emulator;
    let lost = emulator.up.dropped(DropReason::Loss).packets;
    assert_eq!(arrived + lost, u64::from(PACKETS));
    // Six standard deviations around 400, and the same in every run: the draws follow from the seed.
    assert!((293..=507).contains(&lost), "{lost}");
}

fn transfer(network: &Network, bytes: usize) -> std::time::Duration {
    let listener = network.server().run(|| TcpListener::bind((SERVER, 0))).unwrap();
    let to = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&vec![0x5a; bytes]).unwrap();
    });
    let mut stream = network.client().run(|| TcpStream::connect(to)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let begun = std::time::Instant::now();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    server.join().unwrap();
    assert!(got.len() == bytes && got.iter().all(|byte| *byte == 0x5a));
    begun.elapsed()
}

fn tcp_meets_the_rate_in_packets_that_a_wire_carries(device: DeviceKind) {
    const BYTES: usize = 1_000_000;
    let down = LinkConfig {
        rate: Some(Bitrate::from_bps(20_000_000)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(60_000) },
        ..link(5)
    };
    let Some(network) = network(device, &config(link(5), down)) else { return };
    let took = transfer(&network, BYTES);
    // Without the first packets, which may leave while the connection is made, 1,000,000 bytes take 0.4 s at 20 Mbit/s.
    assert!(took >= std::time::Duration::from_millis(380), "{took:?}");
    let emulator = sound(network).emulator;
    // Offloads are off: nothing larger than the MTU came to the link. 1,448 bytes of data to a packet.
    assert!(emulator.down.delivered.packets >= (BYTES as u64).div_ceil(1_448), "{:?}", emulator.down);
    assert_eq!(emulator.down.dropped(DropReason::Mtu).packets, 0);
}

fn the_mtu_of_the_path_is_what_tcp_learns(device: DeviceKind) {
    let Some(network) = network(device, &config(link(1), LinkConfig { mtu: Some(1_300), ..link(1) })) else { return };
    transfer(&network, 200_000);
    let emulator = sound(network).emulator;
    assert_eq!(emulator.down.dropped(DropReason::Mtu).packets, 0);
    assert!(emulator.down.delivered.packets >= 200_000 / 1_248);
}

fn the_kernel_drops_damaged_packets(device: DeviceKind) {
    const PACKETS: u64 = 20;
    let damaged = LinkConfig { corrupt: Probability::new(1.0).unwrap(), ..link(1) };
    let Some(network) = network(device, &config(damaged, link(1))) else { return };
    let [client, server] = sockets(&network);
    for _ in 0..PACKETS {
        client.send_to(&[7; 20], server.local_addr().unwrap()).unwrap();
    }
    let errors = || {
        let text = network.server().run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("Udp:"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let column = rows[0].iter().position(|name| *name == "InErrors").unwrap();
        rows[1][column].parse::<u64>().unwrap()
    };
    let begun = std::time::Instant::now();
    while errors() < PACKETS && begun.elapsed() < LIMIT {
        thread::yield_now();
    }
    assert_eq!(errors(), PACKETS);
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.recv(&mut [0; 100]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(sound(network).emulator.written, PACKETS);
}

fn managed_queues_work_in_real_time(device: DeviceKind) {
    let fq = FqCodel {
        codel: Codel {
            bytes: DataSize::from_bytes(100_000),
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: false,
        },
        quantum: 1_514,
    };
    let down = LinkConfig { rate: Some(Bitrate::from_bps(20_000_000)), queue: Queue::FqCodel(fq), ..link(5) };
    let Some(network) = network(device, &config(link(5), down)) else { return };
    transfer(&network, 500_000);
    let emulator = sound(network).emulator;
    assert!(emulator.down.delivered.bytes > 500_000 && emulator.queueing[1].count() > 0);
}

fn a_rebinding_gives_the_client_another_port_and_answers_find_it(device: DeviceKind) {
    for address in [false, true] {
        let rebind = vec![Rebinding { at: Duration::from_millis(300), address }];
        let mut config = config(link(1), link(1));
        config.nat = Some(NatConfig { rebind, ..NatConfig::default() });
        let Some(network) = network(device, &config) else { return };
        network.begin();
        let [client, server] = sockets(&network);
        client.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        let mut buffer = [0; 100];
        let mut seen = Vec::new();
        let begun = std::time::Instant::now();
        // Until the rebinding has come, however long this takes.
        while seen.len() < 2 && begun.elapsed() < LIMIT {
            client.send_to(b"ping", server.local_addr().unwrap()).unwrap();
            let (length, from) = again(|| server.recv_from(&mut buffer)).unwrap();
            if seen.last() != Some(&from) {
                seen.push(from);
            }
            server.send_to(&buffer[..length], from).unwrap();
            // An answer that was on its way at the rebinding finds no mapping, and the next ping is sent without it.
            match again(|| client.recv_from(&mut buffer)) {
                Ok((length, _)) => assert_eq!(&buffer[..length], b"ping"),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(seen[0], client.local_addr().unwrap());
        assert!(seen[0].port() != seen[1].port() && (seen[0].ip() != seen[1].ip()) == address, "{seen:?}");
        assert_eq!(sound(network).emulator.rebindings, 1);
    }
}

fn nothing_is_left_of_a_network(device: DeviceKind) {
    let links =
        || std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let namespaces =
        || links().filter(|link| link.to_string_lossy().starts_with("net:") || link.ends_with("net/tun")).count();
    let sockets = || links().filter(|link| link.to_string_lossy().starts_with("socket:")).count();
    // Other tests of this process have networks of their own, so the count is made in a process that has none.
    if std::env::var_os("TIDERACE_ALONE").is_none() {
        let name = match device {
            DeviceKind::Tun => "tun::nothing_is_left_of_a_network",
            DeviceKind::Veth => "veth::nothing_is_left_of_a_network",
        };
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env("TIDERACE_ALONE", "1")
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&alone.stdout);
        assert!(alone.status.success() && stdout.contains("1 passed"), "{stdout}");
        return;
    }
    let before = (namespaces(), sockets());
    assert_eq!(before.0, 0);
    let Some(network) = network(device, &config(link(1), link(1))) else { return };
    assert_eq!(network.device(), device);
    // Both sides and two TUN devices, or a third namespace and two packet sockets; and the pair that wakes the emulator.
    let (expected, packet_sockets) = if device == DeviceKind::Tun { (4, 0) } else { (3, 2) };
    assert_eq!((namespaces(), sockets()), (expected, before.1 + 2 + packet_sockets));
    drop(network);
    assert_eq!((namespaces(), sockets()), before);
}
