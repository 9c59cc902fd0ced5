//! Streams that a connection's tasks open: as soon as the peer permits, in turn.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
};

use transport::CloseReason;
use wire::{Dir, StreamId};

use crate::{
    connection::Connection,
    held::Held,
    shared::Wait,
    stream::{RecvStream, SendStream},
};

impl Connection {
    /// Opens a bidirectional stream, as soon as the peer's limit allows. The peer learns of it with the first data.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn open_bi(&self) -> Result<(SendStream, RecvStream), CloseReason> {
        let id = self.open(Dir::Bi).await?;
        Ok((SendStream::new(self.held.clone(), id), RecvStream::new(self.held.clone(), id)))
    }

    /// Opens a unidirectional stream, as soon as the peer's limit allows.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn open_uni(&self) -> Result<SendStream, CloseReason> {
        let id = self.open(Dir::Uni).await?;
        Ok(SendStream::new(self.held.clone(), id))
    }

    /// Opens a bidirectional stream whose data may be sent before the handshake is complete. An observer can replay such data
    /// to the server: use it only for requests that may happen twice. If the server refuses early data, it is sent again
    /// automatically.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn open_bi_early(&self) -> Result<(SendStream, RecvStream), CloseReason> {
        let id = self.open_by(Dir::Bi, transport::Connection::open_early).await?;
        Ok((SendStream::new(self.held.clone(), id), RecvStream::new(self.held.clone(), id)))
    }

    /// Opens a unidirectional stream whose data may be sent before the handshake is complete: see
    /// [`open_bi_early`](Self::open_bi_early).
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn open_uni_early(&self) -> Result<SendStream, CloseReason> {
        let id = self.open_by(Dir::Uni, transport::Connection::open_early).await?;
        Ok(SendStream::new(self.held.clone(), id))
    }

    async fn open(&self, dir: Dir) -> Result<StreamId, CloseReason> {
        self.open_by(dir, transport::Connection::open).await
    }

    async fn open_by(
        &self,
        dir: Dir,
        open: fn(&mut transport::Connection, Dir) -> Option<StreamId>,
    ) -> Result<StreamId, CloseReason> {
        let mut turn = OpenTurn { held: &self.held, dir, number: None };
        poll_fn(|cx| {
            self.with(|state, connection| {
                if let Some(id) = open(connection, dir) {
                    return Poll::Ready(Ok(id));
                }
                turn.number = Some(state.wait_open(dir, turn.number, cx.waker()));
                Poll::Pending
            })
            .unwrap_or_else(|reason| Poll::Ready(Err(reason)))
        })
        .await
    }

    fn poll_open_by(
        &self,
        cx: &mut Context<'_>,
        dir: Dir,
        open: fn(&mut transport::Connection, Dir) -> Option<StreamId>,
    ) -> Poll<Result<StreamId, CloseReason>> {
        self.with(|state, connection| {
            if let Some(id) = open(connection, dir) {
                return Poll::Ready(Ok(id));
            }
            state.wait(Wait::Open(dir), cx.waker());
            Poll::Pending
        })
        .unwrap_or_else(|reason| Poll::Ready(Err(reason)))
    }

    /// Poll form of [`open_bi`](Self::open_bi), for futures written by hand.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn poll_open_bi(&self, cx: &mut Context<'_>) -> Poll<Result<(SendStream, RecvStream), CloseReason>> {
        let id = ready!(self.poll_open_by(cx, Dir::Bi, transport::Connection::open))?;
        Poll::Ready(Ok((SendStream::new(self.held.clone(), id), RecvStream::new(self.held.clone(), id))))
    }

    /// Poll form of [`open_uni`](Self::open_uni), for futures written by hand.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn poll_open_uni(&self, cx: &mut Context<'_>) -> Poll<Result<SendStream, CloseReason>> {
        let id = ready!(self.poll_open_by(cx, Dir::Uni, transport::Connection::open))?;
        Poll::Ready(Ok(SendStream::new(self.held.clone(), id)))
    }

    /// Poll form of [`open_bi_early`](Self::open_bi_early), for futures written by hand.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn poll_open_bi_early(&self, cx: &mut Context<'_>) -> Poll<Result<(SendStream, RecvStream), CloseReason>> {
        let id = ready!(self.poll_open_by(cx, Dir::Bi, transport::Connection::open_early))?;
        Poll::Ready(Ok((SendStream::new(self.held.clone(), id), RecvStream::new(self.held.clone(), id))))
    }

    /// Poll form of [`open_uni_early`](Self::open_uni_early), for futures written by hand.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn poll_open_uni_early(&self, cx: &mut Context<'_>) -> Poll<Result<SendStream, CloseReason>> {
        let id = ready!(self.poll_open_by(cx, Dir::Uni, transport::Connection::open_early))?;
        Poll::Ready(Ok(SendStream::new(self.held.clone(), id)))
    }
}

/// A task that waits in turn to open a stream. Dropped when it has opened one, or wants none any more.
struct OpenTurn<'a> {
    held: &'a Arc<Held>,
    dir: Dir,
    /// Place in the queue, once it has waited.
    number: Option<u64>,
}

impl Drop for OpenTurn<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let next = {
            let mut state = self.held.shared.lock();
            let waiters = state.connections.get_mut(&self.held.handle);
            waiters.and_then(|waiters| waiters.leave_open(self.dir, number))
        };
        // Not under the lock: a waker is free to ask for something at once.
        if let Some(next) = next {
            next.wake();
        }
    }
}
