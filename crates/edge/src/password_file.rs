//! Users and the hashes of their passwords: `NAME:HASH` in each line of a file, in the format of `htpasswd`.

use std::{
    collections::HashMap,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use argon2::{
    Argon2, Params,
    password_hash::{PasswordVerifier, phc::PasswordHash},
};

/// Largest cost of a bcrypt hash: 15 takes seconds.
const COST_MAX: u32 = 15;
/// Largest memory of an Argon2 hash, in KiB.
const MEMORY_MAX: u32 = 256 * 1024;
/// Bytes of a name, at most.
const NAME_MAX: usize = 255;

/// File of passwords that cannot be used. No message has a hash in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordsError {
    /// File that the system does not let be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// File that users beside the owner and its group may read.
    #[error("everybody on this machine may read the hashes in {}", .0.display())]
    Exposed(PathBuf),
    /// Line that cannot be used.
    #[error("{}:{line}: {fault}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line in the file, from 1.
        line: usize,
        /// Fault of the line.
        #[source]
        fault: PasswordFault,
    },
    /// File without a user.
    #[error("{} has no user", .0.display())]
    Empty(PathBuf),
}

/// Fault of a line in a file of passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordFault {
    /// Line without a name, without a colon, or with a name that no field can have.
    #[error("expected NAME:HASH")]
    Form,
    /// Hash that is quickly guessed, or not known here.
    #[error("expected a hash of bcrypt ($2y$…) or Argon2 ($argon2id$…)")]
    Kind,
    /// Hash with an error in it.
    #[error("the hash is malformed")]
    Malformed,
    /// Hash that takes too long, or too much memory.
    #[error("the hash is too costly: at most cost 15 of bcrypt, and 256 MiB of Argon2")]
    Costly,
    /// User of another line.
    #[error("another line has the same name")]
    Repeated,
}

/// A hash of a password.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredHash {
    text: String,
    /// Bytes that a verification takes.
    pub(crate) memory: u64,
}

impl StoredHash {
    fn read(text: &str) -> Result<Self, PasswordFault> {
        let memory = if text.starts_with("$argon2") {
            let hash = PasswordHash::new(text).map_err(|_| PasswordFault::Malformed)?;
            let params = Params::try_from(&hash).map_err(|_| PasswordFault::Malformed)?;
            if hash.hash.is_none() || hash.salt.is_none() {
                return Err(PasswordFault::Malformed);
            }
            if params.m_cost() > MEMORY_MAX || params.t_cost() > 64 {
                return Err(PasswordFault::Costly);
            }
            u64::from(params.m_cost()) * 1024
        } else if text.starts_with("$2") {
            let parts: bcrypt::HashParts = text.parse().map_err(|_| PasswordFault::Malformed)?;
            if parts.get_cost() > COST_MAX {
                return Err(PasswordFault::Costly);
            }
            // The state of Blowfish.
            8 * 1024
        } else {
            return Err(PasswordFault::Kind);
        };
        Ok(Self { text: text.to_owned(), memory })
    }

