//! `tiderace masque`: forwards local UDP and TCP ports, SOCKS5, and the packets of a TUN device through a proxy, over HTTP/3 or HTTP/2.

mod connections;
mod flow;
#[cfg(target_os = "linux")]
mod ip;
mod socks;
mod tcp;
mod udp;

use std::{
    fmt::{self, Display, Formatter},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::{Args as Group, Parser, Subcommand};
use client::{
    ClientIdentity, Leg, Settings, Timeouts, Trust,
    masque::{ProxyClient, ProxyError},
};
use serde_json::{Value, json};

use self::connections::Connections;
use crate::{
    address,
    failure::{Failure, UNSOUND},
    interrupt::Interrupt,
    printable::printable,
    runtime,
    stdout::write_json_line,
};

/// Carry UDP, TCP or IP packets through a MASQUE proxy.
///
/// The command forwards a local port to a target behind the proxy, or to the targets that programs name with SOCKS5: datagrams with
/// CONNECT-UDP (RFC 9298), connections with CONNECT, all over one connection to the proxy. Or it makes a network interface whose packets go
/// through the proxy, with CONNECT-IP (RFC 9484). `tiderace edge` is such a proxy.
///
/// QUIC is raced against TCP: tunnels go over HTTP/3, and over HTTP/2 on networks that block UDP. The command says which, and why.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Forward a local UDP port to a target behind the proxy.
    ///
    /// Each source address at the port has its own tunnel, which ends after `--idle` seconds of silence. Over HTTP/3, a payload that does
    /// not fit into a QUIC datagram is dropped, as on a path with a smaller MTU. Payloads of at most 1,200 bytes, which QUIC needs, are
    /// always forwarded.
    ///
    /// One tunnel is opened at the start, to find out whether the proxy refuses. Ctrl-C ends the command.
    ///
    /// Exit code 0: ended by a signal. 1: the proxy cannot be reached, or refuses. 2: an option is wrong.
    #[command(after_help = "Examples:
  tiderace masque udp --proxy proxy.example.org --listen 127.0.0.1:5353 dns.example.org:53
  tiderace masque udp --proxy 'https://proxy.example.org/masque{?target_host,target_port}' --token-file token \\
    --listen 127.0.0.1:4433 www.example.org:443
  tiderace masque udp --proxy proxy.example.org --cert alice.pem --key alice.key --listen 127.0.0.1:5353 dns.example.org:53")]
    Udp(UdpArgs),
    /// Forward a local TCP port to a target behind the proxy.
    ///
    /// Each connection to the port is a CONNECT request. Ctrl-C ends the command.
    ///
    /// Exit code 0: ended by a signal. 1: the proxy cannot be reached. 2: an option is wrong.
    #[command(after_help = "Example:
  tiderace masque tcp --proxy proxy.example.org --token-file token --listen 127.0.0.1:8080 www.example.org:80")]
    Tcp(PortArgs),
    /// Run a SOCKS5 proxy whose connections and datagrams go through the proxy.
    ///
    /// Programs name the target of each connection (CONNECT) and of each datagram (UDP ASSOCIATE). Names go to the proxy unresolved. If the
    /// proxy has bound UDP, one tunnel carries a program's datagrams to all IP addresses, and the command prints the addresses from which
    /// the proxy sends them. Otherwise, and for names, each target has its own tunnel, and the least recently used one ends when there are
    /// `--max-tunnels`. BIND and fragments of datagrams are refused. Ctrl-C ends the command.
    ///
    /// Other machines can use the port only with `--allow-remote`.
    ///
    /// Exit code 0: ended by a signal. 1: the proxy cannot be reached. 2: an option is wrong.
    #[command(after_help = "Example:
  tiderace masque socks --proxy proxy.example.org --token-file token
  curl --proxy socks5h://127.0.0.1:1080 https://www.example.org/")]
    Socks(SocksArgs),
    /// Make a network interface whose packets go through the proxy.
    ///
    /// The command opens a TUN device, and gives it the addresses and routes that the proxy assigns. Packets to the proxy itself stay outside.
    /// Names are resolved as before: the command does not change the resolvers of the system. It takes CAP_NET_ADMIN, and Linux.
    ///
    /// Ctrl-C ends the command. Addresses and routes are removed with it.
    ///
    /// Exit code 0: ended by a signal. 1: the proxy cannot be reached, refuses or ends the tunnel, or the device cannot be opened. 2: an
    /// option is wrong.
    #[cfg(target_os = "linux")]
    #[command(after_help = "Examples:
  sudo tiderace masque ip --proxy proxy.example.org --token-file token
  sudo tiderace masque ip --proxy proxy.example.org --token-file token --target 192.0.2.0/24 --protocol udp")]
    Ip(IpArgs),
}

#[cfg(target_os = "linux")]
#[derive(Debug, Group)]
struct IpArgs {
    /// Limit the tunnel to this target: a name, which the proxy resolves, an address, or a network
    #[arg(long, value_name = "NAME|ADDRESS[/BITS]", default_value = "*")]
    target: String,
    /// Limit the tunnel to this protocol: tcp, udp, icmp or a number. ICMP is always carried
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<String>,
    /// Name of the TUN device; `%d` stands for the first free number
    #[arg(long, value_name = "NAME", default_value = "tiderace%d")]
    tun: String,
    #[command(flatten)]
    proxy: ProxyArgs,
}

#[derive(Debug, Group)]
struct UdpArgs {
    #[command(flatten)]
    common: PortArgs,
    /// End a tunnel after this many seconds of silence
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    idle: u64,
    /// Serve at most this many programs at a time; others are ignored, and counted
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_peers: usize,
}

