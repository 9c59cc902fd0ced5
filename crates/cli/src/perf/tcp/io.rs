//! Protocol of `perf --tcp` on a connection.
//!
//! The client sends one request, as on a QUIC stream ([`Request`]). Data to the server follows unframed, up to the client's close_notify.
//! Data from the server is sent in chunks after their length (32 bits in network byte order); length 0 ends it. After it comes a trailer,
//! which also has its length: a [`Receipt`] of the data that the server received, and a [`TcpReport`] of the data that it sent. A client
//! that has enough sends close_notify, and the server ends with the current chunk. A request for CPU time is answered by that alone.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, timeout},
};

use super::report::TcpReport;
use crate::perf::{
    progress::Moved,
    protocol::{self, CHUNK, Receipt, Request, UNTIL_STOPPED},
    transfer::{ANSWER_TIME, Delivered, End, Limit},
};

/// The application protocol.
pub(super) const ALPN: &[u8] = b"tiderace-perf-tcp/2";

/// Reason for a transfer that came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum TcpError {
    #[error("{}", crate::address::plain(.0))]
    Io(#[from] io::Error),
    #[error("the server sent {got} bytes instead of {wanted}")]
    Short { got: u64, wanted: u64 },
    #[error("the server's answer is not understood")]
    Answer,
    #[error("the server does not answer")]
    Silence,
}

/// Answer of the server behind all data.
pub(super) struct Trailer {
    pub(super) receipt: Receipt,
    /// `None` where the server's system has no statistics.
    pub(super) report: Option<TcpReport>,
}

impl Trailer {
    async fn write(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let report = self.report.as_ref().map(TcpReport::encode).unwrap_or_default();
        let length = u32::try_from(Receipt::LEN + report.len()).map_err(io::Error::other)?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.receipt.encode());
        bytes.extend_from_slice(&report);
        writer.write_all(&bytes).await
    }

    async fn read(reader: &mut (impl AsyncRead + Unpin)) -> Result<Self, TcpError> {
        let length = usize::try_from(reader.read_u32().await?).unwrap_or(usize::MAX);
        if !(Receipt::LEN..=Receipt::LEN + TcpReport::MAX_LEN).contains(&length) {
            return Err(TcpError::Answer);
        }
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).await?;
        let (receipt, report) = bytes.split_first_chunk().ok_or(TcpError::Answer)?;
        let report = match report {
            [] => None,
            report => Some(TcpReport::decode(report).ok_or(TcpError::Answer)?),
        };
        Ok(Self { receipt: Receipt::decode(*receipt), report })
    }
}

/// Receives, and takes the trailer behind it.
pub(super) async fn download<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    end: &End,
    moved: &Moved,
) -> Result<(Delivered, Trailer), TcpError> {
    let started = Instant::now();
    stream.write_all(&Request::Transfer { upload: 0, download: end.bytes() }.encode()).await?;
    stream.flush().await?;
    let (mut delivered, mut buffer) = (Delivered::default(), vec![0; CHUNK]);
    let mut chunks = Chunks::default();
    let mut over = std::pin::pin!(end.over());
    loop {
        let data = tokio::select! {
            biased;
            () = &mut over => {
                delivered.elapsed = started.elapsed();
                break;
            }
            data = chunks.read(&mut stream, &mut buffer) => data?,
        };
        if data == 0 {
            delivered.elapsed = started.elapsed();
            return match end.limit {
                Limit::Bytes(wanted) if wanted == delivered.bytes => Ok((delivered, Trailer::read(&mut stream).await?)),
                Limit::Bytes(wanted) => Err(TcpError::Short { got: delivered.bytes, wanted }),
                // There is no end before the time is up.
                Limit::At(_) => Err(TcpError::Answer),
            };
        }
        delivered.bytes += data as u64;
        moved.add(data);
    }
    // What is on its way comes before the trailer, and does not count any more.
    stream.shutdown().await?;
    let rest = async {
        while chunks.read(&mut stream, &mut buffer).await? > 0 {}
        Trailer::read(&mut stream).await
    };
    let trailer = timeout(ANSWER_TIME, rest).await.map_err(|_| TcpError::Silence)??;
    Ok((delivered, trailer))
}

