//! Emulated networks in real time: are rate, delay and loss those that were configured, and is nothing left behind?

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use emu::network::{CLIENT, DeviceKind, Network, NetworkConfig, NetworkStatistics, Privilege, SERVER};
use lab::stats::distribution::normal_quantile;
use netem::{LinkConfig, Loss, Queue};
use socket2::{Domain, SockAddr, Socket, Type};
use units::{Bitrate, DataSize, Probability, Seed};

use super::{
    Case, Context,
    command::load,
    live_paths,
    row::{Row, Target},
    tests::binary,
};

/// Longer than this no packet takes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of data and bytes on the wire of a full TCP packet with time stamps, at an MTU of 1500 bytes.
const TCP_SHARE: f64 = 1_448.0 / 1_500.0;

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("goodput", "the kernel's CUBIC at 10, 50 and 100 Mbit/s against the rate", |_| goodput(None)),
        case("round-trip", "round trips of 40 ms through an emulated network", |_| round_trip(None)),
        case("loss", "packets lost behind the path against the law", |_| loss(None)),
        case("packets", "50,000 UDP packets a second", |_| packets(None)),
        case("accuracy", "the four above over TUN devices and over veth pairs, a row each", accuracy),
        case("agreement", "planted errors of rate and delay are found; tests of runs in real time", agreement),
        case(
            "presets",
            "both clocks on presets that fit in 100 Mbit/s: goodput and RTT; four, all with --long",
            live_paths::presets,
        ),
        case(
            "cubic",
            "our CUBIC beside the kernel's on ten paths; six seeds with --long, one without",
            live_paths::cubic,
        ),
        case(
            "mobile",
            "`lab run okru-mobile --real-time`: the kernel's TCP with HTTP/2 beside HTTP/3, as root and as an ordinary user",
            live_paths::mobile,
        ),
        case(
            "probe",
            "`tiderace probe` on drawn paths: rate, RTT, loss, MTU, queue against the truth",
            super::probe::measure,
        ),
        case(
            "why",
            "`tiderace why` where a cause is planted, and where none is; needs openssl and taskset",
            super::why::measure,
        ),
        case(
            "compare",
            "`tiderace edge compare` on replayed clients: planted differences between QUIC and TCP, and A/A splits",
            super::live_arms::measure,
        ),
        case(
            "claims",
            "published claims about QUIC against TCP, beside the kernel's; two of eleven, or with --long all, also with 20 connections",
            super::tcp_claims::measure,
        ),
        case("soak", "memory of both ends over an hour; six hours with --long", super::soak::measure),
        case("bad-input", "wrong options, missing permissions, busy ports and lost peers: tests", bad_input),
        case("left-behind", "processes, namespaces and devices after every kind of end", left_behind),
    ]
}

/// Rows of rate, round trips, loss and packets over each kind of devices that this machine permits.
fn accuracy(_: &Context) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for device in [DeviceKind::Tun, DeviceKind::Veth] {
        if let Err(error) = network(Some(device), |_, _| {}) {
            eprintln!("no rows over {device}: {error:#}");
            continue;
        }
        for measure in [goodput, round_trip, loss, packets] {
            let measured = measure(Some(device))?.into_iter();
            rows.extend(measured.map(|row| Row { what: format!("{}, {device}", row.what), ..row }));
        }
    }
    ensure!(!rows.is_empty(), "this machine permits neither TUN devices nor veth pairs");
    Ok(rows)
}

fn network(device: Option<DeviceKind>, change: impl FnOnce(&mut LinkConfig, &mut LinkConfig)) -> Result<Network> {
    Privilege::acquire()?;
    let (mut up, mut down) = (LinkConfig::default(), LinkConfig::default());
    change(&mut up, &mut down);
    Ok(Network::start(&NetworkConfig { device, ..NetworkConfig::new(up, down, Seed::from_number(1)) })?)
}

/// Rows, and the state of the network that they come from.
type Measured = (Vec<Row>, NetworkStatistics);

/// Measures until the emulator itself calls a run sound: figures of a machine that others slow down are not the emulator's. The last of some
/// attempts counts anyway, with its doubt behind it.
fn trusted(measure: impl Fn() -> Result<Measured>) -> Result<Vec<Row>> {
    const ATTEMPTS: u32 = 5;
    let mut attempt = 1;
    loop {
        let (rows, statistics) = measure()?;
        let doubt = statistics.doubt().or_else(|| statistics.busy());
        if doubt.is_none() || attempt == ATTEMPTS {
            let times = if attempt == 1 { String::new() } else { format!("; attempt {attempt}") };
            let with = |row: Row| Row { detail: format!("{}; {}{times}", row.detail, told(&statistics)), ..row };
            return Ok(rows.into_iter().map(with).collect());
        }
        eprintln!("  in doubt, again: {}", doubt.unwrap_or_default());
        attempt += 1;
    }
}

