//! Extensible priorities of HTTP (RFC 9218): the `priority` field, and frames that change it.
//!
//! ```
//! use tiderace_h3::priority::{self, Priority};
//!
//! let mut fields = http::HeaderMap::new();
//! assert_eq!(priority::of(&fields), Priority { urgency: 3, incremental: false });
//! fields.insert("priority", "u=1, i".parse().unwrap());
//! assert_eq!(priority::of(&fields), Priority { urgency: 1, incremental: true });
//! ```

use http::HeaderMap;
pub use tiderace::Priority;

/// A frame that changes the priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The number of the request's stream.
    pub stream: u64,
    /// Requested priority.
    pub priority: Priority,
}

/// Default priority of a request.
// RFC 9218 §4 SHOULD-1
const DEFAULT: Priority = Priority { urgency: 3, incremental: false };

/// Priority from the `priority` fields of a request.
pub fn of(fields: &HeaderMap) -> Priority {
    let mut priority = DEFAULT;
    for value in fields.get_all("priority") {
        apply(value.as_bytes(), &mut priority);
    }
    priority
}

/// Reads the payload of a PRIORITY_UPDATE frame: the stream's number and a field value. `None` when it cannot be read.
pub(crate) fn read_update(payload: &[u8]) -> Option<Update> {
    let first = *payload.first()?;
    let length = 1_usize << (first >> 6);
    let number = payload.get(..length)?;
    // The two highest bits are the length of the number.
    let first = u64::from(first & 0x3f);
    let stream = number[1..].iter().fold(first, |value, &byte| value << 8 | u64::from(byte));
    let mut priority = DEFAULT;
    apply(&payload[length..], &mut priority);
    Some(Update { stream, priority })
}

/// Changes of priorities that are kept for requests whose fields have not come.
const MAX_UPDATES: usize = 32;

/// Changes of priorities that have come before the requests that they are about, the last of each. Of many, the oldest are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Updates(Vec<(u64, Priority)>);

impl Updates {
    /// Stores a change for the request on a stream.
    pub(crate) fn note(&mut self, stream: u64, priority: Priority) {
        self.0.retain(|(other, _)| *other != stream);
        if self.0.len() == MAX_UPDATES {
            self.0.remove(0);
        }
        self.0.push((stream, priority));
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> usize {
        self.0.capacity() * size_of::<(u64, Priority)>()
    }

    /// Takes the stored update for the request on a stream.
    // RFC 9218 §7 SHOULD-1
    pub(crate) fn take(&mut self, stream: u64) -> Option<Priority> {
        let at = self.0.iter().position(|(other, _)| *other == stream)?;
        Some(self.0.remove(at).1)
    }
}

/// Applies a dictionary of structured fields (RFC 8941). Unknown members are ignored.
// RFC 9218 §4 MUST-1
fn apply(value: &[u8], priority: &mut Priority) {
    let Ok(text) = std::str::from_utf8(value) else { return };
    for member in text.split(',') {
        // Parameters say nothing here.
        let member = member.split(';').next().unwrap_or_default().trim();
        match member.split_once('=') {
            Some(("u", urgency)) => {
                // An integer has no plus.
                if let (Ok(urgency @ 0..=7), false) = (urgency.parse(), urgency.starts_with('+')) {
                    priority.urgency = urgency;
                }
            }
            Some(("i", "?1")) => priority.incremental = true,
            Some(("i", "?0")) => priority.incremental = false,
            None if member == "i" => priority.incremental = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> (u8, bool) {
        let mut fields = HeaderMap::new();
        fields.insert("priority", value.parse().unwrap());
        let priority = of(&fields);
        (priority.urgency, priority.incremental)
    }

    /// RFC 9218 §4 MUST-1, SHOULD-1
    #[test]
    fn fields() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i, u=5", 5, true),
            ("i=?1", 3, true),
            ("i=?0,u=1", 1, false),
            ("u=8", 3, false),
            ("u=-1,i;x=1", 3, true),
            ("u=2;a, x=9, \"", 2, false),
            ("u=abc, i=2", 3, false),
            ("u=+1, u2=4", 3, false),
            ("u=1.0, i=\"?1\"", 3, false),
        ] {
            assert_eq!(read(value), (urgency, incremental), "{value}");
        }
        assert_eq!(of(&HeaderMap::new()), DEFAULT);
    }

    #[test]
    fn updates() {
        let read = |bytes: &[u8]| read_update(bytes).map(|update| (update.stream, update.priority.urgency));
        assert_eq!(read(b"\x04u=1"), Some((4, 1)));
        assert_eq!(read(b"\x40\x44u=2"), Some((68, 2)));
        assert_eq!(read(b"\x80\x01\x00\x00u=2"), Some((65_536, 2)));
        assert_eq!(read(b"\xc0\x00\x00\x01\x00\x00\x00\x00"), Some((1 << 32, 3)));
        assert_eq!(read(b""), None);
        assert_eq!(read(b"\x40"), None);
    }

    /// RFC 9218 §7 SHOULD-1
    #[test]
    fn the_last_change_is_kept_for_its_request() {
        let mut updates = Updates::default();
        let urgency = |urgency| Priority { urgency, ..DEFAULT };
        for (stream, value) in [(4, 1), (8, 2), (4, 5)] {
            updates.note(stream, urgency(value));
        }
        assert_eq!((updates.take(4), updates.take(4), updates.take(8)), (Some(urgency(5)), None, Some(urgency(2))));
        for stream in 0..1_000 {
            updates.note(4 * stream, urgency(0));
        }
        assert_eq!((updates.0.len(), updates.take(0)), (MAX_UPDATES, None));
        assert_eq!(updates.take(4 * 999), Some(urgency(0)));
    }
}
