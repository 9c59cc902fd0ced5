//! Live view of a measurement on the terminal: `--screen`.
//!
//! A thread of its own reads the keys and the [`Meter`], and draws. [`model`] holds the series, [`view`] what is shown of them and what keys
//! do, [`draw`] the layout; [`terminal`] is the terminal's state and its restoration.

mod draw;
mod model;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

pub(crate) use self::terminal::{is_shown, leave};
use self::{
    terminal::Terminal,
    view::{Request, View},
};
use crate::{
    failure::Failure,
    meter::{Meter, lines::Lines},
};

/// Longest wait for a key before the next look at the meter.
const LOOK: Duration = Duration::from_millis(100);

/// Screen at work. The terminal is as before once it is dropped.
pub(crate) struct Screen {
    ended: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Screen {
    /// Starts it. `end` runs at each request to end the measurement, by `q` or Ctrl-C.
    ///
    /// # Errors
    /// When the terminal refuses.
    fn start(meter: Meter, end: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        let terminal = Terminal::enter().map_err(|error| {
            Failure::new(format_args!("cannot use the terminal: {error}")).hint("leave out `--screen`")
        })?;
        let ended = Arc::new(AtomicBool::new(false));
        let over = ended.clone();
        let thread = thread::spawn(move || {
            // A terminal that has gone away is no reason to end a measurement.
            let _ = show(terminal, &meter, &over, &end);
        });
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Draws until it is over.
fn show(mut terminal: Terminal, meter: &Meter, over: &AtomicBool, end: &dyn Fn()) -> io::Result<()> {
    let mut view = View::default();
    let mut is_stale = true;
    while !over.load(Ordering::Relaxed) {
        is_stale |= view.take(&meter.state(), Instant::now());
        if is_stale {
            terminal.draw(&view)?;
        }
        is_stale = event::poll(LOOK)?;
        if is_stale
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && view.press(key) == Some(Request::End)
        {
            end();
        }
    }
    Ok(())
}

/// View of a measurement: the screen, or plain lines on the standard error.
pub(crate) enum Shown {
    Screen(#[expect(dead_code, reason = "dropped at the end")] Screen),
    Lines(#[expect(dead_code, reason = "dropped at the end")] Lines),
}

impl Shown {
    /// The screen where there is a terminal and `plain` is not set, otherwise lines.
    ///
    /// # Errors
    /// When the terminal refuses.
    pub(crate) fn start(meter: Meter, plain: bool, end: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        if plain || !terminal::is_usable() {
            return Ok(Self::Lines(Lines::start(meter)));
        }
        Screen::start(meter, end).map(Self::Screen)
    }
}
