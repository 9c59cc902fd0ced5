//! `perf client`: opens connections, transfers, and says what it found.
//!
//! In order: the first connection, without which there is no run; handshakes alone, if asked for; the other connections
//! of the transfer; the transfer on all of them at once; what the server knows of it; the report.

use std::{process::ExitCode, sync::Arc, time::Duration};

use tiderace::{ClientConfig, Endpoint};

use super::{
    interval::Form,
    missing_qlog,
    options::Args,
    outcome::Tally,
    quic::Run,
    reach::Peer,
    report::{Connections, Report, share, summary},
    stop::Stop,
    trust,
};
use crate::{
    address,
    failure::{Failure, UNSOUND},
    printable::printable,
    stdout::{write_json_line, write_out},
};

/// Runs the client.
pub(super) async fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut profile = args.end.profile()?;
    args.check()?;
    profile.handshake_timeout = args.timeout;
    let congestion = profile.congestion.name();
    let target = address::resolve(&args.server)?;
    let tls = trust::client(&args.trust)?;
    let qlog = args.end.qlog()?;
    let mut config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
    config.observe = qlog.clone().map(|directory| directory as _);
    let peer = Peer { address: target.address, name: args.server_name.clone().unwrap_or(target.host), config };
    let endpoint = Endpoint::client_for(peer.address)
        .map_err(|error| Failure::new(format_args!("cannot open a socket: {}", address::plain(&error))))?;

    let mut run = Run { args: &args, peer, endpoint, tally: Tally::default(), stop: Stop::default() };
    let outcome = run.all().await?;
    let Run { endpoint, tally, peer, .. } = run;
    endpoint.close(0, b"done");
    // The goodbye is sent at once; the rest of the wait is for packets that come late.
    let _ = tokio::time::timeout(Duration::from_millis(100), endpoint.wait_idle()).await;
    missing_qlog(qlog.as_deref());

    let success_share = share(tally.completed.into(), tally.attempted.into()).unwrap_or_default();
    let sound = tally.errors.is_empty() && !outcome.is_partial;
    let report = Report {
        tiderace_version: env!("CARGO_PKG_VERSION"),
        partial: outcome.is_partial,
        server: peer.address.to_string(),
        client_congestion_control: congestion,
        client_udp_payload_bytes: args.end.mtu,
        connections: Connections {
            attempted: tally.attempted,
            established: tally.established,
            completed: tally.completed,
            success_share,
        },
        streams_per_connection: args.streams,
        handshake: summary(&tally.handshakes),
        download: outcome.download.map(Into::into),
        upload: outcome.upload.map(Into::into),
        sender: outcome.sender,
        fec: outcome.fec,
        cpu: outcome.cpu,
        intervals: outcome.intervals,
        errors: tally.errors,
    };
    match args.form() {
        Form::Json => write_json_line(&report.json())?,
        Form::Text => write_out(&report.text())?,
        Form::Csv => {
            write_out(&report.csv())?;
            for (message, count) in &report.errors {
                eprintln!("error: {count} × {}", printable(message));
            }
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}