/// First byte of an answer: the time from `started`.
pub(super) async fn first_response<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    started: Instant,
) -> Result<Duration, TcpError> {
    let ask = async {
        stream.write_all(&Request::Transfer { upload: 0, download: 1 }.encode()).await?;
        stream.flush().await?;
        let (mut chunks, mut buffer) = (Chunks::default(), [0; 1]);
        if chunks.read(&mut stream, &mut buffer).await? != 1 {
            return Err(TcpError::Answer);
        }
        let first = started.elapsed();
        if chunks.read(&mut stream, &mut buffer).await? != 0 {
            return Err(TcpError::Answer);
        }
        Trailer::read(&mut stream).await?;
        stream.shutdown().await?;
        Ok(first)
    };
    timeout(ANSWER_TIME, ask).await.map_err(|_| TcpError::Silence)?
}

/// CPU time of the server's process; `None` where its system does not say.
pub(super) async fn cpu_time<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> Result<Option<Duration>, TcpError> {
    let ask = async {
        stream.write_all(&Request::CpuTime.encode()).await?;
        stream.flush().await?;
        let mut answer = [0; protocol::CPU_TIME_LEN];
        stream.read_exact(&mut answer).await?;
        stream.shutdown().await?;
        Ok(protocol::cpu_time(answer))
    };
    timeout(ANSWER_TIME, ask).await.map_err(|_| TcpError::Silence)?
}

/// Sends. What counts is what the server received, and how long that took there.
pub(super) async fn upload<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    end: &End,
    moved: &Moved,
) -> Result<Delivered, TcpError> {
    stream.write_all(&Request::Transfer { upload: end.bytes(), download: 0 }.encode()).await?;
    let payload = protocol::payload();
    let mut left = end.bytes();
    let mut over = std::pin::pin!(end.over());
    let mut is_over = false;
    while left > 0 && !is_over {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(payload.len());
        tokio::select! {
            biased;
            () = &mut over => is_over = true,
            written = stream.write(&payload[..size]) => {
                let written = written?;
                moved.add(written);
                if end.bytes() != UNTIL_STOPPED {
                    left -= written as u64;
                }
            }
        }
    }
    let answer = async {
        stream.shutdown().await?;
        // No data, then the trailer.
        match stream.read_u32().await? {
            0 => Trailer::read(&mut stream).await,
            _ => Err(TcpError::Answer),
        }
    };
    let trailer =
        if is_over { timeout(ANSWER_TIME, answer).await.map_err(|_| TcpError::Silence)?? } else { answer.await? };
    let Receipt { bytes, nanos } = trailer.receipt;
    Ok(Delivered { bytes, elapsed: Duration::from_nanos(nanos) })
}

/// Chunks of a download as they are read. A read that is given up loses nothing.
#[derive(Default)]
struct Chunks {
    /// Bytes of the chunk at hand that are still to come.
    left: usize,
    head: [u8; 4],
    /// Bytes of `head` that have come.
    have: usize,
}

impl Chunks {
    /// Bytes of data in `buffer`; 0 at the end.
    async fn read(&mut self, reader: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> Result<usize, TcpError> {
        while self.left == 0 {
            match reader.read(&mut self.head[self.have..]).await? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => self.have += read,
            }
            if self.have == self.head.len() {
                self.have = 0;
                self.left = usize::try_from(u32::from_be_bytes(self.head)).unwrap_or(usize::MAX);
                if self.left == 0 {
                    return Ok(0);
                }
            }
        }
        let most = self.left.min(buffer.len());
        match reader.read(&mut buffer[..most]).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            read => {
                self.left -= read;
                Ok(read)
            }
        }
    }
}

