//! Task that drives an endpoint: reads, runs the state machine, writes, sleeps.
//!
//! One pass processes all datagrams of the socket (within a bound), expired deadlines, TLS steps for the pool, events for waiting tasks,
//! and data to send. Then the task sleeps until the socket, a deadline or a handle wakes it. If tasks were woken, sending waits for their
//! turn: so an acknowledgement is sent with the answer, and several answers in one batch. Many tasks are woken in portions, and one task that
//! writes to many streams lets this one send in between ([`turn`](crate::turn)), so that the peer need not wait for the last answer.

mod moving;
#[cfg(target_os = "linux")]
mod processes;

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::time::Sleep;
use transport::Transmit;
use units::Instant;
use wire::ProxyHeader;

use crate::{
    load_balancers::LoadBalancers,
    machines,
    panics::PanicAction,
    pending::Pending,
    shards::ShardLink,
    shared::{Shared, State},
    socket::{SEND_BUFFER, Socket, is_transient},
    tap::MaybeTap,
    tls_pool::TlsLink,
};
#[cfg(target_os = "linux")]
use crate::{siblings::Inbox, steering::SteeredSocket};

/// System calls for reading, and for writing, before other tasks of the runtime get their turn.
const READS_PER_PASS: usize = 16;
/// Bytes read before other work gets its turn: received data is still in the processor's cache when the application reads it, and its
/// buffer is free again for the next read.
const BYTES_PER_PASS: usize = 256 * 1024;
const WRITES_PER_PASS: usize = 16;
/// New connections before existing ones get their turn: each costs as much as a batch of their packets.
const ACCEPTED_PER_PASS: u64 = 4;

/// Parts that a driver works with beside its socket.
pub(crate) struct Parts {
    pub(crate) tls: Option<TlsLink>,
    pub(crate) shards: Option<ShardLink>,
    pub(crate) balancers: Option<LoadBalancers>,
    pub(crate) tap: MaybeTap,
    pub(crate) on_panic: Option<PanicAction>,
}

