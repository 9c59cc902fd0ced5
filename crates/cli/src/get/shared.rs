//! Settings of connections that `get` and `proxy` share.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args as Group;
use client::{Client, FetchError, KnownAddresses, OtherNetworks, Pace, Settings, TcpVersions, Timeouts, Trust, Watch};
use tiderace::units::BytesPerMinute;

use crate::failure::Failure;

/// Settings that `get` and `proxy` share.
#[derive(Debug, Group)]
pub(crate) struct SharedArgs {
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE", visible_alias = "cacert", help_heading = CONNECTION)]
    pub(crate) ca: Option<PathBuf>,
    /// Query this name server for A, AAAA and HTTPS records in place of the system's
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = CONNECTION)]
    dns: Option<SocketAddr>,
    /// Keep tickets in this file, so that the next run resumes (needs a build with `--features boringssl`)
    #[arg(long, value_name = "FILE", help_heading = CONNECTION)]
    tickets: Option<PathBuf>,
    /// Send no request before the handshake is complete
    #[arg(long, help_heading = CONNECTION)]
    no_early_data: bool,
    /// Wait for a connection for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = CONNECTION)]
    connect_within: u64,
    /// Wait for the header of an answer for at most this many seconds after the request
    #[arg(long, value_name = "SECONDS", default_value_t = 120, help_heading = CONNECTION)]
    answer_within: u64,
    /// End an answer whose content is slower than this: bytes per minute, such as 64Ki, or a rate, such as 1.5Mbit; 0 for no limit
    ///
    /// The default is 1024 for `get`, and one byte in five minutes for `proxy`.
    #[arg(long, value_name = "SIZE", help_heading = CONNECTION)]
    slowest: Option<BytesPerMinute>,
    /// Continue over another network of this host when the server answers there and not over the system's choice (Linux)
    ///
    /// After a second of silence the server is asked over every interface. Packets then leave outside of a VPN, and over interfaces that
    /// may cost money. The connection returns when the server answers over the system's choice again.
    #[arg(long, help_heading = CONNECTION)]
    other_networks: bool,
}

/// Heading of the options about connections.
pub(super) const CONNECTION: &str = "Connection";

/// The least content of an answer that a person waits for.
pub(crate) const PACE: Pace = Pace { bytes: 1_024, within: Duration::from_secs(60) };

/// Settings of connections beside the shared ones.
#[derive(Debug, Default)]
pub(crate) struct ClientOptions {
    /// First interval of NAT keep-alives.
    pub(crate) keep_alive: Option<Duration>,
    /// Minimum rate of content where no option sets one.
    pub(crate) pace: Pace,
    /// Versions of HTTP that are offered over TCP.
    pub(crate) tcp_versions: TcpVersions,
    /// Take any certificate.
    pub(crate) insecure: bool,
    /// Addresses that are not looked up.
    pub(crate) addresses: Vec<KnownAddresses>,
    /// Observers of connections.
    pub(crate) watch: Watch,
}

impl SharedArgs {
    /// A client with these settings. Must be called within a runtime.
    ///
    /// # Errors
    /// When a file cannot be read, or says something else than it should.
    pub(crate) fn client(&self, options: ClientOptions) -> Result<Client, Failure> {
        let trust = match &self.ca {
            None if options.insecure => Trust::Anyone,
            None => Trust::Platform,
            Some(path) => Trust::Pem(
                std::fs::read(path)
                    .map_err(|error| Failure::new(format_args!("cannot read {}: {error}", path.display())))?,
            ),
        };
        let slowest = |least: BytesPerMinute| Pace { bytes: least.as_bytes(), within: BytesPerMinute::SPAN };
        let pace = self.slowest.map_or(options.pace, slowest);
        let timeouts = Timeouts {
            connect: Duration::from_secs(self.connect_within),
            response: Duration::from_secs(self.answer_within),
            content: pace,
        };
        let settings = Settings {
            trust,
            dns: self.dns,
            early_data: !self.no_early_data,
            tickets: self.tickets.clone(),
            keep_alive: options.keep_alive,
            other_networks: if self.other_networks { OtherNetworks::OnSilence } else { OtherNetworks::Never },
            timeouts,
            tcp_versions: options.tcp_versions,
            addresses: options.addresses,
            // Does nothing without the variable SSLKEYLOGFILE.
            key_log: true,
            watch: options.watch,
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
