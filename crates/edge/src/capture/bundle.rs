//! Thread that writes a bundle: a folder with a qlog file for each connection, `packets.pcapng`, `keys.log`, and `capture.json`, which
//! describes the capture and missing data. All files are for their owner only.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering, mpsc},
};

use ::capture::{Packet, Packets};
use tokio::sync::oneshot;

/// Item to be written to a bundle.
pub(super) enum Item {
    /// Whole records of a connection's qlog.
    Qlog { file: Arc<str>, bytes: Vec<u8> },
    /// A payload on the wire.
    Payload { at: std::time::Duration, from: std::net::SocketAddr, to: std::net::SocketAddr, ecn: u8, bytes: Vec<u8> },
    /// A line of the key log.
    Key(String),
}

impl Item {
    /// Bytes that it takes, about.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Qlog { bytes, .. } => bytes.len(),
            Self::Payload { bytes, .. } => bytes.len() + 80,
            // In both files.
            Self::Key(line) => 2 * line.len(),
        }
    }
}

/// Totals of a bundle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) packets: u64,
    pub(super) keys: u64,
}

/// The sending end: items for the thread, and its last word.
pub(super) struct Bundle {
    pub(super) items: mpsc::Sender<Item>,
    pub(super) done: oneshot::Receiver<io::Result<Written>>,
}

/// A new file for its owner alone.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Starts the thread. It ends when the sender is gone.
pub(super) fn begin(folder: PathBuf, queued: Arc<AtomicUsize>) -> io::Result<Bundle> {
    let mut packets = Packets::begin(BufWriter::new(create(&folder.join("packets.pcapng"))?))?;
    let mut keys = create(&folder.join("keys.log"))?;
    let (items, to_write) = mpsc::channel::<Item>();
    let (tell, done) = oneshot::channel();
    let write = move || {
        let mut logs: HashMap<Arc<str>, File> = HashMap::new();
        let mut written = Written::default();
        let mut result = Ok(());
        for item in to_write {
            queued.fetch_sub(item.size(), Ordering::Relaxed);
            // After an error the rest is only taken, so that nobody waits for room.
            if result.is_ok() {
                result = write_item(&folder, item, &mut packets, &mut keys, &mut logs, &mut written);
            }
        }
        let result = result.and_then(|()| packets.flush()).map(|()| written);
        let _ = tell.send(result);
    };
    std::thread::Builder::new().name("capture".to_owned()).spawn(write)?;
    Ok(Bundle { items, done })
}

fn write_item(
    folder: &Path,
    item: Item,
    packets: &mut Packets<BufWriter<File>>,
    keys: &mut File,
    logs: &mut HashMap<Arc<str>, File>,
    written: &mut Written,
) -> io::Result<()> {
    match item {
        Item::Qlog { file, bytes } => {
            let log = match logs.entry(file) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    let log = create(&folder.join(&**entry.key()))?;
                    entry.insert(log)
                }
            };
            log.write_all(&bytes)
        }
        Item::Payload { at, from, to, ecn, bytes } => {
            written.packets += 1;
            packets.packet(&Packet { at, from, to, ecn, payload: &bytes })
        }
        Item::Key(line) => {
            written.keys += 1;
            packets.keys(&line)?;
            keys.write_all(line.as_bytes())
        }
    }
}