/// Owns the socket of an endpoint; a future that ends when the endpoint is closed and drained.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    socket: Socket,
    /// Second socket of a client that moves.
    moving: Option<moving::Moving>,
    send_buffer: Vec<u8>,
    /// Datagrams that the socket did not take; they wait in `send_buffer`.
    unsent: Option<Transmit>,
    sleep: Pin<Box<Sleep>>,
    sleeps_until: Option<Instant>,
    /// Worker of TLS, unless it runs here.
    tls: Option<TlsLink>,
    /// Handshakes that wait for an answer from outside.
    pending: Pending,
    /// The shards beside this one.
    shards: Option<ShardLink>,
    /// The socket is watched for reading.
    reading: bool,
    /// Datagrams that another process reads for this one.
    #[cfg(target_os = "linux")]
    inbox: Option<Inbox>,
    /// Socket to which the kernel steers the packets of this process, which has handed over.
    #[cfg(target_os = "linux")]
    steered: Option<SteeredSocket>,
    /// Tasks to be woken, some in each pass: the peer processes the first answers while the others are made.
    wake: Vec<Waker>,
    /// Sending is deferred until the woken tasks have run.
    deferred: bool,
    tap: MaybeTap,
    on_panic: Option<PanicAction>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.report_loss();
        }
    }
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, mut socket: Socket, parts: Parts) -> Self {
        let Parts { tls, shards, balancers, tap, on_panic } = parts;
        let pending = Pending::new(&mut shared.lock().endpoint);
        let segments = socket.max_segments();
        // Without GSO each send carries one payload.
        let size = if segments > 1 { SEND_BUFFER } else { 2048 };
        socket.balancers = balancers;
        Self {
            shared,
            socket,
            moving: None,
            send_buffer: vec![0; size],
            unsent: None,
            sleep: Box::pin(tokio::time::sleep(std::time::Duration::ZERO)),
            sleeps_until: None,
            tls,
            pending,
            shards,
            reading: true,
            #[cfg(target_os = "linux")]
            inbox: None,
            #[cfg(target_os = "linux")]
            steered: None,
            wake: Vec::new(),
            deferred: false,
            tap,
            on_panic,
        }
    }

    /// Gives the shard up after a panic, and reports it once.
    fn report_loss(&mut self) {
        self.shared.abandon();
        if let Some(act) = self.on_panic.take() {
            act();
        }
    }

    /// Load balancers that name clients.
    pub(crate) fn balancers(&self) -> Option<&LoadBalancers> {
        self.socket.balancers.as_ref()
    }

    /// Number of the shard.
    pub(crate) fn shard(&self) -> u8 {
        self.shared.shard
    }

    /// Hands datagrams of connections that other machines hold to the links.
    fn forward_elsewhere(&self, state: &mut State) {
        while let Some((holder, datagram)) = state.endpoint.poll_elsewhere() {
            let Some(links) = &state.machines else { continue };
            let has_header = self.balancers().and_then(|all| all.way_back(datagram.local)).is_some();
            links.forward(self.shard(), holder, &datagram, has_header);
        }
    }

    /// Reads available datagrams. Returns `true` if there may be more.
    fn receive(&mut self, cx: &mut Context<'_>, state: &mut State) -> bool {
        self.take_joined(state);
        if self.reading != state.reading {
            match self.socket.set_reading(state.reading) {
                Ok(()) => self.reading = state.reading,
                Err(error) => tracing::error!("cannot change who reads the socket: {error}"),
            }
        }
        if !state.reading {
            return false;
        }
        let mut bytes = 0;
        let enough = state.endpoint.stats().connections + ACCEPTED_PER_PASS;
        for _ in 0..READS_PER_PASS {
            if bytes >= BYTES_PER_PASS || state.endpoint.stats().connections >= enough {
                break;
            }
            let clock = &self.shared.clock;
            let (tap, shards, own) = (&self.tap, &self.shards, self.shared.shard);
            let balancers = self.socket.balancers.clone();
            let mut misplaced = 0;
            let read = self.socket.poll_recv(cx, clock, |now, datagram, hint| {
                machines::count(state.machines.as_ref(), balancers.as_ref(), &datagram);
                // A load balancer sends all that is for one connection to one shard, before the ID can name it.
                if let (Some(shards), Some(hint)) = (shards, hint)
                    && let Some(shard) = shards.other(hint, own)
                {
                    misplaced += u64::from(!shards.send(shard, datagram));
                    return;
                }
                tap.received(&datagram, balancers.as_ref());
                state.endpoint.handle_datagram(now, datagram);
            });
            self.socket.stats.forwards_dropped += misplaced;
            let Poll::Ready(read) = read else { return false };
            self.hand_to_siblings(state);
            self.forward_elsewhere(state);
            match read {
                Ok(more) => bytes += more,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // An ICMP message about an earlier datagram: the state machine finds out by itself.
                Err(e) if is_transient(&e) => {}
                Err(e) => {
                    tracing::error!("cannot read from the socket: {e}");
                    return false;
                }
            }
        }
        true
    }

    /// Writes what wants to leave. `true` when there may be more.
    fn transmit(&mut self, cx: &mut Context<'_>, state: &mut State) -> bool {
        state.turn.begin(&mut self.wake);
        for _ in 0..WRITES_PER_PASS {
            let transmit = match self.unsent.take() {
                Some(transmit) => transmit,
                None => {
                    let now = self.shared.clock.now();
                    let room = self.room();
                    let Some(transmit) = state.endpoint.poll_transmit(now, &mut self.send_buffer[..room]) else {
                        return false;
                    };
                    transmit
                }
            };
            let buffer = std::mem::take(&mut self.send_buffer);
            let sent = self.socket_for(&transmit).try_send(&transmit, &buffer);
            self.send_buffer = buffer;
            match sent {
                Ok(()) => {
                    let (buffer, balancers) = (&self.send_buffer, self.socket.balancers.as_ref());
                    self.tap.sent(|| self.shared.clock.now(), &transmit, buffer, balancers);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let is_full = self.socket_for(&transmit).poll_writable(cx).is_pending();
                    self.unsent = Some(transmit);
                    if is_full {
                        return false;
                    }
                }
                // To the state machine it is a lost datagram, and that is what it is.
                Err(e) => tracing::debug!("cannot send {} bytes to {}: {e}", transmit.len, transmit.remote),
            }
        }
        true
    }

    /// Bytes that one send may have before it gets headers for a load balancer, one in front of each payload.
    fn room(&self) -> usize {
        let all = self.send_buffer.len();
        let has_headers = self.socket.balancers.as_ref().is_some_and(LoadBalancers::are_used);
        if has_headers { all - ProxyHeader::MAX_LEN * self.socket.max_segments() } else { all }
    }

    /// Forwards misrouted datagrams to their shards, and takes those that other shards received for this one. Returns `true` if there may
    /// be more.
    fn exchange_misrouted(&mut self, cx: &mut Context<'_>, state: &mut State) -> bool {
        let Some(shards) = &mut self.shards else { return false };
        self.socket.stats.forwards_dropped += shards.hand_over(&mut state.endpoint);
        let now = self.shared.clock.now();
        shards.receive(cx, |datagram| state.endpoint.handle_datagram(now, datagram))
    }

    /// Takes in the outcomes of TLS steps. `true` when there may be more.
    fn receive_tls(&mut self, cx: &mut Context<'_>, state: &mut State) -> bool {
        let Some(tls) = &mut self.tls else { return false };
        tls.receive(cx, self.shared.clock.now(), &mut state.endpoint)
    }

    /// Sleeps until the next deadline. `true` when it has passed already.
    fn arm(&mut self, cx: &mut Context<'_>, state: &State) -> bool {
        let tls = self.tls.as_ref().and_then(TlsLink::deadline);
        let others = tls.into_iter().chain(self.move_deadline());
        let Some(at) = state.endpoint.poll_timeout().map(|(at, ..)| at).into_iter().chain(others).min() else {
            self.sleeps_until = None;
            return false;
        };
        if self.sleeps_until != Some(at) {
            self.sleep.as_mut().reset(self.shared.clock.to_system(at).into());
            self.sleeps_until = Some(at);
        }
        let due = self.sleep.as_mut().poll(cx).is_ready();
        if due {
            self.sleeps_until = None;
        }
        due
    }
}

