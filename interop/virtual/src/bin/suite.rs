//! `cargo run --release -p virtual --bin suite -- [--peer NAME,...] [--details]`: the example cases of draft-ietf-ccwg-bbr with the congestion
//! controllers of other stacks.

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use virtual_interop::contender::{Peers, names};

/// Play the example test cases of draft-ietf-ccwg-bbr with the controllers of other stacks, in virtual time.
///
/// A clause that asks for something that a stack does not show is printed as unsupported. noq shows its BBRv3; quinn shows nothing of its
/// BBR, nor do stacks of their CUBIC. A state that a stack passes through within one acknowledgement is not seen; it counts as passed where the
/// draft has no other way.
///
/// Exit code 0: all cases were played, whatever they say: the controllers are not ours. 2: one could not be played.
#[derive(Parser)]
struct Arguments {
    /// Stacks and controllers, separated by commas
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "noq-bbr3")]
    peer: Vec<String>,
    /// Print under each clause what was seen, also where it passed
    #[arg(long)]
    details: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    for name in &arguments.peer {
        let Some(peers) = Peers::named(name)? else {
            bail!("there is no `{name}`\nhint: there are {}", names().join(", "));
        };
        let contender = lab::stack::SansIo(peers);
        let results = lab::suite::run(&contender).map_err(|error| anyhow!("{name}: {error}"))?;
        print!("{}", lab::suite::text(name, &results, arguments.details));
    }
    Ok(())
}
