//! Serves a connection: each request goes to a function, its response back to the client.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use h3::server::{RequestResolver, RequestStream};
use http::{Request, Response, header};
use http_body::Body;
use tiderace::StreamId;
use tokio::sync::Notify;

use crate::{
    body::{known, promised},
    error::{Code, Error},
    priority,
    quic::{ANSWERED, BidiStream, Connection, SendStream},
};

pub use crate::body::RequestBody;

/// Limits of a connection's requests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that the fields of a request may have (RFC 9114 §4.2.2), which clients are told; a request with more is
    /// answered with 431. A HEADERS frame of more than twice as much and 16 KiB closes the connection before it is read.
    pub max_fields: u64,
    /// A request whose fields have not come within this time is given up.
    pub fields_timeout: Duration,
    /// How long requests that were under way at the beginning of a drain may take.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_fields: 64 * 1024, fields_timeout: Duration::from_secs(10), drain: Duration::from_secs(30) }
    }
}

/// How long a client that was told to go has for reading the last answers and closing the connection.
const CLIENT_CLOSES: Duration = Duration::from_secs(1);

/// The stream of a request, in its extensions, for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStreamId(pub u64);

/// Requests under way.
#[derive(Default)]
struct InFlight {
    count: std::sync::atomic::AtomicUsize,
    done: Notify,
}

struct Ticket(Arc<InFlight>);

impl InFlight {
    fn enter(self: &Arc<Self>) -> Ticket {
        self.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ticket(self.clone())
    }

    fn is_empty(&self) -> bool {
        self.count.load(std::sync::atomic::Ordering::Acquire) == 0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1 {
            self.0.done.notify_one();
        }
    }
}

/// Serves `quic` until it is over, each request on a task of its own. When `drain` is ready, the client is told to make no
/// more requests here (GOAWAY); those under way are answered, and the connection ends.
///
/// A request whose client gives up while `service` or the response's body is at work is dropped where it stands.
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
    B::Error: std::fmt::Display + Send,
{
    let adapter = Connection::new(quic.clone(), 2 * options.max_fields + 16 * 1024);
    let mut builder = h3::server::builder();
    let mut connection = builder.max_field_section_size(options.max_fields).build(adapter).await?;
    let in_flight = Arc::new(InFlight::default());
    let mut drain = pin!(drain);
    let mut stage = Stage::Open;
    loop {
        let resolver = tokio::select! {
            accepted = connection.accept() => match accepted {
                Ok(Some(resolver)) => resolver,
                // The client has said that it makes no more requests.
                Ok(None) => break,
                Err(error) => return end_of(error.into()),
            },
            () = &mut drain, if matches!(stage, Stage::Open) => {
                // RFC 9114 §5.2: first that the end is near, then, when that has arrived, where it is.
                connection.shutdown(usize::MAX).await?;
                stage = Stage::Announced(Box::pin(tokio::time::sleep(settle_time(&quic))));
                continue;
            }
            () = stage.over() => match stage {
                Stage::Announced(_) => {
                    connection.shutdown(1).await?;
                    stage = Stage::Final(Box::pin(tokio::time::sleep(options.drain)));
                    continue;
                }
                // Those that are still under way had their time.
                _ => break,
            },
            () = in_flight.done.notified(), if matches!(stage, Stage::Final(_)) => {
                if in_flight.is_empty() {
                    break;
                }
                continue;
            }
            () = std::future::ready(()), if matches!(stage, Stage::Final(_)) && in_flight.is_empty() => break,
        };
        let (service, options, quic, ticket) = (service.clone(), options.clone(), quic.clone(), in_flight.enter());
        tokio::spawn(async move {
            if let Err(error) = exchange(resolver, &quic, &options, service).await {
                tracing::debug!("an exchange failed: {error}");
            }
            drop(ticket);
        });
    }
    deliver(&quic).await;
    // What was acknowledged need not be read yet, and some clients forget it when the connection closes. One that has nothing to do here
    // any more closes by itself.
    let _ = tokio::time::timeout(CLIENT_CLOSES, quic.closed()).await;
    quic.close(Code::NO_ERROR.0, b"");
    Ok(())
}

/// Where a connection is in its life.
enum Stage {
    Open,
    Announced(Pin<Box<tokio::time::Sleep>>),
    Final(Pin<Box<tokio::time::Sleep>>),
}

