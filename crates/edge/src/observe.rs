//! What is remembered of a request: its line in the access log, and its figures. Both are written when its answer has ended,
//! however it ended.

use std::{
    io::Write,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use serde::Serialize;

use crate::{
    body::{AnyBody, BodyError},
    metrics::{DirectionLabels, Metrics, ProtocolLabel, RequestLabels},
    policy::Course,
};

/// Lines that wait to be written.
const WAITING: usize = 4_096;

/// Writes the access log on a thread of its own, so that a slow disk delays no request.
#[derive(Clone)]
pub(crate) struct AccessLog(Option<mpsc::SyncSender<Vec<u8>>>);

impl AccessLog {
    /// To a file, to the standard output (`-`), or nowhere (`off`).
    pub(crate) fn open(target: &str) -> std::io::Result<Self> {
        let mut sink: Box<dyn Write + Send> = match target {
            "off" => return Ok(Self(None)),
            "-" => Box::new(std::io::stdout()),
            path => Box::new(std::fs::OpenOptions::new().create(true).append(true).open(path)?),
        };
        let (to, lines) = mpsc::sync_channel::<Vec<u8>>(WAITING);
        let write = move || {
            let mut batch = Vec::new();
            while let Ok(line) = lines.recv() {
                batch.clear();
                batch.extend_from_slice(&line);
                while let (true, Ok(line)) = (batch.len() < 256 * 1024, lines.try_recv()) {
                    batch.extend_from_slice(&line);
                }
                if let Err(error) = sink.write_all(&batch).and_then(|()| sink.flush()) {
                    tracing::warn!("cannot write the access log: {error}");
                }
            }
        };
        std::thread::Builder::new().name("access-log".to_owned()).spawn(write)?;
        Ok(Self(Some(to)))
    }
}

/// What is known of a request while it goes through.
pub(crate) struct Story {
    pub(crate) begun: Instant,
    pub(crate) peer: SocketAddr,
    pub(crate) protocol: &'static str,
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) route: String,
    pub(crate) back_end: Option<String>,
    pub(crate) tries: u32,
    pub(crate) early: bool,
    /// The connection, when the request came before the client's address was validated.
    pub(crate) unvalidated: Option<tiderace::Connection>,
    pub(crate) error: Option<String>,
    /// The way of a QUIC connection through the policies.
    pub(crate) course: Option<Arc<Course>>,
}

#[derive(Serialize)]
struct Line<'a> {
    time: f64,
    client: String,
    protocol: &'a str,
    method: &'a str,
    host: &'a str,
    path: &'a str,
    status: u16,
    bytes: u64,
    first_byte_ms: f64,
    ms: f64,
    route: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    back_end: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    retries: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    early_data: bool,
    /// Nobody has shown that the request is of `client`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    client_unvalidated: bool,
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A class of status, for a figure with few values.
fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

/// Puts the story around an answer's body.
pub(crate) fn observe(
    response: Response<AnyBody>,
    story: Story,
    log: &AccessLog,
    metrics: &Arc<Metrics>,
) -> Response<AnyBody> {
    let protocol = ProtocolLabel { protocol: story.protocol };
    let first_byte = story.begun.elapsed().as_secs_f64();
    metrics.first_byte_seconds.get_or_create(&protocol).observe(first_byte);
    metrics.requests_in_flight.get_or_create(&protocol).inc();
    let status = response.status();
    let (log, metrics) = (log.clone(), metrics.clone());
    response.map(|body| {
        Observed { body, story, status, first_byte, bytes: 0, complete: false, log, metrics }.boxed_unsync()
    })
}

struct Observed {
    body: AnyBody,
    story: Story,
    status: StatusCode,
    first_byte: f64,
    bytes: u64,
    complete: bool,
    log: AccessLog,
    metrics: Arc<Metrics>,
}

impl Body for Observed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => self.complete = true,
            Poll::Ready(Some(Ok(frame))) => self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
            Poll::Ready(Some(Err(error))) => self.story.error = Some(error.to_string()),
            Poll::Pending => {}
        }
        if self.body.is_end_stream() {
            self.complete = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let (story, metrics) = (&self.story, &self.metrics);
        let seconds = story.begun.elapsed().as_secs_f64();
        let protocol = ProtocolLabel { protocol: story.protocol };
        metrics.requests_in_flight.get_or_create(&protocol).dec();
        metrics.request_seconds.get_or_create(&protocol).observe(seconds);
        let labels = RequestLabels { protocol: story.protocol, route: story.route.clone(), status: class(self.status) };
        metrics.requests.get_or_create(&labels).inc();
        let out = DirectionLabels { protocol: story.protocol, direction: "out" };
        metrics.content_bytes.get_or_create(&out).inc_by(self.bytes);
        if let Some(course) = story.course.as_ref().filter(|_| self.complete) {
            course.on_answer(self.bytes, seconds - self.first_byte);
        }
        let Some(log) = &self.log.0 else { return };
        // A body that nobody asks for its end, such as that of a HEAD request, is complete.
        let complete = self.complete || self.body.is_end_stream() || story.method == "HEAD";
        let line = Line {
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            // The same client has the same name, whichever socket it has come to, and however it is reached from here.
            client: SocketAddr::new(story.peer.ip().to_canonical(), story.peer.port()).to_string(),
            protocol: story.protocol,
            method: &story.method,
            host: &story.host,
            path: &story.path,
            status: self.status.as_u16(),
            bytes: self.bytes,
            first_byte_ms: (self.first_byte * 1e6).round() / 1e3,
            ms: (seconds * 1e6).round() / 1e3,
            route: &story.route,
            back_end: story.back_end.as_deref(),
            retries: story.tries.saturating_sub(1),
            early_data: story.early,
            client_unvalidated: story.unvalidated.as_ref().is_some_and(|connection| !connection.is_established()),
            complete,
            policy: story.course.as_ref().and_then(|course| course.under()),
            error: story.error.as_deref(),
        };
        // JSON escapes every control character: a request cannot write lines of its own.
        let Ok(mut bytes) = serde_json::to_vec(&line) else { return };
        bytes.push(b'\n');
        if log.try_send(bytes).is_err() {
            metrics.log_lines_dropped.inc();
        }
    }
}
