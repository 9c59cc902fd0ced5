//! Extensible priorities of HTTP (RFC 9218): the `priority` field, and frames that change it.

use http::HeaderMap;
pub use tiderace::Priority;

/// A frame that changes the priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The number of the request's stream.
    pub stream: u64,
    /// What it asks for.
    pub priority: Priority,
}

/// RFC 9218 §4: what holds for a request that says nothing.
const DEFAULT: Priority = Priority { urgency: 3, incremental: false };

/// What the `priority` fields of a request ask for.
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

/// Applies a dictionary of structured fields (RFC 8941). What is not understood is ignored (RFC 9218 §4).
fn apply(value: &[u8], priority: &mut Priority) {
    let Ok(text) = std::str::from_utf8(value) else { return };
    for member in text.split(',') {
        // Parameters say nothing here.
        let member = member.split(';').next().unwrap_or_default().trim();
        match member.split_once('=') {
            Some(("u", urgency)) => {
                if let Ok(urgency @ 0..=7) = urgency.parse() {
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
}