/// State of the emulator, for the line under a value.
fn told(statistics: &NetworkStatistics) -> String {
    let late = |q| statistics.emulator.lateness.quantile_duration(q).unwrap_or_default().as_secs_f64() * 1e6;
    format!(
        "{}; late p50 {:.0} µs, p99 {:.0} µs; {} priority{}; {}{}",
        statistics.device,
        late(0.5),
        late(0.99),
        if statistics.emulator.preferred { "real-time" } else { "ordinary" },
        if statistics.kept_awake { ", processors kept awake" } else { "" },
        load(),
        statistics
            .doubt()
            .or_else(|| statistics.busy())
            .map_or_else(String::new, |doubt| format!("; in doubt: {doubt}")),
    )
}

/// Steady goodput of one transfer, as a multiple of 1448/1500 of the rate.
fn goodput(device: Option<DeviceKind>) -> Result<Vec<Row>> {
    let rates = [10, 50, 100].into_iter();
    Ok(rates.map(|megabits| trusted(|| goodput_at(device, megabits))).collect::<Result<Vec<_>>>()?.concat())
}

fn goodput_at(device: Option<DeviceKind>, megabits: u64) -> Result<Measured> {
    const SETTLES: Duration = Duration::from_secs(3);
    const MEASURED: Duration = Duration::from_secs(6);
    let rate = Bitrate::from_bps(megabits * 1_000_000);
    let network = network(device, |up, down| {
        (up.delay, down.delay) = (Duration::from_millis(10), Duration::from_millis(10));
        // Two bandwidth-delay products: CUBIC's decrease never empties the link.
        let bytes = DataSize::from_bytes(2 * rate.in_time(Duration::from_millis(20)).as_bytes());
        (down.rate, down.queue) = (Some(rate), Queue::DropTail { bytes });
    })?;
    let listener = network.server().run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_tcp_congestion(b"cubic")?;
        socket.bind(&SockAddr::from(std::net::SocketAddr::new(SERVER.into(), 5_001)))?;
        socket.listen(1)?;
        Ok(TcpListener::from(socket))
    })?;
    let to = listener.local_addr()?;
    let sender = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // Until the receiver has enough.
        while stream.write_all(&[0x5a; 16 << 10]).is_ok() {}
        Ok(())
    });
    let mut stream = network.client().run(|| TcpStream::connect(to))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (begun, mut buffer) = (Instant::now(), vec![0; 256 << 10]);
    let (mut from, mut counted) = (None, 0);
    let last = loop {
        let read = stream.read(&mut buffer).context("nothing came through the network")?;
        let at = Instant::now();
        match from {
            None if at - begun >= SETTLES => from = Some(at),
            None => {}
            Some(_) => counted += read,
        }
        if at - begun >= SETTLES + MEASURED {
            break at;
        }
    };
    // What arrives for a closed socket is answered by a reset, which ends the sender; that takes the network.
    drop(stream);
    let _ = sender.join();
    let statistics = network.stop()?;
    let span = (last - from.context("no data in the time that is measured")?).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 bytes")]
    let share = counted as f64 * 8.0 / span / (rate.as_bps() as f64 * TCP_SHARE);
    let row = Row::new(
        format!("goodput of the kernel's CUBIC at {megabits} Mbit/s"),
        share,
        "",
        Target::Between(0.995, 1.005),
    );
    Ok((vec![row.detail(format!("of 1448/1500 of the rate, 20 ms, {span:.1} s measured"))], statistics))
}

/// A socket on each side.
fn sockets(network: &Network) -> Result<[UdpSocket; 2]> {
    let bind = |side: &emu::network::Namespace, address| -> Result<UdpSocket> {
        let socket = side.run(|| UdpSocket::bind((address, 5_002)))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    Ok([bind(network.client(), CLIENT)?, bind(network.server(), SERVER)?])
}

/// Round trips less what was asked for.
fn round_trip(device: Option<DeviceKind>) -> Result<Vec<Row>> {
    trusted(|| round_trip_over(device))
}

fn round_trip_over(device: Option<DeviceKind>) -> Result<Measured> {
    const ROUNDS: u32 = 400;
    let one_way = Duration::from_millis(20);
    let network = network(device, |up, down| (up.delay, down.delay) = (one_way, one_way))?;
    let [client, server] = sockets(&network)?;
    client.connect((SERVER, 5_002))?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = [0; 100];
        for _ in 0..ROUNDS {
            let (length, from) = server.recv_from(&mut buffer)?;
            server.send_to(&buffer[..length], from)?;
        }
        Ok(())
    });
    let (mut errors, mut buffer) = (Vec::new(), [0; 100]);
    for _ in 0..ROUNDS {
        let sent = Instant::now();
        client.send(&[7; 64])?;
        client.recv(&mut buffer).context("nothing came back through the network")?;
        errors.push((sent.elapsed().as_secs_f64() - 2.0 * one_way.as_secs_f64()) * 1e3);
    }
    let _ = echo.join();
    let statistics = network.stop()?;
    errors.sort_by(f64::total_cmp);
    let at = |q: f64| lab::stats::quantile::quantile(&errors, q).map_err(anyhow::Error::msg);
    let detail = format!("{ROUNDS} round trips of one datagram, wake-ups of both programs included");
    let rows = vec![
        Row::new("round trip less 40 ms, median", at(0.5)?, "ms", Target::Between(0.0, 0.15)).detail(detail.clone()),
        Row::new("round trip less 40 ms, p99", at(0.99)?, "ms", Target::Between(0.0, 1.0)).detail(detail),
    ];
    Ok((rows, statistics))
}

