//! Processor time and memory of other processes.

use anyhow::{Result, ensure};

/// Seconds of processor time that a process has spent, threads that have ended included. `None` when there is no such process.
#[allow(unsafe_code, reason = "the standard library does not ask for the processor time of others")]
fn seconds_of(pid: i32) -> Option<f64> {
    let mut clock = 0;
    // SAFETY: writes a number to where it is told.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a time to where it is told.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    (!failed).then(|| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Seconds of processor time that a process and its children have spent. Children that have ended do not count.
pub(crate) fn seconds(pid: u32) -> Result<f64> {
    let own = seconds_of(pid.cast_signed());
    ensure!(own.is_some(), "process {pid} is not there");
    Ok(own.unwrap_or(0.0) + children(pid)?.into_iter().filter_map(seconds_of).sum::<f64>())
}

/// Bytes of anonymous memory that a process and its children have in use.
pub(crate) fn memory(pid: u32) -> Result<f64> {
    let own = memory_of(pid.cast_signed());
    ensure!(own.is_some(), "process {pid} is not there");
    Ok(own.unwrap_or(0.0) + children(pid)?.into_iter().filter_map(memory_of).sum::<f64>())
}

fn memory_of(pid: i32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

fn children(pid: u32) -> Result<Vec<i32>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(other) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // It may have ended meanwhile.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{other}/stat")) else { continue };
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if parent == Some(pid) {
            children.push(other);
        }
    }
    Ok(children)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_and_its_children_count() {
        let before = seconds(std::process::id()).unwrap();
        // The shell is a child, and spins until it is killed.
        let mut shell = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let own = loop {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let own = seconds(shell.id()).unwrap();
            if own > 0.02 {
                break own;
            }
        };
        let with_child = seconds(std::process::id()).unwrap() - before;
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(with_child >= own, "{with_child} s with the child, which has {own} s");
        assert!(seconds(shell.id()).is_err(), "it has ended");
    }
}
