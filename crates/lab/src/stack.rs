//! Contenders made of sans-IO stacks: implement [`Stack`] and [`StackBuilder`], and [`SansIo`] does the rest.
//!
//! A [`StackNode`] is one end of one connection as a node of the simulator: the stack, the workload's [`App`] on it, and the counters of
//! both. Each call processes, in this order: the datagram, the timeout, the RTT samples, the workload, the resulting datagrams.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use sim::{Datagram, Node, Outbox};
use units::{Duration, Instant};

use crate::{
    books::EndBooks,
    contender::{
        BuildError, ConnectionSpec, Contender, DatagramsMeasured, Evidence, Factor, Flow, Identity, Losses, Measured,
        Nodes, RepairCounters, RunSpec,
    },
    host::Host,
    scenario::{Direction, Workload},
    tunnelling::TunnelCounters,
    view::{RttReader, SenderView, Viewer},
    workload::{App, End},
};

/// One end of one connection of a sans-IO stack. After any of these calls the node drains [`Host::poll_event`] and calls
/// [`Stack::transmit`], in turn, until no event is left. The stack may return its events before or after it transmits.
pub trait Stack: Host {
    /// Begins. A client starts its handshake.
    fn start(&mut self, now: Instant);

    /// A datagram has arrived.
    fn receive(&mut self, now: Instant, datagram: Datagram);

    /// Deadline for [`Stack::on_timeout`], and its reason.
    fn timeout(&self) -> Option<(Instant, &'static str)>;

    /// The time of [`Stack::timeout`] has come.
    fn on_timeout(&mut self, now: Instant);

    /// Puts every packet that may be sent now into `out`.
    fn transmit(&mut self, now: Instant, out: &mut Outbox);

    /// Passes the RTT samples since the last call to `sink`, as [`Measured::rtt`] defines them. `false` when the stack does not report
    /// them.
    fn take_rtt_samples(&mut self, sink: &mut dyn FnMut(Duration)) -> bool;

    /// Reports, for each packet declared lost since the last call, the time since it was sent. `false` when the stack does not report it.
    fn take_loss_delays(&mut self, _sink: &mut dyn FnMut(Duration)) -> bool {
        false
    }

    /// Counters of the stack so far.
    fn counters(&self) -> StackCounters;

    /// Counters that show the factors of the contender at work, at the sender of the data.
    fn evidence(&self) -> Vec<Evidence>;

    /// Counters that show at the receiver of the data what of the factors has come there. A factor that only concerns the sender has
    /// none.
    fn evidence_at_receiver(&self) -> Vec<Evidence> {
        Vec::new()
    }

    /// Counters that show at the client what concerns it alone, in whatever direction the data goes: early data.
    fn evidence_at_client(&self) -> Vec<Evidence> {
        Vec::new()
    }

    /// Accounts of all bytes received and sent, if the stack keeps them; an error if they do not balance.
    fn books(&self) -> Option<Result<EndBooks, String>> {
        None
    }

    /// State of the congestion control; `None` if the stack does not report it, or not yet.
    fn view(&self) -> Option<SenderView> {
        None
    }
}

/// Counters of one end since it began. `None`: the stack does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    /// Smallest RTT sample.
    pub rtt_min: Option<Duration>,
    /// Stream bytes put into packets.
    pub stream_bytes_sent: Option<u64>,
    /// Part of them that had been sent before.
    pub stream_bytes_resent: Option<u64>,
    /// Packets sent.
    pub packets_sent: Option<u64>,
    /// Packets declared lost.
    pub packets_lost: Option<u64>,
    /// Tunnel around the connection, if there is one.
    pub tunnel: Option<TunnelCounters>,
    /// Forward error correction, where it was agreed on.
    pub repair: Option<RepairCounters>,
    /// Bytes of memory that the connection holds.
    pub memory: Option<u64>,
}

/// Makes the two ends of a connection.
pub trait StackBuilder: Send + Sync {
    /// The stack.
    type Stack: Stack + 'static;

    /// As [`Contender::identity`].
    fn identity(&self) -> Identity;

    /// As [`Contender::factors`].
    fn factors(&self) -> Vec<Factor>;

