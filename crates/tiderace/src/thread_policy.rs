//! Scheduling policy of threads on Linux.

use std::{io, mem::MaybeUninit, sync::OnceLock};

use units::Duration;

/// Nice value of a thread without the idle policy: it takes about a tenth beside one of the others.
const NICE: libc::c_int = 10;

/// A thread, for the scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread(libc::pid_t);

impl Thread {
    /// Calling thread.
    #[expect(unsafe_code, reason = "gettid has no safe wrapper")]
    pub(crate) fn current() -> Self {
        // SAFETY: the call has no preconditions.
        Self(unsafe { libc::gettid() })
    }

    /// Lets the thread run only on idle processors, and give way at once to other threads.
    pub(crate) fn stand_back(self) -> io::Result<()> {
        self.set(libc::SCHED_IDLE)
    }

    /// Restores the normal priority of the thread.
    pub(crate) fn step_forward(self) -> io::Result<()> {
        self.set(libc::SCHED_OTHER)
    }

    /// Returns whether the system lets a thread go back to its normal priority. A thread that then ends tries it.
    pub(crate) fn may_come_back() -> bool {
        static MAY: OnceLock<bool> = OnceLock::new();
        *MAY.get_or_init(|| {
            let tried = std::thread::spawn(|| {
                let this = Self::current();
                this.stand_back().and_then(|()| this.step_forward()).is_ok()
            });
            tried.join().unwrap_or(false)
        })
    }

    /// Lowers the share of the thread from here on.
    #[expect(unsafe_code, reason = "getpriority and setpriority have no safe wrappers")]
    pub(crate) fn take_less(self) -> io::Result<()> {
        let id = libc::id_t::try_from(self.0).expect("a thread's number is positive");
        // SAFETY: the call takes numbers alone. On Linux the priority belongs to the thread of this number. An error is -1, which
        // is below what is wanted, and the next call says what is wrong.
        if unsafe { libc::getpriority(libc::PRIO_PROCESS, id) } >= NICE {
            return Ok(());
        }
        // SAFETY: as above.
        let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, id, NICE) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[expect(unsafe_code, reason = "sched_setscheduler has no safe wrapper")]
    fn set(self, policy: libc::c_int) -> io::Result<()> {
        // SAFETY: numbers, for which zero is a value. musl has more of them than glibc; these policies take none but 0.
        let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
        // Not by the function of the C library: that of musl refuses always.
        // SAFETY: `parameters` outlives the call. A thread that has ended makes the call fail; should its number stand for
        // another one by then, that one is not ours and the call fails too, or it is and the harm is its priority.
        let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, self.0, policy, &raw const parameters) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// CPU time and waits of the calling thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Time on a processor: what others take of it meanwhile does not count.
    pub(crate) cpu: Duration,
    /// Number of times that it went to sleep.
    pub(crate) waits: i64,
}

impl Effort {
    /// Effort up to this moment; `None` when the system does not report it.
    #[expect(unsafe_code, reason = "getrusage and clock_gettime have no safe wrappers")]
    pub(crate) fn so_far() -> Option<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: `usage` is valid for writes during the call.
        if unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call that succeeded has filled it.
        let usage = unsafe { usage.assume_init() };
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: `time` is valid for writes during the call.
        if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call that succeeded has filled it.
        let time = unsafe { time.assume_init() };
        let cpu = Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
        Some(Self { cpu, waits: usage.ru_nvcsw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stands_back_only_where_it_may_come_back() {
        // Fields 19 and 41 of the thread's line: its nice value, and its policy, of which 5 is SCHED_IDLE.
        let state = || {
            let line = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields: Vec<String> = line.rsplit(')').next().unwrap().split_whitespace().map(str::to_owned).collect();
            (fields[16].clone(), fields[38].clone())
        };
        let tried = std::thread::spawn(move || {
            let this = Thread::current();
            if Thread::may_come_back() {
                this.stand_back().unwrap();
                assert_eq!(state().1, "5");
                this.step_forward().unwrap();
                assert_eq!(state().1, "0");
            }
            this.take_less().unwrap();
            assert!(state().0.parse::<libc::c_int>().unwrap() >= NICE);
        });
        tried.join().unwrap();
    }

    #[test]
    fn work_and_waiting_are_told_apart() {
        let start = Effort::so_far().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let slept = Effort::so_far().unwrap();
        assert!(slept.waits > start.waits);
        assert!(slept.cpu - start.cpu < Duration::from_millis(5));
        // Work shows as work: this ends.
        while Effort::so_far().unwrap().cpu - slept.cpu < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
    }
}
