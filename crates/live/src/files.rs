//! Files of a run of commands: what they say, a certificate, and data to be served. They are removed after the run.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Once,
        atomic::{AtomicU32, Ordering},
    },
};

use emu::network::SERVER;
use lab::scenario::Programs;

/// Beginning of the names of directories; the process and a number follow.
const PREFIX: &str = "tiderace-commands-";
/// Bytes at the end of a log that are read for its last line.
const TAIL: u64 = 2_000;
/// Characters of the last line that are shown.
const LINE_MAX: usize = 200;
/// Bytes after which the payload repeats: more than the window of gzip, so that nothing compresses it.
const PATTERN: usize = 1 << 20;

/// A directory of its own.
pub(crate) struct Files {
    directory: PathBuf,
    /// Locked directory: a lock ends with its process, and shows in every process namespace.
    _lock: File,
}

impl Files {
    /// Name of the file with the data.
    pub(crate) const PAYLOAD: &str = "payload";

    /// Makes the directory, and the files in it that the commands have placeholders for.
    pub(crate) fn make(programs: &Programs, bytes: Option<u64>) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static CLEANED: Once = Once::new();
        CLEANED.call_once(|| remove_left_over(&std::env::temp_dir()));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
        // Nobody else may read the key, or put files there.
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let lock = File::open(&directory)?;
        lock.lock()?;
        let files = Self { directory, _lock: lock };
        if programs.uses("certificate") || programs.uses("key") {
            let names = [SERVER.to_string(), "localhost".to_owned()];
            let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
            fs::write(files.certificate(), made.cert.pem())?;
            fs::write(files.key(), made.signing_key.serialize_pem())?;
        }
        if let Some(bytes) = bytes.filter(|_| programs.uses("file") || programs.uses("directory")) {
            files.write_payload(bytes)?;
        }
        Ok(files)
    }

    fn write_payload(&self, mut left: u64) -> io::Result<()> {
        let mut file = File::create(self.directory.join(Self::PAYLOAD))?;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        let pattern: Vec<u8> = (0..PATTERN / 8).flat_map(next).collect();
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(PATTERN).min(PATTERN);
            file.write_all(&pattern[..part])?;
            left -= part as u64;
        }
        Ok(())
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join("certificate.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.directory.join("key.pem")
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// A new file for the output of a program.
    pub(crate) fn log(&self, name: &str) -> io::Result<Arc<File>> {
        File::create(self.log_path(name)).map(Arc::new)
    }

    /// The last line that a program has written, shortened.
    pub(crate) fn last_line(&self, name: &str) -> Option<String> {
        let mut file = File::open(self.log_path(name)).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        // Terminals obey control characters.
        Some(line.chars().filter(|c| !c.is_control()).take(LINE_MAX).collect())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Removes directories of processes that have ended without removing them, as after SIGKILL.
fn remove_left_over(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()) else {
            continue;
        };
        // A process of another namespace is not in /proc. It holds its lock.
        let is_gone = process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists();
        let is_unlocked = || File::open(entry.path()).is_ok_and(|directory| directory.try_lock().is_ok());
        if is_gone && entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_unlocked() {
            // What belongs to another user stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_processes_that_are_gone_are_removed() {
        let own = std::env::temp_dir().join(format!("tiderace-live-left-over-{}", std::process::id()));
        let make = |name: String| {
            fs::create_dir_all(own.join(&name)).unwrap();
            fs::write(own.join(&name).join(Files::PAYLOAD), "x").unwrap();
            own.join(name)
        };
        // Above the largest number that Linux gives (2^22).
        let gone = make(format!("{PREFIX}4194305-0"));
        let locked = make(format!("{PREFIX}4194306-0"));
        let present = make(format!("{PREFIX}{}-0", std::process::id()));
        let other = make("tiderace-commands-notes".to_owned());
        let lock = File::open(&locked).unwrap();
        lock.lock().unwrap();
        remove_left_over(&own);
        assert_eq!([&gone, &locked, &present, &other].map(|directory| directory.exists()), [false, true, true, true]);
        drop(lock);
        remove_left_over(&own);
        assert!(!locked.exists());
        fs::remove_dir_all(&own).unwrap();
    }

    fn programs(client: &str) -> Programs {
        Programs { name: "x".to_owned(), server: "s".to_owned(), client: client.to_owned(), port: 1 }
    }

    #[test]
    fn files_are_made_for_placeholders_and_removed() {
        let files = Files::make(&programs("c {file} {key}"), Some(3_000_000)).unwrap();
        let directory = files.directory().to_owned();
        assert_eq!(fs::metadata(directory.join(Files::PAYLOAD)).unwrap().len(), 3_000_000);
        assert!(fs::read_to_string(files.certificate()).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
        drop(files);
        assert!(!directory.exists());
        let files = Files::make(&programs("c"), Some(5)).unwrap();
        assert_eq!(fs::read_dir(files.directory()).unwrap().count(), 0);
    }

    #[test]
    fn the_last_line_is_that_of_the_end() {
        let files = Files::make(&programs("c"), None).unwrap();
        assert_eq!(files.last_line("server"), None);
        let mut log: &File = &files.log("server").unwrap();
        log.write_all("x\n".repeat(3_000).as_bytes()).unwrap();
        log.write_all(b"a \x1b[31mred\x1b[0m end\n\n").unwrap();
        assert_eq!(files.last_line("server").as_deref(), Some("a [31mred[0m end"));
    }
}
