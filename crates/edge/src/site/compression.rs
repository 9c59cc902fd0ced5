//! Compression of content while it is sent.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use async_compression::{
    Level,
    codecs::{brotli::params::EncoderParams, zstd::params::CParameter},
    tokio::bufread::{BrotliEncoder, GzipEncoder, ZstdEncoder},
};
use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tiderace::ConnectionBudget;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, ReadBuf};

use crate::{
    body::{AnyBody, full, with},
    config::Compression,
    content_coding::{Coding, preferred},
    ending::BodyError,
};

/// Content of a known length up to this is compressed at once, so that no encoder outlives the call.
const AT_ONCE: u64 = 64 * 1024;
/// Bytes of compressed content in a frame, at most.
const OUTPUT: usize = 16 * 1024;
/// Base-two logarithm of the window. Larger ones compress little better, and cost several times their size for each response in progress.
const WINDOW: u8 = 16;

impl Coding {
    /// Heap that an encoder holds, in bytes; `cargo test -p tiderace-edge --lib encoders_hold` measures it.
    fn memory(self) -> u64 {
        match self {
            Self::Zstd => 448 * 1024,
            Self::Brotli => 704 * 1024,
            Self::Gzip => 384 * 1024,
        }
    }

    /// Reader of the compressed content of `content`.
    fn encoder<R: AsyncBufRead + Send + 'static>(self, content: R) -> Pin<Box<dyn AsyncRead + Send>> {
        match self {
            Self::Zstd => {
                let window = CParameter::window_log(WINDOW.into());
                Box::pin(ZstdEncoder::with_quality_and_params(content, Level::Precise(1), &[window]))
            }
            Self::Brotli => {
                let parameters = EncoderParams::default().quality(Level::Precise(3)).window_size(WINDOW.into());
                Box::pin(BrotliEncoder::with_params(content, parameters.block_size(WINDOW.into())))
            }
            Self::Gzip => Box::pin(GzipEncoder::with_quality(content, Level::Precise(5))),
        }
    }
}

/// Codings that a request accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    coding: Option<Coding>,
    /// The coding in place of `coding` where there is too little memory for that.
    smaller: Option<Coding>,
    pub(super) is_head: bool,
}

impl Accepted {
    /// A site without compression.
    pub(crate) fn none() -> Self {
        Self { coding: None, smaller: None, is_head: false }
    }
}

/// Compresses the responses of a route.
pub(super) struct Compressor {
    codings: Vec<Coding>,
    types: Vec<String>,
    min_size: u64,
}

impl Compressor {
    pub(super) fn new(config: &Compression) -> Self {
        Self {
            codings: config.codings.0.iter().filter_map(|name| Coding::of(name)).collect(),
            types: config.types.0.iter().map(|kind| kind.to_ascii_lowercase()).collect(),
            min_size: config.min_size.0,
        }
    }

    pub(super) fn accepted(&self, method: &Method, fields: &HeaderMap) -> Accepted {
        let coding = preferred(fields, &self.codings);
        let smaller = coding.and_then(|coding| {
            let smaller = self.codings.iter().copied().filter(|other| other.memory() < coding.memory());
            preferred(fields, &smaller.collect::<Vec<_>>())
        });
        Accepted { coding, smaller, is_head: *method == Method::HEAD }
    }

    /// True for content that a client gets compressed if it accepts that.
    fn fits(&self, response: &Response<AnyBody>) -> bool {
        let fields = response.headers();
        let text = |name| fields.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
        let kind = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_listed = self.types.iter().any(|listed| match listed.strip_suffix('*') {
            Some(start) => kind.starts_with(start),
            None => *listed == kind,
        });
        let length = text(header::CONTENT_LENGTH).parse().ok().or_else(|| response.body().size_hint().exact());
        let is_whole =
            ![StatusCode::PARTIAL_CONTENT, StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED, StatusCode::RESET_CONTENT]
                .contains(&response.status());
        let has_coding = fields.contains_key(header::CONTENT_ENCODING) || fields.contains_key(header::CONTENT_RANGE);
        let may_transform = !text(header::CACHE_CONTROL).to_ascii_lowercase().contains("no-transform");
        is_listed
            && is_whole
            && !has_coding
            && may_transform
            && length.is_none_or(|length: u64| length >= self.min_size)
    }

