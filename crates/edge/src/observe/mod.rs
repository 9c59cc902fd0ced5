//! Observation of requests: how each of them ended (`ending`), its entry in the books (`entry`), which the body of its
//! answer carries (`body`), and its line in the access log (`log`).

mod body;
mod ending;
mod entry;
mod log;

pub(crate) use self::{
    ending::{Cause, Ending, ErrorWithEnding},
    entry::Entry,
    log::{AccessLog, Logs},
};
