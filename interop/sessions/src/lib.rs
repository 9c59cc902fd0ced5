//! WebTransport over real sockets with stacks by others: what the peers written in Rust share.
//!
//! - `contract`: arguments of a peer, contents of streams and datagrams, what a peer reports.
//! - `script`: what the client and the server of a session do.
//! - `tls`: certificates of a run.

pub mod contract;
pub mod script;
pub mod tls;
