//! Access log: a line for each request at its end.

use std::{
    io::Write,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
    thread::JoinHandle,
    time::{Duration, UNIX_EPOCH},
};

use http::{Request, header};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;

use super::sink::LineSink;
use crate::config::{Log, LogFormat};

/// Lines that wait to be written.
const WAITING: usize = 4_096;

/// Command to the writing thread.
enum LogCommand {
    Line(Vec<u8>),
    /// Report when all lines before this one are written.
    Sync(mpsc::SyncSender<()>),
}

type Commands = mpsc::SyncSender<LogCommand>;

/// Writes the access log on its own thread, so that a slow disk delays no request.
#[derive(Clone)]
pub(crate) struct AccessLog(Option<Output>);

/// Queue of a log, and the form of its lines.
#[derive(Clone)]
struct Output {
    to: Arc<Commands>,
    format: LogFormat,
}

impl AccessLog {
    /// To a file, to the standard output (`-`), or nowhere (`off`).
    /// Counts lines that cannot be written in `lost`.
    pub(crate) fn open(config: &Log, logs: &Logs, lost: &Counter) -> std::io::Result<Self> {
        let to: Box<dyn Write + Send> = match config.access.as_str() {
            "off" => return Ok(Self(None)),
            "-" => Box::new(std::io::stdout()),
            path => Box::new(std::fs::OpenOptions::new().create(true).append(true).open(path)?),
        };
        let (mut sink, lost) = (LineSink::new(to), lost.clone());
        let (to, commands) = mpsc::sync_channel::<LogCommand>(WAITING);
        let write = move || {
            let mut batch = Vec::new();
            let mut waits = Vec::new();
            while let Ok(order) = commands.recv() {
                batch.clear();
                let mut next = Some(order);
                while let Some(order) = next {
                    match order {
                        LogCommand::Line(line) => batch.extend_from_slice(&line),
                        LogCommand::Sync(done) => waits.push(done),
                    }
                    next = if batch.len() < 256 * 1024 { commands.try_recv().ok() } else { None };
                }
                lost.inc_by(sink.write(&batch));
                for done in waits.drain(..) {
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
            }
        };
        let thread = std::thread::Builder::new().name("access-log".to_owned()).spawn(write)?;
        let to = Arc::new(to);
        logs.add(Arc::downgrade(&to), thread);
        Ok(Self(Some(Output { to, format: config.format })))
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a line; `false` when it found no room.
    pub(super) fn write(&self, line: &Line<'_>) -> bool {
        let Some(Output { to, format }) = &self.0 else { return true };
        // Both escape every control character: a request cannot write lines of its own.
        let mut bytes = match format {
            LogFormat::Json => match serde_json::to_vec(line) {
                Ok(bytes) => bytes,
                Err(_) => return false,
            },
            LogFormat::Combined => combined(line).into_bytes(),
        };
        bytes.push(b'\n');
        to.try_send(LogCommand::Line(bytes)).is_ok()
    }
}

/// A line in the combined log format, as Apache and nginx write it.
fn combined(line: &Line<'_>) -> String {
    let time = UNIX_EPOCH + Duration::try_from_secs_f64(line.time).unwrap_or_default();
    // `Sun, 06 Nov 1994 08:49:37 GMT` has all its parts at fixed places.
    let date = httpdate::fmt_http_date(time);
    let client = line.client.rsplit_once(':').map_or(line.client.as_str(), |(address, _)| address);
    format!(
        "{} - {} [{}/{}/{}:{} +0000] \"{} {} {}\" {} {} \"{}\" \"{}\"",
        client.trim_start_matches('[').trim_end_matches(']'),
        escaped(line.user.unwrap_or("-")),
        &date[5..7],
        &date[8..11],
        &date[12..16],
        &date[17..25],
        escaped(line.method),
        escaped(line.path),
        match line.protocol {
            "h3" => "HTTP/3.0",
            "h2" => "HTTP/2.0",
            _ => "HTTP/1.1",
        },
        line.status,
        line.bytes,
        escaped(line.referer.unwrap_or("-")),
        escaped(line.user_agent.unwrap_or("-")),
    )
}

/// Escapes characters that would end a quotation or a line.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => out.push_str(&format!("\\x{byte:02X}")),
            byte => out.push(byte.into()),
        }
    }
    out
}

