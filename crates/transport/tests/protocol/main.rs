//! The state machine beside its standards, in one binary: each file a module, so that `cargo test -p tiderace-transport paths::` runs one.

mod ack_frequency;
mod attempts;
mod batches;
mod books;
mod cold;
mod cost;
mod early_data;
mod endings;
mod fec;
mod garbage;
mod hand_outs;
mod handshake;
mod header_bits;
mod hostile;
mod hostile_server;
mod lowered_limits;
mod memory_process;
mod migration;
mod mtu;
mod paths;
mod post_quantum;
mod qlog;
mod rebinding;
mod receive_times;
mod records;
mod reset_at;
#[path = "../support/qlog_schema.rs"]
mod schema;
mod standards;
mod stateless;
#[path = "../support/mod.rs"]
mod support;
mod transfer;
mod versions;
