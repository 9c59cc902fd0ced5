//! Test page of a route with sessions, and the responses to its requests: a download, and the digest of an upload.

use std::sync::LazyLock;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;

use crate::{
    answer::plain,
    body::{AnyBody, full},
    ending::Ending,
    observe::Entry,
};

const PAGE: &str = include_str!("page.html");
/// The page loads no resources, and connects to its own origin only.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'";
/// Bytes of the download.
const SIZE: u32 = 1 << 20;
/// Bytes of an upload, at most.
const MAX_UPLOAD: u64 = 64 << 20;

/// Content of the download, made once: the page makes the same.
static DOWNLOAD: LazyLock<Bytes> =
    LazyLock::new(|| (0..SIZE).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect());

/// Answers a request of the page, or for it; gives another one back.
pub(super) async fn answer(
    request: Request<AnyBody>,
    entry: &Entry,
) -> Result<Response<AnyBody>, Box<Request<AnyBody>>> {
    let (content, kind) = match (request.method(), request.uri().query()) {
        (&Method::GET, None) => (PAGE.into(), "text/html; charset=utf-8"),
        (&Method::GET, Some("download")) => (DOWNLOAD.clone(), "application/octet-stream"),
        (&Method::POST, Some("upload")) => match digest(request.into_body(), entry).await {
            Ok(found) => (found.into(), "application/json"),
            Err(status) => return Ok(plain(status)),
        },
        _ => return Err(Box::new(request)),
    };
    let length = HeaderValue::from(content.len());
    let mut response = Response::new(full(content));
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_LENGTH, length);
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    fields.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// Length and digest of an upload, as JSON.
async fn digest(mut content: AnyBody, entry: &Entry) -> Result<String, StatusCode> {
    let (mut digest, mut bytes) = (Context::new(&SHA256), 0_u64);
    while let Some(frame) = content.frame().await {
        let frame = frame.map_err(|error| {
            entry.end(Ending::of_content(&error));
            StatusCode::BAD_REQUEST
        })?;
        let Ok(data) = frame.into_data() else { continue };
        bytes += data.len() as u64;
        if bytes > MAX_UPLOAD {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        digest.update(&data);
    }
    let hex: String = digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{{\"bytes\":{bytes},\"sha256\":\"{hex}\"}}"))
}