/// Access logs of all generations with lines to write.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<Writer>>>);

/// Thread that writes, and the channel to it as long as there are senders.
struct Writer {
    commands: Weak<Commands>,
    thread: JoinHandle<()>,
}

impl Logs {
    fn add(&self, commands: Weak<Commands>, thread: JoinHandle<()>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|writer| !writer.thread.is_finished());
        all.push(Writer { commands, thread });
    }

    /// Waits until all lines so far are written.
    pub(crate) fn sync(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = std::mem::take(&mut *all);
        for writer in known {
            let Some(to) = writer.commands.upgrade() else {
                // Nobody writes to it any more: it ends when it is through. One that panicked has said so.
                let _ = writer.thread.join();
                continue;
            };
            let (done, written) = mpsc::sync_channel(1);
            if to.send(LogCommand::Sync(done)).is_ok() {
                let _ = written.recv();
            }
            all.push(writer);
        }
    }
}

/// A line.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    pub(super) time: f64,
    pub(super) client: String,
    /// The trusted proxy that named the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proxy: Option<String>,
    /// Fingerprint of the client's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) certificate: Option<&'a str>,
    pub(super) protocol: &'a str,
    pub(super) method: &'a str,
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) referer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user_agent: Option<&'a str>,
    pub(super) status: u16,
    pub(super) bytes: u64,
    /// Absent when the request ended before the head of its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_byte_ms: Option<f64>,
    pub(super) ms: f64,
    pub(super) route: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) back_end: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) retries: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) early_data: bool,
    /// The address `client` was not validated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) client_unvalidated: bool,
    /// Set if the complete answer was sent.
    pub(super) complete: bool,
    pub(super) ended_by: &'static str,
    pub(super) reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<&'a str>,
    /// Target of a proxy's tunnel, and the traffic to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_up: Option<u64>,
    /// Streams of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) streams: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) datagrams_up: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) datagrams_down: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) datagrams_dropped: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Characters of a header field in the access log, at most.
const NOTED: usize = 512;

/// Address and port, in one form for each client.
pub(super) fn canonical(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

/// The beginning of a field for the access log, if there is one.
pub(super) fn noted<B>(log: &AccessLog, request: &Request<B>, name: &header::HeaderName) -> Option<String> {
    let value = request.headers().get(name).filter(|_| log.is_on())?;
    let value = String::from_utf8_lossy(value.as_bytes());
    Some(value.chars().take(NOTED).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_combined_format_is_what_other_servers_write() {
        let line = Line {
            time: 784_111_777.25,
            client: "[2001:db8::1]:4433".to_owned(),
            proxy: None,
            certificate: None,
            protocol: "h3",
            method: "GET",
            host: "example.org",
            path: "/a?b",
            referer: None,
            user_agent: Some("x\" \n\\ y"),
            status: 200,
            bytes: 7,
            first_byte_ms: None,
            ms: 1.0,
            route: "*/",
            back_end: None,
            retries: 0,
            early_data: false,
            client_unvalidated: false,
            complete: true,
            ended_by: "answer",
            reason: "complete",
            policy: None,
            error: None,
            target: None,
            user: None,
            bytes_up: None,
            streams: None,
            datagrams_up: None,
            datagrams_down: None,
            datagrams_dropped: None,
        };
        assert_eq!(
            combined(&line),
            r#"2001:db8::1 - - [06/Nov/1994:08:49:37 +0000] "GET /a?b HTTP/3.0" 200 7 "-" "x\x22 \x0A\x5C y""#
        );
    }
}
