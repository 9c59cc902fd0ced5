//! Interface of a QUIC stack: datagrams and time in, datagrams, deadlines and signals out, and the
//! few commands that the script gives. One peer is one endpoint with at most one connection.
//!
//! Contract: after each `receive`, `expire` or command, drain `signal` until `None`, then call `transmit`, then read
//! `deadline`. A peer never needs to be called before its deadline or the next datagram.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::BytesMut;
use units::Instant;

use crate::certificates::Identity;

/// End of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Opens the connection.
    Client,
    /// Waits for it.
    Server,
}

impl Side {
    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Direction of a stream: one or both ends may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dir {
    /// Both ends send.
    Bi,
    /// The end that opened it sends.
    Uni,
}

/// RFC 9000 §2.1: the ID of stream `index` of a kind, by who opened it and its direction.
pub fn stream_id(initiator: Side, dir: Dir, index: u64) -> u64 {
    index << 2 | u64::from(dir == Dir::Uni) << 1 | u64::from(initiator == Side::Server)
}

/// Initiator of the stream with this ID, and its direction.
pub fn stream_kind(id: u64) -> (Side, Dir) {
    (if id & 1 == 0 { Side::Client } else { Side::Server }, if id & 2 == 0 { Dir::Bi } else { Dir::Uni })
}

/// Settings of both stacks in one run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Origin of the stack's own randomness, where it can be seeded.
    pub seed: [u8; 32],
    /// The server's certificate chain and the root that the client trusts.
    pub identity: Arc<Identity>,
    /// Offer the hybrid X25519MLKEM768 first, whose ClientHello needs two datagrams; classical groups only otherwise.
    pub post_quantum: bool,
    /// `max_idle_timeout` of both ends.
    pub idle_timeout: Duration,
    /// Initial flow-control window of each stream, bytes.
    pub stream_window: u64,
    /// Initial flow-control window of the connection, bytes.
    pub connection_window: u64,
    /// Number of streams of each direction that the other end may have open.
    pub streams: u64,
    /// Memory between connections, with which the ends offer and accept early data. Without it every
    /// connection is the first.
    pub memory: Option<Memory>,
    /// Keep a qlog in memory, where the stack writes one.
    pub log: bool,
    /// The congestion controller of both ends, with packets of one size; `None` leaves the choice to the stack's side of this crate.
    pub congestion: Option<Congestion>,
}

/// A congestion controller that other stacks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC.
    Cubic,
    /// NewReno.
    NewReno,
    /// The BBR that the stack has.
    Bbr,
}

/// TLS configurations, with the tickets in them, that outlive a connection.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<BTreeMap<Side, Arc<dyn Any + Send + Sync>>>>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    /// State kept for `side`; made by `make` at its first connection.
    ///
    /// # Errors
    /// Those of `make`.
    ///
    /// # Panics
    /// When it keeps something of another type: a memory is for one stack on each side.
    pub fn keep<T: Any + Send + Sync>(
        &self,
        side: Side,
        make: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<Arc<T>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match kept.get(&side) {
            Some(known) => known.clone(),
            None => kept.entry(side).or_insert(Arc::new(make()?)).clone(),
        };
        Ok(known.downcast().expect("one stack on each side"))
    }
}

/// The application protocol both ends insist on.
pub const ALPN: &[u8] = b"tiderace-interop";
/// The name in the server's certificate.
pub const SERVER_NAME: &str = "peer.test";

/// End of a connection, as one end saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The other application closed it with this code and reason.
    ByPeer {
        /// Application error code.
        code: u64,
        /// Reason phrase.
        reason: Vec<u8>,
    },
    /// Nothing was heard for the idle timeout.
    Idle,
    /// The other end has forgotten the connection and said so with a stateless reset.
    Reset,
    /// An error: found here, or reported by the other end's stack.
    Error(String),
}

/// Signal of a peer to the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The handshake is complete.
    Connected,
    /// The other end has opened streams: `accept` them.
    Opened(Dir),
    /// A stream has something to read: data, its end or a reset.
    Readable(u64),
    /// A stream that could not be written to can be again.
    Writable(u64),
    /// The other end asked to stop sending on a stream.
    Stopped {
        /// Stream ID.
        id: u64,
        /// Application error code; `None` when the stack no longer knows it.
        code: Option<u64>,
    },
    /// More streams of this direction may be opened.
    StreamsAvailable(Dir),
    /// The connection has ended. Not signalled for one's own `close`.
    Closed(Closed),
}