/// Packets that a receiver misses.
fn loss(device: Option<DeviceKind>) -> Result<Vec<Row>> {
    let shares = [0.01, 0.05].into_iter();
    Ok(shares.map(|share| trusted(|| loss_of(device, share))).collect::<Result<Vec<_>>>()?.concat())
}

fn loss_of(device: Option<DeviceKind>, share: f64) -> Result<Measured> {
    const PACKETS: u32 = 40_000;
    const STEP: u32 = 50;
    let p = Probability::new(share)?;
    let network = network(device, |up, _| up.loss = Loss::Iid { p })?;
    let [client, server] = sockets(&network)?;
    client.connect((SERVER, 5_002))?;
    server.set_nonblocking(true)?;
    let (mut received, mut buffer) = (0_u64, [0; 256]);
    for step in 1..=PACKETS / STEP {
        for _ in 0..STEP {
            client.send(&[0; 200])?;
        }
        // In steps that any buffer holds: a packet lost there would not be the link's doing.
        let started = Instant::now();
        loop {
            while server.recv(&mut buffer).is_ok() {
                received += 1;
            }
            let snapshot = network.snapshot()?;
            if snapshot.up.offered.packets == u64::from(step * STEP) && received == snapshot.up.delivered.packets {
                break;
            }
            ensure!(started.elapsed() < PATIENCE, "{received} packets arrived of {:?}", snapshot.up);
            thread::yield_now();
        }
    }
    let statistics = network.stop()?;
    let all = f64::from(PACKETS);
    let lost = all - f64::from(u32::try_from(received)?);
    let half = normal_quantile(0.995) * (share * (1.0 - share) / all).sqrt();
    let target = Target::Between((share - half) * 100.0, (share + half) * 100.0);
    let row = Row::new(format!("lost of {} %", share * 100.0), lost / all * 100.0, "%", target);
    let detail = format!("{lost} of {PACKETS} packets missing at the receiver; target is the 99 % interval");
    Ok((vec![row.detail(detail)], statistics))
}

/// Small packets at a high rate over a path that loses none.
fn packets(device: Option<DeviceKind>) -> Result<Vec<Row>> {
    trusted(|| packets_over(device))
}

fn packets_over(device: Option<DeviceKind>) -> Result<Measured> {
    const PER_SECOND: u32 = 50_000;
    const SECONDS: u32 = 4;
    let network =
        network(device, |up, down| (up.delay, down.delay) = (Duration::from_millis(25), Duration::from_millis(25)))?;
    let [client, server] = sockets(&network)?;
    socket2::SockRef::from(&server).set_recv_buffer_size(8 << 20)?;
    client.connect((SERVER, 5_002))?;
    server.set_read_timeout(Some(Duration::from_secs(2)))?;
    let receiver = thread::spawn(move || {
        let (mut received, mut buffer) = (0_u32, [0; 2_000]);
        while server.recv(&mut buffer).is_ok() {
            received += 1;
        }
        received
    });
    let begun = Instant::now();
    for number in 0..PER_SECOND * SECONDS {
        let due = begun + Duration::from_secs(1) * number / PER_SECOND;
        // Asleep, and not busy: a core that only waits for the time would be missing to the receiver.
        if Instant::now() < due {
            thread::sleep(Duration::from_micros(100));
        }
        client.send(&[0; 1_200])?;
    }
    let took = begun.elapsed().as_secs_f64();
    let received = receiver.join().map_err(|_| anyhow::anyhow!("the receiver has panicked"))?;
    let statistics = network.stop()?;
    let all = PER_SECOND * SECONDS;
    let lost = f64::from(all - received) / f64::from(all) * 100.0;
    let row = Row::new("lost of 50,000 packets a second", lost, "%", Target::AtMost(0.01));
    let detail = format!(
        "{received} of {all} datagrams of 1200 bytes arrived, sent within {took:.2} s; {} dropped by devices",
        statistics.device_drops
    );
    Ok((vec![row.detail(detail)], statistics))
}

fn agreement(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(1_800);
    Ok(vec![
        binary(context, "realtime-agreement", &["-p", "tiderace-live", "--test", "agreement"], limit),
        binary(context, "realtime-runs", &["-p", "tiderace-live", "--test", "runs"], limit),
    ])
}

fn bad_input(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(1_800);
    let row =
        |name: &str| binary(context, &format!("realtime-bad-{name}"), &["-p", "tiderace-cli", "--test", name], limit);
    Ok(["probe", "why", "serve", "real_time", "real_time_matrix"].map(row).into())
}

fn left_behind(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(1_800);
    Ok(vec![
        binary(context, "realtime-shell", &["-p", "tiderace-cli", "--test", "shell"], limit),
        binary(context, "realtime-network", &["-p", "tiderace-emu", "--test", "network"], limit),
    ])
}