impl Stage {
    /// When its time is over.
    async fn over(&mut self) {
        match self {
            Self::Open => std::future::pending().await,
            Self::Announced(sleep) | Self::Final(sleep) => sleep.as_mut().await,
        }
    }
}

/// The time in which what was said has surely arrived, and requests sent before then have come.
fn settle_time(quic: &tiderace::Connection) -> Duration {
    (quic.rtt() * 3).clamp(Duration::from_millis(20), Duration::from_secs(2))
}

/// Waits until the client has everything: closing forgets what it has not acknowledged.
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
        Error::Protocol { code: Code::NO_ERROR, .. } | Error::Closed(_) | Error::GoingAway | Error::Reset(_) => Ok(()),
        other => Err(other),
    }
}

async fn exchange<S, F, B>(
    resolver: RequestResolver<Connection, Bytes>,
    quic: &tiderace::Connection,
    options: &Options,
    service: S,
) -> Result<(), Error>
where
    S: Fn(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Display + Send,
{
    // A request whose fields are too large is answered in here (RFC 6585 §5), and that is the end of it.
    let resolving = ANSWERED.scope(Cell::new(false), resolver.resolve_request());
    let resolved = tokio::time::timeout(options.fields_timeout, resolving).await;
    // Dropping an unresolved request resets its stream.
    let Ok(resolved) = resolved else { return Err(Error::Closed("the fields did not come in time".to_owned())) };
    let (request, mut stream): (Request<()>, RequestStream<BidiStream, Bytes>) = resolved?;
    let id = StreamId(stream.id().into_inner());
    quic.set_priority(id, priority::of(request.headers()));
    let length = match check(&request).and_then(|()| promised(request.headers())) {
        Ok(length) => length,
        Err(error) => {
            // RFC 9114 §4.1.2: a malformed request is a stream error.
            stream.stop_sending(known(Code::MESSAGE_ERROR));
            stream.stop_stream(known(Code::MESSAGE_ERROR));
            return Err(error);
        }
    };
    let (mut send, recv) = stream.split();
    let is_head = request.method() == http::Method::HEAD;
    let mut request = request.map(|()| RequestBody::new(recv, length));
    request.extensions_mut().insert(RequestStreamId(id.0));
    let response = tokio::select! {
        response = service(request) => response,
        _ = poll_fn(|cx| quic.poll_stopped(cx, id)) => {
            send.stop_stream(known(Code::REQUEST_CANCELLED));
            return Err(Error::Reset(Code::REQUEST_CANCELLED));
        }
    };
    let sent = respond(&mut send, quic, id, response, is_head).await;
    if sent.is_err() {
        // RFC 9114 §8: an answer that breaks off must not look complete.
        send.stop_stream(known(Code::INTERNAL_ERROR));
    }
    sent
}

/// What RFC 9114 §4.2 forbids and `h3` lets through.
fn check(request: &Request<()>) -> Result<(), Error> {
    let fields = request.headers();
    let forbidden = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
    let bad = forbidden.iter().find(|name| fields.contains_key(**name)).copied();
    let bad = bad.or_else(|| fields.get_all(header::TE).iter().any(|value| value != "trailers").then_some("te"));
    let bad = bad.or_else(|| (fields.get_all(header::HOST).iter().count() > 1).then_some("host"));
    match bad {
        None => Ok(()),
        Some(name) => {
            let reason = format!("the field `{name}` has no place in HTTP/3");
            Err(Error::Protocol { code: Code::MESSAGE_ERROR, reason })
        }
    }
}

async fn respond<B>(
    send: &mut RequestStream<SendStream, Bytes>,
    quic: &tiderace::Connection,
    id: StreamId,
    response: Response<B>,
    is_head: bool,
) -> Result<(), Error>
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Display + Send,
{
    let (head, body) = response.into_parts();
    send.send_response(Response::from_parts(head, ())).await?;
    let mut body = pin!(body);
    if !is_head {
        loop {
            let frame = tokio::select! {
                biased;
                frame = poll_fn(|cx| body.as_mut().poll_frame(cx)) => frame,
                _ = poll_fn(|cx| quic.poll_stopped(cx, id)) => return Err(Error::Reset(Code::REQUEST_CANCELLED)),
            };
            let Some(frame) = frame else { break };
            match frame.map_err(|error| Error::Body(error.to_string()))?.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => send.send_data(data).await?,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        send.send_trailers(trailers).await?;
                        break;
                    }
                }
            }
        }
    }
    send.finish().await?;
    Ok(())
}
