//! The kernel's TCP on the same path, for comparison with UDP.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{Instant, timeout},
};

use super::{Direction, path::Path};
use crate::meter::Sample;

/// Bytes that are written and read at a time.
const CHUNK: usize = 64 * 1024;
/// Time that a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns whether the port takes connections over TCP within a time.
pub(super) async fn connects(address: SocketAddr, within: Duration) -> bool {
    matches!(timeout(within, TcpStream::connect(address)).await, Ok(Ok(_)))
}

/// Bytes that have arrived at the receiver at some moments.
struct Progress {
    begun: Instant,
    lasts: Duration,
    /// The first count behind a third of the time, and the last one.
    from: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
    /// The last count, for those who watch.
    shown: Arc<AtomicU64>,
}

impl Progress {
    fn new(lasts: Duration) -> Self {
        Self { begun: Instant::now(), lasts, from: None, last: None, shown: Arc::default() }
    }

    fn until(&self) -> Instant {
        self.begun + self.lasts
    }

    fn count(&mut self, bytes: u64) {
        let now = Instant::now();
        if now >= self.begun + self.lasts / 3 {
            self.from.get_or_insert((now, bytes));
        }
        self.last = Some((now, bytes));
        self.shown.store(bytes, Ordering::Relaxed);
    }

    /// Bit/s between both counts; `None` when they lie too close together, as where an end has stopped for most of the time.
    fn goodput(&self) -> Option<f64> {
        let ((from, before), (last, after)) = self.from.zip(self.last)?;
        let span = last.saturating_duration_since(from);
        #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
        let rate = after.saturating_sub(before) as f64 * 8.0 / span.as_secs_f64();
        (span > self.lasts / 3).then_some(rate)
    }
}

/// Goodput in bit/s over the last two thirds of the time, counted by the receiver. `None`: TCP does not get there.
pub(super) async fn goodput(path: &Path, direction: Direction, lasts: Duration, bytes: u64) -> Option<f64> {
    let address = SocketAddr::new(path.remote.ip(), path.welcome.tcp_port?);
    let mut stream = timeout(PATIENCE, TcpStream::connect(address)).await.ok()?.ok()?;
    let way = u8::from(direction == Direction::Up);
    stream.write_all(&[&path.welcome.tcp[..], &[way]].concat()).await.ok()?;
    let (reader, writer) = stream.into_split();
    let mut progress = Progress::new(lasts);
    let until = progress.until();
    let shown = progress.shown.clone();
    let look = move || Some(Sample { received: Some(shown.load(Ordering::Relaxed)), ..Sample::default() });
    let _followed = path.follow("kernel TCP", look);
    // An end of the time is the end of the measurement; an error shows in what was counted.
    let _ = match direction {
        Direction::Down => timeout(lasts, download(reader, &mut progress, bytes)).await.map(|_| ()),
        Direction::Up => {
            tokio::select! {
                () = tokio::time::sleep_until(until) => Ok(()),
                _ = counts(reader, &mut progress, bytes) => Ok(()),
                _ = upload(writer, bytes) => Ok(()),
            }
        }
    };
    path.charge_load(progress.last.map_or(0, |(_, bytes)| bytes));
    progress.goodput()
}

async fn download(mut reader: OwnedReadHalf, progress: &mut Progress, most: u64) -> std::io::Result<()> {
    let (mut buffer, mut all) = (vec![0; CHUNK], 0);
    while all < most {
        match reader.read(&mut buffer).await? {
            0 => break,
            read => all += read as u64,
        }
        progress.count(all);
    }
    Ok(())
}

async fn upload(mut writer: OwnedWriteHalf, most: u64) -> std::io::Result<()> {
    let buffer = vec![0; CHUNK];
    for _ in 0..most / CHUNK as u64 {
        writer.write_all(&buffer).await?;
    }
    // What was written is still on its way, and counted.
    std::future::pending().await
}

/// Counts of the server.
async fn counts(mut reader: OwnedReadHalf, progress: &mut Progress, most: u64) -> std::io::Result<()> {
    loop {
        let all = reader.read_u64().await?;
        progress.count(all);
        if all >= most {
            return Ok(());
        }
    }
}
