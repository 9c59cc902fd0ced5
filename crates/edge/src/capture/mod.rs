//! Captures of single connections, on demand, for users of the admin socket: qlog, packets, and their keys, in one folder.
//!
//! `watch` has the hooks into connections, sockets and TLS during a capture. `bundle` writes files on its own thread, so that no connection
//! waits for a disk. Without a capture there are no hooks, and TLS exports no key. Captures need `[capture] enabled`.

mod bundle;
mod watch;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tiderace::Connection;

use self::watch::Active;
pub(crate) use self::watch::{CaptureKeyLog, ConnectionObserver, ListenerTap};
use crate::{config, folder};

/// Connections that [`Captures::list`] has at most.
const LISTED: usize = 1_000;

/// Connections that are captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CaptureTarget {
    /// Connections of a client: of its address, or of one port.
    Client(IpAddr, Option<u16>),
    /// The one that has this ID, in hexadecimal digits.
    Id(String),
}

impl CaptureTarget {
    /// Reads what an operator has written.
    pub(crate) fn client(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Client(address.ip().to_canonical(), Some(address.port())));
        }
        let plain = text.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = plain.parse().map_err(|_| {
            format!("expected a client's address as in `192.0.2.7`, `192.0.2.7:50000` or `[2001:db8::7]:50000`, found `{text}`")
        })?;
        Ok(Self::Client(ip.to_canonical(), None))
    }

    /// Reads what an operator has written.
    pub(crate) fn id(text: &str) -> Result<Self, String> {
        let good = !text.is_empty() && text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if good {
            Ok(Self::Id(text.to_ascii_lowercase()))
        } else {
            Err(format!("expected hexadecimal digits, found `{text}`"))
        }
    }

    fn is_client(&self, remote: SocketAddr) -> bool {
        match self {
            Self::Client(ip, port) => {
                *ip == remote.ip().to_canonical() && port.is_none_or(|port| port == remote.port())
            }
            Self::Id(_) => false,
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Client(ip, None) => json!({"client": ip}),
            Self::Client(ip, Some(port)) => json!({"client": SocketAddr::new(*ip, *port)}),
            Self::Id(id) => json!({"cid": id}),
        }
    }
}

/// A request for a capture.
#[derive(Clone, Debug)]
pub(crate) struct CaptureRequest {
    pub(crate) who: CaptureTarget,
    pub(crate) time: Duration,
}

/// All captures of the process, and the open QUIC connections.
#[derive(Default)]
pub(crate) struct Captures {
    is_open: AtomicBool,
    active: RwLock<Option<Arc<Active>>>,
    live: Mutex<BTreeMap<u64, Connection>>,
    next: AtomicU64,
}

impl std::fmt::Debug for Captures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captures").field("is_open", &self.is_open).finish_non_exhaustive()
    }
}

/// A connection that can be found. It cannot when this is dropped.
pub(crate) struct Listed {
    captures: Arc<Captures>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let connection = self.captures.live().remove(&self.number);
        // It may be the last handle, whose end takes other locks.
        drop(connection);
    }
}

