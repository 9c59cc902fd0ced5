//! `tiderace proxy`: a local HTTP proxy for programs that cannot be changed.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use client::proxy::{self, Proxy, Secure, Served};
use serde_json::json;

use crate::{
    address::cannot_listen,
    failure::Failure,
    get::{ClientOptions, SharedArgs},
    interrupt::Interrupt,
    printable::printable,
    runtime,
    stdout::{write_json_line, write_out},
};

/// First silence after which a connection is kept alive; measurements decide then.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Run an HTTP proxy for programs on this machine that races QUIC against TCP.
///
/// Requests with an absolute URI (`http_proxy=http://127.0.0.1:8080`) are raced. A request for http is sent as https if the host has an
/// HTTPS record, or as --https says; otherwise it goes over TCP without TLS. CONNECT, which programs use for https, is a tunnel over
/// TCP: the program does TLS with the origin.
///
/// The proxy has no access control, so it listens on loopback addresses only. Upgrades such as WebSocket need a tunnel.
///
/// Exit code 0: ended by a signal. 2: an option is wrong, or the proxy cannot listen.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Listen on this address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Send requests for http as https: if there is an HTTPS record, always, or never
    #[arg(long, value_name = "WHEN", default_value = "record")]
    https: When,
    #[command(flatten)]
    shared: SharedArgs,
    /// Print one line of JSON when the proxy listens, and one for each request
    #[arg(long)]
    json: bool,
    /// Print the outcome of each request to standard error
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    Record,
    Always,
    Never,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = runtime::start()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<ExitCode, Failure> {
    if !args.listen.ip().is_loopback() {
        return Err(Failure::new(format_args!("{} is no address of this machine alone", args.listen))
            .hint("listen at 127.0.0.1 or [::1]: whoever reaches the proxy may use it"));
    }
    let mut interrupt = Interrupt::listen()?;
    let (listener, address) =
        proxy::listen(args.listen).await.map_err(|error| cannot_listen(args.listen, &error.source))?;
    let secure = match args.https {
        When::Record => Secure::Record,
        When::Always => Secure::Always,
        When::Never => Secure::Never,
    };
    let (as_json, verbose) = (args.json, args.verbose);
    let tell = move |served: Served| {
        let Served { method, uri, status, protocol } = served;
        if as_json {
            // Whoever does not read is served all the same.
            let _ = write_json_line(&json!({
                "event": "request", "method": method.as_str(), "uri": uri.to_string(), "status": status.as_u16(),
                "protocol": protocol,
            }));
        } else if verbose {
            let line = format!("{method} {uri}: {status} over {}", protocol.unwrap_or("nothing"));
            eprintln!("{}", printable(&line));
        }
    };
    let options = ClientOptions { keep_alive: Some(KEEP_ALIVE), ..ClientOptions::default() };
    let served = Proxy::new(args.shared.client(options)?, secure, tell);
    if args.json {
        write_json_line(&json!({"event": "listening", "address": address.to_string()}))?;
    } else {
        write_out(&format!("serving http://{address}\n"))?;
    }
    served.serve(listener, interrupt.wait()).await;
    Ok(ExitCode::SUCCESS)
}