#[derive(Debug, Group)]
struct PortArgs {
    /// Target; the proxy resolves its name
    #[arg(value_name = "HOST:PORT")]
    target: String,
    /// Listen on this address; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    #[command(flatten)]
    proxy: ProxyArgs,
}

#[derive(Debug, Group)]
struct SocksArgs {
    /// Listen on this address; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1080")]
    listen: SocketAddr,
    /// Permit an address to listen on that other machines reach
    #[arg(long)]
    allow_remote: bool,
    /// Ask programs for a user name and a password; the file has lines of the form USER:PASSWORD
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Serve at most this many connections of programs at a time; others wait
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: u16,
    /// Open at most this many tunnels for the datagrams of a program; the least recently used one ends
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_tunnels: u16,
    /// Open a tunnel for each target of datagrams, even if the proxy has bound UDP
    #[arg(long)]
    no_bound: bool,
    /// Wait for a program's request for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    handshake_within: u64,
    /// End a tunnel for datagrams after this many seconds of silence
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    idle: u64,
    #[command(flatten)]
    proxy: ProxyArgs,
}

#[derive(Debug, Group)]
struct ProxyArgs {
    /// Proxy: host, optional port, or a URI template
    #[arg(long, value_name = "HOST[:PORT]|TEMPLATE")]
    proxy: String,
    /// Send the bearer token in this file to the proxy
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Show the certificate in this file (PEM, with its chain) to a proxy that asks for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE", visible_alias = "cacert")]
    ca: Option<PathBuf>,
    /// Accept any certificate. An attacker on the path can impersonate the proxy
    #[arg(short = 'k', long, conflicts_with = "ca")]
    insecure: bool,
    /// Use HTTP/2, over TCP
    #[arg(long, group = "version")]
    http2: bool,
    /// Use HTTP/3, over QUIC
    #[arg(long, group = "version")]
    http3: bool,
    /// Wait for a connection, and for an answer of the proxy, for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    connect_within: u64,
    /// Print lines of JSON: one when the port is open, one for each connection to the proxy, one for each tunnel at its end, one at the
    /// end of the command
    #[arg(long)]
    json: bool,
}

/// Interval of NAT keep-alives on the connection to the proxy.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Constructor of a client, by the kind of its URI template.
type NewClient = fn(&Settings, &str, Option<&str>) -> Result<ProxyClient, ProxyError>;

/// A proxy, and the form of reports.
struct Tunnels {
    proxy: ProxyClient,
    connections: Connections,
    json: bool,
}

/// Target of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target {
    /// A name, or an IP address without brackets.
    host: String,
    port: u16,
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = runtime::start()?;
    runtime.block_on(async {
        let proxy = match &args.command {
            Command::Udp(args) => &args.common.proxy,
            Command::Tcp(args) => &args.proxy,
            Command::Socks(args) => &args.proxy,
            #[cfg(target_os = "linux")]
            Command::Ip(args) => &args.proxy,
        };
        let new = match &args.command {
            #[cfg(target_os = "linux")]
            Command::Ip(_) => ProxyClient::for_ip,
            _ => ProxyClient::new,
        };
        let tunnels = Arc::new(proxy.tunnels(new)?);
        let interrupt = Interrupt::listen()?;
        let ended = match &args.command {
            Command::Udp(args) => udp::run(args, &tunnels, interrupt).await,
            Command::Tcp(args) => tcp::run(args, &tunnels, interrupt).await,
            Command::Socks(args) => socks::run(args, &tunnels, interrupt).await,
            #[cfg(target_os = "linux")]
            Command::Ip(args) => ip::run(args, &tunnels, interrupt).await,
        };
        tunnels.proxy.close().await;
        ended
    })
}

impl ProxyArgs {
    /// The way to the proxy. Nothing is sent yet.
    fn tunnels(&self, new: NewClient) -> Result<Tunnels, Failure> {
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
        let identity = match (&self.cert, &self.key) {
            (Some(certificates), Some(key)) => {
                let pem = |path, hint: &'static str| read(path).map_err(|failure| failure.hint(hint));
                let certificates = pem(certificates, "--cert takes a PEM file with a certificate")?;
                Some(ClientIdentity { certificates, key: pem(key, "--key takes a PEM file with a private key")? })
            }
            _ => None,
        };
        let limit = Duration::from_secs(self.connect_within);
        let timeouts = Timeouts { connect: limit, response: limit, ..Timeouts::default() };
        let keep_alive = Some(KEEP_ALIVE);
        let settings = Settings { trust, identity, timeouts, keep_alive, key_log: true, ..Settings::default() };
        let proxy = new(&settings, &self.proxy, token.as_deref());
        let proxy = proxy.map_err(|error| Failure::new(&error).hint(error.hint()))?;
        let proxy = match (self.http2, self.http3) {
            (true, _) => proxy.only(Leg::Tcp),
            (_, true) => proxy.only(Leg::Quic),
            _ => proxy,
        };
        let (proxy, connections) = Connections::of(proxy);
        Ok(Tunnels { proxy, connections, json: self.json })
    }
}

impl PortArgs {
    fn target(&self) -> Result<Target, Failure> {
        let (host, port) = address::split(&self.target)?;
        Ok(Target { host, port })
    }

    /// Reports that the port is open, and from then on connections to the proxy.
    fn announce(&self, address: SocketAddr, tunnels: &Arc<Tunnels>) -> Result<(), Failure> {
        let (target, proxy) = (&self.target, &self.proxy.proxy);
        if tunnels.json {
            write_json_line(
                &json!({ "event": "listening", "address": address.to_string(), "target": target, "proxy": proxy }),
            )?;
        } else {
            eprintln!("{address} leads to {} through {}, Ctrl-C ends", printable(target), printable(proxy));
        }
        connections::begin_reports(tunnels);
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
