//! Forwarded bodies: one type for received bodies, one for sent bodies.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tiderace::{Charge, ConnectionBudget, transport::memory::ITEM_OVERHEAD};
use tokio::{
    task::AbortHandle,
    time::{Instant, Sleep},
};

use crate::{
    ending::{BodyError, Cause, Ending, ErrorWithEnding},
    fields,
};

/// Any body.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BodyError>;

/// A complete body.
pub(crate) fn full(data: impl Into<Bytes>) -> AnyBody {
    Full::new(data.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Least rate at which a client, or a back end, has to send content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// In each interval of this length that is spent waiting for content …
    pub(crate) interval: Duration,
    /// … at least this number of bytes has to arrive. Once the request is answered, one byte is enough: both sides may continue for any
    /// time.
    pub(crate) progress: u64,
}

/// The request was answered, in the extensions of one that has content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<AtomicBool>);

impl Answered {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Boxes the content of a request, which has to come at a minimum rate; what is buffered of it is charged.
pub(crate) fn incoming<B>(request: Request<B>, pace: Pace, memory: &ConnectionBudget) -> Request<AnyBody>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    if request.body().is_end_stream() {
        return request.map(|_| full(Bytes::new()));
    }
    let answered = Answered::default();
    let wait = Wait { pace, answered: answered.clone(), sleep: None, since: None, spent: Duration::ZERO, came: 0 };
    // A reset with NO_ERROR looks like the end of the content, which it is not (RFC 9113 §8.1).
    let says_end = request.version() == Version::HTTP_2;
    let mut request =
        request.map(|body| Incoming { says_end, ..Incoming::new(body, Some(wait), memory) }.boxed_unsync());
    request.extensions_mut().insert(answered);
    request
}

/// Boxes content of a client without a minimum rate; what is buffered of it is charged.
pub(crate) fn untimed<B>(body: B, memory: &ConnectionBudget) -> AnyBody
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    Incoming::new(body, None, memory).boxed_unsync()
}

/// Returns the content of a request without trailers that only the gateway may set, and the cause if it ends early.
pub(crate) fn with_fate(body: AnyBody) -> (AnyBody, Cause) {
    let fate = Cause::default();
    if body.is_end_stream() {
        return (body, fate);
    }
    let noted = fate.clone();
    let body = body.map_err(move |error| {
        noted.note(Ending::of_content(&error));
        error
    });
    (trailing(body, fields::strip_request_trailers).boxed_unsync(), fate)
}

/// A body whose trailers go through `strip`.
pub(crate) fn trailing<B>(body: B, strip: fn(&mut HeaderMap)) -> impl Body<Data = Bytes, Error = B::Error>
where
    B: Body<Data = Bytes>,
{
    body.map_frame(move |mut frame: Frame<Bytes>| {
        if let Some(trailers) = frame.trailers_mut() {
            strip(trailers);
        }
        frame
    })
}

/// Waits for the first part of a body that most likely has none, so that this is known. An incomplete body stays incomplete.
pub(crate) async fn settle(mut body: AnyBody) -> AnyBody {
    match body.frame().await {
        None => full(""),
        first => Begun { first, rest: body }.boxed_unsync(),
    }
}

/// A body whose first part was read already.
struct Begun {
    first: Option<Result<Frame<Bytes>, BodyError>>,
    rest: AnyBody,
}

impl Body for Begun {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.first.take() {
            None => Pin::new(&mut self.rest).poll_frame(cx),
            first => Poll::Ready(first),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }
}

/// Bytes of content that are gathered before they are forwarded: small parts are joined, and none pins its receive buffer.
const GATHER: usize = 16 * 1024;
/// Size of a part that is forwarded without joining, in bytes.
const LARGE: usize = 8 * 1024;
/// Bytes that are gathered where the connection has no room for more.
const LITTLE: usize = 2 * 1024;
/// Limit on bytes of content in flight to a back end.
const WINDOW: usize = 48 * 1024;

