//! Halves of a request's stream.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use qpack::Field;
use tiderace::{Charge, RecvStream, SendStream, StreamId, transport::memory::ITEM_OVERHEAD};
use tokio::{
    sync::oneshot,
    time::{Instant, Sleep},
};

use crate::{
    error::{BodyError, Code, Error, Violation},
    fields::{self, Collector},
    frame::{self, Frames, Kind, Piece},
    shared::{Shared, Side},
};

/// The most that is read from a stream in one go, in bytes.
const READ: usize = 16 * 1024;

/// A part of a body up to this size is copied behind its frame's head, in bytes: that costs less than sending it on its own.
const COPY: usize = 4 * 1024;

/// Bytes that are gathered before they are sent.
const GATHER: usize = 16 * 1024;

/// Phase of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Content,
    /// Behind its trailers.
    Done,
}

/// Agreement of both ends on a CONNECT.
#[derive(Clone, Default)]
pub(crate) struct Agreement(Arc<AtomicBool>);

impl Agreement {
    /// Switches the stream to content only (RFC 9114 §4.4).
    pub(crate) fn seal(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The receiving half.
pub(crate) struct Receiver {
    stream: RecvStream,
    shared: Arc<Shared>,
    frames: Frames,
    phase: Phase,
    trailers: Option<Bytes>,
    /// Charge of an incomplete frame, and of the trailers.
    charge: Charge,
    /// Set when the stream was read to its end, or reset.
    ended: bool,
    /// Receiver of the peer's cancellation.
    hearer: Option<oneshot::Sender<Code>>,
    /// Of a CONNECT.
    agreement: Option<Agreement>,
    /// Datagrams belong to the stream.
    has_datagrams: bool,
}

impl Receiver {
    pub(crate) fn new(mut stream: RecvStream, shared: Arc<Shared>) -> Self {
        if shared.copies {
            stream.set_joined();
        }
        // A HEADERS frame within the limit is not larger, but for what says nothing.
        // RFC 9204 §7.4 SHOULD-1: nothing else limits a field
        let max_headers = 2 * shared.settings.max_fields + 16 * 1024;
        let kind = match shared.side {
            Side::Server => Kind::Request { max_headers },
            Side::Client => Kind::Response { max_headers },
        };
        let charge = shared.memory.empty();
        let frames = Frames::with_sessions(kind, shared.support.is_some());
        Self {
            stream,
            charge,
            shared,
            frames,
            phase: Phase::Head,
            trailers: None,
            ended: false,
            hearer: None,
            agreement: None,
            has_datagrams: false,
        }
    }

    /// Takes the first bytes of the stream, which were read before.
    pub(crate) fn begin_with(&mut self, bytes: Bytes) {
        self.frames.push(bytes);
    }

    /// Ready when this half is reset before its end, with the code for the other half.
    pub(crate) fn given_up(&mut self) -> impl Future<Output = Code> + Send + use<> {
        let (hearer, heard) = oneshot::channel();
        self.hearer = Some(hearer);
        async move {
            match heard.await {
                Ok(code) => code,
                // It was read to its end.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// From here on, datagrams belong to the stream (RFC 9297 §2.1).
    pub(crate) fn has_datagrams(&mut self) {
        self.has_datagrams = true;
    }

    /// Ends receiving.
    fn end(&mut self) {
        self.ended = true;
        if self.has_datagrams {
            self.shared.lock().flows.end_receiving(self.stream.id().0);
        }
    }

    fn tell(&mut self, code: Code) {
        if let Some(hearer) = self.hearer.take() {
            let _ = hearer.send(code);
        }
    }

    /// Agreement on a CONNECT request, which becomes known with the response.
    pub(crate) fn agreement(&mut self) -> Agreement {
        self.agreement.get_or_insert_default().clone()
    }

    fn fail(&mut self, violation: Violation) -> Error {
        // The connection goes, and this stream with it.
        self.ended = true;
        self.shared.fail(violation)
    }

    /// The next piece; `None` at the end of the stream.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, Error>> {
        loop {
            match self.frames.next() {
                Ok(None) => {}
                Ok(piece) => {
                    if self.charge.bytes() > 0 {
                        self.charge.set(0);
                    }
                    return Poll::Ready(Ok(piece));
                }
                Err(violation) => return Poll::Ready(Err(self.fail(violation))),
            }
            self.hold(0)?;
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            match ready!(self.stream.poll_read_chunk(cx, READ)) {
                Ok(Some(chunk)) => self.frames.push(chunk),
                Ok(None) => {
                    self.end();
                    // RFC 9114 §7.1 MUST-4
                    if !self.frames.is_between() {
                        let reason = "a stream that ends in the middle of a frame".to_owned();
                        return Poll::Ready(Err(self.fail(Violation { code: Code::FRAME_ERROR, reason })));
                    }
                }
                Err(error) => {
                    // RFC 9114 §4.1.1 SHOULD NOT-1: what was cancelled does not look complete
                    self.end();
                    self.tell(Code::REQUEST_CANCELLED);
                    self.shared.abandon(self.stream.id());
                    return Poll::Ready(Err(self.shared.end(error.into())));
                }
            }
        }
    }

    /// Charges what is held of the stream, and `more` bytes.
    ///
    /// # Errors
    /// When the connection holds too much: the stream has ended in both directions.
    fn hold(&mut self, more: u64) -> Result<(), Error> {
        let trailers = self.trailers.as_ref().map_or(0, |trailers| trailers.len() as u64 + ITEM_OVERHEAD);
        let held = self.frames.held() as u64 + trailers + more;
        if held == self.charge.bytes() || self.charge.try_set(held) {
            return Ok(());
        }
        self.charge.set(0);
        self.frames = Frames::with_sessions(self.frames.kind(), self.shared.support.is_some());
        let reason = "the connection holds too much for another header block".to_owned();
        // RFC 9114 §10.5 SHOULD-2
        Err(self.malformed(Violation { code: Code::EXCESSIVE_LOAD, reason }))
    }

    /// The next head of a message. More than one may come before the content: interim responses.
    ///
    /// # Errors
    /// When none arrives, it is too large, or another frame arrives.
    pub(crate) async fn head(&mut self) -> Result<Collector, Error> {
        let piece = poll_fn(|cx| self.poll_piece(cx)).await?;
        match piece {
            Some(Piece::Frame { payload, .. }) => self.shared.fields(self.stream.id(), &payload),
            // RFC 9114 §4.1 MUST-3
            Some(Piece::Data(_)) => {
                let reason = "content before the fields".to_owned();
                Err(self.fail(Violation { code: Code::FRAME_UNEXPECTED, reason }))
            }
            None => {
                let reason = "a stream that ends before the fields".to_owned();
                Err(Error::Protocol { code: Code::REQUEST_INCOMPLETE, reason })
            }
        }
    }

    /// From here on, content comes.
    pub(crate) fn begin_content(&mut self) {
        self.phase = Phase::Content;
    }

    /// Returns whether the stream has ended, as far as is known without waiting.
    pub(crate) fn is_at_end(&self) -> bool {
        self.frames.is_between() && (self.ended || self.stream.is_at_end())
    }

    /// The next part of the content; `None` behind it.
    pub(crate) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if self.phase != Phase::Content {
            return Poll::Ready(Ok(None));
        }
        match ready!(self.poll_piece(cx))? {
            Some(Piece::Data(data)) => Poll::Ready(Ok(Some(data))),
            // RFC 9114 §4.4 MUST-2: a tunnel has no trailers
            Some(Piece::Frame { .. })
                if self.agreement.as_ref().is_some_and(|agreed| agreed.0.load(Ordering::Relaxed)) =>
            {
                let reason = "a frame in a tunnel".to_owned();
                Poll::Ready(Err(self.fail(Violation { code: Code::FRAME_UNEXPECTED, reason })))
            }
            Some(Piece::Frame { payload, .. }) => {
                self.hold(payload.len() as u64 + ITEM_OVERHEAD)?;
                // A slice would pin the whole buffer that it came in until somebody asks for the trailers.
                self.trailers = Some(Bytes::copy_from_slice(&payload));
                self.phase = Phase::Done;
                Poll::Ready(Ok(None))
            }
            None => {
                self.phase = Phase::Done;
                Poll::Ready(Ok(None))
            }
        }
    }

    /// The trailers, if there are some; only behind the content.
    pub(crate) fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, Error>> {
        // RFC 9114 §4.1 MUST-3: nothing that means something comes behind them
        if ready!(self.poll_piece(cx))?.is_some() {
            let reason = "a frame behind the trailers".to_owned();
            return Poll::Ready(Err(self.fail(Violation { code: Code::FRAME_UNEXPECTED, reason })));
        }
        let Some(section) = self.trailers.take() else { return Poll::Ready(Ok(None)) };
        match self.shared.fields(self.stream.id(), &section)?.trailers() {
            Ok(trailers) => Poll::Ready(Ok(Some(trailers))),
            Err(violation) => Poll::Ready(Err(self.malformed(violation))),
        }
    }

    /// Resets a malformed message's stream in both directions.
    pub(crate) fn malformed(&mut self, violation: Violation) -> Error {
        // RFC 9114 §4.1.2 MUST-1
        self.tell(violation.code);
        self.stop(violation.code);
        violation.into()
    }

    /// Asks the peer to stop sending.
    pub(crate) fn stop(&mut self, code: Code) {
        if self.ended {
            return;
        }
        // Its end may have come although nobody has read it.
        let is_complete = self.is_at_end() && self.trailers.is_none();
        self.end();
        if is_complete {
            return;
        }
        self.tell(code);
        self.shared.abandon(self.stream.id());
        // A stream that was read to its end needs no stop.
        let _ = self.stream.stop(code.0);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop(Code::REQUEST_CANCELLED);
    }
}

/// The sending half. Dropped before [`finish`](Self::finish), it gives the stream up.
pub(crate) struct Sender {
    stream: SendStream,
    shared: Arc<Shared>,
    /// Bytes that leave with the next write.
    gathered: Vec<u8>,
    /// Time by which the peer has to read, created with the first wait.
    stall: Option<Pin<Box<Sleep>>>,
    /// Set for a tunnel, which carries content only.
    is_tunnel: bool,
    /// Datagrams belong to the stream.
    has_datagrams: bool,
    ended: bool,
}

impl Sender {
    pub(crate) fn new(stream: SendStream, shared: Arc<Shared>) -> Self {
        Self { stream, shared, gathered: Vec::new(), stall: None, is_tunnel: false, has_datagrams: false, ended: false }
    }

    /// Number of the stream.
    pub(crate) fn id(&self) -> StreamId {
        self.stream.id()
    }

    /// Switches to content only (RFC 9114 §4.4).
    pub(crate) fn become_tunnel(&mut self) {
        self.is_tunnel = true;
    }

    /// From here on, datagrams belong to the stream (RFC 9297 §2.1).
    pub(crate) fn has_datagrams(&mut self) {
        self.has_datagrams = true;
    }

    /// Ends sending.
    fn end(&mut self) {
        self.ended = true;
        if self.has_datagrams {
            self.shared.lock().flows.end_sending(self.stream.id().0);
        }
    }

    /// Queues a field section.
    ///
    /// # Errors
    /// When it is larger than the peer takes.
    pub(crate) fn fields<'a, I: Iterator<Item = Field<'a>>>(&mut self, fields: impl Fn() -> I) -> Result<(), Error> {
        let frame = self.shared.headers(self.stream.id(), fields)?;
        if self.gathered.is_empty() {
            self.gathered = frame;
        } else {
            self.gathered.extend(frame);
        }
        Ok(())
    }

    /// Sends a part of the content; a small one waits for more, or for [`flush`](Self::flush).
    ///
    /// # Errors
    /// When the peer wants no more, or the connection has ended.
    pub(crate) async fn data(&mut self, data: Bytes) -> Result<(), Error> {
        let is_small = data.len() <= COPY;
        // The head of a frame takes at most 16 bytes.
        self.gathered.reserve(16 + if is_small { data.len() } else { 0 });
        frame::write_head(&mut self.gathered, frame::DATA, data.len() as u64);
        if is_small {
            self.gathered.extend_from_slice(&data);
            if self.gathered.len() < GATHER {
                return Ok(());
            }
            return self.flush().await;
        }
        self.flush().await?;
        self.write(data).await
    }

    /// Returns whether bytes wait for [`flush`](Self::flush).
    pub(crate) fn has_gathered(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// When the peer wants no more, or the connection has ended.
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.gathered);
        self.write(gathered.into()).await
    }

    /// Sends a body, and the end, unless `given_up` is ready while the body has no data.
    ///
    /// # Errors
    /// When the body breaks off, the peer wants no more, or the connection has ended.
    pub(crate) async fn body<B>(
        &mut self,
        mut body: Pin<&mut B>,
        given_up: impl Future<Output = ()>,
    ) -> Result<(), Error>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let mut given_up = pin!(given_up);
        loop {
            let frame = tokio::select! {
                biased;
                frame = poll_fn(|cx| body.as_mut().poll_frame(cx)) => frame,
                // What has been gathered leaves while there is nothing to be added.
                () = std::future::ready(()), if self.has_gathered() => {
                    self.flush().await?;
                    continue;
                }
                () = &mut given_up => return Err(Error::Reset(Code::REQUEST_CANCELLED)),
            };
            let Some(frame) = frame else { break };
            match frame.map_err(|error| Error::Body(BodyError::new(error)))?.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => self.data(data).await?,
                Err(frame) => {
                    // RFC 9114 §4.4: a tunnel has none.
                    if let Ok(trailers) = frame.into_trailers()
                        && !self.is_tunnel
                    {
                        self.fields(|| fields::ordinary(&trailers))?;
                        break;
                    }
                }
            }
        }
        self.finish().await
    }

