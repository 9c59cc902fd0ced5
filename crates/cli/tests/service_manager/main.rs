//! The gateway as a service manager runs it: on sockets that were opened for it, with messages about its state.
#![cfg(target_os = "linux")]

mod activation;
#[path = "../upgrade/clients.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod clients;
#[path = "../upgrade/fleet.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod fleet;
#[path = "../gateway/mod.rs"]
mod gateway;
mod notify;
#[path = "../scratch/mod.rs"]
mod scratch;
mod unit;
