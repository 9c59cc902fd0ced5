//! The gateway as a whole: start, reload, drain.
//!
//! `listeners` are the addresses of clients, `services` those of operators, who give orders by the `operations` and read the `figures`. In an
//! upgrade the older process does the `hand_over`, and the newer one the `take_over`; `state` is what both ask about. `notify` tells the service
//! manager about it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

mod error;
mod figures;
mod hand_over;
mod listeners;
mod notify;
mod operations;
mod panics;
mod services;
mod state;
mod take_over;
#[cfg(test)]
mod tests;

pub use self::{error::ProcessError, operations::https_records};
use self::{hand_over::HandOver, listeners::Listeners, services::Services};
use crate::{
    acme,
    activation::ActivationSockets,
    config::{
        self, Config,
        read::{ResolvedConfig, load_text},
    },
    ending::Ending,
    generation::{Generation, PersistentState, Shared},
    id_rotation::{IdChange, IdRotation, IdSettings},
    memory,
    metrics::{Metrics, ReasonLabel},
    observe::Logs,
    setup::SetupError,
    tls,
    upgrade::{Siblings, TakenOver, UpgradeError},
    worker::Workers,
    worker_panics::WorkerPanics,
};

/// Interval between checks of certificates and the ring of keys for changes.
const LOOK: Duration = Duration::from_secs(2);

/// A gateway that runs.
pub struct Process {
    file: PathBuf,
    /// The program that runs.
    program: PathBuf,
    /// Number of processes that have served, each an upgrade of the one before.
    number: u64,
    shared: Arc<Shared>,
    listeners: Listeners,
    services: Services,
    siblings: Siblings,
    handed_over: watch::Sender<HandOver>,
    reloading: tokio::sync::Mutex<()>,
    started: Instant,
    /// The last to go but for `_written`: everything above has tasks on them.
    workers: Workers,
    _written: Written,
}

/// Origin of the sockets of a process. Those that are missing are opened.
pub(crate) enum Origin<'a> {
    /// The service manager has opened them.
    Activated(ActivationSockets),
    /// An older process offers them.
    TakenOver(&'a mut TakenOver),
}

/// Waits, when it is dropped, until the lines of all requests are in the access log.
struct Written(Logs);

impl Drop for Written {
    fn drop(&mut self) {
        self.0.sync();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What the workers still have in hand is cut off by their end.
        self.shared.cause.note(Ending::Drained);
    }
}

impl Process {
    /// Starts the gateway of the configuration in `file`. Must be called within a tokio runtime, which then serves the admin
    /// socket and the metrics.
    ///
    /// # Errors
    /// When the configuration is wrong, or a part of it does not work.
    pub fn start(file: &Path) -> Result<Arc<Self>, ProcessError> {
        Self::start_with(file, ActivationSockets::default())
    }

    /// Does the same as [`start`](Self::start) on the sockets that the service manager has opened. Addresses without any are opened.
    ///
    /// # Errors
    /// As [`start`](Self::start), or when a socket cannot be used.
    pub fn start_with(file: &Path, sockets: ActivationSockets) -> Result<Arc<Self>, ProcessError> {
        let this = Self::build(file, Origin::Activated(sockets))?;
        this.services.serve(&this);
        this.watch_workers();
        notify::serving(this.shared.current().number);
        Ok(this)
    }

    /// Builds everything, on the sockets that another process offers. These accept only after [`commence`](Self::commence). Used ones are
    /// removed from `taken`.
    pub(crate) fn build(file: &Path, origin: Origin<'_>) -> Result<Arc<Self>, ProcessError> {
        let ResolvedConfig { config, text } = load_text(file)?;
        Self::assemble(file, config, origin).map_err(|error| error.locate(&text))
    }

