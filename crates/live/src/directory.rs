//! Directories for temporary files, private to their user, that do not outlive their process for long.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Names that are tried. Directories of other process namespaces, and of other users, may have the first ones.
const TRIES: u32 = 1_000;

/// Directory that its owner alone can open. It is removed when this is dropped, or by the next process that makes one after SIGKILL.
///
/// The process holds a lock on the directory. A lock ends with its process, shows in every process namespace, and does not depend on
/// process IDs, which are used again.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    _lock: File,
}

impl PrivateDirectory {
    /// Makes a directory below the system's one for temporary files. Its name is `prefix`, the process and a number.
    ///
    /// Directories of the same prefix and user that no process holds are removed.
    ///
    /// # Errors
    /// When the directory cannot be made or locked.
    pub fn new(prefix: &str) -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir(), prefix)
    }

    fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..TRIES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{prefix}{}-{number}", std::process::id()));
            if let Some(lock) = make_locked(&path)? {
                let owner = lock.metadata()?.uid();
                let made = Self { path, _lock: lock };
                remove_left_over(parent, prefix, owner);
                return Ok(made);
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // Errors leave it to the next process.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes and locks a directory. `None`: the name is taken, or another process has removed the directory before it was locked.
fn make_locked(path: &Path) -> io::Result<Option<File>> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        made => made?,
    }
    let lock = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    lock.lock()?;
    let locked = lock.metadata()?;
    let is_there =
        fs::symlink_metadata(path).is_ok_and(|present| (present.dev(), present.ino()) == (locked.dev(), locked.ino()));
    Ok(is_there.then_some(lock))
}

/// Removes directories of this prefix and owner that no process has locked.
fn remove_left_over(parent: &Path, prefix: &str, owner: u32) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let numbers = name.to_str().and_then(|name| name.strip_prefix(prefix)?.split_once('-'));
        if !numbers.is_some_and(|(process, number)| is_number(process) && is_number(number)) {
            continue;
        }
        // Root could remove what belongs to others, and others could place a link. The metadata are those of the link.
        if !entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == owner) {
            continue;
        }
        // The lock is held until the directory is removed: a process that has just made it waits, and then tries another name.
        let Ok(directory) = File::open(entry.path()) else { continue };
        if directory.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    const PREFIX: &str = "tiderace-test-";

    /// Directory of a test.
    fn parent(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tiderace-live-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn make(parent: &Path, name: &str) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("key"), "x").unwrap();
        path
    }

    #[test]
    fn directories_that_no_process_holds_are_removed() {
        let own = parent("left-over");
        // The first process of a container always has the same ID.
        let [gone, same] = [format!("{PREFIX}4194305-0"), format!("{PREFIX}{}-7000000", std::process::id())]
            .map(|name| make(&own, &name));
        let held = make(&own, &format!("{PREFIX}4194306-0"));
        let others = ["notes", "1", "1-", "1-2-3"].map(|rest| make(&own, &format!("{PREFIX}{rest}")));
        let elsewhere = make(&own, "elsewhere");
        symlink(&elsewhere, own.join(format!("{PREFIX}4194307-0"))).unwrap();
        let foreign = make(&own, &format!("{PREFIX}4194308-0"));
        let is_root = chown(&foreign, Some(65_534), None).is_ok();
        let lock = File::open(&held).unwrap();
        lock.lock().unwrap();

        let made = PrivateDirectory::new_in(&own, PREFIX).unwrap();
        assert_eq!([&gone, &same, &held].map(|path| path.exists()), [false, false, true]);
        assert!(others.iter().all(|path| path.exists()) && elsewhere.join("key").exists());
        assert_eq!(foreign.exists(), is_root, "directories of other users stay");
        // Neither does a second one remove the first, nor one that is dropped.
        let second = PrivateDirectory::new_in(&own, PREFIX).unwrap();
        assert!(made.path().exists() && second.path() != made.path());
        assert_eq!(fs::metadata(made.path()).unwrap().mode() & 0o777, 0o700);
        drop(lock);
        drop(second);
        let path = made.path().to_owned();
        drop(made);
        drop(PrivateDirectory::new_in(&own, PREFIX).unwrap());
        assert!(!held.exists() && !path.exists());
        fs::remove_dir_all(&own).unwrap();
    }

    #[test]
    fn names_that_are_taken_are_left_alone() {
        let own = parent("taken");
        let path = make(&own, &format!("{PREFIX}1-0"));
        assert!(make_locked(&path).unwrap().is_none() && path.join("key").exists());
        assert!(make_locked(&own.join("missing/1-0")).is_err());
        fs::remove_dir_all(&own).unwrap();
    }
}
