//! Log on the standard error. The variable `RUST_LOG` filters it, as in `warn,tiderace_edge=debug`.

use std::{
    collections::VecDeque,
    env,
    io::{self, IsTerminal, Write, stderr},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::failure::Failure;

const VARIABLE: &str = "RUST_LOG";
/// Filter without the variable. What the verifier says, the error that ends the program says again.
const QUIET: &str = "warn,rustls_platform_verifier=off";

/// Starts the log.
pub(crate) fn start() -> Result<(), Failure> {
    let text = env::var_os(VARIABLE).map_or_else(|| QUIET.into(), |text| text.to_string_lossy().into_owned());
    let output = fmt::layer().with_ansi(stderr().is_terminal()).with_writer(|| Output);
    tracing_subscriber::registry().with(output).with(filter(&text)?).init();
    Ok(())
}

/// Bytes of lines that wait while a screen is shown.
const HELD: usize = 64 << 10;

/// Set while lines wait.
static HOLDS: AtomicBool = AtomicBool::new(false);
/// Lines that would damage the screen, and the number of those for which there was no room.
static WAITING: Mutex<(VecDeque<Vec<u8>>, u64)> = Mutex::new((VecDeque::new(), 0));

/// The standard error; while a screen is shown on the same terminal, lines wait for its end.
struct Output;

impl Write for Output {
    /// Takes a line: the log writes each with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !HOLDS.load(Ordering::Relaxed) {
            return stderr().write(line);
        }
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        let (lines, lost) = &mut *waiting;
        lines.push_back(line.to_vec());
        // The last lines are those that tell why it ended.
        while lines.iter().map(Vec::len).sum::<usize>() > HELD {
            lines.pop_front();
            *lost += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        stderr().flush()
    }
}

/// Lets lines wait for [`release`], where they would go to a terminal: a screen is shown there.
pub(crate) fn hold() {
    HOLDS.store(stderr().is_terminal(), Ordering::Relaxed);
}

/// Writes the lines that have waited for the end of a screen.
pub(crate) fn release() {
    HOLDS.store(false, Ordering::Relaxed);
    let (lines, lost) = std::mem::take(&mut *WAITING.lock().unwrap_or_else(PoisonError::into_inner));
    let mut output = stderr();
    // Nobody is left to tell about a terminal that has gone away.
    if lost > 0 {
        let _ = writeln!(output, "{lost} lines of the log before these are left out");
    }
    for line in lines {
        let _ = output.write_all(&line);
    }
}

/// Reads a filter: levels, and targets with their levels. Without a level for all targets the others are off.
fn filter(text: &str) -> Result<Targets, Failure> {
    let directives: Vec<&str> = text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    let wrong = |directive: &str, fault: &str| {
        Failure::new(format_args!("{VARIABLE}: `{directive}`: {fault}")).hint(
            "write a level (error, warn, info, debug, trace), or a target with its level as in tiderace_edge=debug; commas between",
        )
    };
    for directive in &directives {
        if directive.contains(['[', '{']) {
            return Err(wrong(directive, "fields and spans are no filter"));
        }
        directive.parse::<Targets>().map_err(|error| wrong(directive, &error.to_string()))?;
    }
    let whole = directives.join(",");
    whole.parse().map_err(|error: tracing_subscriber::filter::ParseError| wrong(&whole, &error.to_string()))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::*;

    #[test]
    fn levels_hold_for_targets_and_what_is_below_them() {
        for (text, target, expected) in [
            (QUIET, "tiderace_edge::process", LevelFilter::WARN),
            (QUIET, "rustls_platform_verifier::verification", LevelFilter::OFF),
            ("debug", "quinn_udp", LevelFilter::DEBUG),
            ("tiderace_edge=debug", "tiderace_edge::acme", LevelFilter::DEBUG),
            ("tiderace_edge=debug", "tiderace_client", LevelFilter::OFF),
            (" info, tiderace_edge=trace ,", "tiderace_edge", LevelFilter::TRACE),
            (" info, tiderace_edge=trace ,", "hyper", LevelFilter::INFO),
            ("hyper", "hyper::proto", LevelFilter::TRACE),
            ("", "hyper", LevelFilter::ERROR),
        ] {
            let targets = filter(text).unwrap();
            for level in [tracing::Level::ERROR, tracing::Level::WARN, tracing::Level::INFO, tracing::Level::DEBUG] {
                assert_eq!(targets.would_enable(target, &level), expected >= level, "{text}: {target} at {level}");
            }
        }
    }

    #[test]
    fn filters_that_cannot_be_read_are_named() {
        for (text, expected) in [
            ("warn,hyper=loud", "RUST_LOG: `hyper=loud`: "),
            ("a=b=c", "RUST_LOG: `a=b=c`: invalid filter directive: too many '='"),
            ("[connection]=debug", "RUST_LOG: `[connection]=debug`: fields and spans"),
            ("hyper[{id}]=debug", "RUST_LOG: `hyper[{id}]=debug`: fields and spans"),
        ] {
            let failure = filter(text).unwrap_err();
            assert!(failure.message().starts_with(expected), "{}", failure.message());
        }
    }
}
