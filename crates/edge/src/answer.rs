//! Answers that the gateway makes itself, in place of a back end.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};

use crate::body::{AnyBody, full};

/// A page of the gateway's own, in the extensions of a response: a page of the site may replace it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnPage;

/// Plain answer with the meaning of its status.
pub(crate) fn plain(status: StatusCode) -> Response<AnyBody> {
    let text = format!("{}\n", status.canonical_reason().unwrap_or("Error"));
    let length = HeaderValue::from(text.len());
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(header::CONTENT_LENGTH, length);
    response.extensions_mut().insert(OwnPage);
    response
}

/// Plain answer with the time after which the client may come again.
pub(crate) fn later(status: StatusCode, wait: Duration) -> Response<AnyBody> {
    let mut response = plain(status);
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    response
}
