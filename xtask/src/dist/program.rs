//! The program as built: its size, and whether it needs anything of the system that it runs on.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::target::Arch;

/// Type of the program header that names a dynamic loader (ELF, PT_INTERP).
const LOADER: u32 = 3;

/// Program that was built.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) is_static: bool,
}

impl Program {
    /// Reads what the file says about itself.
    pub(super) fn look(path: PathBuf) -> Result<Self> {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let loader = asks_for_loader(&bytes).with_context(|| format!("{} is no 64-bit ELF program", path.display()))?;
        Ok(Self { path, size: u64::try_from(bytes.len())?, is_static: !loader })
    }

    /// Command that runs it, emulated where it is for another machine.
    pub(super) fn command(&self, arch: Arch) -> Command {
        if arch.is_native() {
            return Command::new(&self.path);
        }
        let mut command = Command::new(format!("qemu-{}-static", arch.name()));
        command.arg(&self.path);
        command
    }
}

/// Returns whether a little-endian 64-bit ELF program asks for a dynamic loader; `None` when it is none.
fn asks_for_loader(elf: &[u8]) -> Option<bool> {
    let short = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = usize::try_from(u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (usize::from(short(54)?), usize::from(short(56)?));
    let mut asks = false;
    for entry in 0..count {
        let at = table.checked_add(entry * size)?;
        asks |= u32::from_le_bytes(elf.get(at..at.checked_add(4)?)?.try_into().ok()?) == LOADER;
    }
    Some(asks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_is_found_in_what_has_one() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(asks_for_loader(&own), Some(cfg!(not(target_feature = "crt-static"))));
        let mut plain = vec![0; 64 + 56];
        plain[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (plain[32], plain[54], plain[56]) = (64, 56, 1);
        assert_eq!(asks_for_loader(&plain), Some(false));
        plain[64] = 3;
        assert_eq!(asks_for_loader(&plain), Some(true));
        assert_eq!(asks_for_loader(&plain[..65]), None);
        assert_eq!(asks_for_loader(b"#!/bin/sh"), None);
    }
}
