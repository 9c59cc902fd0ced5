//! Protocol between `perf client` and `perf server`.
//!
//! Everything goes over bidirectional streams that the client opens. Each has one request of four 64-bit numbers in network byte order, the
//! first of which is its type.
//!
//! - A transfer: the number of bytes that the client will send, and the number that it wants. Then data is sent both ways.
//!   [`UNTIL_STOPPED`] as a number means: until the client resets the stream (to the server) or sends STOP_SENDING (from it). After an
//!   upload the server answers with a [`Receipt`], after its own data.
//! - Datagrams to the server, or from it by a plan: see [`datagrams`](super::datagrams).
//! - A report: the statistics of the connection at the server's end ([`SenderReport`]).
//! - CPU time: that of the server's process so far, in nanoseconds; [`UNKNOWN`] where the system does not say.

use std::time::Duration;

use bytes::Bytes;
use tiderace::{ReadError, RecvStream};

use super::{cpu::process_time, datagrams::Plan, fec::Counts, samples::Samples};

/// The application protocol.
pub(super) const ALPN: &str = "tiderace-perf/4";
/// A transfer without an end of its own.
pub(super) const UNTIL_STOPPED: u64 = u64::MAX;
/// Kinds of requests.
const TRANSFER: u64 = 0;
const REPORT: u64 = 1;
const DATAGRAMS_UP: u64 = 2;
const DATAGRAMS_DOWN: u64 = 3;
const CPU_TIME: u64 = 4;
/// CPU time that the system does not say.
const UNKNOWN: u64 = u64::MAX;
/// Code of a stream that ends because its time has ended.
pub(super) const TIME_IS_UP: u64 = 0;
/// Code of a stream or a connection on which the peer does not follow the protocol.
pub(super) const PROTOCOL_ERROR: u64 = 1;
/// Bytes that are written at a time.
pub(super) const CHUNK: usize = 64 * 1024;

/// The payload of transfers: written repeatedly, never copied.
pub(super) fn payload() -> Bytes {
    static PAYLOAD: [u8; CHUNK] = {
        let mut bytes = [0; CHUNK];
        let mut place = 0;
        while place < CHUNK {
            // Only its lowest byte counts.
            bytes[place] = (place & 0xff) as u8;
            place += 1;
        }
        bytes
    };
    Bytes::from_static(&PAYLOAD)
}

/// Request of a client on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Bytes to the server, and bytes from it.
    Transfer { upload: u64, download: u64 },
    /// Datagrams to the server.
    DatagramsUp,
    /// Datagrams from the server.
    DatagramsDown(Plan),
    /// The figures of the connection.
    Report,
    /// CPU time of the server's process.
    CpuTime,
}

impl Request {
    /// Bytes of a request.
    pub(super) const LEN: usize = 32;

    pub(super) fn encode(self) -> [u8; Self::LEN] {
        encode(match self {
            Self::Transfer { upload, download } => [TRANSFER, upload, download, 0],
            Self::Report => [REPORT, 0, 0, 0],
            Self::CpuTime => [CPU_TIME, 0, 0, 0],
            Self::DatagramsUp => [DATAGRAMS_UP, 0, 0, 0],
            Self::DatagramsDown(Plan { rate, size, span }) => {
                [DATAGRAMS_DOWN, rate, size, u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)]
            }
        })
    }

    /// Reads what [`Self::encode`] wrote. `None` for a kind that there is not.
    pub(super) fn decode(bytes: [u8; Self::LEN]) -> Option<Self> {
        match decode(bytes) {
            [TRANSFER, upload, download, _] => Some(Self::Transfer { upload, download }),
            [REPORT, ..] => Some(Self::Report),
            [CPU_TIME, ..] => Some(Self::CpuTime),
            [DATAGRAMS_UP, ..] => Some(Self::DatagramsUp),
            [DATAGRAMS_DOWN, rate, size, nanos] => {
                Some(Self::DatagramsDown(Plan { rate, size, span: Duration::from_nanos(nanos) }))
            }
            _ => None,
        }
    }

    /// Reads the request of a stream. `None` when it ends before, or is of no kind that there is.
    pub(super) async fn read(stream: &mut RecvStream) -> Result<Option<Self>, ReadError> {
        Ok(read_exact(stream).await?.and_then(Self::decode))
    }
}

/// Answer to [`Request::CpuTime`].
pub(super) const CPU_TIME_LEN: usize = 8;

/// CPU time of this process, as it is sent.
pub(super) fn own_cpu_time() -> [u8; CPU_TIME_LEN] {
    let nanos = process_time().map_or(UNKNOWN, |time| u64::try_from(time.as_nanos()).unwrap_or(UNKNOWN));
    nanos.to_be_bytes()
}

/// CPU time of the peer's process; `None` where its system does not say.
pub(super) fn cpu_time(bytes: [u8; CPU_TIME_LEN]) -> Option<Duration> {
    Some(u64::from_be_bytes(bytes)).filter(|nanos| *nanos != UNKNOWN).map(Duration::from_nanos)
}

/// Receipt of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    /// Bytes, each counted once.
    pub(super) bytes: u64,
    /// From when the request came until the last byte came.
    pub(super) nanos: u64,
}

impl Receipt {
    /// Bytes of a receipt.
    pub(super) const LEN: usize = 16;

    pub(super) fn encode(self) -> [u8; Self::LEN] {
        encode([self.bytes, self.nanos])
    }

    pub(super) fn decode(bytes: [u8; Self::LEN]) -> Self {
        let [bytes, nanos] = decode(bytes);
        Self { bytes, nanos }
    }

