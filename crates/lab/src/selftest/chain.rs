//! The whole chain, from the link through the stack to the figure, on paths whose figures follow from arithmetic.

use std::sync::{Arc, Mutex, PoisonError};

use sim::{Datagram, Node, Outbox};
use units::{Duration, Instant};

use super::{
    Check,
    calibration::{number, scenario, value},
    card::Card,
};
use crate::{
    contender::{BuildError, Contender, Factor, Identity, Nodes, RunSpec},
    figure::Figure,
    record::{Record, RunOutcome},
    rivals::Rivals,
    run::run_one,
    scenario::Scenario,
    settings::profiles,
    tiderace::{contender, with_setup},
};

/// A scenario from the tables of its file.
pub(super) fn tables(down: &str, up: &str, traffic: &str, run: &str) -> Result<Scenario, String> {
    scenario(&format!(
        "name = \"selftest\"\ntitle = \"Self-test\"\nabout = \"Known answers.\"\n[path.down]\n{down}\n[path.up]\n{up}\n\
         [traffic]\n{traffic}\n[run]\nseeds = 1\n{run}\n"
    ))
}

/// One run that has to be usable.
pub(super) fn record(scenario: &Scenario, stack: &dyn Contender, seed: u64) -> Result<Record, String> {
    let record = run_one(scenario, stack, seed, None);
    match &record.outcome {
        RunOutcome::Valid => Ok(record),
        RunOutcome::Failed(reason) => Err(reason.clone()),
    }
}

/// One run of our stack with one controller.
pub(super) fn run(scenario: &Scenario, controller: &str) -> Result<Record, String> {
    let stack = contender(controller).ok_or_else(|| format!("there is no `{controller}`"))?;
    record(scenario, stack.as_ref(), 1)
}

/// One run of our stack with a profile in the notation of scenarios.
pub(super) fn run_profile(scenario: &Scenario, profile: &str) -> Result<Record, String> {
    let table: toml::Table = toml::from_str(&format!("profiles = [{profile}]")).map_err(|error| error.to_string())?;
    let selection = table.try_into().map_err(|error: toml::de::Error| error.to_string())?;
    let mut setups = profiles(&selection).map_err(|fault| fault.message)?;
    let setup = setups.pop().ok_or("no profile")?;
    record(scenario, with_setup(setup).as_ref(), 1)
}

fn wide(delay: u32) -> String {
    format!("rate = \"100 Mbit/s\"\nqueue = \"2 MB\"\ndelay = \"{delay} ms\"")
}

/// Datagrams at a constant rate in either direction of a path whose directions differ: delay, goodput, loss, RTT, waits.
pub(super) fn directions() -> Result<Check, String> {
    let (down, up) = (
        "rate = \"20 Mbit/s\"\nqueue = \"250 kB\"\ndelay = \"130 ms\"",
        "rate = \"8 Mbit/s\"\nqueue = \"250 kB\"\ndelay = \"20 ms\"\nloss = \"5 %\"",
    );
    let mut card = Card::new("V1 constant rate, each direction");
    // A window that halves with each loss would hold datagrams back.
    for (direction, controller, delay, rate, loss) in
        [("download", "cubic", 130.0, 20e6, 0.0), ("upload", "bbr1", 20.0, 8e6, 5.0)]
    {
        let traffic = format!(
            "workload = \"datagrams\"\ndirection = \"{direction}\"\nconnections = 1\npacket-rate = 500\ndatagram-size = \"1000 B\""
        );
        let scenario = tables(down, up, &traffic, "warmup = \"3 s\"\nduration = \"30 s\"")?;
        let record = run(&scenario, controller)?;
        let of = |figure| value(&record, figure);
        // 1000 bytes with 20 to 40 of QUIC and 28 of UDP and IP.
        let send = 1_000.0 * 1_060.0 * 8.0 / rate;
        card = card
            .near(&format!("{direction}: delay p50"), of(Figure::DelayP50)? * 1e3, delay + send, 0.08, " ms")
            .near("goodput", of(Figure::Goodput)? / 1e6, 4.0 * (1.0 - loss / 100.0), 0.03, " Mbit/s")
            .near("residual loss", of(Figure::ResidualLoss)? * 100.0, loss, if loss > 0.0 { 0.8 } else { 0.0 }, " %")
            .near("link loss", of(Figure::LinkLoss)? * 100.0, loss, if loss > 0.0 { 0.8 } else { 0.0 }, " %")
            .near("RTT p50", of(Figure::RttP50)? * 1e3, 150.0 + send, 0.35, " ms");
        if loss == 0.0 {
            card = card.near("delay p99", of(Figure::DelayP99)? * 1e3, delay + send, 1.0, " ms");
        }
    }
    Ok(card.done())
}

