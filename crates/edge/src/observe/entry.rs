//! Entry of a request: begun once, ended once.
//!
//! Begun requests are counted by protocol (`requests_begun`). Each request ends in one count (`requests`) and one line of the access log.
//! Both are made when the [`Entry`] is dropped, on every path through the code. So at any time, and for each protocol, begun = ended + in
//! flight.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use http::{Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::{
    body::Observed,
    log::{AccessLog, Line, canonical, noted},
    traffic::{Direction, Traffic},
    trial::TrialEntry,
};
use crate::{
    body::AnyBody,
    client_certificate::ClientCertificate,
    ending::{BodyError, Cause, Ending, ErrorWithEnding},
    metrics::{Metrics, RequestLabels},
    peer::Peer,
    policy::PolicyProgress,
};

/// Books of the process, in which entries are made.
pub(crate) struct Books<'a> {
    pub(crate) metrics: &'a Arc<Metrics>,
    /// Cause of requests that end with the process.
    pub(crate) process: &'a Cause,
}

/// Record of a request in progress.
pub(crate) struct RequestRecord {
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) referer: Option<String>,
    pub(crate) user_agent: Option<String>,
    pub(crate) route: String,
    pub(crate) back_end: Option<String>,
    pub(crate) tries: u32,
    pub(crate) early: bool,
    pub(crate) error: Option<String>,
    /// The user that has shown a password.
    pub(crate) user: Option<Arc<str>>,
    /// Traffic of a proxy's tunnel.
    pub(super) traffic: Option<Arc<Traffic>>,
}

/// A request that has begun. Dropped, it is counted and written down.
pub(crate) struct Entry {
    pub(crate) record: RequestRecord,
    begun: Instant,
    peer: SocketAddr,
    /// The trusted proxy that named the client.
    proxy: Option<SocketAddr>,
    certificate: Option<Arc<ClientCertificate>>,
    protocol: &'static str,
    /// Connection of a request that arrived before the client's address was validated.
    unvalidated: Option<tiderace::Connection>,
    /// The way of a QUIC connection through the policies.
    progress: Option<Arc<PolicyProgress>>,
    /// Set for clients in a trial.
    trial: Option<TrialEntry>,
    /// The head of the answer, and the seconds until it was there.
    head: Option<(StatusCode, f64)>,
    /// Bytes of the answer's content.
    bytes: u64,
    /// Number of bytes with which the answer is complete: HTTP/1.1 does not poll beyond the promised content, not even for trailers.
    promised: Option<u64>,
    /// All of the answer was handed on.
    is_handed_on: bool,
    /// The request has become a tunnel, whose time is none of a request.
    is_tunnel: bool,
    /// Ending for an error of the response's content.
    fault: Ending,
    causes: Causes,
    log: AccessLog,
    metrics: Arc<Metrics>,
}

/// Sources of the cause of an end.
struct Causes {
    own: Cause,
    connection: Cause,
    process: Cause,
    quic: Option<tiderace::Connection>,
    /// Outcome of the HTTP/3 exchange.
    outcome: Option<h3_quic::server::Outcome>,
}

impl Causes {
    fn find(&self) -> Ending {
        let by_connection = || self.quic.as_ref()?.close_reason().as_ref().map(Ending::of_close);
        let found = match self.outcome.as_ref().and_then(|outcome| outcome.get()) {
            Some(Err(h3_quic::Error::Stalled)) => Some(Ending::Unread),
            Some(Err(h3_quic::Error::Protocol { .. })) => Some(Ending::Malformed),
            Some(Err(h3_quic::Error::FieldsTooLarge { .. })) => Some(Ending::FieldsTooLarge),
            _ => None,
        };
        let found = found.or_else(|| self.connection.get()).or_else(by_connection).or_else(|| self.process.get());
        // Nobody here has ended it.
        found.unwrap_or(Ending::Cancelled)
    }
}

impl Entry {
    /// Opens the entry of a request whose header section was read.
    pub(crate) fn begin<B>(books: &Books<'_>, log: &AccessLog, request: &Request<B>, peer: &Peer) -> Self {
        let record = RequestRecord {
            method: request.method().to_string(),
            host: String::new(),
            path: request.uri().path_and_query().map_or_else(String::new, |path| path.as_str().to_owned()),
            referer: noted(log, request, &header::REFERER),
            user_agent: noted(log, request, &header::USER_AGENT),
            route: "none".to_owned(),
            back_end: None,
            tries: 0,
            early: peer.early,
            error: None,
            user: None,
            traffic: None,
        };
        let outcome = request.extensions().get().cloned();
        let validated =
            peer.quic.as_ref().filter(|_| peer.early).map(|quic| quic.has_validated_address() == Some(true));
        let unvalidated = peer.quic.clone().filter(|_| validated == Some(false));
        let mut this = Self::open(books, log, record, peer);
        (this.unvalidated, this.causes.outcome) = (unvalidated, outcome);
        this
    }

