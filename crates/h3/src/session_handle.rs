//! Access of a session to its connection, for protocols on an extended CONNECT that need more than the two bodies.

use std::{
    future::poll_fn,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tiderace::{ConnectionBudget, Dir, RecvStream, SendStream, StreamId};

use crate::{
    error::{Code, Error, Violation},
    sessions::{RefusedStreams, SessionStream},
    settings::{PeerSettings, Settings},
    shared::Shared,
};

/// Codes with which the two ends give a request's stream up, once they are known.
#[derive(Clone, Default)]
pub(crate) struct GiveUp(Arc<Codes>);

#[derive(Default)]
struct Codes {
    here: OnceLock<Code>,
    /// Code with which the peer asked to stop sending.
    stopped: OnceLock<Code>,
}

impl GiveUp {
    /// The code that was set at this end.
    pub(crate) fn get(&self) -> Option<Code> {
        self.0.here.get().copied()
    }

    /// Records the end of the sending side, which the peer may have requested.
    pub(crate) fn on_end(&self, error: &Error) {
        if let Error::Reset(code) = error {
            let _ = self.0.stopped.set(*code);
        }
    }
}

impl Shared {
    /// Settings of the peer, when they have come.
    pub(crate) async fn peer_settings(&self) -> Result<PeerSettings, Error> {
        self.heard(|state| {
            let Settings { connect_protocol, datagrams, .. } = state.peer?;
            Some(PeerSettings { connect_protocol, datagrams, others: state.peer_others.clone() })
        })
        .await
    }

    /// Takes a stream of the peer whose header names a session.
    pub(crate) fn on_session_stream(
        &self,
        session: u64,
        stream: (Option<SendStream>, RecvStream, &[u8], u64),
    ) -> Result<(), Violation> {
        let refused = self.lock().sessions.take(session, stream)?;
        if !refused.is_empty() {
            let refused = refused.refuse_in_session();
            self.lock().sessions.on_refused(session, refused);
        }
        Ok(())
    }

    /// Notes that a stream is no request of a session.
    pub(crate) fn decline_session(&self, stream: StreamId) {
        if self.support.is_none() {
            return;
        }
        let refused = {
            let state = &mut *self.lock();
            state.flows.decline(stream.0);
            state.sessions.decline(stream.0)
        };
        refused.refuse();
    }
}

/// Streams of an extended CONNECT, and its access to the connection. It is in the extensions of a request at a server and of a response at
/// a client, if [`SessionSupport`](crate::SessionSupport) is on. Dropping it ends the session: its streams are refused.
pub struct SessionStreams {
    shared: Arc<Shared>,
    stream: StreamId,
    give_up: GiveUp,
}

/// As [`SessionStreams`], in the extensions of a message, which have to be clonable: taken once.
#[derive(Clone)]
pub struct SessionOffer(Arc<std::sync::Mutex<Option<SessionStreams>>>);

impl SessionOffer {
    pub(crate) fn new(streams: SessionStreams) -> Self {
        Self(Arc::new(std::sync::Mutex::new(Some(streams))))
    }

    /// The streams; `None` when they were taken before.
    pub fn take(&self) -> Option<SessionStreams> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

impl SessionStreams {
    pub(crate) fn new(shared: &Arc<Shared>, stream: StreamId) -> Self {
        shared.lock().sessions.open(stream.0);
        Self { shared: shared.clone(), stream, give_up: GiveUp::default() }
    }

    pub(crate) fn given_up(&self) -> GiveUp {
        self.give_up.clone()
    }

    /// The session's number: that of its request's stream.
    pub fn id(&self) -> u64 {
        self.stream.0
    }

    /// The connection below.
    pub fn connection(&self) -> &tiderace::Connection {
        &self.shared.quic
    }

    /// Memory budget for data of the peer.
    pub fn memory(&self) -> &ConnectionBudget {
        &self.shared.memory
    }

    /// Value of a setting that this end has sent for sessions ([`SessionSupport::settings`](crate::SessionSupport::settings)); 0 where it
    /// has not.
    pub fn own_setting(&self, id: u64) -> u64 {
        let sent = self.shared.support.iter().flat_map(|support| &support.settings);
        sent.filter(|(sent, _)| *sent == id).map(|(_, value)| *value).next().unwrap_or(0)
    }

    /// Settings of the peer, when they have come.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn peer_settings(&self) -> Result<PeerSettings, Error> {
        self.shared.peer_settings().await
    }

    /// Next stream of one direction opened by the peer; `None` when the connection has ended.
    pub fn poll_accept(&self, dir: Dir, cx: &mut Context<'_>) -> Poll<Option<SessionStream>> {
        self.shared.lock().sessions.poll_accept(self.stream.0, dir, cx)
    }

    /// Sets the most bidirectional and unidirectional streams that the peer may open over the session's life.
    pub fn set_limits(&self, limits: [u64; 2]) {
        self.shared.lock().sessions.limit(self.stream.0, limits);
    }

    /// Streams of the session that were refused since the last call, before it could accept them.
    pub fn poll_refused(&self, cx: &mut Context<'_>) -> Poll<RefusedStreams> {
        self.shared.lock().sessions.poll_refused(self.stream.0, cx)
    }

    /// Ready when the peer has opened more streams than it may.
    pub fn poll_exceeded(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.lock().sessions.poll_exceeded(self.stream.0, cx)
    }

    /// Waits until the session has one of `max` places on the connection, which it keeps until its end. Ready at once when the connection
    /// has ended.
    pub async fn admitted(&self, max: usize) {
        poll_fn(|cx| self.shared.lock().sessions.poll_admit(self.stream.0, max, cx)).await;
    }

    /// Sets the code for the request's stream when the body that is sent on it fails, or before the response when no response is
    /// sent. The first call counts.
    pub fn give_up(&self, code: Code) {
        let _ = self.give_up.0.here.set(code);
    }

    /// Code with which the peer asked to stop sending on the request's stream, if it did.
    pub fn stopped(&self) -> Option<Code> {
        self.give_up.0.stopped.get().copied()
    }

    /// Waits until the peer accepts no more sessions (GOAWAY), or the connection has ended.
    pub async fn going_away(&self) {
        let _ = self.shared.heard(|state| state.goaway).await;
    }

    /// Ends the session: streams that were not accepted, and later ones, are refused (WT_SESSION_GONE).
    pub fn close(&self) {
        let refused = self.shared.lock().sessions.close(self.stream.0);
        refused.refuse();
    }

    /// Closes the connection because the peer violates the protocol.
    pub fn close_connection(&self, code: Code, reason: &str) {
        self.shared.fail(Violation { code, reason: reason.to_owned() });
    }
}

impl Drop for SessionStreams {
    fn drop(&mut self) {
        self.close();
    }
}