/// A packet each 50 ms: every acknowledgement waits for 25 ms at the receiver, which no RTT may contain. The path becomes longer by 1 ms
/// after the handshake: RFC 9002 §5.3 takes nothing off a sample that would come to lie below the minimum, be it by a nanosecond.
pub(super) fn delayed_acknowledgements() -> Result<Check, String> {
    let traffic = "workload = \"datagrams\"\nconnections = 1\npacket-rate = 20\ndatagram-size = \"500 B\"";
    let down = wide(30) + "\nchanges = [{ at = \"1 s\", delay = \"31 ms\" }]";
    let scenario = tables(&down, &wide(10), traffic, "warmup = \"3 s\"\nduration = \"20 s\"")?;
    let record = run(&scenario, "newreno")?;
    let of = |figure| value(&record, figure);
    let least = record.connections.first().and_then(|one| one.rtt_min).unwrap_or(0.0) * 1e3;
    Ok(Card::new("V11 delay of acknowledgements")
        // A full packet each way, of the handshake.
        .near("least RTT", least, 40.2, 0.05, " ms")
        .near("RTT p50", of(Figure::RttP50)? * 1e3, 41.05, 0.05, " ms")
        .near("RTT p95", of(Figure::RttP95)? * 1e3, 41.05, 0.1, " ms")
        .near("bufferbloat", of(Figure::Bufferbloat)?, 41.05 / 40.2 - 1.0, 0.002, "")
        .done())
}

/// Packets and bytes that leave the nodes, counted there.
#[derive(Clone, Copy, Debug, Default)]
struct Departed {
    packets: u64,
    bytes: u64,
    /// Most bytes at one instant, and the instant.
    burst: (u64, Instant),
    now: u64,
}

#[derive(Debug, Default)]
struct Ledger {
    /// Clients, servers.
    sides: [Departed; 2],
}

/// Counts what a contender sends while it is measured, without asking links or stack.
struct Counted {
    inner: Box<dyn Contender>,
    ledger: Arc<Mutex<Ledger>>,
}

struct Gate {
    node: Box<dyn Node>,
    ledger: Arc<Mutex<Ledger>>,
    side: usize,
    span: (Instant, Instant),
}

impl Node for Gate {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        self.node.handle(now, datagram, out);
        let sent: Vec<Datagram> = out.drain().collect();
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let left = &mut ledger.sides[self.side];
        if left.burst.1 != now {
            (left.now, left.burst.1) = (0, now);
        }
        for datagram in sent {
            let len = datagram.payload.len();
            let packets = datagram.segment_size.map_or(1, |segment| len.div_ceil(segment.max(1))) as u64;
            // 20 bytes of IPv4 and 8 of UDP.
            let bytes = len as u64 + 28 * packets;
            if now > self.span.0 && now <= self.span.1 {
                left.packets += packets;
                left.bytes += bytes;
                left.now += bytes;
                left.burst.0 = left.burst.0.max(left.now);
            }
            out.send(datagram);
        }
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.node.deadline()
    }
    fn finished(&self) -> bool {
        self.node.finished()
    }
}

impl Contender for Counted {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn factors(&self) -> Vec<Factor> {
        self.inner.factors()
    }

    fn build(&self, spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        let mut nodes = self.inner.build(spec)?;
        let span = (spec.measure_from, spec.end);
        let gate =
            |node, side| -> Box<dyn Node> { Box::new(Gate { node, ledger: Arc::clone(&self.ledger), side, span }) };
        nodes.pairs = nodes.pairs.into_iter().map(|(client, server)| (gate(client, 0), gate(server, 1))).collect();
        Ok(nodes)
    }
}

