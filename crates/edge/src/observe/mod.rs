//! Observation of requests: the entry of a request (`entry`), which the body of its response carries (`body`), and its line in the access
//! log (`log`), which a `sink` takes; `traffic` counts the bytes of a tunnel. `trial` times requests for the comparison of QUIC with TCP.

mod body;
mod entry;
mod log;
mod sink;
mod traffic;
mod trial;

pub(crate) use self::{
    entry::{Books, Entry},
    log::{AccessLog, Logs},
    traffic::{Direction, DropReason, Traffic},
    trial::take_part,
};
