//! `tiderace get`: URLs, over QUIC or TCP, and what was learned about the network.

use std::{io::Write, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args as Group, Parser, ValueEnum};
use client::{Client, FetchError, Leg, Pace, Patience, Route, Settings, Trust};
use serde_json::json;
use tiderace::EarlyData;

use crate::{
    failure::{Failure, UNSOUND},
    printable::printable,
    stdout::{write_json_line, write_out},
};

/// Ask for URLs over QUIC, raced against TCP, and say what the race shows about the network.
///
/// QUIC gets a head start of 200 ms. What is there first is used; the verdict goes to the standard error: QUIC works, or UDP is
/// blocked, or the path is bad, or the server refuses, each with its evidence. Where the site's HTTPS record says that there
/// is no HTTP/3, or where else it is, the race obeys.
///
/// Several URLs are asked for one after the other, over the connections that are open. A session is resumed where there is a
/// ticket, and the request leaves with the first packets (0-RTT); a server that finds this too early (425) is asked again after the
/// handshake.
///
/// The content goes to the standard output and nowhere else: redirects are not followed, no name that a server says becomes a file, and
/// what it says in errors is escaped. Servers that are too slow are given up.
///
/// Exit code 0: there were answers below 400. 1: another answer, none, or one that broke off. 2: the request is wrong.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// What to ask for: https://…
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    #[command(flatten)]
    means: Means,
    /// Try one way only
    #[arg(long, value_name = "WAY")]
    only: Option<Way>,
    /// Speak QUIC to this address in place of the URL's, such as a relay
    #[arg(long, value_name = "ADDRESS:PORT")]
    udp: Option<SocketAddr>,
    /// Open a connection for each URL, and close it after
    #[arg(long)]
    fresh: bool,
    /// Wait for the verdict for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    verdict_within: u64,
    /// Print one JSON line about each exchange in place of the content
    #[arg(long)]
    json: bool,
    /// Say on the standard error how each answer was come by
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
}

/// What `get` and `proxy` have in common.
#[derive(Debug, Group)]
pub(crate) struct Means {
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Ask this name server for A, AAAA and HTTPS records in place of the system's
    #[arg(long, value_name = "ADDRESS:PORT")]
    dns: Option<SocketAddr>,
    /// Keep tickets in this file, so that the next run resumes (a build with `--features boringssl`)
    #[arg(long, value_name = "FILE")]
    tickets: Option<PathBuf>,
    /// Send no request before the handshake is complete
    #[arg(long)]
    no_early_data: bool,
    /// Wait for a connection for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    connect_within: u64,
    /// Wait for the fields of an answer for at most this many seconds after the request
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    answer_within: u64,
    /// Give an answer up whose content comes slower than this many bytes a minute; 0 for none
    ///
    /// The default is 1024 for `get`, and for `proxy` a byte in five minutes.
    #[arg(long, value_name = "BYTES")]
    slowest: Option<u64>,
}

/// The least content of an answer that a person waits for.
pub(crate) const PACE: Pace = Pace { bytes: 1_024, within: Duration::from_secs(60) };

impl Means {
    /// A client that has them. Within a runtime. With `keep_alive`, connections are kept from being forgotten on the way, at first
    /// after so much silence. `pace` is the least that content has to keep where nothing is asked for.
    pub(crate) fn client(&self, keep_alive: Option<Duration>, pace: Pace) -> Result<Client, Failure> {
        let trust = match &self.ca {
            None => Trust::Platform,
            Some(path) => Trust::Pem(
                std::fs::read(path)
                    .map_err(|error| Failure::new(format_args!("cannot read {}: {error}", path.display())))?,
            ),
        };
        let pace = self.slowest.map_or(pace, |bytes| Pace { bytes, within: Duration::from_secs(60) });
        let patience = Patience {
            connect: Duration::from_secs(self.connect_within),
            response: Duration::from_secs(self.answer_within),
            content: pace,
        };
        let settings = Settings {
            trust,
            dns: self.dns,
            early_data: !self.no_early_data,
            tickets: self.tickets.clone(),
            keep_alive,
            patience,
            ..Settings::default()
        };
        Client::with(&settings).map_err(|error| {
            let hint = match error {
                FetchError::Tickets(_) if !cfg!(feature = "boringssl") => {
                    "build with `--features boringssl` (docs/tls.md), or give all URLs to one run: it keeps tickets in memory"
                }
                FetchError::Tickets(_) => "--tickets takes a file that this program has written, or none yet",
                _ => "--ca takes a PEM file",
            };
            Failure::new(error).hint(hint)
        })
    }
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
    let client = args.means.client(None, PACE)?;
    let only = args.only.map(|way| match way {
        Way::Quic => Leg::Quic,
        Way::Tcp => Leg::Tcp,
    });
    let route = Route { only, udp: args.udp, fresh: args.fresh };
    let mut ended = Ok(ExitCode::SUCCESS);
    for url in &args.urls {
        match exchange(args, &client, url, &route).await {
            Ok(Went::Well) => {}
            Ok(Went::Wrong) => ended = Ok(ExitCode::from(UNSOUND)),
            Ok(Went::Unread) => break,
            Err(failure) => {
                ended = Err(failure);
                break;
            }
        }
    }
    // However it ended: a server that hears nothing keeps the connection until its idle timeout.
    client.close().await;
    ended
}

