//! Server: passes each request of a connection to a function, and sends its response.
//!
//! ```no_run
//! # async fn example(endpoint: tiderace::Endpoint) {
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tiderace_h3::server::{self, Options, RequestBody};
//!
//! while let Some(connection) = endpoint.accept().await {
//!     let service = |request: Request<RequestBody>| async move {
//!         Response::new(Full::<Bytes>::from(format!("you asked for {}\n", request.uri().path())))
//!     };
//!     tokio::spawn(server::serve(connection, Options::default(), std::future::pending(), service));
//! }
//! # }
//! ```

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;

use tokio::sync::{Notify, oneshot};

use crate::{
    compression::Compression,
    datagram::Datagrams,
    driver::Driver,
    error::{Awaited, Code, Error, Violation},
    fields::{self, Protocol, promised},
    interim::InterimResponses,
    opening, priority,
    priority_changes::PriorityChanges,
    session_handle::{GiveUp, SessionOffer, SessionStreams},
    sessions::SessionSupport,
    settings::Settings,
    shared::{Shared, Side, TABLE},
    stream::{Receiver, Sender},
};

pub use crate::body::RequestBody;

/// Limits of a connection's requests.
#[derive(Clone)]
pub struct Options {
    /// Largest size of a request's fields in bytes (RFC 9114 §4.2.2), announced to clients; a larger request is answered with
    /// 431. A HEADERS frame of more than twice as much and 16 KiB closes the connection before it is read.
    pub max_fields: u64,
    /// Time limit for the fields of a request.
    pub fields_timeout: Duration,
    /// Time after which a client that does not read an answer loses its stream.
    pub write_timeout: Duration,
    /// Concurrent requests; a cancelled request counts until its work has ended. Further ones wait.
    pub max_requests: usize,
    /// Requests that a client may cancel within ten seconds. A client that cancels more loses its connection
    /// (H3_EXCESSIVE_LOAD).
    pub max_cancelled: u32,
    /// Time limit of a drain for requests in progress at its start.
    pub drain: Duration,
    /// Counters of field compression.
    pub compression: Arc<Compression>,
    /// Support of WebTransport sessions. An extended CONNECT then has a [`SessionOffer`] in its extensions.
    /// Sessions count among `max_requests`, their streams only until their headers were read.
    pub sessions: Option<SessionSupport>,
    /// Put [`PriorityChanges`] and [`InterimResponses`] into the extensions of requests,
    /// for programs that forward them.
    pub forwards: bool,
    /// Callback for requests that never reach the service.
    pub refused: Option<Arc<dyn Fn(RefusedRequest) + Send + Sync>>,
}

/// Reason why a request whose header section was read does not reach the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusedRequest {
    /// The header section has more than [`Options::max_fields`] bytes: the client gets a 431.
    TooLarge,
    /// The request breaks a rule of HTTP (RFC 9114 §4.1.2): its stream is reset.
    Malformed,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("max_fields", &self.max_fields).finish_non_exhaustive()
    }
}

/// Outcome of an exchange, in the extensions of its request: `Ok` when all of the response was handed to the stream. Known by the time
/// that the service, or the body of its response, is dropped, unless that happens with the runtime.
#[derive(Clone, Debug, Default)]
pub struct Outcome(Arc<OnceLock<Result<(), Error>>>);

impl Outcome {
    /// Outcome of the exchange; `None` while it continues.
    pub fn get(&self) -> Option<&Result<(), Error>> {
        self.0.get()
    }

    /// Notes how the exchange ended, once.
    fn note(&self, result: &Result<(), Error>) {
        let _ = self.0.set(result.clone());
    }
}

/// Delivery of a response, in the extensions of its request: the time at which the client had acknowledged all of it.
#[derive(Clone, Debug, Default)]
pub struct Delivery(Arc<Mutex<Option<oneshot::Sender<Instant>>>>);

