//! Execution of runs: one in the simulator, or all of an experiment on all cores.

use core::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};
use std::{collections::BTreeMap, num::NonZeroUsize, sync::Mutex, thread};

use netem::{DropReason, LinkCounters, Queue};
use rand_core::RngCore;
use sim::{Access, Dumbbell, FlowLoss, Host, Node, Simulation, client_address, server_address};
use units::{DataSize, Duration, Instant, Seed};

use crate::{
    books::Books,
    contender::{ConnectionSpec, Contender, Factor, Measured, RunSpec},
    figure::Figure,
    matrix::Cell,
    measure::{LinkWindow, connections_with_loss, connections_with_resent, figures, harm, in_real_time},
    qlog::{Logs, QlogDir},
    reading::{Provenance, Reading},
    record::{ConnectionRecord, RECORD_SCHEMA, RealTime, Record, RunOutcome, TraceSummary},
    scenario::{Direction, Scenario, Workload},
    spread::distributions,
    watch::{Watch, advance},
};

/// Settings of an experiment's execution.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    /// Threads; `None` takes one for each core.
    pub threads: Option<NonZeroUsize>,
    /// Directory for qlog files.
    pub qlog: Option<Logs>,
}

/// Runs all cells and returns their records in the order of the cells, independent of the order in which threads finish.
///
/// `done` is called after each run, from the thread that ran it.
pub fn run_all(
    scenario: &Scenario,
    contenders: &[Box<dyn Contender>],
    cells: &[Cell],
    execution: &Execution,
    done: &(dyn Fn(&Record) + Sync),
) -> Vec<Record> {
    let threads = execution.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let records = Mutex::new(vec![None; cells.len()]);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(cell) = cells.get(index) else { return };
            let record = run_one(scenario, contenders[cell.contender].as_ref(), cell.seed, execution.qlog.as_ref());
            done(&record);
            records.lock().expect("no thread panics while it holds the lock")[index] = Some(record);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(cells.len()) {
            scope.spawn(work);
        }
        work();
    });
    let records = records.into_inner().expect("the threads have ended");
    records.into_iter().map(|record| record.expect("every cell was run")).collect()
}

/// Runs one contender with one seed. A run that cannot be used gives a record with its failure.
pub fn run_one(scenario: &Scenario, contender: &dyn Contender, seed: u64, qlog: Option<&Logs>) -> Record {
    let mut record = empty(scenario, contender, seed);
    if let Err(reason) = fill(scenario, contender, (qlog, None), &mut record) {
        record.outcome = RunOutcome::Failed(reason);
    }
    record
}

/// Runs one contender with one seed, as [`run_one`] does, and shows it while it goes on.
pub fn run_watched(scenario: &Scenario, contender: &dyn Contender, seed: u64, watch: &mut Watch<'_>) -> Record {
    let mut record = empty(scenario, contender, seed);
    if let Err(reason) = fill(scenario, contender, (None, Some(watch)), &mut record) {
        record.outcome = RunOutcome::Failed(reason);
    }
    record
}

/// Result of a run in real time.
#[derive(Debug)]
pub struct Passage {
    /// Measurements of the connections, in their order.
    pub measured: Vec<Measured>,
    /// Smoothed RTTs of the senders of the data, taken at regular moments while the run was measured.
    pub smoothed_rtts: Vec<Duration>,
    /// Delivery rate of the senders at the end, in bits per second, as far as they report it.
    pub delivery_rate: Option<f64>,
    /// The loaded link while it was measured.
    pub link: LinkWindow,
    /// Times that packets waited in its queue, in nanoseconds.
    pub queueing: netem::Histogram,
    /// State of the machine.
    pub real_time: RealTime,
    /// Reason why the figures may not be used, if so.
    pub doubt: Option<String>,
}

