//! Virtual time for a stack that reads the clock by itself.
//!
//! The standard library asks the C library for `CLOCK_MONOTONIC`. The function below has the same name and stands in the
//! program itself, so the linker takes it instead. On a thread that runs a simulation it answers with virtual time; for
//! all other threads and clocks it asks the kernel.

#![allow(unsafe_code, reason = "a C function that stands in for the C library's")]

use std::cell::Cell;

use units::Instant;

thread_local! {
    /// Nanoseconds of virtual time on this thread; `None` while it runs no simulation.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Seconds at which virtual time starts, so that a stack may subtract spans from its first instants.
const ORIGIN: u64 = 1_000_000;

/// From here on the monotonic clock of this thread stands at `now`.
pub fn set(now: Instant) {
    NOW.set(Some(now.as_nanos()));
}

/// The standard library's instant for a virtual one. Leaves the clock of this thread there.
pub fn instant(now: Instant) -> std::time::Instant {
    set(now);
    std::time::Instant::now()
}

/// Returns whether the interposition works in this program.
pub fn works() -> bool {
    let before = NOW.get();
    let start = instant(Instant::ZERO);
    let later = instant(Instant::from_millis(123_456));
    let same = std::time::Instant::now();
    NOW.set(before);
    later - start == std::time::Duration::from_millis(123_456) && same == later
}

/// Stands in for the C library's function of this name.
///
/// # Safety
/// As there: `out` must be valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, out: *mut libc::timespec) -> libc::c_int {
    match NOW.get() {
        Some(now) if clock == libc::CLOCK_MONOTONIC => {
            let seconds = ORIGIN + now / 1_000_000_000;
            let nanos = now % 1_000_000_000;
            // SAFETY: the caller passes a pointer that may be written to.
            unsafe { out.write(libc::timespec { tv_sec: seconds as libc::time_t, tv_nsec: nanos as libc::c_long }) };
            0
        }
        // SAFETY: the same call with the same arguments, made directly.
        _ => unsafe { libc::syscall(libc::SYS_clock_gettime, clock, out) as libc::c_int },
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn instants_are_virtual_on_a_thread_that_says_so() {
        assert!(super::works());
        let first = std::time::Instant::now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(first.elapsed() >= std::time::Duration::from_millis(2), "other threads keep real time");
    }
}
