//! `perf client`: opens connections, transfers, and reports.
//!
//! In this order: the first connection, without which there is no run; connections for one request each, if requested; the other
//! connections of the transfer; the transfer on all of them at once; the server's statistics; the report.

use std::{net::SocketAddr, process::ExitCode};

use super::{
    beside,
    interval::Form,
    options::Args,
    outcome::{Outcome, Tally},
    prometheus, quic,
    report::{Connections, Report, share, summary},
    tcp,
};
use crate::{
    failure::{Failure, UNSOUND},
    printable::printable,
    stdout::{write_json_line, write_out},
};

/// Result of a run over one transport.
pub(super) struct Ran {
    /// `quic` or `tcp`.
    pub(super) transport: &'static str,
    pub(super) server: SocketAddr,
    /// Congestion control of what the client sends.
    pub(super) congestion: String,
    pub(super) tally: Tally,
    pub(super) outcome: Outcome,
}

/// Runs the client.
pub(super) async fn run(args: Args) -> Result<ExitCode, Failure> {
    args.check()?;
    args.trust.warn();
    if args.beside_tcp {
        return beside::run(&args).await;
    }
    let ran = if args.tcp { tcp::run(&args, None).await? } else { quic::run(&args, None).await? };
    let report = report(&args, ran);
    match args.form() {
        Form::Json => write_json_line(&report.json())?,
        Form::Text => write_out(&report.text())?,
        Form::Prometheus => write_out(&prometheus::text(&report))?,
        Form::Csv => {
            write_out(&report.csv())?;
            for (message, count) in &report.errors {
                eprintln!("error: {count} × {}", printable(message));
            }
        }
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// Report of a run.
pub(super) fn report(args: &Args, ran: Ran) -> Report {
    let Ran { transport, server, congestion, tally, outcome } = ran;
    let success_share = share(tally.completed.into(), tally.attempted.into()).unwrap_or_default();
    Report {
        tiderace_version: env!("CARGO_PKG_VERSION"),
        partial: outcome.is_partial,
        transport,
        server: server.to_string(),
        client_congestion_control: congestion,
        client_udp_payload_bytes: (transport == "quic").then_some(args.end.mtu),
        connections: Connections {
            attempted: tally.attempted,
            established: tally.established,
            completed: tally.completed,
            success_share,
        },
        streams_per_connection: args.streams,
        handshake: summary(&tally.handshakes),
        handshakes: outcome.requests,
        download: outcome.download.map(Into::into),
        upload: outcome.upload.map(Into::into),
        sender: outcome.sender,
        fec: outcome.fec,
        datagrams: outcome.datagrams,
        tcp: outcome.tcp,
        cpu: outcome.cpu,
        server_cpu: outcome.server_cpu,
        intervals: outcome.intervals,
        soak: outcome.soak,
        errors: tally.errors,
    }
}
