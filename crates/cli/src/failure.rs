//! Failures of the program: one clear message, advice on a line of its own, an exit code.

use std::{fmt::Display, process::ExitCode};

use crate::printable::printable_lines;

/// Failure of a command: message, hint and exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

/// Exit code of a wrong request: option, file, name, address.
pub(crate) const USAGE: u8 = 2;
/// Exit code when the laboratory itself does not work.
pub(crate) const SELF_TEST: u8 = 3;
/// Exit code of a gate that fails.
pub(crate) const GATE: u8 = 99;
/// Exit code when nothing failed, but a contender does not report what a clause needs.
pub(crate) const UNSUPPORTED: u8 = 77;
/// Exit code of a run that was made and whose result may not be used.
pub(crate) const UNSOUND: u8 = 1;

impl Failure {
    pub(crate) fn new(message: impl Display) -> Self {
        Self { message: message.to_string(), hint: None, code: USAGE }
    }

    /// Reports a request that this program cannot serve, without a mistake of the caller.
    pub(crate) fn unsupported(message: impl Display) -> Self {
        Self { code: UNSUPPORTED, ..Self::new(message) }
    }

    /// Sets the exit code.
    pub(crate) fn code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Puts the option at fault in front of the message.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_option(self, option: &str) -> Self {
        Self { message: format!("{option}: {}", self.message), ..self }
    }

    /// Message, without the hint.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prints it on the standard error and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        eprintln!("error: {}", printable_lines(&self.message));
        if let Some(hint) = self.hint {
            eprintln!("hint: {}", printable_lines(&hint));
        }
        ExitCode::from(self.code)
    }
}

impl From<::lab::scenario::ScenarioError> for Failure {
    fn from(error: ::lab::scenario::ScenarioError) -> Self {
        Self { message: error.to_string(), hint: error.hint, code: USAGE }
    }
}
