//! The access log: a line of JSON for each request that has ended.

use std::{
    io::Write,
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
    thread::JoinHandle,
};

use serde::Serialize;

/// Lines that wait to be written.
const WAITING: usize = 4_096;

/// Command to the writing thread.
enum LogCommand {
    Line(Vec<u8>),
    /// Say when everything before this is written.
    Sync(mpsc::SyncSender<()>),
}

type Commands = mpsc::SyncSender<LogCommand>;

/// Writes the access log on a thread of its own, so that a slow disk delays no request.
#[derive(Clone)]
pub(crate) struct AccessLog(Option<Arc<Commands>>);

impl AccessLog {
    /// To a file, to the standard output (`-`), or nowhere (`off`).
    pub(crate) fn open(target: &str, logs: &Logs) -> std::io::Result<Self> {
        let mut sink: Box<dyn Write + Send> = match target {
            "off" => return Ok(Self(None)),
            "-" => Box::new(std::io::stdout()),
            path => Box::new(std::fs::OpenOptions::new().create(true).append(true).open(path)?),
        };
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
                if let Err(error) = sink.write_all(&batch).and_then(|()| sink.flush()) {
                    tracing::warn!("cannot write the access log: {error}");
                }
                for done in waits.drain(..) {
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
            }
        };
        let thread = std::thread::Builder::new().name("access-log".to_owned()).spawn(write)?;
        let to = Arc::new(to);
        logs.add(Arc::downgrade(&to), thread);
        Ok(Self(Some(to)))
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a line; `false` when it found no room.
    pub(super) fn write(&self, line: &Line<'_>) -> bool {
        let Some(to) = &self.0 else { return true };
        // JSON escapes every control character: a request cannot write lines of its own.
        let Ok(mut bytes) = serde_json::to_vec(line) else { return false };
        bytes.push(b'\n');
        to.try_send(LogCommand::Line(bytes)).is_ok()
    }
}

/// The access logs of all generations that have something to write.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<Writer>>>);

/// A thread that writes, and its way in as long as somebody has something to write.
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

    /// Waits until every line so far is written.
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
    pub(super) protocol: &'a str,
    pub(super) method: &'a str,
    pub(super) host: &'a str,
    pub(super) path: &'a str,
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
    /// Nobody has shown that the request is of `client`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) client_unvalidated: bool,
    /// The answer went out whole.
    pub(super) complete: bool,
    pub(super) ended_by: &'static str,
    pub(super) reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<&'a str>,
    /// The target of a proxy's tunnel, and what went there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_up: Option<u64>,
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
