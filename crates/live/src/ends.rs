//! Result of the ends of a run: clients and servers.

use emu::network::Snapshot;
use lab::contender::Measured;
use units::Duration;

/// Result of the ends of a run.
pub(crate) struct Ends {
    pub(crate) measured: Vec<Measured>,
    pub(crate) smoothed_rtts: Vec<Duration>,
    pub(crate) delivery_rate: Option<f64>,
    /// Nanoseconds of CPU time of the clients and the servers.
    pub(crate) cpu: [u64; 2],
    /// The emulator at the begin and the end of measuring.
    pub(crate) emulator: [Snapshot; 2],
}