    /// The client of a connection.
    ///
    /// # Errors
    /// When the stack cannot be set up like this.
    fn client(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<Self::Stack, BuildError>;

    /// The server of a connection.
    ///
    /// # Errors
    /// When the stack cannot be set up like this.
    fn server(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<Self::Stack, BuildError>;
}

/// A contender made of a sans-IO stack.
#[derive(Clone, Copy, Debug)]
pub struct SansIo<B>(pub B);

impl<B: StackBuilder> Contender for SansIo<B> {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn factors(&self) -> Vec<Factor> {
        self.0.factors()
    }

    fn build(&self, spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        let mut pairs: Vec<(Box<dyn Node>, Box<dyn Node>)> = Vec::with_capacity(spec.connections.len());
        let mut kept = Vec::with_capacity(spec.connections.len());
        for connection in spec.connections {
            let client = Shared::new(StackNode::new(self.0.client(spec, connection)?, End::Client, spec));
            let server = Shared::new(StackNode::new(self.0.server(spec, connection)?, End::Server, spec));
            kept.push((client.clone(), server.clone(), connection.start));
            pairs.push((Box::new(client), Box::new(server)));
        }
        let traffic = &spec.scenario.traffic;
        let (direction, workload) = (traffic.direction, traffic.workload);
        let sender = |(client, server, _): &(Shared<B::Stack>, Shared<B::Stack>, Instant)| {
            if direction == Direction::Download { server.clone() } else { client.clone() }
        };
        let view = |sender: Shared<B::Stack>| -> Viewer { Box::new(move || sender.0.borrow().stack.view()) };
        let rtts = |sender: Shared<B::Stack>| -> RttReader {
            let read = Cell::new(0);
            Box::new(move || {
                let node = sender.0.borrow();
                let all = node.rtt.as_ref()?;
                Some(all[read.replace(all.len()).min(all.len())..].to_vec())
            })
        };
        let views = kept.iter().map(sender).map(view).collect();
        let rtts = kept.iter().map(sender).map(rtts).collect();
        let measured = move || {
            let pair = |(client, server, start): &(Shared<B::Stack>, Shared<B::Stack>, Instant)| {
                measured(&mut client.0.borrow_mut(), &mut server.0.borrow_mut(), *start, direction, workload)
            };
            kept.iter().map(pair).collect()
        };
        Ok(Nodes { pairs, measured: Box::new(measured), views, rtts })
    }
}

/// A node that the simulator drives and the contender reads afterwards.
struct Shared<S>(Rc<RefCell<StackNode<S>>>);

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S> Shared<S> {
    fn new(node: StackNode<S>) -> Self {
        Self(Rc::new(RefCell::new(node)))
    }
}

impl<S: Stack> Node for Shared<S> {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        self.0.borrow_mut().handle(now, datagram, out);
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.0.borrow().deadline()
    }
    fn finished(&self) -> bool {
        self.0.borrow().finished()
    }
}

/// One end of one connection as a node.
#[derive(Debug)]
pub struct StackNode<S> {
    stack: S,
    app: App,
    started: bool,
    measure_from: Instant,
    /// The counters when measuring began.
    before: Option<StackCounters>,
    /// RTT samples since then; `None` when the stack does not report them.
    rtt: Option<Vec<Duration>>,
    /// The same of the time in which losses were found.
    loss_delays: Option<Vec<Duration>>,
}

impl<S: Stack> StackNode<S> {
    /// One end of a connection with its share of the workload.
    pub fn new(stack: S, end: End, spec: &RunSpec<'_>) -> Self {
        let (app, measure_from) = (App::new(end, spec), spec.measure_from);
        Self {
            stack,
            app,
            started: false,
            measure_from,
            before: None,
            rtt: Some(Vec::new()),
            loss_delays: Some(Vec::new()),
        }
    }
}

impl<S: Stack> Node for StackNode<S> {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        if self.before.is_none() && now >= self.measure_from {
            self.before = Some(self.stack.counters());
        }
        if !self.started {
            self.started = true;
            self.stack.start(now);
        }
        if let Some(datagram) = datagram {
            self.stack.receive(now, datagram);
        }
        if self.stack.timeout().is_some_and(|(at, _)| at <= now) {
            self.stack.on_timeout(now);
        }
        let counts = now >= self.measure_from;
        keep(&mut self.rtt, counts, |sink| self.stack.take_rtt_samples(sink));
        keep(&mut self.loss_delays, counts, |sink| self.stack.take_loss_delays(sink));
        self.app.drive(now, &mut self.stack);
        loop {
            self.stack.transmit(now, out);
            // Some stacks tell their events only after they have sent; what the workload then does is sent as well.
            if !self.app.drive(now, &mut self.stack) {
                return;
            }
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        [self.stack.timeout(), self.app.deadline()].into_iter().flatten().min_by_key(|&(at, _)| at)
    }