    /// Reads the receipt at the end of a stream. `None` when it ends before.
    pub(super) async fn read(stream: &mut RecvStream) -> Result<Option<Self>, ReadError> {
        Ok(read_exact(stream).await?.map(Self::decode))
    }
}

/// Report of the sending end on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SenderReport {
    pub(super) packets_sent: u64,
    pub(super) packets_lost: u64,
    /// Retransmissions included.
    pub(super) stream_bytes_sent: u64,
    pub(super) stream_bytes_retransmitted: u64,
    /// Congestion window in bytes.
    pub(super) window: u64,
    pub(super) fec: Counts,
    pub(super) rtt: Samples,
}

impl SenderReport {
    /// More than any report takes, in bytes.
    pub(super) const MAX_LEN: usize = 64 * 1024;

    pub(super) fn new(stats: &tiderace::Stats, rtt: Samples) -> Self {
        Self {
            packets_sent: stats.packets_sent,
            packets_lost: stats.packets_lost,
            stream_bytes_sent: stats.stream_bytes_sent,
            stream_bytes_retransmitted: stats.stream_bytes_retransmitted,
            window: stats.congestion_window,
            fec: Counts::new(stats),
            rtt,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (sum, value) in [
            (&mut self.packets_sent, other.packets_sent),
            (&mut self.packets_lost, other.packets_lost),
            (&mut self.stream_bytes_sent, other.stream_bytes_sent),
            (&mut self.stream_bytes_retransmitted, other.stream_bytes_retransmitted),
            (&mut self.window, other.window),
        ] {
            *sum = sum.saturating_add(value);
        }
        self.fec.merge(&other.fec);
        self.rtt.merge(other.rtt);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let own = [
            self.packets_sent,
            self.packets_lost,
            self.stream_bytes_sent,
            self.stream_bytes_retransmitted,
            self.window,
        ];
        for number in own.into_iter().chain(self.fec.numbers()) {
            out.extend_from_slice(&number.to_be_bytes());
        }
        self.rtt.encode(&mut out);
        out
    }

    /// Reads what [`Self::encode`] wrote. `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rtt) = bytes.split_first_chunk::<{ 8 * (5 + Counts::LEN) }>()?;
        let number = |place: usize| u64::from_be_bytes(head[place * 8..][..8].try_into().expect("8 bytes"));
        Some(Self {
            packets_sent: number(0),
            packets_lost: number(1),
            stream_bytes_sent: number(2),
            stream_bytes_retransmitted: number(3),
            window: number(4),
            fec: Counts::from_numbers(std::array::from_fn(|place| number(5 + place))),
            rtt: Samples::decode(rtt)?,
        })
    }
}

/// Numbers in network byte order.
pub(super) fn encode<const NUMBERS: usize, const BYTES: usize>(numbers: [u64; NUMBERS]) -> [u8; BYTES] {
    const { assert!(BYTES == NUMBERS * 8) };
    let mut bytes = [0; BYTES];
    bytes.chunks_exact_mut(8).zip(numbers).for_each(|(place, number)| place.copy_from_slice(&number.to_be_bytes()));
    bytes
}

/// Reads what [`encode`] wrote.
pub(super) fn decode<const NUMBERS: usize, const BYTES: usize>(bytes: [u8; BYTES]) -> [u64; NUMBERS] {
    const { assert!(BYTES == NUMBERS * 8) };
    std::array::from_fn(|place| u64::from_be_bytes(bytes[place * 8..][..8].try_into().expect("8 bytes")))
}

/// Reads so many bytes. `None` when the stream ends before.
pub(super) async fn read_exact<const BYTES: usize>(stream: &mut RecvStream) -> Result<Option<[u8; BYTES]>, ReadError> {
    let (mut bytes, mut have) = ([0; BYTES], 0);
    while have < bytes.len() {
        let Some(chunk) = stream.read_chunk(bytes.len() - have).await? else { return Ok(None) };
        bytes[have..have + chunk.len()].copy_from_slice(&chunk);
        have += chunk.len();
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_back() {
        for request in [
            Request::Report,
            Request::CpuTime,
            Request::DatagramsUp,
            Request::DatagramsDown(Plan { rate: 20_000_000, size: 1_000, span: Duration::from_secs(10) }),
            Request::Transfer { upload: 0, download: UNTIL_STOPPED },
            Request::Transfer { upload: 1, download: 0x0102_0304_0506_0708 },
        ] {
            assert_eq!(Request::decode(request.encode()), Some(request));
        }
        let bytes = Request::Transfer { upload: 1, download: 2 }.encode();
        assert_eq!(
            (&bytes[..8], &bytes[8..16], bytes[23], &bytes[24..]),
            (&[0; 8][..], &1u64.to_be_bytes()[..], 2, &[0; 8][..])
        );
        assert_eq!(Request::decode([9; Request::LEN]), None);
    }

    #[test]
    fn reports_read_back_and_fit() {
        let mut rtt = Samples::new();
        (0..10_000).for_each(|ms| rtt.record(Duration::from_millis(ms)));
        let stats = tiderace::Stats {
            packets_sent: 1,
            packets_lost: 2,
            stream_bytes_sent: 3,
            congestion_window: 5,
            fec_symbols_sent: 4,
            ..Default::default()
        };
        let report = SenderReport::new(&stats, rtt);
        let bytes = report.encode();
        assert!(bytes.len() <= SenderReport::MAX_LEN);
        assert_eq!(SenderReport::decode(&bytes), Some(report));
        assert_eq!(SenderReport::decode(&bytes[..100]), None);
    }
}
