//! RTT under load: bulk streams on several connections of CUBIC, and the latency of pings, requests and new connections beside them
//! (draft-ietf-ippm-responsiveness).

use std::{sync::Arc, time::Duration};

use tiderace::{Connection, WriteError};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{Direction, path::Path};
use crate::meter::{Followed, Sample};
use crate::probe::{
    estimate::responsiveness::Probes,
    protocol::{self, Answer, ENOUGH, ExchangeError, Request},
    wire::HEAD,
};

/// Connections that load the path.
const CONNECTIONS: usize = 4;
/// Time between two probes of a kind.
const APART: Duration = Duration::from_millis(60);
/// Timeout of a probe.
const PATIENCE: Duration = Duration::from_secs(10);

/// Samples taken under a load.
pub(super) struct Loaded {
    /// Round trips of datagrams beside the load, in microseconds.
    pub(super) rtts: Vec<u64>,
    pub(super) probes: Probes,
    /// Bit/s of the application, all connections together.
    pub(super) goodput: f64,
}

/// Loads a direction for a limited time and number of bytes.
///
/// # Errors
/// When the connections for it cannot be opened.
pub(super) async fn load(
    path: &Arc<Path>,
    direction: Direction,
    lasts: Duration,
    bytes: u64,
) -> Result<Loaded, ExchangeError> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(join(path).await?.0);
    }
    let followed: Vec<_> = connections
        .iter()
        .enumerate()
        .map(|(place, connection)| follow(path, place, connection.clone(), direction))
        .collect();
    let mut streams = JoinSet::new();
    for connection in connections.clone() {
        match direction {
            Direction::Down => streams.spawn(download(connection, bytes / CONNECTIONS as u64)),
            Direction::Up => streams.spawn(upload(connection, bytes / CONNECTIONS as u64)),
        };
    }
    let begun = Instant::now();
    let moved = |connections: &[Connection]| moved(connections, direction);
    // A third of the time is for the controllers to fill the path.
    sleep(lasts / 3).await;
    let (before, from) = (moved(&connections), Instant::now());
    let until = begun + lasts;
    let work = async {
        let pings = path.pings(u32::try_from((lasts * 2 / 3).as_millis() / 20).unwrap_or(1).max(20), APART / 3, HEAD);
        tokio::join!(pings, own(&connections[0], until), foreign(path, until))
    };
    let too_much = async {
        // Each stream ends with its share.
        while streams.join_next().await.is_some() {}
    };
    let (pings, own, (handshakes, foreign)) = tokio::select! {
        done = timeout(lasts * 3 + PATIENCE, work) => done.map_err(|_| ExchangeError::Silence)?,
        () = too_much => {
            path.charge_load(moved(&connections));
            return Err(ExchangeError::Bytes);
        }
    };
    let (after, span) = (moved(&connections), from.elapsed());
    path.charge_load(after);
    streams.shutdown().await;
    drop(followed);
    for connection in &connections {
        connection.close(0, b"");
    }
    // What is in the queues belongs to this measurement.
    path.settle().await;
    #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
    let goodput = after.saturating_sub(before) as f64 * 8.0 / span.as_secs_f64();
    Ok(Loaded { rtts: pings.rtts(), probes: Probes { handshakes, foreign, own }, goodput })
}

/// Shows a connection to those who watch.
fn follow(path: &Path, place: usize, connection: Connection, direction: Direction) -> Option<Followed> {
    path.follow(&format!("load {}", place + 1), move || {
        let stats = connection.stats()?;
        let rtt = (stats.smoothed_rtt > 0).then(|| Duration::from_nanos(stats.smoothed_rtt));
        Some(match direction {
            Direction::Down => Sample { received: Some(stats.stream_bytes_delivered), rtt, ..Sample::default() },
            Direction::Up => Sample {
                sent: Some(stats.stream_bytes_sent.saturating_sub(stats.stream_bytes_retransmitted)),
                rtt,
                window: Some(stats.congestion_window),
                in_flight: Some(stats.bytes_in_flight),
                packets_sent: Some(stats.packets_sent),
                packets_lost: Some(stats.packets_lost),
                acks: Some(stats.ack_frames_received),
                ..Sample::default()
            },
        })
    })
}

