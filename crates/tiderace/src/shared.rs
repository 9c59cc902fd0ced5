//! State shared by the driver and the handles: the state machine, and the waiting tasks.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, Mutex},
    task::Waker,
};

use rustc_hash::FxHashMap;
use transport::{
    CloseReason, EndpointStats, Event, Handle,
    memory::{Charge, ConnectionBudget, ITEM_OVERHEAD},
    streams::{StreamEvent, Unread},
};
use units::{Duration, Instant};
use wire::{Dir, StreamId};

use crate::{
    buffers::RECEIVE_BUFFER,
    clock::Clock,
    machines::MachineLinks,
    next_socket::NextSocket,
    opening::Opening,
    service::Serve,
    socket::{Socket, SocketStats},
    stream_map::StreamMap,
    turn::Turn,
};

/// Time by which deadlines may be late that no peer waits for: 10,000 connections at rest would wake the driver one by one.
const TIMER_SLACK: Duration = Duration::from_millis(64);

/// Shared by the driver and all handles of an endpoint.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) clock: Clock,
    /// The number of the shard.
    pub(crate) shard: u8,
}

/// State behind the lock.
pub(crate) struct State {
    pub(crate) endpoint: transport::Endpoint,
    // Boxed, because a table has up to twice as many places as entries.
    pub(crate) connections: FxHashMap<Handle, Box<Waiters>>,
    /// Answers the streams of connections that it takes, in place of tasks.
    pub(crate) service: Option<Box<dyn Serve>>,
    pub(crate) incoming: VecDeque<Handle>,
    /// Connections with accepted early data whose handshake is not complete.
    pub(crate) incoming_early: VecDeque<Handle>,
    pub(crate) incoming_waiters: Vec<Waker>,
    /// Waker of the driver, while it sleeps.
    pub(crate) driver: Option<Waker>,
    pub(crate) idle_waiters: Vec<Waker>,
    /// Streams that tasks have written to since the driver last sent.
    pub(crate) turn: Turn<Handle>,
    /// Counters of the socket when the driver last ran.
    pub(crate) socket: SocketStats,
    /// Socket that replaces the driver's, and its address where it is bound to one.
    pub(crate) replacement: Option<(Socket, Option<IpAddr>)>,
    /// Socket that a client is to move to.
    // Boxed: few endpoints ever have one.
    pub(crate) next: Option<Box<NextSocket>>,
    /// Set while this process reads the socket. Otherwise another process reads it, and forwards the datagrams of this one's connections.
    pub(crate) reading: bool,
    /// Links to the machines beside this one.
    pub(crate) machines: Option<Arc<dyn MachineLinks>>,
    /// Ways to the processes beside this one.
    #[cfg(target_os = "linux")]
    pub(crate) links: crate::siblings::Links,
    /// Receiving end that the driver has yet to take.
    #[cfg(target_os = "linux")]
    pub(crate) inbox: Option<std::os::unix::net::UnixDatagram>,
    /// Socket in place of a copy, that the driver has yet to take.
    #[cfg(target_os = "linux")]
    pub(crate) joined: Option<std::net::UdpSocket>,
    /// Socket of this process' own that the driver has yet to take.
    #[cfg(target_os = "linux")]
    pub(crate) own_socket: Option<crate::steering::OwnSocket>,
    /// No more connections are accepted or opened.
    pub(crate) closed: bool,
    /// The last handle of the endpoint is gone: the driver ends with the last connection.
    pub(crate) orphaned: bool,
    /// Counters at the time of the panic that ended the shard.
    pub(crate) lost: Option<EndpointStats>,
}

/// Outcome of a finished stream.
pub(crate) enum End {
    Pending(Option<Waker>),
    Delivered,
    Stopped(u64),
}

