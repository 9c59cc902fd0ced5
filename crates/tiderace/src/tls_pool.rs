//! Thread pool for the TLS steps of handshakes, so that key exchange, signatures and slow private keys do not delay data.
//!
//! A driver submits a step of its endpoint. A thread runs it and returns the outcome, which wakes the driver. The driver runs a single step
//! itself once recent steps have been quick: waking a thread would cost more than it gains.
//!
//! Endpoints bound the queue: each has at most [`WAITING`] first steps in it, and one step of each handshake that has begun.

#[cfg(target_os = "linux")]
use std::sync::{PoisonError, RwLock};
use std::{
    cell::RefCell,
    collections::VecDeque,
    num::NonZeroUsize,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, TryLockError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    thread,
};

use tokio::sync::mpsc;
use transport::{Endpoint, TlsDone, TlsStep};
use units::{Duration, Instant};

#[cfg(target_os = "linux")]
use crate::thread_policy::{Effort, Thread};

/// Handshakes of an endpoint that wait for their first step, at most. At 2,000 handshakes per second and core, the last of
/// them waits about as long as a client is willing to before it repeats its first packet.
const WAITING: usize = 256;
/// Outcomes that a driver takes in before data gets its turn: each installs keys and makes a flight of packets.
const OUTCOMES_PER_PASS: usize = 4;
/// CPU time up to which a step without waiting is quick: data may wait for it.
const QUICK: Duration = Duration::from_millis(1);
/// Quick steps in a row after which the driver runs a step that is alone.
const PROOF: u32 = 32;
/// Time without an outcome after which each thread gets a step even if the processors are busy. A step takes a fraction of a millisecond:
/// so a processor that is never idle still completes some hundred handshakes per second, and they take a tenth of it at most.
const PATIENCE: Duration = Duration::from_millis(5);
/// Threads of a pool at most, while some wait for something outside.
const MOST_THREADS: usize = 512;
/// Time after which a thread ends that has taken the place of one that waited, and has nothing to do.
const IDLE: std::time::Duration = std::time::Duration::from_secs(1);

thread_local! {
    /// Pool that the thread is of.
    static POOL: RefCell<Option<Arc<Queue>>> = const { RefCell::new(None) };
}

/// Runs what waits for something outside of the process, as for a signature that another machine makes. On a thread of a [`TlsPool`] another
/// thread takes its place meanwhile, as long as the pool has less than 512; elsewhere it is a plain call.
pub fn wait_outside<T>(waiting: impl FnOnce() -> T) -> T {
    let queue = POOL.with_borrow(Clone::clone);
    let _away = queue.as_ref().map(Away::begin);
    waiting()
}

/// A bounded number of threads for the TLS work of servers. Clones share the threads; with the last clone they end.
///
/// Steps of handshakes that are nearly complete run before first steps. On Linux the threads use only CPU time that endpoints' drivers and
/// other threads leave, and run one step at a time if these leave none. If the system does not let a process undo this (without
/// CAP_SYS_NICE and with RLIMIT_NICE below 20), they run with a lower share instead.
#[derive(Clone)]
pub struct TlsPool(Arc<Owner>);

struct Owner {
    queue: Arc<Queue>,
    threads: NonZeroUsize,
    started: OnceLock<()>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    ready: Condvar,
    /// Steps may wait for something outside: no driver runs one itself.
    may_wait: AtomicBool,
    /// Steps until the threads stand back again; 0 while they do.
    hurried: AtomicUsize,
    /// Written when a thread starts, and only read from then on: a thread with a low priority must not block others.
    #[cfg(target_os = "linux")]
    threads: RwLock<Vec<Thread>>,
}

#[derive(Default)]
struct Jobs {
    begun: VecDeque<Job>,
    new: VecDeque<Job>,
    closed: bool,
    /// Threads that shall be there for steps, that are there, and that wait for something outside.
    wanted: usize,
    threads: usize,
    away: usize,
}

/// Thread of a pool that waits for something outside; it is back when this is dropped.
struct Away<'a>(&'a Queue);

impl<'a> Away<'a> {
    fn begin(queue: &'a Arc<Queue>) -> Self {
        let mut jobs = queue.lock();
        jobs.away += 1;
        if jobs.threads - jobs.away < jobs.wanted && jobs.threads < MOST_THREADS {
            let of_thread = queue.clone();
            let thread = thread::Builder::new().name(format!("tls-{}", jobs.threads));
            match thread.spawn(move || of_thread.stand_in()) {
                Ok(_) => jobs.threads += 1,
                Err(e) => tracing::error!("cannot start a thread for handshakes: {e}"),
            }
        }
        Self(queue)
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.lock().away -= 1;
    }
}