/// Bytes and packets of both directions as the nodes send them, beside what the record says of the links; how bursty they are.
pub(super) fn books() -> Result<Check, String> {
    let mut card = Card::new("books of nodes and links");
    for (direction, sender) in [("download", 1), ("upload", 0)] {
        let traffic = format!("workload = \"bulk\"\ndirection = \"{direction}\"\nconnections = 1");
        let link = |rate, loss| {
            format!("rate = \"{rate} Mbit/s\"\nqueue = \"100 kB\"\ndelay = \"20 ms\"\nloss = \"{loss} %\"")
        };
        let scenario = tables(&link(20, 0.5), &link(15, 0.5), &traffic, "warmup = \"3 s\"\nduration = \"15 s\"")?;
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let inner = contender("cubic").ok_or("there is no cubic")?;
        let record = record(&scenario, &Counted { inner, ledger: Arc::clone(&ledger) }, 1)?;
        let sides = ledger.lock().unwrap_or_else(PoisonError::into_inner).sides;
        let (forward, back) = (sides[sender], sides[1 - sender]);
        let sent: u64 = record.connections.iter().filter_map(|one| one.packets_sent).sum();
        let reverse = value(&record, Figure::Reverse)?;
        let goodput = value(&record, Figure::Goodput)? * 15.0 / 8.0;
        let overhead = 1.0 - goodput / number(forward.bytes);
        card = card
            .equal(&format!("{direction}: packets offered"), record.link.offered, forward.packets)
            .equal("bytes offered", record.link.offered_bytes, forward.bytes)
            .equal("bytes of the other direction", record.link.reverse_bytes, back.bytes)
            .near("packets that the stack counts", number(sent), number(forward.packets), 1.0, "")
            .near("reverse bytes", reverse * 100.0, number(back.bytes) * 100.0 / number(forward.bytes), 1e-6, " %")
            .near("overhead", value(&record, Figure::Overhead)? * 100.0, overhead * 100.0, 1e-6, " %")
            .within("largest burst", number(forward.burst.0), 1_200.0, 15_500.0, " B");
    }
    Ok(card.done())
}

/// Requests, flows, a page and a feed on a path without a queue: round trips and the time to send.
pub(super) fn exchanges() -> Result<Check, String> {
    let run_of = |traffic: &str| -> Result<Record, String> {
        run(&tables(&wide(40), &wide(10), traffic, "warmup = \"1 s\"\nduration = \"20 s\"")?, "cubic")
    };
    // 6 kB fit into the first window: one round trip and 0.5 ms to send them.
    let requests = run_of("workload = \"requests\"\nconnections = 1\nresponse-size = \"6 kB\"")?;
    let (p50, rate) = (value(&requests, Figure::RequestP50)? * 1e3, value(&requests, Figure::RequestRate)?);
    let several = run_of("workload = \"requests\"\nconnections = 3\nstreams = 4\nresponse-size = \"1 kB\"")?;
    let flows = "workload = \"flows\"\nconnections = 80\nstart-spread = \"16 s\"\nresponse-size = \"6 kB\"";
    let flows = run(&tables(&wide(40), &wide(10), flows, "duration = \"20 s\"")?, "cubic")?;
    let page = "workload = \"page\"\nconnections = 8\nstart-spread = \"5 s\"\n\
                page = { document = \"2 kB\", styles = 2, style-size = \"2 kB\", images = 3, image-size = \"2 kB\" }";
    let page = run(&tables(&wide(40), &wide(10), page, "duration = \"10 s\"")?, "cubic")?;
    let feed = "workload = \"feed\"\nconnections = 1\nfeed = { every = \"500 ms\", calls = 2, call-size = \"2 kB\", images = 4, image-size = \"5 kB\" }";
    let feed = run_of(feed)?;
    // A fifth of the packets is lost: every connection loses some after its handshake, and many some before.
    let lossy = wide(40) + "\nloss = \"20 %\"";
    let lossy = tables(
        &lossy,
        &wide(10),
        "workload = \"requests\"\nconnections = 12\nresponse-size = \"6 kB\"",
        "duration = \"15 s\"",
    )?;
    let lossy = run(&lossy, "newreno")?;
    Ok(Card::new("V10 requests and flows")
        .near("request p50", p50, 50.9, 0.8, " ms")
        .near("requests", rate, 1e3 / 50.9, 0.4, " 1/s")
        .near("requests of 3 x 4 at a time", value(&several, Figure::RequestRate)?, 12e3 / 50.5, 4.0, " 1/s")
        .within("flow p50, two round trips", value(&flows, Figure::FlowP50)? * 1e3, 100.5, 104.0, " ms")
        .near("unfinished flows", value(&flows, Figure::FlowsUnfinished)?, 0.0, 0.0, "")
        .within("page p50, four round trips", value(&page, Figure::FlowP50)? * 1e3, 201.0, 208.0, " ms")
        .within("feed, request p50", value(&feed, Figure::RequestP50)? * 1e3, 50.3, 53.5, " ms")
        .near("images seen", value(&feed, Figure::FeedSeen)?, 1.0, 0.0, "")
        .within("lost in set-up", value(&lossy, Figure::LossSetup)? * 100.0, 25.0, 100.0, " %")
        .near("lost after set-up", value(&lossy, Figure::LossAfter)? * 100.0, 100.0, 0.0, " %")
        .done())
}

