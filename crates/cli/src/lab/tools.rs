//! `tiderace lab schema`, `series`, `fit` and `tc`: tools for scenario and qlog files.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Parser;
use lab::{
    report::TimeSeries,
    scenario::{load, schema},
};
use netem::{Loss, LossTrace, fit, tc};

use super::Settings;
use crate::{failure::Failure, stdout::write_out};

/// Fit a Gilbert-Elliott chain to the losses of a real path.
///
/// The file has 0 for each packet that arrived and 1 for each lost one, in the order of sending. White space, commas and lines that
/// start with # are ignored. The output can be pasted into a scenario file.
#[derive(Debug, Parser)]
pub(super) struct FitArgs {
    /// File with the trace
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Print the fit as JSON
    #[arg(long)]
    json: bool,
}

/// Draw time series of one end of a connection from its qlog file.
///
/// The page shows window and bytes in flight, rates, RTT, delay and spacing of acknowledgements, and the states of the congestion
/// controller. `tiderace lab run … --qlog DIR` and `tiderace lab replay … --qlog DIR` write such files; files of other stacks are
/// accepted if they are JSON text sequences. qvis opens the same files.
#[derive(Debug, Parser)]
pub(super) struct SeriesArgs {
    /// qlog file (.sqlog)
    #[arg(value_name = "FILE")]
    qlog: PathBuf,
    /// Write the page to this file
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
}

pub(super) fn draw_series(args: &SeriesArgs) -> Result<ExitCode, Failure> {
    let path = args.qlog.display();
    let file = fs::File::open(&args.qlog).map_err(|error| Failure::new(format_args!("cannot read {path}: {error}")))?;
    let series = TimeSeries::read(std::io::BufReader::new(file)).map_err(|error| {
        Failure::new(format_args!("{path}: {error}")).hint("`tiderace lab run NAME --qlog DIR` writes such files")
    })?;
    fs::write(&args.html, series.html())
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", args.html.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// Print a scenario's path as tc and nft commands.
///
/// The commands need Linux with netem, and root. Comments name the differences between netem and the model.
#[derive(Debug, Parser)]
pub(super) struct TcArgs {
    /// Preset (see `tiderace lab list`) or scenario file
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Device that sends towards the clients, in front of the bottleneck
    #[arg(long, value_name = "DEVICE", default_value = "down0")]
    down: String,
    /// Device that sends towards the servers, in front of the bottleneck
    #[arg(long, value_name = "DEVICE", default_value = "up0")]
    up: String,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn print_schema() -> Result<ExitCode, Failure> {
    write_out(schema())?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn fit_trace(args: &FitArgs) -> Result<ExitCode, Failure> {
    let path = args.trace.display();
    let text =
        fs::read_to_string(&args.trace).map_err(|error| Failure::new(format_args!("cannot read {path}: {error}")))?;
    let trace = LossTrace::parse(&path.to_string(), &text).map_err(|error| {
        Failure::new(format_args!("{path}: {error}")).hint("0 for a packet that arrived, 1 for one that was lost")
    })?;
    let fitted = fit::fit(&trace.lost).map_err(|error| Failure::new(format_args!("{path}: {error}")))?;
    if args.json {
        let json = serde_json::to_string_pretty(&fitted).map_err(|error| Failure::new(format_args!("{error}")))?;
        write_out(&(json + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let chain = fitted.proposed();
    let Loss::GilbertElliott { p, r, loss_good, loss_bad } = fitted.loss() else {
        return Err(Failure::new("the fit is no chain"));
    };
    let geometric = match fitted.geometric {
        Some(probability) if probability < 0.01 => {
            format!(
                "Burst lengths are NOT geometric (probability {probability:.2e}): use the trace itself, `loss = {{ trace = {{ file = … }} }}`."
            )
        }
        Some(probability) => format!("Burst lengths look geometric (probability {probability:.2})."),
        None => "Too few bursts to say whether their lengths are geometric.".to_owned(),
    };
    let which = if chain == fitted.simple {
        "simple chain: all is lost in the bad state, nothing in the good one"
    } else {
        "chain with losses in both states"
    };
    write_out(&format!(
        "{} packets, {} lost in {} bursts, the longest {}\nmean loss     {:.4} % ± {:.4}\nburst length  {:.2} ± {:.2}\n{geometric}\n\n# {which}\nloss = {{ gilbert-elliott = {{ p = {:.6}, r = {:.6}, loss-good = {:.6}, loss-bad = {:.6} }} }}\n",
        fitted.packets,
        fitted.lost,
        fitted.bursts,
        fitted.longest,
        fitted.mean * 100.0,
        fitted.mean_error * 100.0,
        fitted.length,
        fitted.length_error,
        p.get(),
        r.get(),
        loss_good.get(),
        loss_bad.get()
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn print_tc(args: &TcArgs) -> Result<ExitCode, Failure> {
    let scenario = args.settings.overrides(None, None).apply(load(&args.scenario)?)?;
    let mut output = String::new();
    let directions =
        [("servers to clients", &scenario.path.down, &args.down), ("clients to servers", scenario.path.up(), &args.up)];
    for (name, link, device) in directions {
        let wire = format!("{device}-wire");
        let made = tc::commands(link, device, &wire);
        output += &format!(
            "# {name}: {device} in front of the bottleneck, {wire} behind it (an ifb, or the receiver's device)\n"
        );
        for command in made.commands {
            output += &command;
            output.push('\n');
        }
        for note in made.notes {
            output += &format!("# differs: {note}\n");
        }
    }
    if scenario.path.nat.is_some() {
        output += "# differs: address translation is not part of tc; use nft masquerade with its timeouts\n";
    }
    write_out(&output)?;
    Ok(ExitCode::SUCCESS)
}