/// Waiting tasks of one connection.
#[derive(Default)]
pub(crate) struct Waiters {
    pub(crate) connected: bool,
    pub(crate) closed: Option<CloseReason>,
    /// Handles of the connection or of its streams exist.
    pub(crate) held: bool,
    /// The service answers; nobody else waits for anything.
    served: bool,
    /// Few wait for anything but a stream, so one list does.
    others: Vec<(Wait, Waker)>,
    /// Tasks that wait for permission to open a stream, by direction.
    // Boxed: few connections ever have any.
    opening: Option<Box<[Opening; 2]>>,
    readers: StreamMap<Waker>,
    writers: StreamMap<Waker>,
    /// Outcomes of finished streams, and of those reset behind a reliable size, whose handles exist.
    ends: StreamMap<End>,
    /// Unread data when the peer closed the connection, for readers that come later.
    // Boxed: few connections ever have any.
    unread: Option<Box<Kept>>,
}

/// Unread data at the end of a connection.
struct Kept {
    streams: FxHashMap<StreamId, Unread>,
    /// Paid to the connection's budget, although the connection has ended.
    charge: Charge,
}

/// Charge of unread data, in bytes.
fn cost(unread: &Unread) -> u64 {
    unread.parts.iter().map(|part| part.data.len() as u64 + ITEM_OVERHEAD).sum()
}

impl Kept {
    fn new(unread: Vec<(StreamId, Unread)>, budget: &ConnectionBudget) -> Option<Box<Self>> {
        let mut charge = budget.empty();
        charge.set(unread.iter().map(|(_, unread)| cost(unread)).sum());
        (!unread.is_empty()).then(|| Box::new(Self { streams: unread.into_iter().collect(), charge }))
    }

    fn take(&mut self, id: StreamId) -> Option<Unread> {
        let unread = self.streams.remove(&id)?;
        self.charge.set(self.charge.bytes().saturating_sub(cost(&unread)));
        Some(unread)
    }
}

/// Condition that a task waits for, unless it is a stream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The end of the handshake, or of the connection.
    State,
    /// A stream that the peer opens.
    Accept(Dir),
    /// Permission to open a stream.
    Open(Dir),
    /// A datagram.
    Datagram,
    /// Room in the queue of datagrams to be sent.
    DatagramRoom,
}

impl Waiters {
    /// Wakes `waker` when the condition is met. A task that asks often, as one that waits for several things does, is woken
    /// once.
    pub(crate) fn wait(&mut self, what: Wait, waker: &Waker) {
        if !self.others.iter().any(|(other, waiting)| *other == what && waiting.will_wake(waker)) {
            self.others.push((what, waker.clone()));
        }
    }

    fn come(&mut self, what: Wait, wake: &mut Vec<Waker>) {
        wake.extend(self.others.extract_if(.., |(other, _)| *other == what).map(|(_, waker)| waker));
    }

    /// Waits in turn for permission to open a stream: see [`Opening::wait`].
    pub(crate) fn wait_open(&mut self, dir: Dir, number: Option<u64>, waker: &Waker) -> u64 {
        self.opening.get_or_insert_default()[dir as usize].wait(number, waker)
    }

    /// Notes that a task waits no more: see [`Opening::leave`].
    pub(crate) fn leave_open(&mut self, dir: Dir, number: u64) -> Option<Waker> {
        self.opening.as_mut()?[dir as usize].leave(number)
    }

    pub(crate) fn wait_read(&mut self, id: StreamId, waker: &Waker) {
        self.readers.insert(id, waker.clone());
    }

    pub(crate) fn wait_write(&mut self, id: StreamId, waker: &Waker) {
        self.writers.insert(id, waker.clone());
    }

    /// Removes the waker of a stream's reader, because its future was dropped.
    pub(crate) fn forget_reader(&mut self, id: StreamId) {
        self.readers.remove(id);
    }

    /// Removes and returns the waker of a stream's writer, because its future was dropped: a task that waits for the end is to be woken.
    pub(crate) fn forget_writer(&mut self, id: StreamId) -> Option<Waker> {
        self.writers.remove(id)
    }

    /// Follows the end of the stream from here on.
    pub(crate) fn follow_end(&mut self, id: StreamId) {
        self.ends.insert(id, End::Pending(None));
    }