// Only Linux has hand-overs.
#[cfg(not(target_os = "linux"))]
impl Driver {
    fn take_joined(&mut self, _: &mut State) {}

    fn hand_to_siblings(&mut self, _: &mut State) {}

    fn receive_from_siblings(&mut self, _: &mut Context<'_>, _: &mut State) -> bool {
        false
    }

    fn receive_steered(&mut self, _: &mut Context<'_>, _: &mut State) -> bool {
        false
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let shared = this.shared.clone();
        let mut state = shared.lock();
        if state.is_lost() {
            // By a task that called one of the connections.
            drop(state);
            this.report_loss();
            return Poll::Ready(());
        }
        // A handshake in progress would be lost: its end comes first, which wakes this task.
        if state.replacement.is_some()
            && state.endpoint.may_rebind()
            && let Some((socket, local)) = state.replacement.take()
        {
            let (stats, balancers) = (this.socket.stats, this.socket.balancers.take());
            this.socket = socket;
            (this.socket.stats, this.socket.balancers) = (stats, balancers);
            this.forget_move();
            state.endpoint.rebind(shared.clock.now(), local);
        }
        if state.next.is_some() && state.endpoint.may_rebind() {
            this.begin_move(&mut state);
        }
        let mut again = std::mem::take(&mut this.deferred) && this.transmit(cx, &mut state);
        this.receive_tls(cx, &mut state);
        again |= this.receive(cx, &mut state);
        again |= this.receive_moving(cx, &mut state);
        again |= this.receive_steered(cx, &mut state);
        again |= this.exchange_misrouted(cx, &mut state);
        // Some of it may be for an older process.
        this.hand_to_siblings(&mut state);
        this.forward_elsewhere(&mut state);
        again |= this.receive_from_siblings(cx, &mut state);
        this.pending.resume(cx, shared.clock.now(), &mut state.endpoint);
        state.endpoint.handle_timeout(shared.clock.now());
        if let Some(tls) = &mut this.tls {
            tls.submit(shared.clock.now(), &mut state.endpoint);
        }
        while state.collect_events(shared.clock.now(), &mut this.wake) {
            again |= this.transmit(cx, &mut state);
        }
        if this.wake.is_empty() || state.turn.is_awaited() {
            again |= this.transmit(cx, &mut state);
        } else {
            this.deferred = true;
            again = true;
        }
        again |= this.receive_tls(cx, &mut state);
        this.follow_move(&state);
        state.socket = this.socket.stats;
        // Writing may have ended connections, and with that let others have memory.
        again |= state.collect_events(shared.clock.now(), &mut this.wake);
        again |= this.arm(cx, &state);
        let ended = state.orphaned && state.endpoint.open_connections() == 0;
        if state.endpoint.open_connections() == 0 {
            this.wake.append(&mut state.idle_waiters);
        }
        // The end of the endpoint leaves nobody to wake the others later.
        let woken = if ended { this.wake.len() } else { this.wake.len().min(state.turn.portion()) };
        again |= woken < this.wake.len();
        if again {
            // After the others, the task that runs the runtime included: a task that wakes itself comes before that.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            state.driver = None;
        } else {
            state.driver = Some(cx.waker().clone());
        }
        drop(state);
        for waker in this.wake.drain(..woken) {
            waker.wake();
        }
        if ended { Poll::Ready(()) } else { Poll::Pending }
    }
}