impl Delivery {
    /// Watches the delivery from now on. The task of the exchange then lasts until it.
    pub fn watch(&self) -> Delivered {
        let (sender, receiver) = oneshot::channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Delivered(receiver)
    }

    fn watcher(&self) -> Option<oneshot::Sender<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Delivery that is watched.
#[derive(Debug)]
pub struct Delivered(oneshot::Receiver<Instant>);

impl Delivered {
    /// Waits for the delivery. `None` when the client never has all of the response.
    pub async fn wait(self) -> Option<Instant> {
        self.0.await.ok()
    }
}

impl Options {
    fn on_refused(&self, why: RefusedRequest) {
        if let Some(refused) = &self.refused {
            refused(why);
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_fields: 64 * 1024,
            fields_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(60),
            max_requests: 100,
            max_cancelled: 200,
            drain: Duration::from_secs(30),
            compression: Arc::default(),
            sessions: None,
            forwards: false,
            refused: None,
        }
    }
}

/// Time for a client after GOAWAY to read the last responses and close the connection.
const CLIENT_CLOSES: Duration = Duration::from_secs(1);

/// The stream of a request, in its extensions, for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStreamId(pub u64);

/// Time in which cancelled requests are counted together.
const CANCELLED_TOGETHER: Duration = Duration::from_secs(10);

/// Requests in progress.
#[derive(Default)]
struct InFlight {
    count: std::sync::atomic::AtomicUsize,
    done: Notify,
    cancelled: Mutex<Cancelled>,
}

/// Recently cancelled requests.
#[derive(Default)]
struct Cancelled {
    since: Option<Instant>,
    count: u32,
}

impl Cancelled {
    /// Counts one more; false when there are more than `max` within [`CANCELLED_TOGETHER`].
    fn add(&mut self, now: Instant, max: u32) -> bool {
        if self.since.is_none_or(|since| now - since >= CANCELLED_TOGETHER) {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count += 1;
        self.count <= max
    }
}

struct Ticket(Arc<InFlight>);

impl InFlight {
    fn enter(self: &Arc<Self>) -> Ticket {
        self.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ticket(self.clone())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.count.load(std::sync::atomic::Ordering::Acquire)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
        self.0.done.notify_one();
    }
}

/// Serves `quic` until it has ended, each request on its own task. When `drain` is ready, GOAWAY asks the client to make no more requests
/// here; requests in progress are answered, and the connection ends.
///
/// If a client cancels a request while `service` or the response's body is at work, the work is dropped at once.
///
/// # Errors
/// When the client breaks a rule of HTTP/3. The end of the connection is no error.
pub async fn serve<S, F, B>(
    quic: tiderace::Connection,
    options: Options,
    drain: impl Future<Output = ()>,
    service: S,
) -> Result<(), Error>
where
    S: Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let shared = Shared::new(
        quic.clone(),
        Side::Server,
        settings(&options),
        options.sessions.clone(),
        // What a client sends waits for back ends, however slow they are.
        true,
        options.compression.clone(),
        Some(options.write_timeout),
    );
    let mut driver = Driver::new(shared.clone());
    let in_flight = Arc::new(InFlight::default());
    let mut drain = pin!(drain);
    let mut stage = Stage::Open;
    // The number of the first request that is not taken any more.
    let mut next = 0;
    loop {
        let (send, recv) = tokio::select! {
            biased;
            // What is not taken yet waits where flow control counts it.
            accepted = poll_fn(|cx| quic.poll_accept_bi(cx)), if in_flight.len() < options.max_requests => match accepted {
                Ok(halves) => halves,
                Err(reason) => return end_of(shared.end(reason.into())),
            },
            error = poll_fn(|cx| driver.poll(cx)) => return end_of(error),
            () = &mut drain, if matches!(stage, Stage::Open) => {
                // RFC 9114 §5.2 SHOULD-3, MUST NOT-2, RFC 9114 §3.3 SHOULD-4: first that the end is near, then, when
                // that has arrived, where it is
                driver.say_goaway(LAST_REQUEST);
                stage = Stage::Announced(Box::pin(tokio::time::sleep(settle_time(&quic))));
                continue;
            }
            () = stage.over() => match stage {
                Stage::Announced(_) => {
                    driver.say_goaway(next);
                    stage = Stage::Final(Box::pin(tokio::time::sleep(options.drain)));
                    continue;
                }
                // Those that are still in progress had their time.
                _ => break,
            },
            () = in_flight.done.notified() => {
                if matches!(stage, Stage::Final(_)) && in_flight.is_empty() {
                    break;
                }
                continue;
            }
            () = std::future::ready(()), if matches!(stage, Stage::Final(_)) && in_flight.is_empty() => break,
        };
        // RFC 9114 §5.2 SHOULD-1, SHOULD-2: what comes behind the end is cancelled; nothing before it was
        if matches!(stage, Stage::Final(_)) && options.sessions.is_none() {
            opening::refuse(send, recv);
            continue;
        }
        if options.sessions.is_some() {
            shared.lock().sessions.begin(send.id().0);
        }
        // Sessions continue, and so do their streams.
        let is_late = matches!(stage, Stage::Final(_));
        next = if is_late { next } else { next.max(send.id().0 + 4) };
        let (service, shared, options, ticket) = (service.clone(), shared.clone(), options.clone(), in_flight.enter());
        tokio::spawn(async move {
            let id = send.id();
            let ended = match opening::open(send, recv, &shared, options.fields_timeout, is_late).await {
                Ok(Some((send, recv))) => exchange(send, recv, shared.clone(), &options, service).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            shared.decline_session(id);
            if let Err(error) = ended {
                tracing::debug!("an exchange failed: {error}");
                if matches!(error, Error::Reset(_)) {
                    count_cancelled(&ticket.0, &shared, &options);
                }
            }
            drop(ticket);
        });
    }
    // Nothing is read here any more, and what was said last still has to leave.
    let _ = tokio::time::timeout(Duration::ZERO, poll_fn(|cx| driver.poll(cx))).await;
    deliver(&quic).await;
    // What was acknowledged need not be read yet, and some clients forget it when the connection closes. One that has nothing to do here
    // any more closes by itself.
    let _ = tokio::time::timeout(CLIENT_CLOSES, quic.closed()).await;
    // RFC 9114 §5.2 SHOULD-4
    quic.close(Code::NO_ERROR.0, b"");
    Ok(())
}

/// Counts a cancelled request, and ends the connection above the limit.
// RFC 9114 §10.5 SHOULD-2: what is given up at once costs its client nothing, and this end the work
fn count_cancelled(in_flight: &InFlight, shared: &Shared, options: &Options) {
    let mut cancelled = in_flight.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
    if !cancelled.add(Instant::now(), options.max_cancelled) {
        let reason = "too many requests were given up".to_owned();
        shared.fail(Violation { code: Code::EXCESSIVE_LOAD, reason });
    }
}

/// Settings of a server with these options.
fn settings(options: &Options) -> Settings {
    Settings { table_capacity: TABLE as u64, max_fields: options.max_fields, connect_protocol: true, datagrams: true }
}

/// State that has to be unchanged since a client's last connection for its early data to be accepted: the settings, which it may go by
/// before
/// they come again. For [`tiderace::RustlsServer`]'s `early_data_state`.
///
/// A server that offers other protocols beside HTTP/3 gives the same to all of them.
// RFC 9114 §7.2.4.2 MUST NOT-3, MUST NOT-4: early data that may go by other settings is refused
// RFC 9204 §3.2.3 MUST-1, RFC 9297 §2.1.1 MUST-3: what a client may remember of the table and of datagrams is among them
pub fn early_data_state(options: &Options) -> Vec<u8> {
    let mut state = Vec::new();
    settings(options).write(options.sessions.as_ref().map_or(&[], |support| &support.settings), &mut state);
    state
}

/// Stage of a connection's life.
enum Stage {
    Open,
    Announced(Pin<Box<tokio::time::Sleep>>),
    Final(Pin<Box<tokio::time::Sleep>>),
}

impl Stage {
    /// Waits for the end of the drain.
    async fn over(&mut self) {
        match self {
            Self::Open => std::future::pending().await,
            Self::Announced(sleep) | Self::Final(sleep) => sleep.as_mut().await,
        }
    }
}

/// Time after which GOAWAY has surely arrived, and requests sent before it have come.
fn settle_time(quic: &tiderace::Connection) -> Duration {
    (quic.rtt() * 3).clamp(Duration::from_millis(20), Duration::from_secs(2))
}

/// Waits until the client has acknowledged everything: closing discards the rest.
async fn deliver(quic: &tiderace::Connection) {
    let all = async {
        while quic.close_reason().is_none() && quic.unacknowledged() > 0 {
            tokio::time::sleep((quic.rtt() / 4).clamp(Duration::from_millis(2), Duration::from_millis(50))).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), all).await;
}

fn end_of(error: Error) -> Result<(), Error> {
    match error {
        Error::Protocol { code: Code::NO_ERROR, .. }
        | Error::Closed(_)
        | Error::StreamClosed
        | Error::TimedOut(_)
        | Error::GoingAway
        | Error::Reset(_) => Ok(()),
        other => Err(other),
    }
}

/// The highest number that a request can have.
const LAST_REQUEST: u64 = (1 << 62) - 4;

/// Reads the header section of a request: the announced length of its content, and the request. A faulty one is answered here.
async fn request_of(
    send: &mut Sender,
    recv: &mut Receiver,
    options: &Options,
) -> Result<(Option<u64>, Request<()>), Error> {
    let Ok(head) = tokio::time::timeout(options.fields_timeout, recv.head()).await else {
        return Err(Error::TimedOut(Awaited::HeaderSection));
    };
    let checked = match head {
        Ok(head) => {
            let checked = head.request().and_then(|request| Ok((promised(request.headers())?, request)));
            if checked.is_err() {
                options.on_refused(RefusedRequest::Malformed);
            }
            checked
        }
        Err(Error::FieldsTooLarge { size, limit }) => {
            options.on_refused(RefusedRequest::TooLarge);
            // RFC 9114 §4.1.1 RECOMMENDED-1: it hears why
            recv.stop(Code::NO_ERROR);
            too_large(send).await?;
            return Err(Error::FieldsTooLarge { size, limit });
        }
        Err(Error::Protocol { code, reason }) => Err(Violation { code, reason }),
        Err(error) => return Err(error),
    };
    if let Err(violation) = &checked {
        // RFC 9114 §4.1.2 MUST-1, MUST NOT-1: a malformed request is a stream error, and goes no further
        // RFC 9114 §4.1 SHOULD-2: so is one that ends before its fields
        recv.stop(violation.code);
        send.reset(violation.code);
    }
    Ok(checked?)
}

async fn exchange<S, F, B>(
    mut send: Sender,
    mut recv: Receiver,
    shared: Arc<Shared>,
    options: &Options,
    service: S,
) -> Result<(), Error>
where
    S: Fn(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let id = send.id();
    // Dropping both halves gives the stream up.
    let (length, mut request) = request_of(&mut send, &mut recv, options).await?;
    let early = shared.take_update(id);
    shared.quic.set_priority(id, early.unwrap_or_else(|| priority::of(request.headers())));
    let interim = options.forwards.then(|| {
        request.extensions_mut().insert(PriorityChanges::new(&shared, id, early));
        let interim = InterimResponses::new(&shared.memory);
        request.extensions_mut().insert(interim.clone());
        interim
    });
    let given_up = if request.extensions().get::<Protocol>().is_some() {
        send.has_datagrams();
        recv.has_datagrams();
        offer(&shared, id, &mut request)
    } else {
        shared.decline_session(id);
        GiveUp::default()
    };
    request.extensions_mut().insert(RequestStreamId(id.0));
    let outcome = Outcome::default();
    request.extensions_mut().insert(outcome.clone());
    let delivery = Delivery::default();
    request.extensions_mut().insert(delivery.clone());
    let is_head = request.method() == http::Method::HEAD;
    let agreement = (request.method() == http::Method::CONNECT).then(|| recv.agreement());
    let request = request.map(|()| RequestBody::new(recv, length, given_up.clone()));
    let stopped = || async {
        given_up.on_end(&poll_fn(|cx| shared.quic.poll_stopped(cx, id)).await.into());
    };
    let response = {
        // In its place, and in its scope: what is moved into a selection takes its room twice, for as long as the task is there.
        let mut answer = pin!(service(request));
        let answered = tokio::select! {
            answered = answer_or_interim(answer.as_mut(), interim.as_ref(), &mut send) => answered,
            () = stopped() => Err(Error::Reset(Code::REQUEST_CANCELLED)),
        };
        match answered {
            Ok(response) => response,
            Err(error) => {
                send.reset(Code::REQUEST_CANCELLED);
                let ended = Err(error);
                outcome.note(&ended);
                return ended;
            }
        }
    };
    if let Some(code) = given_up.get() {
        // The service gives the request up without a response.
        send.reset(code);
        let ended = Err(Error::Reset(code));
        outcome.note(&ended);
        return ended;
    }
    let (head, body) = response.into_parts();
    if let Some(agreement) = agreement.filter(|_| head.status.is_success()) {
        agreement.seal();
        send.become_tunnel();
    }
    let sent = {
        // In this scope, so that whoever watches the body learns of the outcome before it goes.
        let mut body = pin!(body);
        let sent = match send.fields(|| fields::of_response(&head)) {
            Ok(()) if is_head => send.finish().await,
            Ok(()) => send.body(body.as_mut(), stopped()).await,
            Err(error) => Err(error),
        };
        outcome.note(&sent);
        sent
    };
    if sent.is_ok()
        && let Some(watcher) = delivery.watcher()
        && send.delivered().await
    {
        // Nobody may wait any more.
        let _ = watcher.send(Instant::now());
    }
    if let Err(error) = &sent {
        given_up.on_end(error);
        // RFC 9114 §4.1.1 SHOULD-3: an answer that breaks off must not look complete
        send.reset(given_up.get().unwrap_or_else(|| error.reset_code()));
    }
    sent
}

/// Waits for the response of a service, and sends its interim responses before.
async fn answer_or_interim<B>(
    mut answer: Pin<&mut impl Future<Output = Response<B>>>,
    interim: Option<&InterimResponses>,
    send: &mut Sender,
) -> Result<Response<B>, Error> {
    let Some(interim) = interim else { return Ok(answer.await) };
    loop {
        let (head, charge) = tokio::select! {
            biased;
            next = interim.next() => next,
            response = &mut answer => {
                // What the service has sent with its last step comes first, and leaves with the response.
                for (head, _) in interim.end() {
                    send.fields(|| fields::of_response(&head))?;
                }
                return Ok(response);
            }
        };
        send.fields(|| fields::of_response(&head))?;
        drop(charge);
        send.flush().await?;
    }
}

/// Adds datagrams, and the streams of a session if both endpoints support them, to the request's extensions.
fn offer(shared: &Arc<Shared>, id: tiderace::StreamId, request: &mut Request<()>) -> GiveUp {
    request.extensions_mut().insert(Datagrams::new(shared, id));
    if shared.support.is_none() {
        return GiveUp::default();
    }
    let streams = SessionStreams::new(shared, id);
    let given_up = streams.given_up();
    request.extensions_mut().insert(SessionOffer::new(streams));
    given_up
}

/// Answers a request whose fields are too large (RFC 6585 §5).
async fn too_large(send: &mut Sender) -> Result<(), Error> {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    send.fields(|| fields::of_response(&head))?;
    send.finish().await
}