/// Bytes in flight to a back end, and the task that waits for room.
#[derive(Debug, Default)]
struct InFlight(Mutex<(usize, Option<Waker>)>);

impl InFlight {
    fn lock(&self) -> MutexGuard<'_, (usize, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a body, charged until its sender has released it.
struct Part {
    data: Bytes,
    _charge: Charge,
    on_its_way: Arc<InFlight>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.on_its_way.lock();
            state.0 -= self.data.len();
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The time that is spent waiting for content.
struct Wait {
    pace: Pace,
    answered: Answered,
    /// Created with the first wait: most bodies are available at once.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Start of the current wait.
    since: Option<Instant>,
    /// Time waited, and bytes received, in this interval.
    spent: Duration,
    came: u64,
}

impl Wait {
    /// Counts bytes that have arrived, and ends the wait for them.
    fn on_data(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            self.spent += since.elapsed();
        }
        self.came += bytes as u64;
        if self.came >= self.pace.progress || self.answered.0.load(Ordering::Relaxed) {
            (self.spent, self.came) = (Duration::ZERO, 0);
        }
    }

    /// No part has arrived; ready when the interval has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = || Instant::now() + self.pace.interval.saturating_sub(self.spent);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end())));
        if self.since.is_none() {
            self.since = Some(Instant::now());
            sleep.as_mut().reset(end());
        }
        sleep.as_mut().poll(cx)
    }
}

/// The content of a request.
struct Incoming<B> {
    body: B,
    wait: Option<Wait>,
    memory: ConnectionBudget,
    on_its_way: Arc<InFlight>,
    /// Frame behind the gathered data: trailers, or an error.
    next: Option<Result<Frame<Bytes>, BodyError>>,
    ended: bool,
    /// The body knows whether its end has come.
    says_end: bool,
}

impl<B> Incoming<B> {
    fn new(body: B, wait: Option<Wait>, memory: &ConnectionBudget) -> Self {
        Self {
            body,
            wait,
            memory: memory.clone(),
            on_its_way: Arc::default(),
            next: None,
            ended: false,
            says_end: false,
        }
    }

    /// Returns the bytes that may be gathered. With nothing in flight this is never 0, so that every request makes progress.
    fn room(&self, cx: &Context<'_>) -> Option<usize> {
        let is_tight =
            self.memory.held() + 2 * GATHER as u64 > self.memory.limit() || self.memory.process().is_exhausted();
        let mut state = self.on_its_way.lock();
        if state.0 > 0 && (is_tight || state.0 >= WINDOW) {
            state.1 = Some(cx.waker().clone());
            return None;
        }
        Some(if is_tight { LITTLE } else { GATHER })
    }

    fn part(&self, data: Bytes, held: usize) -> Bytes {
        let mut charge = self.memory.empty();
        // It is held already; `room` has seen to it that it is little where there is little.
        charge.set(held as u64 + ITEM_OVERHEAD);
        self.on_its_way.lock().0 += data.len();
        Bytes::from_owner(Part { data, _charge: charge, on_its_way: self.on_its_way.clone() })
    }
}

