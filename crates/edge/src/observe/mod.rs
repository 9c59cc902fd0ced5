//! Observation of requests: the entry of a request (`entry`), which the body of its response carries (`body`), and its line in the access
//! log (`log`); `traffic` counts the bytes of a tunnel.

mod body;
mod entry;
mod log;
mod traffic;

pub(crate) use self::{
    entry::{Books, Entry},
    log::{AccessLog, Logs},
    traffic::{Direction, DropReason, Traffic},
};
