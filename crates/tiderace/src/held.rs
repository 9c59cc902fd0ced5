//! Handle that a connection and its streams share, with their requests to the transport.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use transport::{CloseReason, Handle, streams::Unread};
use wire::StreamId;

use crate::{
    error::{WriteError, from_write},
    shared::{Shared, State, Waiters},
};

/// Shared handle of a connection and of its streams, dropped with the last of them. The count is here, and not under the lock of the
/// endpoint, so that a stream's two halves do not take that lock four times.
pub(crate) struct Held {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Handle,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.lock().let_go(self.handle, self.shared.clock.now());
    }
}

impl Held {
    /// Calls the connection for something that needs no datagram to be sent.
    pub(crate) fn with<T>(
        &self,
        act: impl FnOnce(&mut Waiters, &mut transport::Connection) -> T,
    ) -> Result<T, CloseReason> {
        self.act(&mut self.shared.lock(), act)
    }

    /// Unread data of a stream at the end of the connection.
    pub(crate) fn unread(&self, state: &mut State, id: StreamId) -> Option<Unread> {
        state.connections.get_mut(&self.handle)?.take_unread(id)
    }

    /// Acts on the connection and its waiters while it is open.
    pub(crate) fn act<T>(
        &self,
        state: &mut State,
        act: impl FnOnce(&mut Waiters, &mut transport::Connection) -> T,
    ) -> Result<T, CloseReason> {
        let waiters = state.connections.get_mut(&self.handle).expect("kept while there are handles");
        if let Some(reason) = &waiters.closed {
            return Err(reason.clone());
        }
        let connection = state.endpoint.connection_mut(self.handle).expect("open until its end is reported");
        Ok(act(waiters, connection))
    }

    /// Waits until the peer wants no more of a stream, or the stream or the connection has ended.
    pub(crate) fn poll_stopped(&self, cx: &mut Context<'_>, id: StreamId) -> Poll<WriteError> {
        let looked = self.with(|waiters, connection| {
            // Writing nothing says whether something could be written.
            let over = connection.write(id, &mut Bytes::new()).err();
            if over.is_none() {
                waiters.wait_write(id, cx.waker());
            }
            over
        });
        match looked {
            Err(reason) => Poll::Ready(reason.into()),
            Ok(Some(error)) => Poll::Ready(from_write(error)),
            Ok(None) => Poll::Pending,
        }
    }
}