    /// Writes the record of a request that was refused for its header section, and therefore not routed.
    pub(crate) fn refused(books: &Books<'_>, log: &AccessLog, peer: &Peer, ending: Ending, status: Option<StatusCode>) {
        let none = || "-".to_owned();
        let (method, path, route) = (none(), none(), "none".to_owned());
        let (host, early) = (String::new(), peer.early);
        let record = RequestRecord {
            method,
            host,
            path,
            referer: None,
            user_agent: None,
            route,
            back_end: None,
            tries: 0,
            early,
            error: None,
            user: None,
            traffic: None,
        };
        let mut this = Self::open(books, log, record, peer);
        this.end(ending);
        if let Some(status) = status {
            this.on_head(status);
        }
    }

    fn open(books: &Books<'_>, log: &AccessLog, record: RequestRecord, peer: &Peer) -> Self {
        let figures = books.metrics.requests.of(peer.protocol);
        figures.begun.inc();
        figures.in_flight.inc();
        let causes = Causes {
            own: Cause::default(),
            connection: peer.cause.clone(),
            process: books.process.clone(),
            quic: peer.quic.clone(),
            outcome: None,
        };
        Self {
            record,
            begun: Instant::now(),
            peer: peer.remote,
            proxy: peer.proxy,
            certificate: peer.certificate.clone(),
            protocol: peer.protocol,
            unvalidated: None,
            progress: peer.progress.clone(),
            trial: None,
            head: None,
            bytes: 0,
            promised: None,
            is_handed_on: false,
            is_tunnel: false,
            fault: Ending::Fault,
            causes,
            log: log.clone(),
            metrics: books.metrics.clone(),
        }
    }

    /// A trusted proxy has named the client.
    pub(crate) fn set_client(&mut self, peer: &Peer) {
        (self.peer, self.proxy) = (peer.remote, peer.proxy);
    }

    /// The client takes part in a trial.
    pub(crate) fn set_trial(&mut self, trial: TrialEntry) {
        self.trial = Some(trial);
    }

    /// The request ends for this cause, unless another is known.
    pub(crate) fn end(&self, ending: Ending) {
        self.causes.own.note(ending);
    }

    /// Sets the ending for an error of the response's content.
    pub(crate) fn set_fault(&mut self, ending: Ending) {
        self.fault = ending;
    }

