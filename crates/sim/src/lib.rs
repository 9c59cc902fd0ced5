//! Discrete-event simulation: nodes that exchange datagrams over the links of `netem`, in virtual time.
//!
//! A [`Node`] has one method: it takes the time and perhaps a datagram, and returns datagrams and the time of its next call. A
//! [`Simulation`] owns the nodes and a [`Network`], and advances time from event to event. The crate reads no clock, and every random number
//! comes from the seed. So a run is repeatable bit for bit: the [`Trace`] hashes the fate of every packet.
//!
//! ```text
//! node → access delay → link (netem) → access delay → node
//! ```
//!
//! Not modelled: processing time of nodes, and batches of segments in network cards.

mod agenda;
mod books;
mod error;
mod network;
mod node;
mod outcome;
mod simulation;
mod slab;
mod topology;
mod trace;
pub mod workload;

pub use books::{Books, Imbalance};
pub use error::SimError;
pub use netem::Ecn;
pub use network::{Access, LinkId, Network, Undeliverable, Zone};
pub use node::{Datagram, Node, Outbox};
pub use outcome::{Ended, Outcome, Waiting};
pub use simulation::{Limits, Simulation};
pub use topology::{Dumbbell, Host, client_address, point_to_point, server_address};
pub use trace::{FlowLoss, Trace, TraceHash, TraceRecord};
