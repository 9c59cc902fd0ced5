//! `tiderace get`: fetches URLs over QUIC or TCP, and reports the verdict on the network.

mod output;
pub(crate) mod request;
mod shared;
mod write_out;

use std::{io::Write, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use client::{Cause, Client, FetchError, Fetched, Leg, Route, TcpVersions};
use http::{HeaderMap, StatusCode, header};
use serde_json::json;
use tiderace::EarlyData;

pub(crate) use self::shared::{ClientOptions, PACE, SharedArgs};
use self::{
    output::{Sink, Stopped},
    request::{Asked, RequestArgs, Resolved},
    shared::CONNECTION,
    write_out::{Figures, Form, version},
};
use crate::{
    failure::{Failure, UNSOUND},
    printable::printable,
    runtime,
    stdout::{write_json_line, write_out as print},
    watch::{WatchArgs, Watched},
};

/// Heading of the options about the answer.
const ANSWER: &str = "Answer";
/// Hint for a host without an address.
pub(crate) const UNKNOWN_HOST: &str =
    "check its spelling and this machine's resolver; `--resolve HOST:PORT:ADDRESS` gives an address";

/// Fetch URLs over QUIC, raced against TCP, and report what the race shows about the network.
///
/// QUIC has a head start of 200 ms. The first connection to be ready is used. The verdict is printed to standard error with its
/// evidence: QUIC works, UDP is blocked, the path is bad, or the server refuses. The race follows the site's HTTPS record: whether there
/// is HTTP/3, and at which host and port.
///
/// Several URLs are requested one after the other, over the open connections. With a ticket the session is resumed, and the request is
/// sent with the first packets (0-RTT). If the server answers 425 (Too Early), the request is repeated after the handshake.
///
/// Content goes to standard output, or to the file of -o or -O. A name sent by a server never becomes a file name. -L follows redirects.
/// Control characters of servers are escaped in messages. Timeouts and --slowest end slow answers. SSLKEYLOGFILE=FILE writes the secrets
/// of the connections to FILE.
///
/// Exit code 0: all answers were below 400. 1: another status, no answer, or an incomplete one. 2: an option is wrong.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// URLs to request: https://…
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    shared: SharedArgs,
    /// Use one transport only
    #[arg(long, value_name = "WAY", help_heading = CONNECTION)]
    only: Option<Transport>,
    /// Use HTTP/1.1, over TCP
    #[arg(long = "http1.1", group = "version", conflicts_with = "only", help_heading = CONNECTION)]
    http11: bool,
    /// Use HTTP/2, over TCP
    #[arg(long, group = "version", conflicts_with = "only", help_heading = CONNECTION)]
    http2: bool,
    /// Use HTTP/3, over QUIC
    #[arg(long, group = "version", conflicts_with = "only", help_heading = CONNECTION)]
    http3: bool,
    /// Accept any certificate. An attacker on the path can impersonate the server
    #[arg(short = 'k', long, conflicts_with = "ca", help_heading = CONNECTION)]
    insecure: bool,
    /// Use this address for a host and port in place of a look-up
    #[arg(long, value_name = "HOST:PORT:ADDRESS", help_heading = CONNECTION)]
    resolve: Vec<Resolved>,
    /// Send QUIC to this address in place of the URL's, such as a relay
    ///
    /// TCP still goes to the URL's own address, over another path. Without `--only` or a version there is then no verdict: the
    /// output says that the paths differ, and in JSON `same_path` is false and `verdict` null.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = CONNECTION)]
    udp: Option<SocketAddr>,
    /// Open a new connection for each URL, and close it afterwards
    #[arg(long, help_heading = CONNECTION)]
    fresh: bool,
    /// Write the content to this file, `-` for standard output; once for each URL, in their order
    #[arg(short = 'o', long, value_name = "FILE", help_heading = ANSWER)]
    output: Vec<PathBuf>,
    /// Write the content to a file with the name of the URL's last path segment
    #[arg(short = 'O', long, conflicts_with = "output", help_heading = ANSWER)]
    remote_name: bool,
    /// Print the header of the answer before the content
    #[arg(short = 'i', long, conflicts_with = "json", help_heading = ANSWER)]
    include: bool,
    /// Print this after each answer, with %{http_code}, %{http_version}, %{time_total} and others, and \n for a new line
    ///
    /// Times are in seconds. Variables: content_type, early_data, http_code, http_version, method, num_connects, num_redirects,
    /// protocol, response_code, size_download, speed_download, time_appconnect, time_starttransfer, time_total, url_effective, verdict.
    #[arg(short = 'w', long, value_name = "FORM", help_heading = ANSWER)]
    write_out: Option<Form>,
    /// Wait for the verdict for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = ANSWER)]
    verdict_within: u64,
    /// Print one line of JSON for each exchange in place of the content
    #[arg(long, conflicts_with = "write_out", help_heading = ANSWER)]
    json: bool,
    /// Print neither progress nor verdict to standard error; errors remain
    #[arg(short = 's', long, conflicts_with = "verbose", help_heading = ANSWER)]
    silent: bool,
    /// Print requests, headers of answers and details of the connection to standard error
    #[arg(short, long, conflicts_with = "json", help_heading = ANSWER)]
    verbose: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    Quic,
    Tcp,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.output.len() > args.urls.len() {
        return Err(Failure::new(format_args!("{} files for {} URLs", args.output.len(), args.urls.len()))
            .hint("give `-o FILE` once for each URL"));
    }
    let runtime = runtime::start()?;
    runtime.block_on(get(args))
}

