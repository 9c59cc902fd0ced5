//! Sending half of a session's stream (draft-ietf-webtrans-http3 §4.2 to §4.4).

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes};

use crate::{
    codes::{GONE, from_http3, to_http3},
    error::{SessionEnd, WriteError},
    inner::{Alive, Half, Inner},
    lock::lock,
    peer_stream::PeerStream,
};

struct Sending {
    stream: Option<tiderace::SendStream>,
    /// Bytes of the header, and of the body that were written.
    header: u64,
    written: u64,
    end: Option<SessionEnd>,
    waker: Option<Waker>,
    /// Set when the application has ended the stream.
    is_finished: bool,
    delivered: Option<Result<(), WriteError>>,
}

struct SendHalf(Mutex<Sending>);

impl Half for SendHalf {
    fn abandon(&self, end: &SessionEnd) {
        let mut place = lock(&self.0);
        place.end = Some(end.clone());
        if let Some(mut stream) = place.stream.take() {
            let _ = stream.reset(GONE);
        }
        if let Some(waker) = place.waker.take() {
            waker.wake();
        }
    }
}

/// The sending half of a stream. Dropped without [`finish`](Self::finish), it resets the stream with code 0.
pub struct SendStream {
    half: Arc<SendHalf>,
    session: Arc<Alive>,
    id: u64,
    _peers: Option<Arc<PeerStream>>,
}

impl SendStream {
    /// A stream whose header was written, with the header's length.
    pub(crate) fn new(
        mut stream: tiderace::SendStream,
        header: u64,
        session: &Arc<Alive>,
        peers: Option<Arc<PeerStream>>,
    ) -> Result<Self, SessionEnd> {
        stream.count_sent();
        let id = stream.id().0;
        let sending = Sending {
            stream: Some(stream),
            header,
            written: 0,
            end: None,
            waker: None,
            is_finished: false,
            delivered: None,
        };
        let half = Arc::new(SendHalf(Mutex::new(sending)));
        if let Err(end) = session.0.enter(id, true, half.clone()) {
            half.abandon(&end);
            return Err(end);
        }
        Ok(Self { half, session: session.clone(), id, _peers: peers })
    }

    /// The number of the QUIC stream.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Queues a copy of all of `data`, as flow control and the send buffer permit.
    ///
    /// # Errors
    /// When the peer sent STOP_SENDING, or the stream or the session has ended.
    pub async fn write_all(&mut self, data: &[u8]) -> Result<(), WriteError> {
        self.write_chunk(Bytes::copy_from_slice(data)).await
    }

    /// Queues all of `data` without copying it, as flow control and the send buffer permit.
    ///
    /// # Errors
    /// As [`write_all`](Self::write_all).
    pub async fn write_chunk(&mut self, mut data: Bytes) -> Result<(), WriteError> {
        while !data.is_empty() {
            poll_fn(|cx| self.poll_write(cx, &mut data)).await?;
        }
        Ok(())
    }

    /// Queues a prefix of `data` and takes it away from `data`; returns its length.
    ///
    /// # Errors
    /// As [`write_all`](Self::write_all).
    pub fn poll_write(&mut self, cx: &mut Context<'_>, data: &mut Bytes) -> Poll<Result<usize, WriteError>> {
        let session = &self.session.0;
        let mut place = lock(&self.half.0);
        let Sending { stream, header, written, end, waker, is_finished, .. } = &mut *place;
        let Some(open) = stream.as_mut().filter(|_| !*is_finished) else {
            return Poll::Ready(Err(closed(end.as_ref())));
        };
        let polled = {
            let mut state = session.lock();
            let allowed = match state.flow.writable() {
                Ok(allowed) => usize::try_from(allowed).map_or(data.len(), |allowed| allowed.min(data.len())),
                Err(limit) => {
                    state.wait(cx);
                    drop(state);
                    *waker = Some(cx.waker().clone());
                    session.outgoing.data_blocked(limit);
                    return Poll::Pending;
                }
            };
            // The lock is held meanwhile, so that no other stream takes the same credit.
            let polled = open.poll_write_chunk(cx, &mut data.slice(..allowed));
            if let Poll::Ready(Ok(bytes)) = &polled {
                state.flow.on_written(*bytes as u64);
            }
            polled
        };
        if polled.is_pending() {
            *waker = Some(cx.waker().clone());
        }
        match ready!(polled) {
            Ok(bytes) => {
                data.advance(bytes);
                *written += bytes as u64;
                Poll::Ready(Ok(bytes))
            }
            Err(tiderace::WriteError::Stopped(code)) => {
                let unsent = unsent(open, *header, *written);
                *stream = None;
                drop(place);
                session.change(|state| state.flow.refund(unsent));
                session.leave(self.id, true);
                Poll::Ready(Err(WriteError::Stopped(from_http3(code))))
            }
            Err(tiderace::WriteError::ConnectionClosed(reason)) => Poll::Ready(Err(SessionEnd::from(reason).into())),
            Err(_) => Poll::Ready(Err(closed(end.as_ref()))),
        }
    }

    /// Ends the stream after the written data. Delivery continues in the background as long as the session: an application that closes the
    /// session afterwards waits for [`finished`](Self::finished) first. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the peer sent STOP_SENDING, or the stream or the session has ended.
    pub fn finish(&mut self) -> Result<(), WriteError> {
        {
            let mut place = lock(&self.half.0);
            let Sending { stream, end, is_finished, .. } = &mut *place;
            let Some(open) = stream.as_mut().filter(|_| !*is_finished) else { return Err(closed(end.as_ref())) };
            open.finish().map_err(|error| match error {
                tiderace::WriteError::Stopped(code) => WriteError::Stopped(from_http3(code)),
                _ => WriteError::StreamClosed,
            })?;
            *is_finished = true;
        }
        tokio::spawn(deliver(self.half.clone(), self.session.0.clone(), self.id));
        Ok(())
    }

