//! CPU time of this process.

use std::time::Duration;

/// User and system time of all threads since the program started. `None` where the system does not say.
#[cfg(unix)]
#[expect(unsafe_code, reason = "the standard library does not offer the CPU clock")]
pub(super) fn process_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, which the call fills.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (result == 0).then(|| Duration::new(seconds, nanos))
}

/// User and system time of all threads since the program started. `None` where the system does not say.
#[cfg(not(unix))]
pub(super) fn process_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn work_takes_cpu_time() {
        let before = process_time().unwrap();
        let mut value = 1u64;
        while process_time().unwrap() < before + Duration::from_millis(2) {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        assert!(process_time().unwrap() > before, "{value}");
    }
}