/// A video on a path that carries its highest bitrate, and on one that stands still for a while.
pub(super) fn video() -> Result<Check, String> {
    let traffic = "workload = \"video\"\nconnections = 1";
    let smooth = run(&tables(&wide(20), &wide(20), traffic, "warmup = \"10 s\"\nduration = \"40 s\"")?, "cubic")?;
    // 30 s without a packet; the buffer has 12 s and the segment that it would have fetched.
    let down = wide(20) + "\noutages = [{ at = \"20 s\", lasts = \"30 s\", packets = \"held\" }]";
    let still = run(&tables(&down, &wide(20), traffic, "warmup = \"10 s\"\nduration = \"60 s\"")?, "cubic")?;
    Ok(Card::new("video")
        .near("highest bitrate", value(&smooth, Figure::VideoRate)? / 1e6, 8.0, 0.01, " Mbit/s")
        .near("stalled", value(&smooth, Figure::VideoStalled)?, 0.0, 0.0, "")
        // Handshake, request, and 100 kB in slow start.
        .within("start", value(&smooth, Figure::VideoStart)? * 1e3, 160.0, 260.0, " ms")
        .within("stalled of 60 s with an outage of 30 s", value(&still, Figure::VideoStalled)? * 60.0, 17.5, 21.0, " s")
        .near("stalls", value(&still, Figure::VideoStalls)? * 60.0, 1.0, 1e-6, "")
        .done())
}

/// Before measuring, a queue of seconds, losses and slow requests; then none of it: no figure may remember it.
pub(super) fn warm_up() -> Result<Check, String> {
    let down = "rate = \"2 Mbit/s\"\nqueue = \"100 kB\"\ndelay = \"25 ms\"\nchanges = [{ at = \"5 s\", rate = \"100 Mbit/s\" }]";
    let traffic = "workload = \"datagrams\"\nconnections = 1\npacket-rate = 400\ndatagram-size = \"1000 B\"";
    let scenario = tables(down, &wide(25), traffic, "warmup = \"12 s\"\nduration = \"10 s\"")?;
    let record = run(&scenario, "newreno")?;
    let of = |figure| value(&record, figure);
    Ok(Card::new("warm-up counts nowhere")
        .within("queue delay p99", of(Figure::QueueDelayP99)? * 1e3, 0.0, 0.5, " ms")
        .near("delay p99", of(Figure::DelayP99)? * 1e3, 25.1, 0.5, " ms")
        .near("RTT p99", of(Figure::RttP99)? * 1e3, 50.1, 0.6, " ms")
        .near("residual loss", of(Figure::ResidualLoss)?, 0.0, 0.0, "")
        .near("link loss", of(Figure::LinkLoss)?, 0.0, 0.0, "")
        .near("goodput", of(Figure::Goodput)? / 1e6, 3.2, 0.01, " Mbit/s")
        .near("packets offered", number(record.link.offered), 4_000.0, 60.0, "")
        .holds("no loss is timed", !record.figures.contains_key(&Figure::LossDelayP50))
        .done())
}

