//! Consent to load a path.

use std::{
    io::{BufRead, IsTerminal, Write as _},
    time::Duration,
};

use super::{ProbeArgs, verify};
use crate::failure::Failure;

/// Answer to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consent {
    Given,
    /// Only measurements without load are made.
    Refused,
}

/// Asks at the terminal whether the path may be loaded.
///
/// # Errors
/// Without a terminal to ask on and without an option that answers.
pub(super) fn ask(args: &ProbeArgs) -> Result<Consent, Failure> {
    if args.idle {
        return Ok(Consent::Refused);
    }
    if args.yes {
        return Ok(Consent::Given);
    }
    let input = std::io::stdin();
    if !input.is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::new("this would load the path, and there is no terminal to ask at")
            .hint("`--yes` loads it; `--idle` measures only what needs no load"));
    }
    let verifies = if args.verify { verify::Plan::length(args) } else { Duration::ZERO };
    // The verification may spend the bytes once more.
    let bytes = args.bytes.as_bytes().saturating_mul(1 + u64::from(args.verify));
    eprint!(
        "This fills the path in both directions for up to {} s, with up to {}. Others on it will notice. Go on? [y/N] ",
        (args.time + verifies).as_secs(),
        indicatif::DecimalBytes(bytes)
    );
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    // An input that ends has said no.
    let _ = input.lock().read_line(&mut line);
    let is_yes = matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    Ok(if is_yes { Consent::Given } else { Consent::Refused })
}