/// Counters of a connection at the server.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// Answers the request of a connection.
pub(super) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    counts: &Counts,
    report: impl AsyncFnOnce() -> Option<TcpReport>,
) -> Result<(), TcpError> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut request = [0; Request::LEN];
    reader.read_exact(&mut request).await?;
    let (upload, download) = match Request::decode(request) {
        Some(Request::Transfer { upload, download }) => (upload, download),
        Some(Request::CpuTime) => {
            writer.write_all(&protocol::own_cpu_time()).await?;
            writer.shutdown().await?;
            return Ok(());
        }
        _ => return Err(TcpError::Answer),
    };
    let receipt = if upload > 0 {
        take(&mut reader, upload, &counts.received).await?
    } else {
        let stopped = AtomicBool::new(false);
        let watch = async {
            // Nothing else than the end comes; a connection that fails shows where it is written to.
            let _ = reader.read(&mut [0]).await;
            stopped.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            given = give(&mut writer, download, &stopped, &counts.sent) => given?,
            () = watch => {}
        }
        Receipt { bytes: 0, nanos: 0 }
    };
    writer.write_u32(0).await?;
    writer.flush().await?;
    Trailer { receipt, report: report().await }.write(&mut writer).await?;
    writer.shutdown().await?;
    // A socket that is closed with something unread takes back what is on its way.
    let rest = async { while reader.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {} };
    let _ = timeout(ANSWER_TIME, rest).await;
    Ok(())
}

/// Takes what the client sends.
async fn take(reader: &mut (impl AsyncRead + Unpin), upload: u64, count: &AtomicU64) -> Result<Receipt, TcpError> {
    let (started, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; CHUNK]);
    loop {
        match reader.read(&mut buffer).await? {
            0 => break,
            read => {
                bytes += read as u64;
                count.fetch_add(read as u64, Ordering::Relaxed);
            }
        }
        if bytes > upload {
            return Err(TcpError::Answer);
        }
    }
    Ok(Receipt { bytes, nanos: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX) })
}

/// Sends what the client wants, until it has enough.
async fn give(
    writer: &mut (impl AsyncWrite + Unpin),
    download: u64,
    stopped: &AtomicBool,
    count: &AtomicU64,
) -> io::Result<()> {
    let whole = chunk(CHUNK);
    let mut left = download;
    while left > 0 && !stopped.load(Ordering::Relaxed) {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK);
        if size == CHUNK {
            writer.write_all(&whole).await?;
        } else {
            writer.write_all(&chunk(size)).await?;
        }
        count.fetch_add(size as u64, Ordering::Relaxed);
        if download != UNTIL_STOPPED {
            left -= size as u64;
        }
    }
    Ok(())
}

/// A chunk of `size` bytes behind its length.
fn chunk(size: usize) -> Vec<u8> {
    let mut bytes = u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    bytes.extend_from_slice(&protocol::payload()[..size]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;

    async fn pair(end: &End, up: bool) -> (u64, u64, u64) {
        let (client, server) = tokio::io::duplex(10_000);
        let (counts, moved) = (Counts::default(), Moved::default());
        let asking = async {
            if up {
                upload(client, end, &moved).await.unwrap()
            } else {
                let (delivered, trailer) = download(client, end, &moved).await.unwrap();
                assert!(trailer.report.is_none());
                delivered
            }
        };
        let (delivered, answered) = tokio::join!(asking, answer(server, &counts, async || None));
        answered.unwrap();
        (delivered.bytes, counts.received.into_inner(), counts.sent.into_inner())
    }

    #[tokio::test]
    async fn bytes_arrive_whole() {
        for bytes in [1, 65_536, 200_001] {
            let end = End { limit: Limit::Bytes(bytes), stop: Stop::default() };
            assert_eq!(pair(&end, true).await, (bytes, bytes, 0));
            assert_eq!(pair(&end, false).await, (bytes, 0, bytes));
        }
    }

    #[tokio::test]
    async fn a_time_ends_both_ways() {
        for up in [true, false] {
            let limit = Limit::At(Instant::now() + Duration::from_millis(50));
            let (delivered, received, sent) = pair(&End { limit, stop: Stop::default() }, up).await;
            assert!(delivered > 0, "nothing in 50 ms");
            // What was in progress when the time was up does not count.
            assert!(if up { delivered == received } else { delivered <= sent }, "{delivered} {received} {sent}");
        }
    }

    #[tokio::test]
    async fn wrong_answers_are_said() {
        let end = End { limit: Limit::Bytes(10), stop: Stop::default() };
        for (answer, expected) in [
            (&[0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0][..], "3 bytes instead of 10"),
            (&[0, 0, 0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1], "not understood"),
            (&[0, 0, 0, 10, 1, 2], "end of file"),
        ] {
            let (client, mut server) = tokio::io::duplex(10_000);
            server.write_all(answer).await.unwrap();
            server.shutdown().await.unwrap();
            let error = download(client, &end, &Moved::default()).await.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