/// Every packet duplicated, or a tenth delayed by 6 ms: nothing is lost, delivered twice, or retransmitted for long.
pub(super) fn copies_and_order() -> Result<Check, String> {
    let traffic = "workload = \"datagrams\"\nconnections = 1\npacket-rate = 500\ndatagram-size = \"1000 B\"";
    let with = |more: &str| wide(25) + "\n" + more;
    let run_s = "warmup = \"2 s\"\nduration = \"20 s\"";
    let twice = with("duplicate = { probability = \"100 %\", delay = \"3 ms\" }\nloss = \"4 %\"");
    let twice = run(&tables(&twice, &wide(25), traffic, run_s)?, "bbr1")?;
    let bulk = "workload = \"bulk\"\nconnections = 1";
    let late = with("reorder = { probability = \"10 %\", delay = \"6 ms\" }");
    let late = run(&tables(&late, &wide(25), bulk, "warmup = \"5 s\"\nduration = \"10 s\"")?, "cubic")?;
    let copied = with("duplicate = \"50 %\"").replace("100 Mbit/s", "20 Mbit/s");
    let copied = run(&tables(&copied, &wide(25), bulk, run_s)?, "newreno")?;
    Ok(Card::new("copies and order")
        .near(
            "goodput of datagrams that arrive twice, 4 % lost",
            value(&twice, Figure::Goodput)? / 1e6,
            3.84,
            0.05,
            " Mbit/s",
        )
        .near("residual loss", value(&twice, Figure::ResidualLoss)? * 100.0, 4.0, 0.9, " %")
        .within(
            "goodput of a transfer that arrives twice, of 20",
            value(&copied, Figure::Goodput)? / 1e6,
            18.0,
            19.6,
            " Mbit/s",
        )
        .within("sent again where packets come late", value(&late, Figure::Retransmitted)? * 100.0, 0.0, 0.5, " %")
        .within("goodput there, of 100", value(&late, Figure::Goodput)? / 1e6, 80.0, 98.0, " Mbit/s")
        .done())
}

/// Time until losses are detected: by three later packets where packets are dense, by the next acknowledgement where they are sparse, by a
/// probe where nothing follows.
pub(super) fn noticing_losses() -> Result<Check, String> {
    let lossy = wide(25) + "\nloss = \"2 %\"";
    let at = |rate: u32| -> Result<f64, String> {
        let traffic =
            format!("workload = \"datagrams\"\nconnections = 1\npacket-rate = {rate}\ndatagram-size = \"500 B\"");
        let scenario = tables(&lossy, &wide(25), &traffic, "warmup = \"3 s\"\nduration = \"30 s\"")?;
        Ok(value(&run(&scenario, "bbr1")?, Figure::LossDelayP50)? * 1e3)
    };
    // 0.5 ms apart: three packets and a round trip. 20 ms apart: the next packet's acknowledgement is 20 ms later, and beyond 9/8.
    let (dense, sparse) = (at(2_000)?, at(50)?);
    let traffic = "workload = \"requests\"\nconnections = 1\nresponse-size = \"200 B\"";
    let lossy = wide(25) + "\nloss = \"10 %\"";
    let probes = run(&tables(&lossy, &wide(25), traffic, "warmup = \"3 s\"\nduration = \"60 s\"")?, "newreno")?;
    let traffic = "workload = \"bulk\"\nconnections = 1";
    let every =
        wide(20).replace("100 Mbit/s", "20 Mbit/s") + "\nloss = { group = { size = 100, drop = 1, min-bytes = 600 } }";
    let again = run(&tables(&every, &wide(20), traffic, "warmup = \"5 s\"\nduration = \"40 s\"")?, "bbr1")?;
    Ok(Card::new("V5 noticing losses")
        .within("of dense packets, by number", dense, 51.4, 52.6, " ms")
        .within("of sparse packets, by time", sparse, 69.8, 71.5, " ms")
        // A probe timeout of a steady path is its RTT, 1 ms and the 25 ms of the receiver; then a round trip.
        .within("answers after a probe timeout, p95", value(&probes, Figure::RequestP95)? * 1e3, 122.0, 150.0, " ms")
        .near("sent again of one lost in a hundred", value(&again, Figure::Retransmitted)? * 100.0, 1.0, 0.05, " %")
        .near("link loss", value(&again, Figure::LinkLoss)? * 100.0, 1.0, 0.02, " %")
        .near("  resent", value(&again, Figure::OverheadResent)? * 100.0, 0.96, 0.06, " %")
        .done())
}

