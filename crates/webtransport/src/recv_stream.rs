//! Receiving half of a session's stream (draft-ietf-webtrans-http3 §4.2 to §4.4).

use std::{
    future::poll_fn,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use crate::{
    codes::{GONE, from_http3, to_http3},
    error::{ReadError, SessionEnd},
    inner::{Alive, Half},
    lock::lock,
    peer_stream::PeerStream,
};

/// The most that is read in one go by [`RecvStream::read_to_end`], in bytes.
const READ: usize = 64 * 1024;

struct Receiving {
    stream: Option<tiderace::RecvStream>,
    /// Bytes of the body that arrived with the header.
    rest: Bytes,
    header: u64,
    /// Bytes of the body that have arrived, as far as the session knows, and that were read.
    counted: u64,
    read: u64,
    end: Option<SessionEnd>,
    waker: Option<Waker>,
}

impl Receiving {
    /// Bytes of the body that have arrived and that the session does not know of.
    fn news(&mut self) -> u64 {
        let received = self.stream.as_ref().and_then(tiderace::RecvStream::received);
        let highest = received.map_or(0, |bytes| bytes.highest.saturating_sub(self.header));
        // What is read in one go with the end of a short stream is known only from here on.
        let news = highest.max(self.read + self.rest.len() as u64).saturating_sub(self.counted);
        self.counted += news;
        news
    }
}

struct RecvHalf(Mutex<Receiving>);

impl Half for RecvHalf {
    fn abandon(&self, end: &SessionEnd) {
        let mut place = lock(&self.0);
        place.end = Some(end.clone());
        place.rest = Bytes::new();
        if let Some(mut stream) = place.stream.take() {
            let _ = stream.stop(GONE);
        }
        if let Some(waker) = place.waker.take() {
            waker.wake();
        }
    }
}

/// The receiving half of a stream. Dropped before its end, it asks the peer to stop with code 0.
pub struct RecvStream {
    half: Arc<RecvHalf>,
    session: Arc<Alive>,
    id: u64,
    _peers: Option<Arc<PeerStream>>,
}

impl RecvStream {
    /// A stream after its header, with the header's length; `rest` was read with it.
    pub(crate) fn new(
        mut stream: tiderace::RecvStream,
        (header, rest): (u64, Bytes),
        session: &Arc<Alive>,
        peers: Option<Arc<PeerStream>>,
    ) -> Result<Self, SessionEnd> {
        stream.count_received();
        let id = stream.id().0;
        let receiving = Receiving { stream: Some(stream), rest, header, counted: 0, read: 0, end: None, waker: None };
        let half = Arc::new(RecvHalf(Mutex::new(receiving)));
        if let Err(end) = session.0.enter(id, false, half.clone()) {
            half.abandon(&end);
            return Err(end);
        }
        let news = lock(&half.0).news();
        let this = Self { half, session: session.clone(), id, _peers: peers };
        session.0.on_read(news, 0);
        Ok(this)
    }

    /// The number of the QUIC stream.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next bytes in order, at most `max`; `None` at the end of the stream.
    ///
    /// # Errors
    /// When the peer reset the stream, or the session has ended.
    pub async fn read_chunk(&mut self, max: usize) -> Result<Option<Bytes>, ReadError> {
        poll_fn(|cx| self.poll_read_chunk(cx, max)).await
    }

    /// Poll form of [`read_chunk`](Self::read_chunk), for futures written by hand.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub fn poll_read_chunk(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Result<Option<Bytes>, ReadError>> {
        let mut place = lock(&self.half.0);
        let Receiving { stream, rest, end, .. } = &mut *place;
        let Some(stream) = stream else {
            let end = end.clone();
            return Poll::Ready(Err(end.map_or(ReadError::StreamClosed, ReadError::Session)));
        };
        let polled = if rest.is_empty() {
            stream.poll_read_chunk(cx, max)
        } else {
            let at = rest.len().min(max.max(1));
            Poll::Ready(Ok(Some(rest.split_to(at))))
        };
        if let Poll::Ready(Ok(Some(data))) = &polled {
            place.read += data.len() as u64;
        }
        let news = place.news();
        if polled.is_pending() {
            place.waker = Some(cx.waker().clone());
        }
        // What a reset stream does not deliver counts as consumed.
        let (bytes, outcome) = match polled {
            Poll::Ready(Ok(Some(data))) => (data.len() as u64, Poll::Ready(Ok(Some(data)))),
            Poll::Pending => (0, Poll::Pending),
            Poll::Ready(ended) => {
                place.stream = None;
                let outcome = match ended {
                    Err(tiderace::ReadError::Reset(code)) => Err(ReadError::Reset(from_http3(code))),
                    Err(tiderace::ReadError::ConnectionClosed(reason)) => Err(ReadError::Session(reason.into())),
                    Err(_) => Err(ReadError::StreamClosed),
                    Ok(_) => Ok(None),
                };
                (place.counted - place.read, Poll::Ready(outcome))
            }
        };
        let is_over = place.stream.is_none();
        drop(place);
        if is_over {
            self.session.0.leave(self.id, false);
        }
        self.session.0.on_read(news, bytes);
        outcome
    }

    /// Reads the stream to its end, if that is not more than `limit` bytes.
    ///
    /// # Errors
    /// When the stream is longer or cannot be read.
    pub async fn read_to_end(&mut self, limit: usize) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.read_chunk(READ).await? {
            if all.len() + chunk.len() > limit {
                return Err(ReadError::TooLong { limit });
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// Asks the peer to send no more, with the application's code.
    pub fn stop(&mut self, code: u32) {
        let mut place = lock(&self.half.0);
        let Some(stream) = &mut place.stream else { return };
        let was_there = stream.stop(to_http3(code)).is_ok();
        let news = place.news();
        // The final size comes too late to be counted: the session gives back what the peer may have sent at most.
        let limit = place.stream.take().and_then(|stream| stream.received()).map_or(0, |bytes| bytes.limit);
        let end = if was_there { limit.saturating_sub(place.header).max(place.counted) } else { place.counted };
        let unread = end - place.read;
        place.rest = Bytes::new();
        drop(place);
        self.session.0.leave(self.id, false);
        self.session.0.on_read(news, unread);
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.stop(0);
    }
}
