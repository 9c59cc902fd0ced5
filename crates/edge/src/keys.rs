//! State that several gateways share so that a client may return to any of them: the key ring from a file, and the strike register.
//!
//! The file is read at the start, with each reload, and when it changes. [`rotate`] adds a key. The new key seals after a delay, when every
//! machine has it. Old keys open as long as something that they have sealed may return.

use std::{
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::register::RedisRegister;
use rustls::server::ProducesTickets;
use tiderace::{
    KeyRing,
    transport::ring::{MAX_KEYS, MemoryRegister, Purpose, RingError, RingKey, Strike, StrikeId, StrikeRegister},
};

/// Lifetime of TLS session tickets over TCP, in seconds; as long as those over QUIC.
const TICKET_LIFETIME: u32 = 24 * 60 * 60;

/// A file of keys that cannot be used or extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The system does not let the file be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Users beside the owner and its group may read the file.
    #[error("everybody on this machine may read the keys in {}", .0.display())]
    Exposed(PathBuf),
    /// The keys in the file make no ring.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Fault of the ring.
        source: RingError,
    },
    /// The ring has no place for another key.
    #[error("{held} keys in {} still hold, and a ring has no more", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// Number of keys that still hold.
        held: usize,
    },
    /// The keys make no ring together with the new one.
    #[error("{0}")]
    Ring(#[source] RingError),
    /// The system gives no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
    /// The system does not let the file be written.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// URL that names no register of early data.
#[derive(Debug, thiserror::Error)]
#[error("`{url}`: {source}")]
#[non_exhaustive]
pub struct RegisterError {
    /// URL without a password.
    pub url: String,
    /// Error of the Redis client.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// The seconds since 1970-01-01T00:00:00Z.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeysError> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| KeysError::NoRandomness)?;
    Ok(bytes)
}

/// A ring of this process alone.
pub(crate) fn own_ring() -> Result<KeyRing, KeysError> {
    Ok(KeyRing::single(random()?))
}

/// The keys in a file.
///
/// # Errors
/// When it cannot be read, makes no ring, or others than its owner and its group may read it.
pub fn read(path: &Path) -> Result<Vec<RingKey>, KeysError> {
    let unreadable = |source: std::io::Error| KeysError::Unreadable { path: path.to_owned(), source };
    let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(KeysError::Exposed(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let malformed = |source: RingError| KeysError::Malformed { path: path.to_owned(), source };
    Ok(KeyRing::parse(&text).map_err(malformed)?.keys())
}

/// Result of a key rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The number of the new key.
    pub id: u32,
    /// Start of sealing with this key, in Unix seconds.
    pub from: u64,
    /// The others open until then; `None` when there are none.
    pub others_until: Option<u64>,
}

/// Adds a key to the file, which is made when it is not there. It seals in `lead`, and the others end `overlap` after that.
/// Readers see the whole old file or the whole new one.
///
/// # Errors
/// When the file cannot be read or written, or has too many keys that still hold.
pub fn rotate(path: &Path, now: u64, lead: Duration, overlap: Duration) -> Result<Rotation, KeysError> {
    let mut keys = if path.exists() { read(path)? } else { Vec::new() };
    keys.retain(|key| key.until.is_none_or(|until| until > now));
    if keys.len() >= MAX_KEYS {
        return Err(KeysError::Full { path: path.to_owned(), held: keys.len() });
    }
    // The first key of a ring is needed at once.
    let from = if keys.is_empty() { now } else { now + lead.as_secs() };
    let end = from + overlap.as_secs();
    for key in &mut keys {
        key.until = Some(key.until.map_or(end, |until| until.min(end)));
    }
    let id = keys.iter().map(|key| key.id).max().map_or(1, |id| id.wrapping_add(1));
    let rotation = Rotation { id, from, others_until: (!keys.is_empty()).then_some(end) };
    keys.push(RingKey { id, secret: random()?, from: Some(from), until: None });
    let ring = KeyRing::new(keys).map_err(KeysError::Ring)?;
    replace(path, &ring.to_text()).map_err(|source| KeysError::Unwritable { path: path.to_owned(), source })?;
    Ok(rotation)
}

/// Replaces a file in one step by one that only its owner, and the group that could read the old one, may read.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mode = std::fs::metadata(path).map_or(0o600, |old| old.permissions().mode() & 0o640);
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| std::fs::rename(&beside, path));
    if renamed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    renamed
}

