//! Folders for their owner only: keys, accounts, captures.

use std::{
    fs::{self, DirBuilder},
    io::{Error, ErrorKind, Result},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

/// Creates a folder for its owner only, unless it exists; then only its owner may be able to replace its files.
pub(crate) fn private(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::metadata(path)?;
    // SAFETY: the call has no arguments and cannot fail.
    #[expect(unsafe_code, reason = "libc has no safe form")]
    let own = unsafe { libc::geteuid() };
    let wrong = match () {
        () if found.uid() != own && found.uid() != 0 => "another user owns it",
        () if found.mode() & 0o022 != 0 => "others may write to it",
        () => return Ok(()),
    };
    Err(Error::new(
        ErrorKind::PermissionDenied,
        format!("{wrong}: expected a folder for the user of the gateway alone"),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn folders_that_others_may_change_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        private(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        for (mode, good) in [(0o750, true), (0o755, true), (0o770, false), (0o1777, false), (0o702, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(private(&path).is_ok(), good, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        // Only root may give a folder away.
        if chown(&path, Some(65_534), None).is_ok() {
            let refused = private(&path).unwrap_err().to_string();
            assert!(refused.contains("another user owns it"), "{refused}");
        }
    }
}