impl Captures {
    fn live(&self) -> MutexGuard<'_, BTreeMap<u64, Connection>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the capture in progress.
    fn active(&self) -> Option<Arc<Active>> {
        if !self.is_open.load(Ordering::Relaxed) {
            return None;
        }
        self.active.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a connection one that can be found.
    pub(crate) fn enlist(self: &Arc<Self>, connection: &Connection) -> Listed {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.live().insert(number, connection.clone());
        Listed { captures: self.clone(), number }
    }

    /// Open QUIC connections, newest first.
    pub(crate) fn list(&self) -> Value {
        let connections: Vec<Connection> = self.live().values().rev().take(LISTED).cloned().collect();
        let each = connections.iter().map(|connection| {
            let stats = connection.stats();
            let figure = |pick: fn(&tiderace::Stats) -> u64| stats.as_ref().map(pick);
            json!({
                "cid": connection.ids().first().map(ToString::to_string),
                "client": connection.remote_address().map(|remote| SocketAddr::new(remote.ip().to_canonical(), remote.port())),
                // Anybody can claim to be a client until it has shown that it receives.
                "validated": connection.has_validated_address(),
                "name": connection.server_name(),
                "alpn": connection.alpn().map(|alpn| String::from_utf8_lossy(&alpn).into_owned()),
                "rtt_ms": figure(|stats| stats.smoothed_rtt / 1_000).map(|micros| micros as f64 / 1e3),
                "packets_sent": figure(|stats| stats.packets_sent),
                "packets_lost": figure(|stats| stats.packets_lost),
            })
        });
        json!({"connections": each.collect::<Vec<_>>(), "all": self.live().len()})
    }

    /// Captures until the time has ended, the room is used up, the one connection has ended, or `stop` is ready; then returns a
    /// summary.
    pub(crate) async fn run(
        self: &Arc<Self>,
        config: &config::Capture,
        order: CaptureRequest,
        stop: impl Future<Output = ()>,
    ) -> Result<Value, (String, &'static str)> {
        if !config.enabled {
            return Err(("captures are not allowed".to_owned(), "[capture] with enabled = true, and a reload"));
        }
        let time = order.time.min(config.max_time.0);
        let active = {
            let mut place = self.active.write().unwrap_or_else(PoisonError::into_inner);
            if place.is_some() {
                return Err(("another capture is under way".to_owned(), "wait for its end, or end it"));
            }
            let folder = make_folder(Path::new(&config.folder), config.keep)?;
            let active = Active::begin(order.who.clone(), folder, config)
                .map_err(|error| (format!("cannot write the capture: {error}"), "see capture.folder"))?;
            *place = Some(active.clone());
            active
        };
        // Whatever becomes of this future, the capture ends with it.
        let end = Ending { captures: self.clone(), active: active.clone() };
        self.is_open.store(true, Ordering::Relaxed);
        let running: Vec<Connection> = self.live().values().cloned().collect();
        for connection in running {
            active.join(&connection);
        }
        if matches!(order.who, CaptureTarget::Id(_)) && active.connections() == 0 {
            drop(end);
            active.discard();
            return Err(("no connection has this ID".to_owned(), "`tiderace edge connections` lists them"));
        }
        let ended_by = tokio::select! {
            () = tokio::time::sleep(time) => "time",
            why = active.ended() => why,
            () = stop => "request",
        };
        drop(end);
        active
            .finish(ended_by, order.who.to_json())
            .await
            .map_err(|error| (format!("cannot write the capture: {error}"), ""))
    }
}

/// Ends a capture when it is dropped.
struct Ending {
    captures: Arc<Captures>,
    active: Arc<Active>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.captures.is_open.store(false, Ordering::Relaxed);
        self.captures.active.write().unwrap_or_else(PoisonError::into_inner).take();
        self.active.close();
    }
}

/// A new folder for a bundle, for its owner alone, below `root`; as long as there are fewer than `keep`.
fn make_folder(root: &Path, keep: usize) -> Result<PathBuf, (String, &'static str)> {
    let cannot = |what: &Path, error: &std::io::Error| (format!("{}: {error}", what.display()), "see capture.folder");
    folder::private(root).map_err(|error| cannot(root, &error))?;
    let entries = std::fs::read_dir(root).map_err(|error| cannot(root, &error))?;
    let bundles =
        entries.filter_map(Result::ok).filter(|entry| entry.file_name().to_string_lossy().starts_with("capture-"));
    if bundles.count() >= keep {
        let message = format!("{} has {keep} captures already", root.display());
        return Err((message, "remove what is not needed any more, or raise capture.keep"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let path = root.join(format!("capture-{now}"));
    std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| cannot(&path, &error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_ids() {
        let client = |text: &str| CaptureTarget::client(text).unwrap();
        for (who, remote, fits) in [
            ("192.0.2.7", "192.0.2.7:1", true),
            ("192.0.2.7", "[::ffff:192.0.2.7]:1", true),
            ("192.0.2.7:2", "192.0.2.7:1", false),
            ("192.0.2.7:1", "[::ffff:192.0.2.7]:1", true),
            ("2001:db8::7", "[2001:db8::7]:9", true),
            ("[2001:db8::7]", "[2001:db8::8]:9", false),
            ("[2001:db8::7]:9", "[2001:db8::7]:9", true),
        ] {
            assert_eq!(client(who).is_client(remote.parse().unwrap()), fits, "{who} {remote}");
        }
        for bad in ["", "example.org", "192.0.2.0/24", "1.2.3.4:x"] {
            assert!(CaptureTarget::client(bad).is_err(), "{bad}");
        }
        assert_eq!(CaptureTarget::id("00AbcD").unwrap(), CaptureTarget::Id("00abcd".to_owned()));
        assert!(
            CaptureTarget::id("").is_err() && CaptureTarget::id("xyz").is_err() && CaptureTarget::id("../etc").is_err()
        );
    }
}
