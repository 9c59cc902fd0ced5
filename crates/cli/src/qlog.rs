//! `tiderace qlog`: analyses qlog files.

use std::{
    fs,
    io::BufReader,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use lab::diagnosis::Diagnosis;
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    stdout::{write_json_line, write_out},
};

/// Analyse qlog files.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print milestones, timeline, losses, stalls, and limits of the sender
    Show(Show),
}

/// A bundle is a folder that `tiderace edge capture` wrote. Any folder of qlog files, or a single file, is also accepted. Only files
/// that tiderace wrote record the limits of the sender: application, flow control, congestion window, pacing, amplification.
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tiderace edge capture --config edge.toml --client 192.0.2.7
  tiderace qlog show captures/capture-1700000000000")]
struct Show {
    /// Bundle, or a qlog file (.sqlog)
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        Command::Show(show) => print(&show),
    }
}

fn print(args: &Show) -> Result<ExitCode, Failure> {
    let bundle = &args.bundle;
    let files = files(bundle)?;
    // What the gateway has said about the capture, if it is one.
    let about: Option<Value> =
        fs::read(bundle.join("capture.json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if files.is_empty() && about.is_none() {
        let failure = Failure::new(format_args!("{}: there is no qlog file (.sqlog) in it", bundle.display()));
        return Err(failure.hint("`tiderace edge capture` and `tiderace lab run … --qlog DIR` write some"));
    }
    let mut connections = Vec::new();
    for file in &files {
        let cannot = |error: std::io::Error| Failure::new(format_args!("{}: {error}", file.display()));
        let diagnosis = Diagnosis::read(BufReader::new(fs::File::open(file).map_err(cannot)?)).map_err(cannot)?;
        connections.push((file, diagnosis));
    }
    if args.json {
        let each = connections.iter().map(|(file, diagnosis)| {
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
            json!({"file": name, "diagnosis": diagnosis})
        });
        return write_json_line(&json!({"capture": about, "connections": each.collect::<Vec<_>>()}))
            .map(|()| ExitCode::SUCCESS);
    }
    let mut text = about.as_ref().map(preface).unwrap_or_default();
    for (_, diagnosis) in &connections {
        text.push_str(&diagnosis.text());
        text.push('\n');
    }
    write_out(&text).map(|()| ExitCode::SUCCESS)
}

/// The qlog files, in the order of their names.
fn files(bundle: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !bundle.is_dir() {
        return Ok(vec![bundle.to_owned()]);
    }
    let entries = fs::read_dir(bundle)
        .map_err(|error| Failure::new(format_args!("cannot read {}: {error}", bundle.display())))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|kind| kind == "sqlog")).collect();
    files.sort();
    Ok(files)
}

/// One or two lines about the capture, first about what is missing in it.
fn preface(about: &Value) -> String {
    let count = |name: &str| about[name].as_u64().unwrap_or(0);
    let connections = about["connections"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut text = format!(
        "capture of {}: {} connections, {} packets, {} keys\n",
        about["of"],
        connections.len(),
        count("packets"),
        count("keys")
    );
    let late = connections.iter().filter(|connection| connection["from_its_start"] == false).count();
    if late > 0 {
        text += &format!(
            "{late} connections ran before: their beginning is missing, and packets.pcapng has no keys for them\n"
        );
    }
    if count("connections_left_out") > 0 || count("items_left_out") > 0 {
        text += &format!(
            "left out: {} connections beyond the limit, {} pieces for which the disk was too slow: what follows may have gaps\n",
            count("connections_left_out"),
            count("items_left_out")
        );
    }
    if about["ended_by"] == "size" {
        text += "the room for the capture was used up before its end\n";
    }
    text + "\n"
}
