//! A session, to the application.

use std::{future::poll_fn, sync::Arc};

use bytes::Bytes;
use tiderace::Dir;

use crate::{
    config::Draft,
    error::{ConnectionFault, DatagramError, SessionEnd},
    inner::{Alive, Inner},
    peer_stream::PeerStream,
    recv_stream::RecvStream,
    send_stream::SendStream,
};

/// First number on a bidirectional stream, and on a unidirectional one (draft-ietf-webtrans-http3 §4.2, §4.3).
const SIGNALS: [u64; 2] = [0x41, 0x54];

/// A session. Clones share it; with the last of them, and the last stream, it is closed with code 0.
#[derive(Clone)]
pub struct Session(Arc<Alive>);

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.id())
    }
}

/// Admission of a stream that is not open yet: released when the opening is cancelled.
struct Admission<'a>(&'a Inner, usize);

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.flow.give_back(self.1));
    }
}

impl Session {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self(Arc::new(Alive(inner)))
    }

    fn inner(&self) -> &Inner {
        &self.0.0
    }

    /// The session ID.
    pub fn id(&self) -> u64 {
        self.inner().streams.id()
    }

    /// The connection below, which other sessions and requests may share.
    pub fn connection(&self) -> &tiderace::Connection {
        self.inner().streams.connection()
    }

    /// The application protocol that was agreed on (draft-ietf-webtrans-http3 §3.3).
    pub fn protocol(&self) -> Option<&str> {
        self.inner().protocol.as_deref()
    }

    /// The variant of the protocol that both ends speak.
    pub fn draft(&self) -> Draft {
        self.inner().draft
    }

    /// Returns whether both ends declared flow control of sessions.
    pub fn has_flow_control(&self) -> bool {
        self.inner().lock().flow.is_enabled()
    }

    /// Opens a bidirectional stream, as soon as the limits of the session and of the connection permit.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn open_bi(&self) -> Result<(SendStream, RecvStream), SessionEnd> {
        let connection = self.connection();
        let open = async { connection.open_bi().await.map_err(SessionEnd::from) };
        let (send, recv, header) = self
            .open(Dir::Bi, async {
                let (send, recv) = open.await?;
                Ok((send, Some(recv)))
            })
            .await?;
        let recv = recv.expect("a bidirectional stream has both halves");
        Ok((SendStream::new(send, header, &self.0, None)?, RecvStream::new(recv, (0, Bytes::new()), &self.0, None)?))
    }

    /// Opens a unidirectional stream, as soon as the limits of the session and of the connection permit.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn open_uni(&self) -> Result<SendStream, SessionEnd> {
        let connection = self.connection();
        let (send, _, header) = self
            .open(Dir::Uni, async {
                let send = connection.open_uni().await?;
                Ok((send, None))
            })
            .await?;
        SendStream::new(send, header, &self.0, None)
    }

    /// Opens a stream within the session's limit, and writes its header; with the header's length.
    async fn open(
        &self,
        dir: Dir,
        open: impl Future<Output = Result<(tiderace::SendStream, Option<tiderace::RecvStream>), SessionEnd>>,
    ) -> Result<(tiderace::SendStream, Option<tiderace::RecvStream>, u64), SessionEnd> {
        let (inner, dir) = (self.inner(), dir as usize);
        poll_fn(|cx| {
            let state = &mut *inner.lock();
            if let Some(end) = &state.end {
                return std::task::Poll::Ready(Err(end.clone()));
            }
            let Err(limit) = state.flow.open(dir) else { return std::task::Poll::Ready(Ok(())) };
            state.wait(cx);
            inner.outgoing.streams_blocked(dir, limit);
            std::task::Poll::Pending
        })
        .await?;
        let admission = Admission(inner, dir);
        let mut header = Vec::with_capacity(16);
        wire::varint::push(&mut header, SIGNALS[dir]);
        wire::varint::push(&mut header, self.id());
        let length = header.len() as u64;
        let opened = async {
            let (mut send, recv) = open.await?;
            let written = send.write_chunk(header.into()).await;
            written.map_err(|error| match error {
                tiderace::WriteError::ConnectionClosed(reason) => ConnectionFault::Closed(reason),
                other => ConnectionFault::Stream(other),
            })?;
            Ok((send, recv, length))
        };
        let opened = tokio::select! {
            biased;
            end = inner.ended() => Err(end),
            opened = opened => opened,
        }?;
        // The peer learns of the stream.
        std::mem::forget(admission);
        Ok(opened)
    }

    /// The next bidirectional stream that the peer opened.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn accept_bi(&self) -> Result<(SendStream, RecvStream), SessionEnd> {
        let stream = self.accept(Dir::Bi).await?;
        let peers = PeerStream::new(self.0.clone(), Dir::Bi, stream.charge);
        let send = stream.send.expect("a bidirectional stream has both halves");
        let send = SendStream::new(send, 0, &self.0, Some(peers.clone()))?;
        Ok((send, RecvStream::new(stream.recv, (stream.header, stream.rest), &self.0, Some(peers))?))
    }

    /// The next unidirectional stream that the peer opened.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn accept_uni(&self) -> Result<RecvStream, SessionEnd> {
        let stream = self.accept(Dir::Uni).await?;
        let peers = PeerStream::new(self.0.clone(), Dir::Uni, stream.charge);
        RecvStream::new(stream.recv, (stream.header, stream.rest), &self.0, Some(peers))
    }

    async fn accept(&self, dir: Dir) -> Result<h3_quic::SessionStream, SessionEnd> {
        match poll_fn(|cx| self.inner().streams.poll_accept(dir, cx)).await {
            Some(stream) => Ok(stream),
            None => Err(self.closed().await),
        }
    }

    /// The most bytes that a datagram may have at the moment; `None` when none can be sent.
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.inner().datagrams.max_size()
    }

    /// Queues a datagram. A lost datagram is not sent again.
    ///
    /// # Errors
    /// When it is too large, or the session has ended.
    pub fn send_datagram(&self, payload: &[u8]) -> Result<(), DatagramError> {
        // draft-ietf-webtrans-http3 §6 MUST NOT: none behind the end
        if let Some(end) = &self.inner().lock().end {
            return Err(end.clone().into());
        }
        Ok(self.inner().datagrams.send(payload)?)
    }

    /// Next datagram of the peer. The newest 64 KiB of waiting datagrams are kept.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn read_datagram(&self) -> Result<Bytes, SessionEnd> {
        tokio::select! {
            biased;
            end = self.inner().ended() => Err(end),
            datagram = self.inner().datagrams.recv() => match datagram {
                Some(datagram) => Ok(datagram),
                None => Err(self.closed().await),
            },
        }
    }

    /// Datagrams of the peer that were dropped because too many waited.
    pub fn datagrams_dropped(&self) -> u64 {
        self.inner().datagrams.dropped()
    }

    /// Asks the peer's application to end the session soon (WT_DRAIN_SESSION). Both endpoints may continue to use it.
    pub fn drain(&self) {
        self.inner().outgoing.drain();
    }

    /// Waits until the peer asks for the end of the session, by WT_DRAIN_SESSION or GOAWAY, or the session has ended.
    pub async fn draining(&self) {
        self.inner().until(|state| (state.is_draining || state.end.is_some()).then_some(())).await;
    }

    /// Closes the session with the application's code and message, of which up to 1024 bytes are sent. Streams are reset at once, with
    /// undelivered data.
    pub fn close(&self, code: u32, reason: &str) {
        self.inner().close(code, reason);
    }

    /// Breaks the session off without a code: resets its request and its streams (H3_REQUEST_CANCELLED). For a program that has lost what the
    /// session was for.
    pub fn abort(&self) {
        self.inner().abort();
    }

    /// Waits until the session has ended. Returns the reason.
    pub async fn closed(&self) -> SessionEnd {
        self.inner().ended().await
    }

    /// Reason for the end of the session, if it has ended.
    pub fn end(&self) -> Option<SessionEnd> {
        self.inner().lock().end.clone()
    }
}