    pub(crate) fn end_of(&mut self, id: StreamId) -> Option<&mut End> {
        self.ends.get_mut(id)
    }

    /// Notes that the stream was reset: data that is not delivered yet never will be.
    pub(crate) fn give_up_end(&mut self, id: StreamId) {
        if matches!(self.ends.get_mut(id), Some(End::Pending(_))) {
            self.forget_end(id);
        }
    }

    pub(crate) fn forget_end(&mut self, id: StreamId) {
        self.ends.remove(id);
    }

    /// Takes the unread data of a stream at the end of the connection, if that was not taken before.
    pub(crate) fn take_unread(&mut self, id: StreamId) -> Option<Unread> {
        self.unread.as_mut()?.take(id)
    }

    fn on_end(&mut self, id: StreamId, end: End, wake: &mut Vec<Waker>) {
        if let Some(place) = self.ends.get_mut(id)
            && let End::Pending(waker) = std::mem::replace(place, end)
        {
            wake.extend(waker);
        }
    }

    fn on_event(&mut self, event: Event, wake: &mut Vec<Waker>) {
        match event {
            Event::Connected => {
                self.connected = true;
                self.come(Wait::State, wake);
                self.come(Wait::Datagram, wake);
            }
            Event::Stream(event) => match event {
                StreamEvent::Opened { dir } => self.come(Wait::Accept(dir), wake),
                StreamEvent::StreamsAvailable { dir } => {
                    self.come(Wait::Open(dir), wake);
                    wake.extend(self.opening.as_mut().and_then(|opening| opening[dir as usize].pop()));
                }
                StreamEvent::Readable { id } => wake.extend(self.readers.remove(id)),
                StreamEvent::Writable { id } => wake.extend(self.writers.remove(id)),
                StreamEvent::Finished { id } => self.on_end(id, End::Delivered, wake),
                StreamEvent::Stopped { id, code } => {
                    wake.extend(self.writers.remove(id));
                    self.on_end(id, End::Stopped(code), wake);
                }
            },
            Event::DatagramsReadable => self.come(Wait::Datagram, wake),
            Event::DatagramsWritable => self.come(Wait::DatagramRoom, wake),
            Event::Closed(reason) => self.close(reason, wake),
            _ => {}
        }
    }

    /// Notes the end of the connection.
    pub(crate) fn close(&mut self, reason: CloseReason, wake: &mut Vec<Waker>) {
        self.closed = Some(reason);
        self.wake_all(wake);
    }

    fn wake_all(&mut self, wake: &mut Vec<Waker>) {
        wake.extend(std::mem::take(&mut self.others).into_iter().map(|(_, waker)| waker));
        wake.extend(self.opening.take().into_iter().flat_map(|all| *all).flat_map(Opening::into_wakers));
        for map in [&mut self.readers, &mut self.writers] {
            wake.extend(map.take_all());
        }
        for end in self.ends.values_mut() {
            if let End::Pending(waker) = end {
                wake.extend(waker.take());
            }
        }
    }
}

impl Shared {
    pub(crate) fn new(shard: u8, clock: Clock, mut endpoint: transport::Endpoint) -> Arc<Self> {
        endpoint.set_receive_buffer(RECEIVE_BUFFER);
        endpoint.set_timer_slack(TIMER_SLACK);
        Arc::new(Self {
            state: Mutex::new(State {
                endpoint,
                connections: FxHashMap::default(),
                service: None,
                incoming: VecDeque::new(),
                incoming_early: VecDeque::new(),
                incoming_waiters: Vec::new(),
                driver: None,
                idle_waiters: Vec::new(),
                turn: Turn::default(),
                socket: SocketStats::default(),
                replacement: None,
                next: None,
                reading: true,
                machines: None,
                #[cfg(target_os = "linux")]
                links: crate::siblings::Links::default(),
                #[cfg(target_os = "linux")]
                inbox: None,
                #[cfg(target_os = "linux")]
                joined: None,
                #[cfg(target_os = "linux")]
                own_socket: None,
                closed: false,
                orphaned: false,
                lost: None,
            }),
            clock,
            shard,
        })
    }
}