/// What became of an exchange.
enum Went {
    Well,
    /// The answer is no good one, or there is none.
    Wrong,
    /// Nobody reads any more.
    Unread,
}

/// Says what went wrong, in words that may be a server's.
fn complain(error: &dyn std::fmt::Display) {
    eprintln!("error: {}", printable(&error.to_string()));
}

fn word(early: EarlyData) -> &'static str {
    match early {
        EarlyData::None => "none",
        EarlyData::Offered => "offered",
        EarlyData::Accepted => "accepted",
        EarlyData::Rejected => "rejected",
    }
}

async fn exchange(args: &Args, client: &Client, url: &str, route: &Route) -> Result<Went, Failure> {
    let fetched = match client.get_by(url, route).await {
        Ok(fetched) => fetched,
        Err(error @ (FetchError::Url(_) | FetchError::Resolve { .. })) => {
            return Err(Failure::new(error).hint("write it like https://localhost:8443/"));
        }
        Err(error) => {
            complain(&error);
            return Ok(Went::Wrong);
        }
    };
    let status = fetched.response.status();
    let mut body = fetched.response.into_body();
    let mut length = 0;
    while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                let _ = write_out("");
                complain(&format_args!("the answer broke off after {length} bytes: {error}"));
                return Ok(Went::Wrong);
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if !args.json {
            let mut stdout = std::io::stdout().lock();
            // A reader that has gone away (`| head`) wants no more.
            if stdout.write_all(&data).is_err() {
                return Ok(Went::Unread);
            }
        }
    }
    write_out("")?;
    let verdict = tokio::time::timeout(Duration::from_secs(args.verdict_within), fetched.verdict).await;
    let verdict = verdict.ok().and_then(Result::ok).flatten();
    let first_byte_ms = fetched.first_byte.as_secs_f64() * 1e3;
    let handshake_ms = fetched.handshake.map(|took| took.as_secs_f64() * 1e3);
    let said = match (verdict, fetched.reused) {
        (Some(verdict), _) => verdict.to_string(),
        (None, true) => "the connection was open".to_owned(),
        (None, false) => "there is no verdict".to_owned(),
    };
    if args.json {
        let offer = fetched.offer.as_ref().map(
            |offer| json!({"priority": offer.priority, "target": offer.target, "port": offer.port, "alpn": offer.alpn}),
        );
        write_json_line(&json!({
            "url": url, "status": status.as_u16(), "protocol": fetched.protocol, "bytes": length,
            "first_byte_ms": first_byte_ms, "handshake_ms": handshake_ms, "verdict": said, "early_data": word(fetched.early_data),
            "too_early": fetched.too_early, "reused": fetched.reused, "https_record": offer,
        }))?;
    } else {
        eprintln!("{status} over {}, first byte after {first_byte_ms:.1} ms, {length} bytes; {said}", fetched.protocol);
    }
    if args.verbose {
        if let Some(offer) = &fetched.offer {
            eprintln!("HTTPS record: priority {}, {}", offer.priority, printable(&offer.alpn.join(" ")));
        }
        let twice = if fetched.too_early { "; too early (425), asked again after the handshake" } else { "" };
        eprintln!("early data: {}{twice}", word(fetched.early_data));
    }
    Ok(if status.as_u16() < 400 { Went::Well } else { Went::Wrong })
}
