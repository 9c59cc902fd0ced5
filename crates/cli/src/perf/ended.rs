//! Lines about connections that have ended: printed at once, or after the screen that they would damage.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use crate::{
    failure::Failure,
    stdout::{write_json_line, write_out},
};

/// Lines that wait for the end of a screen; the last of them.
const KEPT: usize = 1_000;

/// Lines of a server.
pub(super) struct Ended {
    json: bool,
    /// Lines that wait, and the number of those that were too many; `None` without a screen.
    waiting: Option<Mutex<(VecDeque<String>, u64)>>,
}

impl Ended {
    /// Prints lines as text or as JSON. `waits`: a screen is shown until [`Self::release`].
    pub(super) fn new(json: bool, waits: bool) -> Self {
        Self { json, waiting: waits.then(Mutex::default) }
    }

    /// Tells of a connection.
    pub(super) fn tell(&self, text: String, line: &serde_json::Value) {
        let Some(waiting) = &self.waiting else {
            // Nobody reads the output any more: the measurements of clients continue all the same.
            let _ = if self.json { write_json_line(line) } else { write_out(&text) };
            return;
        };
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.0.push_back(text);
        if waiting.0.len() > KEPT {
            waiting.0.pop_front();
            waiting.1 += 1;
        }
    }

    /// Prints what has waited.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(super) fn release(&self) -> Result<(), Failure> {
        let Some(waiting) = &self.waiting else { return Ok(()) };
        let (lines, left_out) = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if left_out > 0 {
            write_out(&format!("{left_out} connections before these are left out\n"))?;
        }
        lines.iter().try_for_each(|line| write_out(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_wait() {
        let ended = Ended::new(false, true);
        (0..KEPT + 5).for_each(|number| ended.tell(format!("{number}"), &serde_json::Value::Null));
        let waiting = ended.waiting.unwrap().into_inner().unwrap();
        assert_eq!((waiting.0.len(), waiting.1, waiting.0.front().map(String::as_str)), (KEPT, 5, Some("5")));
    }
}