/// Result of reading a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Number of bytes written to the buffer.
    Data(usize),
    /// The stream was read to its end.
    Finished,
    /// The sender gave up with this code.
    Reset(u64),
    /// Nothing now; `Readable` follows.
    Blocked,
}

/// Result of writing to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Number of bytes taken, at least one.
    Taken(usize),
    /// Nothing fits; `Writable` follows.
    Blocked,
    /// The other end asked to stop sending, with this code (`None` when the stack no longer knows it).
    Stopped(Option<u64>),
}

/// A misuse or refusal that the script did not expect from the stack, in its own words.
pub type Refusal = String;

/// A QUIC stack as one end of one connection under virtual time.
pub trait Peer {
    /// A datagram arrived.
    fn receive(&mut self, now: Instant, datagram: BytesMut);
    /// Deadline for calling `expire`, and its reason.
    fn deadline(&mut self) -> Option<(Instant, &'static str)>;
    /// The deadline has come.
    fn expire(&mut self, now: Instant);
    /// Appends the datagrams that may leave.
    fn transmit(&mut self, now: Instant, out: &mut Vec<BytesMut>);
    /// Next signal since the last call.
    fn signal(&mut self) -> Option<Signal>;
    /// Nothing of the connection is left, also not the memory of its close. A server that never had one is not gone.
    fn gone(&self) -> bool;

    /// Opens a stream; `None` when the other end allows no more (`StreamsAvailable` follows).
    fn open(&mut self, dir: Dir) -> Option<u64>;
    /// Opens a stream whose data may leave before the handshake is complete, where a session is resumed.
    fn open_early(&mut self, dir: Dir) -> Option<u64> {
        self.open(dir)
    }
    /// Returns whether the server has accepted a client's early data; `None` while it is not known, or there is none.
    fn early_accepted(&self) -> Option<bool> {
        None
    }
    /// The next stream that the other end opened.
    fn accept(&mut self, dir: Dir) -> Option<u64>;
    /// Writes a prefix of `data`.
    ///
    /// # Errors
    /// When the stack refuses for a reason other than flow control or the other end's wish.
    fn write(&mut self, id: u64, data: &[u8]) -> Result<Write, Refusal>;
    /// Ends the sending part of a stream.
    ///
    /// # Errors
    /// When the stack refuses.
    fn finish(&mut self, id: u64) -> Result<(), Refusal>;
    /// Gives up the sending part of a stream.
    ///
    /// # Errors
    /// When the stack refuses.
    fn reset(&mut self, id: u64, code: u64) -> Result<(), Refusal>;
    /// Asks the other end to stop sending.
    ///
    /// # Errors
    /// When the stack refuses.
    fn stop_sending(&mut self, id: u64, code: u64) -> Result<(), Refusal>;
    /// Reads in order.
    ///
    /// # Errors
    /// When the stack refuses.
    fn read(&mut self, id: u64, buffer: &mut [u8]) -> Result<Read, Refusal>;
    /// Starts a key update. `false` when this stack never starts one.
    fn update_keys(&mut self) -> bool;
    /// Number of key updates, by either end; `None` when the stack does not tell.
    fn key_updates(&self) -> Option<u64>;
    /// Number of CRYPTO frames sent since the handshake was complete; `None` when the stack does not tell.
    fn crypto_frames_since_complete(&self) -> Option<u64> {
        None
    }
    /// State of the congestion controller, in the stack's own words; `None` when it shows nothing.
    fn controller(&self) -> Option<String> {
        None
    }
    /// Closes the connection.
    fn close(&mut self, now: Instant, code: u64, reason: &[u8]);

    /// Counters of the stack, for the account of a failed run; empty when it does not tell.
    fn figures(&self) -> String {
        String::new()
    }
    /// The end of the stack's qlog, when [`Settings::log`] asked for one and the stack writes it.
    fn log(&self) -> Vec<u8> {
        vec![]
    }
}