impl<B> Body for Incoming<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Some(next) = this.next.take() {
            return Poll::Ready(Some(next));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        let Some(room) = this.room(cx) else { return Poll::Pending };
        let (mut gathered, mut large) = (Vec::new(), None);
        while gathered.len() < room && this.next.is_none() && !this.ended {
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if gathered.is_empty() && data.len() >= LARGE => {
                        large = Some(data);
                        break;
                    }
                    Ok(data) if gathered.is_empty() => gathered = data.to_vec(),
                    Ok(data) => gathered.extend_from_slice(&data),
                    Err(trailers) => this.next = Some(Ok(trailers)),
                },
                Poll::Ready(Some(Err(error))) => this.next = Some(Err(error.into())),
                Poll::Ready(None) if this.says_end && !this.body.is_end_stream() => {
                    this.next =
                        Some(Err(ErrorWithEnding::error(Ending::Cancelled, "the client has given its content up")));
                }
                Poll::Ready(None) => this.ended = true,
                Poll::Pending => break,
            }
        }
        if large.is_some() || !gathered.is_empty() {
            let held = large.as_ref().map_or(gathered.capacity(), Bytes::len);
            let data = large.unwrap_or_else(|| gathered.into());
            if let Some(wait) = &mut this.wait {
                wait.on_data(data.len());
            }
            return Poll::Ready(Some(Ok(Frame::data(this.part(data, held)))));
        }
        if let Some(next) = this.next.take() {
            return Poll::Ready(Some(next));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        if let Some(wait) = &mut this.wait {
            ready!(wait.poll(cx));
            let what = "the client sends its content too slowly";
            return Poll::Ready(Some(Err(ErrorWithEnding::error(Ending::SlowContent, what))));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && (self.ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Content of a response, which has to come at a minimum rate while it is read.
struct Paced {
    body: AnyBody,
    wait: Wait,
}

/// Lets the content of a response break off when its back end does not keep the pace.
pub(crate) fn paced(body: AnyBody, pace: Pace) -> AnyBody {
    if body.is_end_stream() || pace.interval.is_zero() {
        return body;
    }
    let wait = Wait { pace, answered: Answered::default(), sleep: None, since: None, spent: Duration::ZERO, came: 0 };
    Paced { body, wait }.boxed_unsync()
}

impl Body for Paced {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame {
                let length = frame.data_ref().map_or(0, Bytes::len);
                self.wait.on_data(length);
            }
            return Poll::Ready(frame);
        }
        ready!(self.wait.poll(cx));
        Poll::Ready(Some(Err(ErrorWithEnding::error(Ending::Timeout, "the back end sends its content too slowly"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body with a value that is dropped at its end, or when the body is dropped.
pub(crate) struct With<T> {
    body: AnyBody,
    what: Option<T>,
}

/// Boxes a body with a value that is dropped at its end.
pub(crate) fn with<T: Send + Unpin + 'static>(body: AnyBody, what: T) -> AnyBody {
    With { body, what: Some(what) }.boxed_unsync()
}

impl<T: Unpin> Body for With<T> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.what = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, and when its last part was handed on.
struct Watch {
    body: Option<AnyBody>,
    handed_on: Option<Instant>,
}

/// Body of an answer that is released when it is not polled for a time.
struct Watched {
    watch: Arc<Mutex<Watch>>,
    hint: SizeHint,
    task: AbortHandle,
}

/// Releases a body that its sender to a client does not poll for `patience`: an HTTP/2 stream whose client gives no credit shows no other
/// sign. This is recorded as the cause.
pub(crate) fn watched(body: AnyBody, patience: Duration, cause: Cause) -> AnyBody {
    if body.is_end_stream() {
        return body;
    }
    let hint = body.size_hint();
    let watch = Arc::new(Mutex::new(Watch { body: Some(body), handed_on: Some(Instant::now()) }));
    let watching = watch.clone();
    let task = tokio::spawn(async move {
        let mut until = Instant::now() + patience;
        loop {
            tokio::time::sleep_until(until).await;
            let body = {
                let mut watch = watching.lock().unwrap_or_else(PoisonError::into_inner);
                until = watch.handed_on.unwrap_or_else(Instant::now) + patience;
                if until > Instant::now() {
                    continue;
                }
                watch.body.take()
            };
            cause.note(Ending::Unread);
            return drop(body);
        }
    });
    Watched { watch, hint, task: task.abort_handle() }.boxed_unsync()
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(body) = &mut watch.body else {
            return Poll::Ready(Some(Err("the client does not read the answer".into())));
        };
        let frame = Pin::new(body).poll_frame(cx);
        watch.handed_on = frame.is_ready().then(Instant::now);
        frame
    }

    fn is_end_stream(&self) -> bool {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.body.as_ref().map_or(self.hint, Body::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::channel::Channel;
    use tiderace::ProcessBudget;

    use super::*;

    const PACE: Pace = Pace { interval: Duration::from_secs(10), progress: 1_000 };

    fn budget(limit: u64) -> ConnectionBudget {
        ConnectionBudget::new(limit, &ProcessBudget::default())
    }

    /// Seconds until a body with this rate in bytes per second is ended early, or `None` if it completes after 100 s.
    async fn breaks_off(bytes: usize, answered_after: Option<u64>) -> Option<u64> {
        let (mut say, body) = Channel::<Bytes, Infallible>::new(1);
        let mut request = incoming(Request::new(body), PACE, &budget(1 << 20));
        let answered = request.extensions_mut().remove::<Answered>().unwrap();
        tokio::spawn(async move {
            for second in 0..100 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if say.send_data(Bytes::from(vec![7; bytes])).await.is_err() {
                    return;
                }
                if answered_after == Some(second) {
                    answered.set();
                }
            }
        });
        let begun = Instant::now();
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return Some(begun.elapsed().as_secs());
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn content_has_to_come_at_its_pace() {
        assert_eq!(breaks_off(99, None).await, Some(10));
        assert_eq!(breaks_off(120, None).await, None);
        assert_eq!(breaks_off(1_000, None).await, None);
        assert_eq!(breaks_off(1, Some(8)).await, None, "who was answered may be slow");
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_asks_is_not_the_clients() {
        let (mut say, body) = Channel::<Bytes, Infallible>::new(8);
        let mut body = incoming(Request::new(body), PACE, &budget(1 << 20)).into_body();
        for _ in 0..5 {
            say.send_data(Bytes::from_static(b"x")).await.unwrap();
            assert!(body.frame().await.unwrap().is_ok());
            tokio::time::sleep(Duration::from_secs(9)).await;
        }
    }

    #[tokio::test]
    async fn parts_are_joined_charged_and_held_back() {
        let budget = budget(1 << 20);
        let (mut say, body) = Channel::<Bytes, Infallible>::new(100);
        let mut body = incoming(Request::new(body), PACE, &budget).into_body();
        for _ in 0..80 {
            say.send_data(Bytes::from(vec![7; 1_024])).await.unwrap();
        }
        drop(say);
        let mut held = Vec::new();
        let mut next = |body: &mut AnyBody| match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(frame))) => held.push(frame.into_data().unwrap()),
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => {}
        };
        for _ in 0..10 {
            next(&mut body);
        }
        assert_eq!(held.iter().map(Bytes::len).collect::<Vec<_>>(), [GATHER; 3]);
        assert!((WINDOW as u64..2 * WINDOW as u64 + 4 * ITEM_OVERHEAD).contains(&budget.held()));
        drop(held);
        assert_eq!(budget.held(), 0);
        let mut came = 0;
        while let Some(frame) = body.frame().await {
            came += frame.unwrap().into_data().unwrap().len();
        }
        assert_eq!(came, 80 * 1_024 - 3 * GATHER);
        // Where there is no room a little goes on nevertheless.
        let full = budget.charge((1 << 20) - 100).unwrap();
        let mut body = untimed(Full::new(Bytes::from(vec![7; 1_000])), &budget);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1_000);
        drop(full);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_asks_for_is_let_go() {
        let (mut say, body) = Channel::<Bytes, BodyError>::new(1);
        let mut answer = watched(body.boxed_unsync(), Duration::from_secs(10), Cause::default());
        for _ in 0..3 {
            say.send_data(Bytes::from_static(b"x")).await.unwrap();
            assert!(answer.frame().await.unwrap().is_ok());
            tokio::time::sleep(Duration::from_secs(9)).await;
        }
        // A back end that is slow is another matter.
        let waiting = tokio::time::timeout(Duration::from_secs(100), answer.frame()).await;
        assert!(waiting.is_err());
        say.send_data(Bytes::from_static(b"x")).await.unwrap();
        assert!(answer.frame().await.unwrap().is_ok());
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(say.send_data(Bytes::from_static(b"x")).await.is_err(), "the back end is let go");
        assert!(answer.frame().await.unwrap().is_err());
    }
}
