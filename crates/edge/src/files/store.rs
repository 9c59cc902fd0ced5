//! Cache of frequently requested content: responses are encrypted from the cached bytes, for any number of clients.
//!
//! Every request compares the file's metadata. A change of a file changes its modification time, but only with the resolution of the file
//! system's clock. So content of a file that was changed a moment ago is not cached.

use std::{
    fs::{File, Metadata},
    io::{Error, ErrorKind, Result},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use quick_cache::{
    DefaultHashBuilder, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};

/// Bytes that are read and kept at a time.
pub(super) const CHUNK: u64 = 64 * 1024;
/// Age below which a change may be followed by another that does not show. The coarsest clock that is common ticks every 2 s.
const SETTLED: Duration = Duration::from_secs(3);
/// Bytes that a chunk takes beside its content.
const OVERHEAD: u64 = 256;
/// Chunks that are expected: the store finds its size from there.
const EXPECTED: usize = 2_048;
/// Parts of the store with a lock and a share of the memory each, which should hold many chunks.
const SHARDS: usize = 8;

/// A file as it was at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Version {
    device: u64,
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds since 1970: of the last change of the content, and of the last change of the file, which cannot
    /// be set.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Version {
    pub(super) fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Modification time of the content.
    pub(super) fn modified(&self) -> SystemTime {
        time(self.modified).unwrap_or(UNIX_EPOCH)
    }

    /// Returns whether any change from `now` on will show.
    fn is_settled(&self, now: SystemTime) -> bool {
        let long_ago = |at| time(at).and_then(|at| now.duration_since(at).ok()).is_some_and(|age| age >= SETTLED);
        long_ago(self.modified) && long_ago(self.changed)
    }
}

fn time((seconds, nanos): (i64, i64)) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?))
}

#[derive(Clone)]
struct Weight;

impl Weighter<(Version, u64), Bytes> for Weight {
    fn weight(&self, _: &(Version, u64), data: &Bytes) -> u64 {
        data.len() as u64 + OVERHEAD
    }
}

/// Bytes by source.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// From here.
    pub(crate) memory: AtomicU64,
    /// From the page cache, and from the disk.
    pub(crate) system: AtomicU64,
}

/// The content of files, in chunks. Outlives reloads.
pub(crate) struct Store {
    chunks: Cache<(Version, u64), Bytes, Weight>,
    pub(crate) sources: Sources,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl Default for Store {
    fn default() -> Self {
        let mut options = OptionsBuilder::new();
        let options = options.estimated_items_capacity(EXPECTED).weight_capacity(0).shards(SHARDS);
        let options = options.build().expect("both capacities are given");
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self { chunks: Cache::with_options(options, Weight, hasher, lifecycle), sources: Sources::default() }
    }
}

impl Store {
    /// From here on this many bytes are kept.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.chunks.set_capacity(bytes);
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> u64 {
        self.chunks.weight()
    }

    /// A chunk of a file, if it is here.
    pub(super) fn find(&self, version: Version, chunk: u64) -> Option<Bytes> {
        let data = self.chunks.get(&(version, chunk))?;
        self.sources.memory.fetch_add(data.len() as u64, Ordering::Relaxed);
        Some(data)
    }

