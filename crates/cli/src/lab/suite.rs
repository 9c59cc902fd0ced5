//! `tiderace lab suite`: test cases of a standard, run with our congestion controllers.

use std::process::ExitCode;

use clap::Parser;
use lab::{
    contender::Contender,
    scenario::nearest,
    suite::{self, CaseResult, Verdict},
};

use crate::{
    failure::{Failure, UNSOUND, UNSUPPORTED},
    stdout::write_out,
};

/// Run a suite of test cases with our congestion controllers, and print the verdict on each clause.
///
/// `bbr`: the example test cases of draft-ietf-ccwg-bbr. A clause about something that a controller does not have or report is printed as
/// unsupported, and does not count as passed.
///
/// Exit code 0: every case passed with every controller. 1: a clause failed. 77: no clause failed, and some were unsupported.
#[derive(Debug, Parser)]
pub(super) struct SuiteArgs {
    /// Suite to run
    #[arg(value_name = "SUITE", value_parser = ["bbr"])]
    suite: String,
    /// Congestion controllers, separated by commas
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "bbr3")]
    cc: Vec<String>,
    /// Print the observation under each clause, also under passed ones
    #[arg(long)]
    details: bool,
}

/// Runs the subcommand.
pub(super) fn suite(args: &SuiteArgs) -> Result<ExitCode, Failure> {
    let contender = |name: &String| suite::contender(name).ok_or_else(|| unknown_controller(name));
    let contenders: Vec<Box<dyn Contender>> = args.cc.iter().map(contender).collect::<Result<_, _>>()?;
    let (mut passed, mut failed) = (true, false);
    for contender in contenders {
        let results = suite::run(contender.as_ref()).map_err(Failure::new)?;
        passed &= results.iter().all(CaseResult::passed);
        let clauses = || results.iter().flat_map(|result| &result.clauses);
        failed |= clauses().any(|(_, verdict)| matches!(verdict, Verdict::Fail(_)));
        write_out(&suite::text(&contender.identity().name, &results, args.details))?;
    }
    Ok(match (passed, failed) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(UNSOUND),
        (false, false) => ExitCode::from(UNSUPPORTED),
    })
}

fn unknown_controller(name: &str) -> Failure {
    let known = lab::tiderace::controllers();
    let there_are = format!("there are {}", known.join(", "));
    let failure = Failure::new(format_args!("there is no congestion controller `{name}`"));
    match nearest(name, known.iter().copied()) {
        Some(meant) => failure.hint(format_args!("did you mean `{meant}`? {there_are}")),
        None => failure.hint(there_are),
    }
}
