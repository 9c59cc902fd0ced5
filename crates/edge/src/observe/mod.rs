//! Observation of requests: its entry in the books (`entry`), which the body of its
//! answer carries (`body`), and its line in the access log (`log`); `traffic` counts what a tunnel of a proxy carries.

mod body;
mod entry;
mod log;
mod traffic;

pub(crate) use self::{
    entry::{Books, Entry},
    log::{AccessLog, Logs},
    traffic::{Direction, DropReason, Traffic},
};
