//! Older processes, which drain their connections: the channels to them, and their reports.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixDatagram, UnixStream},
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tiderace::{ConnectionId, Endpoint, Sibling, transport::SiblingShard};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    task::AbortHandle,
    time::timeout,
};

use super::messages::{HandshakeOffer, SiblingOffer};

/// Interval between questions.
const INTERVAL: Duration = Duration::from_millis(500);
/// An answer takes no longer, or the process is left out of the status until it has another one.
const PATIENCE: Duration = Duration::from_secs(5);
/// No handshake of an older process takes longer than this.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(60);

/// Report of an older process, as far as its program knows the figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Open connections.
    pub(crate) connections: Option<u64>,
    /// Reads that the kernel has steered to it.
    pub(crate) steered: Option<u64>,
}

impl Report {
    fn read(answer: &Value) -> Self {
        Self { connections: answer["connections"].as_u64(), steered: answer["steered"].as_u64() }
    }
}

/// An older process.
pub(crate) struct SiblingProcess {
    pub(crate) process: u64,
    pub(crate) generation: u8,
    pub(crate) pid: u32,
    /// Stream to it. The process knows by its end that no newer one is left.
    pub(crate) control: UnixStream,
    pub(crate) links: HashMap<SocketAddr, Arc<Sibling>>,
    /// Its last report.
    report: Mutex<Report>,
}

impl SiblingProcess {
    pub(crate) fn new(offer: &SiblingOffer, control: UnixStream, mut senders: impl Iterator<Item = OwnedFd>) -> Self {
        let links = offer.addresses.iter().map(|(address, shards)| {
            let shards = senders.by_ref().take(*shards).map(UnixDatagram::from).collect();
            (*address, Arc::new(Sibling { generation: offer.generation, shards }))
        });
        Self {
            process: offer.process,
            generation: offer.generation,
            pid: offer.pid,
            links: links.collect(),
            control,
            report: Mutex::default(),
        }
    }

    pub(crate) fn offer(&self) -> SiblingOffer {
        let addresses = self.links.iter().map(|(address, link)| (*address, link.shards.len()));
        SiblingOffer {
            process: self.process,
            generation: self.generation,
            pid: self.pid,
            addresses: addresses.collect(),
        }
    }

    /// Descriptors of the ways to it, in the order of the offer.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let shards = self.links.values().flat_map(|link| &link.shards);
        std::iter::once(self.control.as_fd()).chain(shards.map(AsFd::as_fd))
    }

    /// Asks it repeatedly, until it has ended.
    async fn follow(&self) -> io::Result<()> {
        let control = self.control.try_clone()?;
        control.set_nonblocking(true)?;
        let mut control = BufReader::new(tokio::net::UnixStream::from_std(control)?);
        let mut number = u64::from(std::process::id()) << 32;
        loop {
            number += 1;
            control.write_all(format!("status {number}\n").as_bytes()).await?;
            let answered = async {
                loop {
                    let mut line = String::new();
                    if control.read_line(&mut line).await? == 0 {
                        return Ok::<_, io::Error>(None);
                    }
                    // What an earlier reader of this stream has left half read is none.
                    let answer: Value = serde_json::from_str(&line).unwrap_or_default();
                    if answer["number"].as_u64() == Some(number) {
                        return Ok(Some(Report::read(&answer)));
                    }
                }
            };
            let report = match timeout(PATIENCE, answered).await {
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(Some(report))) => report,
                Err(_) => Report::default(),
            };
            *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
            // Nothing comes unasked but the end.
            if let Ok(ended) = timeout(INTERVAL, control.fill_buf()).await
                && ended?.is_empty()
            {
                return Ok(());
            }
        }
    }
}

/// All older processes that live.
#[derive(Default)]
pub(crate) struct Siblings {
    all: Mutex<Vec<Arc<SiblingProcess>>>,
    handshakes: Mutex<(Vec<HandshakeOffer>, Option<Instant>)>,
    following: Mutex<Vec<AbortHandle>>,
}

impl Siblings {
    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Arc<SiblingProcess>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handshakes that began in older processes, as long as they may last.
    pub(crate) fn handshakes(&self) -> Vec<HandshakeOffer> {
        let handshakes = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = handshakes.1.is_some_and(|since| since.elapsed() < LONGEST_HANDSHAKE);
        if is_recent { handshakes.0.clone() } else { Vec::new() }
    }

    pub(crate) fn set_handshakes(&self, handshakes: Vec<HandshakeOffer>) {
        *self.handshakes.lock().unwrap_or_else(PoisonError::into_inner) = (handshakes, Some(Instant::now()));
    }

    /// Informs an endpoint about the processes with connections at its address.
    pub(crate) fn tell(&self, address: SocketAddr, endpoint: &Endpoint) {
        let links: Vec<_> = self.all().iter().filter_map(|sibling| sibling.links.get(&address).cloned()).collect();
        let handshakes = self.handshakes().into_iter().filter(|handshake| handshake.address == address);
        let known = handshakes.filter_map(|handshake| {
            let id = ConnectionId::new(handshake.id.get(..usize::from(handshake.len))?)?;
            Some((id, SiblingShard { generation: handshake.generation, shard: handshake.shard }))
        });
        endpoint.set_siblings(&links, known);
    }

    /// Returns whether an older process has connections at an address.
    pub(crate) fn need(&self, address: &SocketAddr) -> bool {
        self.all().iter().any(|sibling| sibling.links.contains_key(address))
    }

    /// Follows the older processes until they have ended. Calls `on_change` when one has ended, with its number, and once when their
    /// handshakes are over.
    pub(crate) fn follow(&self, on_change: impl Fn(Option<u64>) + Clone + Send + 'static) {
        let all = self.all().clone();
        let followed = all.into_iter().map(|sibling| {
            let on_change = on_change.clone();
            tokio::spawn(async move {
                if let Err(error) = sibling.follow().await {
                    tracing::debug!("process {}: {error}", sibling.process);
                }
                tracing::info!("process {} (PID {}) has ended", sibling.process, sibling.pid);
                on_change(Some(sibling.process));
            })
            .abort_handle()
        });
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        following.extend(followed);
        let forgetting = tokio::spawn(async move {
            tokio::time::sleep(LONGEST_HANDSHAKE).await;
            on_change(None);
        });
        following.push(forgetting.abort_handle());
    }

    /// Forgets a process that has ended.
    pub(crate) fn remove(&self, process: u64) {
        self.all().retain(|sibling| sibling.process != process);
    }

    /// Leaves the older processes to a newer one.
    pub(crate) fn unfollow(&self) {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        following.drain(..).for_each(|task| task.abort());
    }

    /// Last reports of the processes, with their numbers and process IDs.
    pub(crate) fn status(&self) -> Vec<(u64, u32, Report)> {
        let report = |sibling: &SiblingProcess| *sibling.report.lock().unwrap_or_else(PoisonError::into_inner);
        self.all().iter().map(|sibling| (sibling.process, sibling.pid, report(sibling))).collect()
    }

    /// The same, as JSON.
    pub(crate) fn to_json(&self) -> impl Iterator<Item = Value> {
        self.status().into_iter().map(|(process, pid, Report { connections, steered })| {
            json!({"process": process, "pid": pid, "serving": false, "connections": connections, "steered": steered})
        })
    }
}