    async fn write(&mut self, mut data: Bytes) -> Result<(), Error> {
        let (shared, stream, stall) = (&self.shared, &mut self.stream, &mut self.stall);
        let mut has_waited = false;
        poll_fn(|cx| {
            while !data.is_empty() {
                match stream.poll_write_chunk(cx, &mut data) {
                    Poll::Ready(Ok(_)) => has_waited = false,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(shared.end(error.into()))),
                    Poll::Pending => {
                        let Some(patience) = shared.write_timeout else { return Poll::Pending };
                        let sleep = stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                        if !std::mem::replace(&mut has_waited, true) {
                            sleep.as_mut().reset(Instant::now() + patience);
                        }
                        ready!(sleep.as_mut().poll(cx));
                        return Poll::Ready(Err(Error::Stalled));
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Sends what waits, and the end.
    ///
    /// # Errors
    /// When the peer wants no more, or the connection has ended.
    pub(crate) async fn finish(&mut self) -> Result<(), Error> {
        self.flush().await?;
        // RFC 9114 §4.1 MUST-5, MUST-6
        self.end();
        self.stream.finish().map_err(|error| self.shared.end(error.into()))
    }

    /// Waits until the peer has acknowledged all of the finished stream. Returns whether it has.
    pub(crate) async fn delivered(&mut self) -> bool {
        self.stream.finished().await.is_ok()
    }

    /// Gives the stream up.
    pub(crate) fn reset(&mut self, code: Code) {
        if !self.ended {
            self.end();
            // A stream that has ended needs no reset.
            let _ = self.stream.reset(code.0);
        }
    }
}

impl Drop for Sender {
    /// RFC 9114 §4.1.1 SHOULD-1, SHOULD-4: an exchange is cancelled with an error code of HTTP/3.
    fn drop(&mut self) {
        self.reset(Code::REQUEST_CANCELLED);
    }
}
