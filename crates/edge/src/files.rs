//! Static files: a directory as a site.
//!
//! Reading blocks the worker for as long as the page cache takes, as with other servers: a disk that is slow delays the
//! requests of one worker.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::body::{AnyBody, BodyError, full};

/// Bytes that are read at a time.
const CHUNK: u64 = 64 * 1024;

/// A directory that is served.
pub(crate) struct Files {
    root: PathBuf,
    /// The beginning of request paths that stands for the directory, without a slash at its end.
    prefix: String,
}

impl Files {
    pub(crate) fn new(root: &str, prefix: &str) -> Self {
        Self { root: root.into(), prefix: prefix.trim_end_matches('/').to_owned() }
    }

    /// Answers a request.
    pub(crate) fn answer<B>(&self, request: &Request<B>) -> Response<AnyBody> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let path = request.uri().path();
        let rest = path.strip_prefix(&self.prefix).unwrap_or(path);
        let Some(relative) = relative(rest) else { return plain(StatusCode::NOT_FOUND) };
        let mut file = self.root.join(relative);
        if file.is_dir() {
            if !path.ends_with('/') {
                let to =
                    path.to_owned() + "/" + &request.uri().query().map_or(String::new(), |query| format!("?{query}"));
                return redirect(&to);
            }
            file.push("index.html");
        } else if path.ends_with('/') {
            return plain(StatusCode::NOT_FOUND);
        }
        match Found::open(&file) {
            Ok(found) => found.answer(request.method(), request.headers()),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => plain(StatusCode::FORBIDDEN),
            Err(_) => plain(StatusCode::NOT_FOUND),
        }
    }
}

/// The path below the directory that a request's path means; `None` when it would lead out of it, or to a hidden file.
fn relative(path: &str) -> Option<PathBuf> {
    let decoded = decode(path)?;
    let mut relative = PathBuf::new();
    for segment in decoded.split('/').filter(|segment| !segment.is_empty()) {
        // `.` and `..` and whatever is hidden; a backslash or a NUL is never what a site means.
        if segment.starts_with('.') || segment.contains(['\\', '\0']) {
            return None;
        }
        relative.push(segment);
    }
    Some(relative)
}

fn decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// A plain answer that says what its status means.
pub(crate) fn plain(status: StatusCode) -> Response<AnyBody> {
    let text = format!("{}\n", status.canonical_reason().unwrap_or("Error"));
    let length = HeaderValue::from(text.len());
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(header::CONTENT_LENGTH, length);
    response
}

fn redirect(to: &str) -> Response<AnyBody> {
    // Two slashes at the beginning would name another host.
    let to = format!("/{}", to.trim_start_matches('/'));
    let mut response = plain(StatusCode::PERMANENT_REDIRECT);
    match HeaderValue::from_str(&to) {
        Ok(to) => {
            response.headers_mut().insert(header::LOCATION, to);
            response
        }
        Err(_) => plain(StatusCode::NOT_FOUND),
    }
}

/// A file that is there.
struct Found {
    file: File,
    length: u64,
    modified: SystemTime,
    kind: &'static str,
}

