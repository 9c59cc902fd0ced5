//! Upgrade: replacement of the running program by another one, without losing a connection.
//!
//! In the order of an upgrade: the older process starts the new program and offers it the sockets over a `channel`, in the `messages` of
//! the hand-over protocol. The newer one builds the whole gateway on what it has `taken_over` and reports success. The older process stops
//! reading and accepting, and the newer one begins. From then on the newest process reads all sockets, and forwards to the `siblings` the
//! packets of their connections that the kernel does not pass to them. The older processes answer through the same sockets until their last connection has ended.
//! `process::hand_over` and `process::take_over` have the work of each side on its gateway.
//!
//! A failure before the newer process serves changes nothing: the older one continues.

pub(crate) mod channel;
pub(crate) mod messages;
pub(crate) mod siblings;
mod taken_over;

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

pub(crate) use self::messages::describe;
pub use self::{
    channel::inherited_stream,
    messages::{PROTOCOL, RefusalCause},
};
pub(crate) use self::{siblings::Siblings, taken_over::TakenOver};

/// An upgrade that did not come about. The process that runs continues as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpgradeError {
    /// The program cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The programs have no version of the hand-over protocol in common.
    #[error("the hand-over protocol of the new program has version {from} to {to}, and {oldest} to {PROTOCOL} is needed", oldest = messages::OLDEST)]
    Protocol {
        /// The oldest version of the new program.
        from: u32,
        /// The newest version of the new program.
        to: u32,
    },
    /// The new program ended before it took over.
    #[error("the new program ended before it took over ({0}); it may have said why on standard error")]
    Ended(ExitStatus),
    /// The new program has not taken over in time.
    #[error("the new program has not taken over within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The new program cannot serve.
    #[error("the new program refuses: {error}")]
    Refused {
        /// Part that it cannot set up.
        cause: RefusalCause,
        /// Error of the new program.
        error: String,
        /// Advice of the new program.
        hint: Option<String>,
    },
    /// The process that serves does not hand over. Only its words are known: it may be of another version.
    #[error("the process that serves refuses: {0}")]
    NotOffered(String),
    /// Another process has taken over from this one already.
    #[error("this process has handed over to another one already")]
    HandedOver,
    /// Too many older processes with connections to be distinguished.
    #[error("{0} older processes still have connections")]
    TooMany(usize),
    /// Standard input that is no channel to an older process.
    #[error("there is no process on the standard input to take over from")]
    NoOlder(#[source] io::Error),
    /// The processes cannot talk to each other.
    #[error("the hand-over broke off: {0}")]
    Broken(#[from] io::Error),
}

impl UpgradeError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Start { .. } => "name a program that can be executed with --program",
            Self::Protocol { .. } | Self::NotOffered(_) => {
                "this program cannot take over from the one that runs: restart the service to change to it"
            }
            Self::Ended(_) => "run it by itself: `PROGRAM edge check --config FILE`",
            Self::Late(_) => "`upgrade.start-timeout` is the time that it has",
            Self::Refused { hint, .. } => return hint.clone(),
            Self::HandedOver => "ask the process that serves: its number is in the log",
            Self::TooMany(_) => "wait until some have ended, or set a shorter `upgrade.drain`",
            Self::NoOlder(_) => "`tiderace edge upgrade`",
            Self::Broken(_) => return None,
        };
        Some(hint.to_owned())
    }
}