    /// Compresses a response if its content and the client's wishes are such, and `memory` has room for an encoder.
    pub(super) async fn compress(
        &self,
        mut response: Response<AnyBody>,
        accepted: Accepted,
        memory: &ConnectionBudget,
    ) -> Response<AnyBody> {
        if !self.fits(&response) {
            return response;
        }
        // Also without a coding: a cache may not hand this response to clients that accept another (RFC 9110 §12.5.5).
        if !names(response.headers(), header::VARY, "accept-encoding") {
            response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        let Some(coding) = accepted.coding else { return response };
        if accepted.is_head {
            describe(&mut response, coding, None);
            return response;
        }
        // The encoder that there is memory for, and its charge.
        let encoder = || {
            let charged = |coding: Coding| Some((coding, memory.charge(coding.memory())?));
            charged(coding).or_else(|| accepted.smaller.and_then(charged))
        };
        let Some(length) = response.body().size_hint().exact().filter(|length| *length <= AT_ONCE) else {
            let Some((coding, charge)) = encoder() else { return response };
            let mut response = response.map(|body| with(Compressed::new(body, coding).boxed_unsync(), charge));
            describe(&mut response, coding, None);
            return response;
        };
        // Held until it is sent, whoever is slow: the back end, or the client.
        let Some(mut charge) = memory.charge(length) else { return response };
        let (head, body) = response.into_parts();
        let (content, trailers) = match body.collect().await {
            Ok(collected) => {
                let trailers = collected.trailers().cloned();
                (collected.to_bytes(), trailers)
            }
            Err(error) => return Response::from_parts(head, Failed(Some(error)).boxed_unsync()),
        };
        let compressed = match encoder() {
            Some((coding, _while_it_runs)) => at_once(coding, &content).await.map(|data| (coding, data)),
            None => None,
        };
        let (coding, data) = match compressed {
            Some((coding, data)) => (Some(coding), data),
            // A copy, so that no buffer that content arrived in stays with it.
            None => (None, Bytes::copy_from_slice(&content)),
        };
        let length = data.len();
        charge.set(length as u64);
        let mut body = full(data);
        if let Some(trailers) = trailers {
            body = body.with_trailers(async move { Some(Ok(trailers)) }).boxed_unsync();
        }
        let mut response = Response::from_parts(head, with(body, charge));
        if let Some(coding) = coding {
            describe(&mut response, coding, Some(length));
        }
        response
    }
}

/// Compresses complete content; `None` if it does not become shorter.
async fn at_once(coding: Coding, content: &Bytes) -> Option<Bytes> {
    let mut compressed = Vec::new();
    coding.encoder(io::Cursor::new(content.clone())).read_to_end(&mut compressed).await.ok()?;
    compressed.shrink_to_fit();
    (compressed.len() < content.len()).then(|| compressed.into())
}

/// Content that breaks off before it begins.
struct Failed(Option<BodyError>);

impl Body for Failed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.0.take().map(Err))
    }
}

/// True if a field that is a list names this, or everything.
fn names(fields: &HeaderMap, field: header::HeaderName, name: &str) -> bool {
    fields.get_all(field).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(
        |item| {
            let item = item.trim();
            item == "*" || item.eq_ignore_ascii_case(name)
        },
    )
}

/// Describes compressed content.
fn describe(response: &mut Response<AnyBody>, coding: Coding, length: Option<usize>) {
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    fields.remove(header::CONTENT_LENGTH);
    // Ranges would count bytes of the content without its coding.
    fields.remove(header::ACCEPT_RANGES);
    if let Some(length) = length {
        fields.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    // Equal content in another form: only a weak tag says that (RFC 9110 §8.8.1).
    let weak = fields.get(header::ETAG).and_then(|tag| {
        let tag = tag.to_str().ok()?;
        HeaderValue::from_str(&format!("W/{tag}")).ok().filter(|_| !tag.starts_with("W/"))
    });
    if let Some(weak) = weak {
        fields.insert(header::ETAG, weak);
    }
}

type Trailers = Arc<Mutex<Option<HeaderMap>>>;

/// Content that is compressed while it is sent.
struct Compressed {
    encoder: Pin<Box<dyn AsyncRead + Send>>,
    trailers: Trailers,
    is_over: bool,
}

impl Compressed {
    fn new(body: AnyBody, coding: Coding) -> Self {
        let trailers = Trailers::default();
        let content = Content { body, data: Bytes::new(), trailers: trailers.clone(), is_over: false };
        Self { encoder: coding.encoder(content), trailers, is_over: false }
    }
}

impl Body for Compressed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut room = vec![0; OUTPUT];
        let mut buffer = ReadBuf::new(&mut room);
        match ready!(self.encoder.as_mut().poll_read(cx, &mut buffer)) {
            Ok(()) if buffer.filled().is_empty() => {
                self.is_over = true;
                let trailers = self.trailers.lock().unwrap_or_else(PoisonError::into_inner).take();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Ok(()) => Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(buffer.filled()))))),
            Err(error) => {
                self.is_over = true;
                // The error of the content itself says why the response ends.
                let error = match error.kind() {
                    io::ErrorKind::Other => error.into_inner().unwrap_or_else(|| "no content".into()),
                    _ => error.into(),
                };
                Poll::Ready(Some(Err(error)))
            }
        }
    }
}