impl Found {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
        Ok(Self { file, length: metadata.len(), modified, kind: kind(path) })
    }

    /// What is the same as long as the file is the same.
    fn tag(&self) -> String {
        let time = self.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("\"{:x}-{:x}\"", time.as_nanos(), self.length)
    }

    fn answer(mut self, method: &Method, fields: &HeaderMap) -> Response<AnyBody> {
        let tag = self.tag();
        let mut response = Response::new(full(""));
        let headers = response.headers_mut();
        headers.insert(header::ETAG, HeaderValue::from_str(&tag).expect("hexadecimal"));
        headers.insert(
            header::LAST_MODIFIED,
            HeaderValue::from_str(&httpdate::fmt_http_date(self.modified)).expect("a date is ASCII"),
        );
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.is_known(fields, &tag) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        let (mut first, mut length) = (0, self.length);
        // RFC 9110 §14.2: a range is for GET only; §13.1.5: `if-range` has to fit.
        let whole = fields.get(header::IF_RANGE).is_some_and(|value| value.as_bytes() != tag.as_bytes());
        match fields
            .get(header::RANGE)
            .filter(|_| *method == Method::GET && !whole)
            .and_then(|value| range(value, self.length))
        {
            Some(Ok((from, to))) => {
                (first, length) = (from, to - from + 1);
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let value = format!("bytes {from}-{to}/{}", self.length);
                response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&value).expect("numbers"));
            }
            Some(Err(())) => {
                let mut response = plain(StatusCode::RANGE_NOT_SATISFIABLE);
                let value = format!("bytes */{}", self.length);
                response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&value).expect("numbers"));
                return response;
            }
            None => {}
        }
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        if *method == Method::HEAD {
            return response;
        }
        if first > 0 && std::io::Seek::seek(&mut self.file, std::io::SeekFrom::Start(first)).is_err() {
            return plain(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let mut reading = Reading { file: self.file, left: length };
        if length > CHUNK {
            return response.map(|_| reading.boxed_unsync());
        }
        match reading.read() {
            Ok(data) => response.map(|_| full(data)),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// RFC 9110 §13.2.2: whether the client has it already.
    fn is_known(&self, fields: &HeaderMap, tag: &str) -> bool {
        if let Some(tags) = fields.get(header::IF_NONE_MATCH) {
            let tags = tags.to_str().unwrap_or_default();
            return tags.split(',').map(str::trim).any(|other| other == "*" || other.trim_start_matches("W/") == tag);
        }
        let since = fields.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
        let since = since.and_then(|text| httpdate::parse_http_date(text).ok());
        since.is_some_and(|since| self.modified.duration_since(since).map_or(0, |later| later.as_secs()) == 0)
    }
}

/// The first and last byte of a range of one file. `None` when the field is to be ignored, an error when no byte is in it.
fn range(value: &HeaderValue, length: u64) -> Option<Result<(u64, u64), ()>> {
    let text = value.to_str().ok()?.strip_prefix("bytes=")?;
    // Several ranges would need several parts; the whole is a correct answer, too.
    let (from, to) = text.split_once('-').filter(|_| !text.contains(','))?;
    if from.is_empty() {
        let last: u64 = to.parse().ok()?;
        return Some(if last == 0 || length == 0 { Err(()) } else { Ok((length.saturating_sub(last), length - 1)) });
    }
    let from: u64 = from.parse().ok()?;
    let to: u64 = if to.is_empty() { u64::MAX } else { to.parse().ok()? };
    if to < from {
        return None;
    }
    Some(if from >= length { Err(()) } else { Ok((from, to.min(length - 1))) })
}

/// A file on its way out.
struct Reading {
    file: File,
    left: u64,
}

impl Reading {
    fn read(&mut self) -> std::io::Result<Bytes> {
        let size = self.left.min(CHUNK);
        // Memory that nobody fills twice: zeroing it first costs a twentieth of serving a large file.
        let mut data = Vec::with_capacity(usize::try_from(size).expect("a chunk fits"));
        if (&self.file).take(size).read_to_end(&mut data)? as u64 != size {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= size;
        Ok(data.into())
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(self.read().map(Frame::data).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "txt" | "md" => "text/plain; charset=utf-8",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "woff" => "font/woff",
        "wasm" => "application/wasm",
        "pdf" => "application/pdf",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "mp3" => "audio/mpeg",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out() {
        for (path, expected) in [
            ("/a/b.txt", Some("a/b.txt")),
            ("/a//b", Some("a/b")),
            ("/%61", Some("a")),
            ("/", Some("")),
            ("/../etc/passwd", None),
            ("/a/../../x", None),
            ("/%2e%2e/x", None),
            ("/a/%2E./x", None),
            ("/..%2fx", None),
            ("/.git/config", None),
            ("/a\\..\\x", None),
            ("/a%00.txt", None),
            ("/%zz", None),
            ("/%f", None),
            ("/%ff", None),
        ] {
            assert_eq!(relative(path).as_deref(), expected.map(Path::new), "{path}");
        }
        let located = redirect("//evil.example/x/");
        assert_eq!(located.headers()["location"], "/evil.example/x/");
    }

    #[test]
    fn ranges() {
        let range = |text: &str| range(&HeaderValue::from_str(text).unwrap(), 10);
        assert_eq!(range("bytes=0-3"), Some(Ok((0, 3))));
        assert_eq!(range("bytes=8-"), Some(Ok((8, 9))));
        assert_eq!(range("bytes=8-99"), Some(Ok((8, 9))));
        assert_eq!(range("bytes=-3"), Some(Ok((7, 9))));
        assert_eq!(range("bytes=-99"), Some(Ok((0, 9))));
        assert_eq!(range("bytes=10-"), Some(Err(())));
        assert_eq!(range("bytes=-0"), Some(Err(())));
        assert_eq!(range("bytes=3-1"), None);
        assert_eq!(range("bytes=0-1,3-4"), None);
        assert_eq!(range("lines=0-1"), None);
    }
}