impl State {
    /// Wakes the driver, because there is data to send.
    pub(crate) fn wake_driver(&mut self) {
        if let Some(waker) = self.driver.take() {
            waker.wake();
        }
    }

    /// Takes the events of all connections: lets the service work on those of its own, and collects the wakers of the tasks that wait
    /// for the others. `true` when there are more, and what the service has written should leave before it goes on.
    pub(crate) fn collect_events(&mut self, now: Instant, wake: &mut Vec<Waker>) -> bool {
        while let Some(handle) = self.endpoint.poll_accept() {
            self.connections.entry(handle).or_default();
        }
        while let Some((handle, event)) = self.endpoint.poll_event() {
            let Some(waiters) = self.connections.get_mut(&handle) else { continue };
            if matches!(event, Event::Connected)
                && !waiters.held
                && let (Some(service), Some(connection)) = (&mut self.service, self.endpoint.connection_mut(handle))
            {
                waiters.served = service.connected(now, handle, connection);
            }
            if let (true, Some(service)) = (waiters.served, &mut self.service) {
                if let Event::Closed(reason) = &event {
                    service.closed(handle, reason);
                    self.connections.remove(&handle);
                    self.incoming_early.retain(|other| *other != handle);
                } else if let Some(connection) = self.endpoint.connection_mut(handle)
                    && service.event(now, handle, connection, &event)
                {
                    self.turn.served(handle, connection.live_streams());
                }
                if self.turn.is_over() {
                    return true;
                }
                continue;
            }
            let waits = !waiters.held;
            let arrived = waits && matches!(event, Event::Connected);
            let early = waits && matches!(event, Event::EarlyData { accepted: true });
            if let Event::Closed(reason) = &event
                && waiters.held
                && matches!(reason, CloseReason::PeerApplication { .. })
                && let Some(connection) = self.endpoint.connection_mut(handle)
            {
                // The peer may close as soon as all has arrived, and that can be before all is read.
                let unread = connection.take_unread();
                waiters.unread = Kept::new(unread, connection.memory_budget());
            }
            waiters.on_event(event, wake);
            if early {
                self.incoming_early.push_back(handle);
                wake.append(&mut self.incoming_waiters);
            } else if arrived {
                self.incoming_early.retain(|other| *other != handle);
                self.incoming.push_back(handle);
                wake.append(&mut self.incoming_waiters);
            } else if waiters.closed.is_some() && !waiters.held {
                self.connections.remove(&handle);
                self.incoming_early.retain(|other| *other != handle);
            }
        }
        false
    }

    /// Returns the next connection that was accepted and is still there.
    pub(crate) fn next_incoming(&mut self) -> Option<Handle> {
        while let Some(handle) = self.incoming.pop_front() {
            if self.connections.contains_key(&handle) {
                return Some(handle);
            }
        }
        None
    }

    /// Returns the next connection with early data whose handshake is not complete.
    pub(crate) fn next_early(&mut self) -> Option<Handle> {
        self.incoming_early.pop_front()
    }

    /// Wakes `waker` with the next connection that is accepted. A task that waits at several shards calls often: once is
    /// enough.
    pub(crate) fn wait_incoming(&mut self, waker: &Waker) {
        if !self.incoming_waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            self.incoming_waiters.push(waker.clone());
        }
    }

    /// Notes that a handle refers to the connection.
    pub(crate) fn hold(&mut self, handle: Handle) {
        if let Some(waiters) = self.connections.get_mut(&handle) {
            waiters.held = true;
        }
    }

    /// Closes the connection, because its last handle is gone.
    pub(crate) fn let_go(&mut self, handle: Handle, now: Instant) {
        self.connections.remove(&handle);
        if let Some(connection) = self.endpoint.connection_mut(handle) {
            connection.close(now, 0, b"");
            self.wake_driver();
        }
    }
}
