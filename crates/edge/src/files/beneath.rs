//! Files beneath a directory, whatever the symbolic links. The kernel enforces this during the look-up (openat2), so nobody can change a
//! link between a check and the opening. Where the kernel lacks it, each step starts from an open directory, and no link is followed.

use std::{
    ffi::CString,
    fs::{File, OpenOptions},
    io::{Error, ErrorKind, Result},
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::{Component, Path},
};

/// A walk that a rename somewhere disturbed is tried again this often.
const TRIES: u32 = 8;

/// Purpose of opening a file.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// To read its metadata: pipes and devices are not opened.
    Metadata,
    /// To read it. A pipe without a writer is opened at once.
    Content,
}

impl Purpose {
    fn flags(self) -> i32 {
        match self {
            Self::Metadata => libc::O_PATH | libc::O_CLOEXEC,
            Self::Content => libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC,
        }
    }
}

/// Opens `relative`, which has names only, below `root`. With `may_leave`, links may lead out of `root`.
pub(super) fn open(root: &Path, relative: &Path, purpose: Purpose, may_leave: bool) -> Result<File> {
    if may_leave {
        return OpenOptions::new().read(true).custom_flags(purpose.flags()).open(root.join(relative));
    }
    // Not kept open: a site is often replaced by renaming its directory, or a link to it.
    let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(root)?;
    for _ in 0..TRIES {
        match open_in_kernel(&root, relative, purpose) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            // Older than Linux 5.6, or filtered.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                return open_by_steps(root, relative, purpose);
            }
            done => return done,
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

fn text(path: &Path) -> Result<CString> {
    let bytes = path.as_os_str().as_bytes();
    CString::new(if bytes.is_empty() { b"." } else { bytes }).map_err(|_| ErrorKind::InvalidInput.into())
}

fn owned(descriptor: libc::c_long) -> Result<File> {
    match i32::try_from(descriptor) {
        // SAFETY: the system has just opened it, and nobody else knows it.
        #[expect(unsafe_code, reason = "a descriptor from a call that has no safe form")]
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { File::from_raw_fd(descriptor) }),
        _ => Err(Error::last_os_error()),
    }
}

fn open_in_kernel(root: &File, relative: &Path, purpose: Purpose) -> Result<File> {
    let path = text(relative)?;
    // SAFETY: three numbers, for which zeros mean nothing.
    #[expect(unsafe_code, reason = "the structure cannot be made otherwise")]
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from(purpose.flags().cast_unsigned());
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: `path` ends with a zero, `how` is as large as is said, and both outlive the call.
    #[expect(unsafe_code, reason = "the call has no safe form")]
    let opened = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            std::mem::size_of::<libc::open_how>(),
        )
    };
    owned(opened)
}

fn open_by_steps(root: File, relative: &Path, purpose: Purpose) -> Result<File> {
    let mut at = root;
    let mut names = relative.components().peekable();
    if names.peek().is_none() {
        return open_step(&at, Path::new("."), purpose.flags());
    }
    while let Some(name) = names.next() {
        let Component::Normal(name) = name else { return Err(ErrorKind::InvalidInput.into()) };
        let last = names.peek().is_none();
        let flags = if last { purpose.flags() } else { libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC };
        at = open_step(&at, Path::new(name), flags | libc::O_NOFOLLOW)?;
    }
    Ok(at)
}

fn open_step(at: &File, name: &Path, flags: i32) -> Result<File> {
    let name = text(name)?;
    // SAFETY: `name` ends with a zero and outlives the call.
    #[expect(unsafe_code, reason = "the call has no safe form")]
    let opened = unsafe { libc::openat(at.as_raw_fd(), name.as_ptr(), flags) };
    owned(opened.into())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Read,
        os::unix::fs::symlink,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use super::*;

    fn content(opened: Result<File>) -> Option<String> {
        let mut text = String::new();
        opened.and_then(|mut file| file.read_to_string(&mut text)).ok().map(|_| text)
    }

    #[test]
    fn links_stay_below_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("site/sub")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        for (name, text) in [("site/a", "a"), ("site/sub/b", "b"), ("outside/secret", "secret")] {
            fs::write(at(name), text).unwrap();
        }
        symlink("sub/b", at("site/inside")).unwrap();
        symlink("../a", at("site/sub/up")).unwrap();
        symlink("../outside/secret", at("site/out")).unwrap();
        symlink("../outside", at("site/out-dir")).unwrap();
        symlink(at("outside/secret"), at("site/absolute")).unwrap();
        symlink("/proc/self/root", at("site/magic")).unwrap();
        symlink("site", at("current")).unwrap();
        let secret = at("outside/secret");
        let magic = Path::new("magic").join(secret.strip_prefix("/").unwrap());
        for root in ["site", "current"] {
            let read = |path: &Path| content(open(&at(root), path, Purpose::Content, false));
            let steps = |path: &Path| {
                let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(at(root));
                content(open_by_steps(root.unwrap(), path, Purpose::Content))
            };
            for (path, kernel, by_steps) in [
                ("a", Some("a"), Some("a")),
                ("sub/b", Some("b"), Some("b")),
                ("inside", Some("b"), None),
                ("sub/up", Some("a"), None),
                ("out", None, None),
                ("out-dir/secret", None, None),
                ("absolute", None, None),
                ("../outside/secret", None, None),
                ("nowhere", None, None),
            ] {
                assert_eq!(read(Path::new(path)).as_deref(), kernel, "{root}/{path}");
                assert_eq!(steps(Path::new(path)).as_deref(), by_steps, "{root}/{path} by steps");
            }
            assert_eq!((read(&magic), steps(&magic)), (None, None));
            let leaves = |path: &str| content(open(&at(root), Path::new(path), Purpose::Content, true));
            assert_eq!(leaves("out-dir/secret").as_deref(), Some("secret"));
            assert!(open(&at(root), Path::new(""), Purpose::Metadata, false).unwrap().metadata().unwrap().is_dir());
        }
    }

    /// A directory that alternates with a link out of the site never serves outside files.
    #[test]
    fn a_link_that_changes_meanwhile_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("site/real")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        fs::write(at("site/real/f"), "mine").unwrap();
        fs::write(at("outside/f"), "secret").unwrap();
        symlink("../outside", at("site/link")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, [real, link, name]) = (stop.clone(), ["real", "link", "name"].map(|name| at("site").join(name)));
        let swapping = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for own in [&real, &link] {
                    fs::rename(own, &name).unwrap();
                    fs::rename(&name, own).unwrap();
                }
            }
        });
        let mut seen = 0;
        for _ in 0..20_000 {
            let found = content(open(&at("site"), Path::new("name/f"), Purpose::Content, false));
            assert!(found.as_deref().is_none_or(|found| found == "mine"), "{found:?}");
            seen += u32::from(found.is_some());
        }
        stop.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        println!("{seen} of 20000 found the file");
    }
}
