//! One stream of the client: a number of bytes, or a time.

use std::time::Duration;

use tiderace::{CloseReason, Connection, ReadError, WriteError};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    progress::Moved,
    protocol::{self, Receipt, Request, SenderReport, TIME_IS_UP, UNTIL_STOPPED},
};
use crate::stop::Stop;

/// Time that the server may take to answer once the data is through.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Amount of data on a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    /// Number of bytes.
    Bytes(u64),
    /// As many as there is time for until then.
    At(Instant),
}

/// End of a stream: its limit, or Ctrl-C before that.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) limit: Limit,
    pub(super) stop: Stop,
}

impl End {
    /// Bytes, as requests have them.
    pub(super) fn bytes(&self) -> u64 {
        match self.limit {
            Limit::Bytes(bytes) => bytes,
            Limit::At(_) => UNTIL_STOPPED,
        }
    }

    /// Waits until the time is up or Ctrl-C comes.
    pub(super) async fn over(&self) {
        let time_up = async {
            match self.limit {
                Limit::Bytes(_) => std::future::pending().await,
                Limit::At(time) => sleep_until(time).await,
            }
        };
        tokio::select! {
            () = time_up => {}
            () = self.stop.wait() => {}
        }
    }
}

/// Delivered data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    /// Bytes of the application, each counted once, where they were received.
    pub(super) bytes: u64,
    /// From the request to the last of them.
    pub(super) elapsed: Duration,
}

impl Delivered {
    /// Both streams together: they ran at the same time.
    pub(super) fn with(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), elapsed: self.elapsed.max(other.elapsed) }
    }
}

/// Error of a transfer on a stream.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum TransferError {
    #[error("{0}")]
    Connection(#[from] CloseReason),
    #[error("{0}")]
    Write(#[from] WriteError),
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("the server sent {got} bytes instead of {wanted}")]
    Short { got: u64, wanted: u64 },
    #[error("the server's answer is not understood")]
    Answer,
    #[error("the server does not answer")]
    Silence,
}

/// Receives.
pub(super) async fn download(connection: &Connection, end: &End, moved: &Moved) -> Result<Delivered, TransferError> {
    let (mut send, mut recv) = connection.open_bi().await?;
    let started = Instant::now();
    send.write_all(&Request::Transfer { upload: 0, download: end.bytes() }.encode()).await?;
    send.finish()?;
    let mut delivered = Delivered::default();
    let mut over = std::pin::pin!(end.over());
    loop {
        let chunk = tokio::select! {
            biased;
            () = &mut over => {
                delivered.elapsed = started.elapsed();
                recv.stop(TIME_IS_UP)?;
                return Ok(delivered);
            }
            chunk = recv.read_chunk(usize::MAX) => chunk?,
        };
        let Some(chunk) = chunk else { break };
        delivered.bytes += chunk.len() as u64;
        moved.add(chunk.len());
    }
    delivered.elapsed = started.elapsed();
    match end.limit {
        Limit::Bytes(wanted) if wanted == delivered.bytes => Ok(delivered),
        Limit::Bytes(wanted) => Err(TransferError::Short { got: delivered.bytes, wanted }),
        // There is no end before the time is up.
        Limit::At(_) => Err(TransferError::Answer),
    }
}

/// Sends. What counts is what the server received, and how long that took there.
pub(super) async fn upload(connection: &Connection, end: &End, moved: &Moved) -> Result<Delivered, TransferError> {
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(&Request::Transfer { upload: end.bytes(), download: 0 }.encode()).await?;
    let payload = protocol::payload();
    let mut left = end.bytes();
    let mut over = std::pin::pin!(end.over());
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(payload.len());
        tokio::select! {
            biased;
            () = &mut over => break,
            written = send.write_chunk(payload.slice(..size)) => written?,
        }
        moved.add(size);
        if end.bytes() != UNTIL_STOPPED {
            left -= size as u64;
        }
    }
    if left == 0 {
        send.finish()?;
    } else {
        // What is not there yet does not count, so it need not go any more.
        send.reset(TIME_IS_UP)?;
    }
    // However long it takes: the connection ends when nothing moves any more.
    let receipt = tokio::select! {
        biased;
        () = end.over() => {
            // Without effect where all is delivered.
            let _ = send.reset(TIME_IS_UP);
            timeout(ANSWER_TIME, Receipt::read(&mut recv)).await.map_err(|_| TransferError::Silence)??
        }
        receipt = Receipt::read(&mut recv) => receipt?,
    };
    let Receipt { bytes, nanos } = receipt.ok_or(TransferError::Answer)?;
    Ok(Delivered { bytes, elapsed: Duration::from_nanos(nanos) })
}

/// Transfers nothing, there and back.
pub(super) async fn nothing(connection: &Connection) -> Result<(), TransferError> {
    let moved = Moved::default();
    let end = End { limit: Limit::Bytes(0), stop: Stop::default() };
    timeout(ANSWER_TIME, download(connection, &end, &moved)).await.map_err(|_| TransferError::Silence)?.map(|_| ())
}

/// Asks the server for its figures of the connection.
pub(super) async fn report(connection: &Connection) -> Result<SenderReport, TransferError> {
    let ask = async {
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_all(&Request::Report.encode()).await?;
        send.finish()?;
        let answer = recv.read_to_end(SenderReport::MAX_LEN).await.map_err(|error| match error {
            tiderace::ReadToEndError::Read(error) => error.into(),
            _ => TransferError::Answer,
        })?;
        SenderReport::decode(&answer).ok_or(TransferError::Answer)
    };
    timeout(ANSWER_TIME, ask).await.map_err(|_| TransferError::Silence)?
}

/// Asks for the CPU time of the server's process; `None` where its system does not say.
pub(super) async fn cpu_time(connection: &Connection) -> Result<Option<Duration>, TransferError> {
    let ask = async {
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_all(&Request::CpuTime.encode()).await?;
        send.finish()?;
        let answer = protocol::read_exact(&mut recv).await?.ok_or(TransferError::Answer)?;
        Ok(protocol::cpu_time(answer))
    };
    timeout(ANSWER_TIME, ask).await.map_err(|_| TransferError::Silence)?
}

/// Asks for one byte: the time from `started` until it is there. With `early` the request may leave before the handshake is complete.
pub(super) async fn first_response(
    connection: &Connection,
    started: Instant,
    early: bool,
) -> Result<Duration, TransferError> {
    let ask = async {
        let (mut send, mut recv) = if early { connection.open_bi_early().await? } else { connection.open_bi().await? };
        send.write_all(&Request::Transfer { upload: 0, download: 1 }.encode()).await?;
        send.finish()?;
        recv.read_chunk(1).await?.ok_or(TransferError::Answer)?;
        Ok(started.elapsed())
    };
    timeout(ANSWER_TIME, ask).await.map_err(|_| TransferError::Silence)?
}

/// The share of one of `parts` streams in `bytes`: they differ by one at most, and add up.
pub(super) fn part(bytes: u64, number: u64, parts: u64) -> u64 {
    bytes / parts + u64::from(number < bytes % parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        for (bytes, parts) in [(10, 3), (2, 5), (1_000_000, 7), (0, 1)] {
            let shares: Vec<u64> = (0..parts).map(|number| part(bytes, number, parts)).collect();
            assert_eq!(shares.iter().sum::<u64>(), bytes);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
