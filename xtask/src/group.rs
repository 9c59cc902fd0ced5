//! Process groups of programs that are started: they end with this program when a signal asks it to end.

use std::{
    collections::BTreeSet,
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Signals that ask a program to end.
const ENDS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// Sends a signal to a process group. That there is nobody any more is no error: it may have ended in between.
#[allow(unsafe_code, reason = "the standard library sends no signal but the one that kills, and none to a group")]
pub(crate) fn signal(group: i32, signal: i32) {
    // SAFETY: takes two numbers. The group is that of a child that was not waited for, so that it is nobody else's.
    unsafe { libc::killpg(group, signal) };
}

/// Lets a program begin without blocked signals: it inherits those of [`Groups::end_with_this_program`], and SIGTERM would not end it.
#[allow(unsafe_code, reason = "the standard library leaves the signal mask as it is")]
fn unmask(command: &mut Command) {
    let clear = || {
        // SAFETY: the set is initialised by `sigemptyset` before it is read, and lives until the calls return.
        let failed = unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
    };
    // SAFETY: between `fork` and `exec` it calls only what is safe in a signal handler, and allocates nothing.
    unsafe { command.pre_exec(clear) };
}

/// Groups at work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups(Arc<Mutex<BTreeSet<i32>>>);

impl Groups {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program in a group of its own.
    pub(crate) fn start(&self, command: &mut Command) -> io::Result<GroupedChild> {
        unmask(command);
        // Under the lock, so that no program starts behind a signal.
        let mut groups = self.lock();
        let child = command.process_group(0).spawn()?;
        let id = child.id().cast_signed();
        groups.insert(id);
        drop(groups);
        Ok(GroupedChild { child, id, groups: self.clone() })
    }

    /// Ends all groups, and then this program, when a signal asks for it. Called before other threads are started, which would take the
    /// signals otherwise.
    #[allow(unsafe_code, reason = "the standard library waits for no signals")]
    pub(crate) fn end_with_this_program(&self) -> io::Result<()> {
        // SAFETY: the set is initialised by `sigemptyset` before it is read, and lives until the calls return.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for end in ENDS {
                libc::sigaddset(&raw mut set, end);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            set
        };
        let groups = self.clone();
        thread::spawn(move || {
            let mut seen = 0;
            // SAFETY: both places live until the call returns.
            while unsafe { libc::sigwait(&raw const set, &raw mut seen) } != 0 {}
            let groups = groups.lock();
            groups.iter().for_each(|&group| signal(group, libc::SIGKILL));
            std::process::exit(128 + seen);
        });
        Ok(())
    }
}

/// Child in a group of its own, which ends with it when dropped.
#[derive(Debug)]
pub(crate) struct GroupedChild {
    pub(crate) child: Child,
    id: i32,
    groups: Groups,
}

impl Drop for GroupedChild {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself, which is what is wanted.
        if let Ok(None) = self.child.try_wait() {
            signal(self.id, libc::SIGKILL);
            let _ = self.child.wait();
        }
        self.groups.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    #[allow(unsafe_code, reason = "the standard library blocks no signals")]
    fn programs_end_at_a_signal_that_is_blocked_here() {
        // On a thread of its own, whose mask ends with it.
        let ended = thread::spawn(|| {
            // SAFETY: the set is initialised by `sigemptyset` before it is read, and lives until the calls return.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, libc::SIGTERM);
                assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()), 0);
            }
            let mut shell = Command::new("sh");
            let mut child = Groups::default().start(shell.args(["-c", "kill -TERM $$; exit 3"])).unwrap();
            child.child.wait().unwrap()
        });
        assert_eq!(ended.join().unwrap().signal(), Some(libc::SIGTERM));
    }
}
