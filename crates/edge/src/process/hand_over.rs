//! Older process of an upgrade: starts the newer one, offers it the sockets, stops, and drains its connections.

use std::{
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixDatagram, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{Process, notify};
use crate::{
    activation::VARIABLES,
    metrics::ReasonLabel,
    upgrade::{
        PROTOCOL, UpgradeError,
        channel::{Channel, is_gone, is_late},
        describe,
        messages::{
            Answer, Built, Commit, DeviceOffer, HandshakeOffer, Hello, OLDEST, Offer, Serving, SiblingOffer, Taken,
            WITH_DEVICES, WITH_STEERING,
        },
    },
};

/// Time limit between the stop of this process and the start of the newer one, which has only to begin.
const COMMIT_PATIENCE: Duration = Duration::from_secs(10);
/// A program that has closed the channel ends within this time.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// Largest number of reported connection IDs of handshakes.
const MOST_HANDSHAKES: usize = 16_384;
/// Older processes with connections, at most. Each has a byte in connection IDs.
const MOST_SIBLINGS: usize = 200;

/// State of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    /// New connections are taken here.
    Serving,
    /// The process with this ID takes them.
    Done(u32),
}

impl HandOver {
    pub(super) fn is_done(self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// Lets the newer process reload.
pub(super) fn hang_up(newer: u32) {
    let Some(pid) = i32::try_from(newer).ok().and_then(Pid::from_raw) else { return };
    match kill_process(pid, Signal::HUP) {
        Ok(()) => tracing::info!("PID {newer} serves, and reloads in place of this process"),
        Err(error) => tracing::warn!("PID {newer} serves, and cannot be asked to reload: {error}"),
    }
}

impl Process {
    /// Starts `program`, or the program of this process, and hands everything over to it. Returns its process ID.
    ///
    /// # Errors
    /// When the new program does not serve. This process continues then.
    pub async fn upgrade(self: &Arc<Self>, program: Option<PathBuf>) -> Result<u32, UpgradeError> {
        let _no_reload_meanwhile = self.reloading.lock().await;
        let this = self.clone();
        let upgraded = tokio::task::spawn_blocking(move || this.try_upgrade(program)).await;
        let upgraded = upgraded.map_err(|error| UpgradeError::Broken(io::Error::other(error))).flatten();
        let reason = if upgraded.is_ok() { "completed" } else { "refused" };
        self.metrics().upgrade.upgrades.get_or_create(&ReasonLabel { reason }).inc();
        upgraded
    }

    fn try_upgrade(self: &Arc<Self>, program: Option<PathBuf>) -> Result<u32, UpgradeError> {
        if self.has_handed_over() {
            return Err(UpgradeError::HandedOver);
        }
        let patience = self.config().upgrade.start_timeout.0;
        let program = program.unwrap_or_else(|| self.program.clone());
        let (own, other) = UnixStream::pair()?;
        let mut child = start(&program, &self.file, other)
            .map_err(|source| UpgradeError::Start { program: program.clone(), source })?;
        let channel = Channel::new(own);
        let mut paused = None;
        match self.offer_all(&channel, Instant::now() + patience, &mut paused) {
            Ok(taken) => {
                let pid = child.id();
                self.complete(&taken, channel.into_stream(), pid);
                notify::handed_over(pid, self.number() + 1);
                tracing::info!("process {} (PID {pid}) serves; this one ends its connections", self.number() + 1);
                // A child that has ended stays in the table of processes until somebody asks.
                std::thread::Builder::new().name("child".to_owned()).spawn(move || child.wait())?;
                Ok(pid)
            }
            Err(error) => {
                let ended = end(child, matches!(&error, UpgradeError::Broken(error) if is_gone(error)));
                // When nobody else reads any more.
                if let Some(taken) = paused {
                    self.resume(&taken);
                }
                let error = match error {
                    UpgradeError::Broken(error) if is_late(&error) => UpgradeError::Late(patience),
                    UpgradeError::Broken(error) if is_gone(&error) => match ended {
                        Ok(status) => UpgradeError::Ended(status),
                        Err(error) => UpgradeError::Broken(error),
                    },
                    other => other,
                };
                tracing::warn!("the upgrade changes nothing: {error}");
                Err(error)
            }
        }
    }

    /// Exchanges messages with the newer process until it serves. `paused` are the stopped parts of this one.
    fn offer_all(
        &self,
        channel: &Channel,
        deadline: Instant,
        paused: &mut Option<Taken>,
    ) -> Result<Taken, UpgradeError> {
        channel.set_deadline(deadline)?;
        let Hello { from, to, program } = channel.receive()?;
        let protocol = to.min(PROTOCOL);
        if protocol < from.max(OLDEST) {
            let error = UpgradeError::Protocol { from, to };
            channel.send(&Answer::Refused(error.to_string()))?;
            return Err(error);
        }
        tracing::info!("a program of version {program} takes over");
        let (offer, descriptors) = self.offer(protocol)?;
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        channel.send(&Answer::Offer(Box::new(offer)))?;
        channel.send_descriptors(&borrowed)?;
        channel.set_deadline(deadline)?;
        let taken = match channel.receive()? {
            Built::Ready(taken) => taken,
            Built::Failed { error, hint, cause } => return Err(UpgradeError::Refused { cause, error, hint }),
        };
        channel.set_deadline(Instant::now() + COMMIT_PATIENCE)?;
        let commit = self.pause(&taken);
        let taken = paused.insert(taken);
        channel.send(&commit)?;
        let Serving {} = channel.receive()?;
        Ok(std::mem::take(taken))
    }

    /// State and sockets of this process.
    fn offer(&self, protocol: u32) -> Result<(Offer, Vec<OwnedFd>), UpgradeError> {
        let siblings = self.siblings.all().clone();
        let own = self.shared.persistent.id_generation;
        let is_free =
            |number: &u8| siblings.iter().all(|sibling| sibling.generation != *number) && *number != own.number;
        let generation = (1..=u8::MAX).map(|step| own.number.wrapping_add(step)).find(is_free);
        let Some(generation) = generation.filter(|_| siblings.len() < MOST_SIBLINGS) else {
            return Err(UpgradeError::TooMany(siblings.len()));
        };
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        let mut copy = |descriptor: BorrowedFd<'_>| -> io::Result<()> {
            descriptors.push(descriptor.try_clone_to_owned()?);
            Ok(())
        };
        let listeners = self.listeners.secure();
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for (address, listener) in listeners.iter() {
            addresses.push(*address);
            listener.tcp().iter().try_for_each(|socket| copy(socket.as_fd()))?;
            listener.endpoint().sockets().try_for_each(|socket| copy(socket.as_fd()))?;
        }
        let plain: Vec<SocketAddr> = {
            let plain = self.listeners.plain();
            plain.values().try_for_each(|listener| copy(listener.socket().as_fd()))?;
            plain.keys().copied().collect()
        };
        let (admin, metrics) = (self.services.admin(), self.services.metrics());
        admin.iter().try_for_each(|(_, socket)| copy(socket.as_fd()))?;
        metrics.iter().try_for_each(|(_, socket)| copy(socket.as_fd()))?;
        let mut offers = Vec::new();
        for sibling in &siblings {
            offers.push(sibling.offer());
            sibling.descriptors().try_for_each(&mut copy)?;
        }
        let mut shards = Vec::new();
        for address in &addresses {
            let inbox = listeners[address].endpoint().open_inbox()?;
            inbox.iter().map(UnixDatagram::as_fd).try_for_each(&mut copy)?;
            shards.push((*address, inbox.len()));
        }
        offers.push(SiblingOffer {
            process: self.number(),
            generation: own.number,
            pid: std::process::id(),
            addresses: shards,
        });
        let mut devices = Vec::new();
        if protocol >= WITH_DEVICES {
            for device in self.shared.persistent.devices.offer()? {
                devices.push(DeviceOffer { name: device.name, processes: device.descriptors.len() - 1 });
                device.descriptors.iter().map(AsFd::as_fd).try_for_each(&mut copy)?;
            }
        }
        let mut steered = Vec::new();
        for address in addresses.iter().filter(|_| protocol >= WITH_STEERING) {
            if let Some(table) = listeners[address].endpoint().steering_table() {
                copy(table)?;
                steered.push(*address);
            }
        }
        let offer = Offer {
            protocol,
            process: self.number() + 1,
            generation,
            id_key: own.key,
            routable: describe(self.shared.persistent.routable.current().as_ref()),
            routable_before: self
                .shared
                .persistent
                .routable
                .older()
                .iter()
                .filter_map(|older| describe(Some(older)))
                .collect(),
            read_by_others: !self.shared.current().config.load_balancer.machines.is_empty(),
            ring: self.shared.persistent.ring.to_text(),
            configuration: self.shared.current().number + 1,
            sockets: u8::try_from(self.workers.sockets()).unwrap_or(u8::MAX),
            alone: listeners
                .iter()
                .filter(|(_, listener)| !listener.endpoint().is_among_others())
                .map(|(address, _)| *address)
                .collect(),
            addresses,
            plain,
            admin: admin.map(|(path, _)| path.display().to_string()),
            metrics: metrics.map(|(address, _)| address.to_owned()),
            siblings: offers,
            panics: self.shared.panics.history(),
            devices,
            steered,
        };
        Ok((offer, descriptors))
    }

    /// Stops reading and accepting where the newer process takes over; returns the handshakes that are in progress.
    fn pause(&self, taken: &Taken) -> Commit {
        self.services.stop();
        self.siblings.unfollow();
        let generation = self.shared.current();
        let (listeners, plain) = (self.listeners.secure(), self.listeners.plain());
        let tunnels = self.shared.persistent.devices.pause(&taken.devices);
        let mut commit = Commit { handshakes: self.siblings.handshakes(), tunnels };
        for address in &taken.plain {
            plain.get(address).inspect(|listener| listener.set_accepting(false));
        }
        for address in &taken.addresses {
            let Some(listener) = listeners.get(address) else { continue };
            listener.set_accepting(false, &generation);
            let room = MOST_HANDSHAKES.saturating_sub(commit.handshakes.len());
            let handshakes = listener.endpoint().handshakes(room);
            commit.handshakes.extend(handshakes.into_iter().map(|(id, shard)| {
                let mut bytes = [0; 20];
                bytes[..id.len()].copy_from_slice(id.as_slice());
                let generation = self.shared.persistent.id_generation.number;
                let len = u8::try_from(id.len()).expect("an ID has at most 20 bytes");
                HandshakeOffer { address: *address, generation, shard, len, id: bytes }
            }));
        }
        commit
    }

    /// Takes everything back, because the newer process does not serve.
    fn resume(self: &Arc<Self>, taken: &Taken) {
        let generation = self.shared.current();
        for address in &taken.addresses {
            self.listeners.secure().get(address).inspect(|listener| listener.set_accepting(true, &generation));
        }
        for address in &taken.plain {
            self.listeners.plain().get(address).inspect(|listener| listener.set_accepting(true));
        }
        self.shared.persistent.devices.resume();
        self.services.serve(self);
        self.follow_siblings();
    }

    /// Leaves everything to the newer process, for good.
    fn complete(self: &Arc<Self>, taken: &Taken, control: UnixStream, newer: u32) {
        let generation = self.shared.current();
        for (address, listener) in self.listeners.secure().iter() {
            match taken.addresses.contains(address) {
                true => listener.hand_over(),
                false => listener.drain(&generation),
            }
        }
        self.listeners.plain().clear();
        self.services.leave(taken.admin);
        self.handed_over.send_replace(HandOver::Done(newer));
        self.shared.panics.leave();
        let this = self.clone();
        tokio::spawn(async move {
            if let Err(error) = this.answer_newer(control).await {
                tracing::debug!("the newer process: {error}");
            }
            this.read_again();
        });
    }

    /// Answers the newest process until there is none.
    async fn answer_newer(&self, control: UnixStream) -> io::Result<()> {
        control.set_nonblocking(true)?;
        let mut control = BufReader::new(tokio::net::UnixStream::from_std(control)?);
        let mut line = String::new();
        while control.read_line(&mut line).await? != 0 {
            let number = line.trim().strip_prefix("status ").and_then(|number| number.parse::<u64>().ok());
            line.clear();
            let answer = match number {
                Some(number) => {
                    let steered = self.socket_stats().steered;
                    json!({"number": number, "connections": self.open_connections(), "steered": steered})
                }
                None => json!({"error": "there is only status"}),
            };
            control.write_all(format!("{answer}\n").as_bytes()).await?;
        }
        Ok(())
    }

    /// Reads for its own connections, and for those of older processes, because no newer process is left.
    fn read_again(self: &Arc<Self>) {
        tracing::warn!("no newer process is left: this one reads for its connections, and takes no new ones");
        for listener in self.listeners.secure().values() {
            listener.endpoint().set_reading(true);
        }
        self.shared.persistent.devices.resume();
        self.follow_siblings();
    }
}

/// Starts the program with its end of the channel on the standard input: an argument would have to name a descriptor that
/// survives `exec`, and so would reach every other program that is started meanwhile.
fn start(program: &Path, config: &Path, channel: UnixStream) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(["edge", "run", "--take-over", "--config"]).arg(config);
    // Meant for this process: the newer one is offered the sockets.
    VARIABLES.iter().for_each(|variable| _ = command.env_remove(variable));
    command.stdin(OwnedFd::from(channel)).spawn()
}

/// Ends a program that does not take over; returns how it ended.
fn end(mut child: Child, is_ending: bool) -> io::Result<ExitStatus> {
    let since = Instant::now();
    while is_ending && since.elapsed() < EXIT_PATIENCE {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => break,
        }
    }
    // It may have ended by itself meanwhile.
    let _ = child.kill();
    child.wait()
}
