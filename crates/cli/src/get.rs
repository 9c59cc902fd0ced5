//! `tiderace get`: one URL, over QUIC or TCP, and what was learned about the network.

use std::{io::Write, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use client::{Client, FetchError, Leg, Trust};
use serde_json::json;

use crate::{
    failure::{Failure, UNSOUND},
    stdout::{write_json_line, write_out},
};

/// Ask for a URL over QUIC, raced against TCP, and say what the race shows about the network.
///
/// QUIC gets a head start of 200 ms. What is there first is used; the verdict goes to the standard error: QUIC works, or UDP is
/// blocked, or the path is bad, or the server refuses, each with its evidence.
///
/// Exit code 0: there was an answer below 400. 1: another answer, or none. 2: the request is wrong.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// What to ask for: https://…
    url: String,
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Try one way only
    #[arg(long, value_name = "WAY")]
    only: Option<Way>,
    /// Speak QUIC to this address in place of the URL's, such as a relay
    #[arg(long, value_name = "ADDRESS:PORT")]
    udp: Option<SocketAddr>,
    /// Wait for the verdict for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    verdict_within: u64,
    /// Print one JSON line about the exchange in place of the content
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    Quic,
    Tcp,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format_args!("cannot start: {error}")))?;
    runtime.block_on(get(args))
}

async fn get(args: &Args) -> Result<ExitCode, Failure> {
    let trust = match &args.ca {
        None => Trust::Platform,
        Some(path) => Trust::Pem(
            std::fs::read(path)
                .map_err(|error| Failure::new(format_args!("cannot read {}: {error}", path.display())))?,
        ),
    };
    let client = Client::new(&trust).map_err(|error| Failure::new(error).hint("--ca takes a PEM file"))?;
    let only = args.only.map(|way| match way {
        Way::Quic => Leg::Quic,
        Way::Tcp => Leg::Tcp,
    });
    let ended = exchange(args, &client, only).await;
    // However it ended: a server that hears nothing keeps the connection until its idle timeout.
    client.close().await;
    ended
}

async fn exchange(args: &Args, client: &Client, only: Option<Leg>) -> Result<ExitCode, Failure> {
    let fetched = match client.get(&args.url, only, args.udp).await {
        Ok(fetched) => fetched,
        Err(error @ (FetchError::Url(_) | FetchError::Resolve { .. })) => {
            return Err(Failure::new(error).hint("write it like https://localhost:8443/"));
        }
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(UNSOUND));
        }
    };
    let status = fetched.response.status();
    let mut body = fetched.response.into_body();
    let mut length = 0;
    while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
        let frame = frame.map_err(|error| Failure::new(format_args!("the answer broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if !args.json {
            let mut stdout = std::io::stdout().lock();
            // A reader that has gone away (`| head`) wants no more.
            if stdout.write_all(&data).is_err() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    write_out("")?;
    let verdict = tokio::time::timeout(Duration::from_secs(args.verdict_within), fetched.verdict).await;
    let verdict = verdict.ok().and_then(Result::ok).flatten();
    let first_byte_ms = fetched.first_byte.as_secs_f64() * 1e3;
    let said = verdict.map_or_else(|| "there is no verdict".to_owned(), |verdict| verdict.to_string());
    if args.json {
        write_json_line(&json!({
            "status": status.as_u16(), "protocol": fetched.protocol, "bytes": length,
            "first_byte_ms": first_byte_ms, "verdict": said,
        }))?;
    } else {
        eprintln!("{status} over {}, first byte after {first_byte_ms:.1} ms, {length} bytes; {said}", fetched.protocol);
    }
    Ok(if status.as_u16() < 400 { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}