impl Args {
    fn options(&self, watched: &Watched) -> ClientOptions {
        let tcp_versions = match (self.http11, self.http2) {
            (true, _) => TcpVersions::Http11,
            (_, true) => TcpVersions::Http2,
            _ => TcpVersions::Both,
        };
        let addresses = self.resolve.iter().map(|one| one.0.clone()).collect();
        let watch = watched.of_client();
        ClientOptions { keep_alive: None, pace: PACE, tcp_versions, insecure: self.insecure, addresses, watch }
    }

    fn route(&self) -> Route {
        let only = match (self.only, self.http3, self.http2 || self.http11) {
            (Some(Transport::Quic), ..) | (_, true, _) => Some(Leg::Quic),
            (Some(Transport::Tcp), ..) | (.., true) => Some(Leg::Tcp),
            _ => None,
        };
        Route { only, udp: self.udp, fresh: self.fresh }
    }

    /// Destination of the content of the answer to this URL.
    fn sink(&self, place: usize, asked: &Asked) -> Result<Sink, Failure> {
        if self.remote_name {
            return Sink::create(asked.file_name()?.as_ref());
        }
        match self.output.get(place) {
            Some(path) => Sink::create(path),
            None if self.json => Ok(Sink::Nowhere),
            None => Ok(Sink::Stdout),
        }
    }
}

async fn get(args: &Args) -> Result<ExitCode, Failure> {
    // All of them before the first is asked for: what is wrong about one is wrong about the command.
    let asked = args.urls.iter().map(|url| args.request.request(url)).collect::<Result<Vec<_>, _>>()?;
    if args.remote_name {
        asked.iter().try_for_each(|asked| asked.file_name().map(drop))?;
    }
    if args.insecure && !args.silent {
        eprintln!(
            "WARNING: --insecure: the server's certificate is not checked. Anybody on the path can pose as the server."
        );
    }
    let watched = args.watch.open("tiderace get")?;
    let client = args.shared.client(args.options(&watched))?;
    let route = args.route();
    let mut ended = Ok(ExitCode::SUCCESS);
    for (place, asked) in asked.into_iter().enumerate() {
        match exchange(args, &client, place, asked, &route).await {
            Ok(Outcome::Good) => {}
            Ok(Outcome::Bad) => ended = Ok(ExitCode::from(UNSOUND)),
            Ok(Outcome::Unread) => break,
            Err(failure) => {
                ended = Err(failure);
                break;
            }
        }
    }
    // However it ended: a server that hears nothing keeps the connection until its idle timeout.
    client.close().await;
    watched.finish();
    ended
}

