//! Destination of the content: standard output or a file, decompressed or unchanged.

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_compression::tokio::bufread::{BrotliDecoder, DeflateDecoder, GzipDecoder, ZstdDecoder};
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::io::StreamReader;

use crate::failure::Failure;

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// Destination of the content of one answer.
pub(super) enum Sink {
    /// The standard output.
    Stdout,
    /// Nowhere: only figures are wanted.
    Nowhere,
    /// A file.
    File(std::fs::File, PathBuf),
}

/// Reason why content stopped before its end.
pub(super) enum Stopped {
    /// The reader of the standard output is gone.
    Unread,
    /// The server, the network, or the content itself.
    Broken(String),
    /// The file cannot be written.
    Unwritten(std::io::Error),
}

impl Sink {
    /// Opens the destination: standard output for `-`, otherwise a new file. Called only when a response has arrived.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        let file = std::fs::File::create(path).map_err(|error| {
            Failure::new(format_args!("cannot write {}: {error}", path.display())).hint("say another file with `-o`")
        })?;
        Ok(Self::File(file, path.to_owned()))
    }

    fn write(&mut self, data: &[u8]) -> Result<(), Stopped> {
        match self {
            Self::Nowhere => Ok(()),
            // A reader that has gone away (`| head`) wants no more.
            Self::Stdout => std::io::stdout().lock().write_all(data).map_err(|_| Stopped::Unread),
            Self::File(file, _) => file.write_all(data).map_err(Stopped::Unwritten),
        }
    }

    /// The file, where it is one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(_, path) => Some(path),
            _ => None,
        }
    }
}

/// Writes the content of a response to its destination. Returns the bytes received from the network, before decompression, and the reason
/// for an early end.
pub(super) async fn take<B>(
    body: B,
    fields: &HeaderMap,
    decompress: bool,
    sink: &mut Sink,
    quiet: bool,
) -> (u64, Option<Stopped>)
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    let received = Arc::new(AtomicU64::new(0));
    let bar = bar(fields, sink, quiet);
    let counter = (received.clone(), bar.clone());
    let counted = body.map_err(|error| std::io::Error::other(error.to_string())).map_frame(move |frame| {
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        counter.0.fetch_add(length, Ordering::Relaxed);
        counter.1.inc(length);
        frame
    });
    let plain = StreamReader::new(Box::pin(counted.into_data_stream()));
    let coding =
        if decompress { fields.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()) } else { None };
    let mut reader: Pin<Box<dyn AsyncRead + Send>> = match coding.map(str::to_ascii_lowercase).as_deref() {
        None | Some("identity") => Box::pin(plain),
        // RFC 9110 §8.4.1.3: x-gzip is the same.
        Some("gzip" | "x-gzip") => Box::pin(GzipDecoder::new(plain)),
        Some("deflate") => Box::pin(DeflateDecoder::new(plain)),
        Some("br") => Box::pin(BrotliDecoder::new(plain)),
        Some("zstd") => Box::pin(ZstdDecoder::new(plain)),
        Some(other) => {
            let why = format!("the content is coded as `{other}`, which was not asked for");
            return (0, Some(Stopped::Broken(why)));
        }
    };
    let mut buffer = vec![0; CHUNK];
    let stopped = loop {
        match reader.read(&mut buffer).await {
            Ok(0) => break None,
            Ok(length) => {
                if let Err(stopped) = sink.write(&buffer[..length]) {
                    break Some(stopped);
                }
            }
            Err(error) => break Some(Stopped::Broken(error.to_string())),
        }
    };
    bar.finish_and_clear();
    (received.load(Ordering::Relaxed), stopped)
}

/// Progress on the standard error, where content goes into a file and the standard error is a terminal.
fn bar(fields: &HeaderMap, sink: &Sink, quiet: bool) -> ProgressBar {
    if quiet || sink.path().is_none() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let length = fields.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {bytes_per_sec}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
