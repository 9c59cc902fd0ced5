//! How the system's scheduler treats a thread, on Linux.

use std::io;

/// A thread, for the scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread(libc::pid_t);

impl Thread {
    /// The calling one.
    #[expect(unsafe_code, reason = "gettid has no safe wrapper")]
    pub(crate) fn current() -> Self {
        // SAFETY: the call has no preconditions.
        Self(unsafe { libc::gettid() })
    }

    /// Lets it run only on processors that nobody else wants, and makes room at once for whoever does.
    pub(crate) fn stand_back(self) -> io::Result<()> {
        self.set(libc::SCHED_IDLE)
    }

    /// Lets it run like any other.
    pub(crate) fn step_forward(self) -> io::Result<()> {
        self.set(libc::SCHED_OTHER)
    }

    #[expect(unsafe_code, reason = "sched_setscheduler has no safe wrapper")]
    fn set(self, policy: libc::c_int) -> io::Result<()> {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: `parameters` outlives the call. A thread that has ended makes the call fail; should its number stand for
        // another one by then, that one is not ours and the call fails too, or it is and the harm is its priority.
        let result = unsafe { libc::sched_setscheduler(self.0, policy, &raw const parameters) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