/// Outcome of an exchange.
enum Outcome {
    Good,
    /// The answer is no good one, or there is none.
    Bad,
    /// The reader of the output is gone.
    Unread,
}

/// Prints an error, whose text may come from a server.
fn complain(error: &dyn std::fmt::Display) {
    eprintln!("error: {}", printable(&error.to_string()));
}

pub(crate) fn word(early: EarlyData) -> &'static str {
    match early {
        EarlyData::None => "none",
        EarlyData::Offered => "offered",
        EarlyData::Accepted => "accepted",
        EarlyData::Rejected => "rejected",
    }
}

/// Answer, and the URL that it answers after redirects.
struct Answer {
    fetched: Fetched,
    asked: Asked,
    redirects: u32,
}

/// Sends a request, and follows redirects. `None`: an error was printed.
async fn ask(args: &Args, client: &Client, mut asked: Asked, route: &Route) -> Result<Option<Answer>, Failure> {
    let mut redirects = 0;
    loop {
        if args.verbose {
            eprintln!("> {} {}", asked.method, printable(asked.url.as_str()));
            print_fields("> ", &asked.fields);
        }
        let fetched = match client.send(asked.request()?, route).await {
            Ok(fetched) => fetched,
            Err(error @ FetchError::Url(_)) => {
                return Err(Failure::new(error).hint("write it like https://localhost:8443/"));
            }
            Err(error @ FetchError::Resolve { .. }) => return Err(Failure::new(error).hint(UNKNOWN_HOST)),
            Err(error) => {
                complain(&error);
                if let Some(Cause::Certificate { .. }) = error.cause() {
                    eprintln!("hint: `--ca FILE` trusts a certificate of your own; `-k` checks none");
                }
                return Ok(None);
            }
        };
        let (status, fields) = (fetched.response.status(), fetched.response.headers());
        if args.verbose {
            eprintln!("< HTTP/{} {status}", version(fetched.protocol));
            print_fields("< ", fields);
        }
        let next = if args.request.follow { asked.redirected(status, fields) } else { Ok(None) };
        match next {
            Ok(None) => return Ok(Some(Answer { fetched, asked, redirects })),
            Ok(Some(_)) if redirects == args.request.max_redirs => {
                complain(&format_args!("more than {redirects} redirects, the last from {}", asked.url));
                return Ok(None);
            }
            Ok(Some(next)) => {
                redirects += 1;
                asked = next;
            }
            Err(why) => {
                complain(&why);
                return Ok(None);
            }
        }
    }
}

fn print_fields(mark: &str, fields: &HeaderMap) {
    for (name, value) in fields {
        eprintln!("{mark}{name}: {}", printable(&String::from_utf8_lossy(value.as_bytes())));
    }
}

/// The header of a response, with control characters escaped.
fn head(protocol: &str, status: StatusCode, fields: &HeaderMap) -> String {
    let lines = fields
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", printable(&String::from_utf8_lossy(value.as_bytes()))));
    format!("HTTP/{} {}\n{}\n", version(protocol), status.as_u16(), lines.collect::<String>())
}