/// Two rivals: share and harm from goodputs that other runs measured.
pub(super) fn rivals() -> Result<Check, String> {
    let traffic = "workload = \"bulk\"\nconnections = 2";
    let link = "rate = \"10 Mbit/s\"\nqueue = \"60 kB\"\ndelay = \"20 ms\"";
    let scenario = tables(link, link, traffic, "warmup = \"4 s\"\nduration = \"12 s\"")?;
    let stack = |name: &str| contender(name).ok_or_else(|| format!("there is no `{name}`"));
    let record = record(&scenario, &Rivals::new(stack("bbr1")?, stack("newreno")?), 1)?;
    let goodputs: Vec<f64> = record.connections.iter().map(|one| one.goodput).collect();
    let &[first, second] = goodputs.as_slice() else { return Err("two connections".to_owned()) };
    let of = |figure| value(&record, figure);
    // Alone each fills the link: 10 Mbit/s less headers.
    let full = 9.6e6;
    Ok(Card::new("V8 rivals")
        .near("goodput is the sum", of(Figure::Goodput)?, first + second, 1.0, " bit/s")
        .near("share of the first", of(Figure::Share)?, first / (first + second), 1e-9, "")
        .near(
            "Jain's index",
            of(Figure::Jain)?,
            (first + second).powi(2) / (2.0 * (first * first + second * second)),
            1e-9,
            "",
        )
        .near("harm to the first", of(Figure::HarmFirst)?, 1.0 - first / full, 0.03, "")
        .near("harm to the second", of(Figure::HarmSecond)?, 1.0 - second / full, 0.03, "")
        .within("bbr1 takes more than half in a short buffer", of(Figure::Share)?, 0.5, 0.98, "")
        .done())
}

/// Repair as figures: what XOR 10+1 takes of the wire, brings back at 5 % loss, and how long that takes.
pub(super) fn repair() -> Result<Check, String> {
    let traffic = "workload = \"datagrams\"\nconnections = 1\npacket-rate = 1500\ndatagram-size = \"1100 B\"";
    let link = "rate = \"50 Mbit/s\"\nqueue = \"250 kB\"\ndelay = \"25 ms\"";
    let lossy = format!("{link}\nloss = \"5 %\"");
    let scenario = tables(&lossy, link, traffic, "warmup = \"3 s\"\nduration = \"40 s\"")?;
    let of = |code: &str| {
        run_profile(
            &scenario,
            &format!("{{ name = \"a\", congestion = \"bbr3\", random_loss_tolerance = \"15 %\", fec = \"{code}\" }}"),
        )
    };
    let (xor, two) = (of("xor:10")?, of("rs:10+2")?);
    let kept = 0.95f64.powi(10);
    // Of 12 packets, 10 of them data: lost and more than two lost of the block.
    let rest: f64 = (2..=11u32)
        .map(|others| binomial(11, others) * 0.05f64.powf(f64::from(others)) * 0.95f64.powf(f64::from(11 - others)))
        .sum();
    // What names a protected packet: 2 bytes of type, and 2 of number for the first 8 of the 40 s, 4 from then on. Beside 1100 bytes
    // of content, the packet has 63 of headers.
    let names = 5.6 / 1_163.0;
    Ok(Card::new("V9 repair in figures")
        .near("XOR 10+1: repair", value(&xor, Figure::Repair)? * 100.0, 100.0 * (1.0 + 10.0 * names) / 11.0, 0.1, " %")
        .near("recovered", value(&xor, Figure::Recovered)? * 100.0, kept * 100.0, 3.0, " %")
        .near("residual loss", value(&xor, Figure::ResidualLoss)? * 100.0, 5.0 * (1.0 - kept), 0.25, " %")
        // From the packet after the lost one to the repair: on average 4.5 of 0.667 ms, and the repair itself.
        .within("recovery delay", value(&xor, Figure::RecoveryDelay)? * 1e3, 2.6, 4.2, " ms")
        .within("repair that was not needed", value(&xor, Figure::RepairSpurious)? * 100.0, 55.0, 65.0, " %")
        .near("10+2: recovered", value(&two, Figure::Recovered)? * 100.0, (1.0 - rest) * 100.0, 2.5, " %")
        .near("repair", value(&two, Figure::Repair)? * 100.0, 100.0 * (2.0 + 10.0 * names) / 12.0, 0.15, " %")
        .near("residual loss", value(&two, Figure::ResidualLoss)? * 100.0, 5.0 * rest, 0.13, " %")
        .done())
}

