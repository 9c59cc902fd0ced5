//! Changes of priorities after requests were sent (RFC 9218 §7): state of a connection, and its frames.

use std::{collections::BTreeMap, task::Waker};

use tiderace::Priority;

use crate::frame;

/// Requests whose changes somebody waits for, and changes that this end has to send: one of each request, the last.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) watched: BTreeMap<u64, Watched>,
    pub(crate) to_send: BTreeMap<u64, Priority>,
}

/// Request whose changes somebody waits for.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) latest: Option<Priority>,
    pub(crate) waker: Option<Waker>,
}

impl Changes {
    /// Takes a change by the peer. Returns false when nobody waits for it.
    #[must_use]
    pub(crate) fn on_change(&mut self, stream: u64, priority: Priority) -> bool {
        let Some(watched) = self.watched.get_mut(&stream) else { return false };
        watched.latest = Some(priority);
        if let Some(waker) = watched.waker.take() {
            waker.wake();
        }
        true
    }

    /// Returns whether nothing is to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.to_send.is_empty()
    }

    /// Appends the frames of the changes that are to be sent.
    // RFC 9218 §7.2
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) {
        for (stream, priority) in std::mem::take(&mut self.to_send) {
            let value = field(priority);
            frame::write_head(out, frame::PRIORITY_UPDATE, (wire::varint::len(stream) + value.len()) as u64);
            wire::varint::push(out, stream);
            out.extend(value.as_bytes());
        }
    }
}

/// Value of the `priority` field, without what is the default.
fn field(Priority { urgency, incremental }: Priority) -> String {
    match (urgency, incremental) {
        (3, true) => "i".to_owned(),
        (urgency, true) => format!("u={urgency}, i"),
        (urgency, false) => format!("u={urgency}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority;

    /// A reader finds what the writer was given.
    #[test]
    fn a_frame_has_the_request_and_its_priority() {
        let all = (0..8).flat_map(|urgency| [false, true].map(|incremental| Priority { urgency, incremental }));
        for (stream, priority) in (0..).step_by(4_000).zip(all) {
            let mut changes = Changes::default();
            changes.to_send.insert(stream, priority);
            let mut out = Vec::new();
            changes.write(&mut out);
            let mut reader = wire::Reader::new(&out);
            assert_eq!(reader.varint().unwrap(), frame::PRIORITY_UPDATE);
            let length = usize::try_from(reader.varint().unwrap()).unwrap();
            let payload = &out[out.len() - length..];
            assert_eq!(priority::read_update(payload), Some(priority::Update { stream, priority }));
            out.clear();
            changes.write(&mut out);
            assert!(out.is_empty(), "each is sent once");
        }
    }
}