    /// The answer has begun.
    fn on_head(&mut self, status: StatusCode) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.metrics.requests.of(self.protocol).first_byte_seconds.observe(seconds);
        self.head = Some((status, seconds));
    }

    pub(super) fn on_data(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.is_handed_on |= self.promised == Some(self.bytes);
    }

    pub(super) fn on_end(&mut self) {
        self.is_handed_on = true;
    }

    pub(super) fn on_error(&mut self, error: &BodyError) {
        self.end(error.downcast_ref::<ErrorWithEnding>().map_or(self.fault, |blamed| blamed.on));
        self.record.error = Some(error.to_string());
    }

    /// Adds the entry to the answer's body, with which it ends.
    pub(crate) fn around(mut self, mut response: Response<AnyBody>) -> Response<AnyBody> {
        let status = response.status();
        // What is said to a client that has gone is no answer.
        if self.causes.own.get() != Some(Ending::Cancelled) {
            self.on_head(status);
        }
        // A body that has no place in the answer is not asked for its end.
        let has_no_content = self.record.method == Method::HEAD.as_str()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || response.body().is_end_stream();
        self.is_handed_on = has_no_content;
        if self.protocol == "http/1.1" {
            self.promised = response
                .body()
                .size_hint()
                .exact()
                .or_else(|| response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok());
        }
        response.extensions_mut().insert(self.causes.own.clone());
        response.map(|body| Observed::new(body, self).boxed_unsync())
    }

    /// The answer begins a tunnel, on a stream whose end is the end of the request. Its time is the client's affair.
    pub(crate) fn set_tunnel(&mut self) {
        self.is_tunnel = true;
    }

    /// The request has become a tunnel of a proxy.
    pub(crate) fn begin_traffic(&mut self, traffic: Arc<Traffic>) {
        self.set_tunnel();
        self.record.back_end = Some(traffic.address.clone());
        self.record.traffic = Some(traffic);
    }

    /// Cause of the request's end, shared with code that may find it.
    pub(crate) fn cause(&self) -> Cause {
        self.causes.own.clone()
    }

    /// The request has become a tunnel with this answer; the entry ends with the tunnel.
    pub(crate) fn begin_tunnel(&mut self, status: StatusCode) {
        self.on_head(status);
        self.set_tunnel();
    }

    /// Ends the entry of a tunnel that carried this number of bytes to the client.
    pub(crate) fn end_tunnel(mut self, bytes: u64, broken: Option<&BodyError>) {
        self.bytes = bytes;
        match broken {
            None => self.is_handed_on = true,
            Some(error) => self.on_error(error),
        }
    }

    /// Returns whether the client had not shown that it receives at its address.
    fn is_unvalidated(&self) -> bool {
        self.unvalidated.as_ref().is_some_and(|connection| !connection.is_established())
    }

    fn is_complete(&self) -> bool {
        let delivered = self.causes.outcome.as_ref().is_none_or(|outcome| matches!(outcome.get(), Some(Ok(()))));
        self.head.is_some() && self.is_handed_on && delivered
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(traffic) = &self.record.traffic {
            self.bytes = traffic.bytes(Direction::Down);
        }
        let trial = self.trial.take();
        let (record, metrics) = (&self.record, &self.metrics);
        let complete = self.is_complete();
        let ending = match self.causes.own.get() {
            Some(ending) => ending,
            None if complete => Ending::Complete,
            None => self.causes.find(),
        };
        let (status, first_byte) =
            self.head.map_or_else(|| (ending.status(), None), |(status, seconds)| (status, Some(seconds)));
        let seconds = self.begun.elapsed().as_secs_f64();
        let figures = metrics.requests.of(self.protocol);
        if !self.is_tunnel {
            figures.seconds.observe(seconds);
        }
        figures.bytes_out.inc_by(self.bytes);
        if let (Some(progress), Some(first_byte), true) = (&self.progress, first_byte, complete) {
            progress.on_answer(self.bytes, seconds - first_byte);
        }
        let labels = RequestLabels {
            protocol: self.protocol,
            route: record.route.clone(),
            status: class(status),
            ended_by: ending.by(),
        };
        let traffic = record.traffic.as_deref();
        let line = || Line {
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            // The same client has the same name, whichever socket it has come to, and however it is reached from here.
            client: canonical(self.peer),
            proxy: self.proxy.map(canonical),
            certificate: self.certificate.as_ref().map(|certificate| certificate.fingerprint.as_str()),
            protocol: self.protocol,
            method: &record.method,
            host: &record.host,
            path: &record.path,
            referer: record.referer.as_deref(),
            user_agent: record.user_agent.as_deref(),
            status: status.as_u16(),
            bytes: self.bytes,
            first_byte_ms: first_byte.map(|seconds| (seconds * 1e6).round() / 1e3),
            ms: (seconds * 1e6).round() / 1e3,
            route: &record.route,
            back_end: record.back_end.as_deref(),
            retries: record.tries.saturating_sub(1),
            early_data: record.early,
            client_unvalidated: self.is_unvalidated(),
            complete,
            ended_by: ending.by(),
            reason: ending.reason(),
            policy: self.progress.as_ref().and_then(|progress| progress.under()),
            error: record.error.as_deref().or_else(|| traffic.and_then(Traffic::end)),
            target: traffic.map(|traffic| traffic.target.as_str()),
            user: record.user.as_deref().or_else(|| traffic.and_then(|traffic| traffic.user.as_deref())),
            bytes_up: traffic.map(|traffic| traffic.bytes(Direction::Up)),
            streams: traffic.and_then(Traffic::streams),
            datagrams_up: traffic.and_then(|traffic| traffic.datagrams(Direction::Up)),
            datagrams_down: traffic.and_then(|traffic| traffic.datagrams(Direction::Down)),
            datagrams_dropped: traffic.filter(|traffic| traffic.dropped() > 0).map(|traffic| traffic.dropped()),
        };
        if self.log.is_on() && !self.log.write(&line()) {
            metrics.log_lines_dropped.inc();
        }
        // An address counts once it is validated.
        if let Some(trial) = trial.filter(|_| !self.is_tunnel && !self.is_unvalidated()) {
            trial.end(self.begun, ending);
        }
        metrics.requests.ended.get_or_create(&labels).inc();
        figures.in_flight.dec();
    }
}

/// A class of status, for a metric with few values.
fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}
