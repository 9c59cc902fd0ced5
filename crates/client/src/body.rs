//! Bodies of requests and responses.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// Error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// Body of a request.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BodyError>;
/// Body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;
