//! Observation of requests: its entry in the books (`entry`), which the body of its
//! answer carries (`body`), and its line in the access log (`log`).

mod body;
mod entry;
mod log;

pub(crate) use self::{
    entry::{Books, Entry},
    log::{AccessLog, Logs},
};
