//! `tiderace masque`: UDP and TCP of this machine through a proxy, over HTTP/3.

mod tcp;
mod udp;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::{Args as Group, Parser, Subcommand};
use client::{
    Settings, Timeouts, Trust,
    masque::{ProxyClient, ProxyError},
};
use serde_json::{Value, json};

use crate::{
    address,
    failure::{Failure, UNSOUND},
    interrupt::Interrupt,
    printable::printable,
    runtime,
    stdout::write_json_line,
};

/// Carry UDP or TCP through a MASQUE proxy.
///
/// A port of this machine leads to a target beyond the proxy: datagrams by CONNECT-UDP (RFC 9298), connections by CONNECT, both over one
/// QUIC connection to the proxy. `tiderace edge` is such a proxy.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lead a UDP port of this machine to a target beyond the proxy.
    ///
    /// Each program that sends to the port gets a tunnel of its own, which ends when it was silent for `--idle`. A payload that fits
    /// into no QUIC datagram is dropped, as on a path with a smaller MTU, unless it has 1,200 bytes or less, which QUIC needs.
    ///
    /// One tunnel is opened at once, so that a proxy that refuses is noticed at the start. Ctrl-C ends the command.
    ///
    /// Exit code 0: the command was ended. 1: the proxy cannot be reached, or refuses. 2: the request is wrong.
    #[command(after_help = "Examples:
  tiderace masque udp --proxy proxy.example.org --listen 127.0.0.1:5353 dns.example.org:53
  tiderace masque udp --proxy 'https://proxy.example.org/masque{?target_host,target_port}' --token-file token \\
    --listen 127.0.0.1:4433 www.example.org:443")]
    Udp(UdpArgs),
    /// Lead a TCP port of this machine to a target beyond the proxy.
    ///
    /// Each connection to the port is a CONNECT. Ctrl-C ends the command.
    ///
    /// Exit code 0: the command was ended. 1: the proxy cannot be reached. 2: the request is wrong.
    #[command(after_help = "Example:
  tiderace masque tcp --proxy proxy.example.org --token-file token --listen 127.0.0.1:8080 www.example.org:80")]
    Tcp(CommonArgs),
}

#[derive(Debug, Group)]
struct UdpArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// End the tunnel of a program that was silent for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    idle: u64,
    /// Serve at most this many programs at a time; others are ignored, and counted
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_peers: usize,
}

#[derive(Debug, Group)]
struct CommonArgs {
    /// The target, as the proxy finds it
    #[arg(value_name = "HOST:PORT")]
    target: String,
    /// The proxy: its host, with a port or without, or its URI template
    #[arg(long, value_name = "HOST[:PORT]|TEMPLATE")]
    proxy: String,
    /// Listen on this address; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Show the proxy the bearer token in this file
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE", visible_alias = "cacert")]
    ca: Option<PathBuf>,
    /// Take any certificate. An attacker on the path can pose as the proxy
    #[arg(short = 'k', long, conflicts_with = "ca")]
    insecure: bool,
    /// Wait for a connection, and for an answer of the proxy, for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    connect_within: u64,
    /// Print JSON lines: one when the port is open, one for each tunnel that has ended, one in the end
    #[arg(long)]
    json: bool,
}

/// Time of silence after which the connection to the proxy is kept from being forgotten on the tunnels.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A proxy, and the target beyond it.
struct Tunnels {
    proxy: ProxyClient,
    host: String,
    port: u16,
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = runtime::start()?;
    runtime.block_on(async {
        let common = match &args.command {
            Command::Udp(udp) => &udp.common,
            Command::Tcp(common) => common,
        };
        let tunnels = Arc::new(common.tunnels()?);
        let interrupt = Interrupt::listen()?;
        let ended = match &args.command {
            Command::Udp(args) => udp::run(args, &tunnels, interrupt).await,
            Command::Tcp(args) => tcp::run(args, &tunnels, interrupt).await,
        };
        tunnels.proxy.close().await;
        ended
    })
}

impl CommonArgs {
    /// The way to the target. Nothing is sent yet.
    fn tunnels(&self) -> Result<Tunnels, Failure> {
        let (host, port) = address::split(&self.target)?;
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| {
                Failure::new(format_args!("cannot read {}: {}", path.display(), address::plain(&error)))
            })
        };
        let trust = match &self.ca {
            None if self.insecure => Trust::Anyone,
            None => Trust::Platform,
            Some(path) => Trust::Pem(read(path).map_err(|failure| failure.hint("--ca takes a PEM file"))?),
        };
        if self.insecure {
            eprintln!(
                "WARNING: --insecure: the proxy's certificate is not checked. Anybody on the path can pose as the proxy."
            );
        }
        let token = match &self.token_file {
            None => None,
            Some(path) => {
                let hint = "--token-file takes a file with a token and nothing else";
                let text = String::from_utf8(read(path).map_err(|failure| failure.hint(hint))?);
                let text = text.map_err(|_| Failure::new(format_args!("{} is no text", path.display())).hint(hint))?;
                let token = text.trim();
                if token.is_empty() || token.contains(char::is_whitespace) {
                    return Err(Failure::new(format_args!("{} has no token", path.display())).hint(hint));
                }
                Some(token.to_owned())
            }
        };
        let limit = Duration::from_secs(self.connect_within);
        let timeouts = Timeouts { connect: limit, response: limit, ..Timeouts::default() };
        let keep_alive = Some(KEEP_ALIVE);
        let settings = Settings { trust, timeouts, keep_alive, key_log: true, ..Settings::default() };
        let proxy = ProxyClient::new(&settings, &self.proxy, token.as_deref());
        let proxy = proxy.map_err(|error| Failure::new(&error).hint(error.hint()))?;
        Ok(Tunnels { proxy, host, port, json: self.json })
    }

    /// Reports that the port is open.
    fn announce(&self, address: SocketAddr) -> Result<(), Failure> {
        if self.json {
            let (target, proxy) = (&self.target, &self.proxy);
            return write_json_line(
                &json!({ "event": "listening", "address": address.to_string(), "target": target, "proxy": proxy }),
            );
        }
        eprintln!("{address} leads to {} through {}, Ctrl-C ends", printable(&self.target), printable(&self.proxy));
        Ok(())
    }
}

impl Tunnels {
    /// Reports the outcome of a tunnel.
    fn report(&self, event: &Value, text: &str) {
        if self.json {
            // Whoever does not read any more misses nothing but this.
            let _ = write_json_line(event);
        } else {
            eprintln!("{}", printable(text));
        }
    }
}

/// Reports why there is no tunnel, with a hint.
fn refused(error: &ProxyError) -> ExitCode {
    eprintln!("error: {}", printable(&error.to_string()));
    eprintln!("hint: {}", error.hint());
    ExitCode::from(UNSOUND)
}
