//! The self-test without the rest of `tiderace`: what `cargo xtask mutants` builds and runs. A line of JSON per check.
//!
//! ```text
//! selftest                    all checks
//! selftest --first            until the first that fails
//! selftest --scenario NAME    what a run of a preset, or of a file, checks of itself
//! ```
//!
//! Exit code 3: a check failed.

use std::{io::Write as _, num::NonZeroUsize, process::ExitCode, time::Instant};

use lab::{
    scenario::load,
    selftest::{Check, calibrate_while},
};
use tiderace_lab as lab;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let began = Instant::now();
    let print = |check: &Check| {
        let mut line = serde_json::to_value(check).unwrap_or_default();
        line["seconds"] = began.elapsed().as_secs_f64().into();
        // Whoever does not read sees the exit code.
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    let checks = match words.as_slice() {
        [] | ["--first"] => calibrate_while(None, Some(NonZeroUsize::MIN), &|check| {
            print(check);
            check.passed || words.is_empty()
        }),
        ["--scenario", name] => match load(name) {
            Ok(scenario) => {
                let checks = lab::selftest::run(&scenario, &[], &[]);
                checks.iter().for_each(print);
                checks
            }
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::from(2);
            }
        },
        _ => {
            eprintln!("error: selftest [--first | --scenario NAME]");
            return ExitCode::from(2);
        }
    };
    if checks.iter().all(|check| check.passed) { ExitCode::SUCCESS } else { ExitCode::from(3) }
}