    fn assemble(file: &Path, config: Config, origin: Origin<'_>) -> Result<Arc<Self>, ProcessError> {
        let (mut taken, activated) = match origin {
            Origin::Activated(sockets) => (None, sockets),
            Origin::TakenOver(taken) => (Some(taken), ActivationSockets::default()),
        };
        // The program may have another place when it is to be started again.
        let program = std::env::current_exe().unwrap_or_default();
        for warning in config::certificates(&config) {
            tracing::warn!("{}", warning.message);
        }
        let assigned = activated.assign(&listeners::addresses(&config), &listeners::plain_addresses(&config))?;
        let count = match &taken {
            Some(taken) => Some(taken.count(config.upgrade.kernel_steering)),
            None => assigned.count()?,
        };
        let workers = Workers::start(config.workers, count).map_err(ProcessError::Workers)?;
        assigned.check_workers(workers.count(), workers.sockets())?;
        if workers.count() > workers.sockets() {
            let (workers, sockets) = (workers.count(), workers.sockets());
            match &taken {
                Some(_) => tracing::warn!(
                    "{sockets} of {workers} workers have UDP sockets, until the service is restarted: more cannot join those of older processes"
                ),
                None => tracing::warn!(
                    "{sockets} of {workers} workers have UDP sockets: this user cannot add to those of the service manager; write ListenDatagram= \
                     {workers} times, with ReusePort=yes"
                ),
            }
        }
        let metrics = Arc::new(Metrics::default());
        let memory = config.limits.memory.0;
        let ids = IdSettings::new(&config.load_balancer).map_err(SetupError::from)?;
        let rotation = match &taken {
            Some(taken) => {
                let before = taken.routable_before.clone();
                let rotation = IdRotation::of_newer_process(taken.routable, before, ids, taken.read_by_others);
                rotation.ok_or(ProcessError::Routable)?
            }
            None => IdRotation::new(ids),
        };
        let mut persistent = match &taken {
            Some(taken) => PersistentState::with(taken.ring.clone(), taken.id_generation, memory),
            None => PersistentState::new(memory),
        }?;
        persistent.routable = Arc::new(rotation);
        if let Some(taken) = taken.as_deref_mut() {
            persistent.devices.set_offered(std::mem::take(&mut taken.devices));
        }
        let (number, configuration) = taken.as_ref().map_or((1, 1), |taken| (taken.process, taken.configuration));
        metrics.upgrade.process.set(number.cast_signed());
        let first = Generation::build(config, configuration, None, &persistent, &workers, &metrics)?;
        let config = first.config.clone();
        let panics = taken.as_ref().map(|taken| taken.panics).unwrap_or_default();
        let panics = WorkerPanics::new(panics, metrics.upgrade.panics.clone());
        let shared = Arc::new(Shared::new(first, metrics, persistent, panics));
        tokio::spawn(memory::watch(Arc::downgrade(&shared.memory), shared.admission.clone(), shared.metrics.clone()));
        let listeners = Listeners::open(taken.as_deref_mut(), assigned, &shared, &workers)?;
        let services = Services::open(&config, taken)?;
        let logs = shared.persistent.logs.clone();
        let this = Arc::new(Self {
            file: file.to_owned(),
            program,
            number,
            shared,
            listeners,
            services,
            siblings: Siblings::default(),
            handed_over: watch::Sender::new(HandOver::Serving),
            reloading: tokio::sync::Mutex::new(()),
            started: Instant::now(),
            workers,
            _written: Written(logs),
        });
        this.note_addresses();
        Ok(this)
    }

    /// Serves on the sockets that were taken over: the process before has stopped.
    pub(crate) fn commence(self: &Arc<Self>) {
        self.tell_siblings();
        self.listeners.accept(&self.shared.current());
        self.services.serve(self);
        self.follow_siblings();
        self.watch_workers();
    }

    /// Passes the addresses of this gateway to its proxies.
    fn note_addresses(&self) {
        let own = self.addresses().into_iter().chain(self.redirecting()).chain(self.metrics_address());
        self.shared.persistent.listeners.set(own.collect());
    }