/// Tickets of TLS over TCP, sealed with the keys of the ring.
#[derive(Debug)]
pub(crate) struct TcpTickets(pub(crate) KeyRing);

impl ProducesTickets for TcpTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        TICKET_LIFETIME
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        // rustls does not say when a session began: the time goes with it, because a key may hold for longer than a ticket.
        let now = now();
        let mut ticket = Vec::new();
        self.0.seal(Purpose::TcpTickets, now, random().ok()?, &[], &mut ticket, |content| {
            content.extend_from_slice(&now.to_be_bytes());
            content.extend_from_slice(plain);
        });
        Some(ticket)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let now = now();
        let content = self.0.open(Purpose::TcpTickets, now, &[], cipher).ok()?;
        let (issued, plain) = content.split_first_chunk::<8>()?;
        let age = now.saturating_sub(u64::from_be_bytes(*issued));
        (age <= u64::from(TICKET_LIFETIME)).then(|| plain.to_vec())
    }
}

/// Counts of the register's answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) first: AtomicU64,
    pub(crate) again: AtomicU64,
    pub(crate) none: AtomicU64,
}

/// The register of the configuration in use: another one may take its place while handshakes ask.
pub(crate) struct Strikes {
    register: RwLock<Arc<dyn StrikeRegister>>,
    /// Another process accepted early data until then, in Unix seconds, and this one does not know which. 0 for none.
    other_until: AtomicU64,
    /// The register is in the memory of this process.
    is_own: AtomicBool,
    pub(crate) answers: Answers,
}

/// A register by its place in the configuration: empty for the memory of this process, or the URL of a Redis.
pub(crate) fn register(place: &str) -> Result<Arc<dyn StrikeRegister>, RegisterError> {
    if place.is_empty() {
        return Ok(Arc::new(MemoryRegister::default()));
    }
    let client = redis::Client::open(place)
        .map_err(|error| RegisterError { url: without_password(place), source: error.into() })?;
    Ok(Arc::new(RedisRegister::new(client)))
}

/// A URL that may be shown.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

impl Strikes {
    pub(crate) fn new() -> Self {
        let register: Arc<dyn StrikeRegister> = Arc::new(MemoryRegister::default());
        Self {
            register: RwLock::new(register),
            other_until: AtomicU64::new(0),
            is_own: AtomicBool::new(true),
            answers: Answers::default(),
        }
    }

    /// Notes that another process has accepted early data until `time`, in Unix seconds.
    pub(crate) fn begin_after_another(&self, time: u64) {
        self.other_until.store(time, Ordering::Release);
    }

    pub(crate) fn replace(&self, register: Arc<dyn StrikeRegister>, is_own: bool) {
        self.is_own.store(is_own, Ordering::Release);
        *self.register.write().unwrap_or_else(PoisonError::into_inner) = register;
    }
}

impl StrikeRegister for Strikes {
    fn strike(&self, id: &StrikeId, now: u64, expires: u64, waker: &Waker) -> Strike {
        // A ticket can come again for as long as its use is remembered.
        let until = self.other_until.load(Ordering::Acquire);
        if until != 0 && self.is_own.load(Ordering::Acquire) && now <= until.saturating_add(expires.saturating_sub(now))
        {
            self.answers.none.fetch_add(1, Ordering::Relaxed);
            return Strike::Full;
        }
        let register = self.register.read().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = register.strike(id, now, expires, waker);
        let count = match answer {
            // It comes back for the answer, which is counted then.
            Strike::Pending => return answer,
            Strike::First => &self.answers.first,
            Strike::Again => &self.answers.again,
            Strike::Full => &self.answers.none,
        };
        count.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tiderace-keys-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn errors_name_their_cause() {
        use std::error::Error;

        let folder = Folder::new("errors");
        let file = folder.0.join("ring");
        let error = read(&file).unwrap_err();
        let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>()).unwrap();
        assert_eq!(cause.kind(), std::io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), format!("cannot read {}: {cause}", file.display()));