    /// Waits until the peer has acknowledged everything, after [`finish`](Self::finish).
    ///
    /// # Errors
    /// When the stream was not finished, the peer sent STOP_SENDING, or the session has ended before.
    pub async fn finished(&mut self) -> Result<(), WriteError> {
        poll_fn(|cx| {
            let mut place = lock(&self.half.0);
            let Sending { end, waker, is_finished, delivered, .. } = &mut *place;
            match (delivered, end) {
                (Some(delivered), _) => Poll::Ready(delivered.clone()),
                (None, None) if *is_finished => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                (None, end) => Poll::Ready(Err(closed(end.as_ref()))),
            }
        })
        .await
    }

    /// Waits until the peer sends STOP_SENDING, or the stream or the session has ended, while nothing is written.
    pub async fn stopped(&mut self) -> WriteError {
        poll_fn(|cx| {
            let mut place = lock(&self.half.0);
            let Sending { stream, header, written, end, waker, is_finished, .. } = &mut *place;
            let Some(open) = stream.as_mut().filter(|_| !*is_finished) else {
                return Poll::Ready(closed(end.as_ref()));
            };
            let polled = open.poll_stopped(cx);
            if polled.is_pending() {
                *waker = Some(cx.waker().clone());
            }
            match ready!(polled) {
                tiderace::WriteError::Stopped(code) => {
                    let unsent = unsent(open, *header, *written);
                    *stream = None;
                    drop(place);
                    self.session.0.change(|state| state.flow.refund(unsent));
                    self.session.0.leave(self.id, true);
                    Poll::Ready(WriteError::Stopped(from_http3(code)))
                }
                tiderace::WriteError::ConnectionClosed(reason) => Poll::Ready(SessionEnd::from(reason).into()),
                _ => Poll::Ready(closed(end.as_ref())),
            }
        })
        .await
    }

    /// Gives the stream up with the application's code. Where the peer accepts RESET_STREAM_AT, the header still arrives, so that
    /// the peer's session learns of the stream and its code.
    pub fn reset(&mut self, code: u32) {
        self.reset_behind(code, false);
    }

    /// As [`reset`](Self::reset), and all data that was written still arrives, where the peer accepts RESET_STREAM_AT. Otherwise data under
    /// way is lost.
    pub fn reset_after_written(&mut self, code: u32) {
        self.reset_behind(code, true);
    }

    fn reset_behind(&mut self, code: u32, delivers: bool) {
        let mut place = lock(&self.half.0);
        let Sending { stream, header, written, .. } = &mut *place;
        let Some(mut open) = stream.take() else { return };
        // draft-ietf-webtrans-http3 §4.4 MUST: the header is within the reliable size
        let reliable = if delivers { *header + *written } else { *header };
        let _ = open.reset_at(to_http3(code), reliable).or_else(|_| open.reset(to_http3(code)));
        let unsent = unsent(&open, *header, *written);
        place.delivered.get_or_insert(Err(WriteError::StreamClosed));
        drop(place);
        self.session.0.change(|state| state.flow.refund(unsent));
        self.session.0.leave(self.id, true);
    }
}

/// Bytes of a body that were written and never sent.
fn unsent(stream: &tiderace::SendStream, header: u64, written: u64) -> u64 {
    (header + written).saturating_sub(stream.sent().unwrap_or(u64::MAX)).min(written)
}

fn closed(end: Option<&SessionEnd>) -> WriteError {
    end.map_or(WriteError::StreamClosed, |end| WriteError::Session(end.clone()))
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let is_finished = lock(&self.half.0).is_finished;
        if !is_finished {
            self.reset(0);
        }
    }
}

/// Keeps a finished stream until it is delivered, so that it ends with its session, and credit for unwanted data is returned.
async fn deliver(half: Arc<SendHalf>, session: Arc<Inner>, id: u64) {
    let delivered = poll_fn(|cx| {
        let mut place = lock(&half.0);
        let Some(stream) = &mut place.stream else { return Poll::Ready(None) };
        pin!(stream.finished()).poll(cx).map(Some)
    });
    let delivered = tokio::select! {
        _ = session.ended() => return,
        delivered = delivered => delivered,
    };
    let Some(delivered) = delivered else { return };
    let mut place = lock(&half.0);
    let Sending { stream, header, written, delivered: outcome, .. } = &mut *place;
    let Some(mut stream) = stream.take() else { return };
    let mut refund = 0;
    if let Err(tiderace::WriteError::Stopped(_)) = delivered {
        // The transport has reset it; asking again counts what was sent.
        let _ = stream.reset(GONE);
        refund = unsent(&stream, *header, *written);
    }
    *outcome = Some(delivered.map_err(|error| match error {
        tiderace::WriteError::Stopped(code) => WriteError::Stopped(from_http3(code)),
        tiderace::WriteError::ConnectionClosed(reason) => SessionEnd::from(reason).into(),
        _ => WriteError::StreamClosed,
    }));
    let waker = place.waker.take();
    drop(place);
    session.change(|state| state.flow.refund(refund));
    session.leave(id, true);
    if let Some(waker) = waker {
        waker.wake();
    }
}