struct Job {
    step: TlsStep,
    to: mpsc::UnboundedSender<Outcome>,
}

/// Outcome of a step, and whether it was quick.
struct Outcome {
    done: TlsDone,
    quick: bool,
}

impl Outcome {
    /// Runs a step. The processor's time counts, not the clock's: a thread that stands back may take long over little.
    #[cfg(target_os = "linux")]
    fn of(step: TlsStep) -> Self {
        let before = Effort::so_far();
        let done = step.run();
        let quick = before.zip(Effort::so_far()).is_some_and(|(before, after)| {
            after.waits == before.waits && after.cpu.saturating_sub(before.cpu) <= QUICK
        });
        Self { done, quick }
    }

    /// Runs a step.
    #[cfg(not(target_os = "linux"))]
    fn of(step: TlsStep) -> Self {
        Self::here(step)
    }

    /// Runs a step where data waits for it: the clock's time counts.
    fn here(step: TlsStep) -> Self {
        let started = std::time::Instant::now();
        let done = step.run();
        Self { done, quick: started.elapsed() <= QUICK }
    }
}

impl TlsPool {
    /// Makes a pool of this many threads, which start with the first handshake. What blocks the thread of a step, as a remote private
    /// key does, calls [`wait_outside`] for that, so that other steps go on; see also [`expect_remote_keys`](Self::expect_remote_keys).
    pub fn new(threads: NonZeroUsize) -> Self {
        Self(Arc::new(Owner { queue: Arc::default(), threads, started: OnceLock::new() }))
    }

    /// Lets no driver run a step itself, from here on: a step may wait for a signature that another machine makes.
    pub fn expect_remote_keys(&self) {
        self.0.queue.may_wait.store(true, Ordering::Relaxed);
    }

    fn submit(&self, job: Job) {
        self.0.started.get_or_init(|| {
            let mut jobs = self.0.queue.lock();
            (jobs.wanted, jobs.threads) = (self.0.threads.get(), self.0.threads.get());
            drop(jobs);
            for number in 0..self.0.threads.get() {
                let queue = self.0.queue.clone();
                let spawned = thread::Builder::new().name(format!("tls-{number}")).spawn(move || queue.work());
                if let Err(e) = spawned {
                    tracing::error!("cannot start a thread for handshakes: {e}");
                }
            }
        });
        let mut jobs = self.0.queue.lock_from_outside();
        if job.step.has_begun() {
            jobs.begun.push_back(job)
        } else {
            jobs.new.push_back(job)
        }
        drop(jobs);
        self.0.queue.ready.notify_one();
    }
}

impl Default for TlsPool {
    /// As many threads as there are processors.
    fn default() -> Self {
        Self::new(thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.ready.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().expect("nothing that can panic happens under the lock")
    }

    /// Takes the lock for a thread of normal priority: a holder of low priority may have been preempted, and is let run.
    fn lock_from_outside(&self) -> MutexGuard<'_, Jobs> {
        match self.jobs.try_lock() {
            Ok(jobs) => jobs,
            Err(TryLockError::WouldBlock) => {
                self.hurry();
                self.lock()
            }
            Err(TryLockError::Poisoned(_)) => unreachable!("nothing that can panic happens under the lock"),
        }
    }

    /// Runs steps until the pool is gone.
    fn work(self: &Arc<Self>) {
        self.begin();
        POOL.set(Some(self.clone()));
        while let Some(Job { step, to }) = self.next() {
            // The driver may be gone, and the handshake with it.
            let _ = to.send(Outcome::of(step));
            let before = self.hurried.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if before == Ok(1) {
                self.stand_back();
            }
        }
    }

    /// Runs steps in the place of a thread that waits, and ends when there is nothing more to do.
    fn stand_in(self: &Arc<Self>) {
        #[cfg(target_os = "linux")]
        if let Err(e) = Thread::current().take_less() {
            tracing::debug!("cannot lower the share of a thread for handshakes: {e}");
        }
        POOL.set(Some(self.clone()));
        while let Some(Job { step, to }) = self.next_for_stand_in() {
            // The driver may be gone, and the handshake with it.
            let _ = to.send(Outcome::of(step));
        }
    }

    /// Gives the calling thread its place behind the others.
    fn begin(&self) {
        #[cfg(target_os = "linux")]
        {
            let this = Thread::current();
            if !Thread::may_come_back() {
                if let Err(e) = this.take_less() {
                    tracing::debug!("cannot lower the share of a thread for handshakes: {e}");
                }
                return;
            }
            self.threads.write().unwrap_or_else(PoisonError::into_inner).push(this);
            self.stand_back();
        }
    }

