//! Privilege to create network namespaces: that of root, or of an ordinary user in a user namespace.

use std::{fs, thread};

use super::{NetworkError, sys};

/// Right by which the process makes network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// By itself: it runs as root, or with `CAP_SYS_ADMIN`.
    Own,
    /// In a user namespace created by this process. Real-time priority is not available in it.
    UserNamespace,
}

impl Privilege {
    /// Finds out whether this process may make network namespaces, and otherwise moves it into a user namespace in which it may. Call it
    /// while the process has one thread: the system moves no other.
    ///
    /// # Errors
    /// When it may not, and the system refuses the user namespace as well.
    pub fn acquire() -> Result<Self, NetworkError> {
        let tried = thread::Builder::new().spawn(|| sys::unshare(libc::CLONE_NEWNET));
        let tried = tried.map_err(|source| NetworkError::System { what: "start a thread", source })?;
        if tried.join().is_ok_and(|unshared| unshared.is_ok()) {
            return Ok(Self::Own);
        }
        let (user, group) = sys::identity();
        sys::unshare(libc::CLONE_NEWUSER).map_err(|source| NetworkError::Namespace { source })?;
        // Everybody stays who they are: programs behind the path see the same user as before.
        let write = |file: &str, text: String| {
            fs::write(file, text).map_err(|source| NetworkError::System { what: "set up a user namespace", source })
        };
        write("/proc/self/setgroups", "deny".to_owned())?;
        write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        Ok(Self::UserNamespace)
    }
}
