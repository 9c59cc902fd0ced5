//! A request over QUIC, from its stream to the end of its response.

use std::sync::Arc;

use bytes::Bytes;
use h3_quic::client::Reserved;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::sync::Notify;

use super::link::Busy;
use crate::{
    body::{self, AnyBody},
    ending::{BodyError, Ending, ErrorWithEnding},
    upstream::SendError,
};

/// A stream for a request, and its place on the connection.
pub(in crate::upstream) struct ReservedRequest {
    stream: Reserved,
    busy: Busy,
}

impl ReservedRequest {
    pub(super) fn new(stream: Reserved, busy: Busy) -> Self {
        Self { stream, busy }
    }

    /// Sends a request. Its place on the connection is free when the content of the response has ended, or is dropped.
    ///
    /// # Errors
    /// When there is no response: the back end, the connection or the content of the request has failed.
    pub(in crate::upstream) async fn send(self, request: Request<AnyBody>) -> Result<Response<AnyBody>, SendError> {
        let failed = Arc::new(Notify::new());
        let request = request.map(|content| own(content, failed.clone()));
        // A back end that is told so by a reset need not answer.
        let answered = tokio::select! {
            biased;
            answered = self.stream.send(request) => answered,
            () = failed.notified() => return Err(SendError::Content),
        };
        let answered = answered.map_err(SendError::Quic)?;
        self.busy.answered();
        Ok(answered.map(|content| {
            let content = content.map_err(broken).boxed_unsync();
            body::with(content, self.busy)
        }))
    }
}

/// Content of a request as copies: what the client's connection is charged for is free once the stream has it, not when the back end has
/// acknowledged it. The send buffer of the connection bounds the copies. A failure of the content is notified.
fn own(content: AnyBody, failed: Arc<Notify>) -> AnyBody {
    if http_body::Body::is_end_stream(&content) {
        return content;
    }
    let content = content.map_frame(|frame| frame.map_data(|data| Bytes::copy_from_slice(&data)));
    let content = content.map_err(move |error| {
        failed.notify_one();
        error
    });
    content.boxed_unsync()
}

/// An error of a response is the back end's, whatever its connection has ended with.
fn broken(error: h3_quic::Error) -> BodyError {
    let ending = match &error {
        h3_quic::Error::Closed(tiderace::CloseReason::Memory { .. }) => Ending::Memory,
        _ => Ending::Broken,
    };
    ErrorWithEnding::error(ending, error.to_string())
}
