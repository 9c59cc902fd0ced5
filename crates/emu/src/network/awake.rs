//! Idle processors that stay awake, so that timers and packets wake their threads sooner.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
};

/// File for the longest time, in microseconds as 32 bits, that an idle processor may need to wake up (power-management quality of service of Linux).
const LATENCY: &str = "/dev/cpu_dma_latency";

/// A request to the kernel that idle processors do not sleep. It lasts until it is dropped, or the process has ended.
#[derive(Debug)]
pub(super) struct Awake(#[expect(dead_code, reason = "the kernel reads it while it is open")] File);

impl Awake {
    /// Asks for it, which root alone may do on most systems.
    pub(super) fn request() -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).open(LATENCY)?;
        file.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self(file))
    }
}
