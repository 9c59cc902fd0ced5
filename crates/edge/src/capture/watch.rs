//! Hooks into connections, sockets and TLS during a capture.

use std::{
    collections::{HashSet, VecDeque},
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use serde_json::{Value, json};
use tiderace::{
    CloseReason, Connection, ConnectionId, Tap, Tapped,
    transport::{
        Ecn,
        observe::{Both, Ending, Loan, Migration, Observer, ObserverFactory, Start, lend},
        qlog::{EXTENSION, QlogWriter, Vantage},
    },
    units::Instant,
};
use tokio::sync::{Notify, oneshot};

use super::{
    CaptureTarget, Captures,
    bundle::{self, Item, Written},
};
use crate::config;

/// Bytes that may wait to be written: what comes beyond them is left out, and counted.
const QUEUED: usize = 16 * 1024 * 1024;
/// Lines of keys that wait to be claimed by a connection that is captured.
const UNCLAIMED: usize = 4_096;

/// A capture that is in progress.
pub(super) struct Active {
    who: CaptureTarget,
    folder: PathBuf,
    items: Mutex<Option<mpsc::Sender<Item>>>,
    done: Mutex<Option<oneshot::Receiver<io::Result<Written>>>>,
    queued: Arc<AtomicUsize>,
    /// Bytes that may still be written.
    room: AtomicU64,
    /// Items that were left out, because the disk is slow.
    dropped: AtomicU64,
    full: AtomicBool,
    closed: AtomicBool,
    most_connections: usize,
    skipped: AtomicU64,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Descriptions of the connections that have a file.
    captured: Vec<Value>,
    loans: Vec<Loan>,
    /// Connections among them that have not ended.
    open: usize,
    /// Addresses of the one connection's client, present and past.
    remotes: HashSet<SocketAddr>,
    /// By which key logs know connections that are captured.
    randoms: HashSet<[u8; 32]>,
    unclaimed: VecDeque<([u8; 32], String)>,
}

impl Active {
    pub(super) fn begin(who: CaptureTarget, folder: PathBuf, config: &config::Capture) -> io::Result<Arc<Self>> {
        let queued = Arc::new(AtomicUsize::new(0));
        let bundle = bundle::begin(folder.clone(), queued.clone())?;
        Ok(Arc::new(Self {
            who,
            folder,
            items: Mutex::new(Some(bundle.items)),
            done: Mutex::new(Some(bundle.done)),
            queued,
            room: AtomicU64::new(config.max_size.0),
            dropped: AtomicU64::new(0),
            full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            most_connections: config.max_connections,
            skipped: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that have a file.
    pub(super) fn connections(&self) -> usize {
        self.state().captured.len()
    }

    /// Waits until no more data can be captured: the room is used up, or the one connection has ended.
    pub(super) async fn ended(&self) -> &'static str {
        loop {
            let changed = self.changed.notified();
            if self.full.load(Ordering::Relaxed) {
                return "size";
            }
            if matches!(self.who, CaptureTarget::Id(_)) && self.state().open == 0 {
                return "connection";
            }
            changed.await;
        }
    }

    /// `false` when it was left out.
    fn write(&self, item: Item) -> bool {
        let size = item.size();
        if self.closed.load(Ordering::Relaxed) && !matches!(item, Item::Qlog { .. }) {
            return false;
        }
        if self.queued.load(Ordering::Relaxed) + size > QUEUED {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let took =
            self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(size as u64)).is_ok();
        if !took {
            self.full.store(true, Ordering::Relaxed);
            self.changed.notify_one();
            return false;
        }
        self.queued.fetch_add(size, Ordering::Relaxed);
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.as_ref().is_some_and(|items| items.send(item).is_ok())
    }

    /// Observers of one more connection; `None` when there are enough.
    fn observe(
        self: &Arc<Self>,
        now: Instant,
        remote: SocketAddr,
        id: ConnectionId,
        running: bool,
    ) -> Option<Box<dyn Observer>> {
        let mut state = self.state();
        if state.captured.len() >= self.most_connections {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // The ID is the client's choice, and two clients may choose the same.
        let number = state.captured.len() + 1;
        let file: Arc<str> = format!("{number:03}-{id}_server.{EXTENSION}").into();
        state.captured.push(json!({
            "cid": id.to_string(),
            "client": SocketAddr::new(remote.ip().to_canonical(), remote.port()),
            "qlog": *file,
            // What came before the capture began is missing, the keys included.
            "from_its_start": !running,
        }));
        state.open += 1;
        state.remotes.insert(remote);
        let sink = Sink { active: self.clone(), file };
        let writer = QlogWriter::new(sink, Vantage::Server, "tiderace edge", id, now);
        let (lent, loan) = lend(Box::new(writer.with_wall_clock(now - Instant::ZERO)));
        state.loans.push(loan);
        Some(Box::new(Both(Box::new(lent), Box::new(Follower { active: self.clone(), ended: false }))))
    }

    /// Captures a connection that runs, if it is meant.
    pub(super) fn join(self: &Arc<Self>, connection: &Connection) {
        let Some(remote) = connection.remote_address() else { return };
        let ids = connection.ids();
        let meant = match &self.who {
            CaptureTarget::Id(wanted) => ids.iter().any(|id| id.to_string() == *wanted),
            CaptureTarget::Client(..) => self.who.is_client(remote),
        };
        let Some(id) = ids.first().filter(|_| meant) else { return };
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        if let Some(observer) = self.observe(Instant::ZERO + since_1970, remote, *id, true) {
            connection.watch(observer);
        }
    }

    /// Stops taking events. Those until here are written.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let loans = std::mem::take(&mut self.state().loans);
        for loan in loans {
            // Dropped, a writer writes what it has collected.
            drop(loan.take_back());
        }
        self.items.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Removes the folder of an empty capture.
    pub(super) fn discard(&self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// Waits until all is written. Returns a summary.
    pub(super) async fn finish(&self, ended_by: &str, who: Value) -> io::Result<Value> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        let done = done.ok_or_else(|| io::Error::other("the capture has ended before"))?;
        let written = done.await.map_err(|_| io::Error::other("the writer is gone"))??;
        let said = json!({
            "bundle": self.folder.display().to_string(),
            "of": who,
            "ended_by": ended_by,
            "connections": self.state().captured,
            "connections_left_out": self.skipped.load(Ordering::Relaxed),
            "packets": written.packets,
            "keys": written.keys,
            "items_left_out": self.dropped.load(Ordering::Relaxed),
        });
        let mut file = bundle::create(&self.folder.join("capture.json"))?;
        file.write_all(serde_json::to_string_pretty(&said)?.as_bytes())?;
        Ok(said)
    }
}

/// Destination of one connection's qlog.
struct Sink {
    active: Arc<Active>,
    file: Arc<str>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let item = Item::Qlog { file: self.file.clone(), bytes: bytes.to_vec() };
        // Records come as wholes: without these, those that follow can still be read.
        if !self.active.write(item) && self.active.full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Follows a connection to other addresses, and names it to the keys.
struct Follower {
    active: Arc<Active>,
    ended: bool,
}

impl Follower {
    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.active.state().open -= 1;
            self.active.changed.notify_one();
        }
    }
}

impl Observer for Follower {
    fn client_random(&mut self, _: Instant, random: &[u8; 32]) {
        let mut state = self.active.state();
        state.randoms.insert(*random);
        let (own, others) = std::mem::take(&mut state.unclaimed).into_iter().partition(|(of, _)| of == random);
        state.unclaimed = others;
        drop(state);
        let own: VecDeque<([u8; 32], String)> = own;
        for (_, line) in own {
            self.active.write(Item::Key(line));
        }
    }

    fn migration(&mut self, _: Instant, _: Migration, remote: SocketAddr) {
        let mut state = self.active.state();
        // Somebody who moves repeatedly does not grow the list for ever.
        if state.remotes.len() < 1_000 {
            state.remotes.insert(remote);
        }
    }

    fn closed(&mut self, _: Instant, _: &CloseReason, _: Ending) {
        self.end();
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.end();
    }
}

/// Watches new connections of a client that is captured.
pub(crate) struct ConnectionObserver(pub(crate) Arc<Captures>);

impl ObserverFactory for ConnectionObserver {
    fn observe(&self, now: Instant, start: &Start) -> Option<Box<dyn Observer>> {
        let active = self.0.active()?;
        if !active.who.is_client(start.remote) {
            return None;
        }
        active.observe(now, start.remote, start.original_dcid, false)
    }
}

/// Takes the keys of connections that are captured.
#[derive(Debug)]
pub(crate) struct CaptureKeyLog(pub(crate) Arc<Captures>);

impl rustls::KeyLog for CaptureKeyLog {
    fn will_log(&self, _: &str) -> bool {
        self.0.is_open.load(Ordering::Relaxed)
    }

    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let Some(active) = self.0.active() else { return };
        let Ok(random) = <[u8; 32]>::try_from(client_random) else { return };
        let line = ::capture::key_line(label, &random, secret);
        let mut state = active.state();
        if state.randoms.contains(&random) {
            drop(state);
            active.write(Item::Key(line));
            return;
        }
        // The connection names itself as soon as it has the keys.
        if state.unclaimed.len() >= UNCLAIMED {
            state.unclaimed.pop_front();
        }
        state.unclaimed.push_back((random, line));
    }
}

/// Takes payloads at a listener.
pub(crate) struct ListenerTap {
    pub(crate) captures: Arc<Captures>,
    pub(crate) local: SocketAddr,
}

impl Tap for ListenerTap {
    fn is_open(&self) -> bool {
        #[cfg(debug_assertions)]
        if crate::planted::is_planted() {
            return true;
        }
        self.captures.is_open.load(Ordering::Relaxed)
    }

    fn pass(&self, tapped: &Tapped<'_>) {
        #[cfg(debug_assertions)]
        tapped.datagrams().filter(|_| !tapped.sent).for_each(crate::planted::check);
        let Some(active) = self.captures.active() else { return };
        let remote = tapped.remote;
        let meant = match &active.who {
            CaptureTarget::Client(..) => active.who.is_client(remote),
            CaptureTarget::Id(_) => active.state().remotes.contains(&remote),
        };
        if !meant {
            return;
        }
        let local = SocketAddr::new(tapped.local.unwrap_or(self.local.ip()), self.local.port());
        let (from, to) = if tapped.sent { (local, remote) } else { (remote, local) };
        let at: Duration = tapped.at - Instant::ZERO;
        let ecn = tapped.ecn.map_or(0, Ecn::bits);
        for payload in tapped.datagrams() {
            active.write(Item::Payload { at, from, to, ecn, bytes: payload.to_vec() });
        }
    }
}
