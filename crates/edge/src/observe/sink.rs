//! Destination of lines, which may fail and recover: a disk may be full for a while.

use std::io::{ErrorKind, Result, Write};

/// Destination of lines.
pub(super) struct LineSink {
    to: Box<dyn Write + Send>,
    /// Part of a line was written last.
    is_torn: bool,
    /// The last write has failed.
    fails: bool,
}

impl LineSink {
    pub(super) fn new(to: Box<dyn Write + Send>) -> Self {
        Self { to, is_torn: false, fails: false }
    }

    /// Writes whole lines; returns the number of those that were lost. Tells when writing begins to fail, and when it succeeds again.
    pub(super) fn write(&mut self, lines: &[u8]) -> u64 {
        let mut rest = lines;
        let written = self.try_write(&mut rest);
        match (&written, self.fails) {
            (Err(error), false) => {
                tracing::warn!(
                    "cannot write the access log: {error}; lines are lost, and counted in log_lines_dropped"
                );
            }
            (Ok(()), true) => tracing::info!("the access log is written again"),
            _ => {}
        }
        self.fails = written.is_err();
        // A line whose end was not written is lost.
        rest.iter().filter(|byte| **byte == b'\n').count() as u64
    }

    /// Writes the lines that `rest` has, and leaves what was not written.
    fn try_write(&mut self, rest: &mut &[u8]) -> Result<()> {
        if self.is_torn && !rest.is_empty() {
            self.to.write_all(b"\n")?;
            self.is_torn = false;
        }
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => {
                    self.is_torn = rest[len - 1] != b'\n';
                    *rest = &rest[len..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A disk with room for so many bytes more.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            let (content, room) = &mut *self.0.lock().unwrap();
            let len = bytes.len().min(*room);
            if len == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            content.extend_from_slice(&bytes[..len]);
            *room -= len;
            Ok(len)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_on_a_full_disk_are_counted_and_later_ones_are_whole() {
        let disk = Disk::default();
        let mut sink = LineSink::new(Box::new(disk.clone()));
        let give = |bytes| disk.0.lock().unwrap().1 = bytes;
        give(10);
        assert_eq!(sink.write(b"one\ntwo\nthree\nfour\n"), 2, "the third is cut off");
        assert_eq!(sink.write(b"five\n"), 1);
        give(1);
        assert_eq!(sink.write(b"six\n"), 1, "there is room for the end of the line before");
        give(100);
        assert_eq!(sink.write(b"seven\neight\n"), 0);
        assert_eq!(disk.0.lock().unwrap().0, b"one\ntwo\nth\nseven\neight\n");
        assert_eq!(sink.write(b""), 0);
    }
}
