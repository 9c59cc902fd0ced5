//! The relay in real time: does what passes through it look like what was configured?

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use emu::{Relay, RelayConfig};
use lab::stats::distribution::normal_quantile;
use netem::Loss;
use units::Probability;

use super::{
    Context,
    command::load,
    row::{Row, Target},
};

/// Longer than this nothing on loopback takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// All rows.
pub(crate) fn measure(_: &Context) -> Result<Vec<Row>> {
    Ok(vec![loss()?, delay()?])
}

/// A client connected to a relay, and the server behind it.
struct Path {
    relay: Relay,
    client: UdpSocket,
    server: UdpSocket,
}

impl Path {
    fn new(change: impl FnOnce(&mut RelayConfig)) -> Result<Self> {
        let [client, server] = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(PATIENCE))?;
        }
        let mut config = RelayConfig::new("127.0.0.1:0".parse()?, server.local_addr()?);
        change(&mut config);
        let relay = Relay::start(&config)?;
        client.connect(relay.address())?;
        Ok(Self { relay, client, server })
    }

    /// Seconds there and back.
    fn round_trip(&self) -> Result<f64> {
        let mut buffer = [0; 100];
        let started = Instant::now();
        self.client.send(&[7; 100])?;
        let (len, from) = self.server.recv_from(&mut buffer).context("nothing came out of the relay")?;
        self.server.send_to(&buffer[..len], from)?;
        self.client.recv(&mut buffer).context("nothing came back through the relay")?;
        Ok(started.elapsed().as_secs_f64())
    }
}

/// Packets that a receiver behind the relay misses.
fn loss() -> Result<Row> {
    const PACKETS: u32 = 40_000;
    const STEP: u32 = 50;
    const LOSS: f64 = 0.05;
    let loss = Loss::Iid { p: Probability::new(LOSS)? };
    let way = Path::new(|config| config.up.loss = loss)?;
    way.server.set_nonblocking(true)?;
    let (mut received, mut buffer) = (0_u64, [0; 256]);
    for step in 1..=PACKETS / STEP {
        for _ in 0..STEP {
            way.client.send(&[0; 200])?;
        }
        // In steps that any socket buffer holds: a packet lost there would not be the link's doing.
        let (sent, started) = (u64::from(step * STEP), Instant::now());
        loop {
            let statistics = way.relay.statistics()?;
            while way.server.recv(&mut buffer).is_ok() {
                received += 1;
            }
            if statistics.up.offered.packets == sent
                && statistics.held == 0
                && received == statistics.up.delivered.packets
            {
                break;
            }
            ensure!(
                started.elapsed() < PATIENCE,
                "{} of {sent} packets passed, {received} arrived",
                statistics.up.offered.packets
            );
            std::thread::yield_now();
        }
    }
    let statistics = way.relay.stop()?;
    ensure!(
        statistics.kernel_dropped == 0,
        "the system dropped {} packets before the relay",
        statistics.kernel_dropped
    );
    let all = f64::from(PACKETS);
    let lost = all - f64::from(u32::try_from(received)?);
    let half = normal_quantile(0.995) * (LOSS * (1.0 - LOSS) / all).sqrt();
    let target = Target::Between((LOSS - half) * 100.0, (LOSS + half) * 100.0);
    Ok(Row::new("loss behind the relay", lost / all * 100.0, "%", target).detail(format!(
        "5 % asked for; {lost} of {PACKETS} packets missing at the receiver; target is the 99 % interval"
    )))
}

/// The median round trip through a relay with 30 ms of delay, less that through a relay without any and less the 30 ms.
fn delay() -> Result<Row> {
    const ROUNDS: usize = 12;
    const PER_ROUND: usize = 25;
    let (there, back) = (Duration::from_millis(20), Duration::from_millis(10));
    let bare = Path::new(|_| {})?;
    let slow = Path::new(|config| (config.up.delay, config.down.delay) = (there, back))?;
    let mut errors = Vec::with_capacity(ROUNDS);
    // In turn, so that a slow spell of the machine meets both.
    for _ in 0..ROUNDS {
        let mut with = Vec::with_capacity(PER_ROUND);
        let mut without = Vec::with_capacity(PER_ROUND);
        for _ in 0..PER_ROUND {
            without.push(bare.round_trip()?);
            with.push(slow.round_trip()?);
        }
        errors.push((middle(with) - middle(without) - (there + back).as_secs_f64()) * 1e3);
    }
    let statistics = slow.relay.stop()?;
    let row = Row::median("added round trip less the 30 ms asked for", &errors, "ms", Target::Between(-0.5, 0.5));
    Ok(row.detail(format!(
        "medians of {ROUNDS} x {PER_ROUND} round trips, against a relay that adds nothing; {}{}; {}",
        if statistics.preferred { "real-time priority" } else { "ordinary priority" },
        statistics.doubt().map_or_else(String::new, |doubt| format!("; the relay itself says: {doubt}")),
        load()
    )))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    lab::stats::quantile::median(&values).unwrap_or(f64::NAN)
}