async fn exchange(args: &Args, client: &Client, place: usize, asked: Asked, route: &Route) -> Result<Outcome, Failure> {
    let begun = std::time::Instant::now();
    let first = asked.clone();
    let Some(Answer { fetched, asked, redirects }) = ask(args, client, asked, route).await? else {
        return Ok(Outcome::Bad);
    };
    // The name that was asked for, not one that a redirect says.
    let mut sink = args.sink(place, &first)?;
    let (parts, body) = fetched.response.into_parts();
    let (status, fields) = (parts.status, parts.headers);
    if args.include || (args.request.head && !args.json) {
        print(&head(fetched.protocol, status, &fields))?;
    }
    let (length, stopped) =
        output::take(body, &fields, args.request.compressed, &mut sink, args.silent || args.json).await;
    let kept = sink.path().map_or_else(String::new, |path| format!("; what came is in {}", path.display()));
    match stopped {
        None => {}
        Some(Stopped::Unread) => return Ok(Outcome::Unread),
        Some(Stopped::Unwritten(error)) => return Err(Failure::new(format_args!("cannot write: {error}{kept}"))),
        Some(Stopped::Broken(why)) => {
            let _ = std::io::stdout().lock().flush();
            complain(&format_args!("the answer broke off after {length} bytes: {why}{kept}"));
            return Ok(Outcome::Bad);
        }
    }
    print("")?;
    let total = begun.elapsed().as_secs_f64();
    let verdict = tokio::time::timeout(Duration::from_secs(args.verdict_within), fetched.verdict).await;
    let verdict = verdict.ok().and_then(Result::ok).flatten();
    let first_byte_ms = fetched.first_byte.as_secs_f64() * 1e3;
    let handshake_ms = fetched.handshake.map(|took| took.as_secs_f64() * 1e3);
    // A relay delays one leg only: who was first says nothing about QUIC and TCP.
    let elsewhere = route.udp.filter(|_| route.only.is_none());
    let said = match (elsewhere, verdict, fetched.reused) {
        (Some(udp), ..) => {
            format!("no comparison: the paths were not the same, QUIC went to {udp} and TCP to the address of the URL")
        }
        (None, Some(verdict), _) => verdict.to_string(),
        (None, None, true) => "the connection was open".to_owned(),
        (None, None, false) => "there is no verdict".to_owned(),
    };
    if args.json {
        let offer = fetched.offer.as_ref().map(
            |offer| json!({"priority": offer.priority, "target": offer.target, "port": offer.port, "alpn": offer.alpn}),
        );
        write_json_line(&json!({
            "url": args.urls[place], "url_effective": asked.url.as_str(), "redirects": redirects, "method": asked.method.as_str(),
            "status": status.as_u16(), "protocol": fetched.protocol, "bytes": length, "total_ms": total * 1e3,
            "first_byte_ms": first_byte_ms, "handshake_ms": handshake_ms, "verdict": elsewhere.is_none().then_some(&said),
            "udp": route.udp.map(|udp| udp.to_string()), "same_path": elsewhere.is_none(), "early_data": word(fetched.early_data),
            "too_early": fetched.too_early, "reused": fetched.reused, "https_record": offer,
        }))?;
    } else if !args.silent {
        eprintln!("{status} over {}, first byte after {first_byte_ms:.1} ms, {length} bytes; {said}", fetched.protocol);
    }
    if args.verbose {
        if let Some(offer) = &fetched.offer {
            eprintln!("HTTPS record: priority {}, {}", offer.priority, printable(&offer.alpn.join(" ")));
        }
        let twice = if fetched.too_early { "; too early (425), asked again after the handshake" } else { "" };
        eprintln!("early data: {}{twice}", word(fetched.early_data));
    }
    if let Some(form) = &args.write_out {
        let content_type = fields.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
        print(&form.fill(&Figures {
            status: status.as_u16(),
            protocol: fetched.protocol,
            url: asked.url.to_string(),
            method: asked.method.to_string(),
            content_type: content_type.unwrap_or_default().into_owned(),
            bytes: length,
            redirects,
            reused: fetched.reused,
            early_data: word(fetched.early_data),
            verdict: said,
            handshake: fetched.handshake.map(|took| took.as_secs_f64()),
            first_byte: fetched.first_byte.as_secs_f64(),
            total,
        }))?;
    }
    Ok(if status.as_u16() < 400 { Outcome::Good } else { Outcome::Bad })
}