    /// Reloads the configuration; returns its number. Requests and connections in progress are not affected. On an error nothing changes.
    ///
    /// The number of workers, the admin socket and the address of the figures stay what they were at the start. A reload that is asked for
    /// during an upgrade is one of the newer process, and an error here.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn reload(&self) -> Result<u64, ProcessError> {
        let was_main = !self.has_handed_over();
        let _one_at_a_time = self.reloading.lock().await;
        let handed_over = *self.handed_over.borrow();
        // Messages of an older process would be taken for those of the main one.
        let is_main = !handed_over.is_done();
        if is_main {
            notify::reloading();
        }
        // Asked during an upgrade: the newer process may have read the file before it changed, and the service manager waits for its messages.
        if was_main && let HandOver::Done(newer) = handed_over {
            hand_over::hang_up(newer);
        }
        let result = self.try_reload().await;
        if is_main {
            notify::reloaded(&result);
        }
        let reason = if result.is_ok() { "completed" } else { "refused" };
        self.shared.metrics.reloads.get_or_create(&ReasonLabel { reason }).inc();
        result
    }

    async fn try_reload(&self) -> Result<u64, ProcessError> {
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || load_text(&file)).await.map_err(ProcessError::Interrupted)??;
        let ResolvedConfig { config, text } = read;
        self.apply(config).map_err(|error| error.locate(&text))
    }

    fn apply(&self, config: Config) -> Result<u64, ProcessError> {
        if self.has_handed_over() {
            return Err(UpgradeError::HandedOver.into());
        }
        let before = self.shared.current();
        let persistent = &self.shared.persistent;
        let ids = IdSettings::new(&config.load_balancer).map_err(SetupError::from)?;
        let change = persistent.routable.judge(&ids, !before.config.load_balancer.machines.is_empty());
        if change == IdChange::Refused {
            return Err(ProcessError::Routable);
        }
        let keys = persistent.ring.keys();
        let next = Generation::build(
            config,
            before.number + 1,
            Some(&before),
            persistent,
            &self.workers,
            &self.shared.metrics,
        )?;
        // What can fail comes first: addresses are opened before anything is changed.
        let opened = self.listeners.open_more(&next, &self.shared, &self.workers);
        let opened = opened.inspect_err(|_| self.note_addresses())?;
        let next = self.shared.replace(next);
        self.listeners.adopt(opened, &next, &self.siblings);
        if change != IdChange::None {
            persistent.routable.apply(ids);
        }
        self.renew_ids(change, persistent.ring.keys() != keys);
        self.note_addresses();
        tracing::info!("configuration {} is in use", next.number);
        Ok(next.number)
    }

    /// Lets connections replace their connection IDs after a reload that has changed what these are made with.
    fn renew_ids(&self, ids: IdChange, has_new_ring: bool) {
        let persistent = &self.shared.persistent;
        // One generator makes IDs and reads them, so it is replaced when others are read, too.
        let made = persistent.routable.current().filter(|_| ids != IdChange::None);
        let older = persistent.routable.older();
        for (address, listener) in self.listeners.secure().iter() {
            if let Some(made) = made
                && let Err(error) = listener.endpoint().rotate_ids(made, &older, persistent.id_generation)
            {
                tracing::error!("{address}: connection IDs stay what they were: {error}");
            } else if has_new_ring {
                listener.endpoint().renew_ids();
            }
        }
    }

    /// The addresses that are served, with the ports that they have got.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.secure_addresses()
    }

    /// The addresses of plain HTTP that redirect, with the ports that they have got.
    pub fn redirecting(&self) -> Vec<SocketAddr> {
        self.listeners.plain_addresses()
    }

    /// Renews certificates and the key ring until `stop` is ready; then drains, within the time limit of the configuration.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let watching = async {
            let mut seen = tls::changed(&self.shared.current().config);
            loop {
                tokio::time::sleep(LOOK).await;
                let now = tls::changed(&self.shared.current().config);
                if now != seen {
                    seen = now;
                    self.reload_certificates().await;
                }
            }
        };
        let challenges = &self.shared.persistent.challenges;
        let certificates = acme::keep(|| self.shared.current().config.acme.clone(), challenges, &self.shared.metrics);
        let mut stop = pin!(stop);
        let mut handed_over = self.handed_over.subscribe();
        let is_handed_over = tokio::select! {
            () = watching => false,
            () = certificates => false,
            () = stop.as_mut() => false,
            _ = handed_over.wait_for(|state| state.is_done()) => true,
        };
        if is_handed_over {
            tokio::select! {
                () = self.idle_after_hand_over() => {}
                () = stop => {}
            }
        }
        self.drain().await;
    }

    /// Waits until the connections of a process that has handed over have ended, or had their time.
    async fn idle_after_hand_over(&self) {
        let patience = self.config().upgrade.drain.0;
        let all_gone = async {
            // Other machines learn by a client's next packet that their answers lead through the newer process.
            while self.open_connections() > 0 || self.shared.persistent.machines.is_answering() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(patience, all_gone).await.is_err() {
            tracing::info!("`upgrade.drain` is over: {} connections drain", self.open_connections());
        }
    }

    /// Reloads certificates only: the configuration stays the one in use, not that of the file.
    async fn reload_certificates(&self) {
        let _one_at_a_time = self.reloading.lock().await;
        let config = self.shared.current().config.clone();
        match self.apply(config) {
            Ok(_) => tracing::info!("certificates or keys have changed, and the new ones are in use"),
            Err(error) => tracing::warn!("certificates or keys have changed, and the old ones stay in use: {error}"),
        }
    }

    /// Accepts no more connections, and waits until the existing ones have ended.
    pub async fn drain(&self) {
        if !self.has_handed_over() {
            notify::stopping();
        }
        self.shared.panics.leave();
        let generation = self.shared.current();
        self.listeners.drain(&generation);
        let all_gone = async {
            while self.shared.admission.total() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let patience = generation.config.drain.0 + Duration::from_secs(3);
        if tokio::time::timeout(patience, all_gone).await.is_err() {
            self.shared.cause.note(Ending::Drained);
            tracing::warn!("{} connections were cut off by the stop", self.shared.admission.total());
        }
        self.shared.persistent.logs.sync();
        // A process without connections ends as soon as an upgrade is done, and the operator has yet to hear of it.
        self.services.all_answered().await;
        self.services.remove();
    }
}
