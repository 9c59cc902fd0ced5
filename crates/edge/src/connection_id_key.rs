//! File with the key of connection IDs, which machines and load balancers share.

use std::{
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::keys;

/// File that has no usable key, or cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The system does not let the file be read or made.
    #[error("cannot use {}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Users beside the owner and its group may read the file.
    #[error("everybody on this machine may read the key in {}", .0.display())]
    Exposed(PathBuf),
    /// The file has other content.
    #[error("expected 32 hexadecimal digits in {}", .0.display())]
    Malformed(PathBuf),
    /// The system gives no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl KeyFileError {
    /// Advice for the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::System { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                "a key that is in use stays: remove the file if nobody needs it"
            }
            Self::System { .. } | Self::Malformed(_) | Self::NoRandomness => {
                "`tiderace balance key FILE` makes one, for all machines and load balancers"
            }
            Self::Exposed(_) => "chmod 600, or 640 for a group of its own",
        }
    }
}

/// Reads the key in a file.
///
/// # Errors
/// When it cannot be read, all users may read it, or it has no key.
pub(crate) fn read(path: &Path) -> Result<[u8; 16], KeyFileError> {
    let system = |source| KeyFileError::System { path: path.to_owned(), source };
    let mode = std::fs::metadata(path).map_err(system)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(KeyFileError::Exposed(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(system)?;
    let malformed = || KeyFileError::Malformed(path.to_owned());
    let text = text.trim();
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(malformed());
    }
    u128::from_str_radix(text, 16).map(u128::to_be_bytes).map_err(|_| malformed())
}

/// Makes a file with a new key, for its owner alone.
///
/// # Errors
/// When it exists already, or cannot be written.
pub fn make(path: &Path) -> Result<(), KeyFileError> {
    let system = |source| KeyFileError::System { path: path.to_owned(), source };
    let key: [u8; 16] = keys::random().map_err(|_| KeyFileError::NoRandomness)?;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(system)?;
    writeln!(file, "{:032x}", u128::from_be_bytes(key)).and_then(|()| file.sync_all()).map_err(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_by_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lb.key");
        assert!(matches!(read(&file), Err(KeyFileError::System { .. })));
        make(&file).unwrap();
        let key = read(&file).unwrap();
        assert_ne!(key, [0; 16]);
        let again = make(&file).unwrap_err();
        assert!(again.hint().contains("remove"), "{again}");
        assert_eq!(read(&file).unwrap(), key);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(read(&file), Err(KeyFileError::Exposed(_))));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        for text in ["", "00", "0123456789abcdef0123456789abcdeg", "+123456789abcdef0123456789abcdef"] {
            std::fs::write(&file, text).unwrap();
            assert!(matches!(read(&file), Err(KeyFileError::Malformed(_))), "{text}");
        }
        std::fs::write(&file, "000102030405060708090a0b0c0d0e0f\n").unwrap();
        assert_eq!(read(&file).unwrap(), std::array::from_fn(|at| u8::try_from(at).unwrap()));
    }
}
