//! Errors of simulations, at their setup or while they run.

use units::Instant;

/// A simulation that could not be made or had to be stopped. Every one of these is a fault in the set-up or in a node,
/// never a property of the network.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The settings of a link contradict themselves.
    #[error("{link}: {source}")]
    Link {
        /// Link by name.
        link: &'static str,
        /// Fault.
        source: netem::ConfigError,
    },
    /// Two nodes with one address.
    #[error("the address {0} belongs to two nodes")]
    AddressTaken(core::net::IpAddr),
    /// More events than allowed: most likely two nodes answer each other for ever.
    #[error("stopped at {at:?} after {events} events, the limit; last event: {node} ({reason})")]
    TooManyEvents {
        /// Virtual time.
        at: Instant,
        /// The limit.
        events: u64,
        /// The node of the last event.
        node: String,
        /// Reason of the event.
        reason: &'static str,
    },
    /// A node is called repeatedly while time stands still.
    #[error("{node} keeps the clock at {at:?}: {calls} calls in one instant, the last because of: {reason}")]
    Spinning {
        /// The node.
        node: String,
        /// The instant that does not pass.
        at: Instant,
        /// Number of calls.
        calls: u32,
        /// The reason that the node gives for its deadline, or that a datagram arrived.
        reason: &'static str,
    },
    /// A node sent more at once than any computer could.
    #[error("{node} sent {packets} packets in one call at {at:?}; the limit is {limit}")]
    Flood {
        /// The node.
        node: String,
        /// Virtual time.
        at: Instant,
        /// Packets it sent.
        packets: usize,
        /// Packets allowed.
        limit: usize,
    },
}