    /// Returns whether this is the hash of `password`. Takes long.
    pub(crate) fn is_of(&self, password: &[u8]) -> bool {
        match self.text.starts_with("$argon2") {
            true => Argon2::default().verify_password(password, self.text.as_str()).is_ok(),
            false => bcrypt::verify(password, &self.text).unwrap_or(false),
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Users with their hashes.
#[derive(Debug)]
pub(crate) struct Passwords {
    users: HashMap<Arc<str>, Arc<StoredHash>>,
    /// All hashes, in the order of the file.
    hashes: Vec<Arc<StoredHash>>,
}

impl Passwords {
    /// Stored name and hash of a user.
    pub(crate) fn find(&self, name: &str) -> Option<(Arc<str>, Arc<StoredHash>)> {
        self.users.get_key_value(name).map(|(name, hash)| (name.clone(), hash.clone()))
    }

    /// The hash with which the password of an unknown user is compared, so that it takes as long as that of a known one. `number` is
    /// always the same for a name.
    pub(crate) fn decoy(&self, number: u64) -> Arc<StoredHash> {
        self.hashes[number as usize % self.hashes.len()].clone()
    }
}

/// Reads a file of passwords.
///
/// # Errors
/// When it cannot be read, all users may read it, or a line is malformed. No message contains a hash.
pub(crate) fn read(path: &Path) -> Result<Passwords, PasswordsError> {
    let unreadable = |source| PasswordsError::Unreadable { path: path.to_owned(), source };
    let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(PasswordsError::Exposed(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let (mut users, mut hashes) = (HashMap::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let wrong = |fault| PasswordsError::Line { path: path.to_owned(), line: number + 1, fault };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, hash) = line.split_once(':').ok_or_else(|| wrong(PasswordFault::Form))?;
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(wrong(PasswordFault::Form));
        }
        let hash = Arc::new(StoredHash::read(hash).map_err(wrong)?);
        hashes.push(hash.clone());
        if users.insert(Arc::from(name), hash).is_some() {
            return Err(wrong(PasswordFault::Repeated));
        }
    }
    if users.is_empty() { Err(PasswordsError::Empty(path.to_owned())) } else { Ok(Passwords { users, hashes }) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn file(text: &str, mode: u32) -> Result<Passwords, PasswordsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read(&path)
    }

    pub(crate) fn bcrypt(password: &str) -> String {
        bcrypt::hash(password, 4).unwrap()
    }

    #[test]
    fn hashes_are_those_of_htpasswd_and_argon2() {
        // From the documentation of Apache's htpasswd -B, and of the reference implementation of Argon2.
        let text = "alice:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n\
                    bob:$argon2i$v=19$m=65536,t=2,p=4$c29tZXNhbHQ$RdescudvJCsgt3ub+b+dWRWJTmaaJObG\n";
        let passwords = file(text, 0o600).unwrap();
        let is = |name: &str, password: &str| passwords.find(name).unwrap().1.is_of(password.as_bytes());
        assert!(is("bob", "password") && !is("bob", "Password"));
        assert!(is("alice", "myPassword") && !is("alice", "mypassword"));
        let made = file(&format!("carol:{}\n", bcrypt("s\u{e9}cret")), 0o600).unwrap();
        let carol = made.find("carol").unwrap().1;
        assert!(carol.is_of("s\u{e9}cret".as_bytes()) && !carol.is_of(b"secret") && !carol.is_of(b""));
        assert_eq!((passwords.find("bob").unwrap().1.memory, carol.memory), (64 << 20, 8 << 10));
    }

    #[test]
    fn files_that_cannot_be_used() {
        let good = format!("# staff\nalice:{}\n\n", bcrypt("x"));
        assert!(file(&good, 0o640).is_ok());
        let argon2 = |params: &str| format!("a:$argon2id${params}$c29tZXNhbHQ$RdescudvJCsgt3ub+b+dWRWJTmmaJObG\n");
        for (text, mode, expected) in [
            (good.clone(), 0o644, "everybody"),
            (String::new(), 0o600, "no user"),
            ("alice\n".to_owned(), 0o600, ":1: expected NAME:HASH"),
            (format!(":{}\n", bcrypt("x")), 0o600, ":1: expected NAME:HASH"),
            ("\nalice:secret\n".to_owned(), 0o600, ":2: expected a hash"),
            ("a:$apr1$xxxxxxxx$yyyyyyyyyyyyyyyyyyyyyy\n".to_owned(), 0o600, ":1: expected a hash"),
            ("a:{SHA}2jmj7l5rSw0yVb/vlWAYkK/YBwk=\n".to_owned(), 0o600, ":1: expected a hash"),
            ("a:$2y$05$short\n".to_owned(), 0o600, ":1: the hash is malformed"),
            ("a:$argon2id$v=19$m=8\n".to_owned(), 0o600, ":1: the hash is malformed"),
            (good.replace("$04$", "$16$"), 0o600, ":2: the hash is too costly"),
            (argon2("v=19$m=1048576,t=1,p=1"), 0o600, ":1: the hash is too costly"),
            (argon2("v=19$m=64,t=1000,p=1"), 0o600, ":1: the hash is too costly"),
            (format!("{good}alice:{}\n", bcrypt("y")), 0o600, ":4: another line"),
        ] {
            let error = file(&text, mode).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("$04$"), "{error}");
        }
        let missing = read(Path::new("/nowhere/users")).unwrap_err();
        assert!(matches!(missing, PasswordsError::Unreadable { .. }), "{missing:?}");
    }
}