    /// Reads a chunk of a file, and caches it if the file has not changed recently.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if the disk has to be waited for and `may_wait` is false; errors of reading.
    pub(super) fn read(
        &self,
        file: &File,
        version: Version,
        chunk: u64,
        may_wait: bool,
        now: SystemTime,
    ) -> Result<Bytes> {
        let from = chunk * CHUNK;
        let size = version.length.saturating_sub(from).min(CHUNK);
        let mut data = Vec::with_capacity(usize::try_from(size).expect("a chunk fits"));
        match read_at_once(file, from, &mut data) {
            Ok(()) if data.len() == data.capacity() => {}
            // A part, or nothing, is in memory.
            _ if !may_wait => return Err(ErrorKind::WouldBlock.into()),
            _ => {
                data.resize(data.capacity(), 0);
                file.read_exact_at(&mut data, from)?;
            }
        }
        self.sources.system.fetch_add(size, Ordering::Relaxed);
        let data = Bytes::from(data);
        if version.is_settled(now) && self.chunks.capacity() > 0 {
            self.chunks.insert((version, chunk), data.clone());
        }
        Ok(data)
    }
}

/// Fills what `data` has room for, as far as the page cache has it.
fn read_at_once(file: &File, from: u64, data: &mut Vec<u8>) -> Result<()> {
    let from = libc::off_t::try_from(from).map_err(|_| ErrorKind::InvalidInput)?;
    let room = data.spare_capacity_mut();
    let part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: `part` is memory of `data` that nobody else has, and the only element of the list.
    #[expect(unsafe_code, reason = "memory that was never written is filled, for a call that has no safe form")]
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, from, libc::RWF_NOWAIT) };
    let Ok(read) = usize::try_from(read) else { return Err(Error::last_os_error()) };
    // SAFETY: so many bytes were written by the system, and there was room for them.
    #[expect(unsafe_code, reason = "zeroing first costs a twentieth of serving a large file")]
    unsafe {
        data.set_len(read);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `length` bytes with no name, and its version.
    fn file(length: usize) -> (File, Version) {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&content(length), 0).unwrap();
        let version = Version::of(&file.metadata().unwrap());
        (file, version)
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 1_000) as u8).collect()
    }

    fn later(seconds: u64) -> SystemTime {
        SystemTime::now() + Duration::from_secs(seconds)
    }

    fn store() -> Store {
        let store = Store::default();
        store.set_capacity(16 << 20);
        store
    }

    #[test]
    fn chunks_are_kept_and_found() {
        let store = store();
        let (file, version) = file(150_000);
        let all = content(150_000);
        for (chunk, expected) in all.chunks(CHUNK as usize).enumerate() {
            let chunk = chunk as u64;
            assert_eq!(store.find(version, chunk), None);
            assert_eq!(store.read(&file, version, chunk, true, later(10)).unwrap(), expected);
            assert_eq!(store.find(version, chunk).unwrap(), expected);
        }
        assert_eq!(store.held(), 150_000 + 3 * OVERHEAD);
        assert_eq!(store.sources.memory.load(Ordering::Relaxed), 150_000);
        assert_eq!(store.sources.system.load(Ordering::Relaxed), 150_000);
        store.set_capacity(0);
        assert_eq!((store.held(), store.find(version, 0)), (0, None));
        assert_eq!(store.read(&file, version, 2, true, later(10)).unwrap().len(), 150_000 - 2 * CHUNK as usize);
        assert_eq!(store.held(), 0);
    }

    #[test]
    fn what_has_just_changed_is_not_kept() {
        let store = store();
        let (file, version) = file(1_000);
        store.read(&file, version, 0, true, SystemTime::now()).unwrap();
        store.read(&file, version, 0, true, later(2)).unwrap();
        // A clock that was set back says nothing.
        store.read(&file, version, 0, true, SystemTime::now() - Duration::from_secs(1_000)).unwrap();
        assert_eq!((store.held(), store.find(version, 0)), (0, None));
    }

    #[test]
    fn a_file_that_changes_is_another_one() {
        let store = store();
        let (file, version) = file(1_000);
        store.read(&file, version, 0, true, later(10)).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let mut changed = version;
        // The file system's clock ticks a few hundred times a second.
        while changed == version {
            file.write_all_at(&[7; 1_000], 0).unwrap();
            // Who copies a file over another may keep the time of its content.
            file.set_modified(modified).unwrap();
            changed = Version::of(&file.metadata().unwrap());
        }
        assert_eq!(changed.modified(), version.modified());
        assert_eq!(store.find(changed, 0), None);
        assert_eq!(store.read(&file, changed, 0, true, later(10)).unwrap(), vec![7; 1_000]);
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let store = store();
        let (file, version) = file(100_000);
        file.set_len(70_000).unwrap();
        assert_eq!(store.read(&file, version, 1, true, later(10)).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(store.held(), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let store = store();
        let (file, version) = file(64 << 20);
        for _ in 0..3 {
            for chunk in 0..1_024 {
                store.read(&file, version, chunk, true, later(10)).unwrap();
                assert!(store.held() <= 16 << 20, "{}", store.held());
            }
        }
        let kept = (0..1_024).filter(|chunk| store.find(version, *chunk).is_some()).count();
        assert!((200..256).contains(&kept), "{kept} of 255 that fit");
    }
}
