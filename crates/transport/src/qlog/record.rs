//! Sequence of records: buffering, and write errors.

use std::io::{self, Write};

use serde::Serialize;
use units::Instant;

use super::value;

/// Bytes that are collected before they are written.
const BUFFER: usize = 32 * 1024;
/// RFC 7464 §2.2: what each record begins with.
const RECORD_SEPARATOR: u8 = 0x1e;

/// Owns the output.
pub(super) struct Records<W: Write> {
    out: W,
    /// Whole records that are not written yet.
    buffer: Vec<u8>,
    reference: Instant,
    /// Last time in the file. Times never decrease, whatever the caller's clock does.
    last: Instant,
    /// First error, after which nothing is written.
    error: Option<io::Error>,
}

#[derive(Serialize)]
struct Record<'a, D: Serialize> {
    time: f64,
    name: &'static str,
    data: &'a D,
}

impl<W: Write> Records<W> {
    pub(super) fn new(out: W, reference: Instant) -> Self {
        Self { out, buffer: Vec::new(), reference, last: reference, error: None }
    }

    /// Appends an event.
    pub(super) fn event(&mut self, now: Instant, name: &'static str, data: &impl Serialize) {
        self.last = self.last.max(now);
        let time = value::time(self.last.nanos_since(self.reference));
        self.append(&Record { time, name, data });
    }

    /// Appends a record.
    pub(super) fn append(&mut self, record: &impl Serialize) {
        if self.error.is_some() {
            return;
        }
        let start = self.buffer.len();
        self.buffer.push(RECORD_SEPARATOR);
        if let Err(error) = serde_json::to_writer(&mut self.buffer, record) {
            // Half a record is worse than none.
            self.buffer.truncate(start);
            self.error = Some(error.into());
            return;
        }
        self.buffer.push(b'\n');
        if self.buffer.len() >= BUFFER {
            self.write_out();
        }
    }

    fn write_out(&mut self) {
        if self.error.is_none() && !self.buffer.is_empty() {
            self.error = self.out.write_all(&self.buffer).err();
        }
        self.buffer.clear();
        if self.error.is_some() {
            self.buffer = Vec::new();
        }
    }

    /// Writes the buffered records, and flushes the output.
    pub(super) fn flush(&mut self) {
        self.write_out();
        if self.error.is_none() {
            self.error = self.out.flush().err();
        }
    }

    pub(super) fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }
}

impl<W: Write> Drop for Records<W> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, then fails.
    struct Full(usize, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            let room = self.0.min(bytes.len());
            self.0 -= room;
            if room == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(room) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_remembered_and_not_tried_again() {
        let mut records = Records::new(Full(100_000, 0), Instant::ZERO);
        for _ in 0..10_000 {
            records.event(Instant::ZERO, "test", &"a text of some length");
        }
        assert_eq!(records.error().unwrap().kind(), io::ErrorKind::StorageFull);
        let calls = records.out.1;
        records.flush();
        assert_eq!(records.out.1, calls);
        assert_eq!(records.buffer.capacity(), 0);
    }

    #[test]
    fn times_never_go_back() {
        let mut out = Vec::new();
        let mut records = Records::new(&mut out, Instant::from_millis(10));
        for micros in [9_000, 10_000, 12_345, 11_000, 12_346] {
            records.event(Instant::from_micros(micros), "e", &0);
        }
        drop(records);
        let text = String::from_utf8(out).unwrap();
        let times: Vec<_> = text.lines().map(|line| line.split([':', ',']).nth(1).unwrap()).collect();
        assert_eq!(times, ["0.0", "0.0", "2.345", "2.345", "2.346"]);
        assert!(text.lines().all(|line| line.starts_with('\u{1e}')));
    }
}