fn binomial(of: u32, chosen: u32) -> f64 {
    (0..chosen).map(|i| f64::from(of - i) / f64::from(i + 1)).product()
}

/// The application counts each datagram once, even if the stack delivers it twice, and detects wrong ones.
pub(super) fn applications() -> Result<Check, String> {
    use crate::{
        host::{Host, HostEvent, ReadEnd, Stream, Written},
        workload::{App, End},
    };
    use bytes::Bytes;

    /// A stack that delivers what is put into it.
    #[derive(Default)]
    struct Puppet {
        events: Vec<HostEvent>,
        sent: Vec<Bytes>,
        arrived: Vec<Bytes>,
    }
    impl Host for Puppet {
        fn poll_event(&mut self) -> Option<HostEvent> {
            self.events.pop()
        }
        fn open(&mut self) -> Option<Stream> {
            None
        }
        fn accept(&mut self) -> Option<Stream> {
            None
        }
        fn write(&mut self, _stream: Stream, _data: &mut Bytes) -> Written {
            Written::Closed
        }
        fn finish(&mut self, _stream: Stream) {}
        fn read(&mut self, _stream: Stream, _sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
            ReadEnd::Closed
        }
        fn send_datagram(&mut self, data: Bytes) -> bool {
            self.sent.push(data);
            true
        }
        fn receive_datagram(&mut self) -> Option<Bytes> {
            self.arrived.pop()
        }
    }

    let traffic = "workload = \"datagrams\"\nconnections = 1\npacket-rate = 100\ndatagram-size = \"200 B\"";
    let scenario = tables(&wide(25), &wide(25), traffic, "warmup = \"1 s\"\nduration = \"9 s\"")?;
    let spec = RunSpec {
        scenario: &scenario,
        seed_number: 1,
        seed: units::Seed::from_number(1),
        connections: &[],
        measure_from: scenario.run.measure_from(),
        end: scenario.run.end(),
        qlog: None,
        throttle: None,
    };
    let (mut sender, mut receiver) = (App::new(End::Server, &spec), App::new(End::Client, &spec));
    let (mut from, mut to) = (Puppet::default(), Puppet::default());
    from.events.push(HostEvent::Established);
    let mut wrong = 0u64;
    for tick in 0..1_000u64 {
        let now = Instant::from_millis(tick * 10);
        sender.drive(now, &mut from);
        for (place, data) in (0..).zip(from.sent.drain(..)) {
            // Each comes twice, 150 ms later; one of them is damaged.
            to.arrived.extend([data.clone(), data.clone()]);
            if tick == 500 && place == 0 {
                let mut damaged = data.to_vec();
                damaged[100] ^= 1;
                to.arrived.push(damaged.into());
                wrong += 1;
            }
        }
        to.events.push(HostEvent::Datagram);
        receiver.drive(now + Duration::from_millis(150), &mut to);
    }
    let (due, tally) = (sender.tally().due, receiver.tally());
    let longest = tally.delays.iter().max().map_or(0.0, |delay| delay.as_secs_f64() * 1e3);
    Ok(Card::new("what applications count")
        // From 1 s to 10 s less the delay, and what fills the queue, of the path: 25 ms and 160 ms.
        .near("datagrams due", number(due), 881.0, 2.0, "")
        .equal("arrived of them, each twice", tally.delays.len() as u64, due)
        .near("longest delay", longest, 150.0, 1e-6, " ms")
        // Those that arrive between 1 and 10 s.
        .near("bytes delivered", number(tally.delivered) / 200.0, 900.0, 1.0, " of 200")
        .equal("damaged", tally.wrong_bytes, wrong)
        .done())
}
