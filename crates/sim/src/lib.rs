//! Discrete-event simulation: nodes that exchange datagrams over the links of `netem`, in virtual time.
//!
//! A [`Node`] is anything with one verb: it takes the time and perhaps a datagram, and answers with datagrams and with
//! the time at which it wants to be called again. A [`Simulation`] owns the nodes and a [`Network`] and moves time from
//! event to event. Nothing reads a clock and every random number comes from the seed, so a run can be repeated bit for
//! bit: the [`Trace`] folds every packet's fate into a hash that shows it.
//!
//! ```text
//! node → access delay → link (netem) → access delay → node
//! ```
//!
//! What is not modelled: the time that a computer takes. A node answers in no time at all, and what a batch of segments
//! does to a network card does not happen.

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