/// Bytes that a connection has moved, each counted once.
fn moved_on(connection: &Connection, direction: Direction) -> u64 {
    connection.stats().map_or(0, |stats| match direction {
        Direction::Down => stats.stream_bytes_delivered,
        Direction::Up => stats.stream_bytes_sent.saturating_sub(stats.stream_bytes_retransmitted),
    })
}

/// Bytes that connections have moved together.
pub(super) fn moved(connections: &[Connection], direction: Direction) -> u64 {
    connections.iter().map(|connection| moved_on(connection, direction)).sum()
}

/// Opens a connection of the session. Returns the time of its handshake, too.
pub(super) async fn join(path: &Path) -> Result<(Connection, Duration), ExchangeError> {
    let begun = Instant::now();
    let connecting = path.endpoint.connect(&path.config, path.remote, &path.name);
    let connected =
        async { connecting.map_err(|_| ExchangeError::Protocol)?.await.map_err(|_| ExchangeError::Silence) };
    let connection = timeout(PATIENCE, connected).await.map_err(|_| ExchangeError::Silence)??;
    let handshake = begun.elapsed();
    let join = Request::Join { session: path.welcome.session };
    match exchange(&connection, &join).await? {
        Answer::Done => Ok((connection, handshake)),
        Answer::Refused(refusal) => Err(refusal.into()),
        _ => Err(ExchangeError::Protocol),
    }
}

pub(super) async fn exchange(connection: &Connection, request: &Request) -> Result<Answer, ExchangeError> {
    let exchange = async {
        let (mut send, mut recv) = connection.open_bi().await?;
        protocol::request(&mut send, request).await?;
        protocol::read(&mut recv).await
    };
    timeout(PATIENCE, exchange).await.map_err(|_| ExchangeError::Silence)?
}

pub(super) async fn download(connection: Connection, most: u64) -> Result<(), ExchangeError> {
    let (mut send, mut recv) = connection.open_bi().await?;
    protocol::request(&mut send, &Request::Download).await?;
    let mut left = most;
    while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
        left = left.saturating_sub(chunk.len() as u64);
        if left == 0 {
            recv.stop(ENOUGH)?;
            break;
        }
    }
    Ok(())
}

async fn upload(connection: Connection, most: u64) -> Result<(), ExchangeError> {
    let (mut send, _recv) = connection.open_bi().await?;
    protocol::write(&mut send, &Request::Upload).await?;
    let mut left = most;
    while left > 0 {
        left = left.saturating_sub(protocol::payload().len() as u64);
        match send.write_chunk(protocol::payload()).await {
            Ok(()) => {}
            Err(WriteError::Stopped(_)) => return Ok(send.reset(ENOUGH)?),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(send.finish()?)
}

/// Requests on a connection that loads the path: their times in ms.
async fn own(connection: &Connection, until: Instant) -> Vec<f64> {
    let mut times = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        if matches!(exchange(connection, &Request::Echo).await, Ok(Answer::Done)) {
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        sleep(APART).await;
    }
    times
}

/// New connections and a request on each: their times in ms.
async fn foreign(path: &Path, until: Instant) -> (Vec<f64>, Vec<f64>) {
    let (mut handshakes, mut requests) = (Vec::new(), Vec::new());
    while Instant::now() < until {
        if let Ok((connection, handshake)) = join(path).await {
            handshakes.push(handshake.as_secs_f64() * 1e3);
            let begun = Instant::now();
            if matches!(exchange(&connection, &Request::Echo).await, Ok(Answer::Done)) {
                requests.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            connection.close(0, b"");
        }
        sleep(APART).await;
    }
    (handshakes, requests)
}