    fn finished(&self) -> bool {
        // A run ends by the clock, not when everybody is content.
        false
    }
}

/// Stores the samples that `take` returns, if they count; `None` for a stack that does not report them.
fn keep(kept: &mut Option<Vec<Duration>>, counts: bool, take: impl FnOnce(&mut dyn FnMut(Duration)) -> bool) {
    let Some(samples) = kept else { return };
    let told = take(&mut |sample| {
        if counts {
            samples.push(sample);
        }
    });
    if !told {
        *kept = None;
    }
}

/// Counters of repair since measuring began, from an end's counters of the end and of the beginning.
fn repair(after: &StackCounters, before: Option<&StackCounters>) -> Option<RepairCounters> {
    let before = before.and_then(|counters| counters.repair).unwrap_or_default();
    after.repair.map(|after| after.since(&before))
}

/// Losses that one end found since measuring began.
fn losses<S: Stack>(node: &StackNode<S>) -> Losses {
    let after = node.stack.counters();
    let before = node.before.unwrap_or(after);
    let less = |read: fn(&StackCounters) -> Option<u64>| Some(read(&after)?.saturating_sub(read(&before).unwrap_or(0)));
    Losses {
        packets_sent: less(|counters| counters.packets_sent),
        packets_lost: less(|counters| counters.packets_lost),
        tunnel: after.tunnel.map(|tunnel| tunnel.since(&before.tunnel.unwrap_or_default())),
    }
}

/// Combines the counters of both ends of a connection.
fn measured<S: Stack>(
    client: &mut StackNode<S>,
    server: &mut StackNode<S>,
    start: Instant,
    direction: Direction,
    workload: Workload,
) -> Measured {
    let applications = applications(&client.app, &server.app, start, client.measure_from, direction, workload);
    let books = [client.stack.books(), server.stack.books()];
    let evidence_at_client = client.stack.evidence_at_client();
    let (sender, receiver) = match direction {
        Direction::Download => (server, client),
        Direction::Upload => (client, server),
    };
    let (after, before) = (sender.stack.counters(), sender.before);
    let since = |read: fn(&StackCounters) -> Option<u64>| -> Option<u64> {
        // Without a call since measuring began nothing has changed since.
        let before = before.as_ref().unwrap_or(&after);
        // A connection that was not there yet had counted nothing.
        Some(read(&after)?.saturating_sub(read(before).unwrap_or(0)))
    };
    Measured {
        rtt: sender.rtt.take(),
        loss_delays: sender.loss_delays.take(),
        rtt_min: after.rtt_min,
        stream_bytes_sent: since(|counters| counters.stream_bytes_sent),
        stream_bytes_resent: since(|counters| counters.stream_bytes_resent),
        packets_sent: since(|counters| counters.packets_sent),
        losses: [losses(sender), losses(receiver)],
        memory: after.memory,
        repair: repair(&after, sender.before.as_ref())
            .zip(repair(&receiver.stack.counters(), receiver.before.as_ref()))
            .map(|(sender, receiver)| RepairCounters::of_direction(&sender, &receiver))
            .filter(|repair| repair.symbols_sent > 0),
        evidence: sender.stack.evidence().into_iter().chain(evidence_at_client).collect(),
        evidence_at_receiver: receiver.stack.evidence_at_receiver(),
        books,
        ..applications
    }
}

/// Counters of the workload at the two ends of a connection, without those of a stack. `start` is the start of the client, `measure_from`
/// that of the measurement.
pub fn applications(
    client: &App,
    server: &App,
    start: Instant,
    measure_from: Instant,
    direction: Direction,
    workload: Workload,
) -> Measured {
    // What has fetched all it wanted may fall silent until it is closed.
    let single = matches!(workload, Workload::Flows | Workload::Page) && client.tally().answered.is_some();
    let closed = [client, server].into_iter().find_map(|app| app.closed().map(str::to_owned));
    let asks = matches!(workload, Workload::Requests | Workload::Feed | Workload::Flows);
    let tally = client.tally();
    let flow = matches!(workload, Workload::Flows | Workload::Page).then(|| match tally.answered {
        _ if start < measure_from => Flow::Early,
        Some(at) => Flow::Took(at - start),
        None => Flow::Unfinished,
    });
    let (sender, receiver) = match direction {
        Direction::Download => (server, client),
        Direction::Upload => (client, server),
    };
    let datagrams = matches!(workload, Workload::Datagrams | Workload::Messages).then(|| DatagramsMeasured {
        due: sender.tally().due,
        arrived: receiver.tally().delays.len() as u64,
        delays: receiver.tally().delays.clone(),
        missing: sender.missing(receiver),
    });
    Measured {
        delivered: receiver.tally().delivered,
        handshake: client.established().map(|at| at - start),
        requests: asks.then(|| tally.requests.clone()),
        flow,
        datagrams,
        video: (workload == Workload::Video).then(|| (tally.video, tally.video.began.map(|at| at - start))),
        feed: (workload == Workload::Feed).then_some(tally.feed),
        broadcast: (workload == Workload::Webtransport)
            .then(|| sender.tally().broadcast.with_receiver(&receiver.tally().broadcast)),
        closed: closed.filter(|_| !single),
        wrong_bytes: client.tally().wrong_bytes + server.tally().wrong_bytes,
        ..Measured::default()
    }
}