    /// Lets others go first.
    fn stand_back(&self) {
        #[cfg(target_os = "linux")]
        for thread in self.threads.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Err(e) = thread.stand_back() {
                tracing::debug!("cannot lower the priority of a thread for handshakes: {e}");
            }
        }
    }

    /// Lets the threads run like any other until each could finish a step.
    fn hurry(&self) {
        #[cfg(target_os = "linux")]
        {
            let threads = self.threads.read().unwrap_or_else(PoisonError::into_inner);
            if threads.is_empty() || self.hurried.swap(threads.len(), Ordering::Relaxed) > 0 {
                return;
            }
            for thread in threads.iter() {
                if let Err(e) = thread.step_forward() {
                    tracing::debug!("cannot raise the priority of a thread for handshakes: {e}");
                }
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if jobs.closed {
                return None;
            }
            if let Some(job) = jobs.take() {
                return Some(job);
            }
            jobs = self.ready.wait(jobs).expect("nothing that can panic happens under the lock");
        }
    }

    /// The same for a thread that ends when it has been idle for a while, and those that are back are enough.
    fn next_for_stand_in(&self) -> Option<Job> {
        let mut jobs = self.lock();
        let mut is_idle = false;
        loop {
            if let Some(job) = jobs.take().filter(|_| !jobs.closed) {
                return Some(job);
            }
            if jobs.closed || is_idle && jobs.threads - jobs.away > jobs.wanted {
                jobs.threads -= 1;
                return None;
            }
            let waited = self.ready.wait_timeout(jobs, IDLE).expect("nothing that can panic happens under the lock");
            (jobs, is_idle) = (waited.0, waited.1.timed_out());
        }
    }
}

impl Jobs {
    fn take(&mut self) -> Option<Job> {
        self.begun.pop_front().or_else(|| self.new.pop_front())
    }
}

/// The driver's end: what is out, and the way back.
pub(crate) struct TlsLink {
    pool: TlsPool,
    to: mpsc::UnboundedSender<Outcome>,
    from: mpsc::UnboundedReceiver<Outcome>,
    out: usize,
    /// Quick steps since one that was not.
    quick: u32,
    /// Time of the last outcome, or of the first step after a time without any.
    moved: Instant,
}

impl TlsLink {
    /// Makes `endpoint`, one of `shards` that use the pool together, hand out its TLS steps.
    pub(crate) fn new(pool: TlsPool, shards: u8, endpoint: &mut Endpoint) -> Self {
        endpoint.hand_out_tls(WAITING.div_ceil(shards.into()));
        let (to, from) = mpsc::unbounded_channel();
        Self { pool, to, from, out: 0, quick: 0, moved: Instant::ZERO }
    }

    /// Processes outcomes. Returns `true` if there were any: then more may have arrived, and there may be packets to send. Otherwise the
    /// next outcome wakes the task of `cx`.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, now: Instant, endpoint: &mut Endpoint) -> bool {
        let mut any = false;
        for _ in 0..OUTCOMES_PER_PASS.min(self.out) {
            let Poll::Ready(Some(outcome)) = self.from.poll_recv(cx) else { break };
            self.out -= 1;
            self.moved = now;
            self.settle(now, outcome, endpoint);
            any = true;
        }
        if self.out > 0 && now.saturating_since(self.moved) >= PATIENCE {
            self.moved = now;
            self.pool.0.queue.hurry();
        }
        any
    }

    fn settle(&mut self, now: Instant, Outcome { done, quick }: Outcome, endpoint: &mut Endpoint) {
        self.quick = if quick { (self.quick + 1).min(PROOF) } else { 0 };
        endpoint.handle_tls_done(now, done);
    }

    /// Time at which to call [`receive`](Self::receive) without an outcome.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (self.out > 0).then(|| self.moved + PATIENCE)
    }

    /// Gives the pool the steps to run, except for a step that is alone if steps are quick: it runs here, and its handshake
    /// bytes are sent with everything else. Call [`receive`](Self::receive) before going to sleep.
    pub(crate) fn submit(&mut self, now: Instant, endpoint: &mut Endpoint) {
        let mut ran = self.pool.0.queue.may_wait.load(Ordering::Relaxed);
        while let Some(step) = endpoint.poll_tls_step() {
            if self.out == 0 && self.quick == PROOF && !ran {
                self.settle(now, Outcome::here(step), endpoint);
                ran = true;
                continue;
            }
            if self.out == 0 {
                self.moved = now;
            }
            self.out += 1;
            self.pool.submit(Job { step, to: self.to.clone() });
        }
    }
}
