//! Options of `get` and `perf` that record connections: qlog files, and packets with their keys.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use capture::PacketFile;
use clap::Args as Group;
use client::{PacketKeys, PacketTap};
use rustls::KeyLog;
use tiderace::{
    EndpointOptions, QlogDir, Tap,
    transport::{observe::ObserverFactory, qlog::Format},
};

use crate::{address, failure::Failure};

/// Heading of the options.
const RECORDS: &str = "Records of connections";

/// Options that record connections over QUIC.
#[derive(Debug, Group)]
pub(crate) struct WatchArgs {
    /// Write a qlog file for each connection to this directory; costs CPU time
    #[arg(long, value_name = "DIR", help_heading = RECORDS)]
    qlog: Option<PathBuf>,
    /// Version of the qlog files: `newest`, or `0.3`, which qvis opens
    #[arg(long, value_name = "VERSION", default_value_t, requires = "qlog", help_heading = RECORDS)]
    qlog_format: Format,
    /// Write UDP packets to this file (pcapng), with the keys that decrypt them, for Wireshark; costs CPU time
    #[arg(long, value_name = "FILE", help_heading = RECORDS)]
    pcapng: Option<PathBuf>,
}

impl WatchArgs {
    /// Creates the requested records.
    ///
    /// # Errors
    /// When a directory or a file cannot be created.
    pub(crate) fn open(&self, title: &str) -> Result<Watched, Failure> {
        let directory = |path: &PathBuf| match QlogDir::new(path) {
            Ok(directory) => Ok(Arc::new(directory.with_title(title).with_format(self.qlog_format))),
            Err(error) => Err(Failure::new(format_args!("cannot make the directory {}", address::plain(&error)))
                .hint("choose another directory with `--qlog DIR`")),
        };
        let packets = self.pcapng.as_deref().map(create).transpose()?;
        Ok(Watched { qlog: self.qlog.as_ref().map(directory).transpose()?, packets })
    }
}

/// A file of packets.
///
/// # Errors
/// When it cannot be created.
pub(crate) fn create(path: &Path) -> Result<Arc<PacketFile>, Failure> {
    let file = PacketFile::create(path).map_err(|error| {
        Failure::new(format_args!("cannot write {}: {}", path.display(), address::plain(&error)))
            .hint("choose another file with `--pcapng FILE`")
    })?;
    Ok(Arc::new(file))
}

/// Adds the keys of a TLS key log to a packet file, and prints how many packets it has, or that it is incomplete.
pub(crate) fn finish(packets: &PacketFile, keys: Option<&Path>) {
    let prepend = |path: &Path| packets.prepend_keys(&std::fs::read_to_string(path)?);
    let completed = packets.finish().and_then(|count| keys.map_or(Ok(()), prepend).map(|()| count));
    match completed {
        Ok(count) => eprintln!("{count} packets are in {}", packets.path().display()),
        Err(error) => eprintln!("warning: {} is incomplete: {}", packets.path().display(), address::plain(&error)),
    }
}

/// Records in progress.
#[derive(Clone, Default)]
pub(crate) struct Watched {
    qlog: Option<Arc<QlogDir>>,
    packets: Option<Arc<PacketFile>>,
}

impl Watched {
    /// Observer of each connection.
    pub(crate) fn observer(&self) -> Option<Arc<dyn ObserverFactory>> {
        self.qlog.clone().map(|directory| directory as Arc<dyn ObserverFactory>)
    }

    /// Destination of keys.
    pub(crate) fn keys(&self) -> Option<Arc<dyn KeyLog>> {
        self.packets.clone().map(|file| Arc::new(PacketKeys::new(file, None)) as Arc<dyn KeyLog>)
    }

    /// Settings of a client.
    pub(crate) fn of_client(&self) -> client::Watch {
        client::Watch { observe: self.observer(), packets: self.packets.clone(), tcp: None }
    }

    /// Opens an endpoint whose packets are recorded.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub(crate) fn endpoint(
        &self,
        address: std::net::SocketAddr,
        options: EndpointOptions,
    ) -> std::io::Result<tiderace::Endpoint> {
        let tap = self.packets.clone().map(|file| Arc::new(PacketTap::new(file)));
        let options = EndpointOptions { tap: tap.clone().map(|tap| tap as Arc<dyn Tap>), ..options };
        let endpoint = tiderace::Endpoint::open(address, options)?;
        if let Some(tap) = tap {
            tap.bind(endpoint.local_addr());
        }
        Ok(endpoint)
    }

    /// Prints a warning for records that are incomplete.
    pub(crate) fn finish(&self) {
        if let Some(directory) = &self.qlog {
            if let Some(error) = directory.take_error() {
                eprintln!("warning: qlog files are incomplete: {}", address::plain(&error));
            } else if directory.skipped() > 0 {
                eprintln!("warning: {} connections have no qlog file: there are too many", directory.skipped());
            }
        }
        if let Some(packets) = &self.packets {
            finish(packets, None);
        }
    }
}
