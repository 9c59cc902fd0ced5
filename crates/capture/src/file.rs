//! A file of packets that several threads write.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Seek, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{Packet, Packets};

/// Packets and keys in a file for its owner alone. The first error ends the writing; [`finish`](Self::finish) returns it.
#[derive(Debug)]
pub struct PacketFile {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    packets: Packets<BufWriter<File>>,
    written: u64,
    error: Option<io::Error>,
}

impl PacketFile {
    /// Creates the file, or replaces an existing one.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let packets = Packets::begin(BufWriter::new(private(path)?))?;
        Ok(Self { path: path.to_owned(), state: Mutex::new(State { packets, written: 0, error: None }) })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a packet.
    pub fn packet(&self, packet: &Packet<'_>) {
        self.write(|state| {
            state.written += 1;
            state.packets.packet(packet)
        });
    }

    /// Writes lines of a TLS key log.
    pub fn keys(&self, lines: &str) {
        self.write(|state| state.packets.keys(lines));
    }

    /// Writes what is buffered, and returns the number of packets.
    ///
    /// # Errors
    /// The first error since the file was created.
    pub fn finish(&self) -> io::Result<u64> {
        self.write(|state| state.packets.flush());
        let mut state = self.state();
        state.error.take().map_or(Ok(state.written), Err)
    }

    /// Writes lines of a TLS key log before all packets, for keys that are known at the end only.
    ///
    /// # Errors
    /// When the file cannot be written again.
    pub fn prepend_keys(&self, lines: &str) -> io::Result<()> {
        let mut state = self.state();
        state.packets.flush()?;
        let mut head = Vec::new();
        Packets::begin(&mut head)?;
        let begin = head.len() as u64;
        head.clear();
        Packets::begin(&mut head)?.keys(lines)?;
        let mut old = File::open(&self.path)?;
        old.seek(io::SeekFrom::Start(begin))?;
        let partial = self.path.with_extension(format!("partial-{}", std::process::id()));
        let written = private(&partial).and_then(|mut new| {
            new.write_all(&head)?;
            io::copy(&mut old, &mut new)?;
            fs::rename(&partial, &self.path)
        });
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&partial);
        }
        written
    }

    fn write(&self, act: impl FnOnce(&mut State) -> io::Result<()>) {
        let mut state = self.state();
        if state.error.is_none() {
            let result = act(&mut state);
            state.error = result.err();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a file that only its owner can read: with the keys, the content can be decrypted.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_written_by_several_is_in_the_file() {
        let path = std::env::temp_dir().join(format!("tiderace-packets-{}.pcapng", std::process::id()));
        let file = PacketFile::create(&path).unwrap();
        std::thread::scope(|scope| {
            for port in 1..=4 {
                let file = &file;
                scope.spawn(move || {
                    let (from, to) = (([192, 0, 2, 1], port).into(), ([192, 0, 2, 2], 443).into());
                    let at = Duration::from_secs(1);
                    (0..25).for_each(|_| file.packet(&Packet { at, from, to, ecn: 0, payload: b"payload" }));
                });
            }
        });
        file.keys("CLIENT_RANDOM 00 11\n");
        assert_eq!(file.finish().unwrap(), 100);
        let bytes = std::fs::read(&path).unwrap();
        let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
        let mut blocks = 0;
        while let Some(block) = reader.next_block() {
            block.unwrap();
            blocks += 1;
        }
        // The description of the interface, the packets and the keys.
        assert_eq!(blocks, 102);
        file.prepend_keys("CLIENT_RANDOM 22 33\n").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
        let mut kinds = Vec::new();
        while let Some(block) = reader.next_block() {
            kinds.push(matches!(block.unwrap(), pcap_file::pcapng::Block::Unknown(_)));
        }
        assert_eq!((kinds.len(), kinds[1], kinds[2]), (103, true, false), "the keys stand before the packets");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_oversized_payload_is_an_error_that_ends_the_writing() {
        let path = std::env::temp_dir().join(format!("tiderace-oversized-{}.pcapng", std::process::id()));
        let file = PacketFile::create(&path).unwrap();
        let (from, to) = (([192, 0, 2, 1], 1).into(), ([192, 0, 2, 2], 443).into());
        let payload = vec![0; 70_000];
        file.packet(&Packet { at: Duration::ZERO, from, to, ecn: 0, payload: &payload });
        assert!(file.finish().is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
