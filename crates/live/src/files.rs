//! Files of a run of commands: what they say, a certificate, and data to be served. They are removed after the run.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use emu::network::SERVER;
use lab::scenario::Programs;

use crate::PrivateDirectory;

/// Beginning of the names of directories.
const PREFIX: &str = "tiderace-commands-";
/// Bytes at the end of a log that are read for its last line.
const TAIL: u64 = 2_000;
/// Characters of the last line that are shown.
const LINE_MAX: usize = 200;
/// Bytes after which the payload repeats: more than the window of gzip, so that nothing compresses it.
const PATTERN: usize = 1 << 20;

/// A directory of its own.
pub(crate) struct Files {
    directory: PrivateDirectory,
}

impl Files {
    /// Name of the file with the data.
    pub(crate) const PAYLOAD: &str = "payload";

    /// Makes the directory, and the files in it that the commands have placeholders for.
    pub(crate) fn make(programs: &Programs, bytes: Option<u64>) -> io::Result<Self> {
        // Nobody else may read the key, or put files there.
        let files = Self { directory: PrivateDirectory::new(PREFIX)? };
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
        let mut file = File::create(self.directory().join(Self::PAYLOAD))?;
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
        self.directory.path()
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory().join("certificate.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.directory().join("key.pem")
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.log"))
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

#[cfg(test)]
mod tests {
    use super::*;

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