/// Runs one contender with one seed outside of the simulator: `pass` lets time pass, and figures are computed as in a simulation.
pub fn run_in_real_time(
    scenario: &Scenario,
    contender: &dyn Contender,
    seed: u64,
    pass: &dyn Fn(&RunSpec<'_>) -> Result<Passage, String>,
) -> Record {
    let mut record = empty(scenario, contender, seed);
    let filled = (|| {
        let random = Seed::from_number(seed);
        let connections = connections(scenario, random);
        let passage = pass(&RunSpec {
            scenario,
            seed_number: seed,
            seed: random.child("stack", 0),
            connections: &connections,
            measure_from: scenario.run.measure_from(),
            end: scenario.run.end(),
            qlog: None,
            throttle: None,
        })?;
        let (span, measured) = (scenario.run.duration, passage.measured);
        record.link = passage.link;
        record.virtual_seconds = scenario.run.end().as_secs_f64();
        record.figures = figures(&measured, &record.link, &passage.queueing, span, scenario.traffic.video().segment);
        record.figures.extend(connections_with_resent(&measured));
        record.distributions = distributions(&measured);
        let delivered = measured.iter().map(|one| one.delivered).sum();
        record.figures.extend(in_real_time(
            passage.real_time.cpu_of_ends(),
            delivered,
            passage.smoothed_rtts,
            passage.delivery_rate,
        ));
        record.connections = measured.iter().map(|one| connection_record(one, span)).collect();
        let is_command = passage.real_time.commands.is_some();
        record.real_time = Some(passage.real_time);
        if is_command {
            hide_from_outside(&mut record.figures, scenario.traffic.workload);
            return passage.doubt.map_or(Ok(()), Err);
        }
        verify(|connection| contender.factors_of(connection), &measured)?;
        passage.doubt.map_or(Ok(()), Err)
    })();
    if let Err(reason) = filled {
        record.outcome = RunOutcome::Failed(reason);
    }
    record
}

/// Takes the figures from a record that cannot be seen from outside of a contender: without a size, also those of bytes that arrived.
fn hide_from_outside(figures: &mut BTreeMap<Figure, Reading>, workload: Workload) {
    let unseen = [Figure::Handshake, Figure::Overhead, Figure::OverheadResent, Figure::OverheadRest];
    let without_size = [Figure::Goodput, Figure::Jain, Figure::Cpu];
    let without_size = without_size.into_iter().filter(|_| workload != Workload::Flows);
    for figure in unseen.into_iter().chain(without_size) {
        figures.insert(figure, Reading::none(Provenance::Unsupported));
    }
}

/// An empty record.
fn empty(scenario: &Scenario, contender: &dyn Contender, seed: u64) -> Record {
    Record {
        schema: RECORD_SCHEMA.to_owned(),
        run: 0,
        point: crate::scenario::Point::new(),
        scenario: scenario.name.clone(),
        digest: scenario.digest(),
        contender: contender.identity(),
        seed,
        outcome: RunOutcome::Valid,
        virtual_seconds: 0.0,
        events: 0,
        trace: TraceSummary::default(),
        link: LinkWindow::default(),
        figures: BTreeMap::new(),
        distributions: BTreeMap::new(),
        factors: contender.factors(),
        connections: Vec::new(),
        books: Books::default(),
        real_time: None,
    }
}

/// Runs the simulation and fills the record; for rivals, also with the effect of each on the other.
fn fill(
    scenario: &Scenario,
    contender: &dyn Contender,
    (qlog, watch): (Option<&Logs>, Option<&mut Watch<'_>>),
    record: &mut Record,
) -> Result<(), String> {
    let seed = Seed::from_number(record.seed);
    let qlog = qlog.map(|logs| QlogDir::create(logs, &record.contender.name, record.seed)).transpose();
    let qlog = qlog.map_err(|error| format!("cannot create the directory for qlog files: {error}"))?;
    let passed = simulate(scenario, contender, (qlog.as_ref(), watch), record.seed)?;
    qlog.as_ref().map_or(Ok(()), QlogDir::finish).map_err(|error| format!("cannot write the packets: {error}"))?;
    let (span, measured) = (scenario.run.duration, passed.measured);
    record.link = passed.link;
    record.virtual_seconds = passed.virtual_seconds;
    record.events = passed.events;
    record.trace = passed.trace;
    record.figures = figures(&measured, &record.link, &passed.queueing, span, scenario.traffic.video().segment);
    record.distributions = distributions(&measured);
    let flows = connections(scenario, seed).into_iter().zip(passed.lost).map(|(one, lost)| (one.start, lost));
    record.figures.extend(connections_with_loss(&measured, flows));
    record.connections = measured.iter().map(|one| connection_record(one, span)).collect();
    record.books = passed.books;
    if let Some(reason) = passed.imbalance {
        debug_assert!(false, "the books do not balance: {reason}");
        return Err(format!("the books do not balance: {reason}"));
    }
    if let Some(reason) = passed.stalled {
        return Err(reason);
    }
    verify(|connection| contender.factors_of(connection), &measured)?;
    if contender.kinds() > 1 {
        let kinds = contender.alone();
        let alone = kinds.iter().map(|kind| Ok(simulate(scenario, kind.as_ref(), (None, None), record.seed)?.measured));
        let alone = alone.collect::<Result<Vec<_>, String>>()?;
        record.figures.extend(harm(&measured, &alone, |connection| connection % contender.kinds()));
    }
    Ok(())
}

/// Result of a simulation.
struct Passed {
    measured: Vec<Measured>,
    link: LinkWindow,
    queueing: netem::Histogram,
    virtual_seconds: f64,
    events: u64,
    trace: TraceSummary,
    /// Losses of each connection's packets at the links.
    lost: Vec<FlowLoss>,
    /// The simulation stalled, with the reason.
    stalled: Option<String>,
    books: Books,
    /// Place of an imbalance of the books, if there is one.
    imbalance: Option<String>,
}

/// Builds the network and the nodes and lets time pass.
fn simulate(
    scenario: &Scenario,
    contender: &dyn Contender,
    (qlog, mut watch): (Option<&QlogDir>, Option<&mut Watch<'_>>),
    seed_number: u64,
) -> Result<Passed, String> {
    let seed = Seed::from_number(seed_number);
    let connections = connections(scenario, seed);
    let spec = RunSpec {
        scenario,
        seed_number,
        seed: seed.child("stack", 0),
        connections: &connections,
        measure_from: scenario.run.measure_from(),
        end: scenario.run.end(),
        qlog,
        throttle: None,
    };
    let nodes = contender.build(&spec).map_err(|error| error.to_string())?;
    if nodes.pairs.len() != connections.len() {
        return Err(format!("{} pairs of nodes for {} connections", nodes.pairs.len(), connections.len()));
    }
    let (clients, servers): (Vec<_>, Vec<_>) = nodes.pairs.into_iter().unzip();
    let mut simulation = network(scenario, seed, &connections, clients, servers)?;
    let link = match scenario.traffic.direction {
        Direction::Download => Dumbbell::DOWN,
        Direction::Upload => Dumbbell::UP,
    };
    let _warm = advance(&mut simulation, spec.measure_from, link, &nodes.views, watch.as_deref_mut())?;
    let back = if link == Dumbbell::DOWN { Dumbbell::UP } else { Dumbbell::DOWN };
    let (before, reverse) = (*simulation.counters(link), simulation.counters(back).offered.bytes);
    simulation.network_mut().link_mut(link).take_queueing();
    let outcome = advance(&mut simulation, spec.end, link, &nodes.views, watch)?;
    let mut loaded = window(&before, simulation.counters(link));
    loaded.reverse_bytes = simulation.counters(back).offered.bytes - reverse;
    let trace = simulation.trace();
    let lost = (0..connections.len()).map(|flow| trace.loss(flow)).collect();
    let summary = TraceSummary { hash: trace.hash().to_string(), packets: trace.packets() };
    let queueing = simulation.network_mut().link_mut(link).take_queueing();
    let (virtual_seconds, events) = (simulation.now().max(spec.end).as_secs_f64(), simulation.events());
    let (mut books, balance) = (Books::of(&simulation.books()), simulation.balance());
    drop(simulation);
    let measured = (nodes.measured)();
    if measured.len() != connections.len() {
        return Err(format!("{} connections measured of {}", measured.len(), connections.len()));
    }
    let imbalance =
        balance.map_err(|imbalance| imbalance.to_string()).and_then(|()| complete(&mut books, &measured)).err();
    let stalled = (outcome.ended == sim::Ended::Stalled).then(|| outcome.to_string());
    Ok(Passed {
        measured,
        link: loaded,
        queueing,
        virtual_seconds,
        events,
        trace: summary,
        lost,
        stalled,
        books,
        imbalance,
    })
}

/// Adds the accounts of the stacks and compares them with those of the network.
fn complete(books: &mut Books, measured: &[Measured]) -> Result<(), String> {
    for connection in measured {
        for (end, sum) in connection.books.iter().zip([&mut books.clients, &mut books.servers]) {
            match end {
                Some(Ok(end)) => sum.add(end),
                Some(Err(imbalance)) => return Err(imbalance.clone()),
                None => {}
            }
        }
    }
    // Rivals of which one keeps no books have only half of them.
    if measured.iter().all(|connection| connection.books.iter().all(Option::is_some)) {
        books.balance()
    } else {
        Ok(())
    }
}

/// Places and starts of the connections. The starts are the same for every contender.
fn connections(scenario: &Scenario, seed: Seed) -> Vec<ConnectionSpec> {
    let span = u64::try_from(scenario.traffic.start_spread.as_nanos()).unwrap_or(u64::MAX);
    let mut draws = seed.stream("connection starts");
    let address = |index: u32, of: fn(u16) -> SocketAddr| of(u16::try_from(index).expect("at most 1000 connections"));
    let connection = |index: u32| {
        let later = (u128::from(draws.next_u64()) * (u128::from(span) + 1)) >> 64;
        ConnectionSpec {
            index: index as usize,
            client: address(index, client_address),
            server: address(index, server_address),
            start: Instant::from_nanos(u64::try_from(later).unwrap_or(span)),
        }
    };
    (0..scenario.traffic.connections).map(connection).collect()
}

type Nodes = Vec<Box<dyn Node>>;

/// The dumbbell of the scenario with its nodes.
fn network(
    scenario: &Scenario,
    seed: Seed,
    connections: &[ConnectionSpec],
    clients: Nodes,
    servers: Nodes,
) -> Result<Simulation<Box<dyn Node>>, String> {
    let (down, up) = (scenario.path.down.clone(), scenario.path.up().clone());
    let host = |side: &str, index: usize, node, start, jitter| Host {
        name: format!("{side} {index}"),
        node,
        access: Access { delay: Duration::ZERO, jitter },
        start,
    };
    let jitter = |link| scenario.path.phase_jitter.unwrap_or_else(|| phase_jitter(link, connections));
    let (up_jitter, down_jitter) = (jitter(&up), jitter(&down));
    let clients = connections.iter().zip(clients);
    let clients = clients.map(|(c, node)| host("client", c.index, node, c.start, up_jitter));
    let servers = connections.iter().zip(servers);
    let servers = servers.map(|(c, node)| host("server", c.index, node, Instant::ZERO, down_jitter));
    let dumbbell = Dumbbell { up, down, nat: scenario.path.nat.clone(), start_jitter: Duration::ZERO };
    dumbbell.build(seed.child("network", 0), clients, servers).map_err(|error| error.to_string())
}

/// Random delay of each packet before a shared bottleneck: up to half of the time the link takes for a packet of 1500
/// bytes. Without it, connections on a deterministic drop-tail queue move in step and one starves another for ever
/// (Floyd & Jacobson, "On Traffic Phase Effects in Packet-Switched Gateways"). A single connection needs none.
pub fn phase_jitter(link: &netem::LinkConfig, connections: &[ConnectionSpec]) -> Duration {
    match (link.mean_rate(), link.queue) {
        // A queue per flow has no order between flows that could lock in.
        (_, Queue::FqCodel(_)) => Duration::ZERO,
        (Some(rate), _) if connections.len() > 1 => rate.time_for(DataSize::from_bytes(1_500)) / 2,
        _ => Duration::ZERO,
    }
}

/// Difference of a link's counters between two moments.
pub fn window(before: &LinkCounters, after: &LinkCounters) -> LinkWindow {
    let dropped = |reason| after.dropped(reason).packets - before.dropped(reason).packets;
    LinkWindow {
        offered: after.offered.packets - before.offered.packets,
        reverse_bytes: 0,
        offered_bytes: after.offered.bytes - before.offered.bytes,
        dropped_queue: dropped(DropReason::Queue) + dropped(DropReason::Aqm) + dropped(DropReason::Policer),
        dropped_loss: dropped(DropReason::Loss),
        dropped_other: dropped(DropReason::Mtu) + dropped(DropReason::Script) + dropped(DropReason::Outage),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 bytes")]
fn connection_record(measured: &Measured, span: Duration) -> ConnectionRecord {
    ConnectionRecord {
        goodput: measured.delivered as f64 * 8.0 / span.as_secs_f64(),
        handshake: measured.handshake.map(|span| span.as_secs_f64()),
        rtt_samples: measured.rtt.as_ref().map(Vec::len),
        rtt_min: measured.rtt_min.map(|span| span.as_secs_f64()),
        stream_bytes_sent: measured.stream_bytes_sent,
        stream_bytes_resent: measured.stream_bytes_resent,
        packets_sent: measured.packets_sent,
        repair: measured.repair,
        closed: measured.closed.clone(),
        evidence: measured.evidence.clone(),
        evidence_at_receiver: measured.evidence_at_receiver.clone(),
    }
}

/// Says whether the run's figures may be used: every byte arrived as it was sent, and every factor that was switched on
/// shows in the stack's own counters: at the sender of the data on every connection that was established, and at the receiver, where
/// something comes there, on any.
///
/// A connection that was never established cannot show anything. It counts with its zero goodput; a run in which none
/// was established shows nothing at all and fails.
fn verify(factors: impl Fn(usize) -> Vec<Factor>, measured: &[Measured]) -> Result<(), String> {
    let wrong: u64 = measured.iter().map(|connection| connection.wrong_bytes).sum();
    if wrong > 0 {
        return Err(format!("{wrong} bytes arrived wrong, twice or out of place"));
    }
    let established = || measured.iter().enumerate().filter(|(_, connection)| connection.handshake.is_some());
    if established().next().is_none() {
        let reason = measured.iter().find_map(|connection| connection.closed.as_deref());
        return Err(format!("no connection was established ({})", reason.unwrap_or("no reason was given")));
    }
    for (index, connection) in established() {
        for factor in factors(index) {
            let shown = connection.evidence.iter().find(|evidence| evidence.factor == factor.name);
            let missing = match shown {
                None => "its counters do not mention it".to_owned(),
                Some(evidence) if evidence.value != factor.value => {
                    format!("its counters say `{}`", evidence.value)
                }
                Some(evidence) if evidence.count == 0 => format!("{} stands at zero", evidence.counter),
                Some(_) => continue,
            };
            return Err(format!("no evidence of {} `{}` on connection {index}: {missing}", factor.name, factor.value));
        }
    }
    let mut arrived: BTreeMap<(String, String), (&str, u64)> = BTreeMap::new();
    for (index, connection) in established() {
        for Factor { name, value } in factors(index) {
            let shown = connection.evidence_at_receiver.iter().filter(|evidence| evidence.factor == name);
            for evidence in shown {
                let (_, sum) = arrived.entry((name.clone(), value.clone())).or_insert((&evidence.counter, 0));
                *sum += if evidence.value == value { evidence.count } else { 0 };
            }
        }
    }
    match arrived.iter().find(|(_, (_, sum))| *sum == 0) {
        Some(((name, value), (counter, _))) => {
            Err(format!("no evidence of {name} `{value}` at the receiver of any connection: {counter} stands at zero"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Evidence;

    fn evidence(value: &str, count: u64) -> Measured {
        let (factor, counter) = ("congestion".to_owned(), "acknowledgements processed".to_owned());
        let evidence = vec![Evidence { factor, value: value.to_owned(), counter, count }];
        Measured { evidence, handshake: Some(Duration::from_millis(50)), ..Measured::default() }
    }

    #[test]
    fn a_factor_must_be_shown_on_every_connection() {
        let cubic = [Factor { name: "congestion".to_owned(), value: "cubic".to_owned() }];
        assert_eq!(verify(|_| cubic.to_vec(), &[evidence("cubic", 7), evidence("cubic", 1)]), Ok(()));
        let message = |connections: &[Measured]| verify(|_| cubic.to_vec(), connections).unwrap_err();
        assert!(message(&[evidence("cubic", 7), evidence("newreno", 7)]).ends_with("its counters say `newreno`"));
        assert!(message(&[evidence("cubic", 0)]).ends_with("acknowledgements processed stands at zero"));
        let silent = Measured { evidence: Vec::new(), ..evidence("cubic", 1) };
        assert!(message(&[silent]).ends_with("connection 0: its counters do not mention it"));
    }

    #[test]
    fn what_comes_to_receivers_must_be_shown_on_any() {
        let code = [Factor { name: "fec".to_owned(), value: "xor:10".to_owned() }];
        let shows = |sent: u64, received: u64| {
            let evidence = |count: u64| Evidence {
                factor: "fec".to_owned(),
                value: "xor:10".to_owned(),
                counter: "repair symbols".to_owned(),
                count,
            };
            let (evidence, evidence_at_receiver) = (vec![evidence(sent)], vec![evidence(received)]);
            Measured {
                evidence,
                evidence_at_receiver,
                handshake: Some(Duration::from_millis(50)),
                ..Measured::default()
            }
        };
        assert_eq!(verify(|_| code.to_vec(), &[shows(5, 0), shows(1, 1)]), Ok(()));
        let message = verify(|_| code.to_vec(), &[shows(5, 0), shows(1, 0)]).unwrap_err();
        assert!(message.ends_with("at the receiver of any connection: repair symbols stands at zero"), "{message}");
    }

    #[test]
    fn what_makes_a_run_useless() {
        let wrong = Measured { wrong_bytes: 3, ..evidence("cubic", 1) };
        assert!(verify(|_| Vec::new(), &[wrong]).unwrap_err().starts_with("3 bytes"));
        let failed = Measured { closed: Some("timed out".to_owned()), ..Measured::default() };
        assert_eq!(
            verify(|_| Vec::new(), std::slice::from_ref(&failed)).unwrap_err(),
            "no connection was established (timed out)"
        );
        assert_eq!(verify(|_| Vec::new(), &[failed, evidence("cubic", 1)]), Ok(()));
    }
}
