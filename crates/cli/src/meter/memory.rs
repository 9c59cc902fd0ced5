//! Resident memory of this process.

/// Bytes; `None` where the system does not tell.
pub(crate) fn resident() -> Option<u64> {
    // proc(5): VmRSS in kB.
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_some() {
        let before = super::resident().unwrap();
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = super::resident().unwrap();
        assert!(before > 1 << 20 && after >= before + (48 << 20), "{before} {after}");
        drop(held);
    }
}