        std::fs::write(&file, "key 1 no-secret").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = read(&file).unwrap_err();
        let cause = error.source().and_then(|cause| cause.downcast_ref::<RingError>()).unwrap();
        assert!(matches!(cause, RingError::Line { line: 1, .. }), "{cause}");
        assert_eq!(error.to_string(), format!("{}: {cause}", file.display()));

        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(read(&file), Err(KeysError::Exposed(path)) if path == file));
    }

    #[test]
    fn a_rotation_overlaps_and_forgets() {
        let folder = Folder::new("rotation");
        let file = folder.0.join("ring");
        let (lead, overlap) = (Duration::from_secs(60), Duration::from_secs(1_000));
        let first = rotate(&file, 100, lead, overlap).unwrap();
        assert_eq!(first, Rotation { id: 1, from: 100, others_until: None });
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let second = rotate(&file, 500, lead, overlap).unwrap();
        assert_eq!(second, Rotation { id: 2, from: 560, others_until: Some(1_560) });
        let keys = read(&file).unwrap();
        assert_eq!(keys.iter().map(|key| (key.id, key.until)).collect::<Vec<_>>(), [(1, Some(1_560)), (2, None)]);
        rotate(&file, 2_000, lead, overlap).unwrap();
        assert_eq!(read(&file).unwrap().iter().map(|key| key.id).collect::<Vec<_>>(), [2, 3], "the first is over");
        for _ in 0..MAX_KEYS - 2 {
            rotate(&file, 2_001, lead, overlap).unwrap();
        }
        let full = rotate(&file, 2_001, lead, overlap).unwrap_err();
        assert!(matches!(&full, KeysError::Full { held: MAX_KEYS, path } if *path == file), "{full:?}");
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_rotation_that_fails_says_why() {
        let folder = Folder::new("failing");
        let nowhere = folder.0.join("nowhere/ring");
        let unwritable = rotate(&nowhere, 100, Duration::ZERO, Duration::ZERO).unwrap_err();
        assert!(matches!(&unwritable, KeysError::Unwritable { path, .. } if *path == nowhere), "{unwritable:?}");
        // The number after the last one is the first, which is in the ring already.
        let file = folder.0.join("ring");
        let keys = [0, u32::MAX].map(|id| RingKey::new(id, [id as u8; 32]));
        replace(&file, &KeyRing::new(keys.to_vec()).unwrap().to_text()).unwrap();
        let ring = rotate(&file, 100, Duration::ZERO, Duration::from_secs(9)).unwrap_err();
        assert!(matches!(ring, KeysError::Ring(_)), "{ring:?}");
    }

    #[test]
    fn keys_that_everybody_may_read_are_refused() {
        let folder = Folder::new("open");
        let file = folder.0.join("ring");
        rotate(&file, 100, Duration::ZERO, Duration::ZERO).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("may read the keys"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        read(&file).unwrap();
    }

    #[test]
    fn tickets_of_one_gateway_are_good_at_another() {
        let ring = || KeyRing::new(vec![RingKey::new(1, [3; 32])]).unwrap();
        let (a, b) = (TcpTickets(ring()), TcpTickets(ring()));
        let ticket = a.encrypt(b"session").unwrap();
        assert_eq!(b.decrypt(&ticket).unwrap(), b"session");
        assert_eq!(TcpTickets(own_ring().unwrap()).decrypt(&ticket), None);
        assert_eq!(b.decrypt(&ticket[..20]), None);
    }

    #[test]
    fn a_register_has_a_place_that_can_be_read() {
        assert!(register("redis://127.0.0.1:1/").is_ok() && register("").is_ok());
        assert!(register("nonsense").is_err());
        assert!(!without_password("redis://user:secret@host/0").contains("secret"));
    }
}