/// Content as an encoder reads it.
struct Content {
    body: AnyBody,
    data: Bytes,
    trailers: Trailers,
    is_over: bool,
}

impl AsyncBufRead for Content {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        while this.data.is_empty() && !this.is_over {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                None => this.is_over = true,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.data = data,
                    Err(frame) => {
                        *this.trailers.lock().unwrap_or_else(PoisonError::into_inner) = frame.into_trailers().ok();
                    }
                },
            }
        }
        Poll::Ready(Ok(&this.data))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.get_mut().data.advance(count);
    }
}

impl AsyncRead for Content {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let data = ready!(self.as_mut().poll_fill_buf(cx))?;
        let count = data.len().min(buffer.remaining());
        buffer.put_slice(&data[..count]);
        self.consume(count);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compressor(config: &str) -> Compressor {
        Compressor::new(&toml::from_str(config).unwrap())
    }

    fn response(fields: &[(&'static str, &str)], body: AnyBody) -> Response<AnyBody> {
        let mut response = Response::new(body);
        for (name, value) in fields {
            response.headers_mut().append(*name, HeaderValue::from_str(value).unwrap());
        }
        response
    }

    fn accepted(coding: Coding) -> Accepted {
        Accepted { coding: Some(coding), smaller: None, is_head: false }
    }

    fn budget(limit: u64) -> ConnectionBudget {
        ConnectionBudget::new(limit, &tiderace::ProcessBudget::default())
    }

    const TEXT: (&str, &str) = ("content-type", "text/html; charset=utf-8");

    #[tokio::test]
    async fn content_stays_as_it_is_where_it_has_to() {
        let compressor = compressor("");
        let text = "word ".repeat(1_000);
        for fields in [
            &[("content-type", "image/png")][..],
            &[TEXT, ("content-encoding", "gzip")],
            &[TEXT, ("cache-control", "public, no-transform")],
            &[TEXT, ("content-range", "bytes 0-1/2")],
            &[],
        ] {
            let done = compressor
                .compress(response(fields, full(text.clone())), accepted(Coding::Gzip), &budget(1 << 22))
                .await;
            assert_eq!(done.into_body().collect().await.unwrap().to_bytes(), text.as_bytes(), "{fields:?}");
        }
        let short =
            compressor.compress(response(&[TEXT], full("short")), accepted(Coding::Gzip), &budget(1 << 22)).await;
        assert!(!short.headers().contains_key("vary") && !short.headers().contains_key("content-encoding"));
        // Where the connection has no memory for an encoder, and where the client wants none.
        for (accepted, limit) in [(accepted(Coding::Gzip), 1_000), (Accepted::none(), 1 << 22)] {
            let done = compressor.compress(response(&[TEXT], full(text.clone())), accepted, &budget(limit)).await;
            assert_eq!(
                (done.headers()["vary"].to_str().unwrap(), done.headers().get("content-encoding")),
                ("accept-encoding", None)
            );
            assert_eq!(done.into_body().collect().await.unwrap().to_bytes(), text.as_bytes());
        }
    }

    #[tokio::test]
    async fn little_memory_makes_for_a_smaller_encoder_or_none() {
        let compressor = compressor("");
        let fields = [(header::ACCEPT_ENCODING, HeaderValue::from_static("br, gzip"))].into_iter().collect();
        let accepted = compressor.accepted(&Method::GET, &fields);
        for (free, expected) in [(Coding::Brotli.memory(), "br"), (Coding::Gzip.memory(), "gzip"), (1_000, "")] {
            let (_say, body) = http_body_util::channel::Channel::<Bytes, BodyError>::new(1);
            let done = compressor.compress(response(&[TEXT], body.boxed_unsync()), accepted, &budget(free)).await;
            let coding = done.headers().get("content-encoding").map_or("", |coding| coding.to_str().unwrap());
            assert_eq!(coding, expected, "{free}");
        }
    }

    #[tokio::test]
    async fn tags_become_weak_and_lengths_true() {
        let memory = budget(1 << 22);
        let fields = [
            TEXT,
            ("etag", "\"a-1\""),
            ("accept-ranges", "bytes"),
            ("content-length", "5000"),
            ("vary", "Accept-Encoding"),
        ];
        let body = full("word ".repeat(1_000));
        let done = compressor("").compress(response(&fields, body), accepted(Coding::Brotli), &memory).await;
        let text = |name: &str| done.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(text("etag").as_deref(), Some("W/\"a-1\""));
        assert_eq!((text("accept-ranges"), text("content-encoding").as_deref()), (None, Some("br")));
        assert_eq!(done.headers().get_all("vary").iter().count(), 1);
        let length: usize = text("content-length").unwrap().parse().unwrap();
        // What waits for its reader is charged, and no encoder is left.
        assert_eq!(memory.held(), length as u64);
        assert_eq!(done.into_body().collect().await.unwrap().to_bytes().len(), length);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn content_without_a_length_is_compressed_as_it_comes_with_its_trailers() {
        use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZstdDecoder};
        for coding in Coding::ALL {
            let memory = budget(1 << 22);
            let (mut say, body) = http_body_util::channel::Channel::<Bytes, BodyError>::new(4);
            let done = compressor("").compress(response(&[TEXT], body.boxed_unsync()), accepted(coding), &memory).await;
            assert!(!done.headers().contains_key("content-length"));
            assert!(memory.held() > 0);
            let mut body = done.into_body();
            let mut compressed = Vec::new();
            for part in ["first ", "second "] {
                say.send_data(Bytes::from(part)).await.unwrap();
                // What has come leaves, although more may come.
                let frame = tokio::time::timeout(std::time::Duration::from_secs(60), body.frame()).await;
                compressed.extend(frame.expect("it leaves").unwrap().unwrap().into_data().unwrap());
            }
            say.send_trailers([(header::ETAG, HeaderValue::from_static("x"))].into_iter().collect()).await.unwrap();
            drop(say);
            let rest = body.collect().await.unwrap();
            assert_eq!(rest.trailers().unwrap()["etag"], "x");
            compressed.extend(rest.to_bytes());
            let mut plain = String::new();
            let from = io::Cursor::new(compressed);
            match coding {
                Coding::Zstd => ZstdDecoder::new(from).read_to_string(&mut plain).await,
                Coding::Brotli => BrotliDecoder::new(from).read_to_string(&mut plain).await,
                Coding::Gzip => GzipDecoder::new(from).read_to_string(&mut plain).await,
            }
            .unwrap();
            assert_eq!(plain, "first second ", "{coding:?}");
            assert_eq!(memory.held(), 0);
        }
    }

    #[tokio::test]
    async fn content_that_breaks_off_does_so_compressed_too() {
        for length in [None, Some(5_000)] {
            let (mut say, body) = http_body_util::channel::Channel::<Bytes, BodyError>::new(4);
            let mut response = response(&[TEXT], body.boxed_unsync());
            if let Some(length) = length {
                response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            }
            say.send_data(Bytes::from_static(b"some")).await.unwrap();
            tokio::spawn(async move { say.abort("broken".into()) });
            let done = compressor("").compress(response, accepted(Coding::Gzip), &budget(1 << 22)).await;
            assert_eq!(done.into_body().collect().await.unwrap_err().to_string(), "broken");
        }
    }

    /// Anonymous memory of this process, in bytes. The kernel walks the page tables for it; the resident size of `statm` is a counter for
    /// each processor and some hundred kilobytes off, and counts pages of the program itself.
    fn anonymous() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let kilobytes = maps.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        kilobytes.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
    }

    /// Memory is that of all tests of a process, so this test starts a process that runs only [`encoders_alone`].
    #[test]
    fn encoders_hold_no_more_than_they_are_charged() {
        let own = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(own);
        command.args(["--exact", "site::compression::tests::encoders_alone", "--nocapture"]).env(ALONE, "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for coding in Coding::ALL {
            assert!(said.contains(&format!("{coding:?}: ")), "{said}");
        }
    }

    /// Set where [`encoders_alone`] is alone.
    const ALONE: &str = "ENCODERS_ALONE";

    #[tokio::test]
    async fn encoders_alone() {
        if std::env::var_os(ALONE).is_none() {
            return;
        }
        const COUNT: u64 = 64;
        // Kept to the end: memory that one coding gave back would hide what the next one takes.
        let mut held = Vec::new();
        for coding in Coding::ALL {
            // Text that does not repeat itself within a window, so that all tables fill.
            let text: String =
                (0..60_000_u64).map(|n| format!("{:x} ", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
            let before = anonymous();
            for _ in 0..COUNT {
                let (mut say, body) = http_body_util::channel::Channel::<Bytes, BodyError>::new(64);
                let mut body = Compressed::new(body.boxed_unsync(), coding);
                for part in text.as_bytes().chunks(64 * 1_024) {
                    say.send_data(Bytes::copy_from_slice(part)).await.unwrap();
                    let _ = Pin::new(&mut body).poll_frame(&mut Context::from_waker(std::task::Waker::noop()));
                }
                while Pin::new(&mut body).poll_frame(&mut Context::from_waker(std::task::Waker::noop())).is_ready() {}
                held.push((say, body));
            }
            let each = anonymous().saturating_sub(before) / COUNT;
            println!("{coding:?}: {} KiB", each / 1_024);
            assert!(each <= coding.memory(), "{coding:?} holds {each} bytes");
        }
    }
}
