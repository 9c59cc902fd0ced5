//! Directories of qlog files: one per run, one file per connection and side, with packets and keys.

pub mod schema;

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use capture::{Packet, PacketFile};
use netem::Ecn;
use transport::qlog::Format;
use units::{Duration, Instant};

/// Destination of the qlog files of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logs {
    /// Directory, with one of each contender's in it.
    pub directory: PathBuf,
    /// Version of the files.
    pub format: Format,
    /// Write what leaves and reaches the clients as well: `packets.pcapng`, with the keys that open it.
    pub packets: bool,
}

impl Logs {
    /// The newest qlog files in this directory, without packets.
    pub const fn newest(directory: PathBuf) -> Self {
        Self { directory, format: Format::Newest, packets: false }
    }
}

/// The directory of one run's qlog files.
#[derive(Clone, Debug)]
pub struct QlogDir {
    path: PathBuf,
    format: Format,
    packets: Option<Packets>,
}

impl QlogDir {
    /// The directory `CONTENDER/seed-N` below the one of `logs`, created if it is not there.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(logs: &Logs, contender: &str, seed: u64) -> io::Result<Self> {
        let plain: String =
            contender.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let path = logs.directory.join(plain).join(format!("seed-{seed}"));
        fs::create_dir_all(&path)?;
        let packets = logs.packets.then(|| PacketFile::create(&path.join("packets.pcapng"))).transpose()?;
        Ok(Self { path, format: logs.format, packets: packets.map(|file| Packets(Arc::new(file))) })
    }

    /// The file of packets, if they are wanted.
    pub(crate) fn packets(&self) -> Option<&Packets> {
        self.packets.as_ref()
    }

    /// Writes the rest of the packets.
    ///
    /// # Errors
    /// When some of them could not be written.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.packets.as_ref().map_or(Ok(()), |packets| packets.0.finish().map(drop))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new file for one side of one connection: `connection-007-client.sqlog`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn file(&self, connection: usize, side: &str) -> io::Result<Box<dyn Write + Send>> {
        let file = File::create(self.path.join(format!("connection-{connection:03}-{side}.sqlog")))?;
        Ok(self.format.output(BufWriter::new(file)))
    }
}

/// Packets of a run at its clients, in a file.
#[derive(Clone, Debug)]
pub(crate) struct Packets(Arc<PacketFile>);

impl Packets {
    /// Writes a packet. Times count from that of [`crate::tls`], at which the certificates of runs are valid.
    pub(crate) fn note(&self, now: Instant, ends: [core::net::SocketAddr; 2], ecn: Ecn, payload: &[u8]) {
        let at = Duration::from_secs(crate::tls::CLOCK.unix_secs) + (now - Instant::ZERO);
        let [from, to] = ends;
        self.0.packet(&Packet { at, from, to, ecn: ecn.bits(), payload });
    }
}

impl rustls::KeyLog for Packets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        self.0.keys(&capture::key_line(label, client_random, secret));
    }
}
