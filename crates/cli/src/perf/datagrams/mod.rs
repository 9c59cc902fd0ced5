//! `perf --datagrams`: unreliable datagrams (RFC 9221) at a fixed rate.
//!
//! [`send`] sends them by a plan; [`receive`] receives them and measures delays; [`client`] and [`server`] agree on the plan on a stream,
//! and exchange their results; [`report`] combines both.
//!
//! The stream begins with a [`Request`](super::protocol::Request). The server answers with one byte: [`READY`], or [`TOO_LARGE`] and the
//! largest size (64 bits). Datagrams follow. The sender ends them with a [`Sent`] on the stream; after an upload the server answers with
//! its results. A client that wants no more ends its half of the stream.

mod client;
mod receive;
mod report;
mod send;
mod server;

use std::time::{Duration, Instant, SystemTime};

pub(super) use self::{
    report::Datagrams,
    server::{give, take},
};
use super::protocol::{decode, encode};

/// Smallest datagram in bytes: its number and the time at which it was sent.
pub(super) const SMALLEST: u64 = HEADER as u64;
/// Bytes of number and time.
const HEADER: usize = 16;
/// The server is ready for datagrams, or sends them.
const READY: u8 = 0;
/// Datagrams of this size do not fit into packets.
const TOO_LARGE: u8 = 1;
/// Time that the discovery of the path's MTU may take before a size counts as too large.
const MTU_TIME: Duration = Duration::from_secs(3);

/// Plan of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Payload in bit/s.
    pub(super) rate: u64,
    /// Payload of each datagram in bytes.
    pub(super) size: u64,
    /// Time for which they are sent.
    pub(super) span: Duration,
}

/// Account of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sent {
    /// Datagrams that were handed to the transport.
    offered: u64,
    /// Datagrams among them that never left: congestion control held them back until the queue was full.
    unsent: u64,
    /// Time for which datagrams were offered, in nanoseconds.
    nanos: u64,
}

impl Sent {
    const LEN: usize = 24;

    fn encode(self) -> [u8; Self::LEN] {
        encode([self.offered, self.unsent, self.nanos])
    }

    fn decode(bytes: [u8; Self::LEN]) -> Self {
        let [offered, unsent, nanos] = decode(bytes);
        Self { offered, unsent, nanos }
    }
}

/// Wall clock in nanoseconds since 1970 that never steps: it is read once.
struct Clock {
    origin: u64,
    started: Instant,
}

impl Clock {
    fn new() -> Self {
        let origin = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { origin: nanos(origin), started: Instant::now() }
    }

    fn now(&self) -> u64 {
        self.origin.saturating_add(nanos(self.started.elapsed()))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until datagrams of this size fit into packets, as long as discovery of the path's MTU may take.
///
/// # Errors
/// With the largest size that fits, in bytes; 0 when the peer takes none.
async fn fits(connection: &tiderace::Connection, size: u64) -> Result<(), u64> {
    let until = Instant::now() + MTU_TIME;
    loop {
        let most = connection.max_datagram_size().map_or(0, |size| size as u64);
        if size <= most {
            return Ok(());
        }
        if most == 0 || Instant::now() >= until {
            return Err(most);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
