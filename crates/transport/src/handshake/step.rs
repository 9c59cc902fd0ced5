//! One step of a TLS session, with its input and its result.
//!
//! A step owns the session while it runs, so it can run in place, or on another thread while the connection continues without it. All
//! costly parts of a handshake (key exchange, signature, certificates) run in steps.

use std::task::Waker;

use wire::{Side, TransportParameters};

use crate::tls::{Level, Progress, ServerTls, Session, TicketVersions, TlsError, client_hello};

/// Inputs with which a server starts TLS, kept until the first handshake bytes are authenticated: a forged first packet costs
/// no session.
pub(crate) struct Unstarted {
    pub(crate) tls: std::sync::Arc<dyn ServerTls>,
    pub(crate) parameters: Vec<u8>,
    /// The version of the client's first packet.
    pub(crate) original: u32,
    /// A version that the server would rather speak.
    pub(crate) upgrade: Option<Upgrade>,
    /// Waker of the driver that resumes the session.
    pub(crate) waker: Option<Waker>,
}

/// Another version for a client that offers it, and the parameters that go with it.
pub(crate) struct Upgrade {
    pub(crate) version: u32,
    pub(crate) parameters: Vec<u8>,
}

impl Unstarted {
    /// Looks into a client's first message whether it offers the version that is preferred; then the handshake is made
    /// for that.
    // RFC 9368 §2.3 MUST-1: the server reads the first flight as one of another version that it speaks, if the client says
    // that it can be.
    pub(crate) fn negotiate(&mut self, hello: &[u8]) -> Option<u32> {
        let Upgrade { version, parameters } = self.upgrade.take()?;
        // What cannot be read is refused by whoever reads all of it.
        let raw = client_hello::transport_parameters(hello)?;
        let information = TransportParameters::decode(Side::Client, &raw).ok()?.version_information?;
        information.available.contains(&version).then(|| {
            self.parameters = parameters;
            version
        })
    }
}

/// Session that runs a step, or the inputs to make one.
pub(super) enum Worker {
    /// The session does not exist yet.
    Unstarted(Unstarted),
    Session(Box<dyn Session>),
}

/// Bytes of the peer for a session, or another try of one that waits.
pub(crate) struct Step {
    pub(super) version: u32,
    pub(super) worker: Worker,
    pub(super) level: Level,
    /// `None` asks a session that waits to try again.
    pub(super) data: Option<Vec<u8>>,
}

/// Result of a [`Step`], with the session.
pub(crate) struct Done {
    /// `None` if it could not even be started, or was lost.
    pub(super) session: Option<Box<dyn Session>>,
    /// The level whose bytes were read; `None` when none were.
    pub(super) read: Option<Level>,
    pub(super) progress: Result<Progress, TlsError>,
}

impl Step {
    /// Returns whether a session exists: handshake bytes of the peer were authenticated already.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self.worker, Worker::Session(_))
    }

    /// Does the work.
    pub(crate) fn run(self) -> Done {
        let Self { version, worker, level, data } = self;
        let read = data.is_some().then_some(level);
        let started = match worker {
            Worker::Session(session) => Ok(session),
            Worker::Unstarted(Unstarted { tls, parameters, original, waker, .. }) => {
                tls.start(version, parameters).map(|mut session| {
                    session.set_ticket_versions(TicketVersions { offered: original, given: version });
                    if let Some(waker) = &waker {
                        session.set_waker(waker);
                    }
                    session
                })
            }
        };
        let mut session = match started {
            Ok(session) => session,
            Err(error) => return Done { session: None, read: None, progress: Err(error) },
        };
        let progress = match &data {
            Some(data) => session.read(level, data),
            None => session.resume(),
        };
        Done { session: Some(session), read, progress }
    }
}

impl Done {
    /// Result when the session is lost, because the run of the step failed.
    pub(crate) fn lost() -> Self {
        let error = TlsError::internal("the session was lost in the middle of a step");
        Self { session: None, read: None, progress: Err(error) }
    }
}
