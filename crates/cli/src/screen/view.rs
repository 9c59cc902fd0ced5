//! View of a model, and what keys do to it.

use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Figure, Line, Model};
use crate::meter::State;

/// Request of a key that the view cannot fulfil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// End the measurement, with the results until now.
    End,
}

/// State of the screen.
#[derive(Debug, Default)]
pub(super) struct View {
    model: Model,
    /// The model as it was when the display was paused.
    paused: Option<Model>,
    /// Place of the connection that the charts are of.
    selected: usize,
    pub(super) figure: Figure,
    pub(super) has_help: bool,
    pub(super) is_ending: bool,
}

impl View {
    /// Takes what the meter has. Returns whether anything that is shown has changed.
    pub(super) fn take(&mut self, state: &State, now: Instant) -> bool {
        self.model.take(state, now) && !self.is_paused()
    }

    /// The model that is shown.
    pub(super) fn model(&self) -> &Model {
        self.paused.as_ref().unwrap_or(&self.model)
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Place of the selected connection: the last one, should the selected one be gone.
    pub(super) fn selected(&self) -> usize {
        self.selected.min(self.model().lines.len().saturating_sub(1))
    }

    /// The selected connection.
    pub(super) fn line(&self) -> Option<&Line> {
        self.model().lines.get(self.selected())
    }

    /// Acts on a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<Request> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Some(self.end()),
            _ if control => {}
            KeyCode::Char('q') => return Some(self.end()),
            KeyCode::Char('p' | ' ') => {
                self.paused = if self.paused.is_some() { None } else { Some(self.model.clone()) };
            }
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Esc => self.has_help = false,
            KeyCode::Tab | KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::BackTab | KeyCode::Up | KeyCode::Char('k') => self.select(self.model().lines.len().max(1) - 1),
            KeyCode::Right | KeyCode::Char('l') => self.figure = self.figure.turned(true),
            KeyCode::Left => self.figure = self.figure.turned(false),
            _ => {}
        }
        None
    }

    fn end(&mut self) -> Request {
        self.is_ending = true;
        Request::End
    }

    /// Selects the connection so many places further, around the end.
    fn select(&mut self, by: usize) {
        self.selected = (self.selected() + by) % self.model().lines.len().max(1);
    }
}
