//! A directory of qlog files, one per connection and end.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use transport::{
    observe::{Observer, ObserverFactory, Start},
    qlog::{EXTENSION, Format, QlogWriter, Vantage},
};
use units::Instant;

/// Files that are written unless another limit is set.
const DEFAULT_LIMIT: u64 = 10_000;
/// Largest number of connections with the same original ID that get separate files. The ID is the client's choice, so one client could
/// otherwise overwrite the file of another.
const SAME_NAMES: u32 = 16;

/// Writes `<original ID>_<client|server>.sqlog` for each connection. Give it to
/// [`ServerConfig::observe`](transport::ServerConfig::observe) or
/// [`ClientConfig::observe`](transport::ClientConfig::observe), in an [`Arc`].
///
/// If files cannot be written, connections continue: see [`take_error`](Self::take_error). The task that drives the endpoint writes the
/// files, 32 KiB at a time. So this is for debugging and the laboratory, not for a server under load.
pub struct QlogDir {
    path: PathBuf,
    title: String,
    limit: u64,
    virtual_time: bool,
    format: Format,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    created: AtomicU64,
    skipped: AtomicU64,
    error: Mutex<Option<io::Error>>,
}

impl QlogDir {
    /// Writes to this directory, which is created if it is not there.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path).map_err(|error| at(&path, &error))?;
        let title = "tiderace".to_owned();
        Ok(Self {
            path,
            title,
            limit: DEFAULT_LIMIT,
            virtual_time: false,
            format: Format::Newest,
            shared: Arc::default(),
        })
    }

    /// The title of the files; `tiderace` unless it is set.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// The number of files, 10,000 unless it is set: clients decide how many connections there are.
    #[must_use]
    pub fn with_limit(mut self, files: u64) -> Self {
        self.limit = files;
        self
    }

    /// Marks instants as those of a simulation: times in the files count from their origin instead of the start of each connection, and
    /// there is no date.
    #[must_use]
    pub fn with_virtual_time(mut self) -> Self {
        self.virtual_time = true;
        self
    }

    /// The version of the files; the newest unless it is set.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connections that have no file, because of the limit or an error.
    pub fn skipped(&self) -> u64 {
        self.shared.skipped.load(Ordering::Relaxed)
    }

    /// The first error since the last call.
    pub fn take_error(&self) -> Option<io::Error> {
        self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn create(&self, start: &Start) -> io::Result<Output> {
        let vantage = Vantage::from(start.side).name();
        let mut number = 1;
        loop {
            let suffix = if number > 1 { format!("-{number}") } else { String::new() };
            let path = self.path.join(format!("{}_{vantage}{suffix}.{EXTENSION}", start.original_dcid));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Output { file, path, shared: self.shared.clone() }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < SAME_NAMES => number += 1,
                Err(error) => return Err(at(&path, &error)),
            }
        }
    }
}

impl ObserverFactory for QlogDir {
    fn observe(&self, now: Instant, start: &Start) -> Option<Box<dyn Observer>> {
        let skip = || {
            self.shared.skipped.fetch_add(1, Ordering::Relaxed);
        };
        if self.shared.created.fetch_add(1, Ordering::Relaxed) >= self.limit {
            skip();
            return None;
        }
        let out = match self.create(start) {
            Ok(out) => out,
            Err(error) => {
                self.shared.note(error);
                skip();
                return None;
            }
        };
        let reference = if self.virtual_time { Instant::ZERO } else { now };
        let out = self.format.output(out);
        let writer = QlogWriter::new(out, start.side.into(), self.title.clone(), start.original_dcid, reference);
        // The instants of an endpoint count from the Unix epoch.
        Some(Box::new(if self.virtual_time { writer } else { writer.with_wall_clock(now - Instant::ZERO) }))
    }
}

impl Shared {
    fn note(&self, error: io::Error) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// A file whose errors are reported to the directory.
struct Output {
    file: File,
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Output {
    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.shared.note(at(&self.path, error));
        }
        result
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.file.write(bytes);
        self.noted(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.file.flush();
        self.noted(result)
    }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
