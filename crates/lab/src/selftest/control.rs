//! Congestion control, pacing and flow control compared with recursions and closed forms that are independent of our stack.

use netem::{Loss, LossTrace};

use super::{
    Check,
    calibration::{number, value},
    card::Card,
    chain::{run, run_profile, tables},
};
use crate::{figure::Figure, scenario::Scenario};

fn link(rate: u32, delay: u32, queue: &str) -> String {
    format!("rate = \"{rate} Mbit/s\"\nqueue = \"{queue}\"\ndelay = \"{delay} ms\"")
}

const BULK: &str = "workload = \"bulk\"\nconnections = 1";

/// A download over a path that loses every `period`-th packet, whatever comes.
fn periodic(rate: u32, delay: u32, period: usize, seconds: u32) -> Result<Scenario, String> {
    let queue = "20 MB";
    let run = format!("warmup = \"20 s\"\nduration = \"{seconds} s\"");
    let mut scenario = tables(&link(rate, delay, queue), &link(rate, delay, queue), BULK, &run)?;
    let text: String = (1..=period).map(|place| if place == period { '1' } else { '0' }).collect();
    scenario.path.down.loss = Loss::Trace(LossTrace::parse("every so many", &text).map_err(|error| error.to_string())?);
    Ok(scenario)
}

/// Packets per round trip of a window that grows by `grow` with each acknowledgement and falls by `fall` with each loss, when every
/// `period`-th packet is lost: a recursion packet by packet, with the loss noticed a round trip later and no growth from what was
/// sent before.
fn per_round(period: u64, mut grow: impl FnMut(&mut f64, f64), mut fall: impl FnMut(&mut f64, f64), rtt: f64) -> f64 {
    let mut window = 10.0f64;
    // (time of the acknowledgement, number, lost) of packets in flight.
    let mut flight = std::collections::VecDeque::new();
    let (mut number_of, mut recovery, mut now, mut counted) = (0u64, 0.0f64, 0.0f64, 0u64);
    let (from, to) = (200.0 * rtt, 1_400.0 * rtt);
    while now < to {
        while number(flight.len() as u64) + 1.0 <= window {
            number_of += 1;
            flight.push_back((now, number_of.is_multiple_of(period)));
        }
        let Some((sent, lost)) = flight.pop_front() else { break };
        now = sent + rtt;
        counted += u64::from(now > from && !lost);
        if lost {
            if sent > recovery || recovery == 0.0 {
                recovery = now;
                fall(&mut window, now);
            }
        } else if sent > recovery {
            grow(&mut window, now);
        }
    }
    number(counted) / (to - from) * rtt
}

/// NewReno on a path that loses every 300th packet: the sawtooth of AIMD(1, 1/2).
pub(super) fn sawtooth() -> Result<Check, String> {
    let record = run(&periodic(200, 50, 300, 60)?, "newreno")?;
    let expected = per_round(300, |window, _| *window += 1.0 / *window, |window, _| *window /= 2.0, 0.1);
    let payload = payload(&record);
    let measured = value(&record, Figure::Goodput)? * 0.1 / 8.0 / payload;
    Ok(Card::new("V5 NewReno packet by packet")
        .near("packets in a round trip, every 300th lost", measured, expected, 0.05 * expected, "")
        .done())
}

fn payload(record: &crate::record::Record) -> f64 {
    let sum = |read: fn(&crate::record::ConnectionRecord) -> Option<u64>| -> f64 {
        number(record.connections.iter().filter_map(read).sum())
    };
    sum(|one| one.stream_bytes_sent) / sum(|one| one.packets_sent).max(1.0)
}

/// CUBIC where it is no Reno: every 8000th packet lost at 100 ms (RFC 9438 §4.2, §4.6, §4.7).
pub(super) fn cubic() -> Result<Check, String> {
    let record = run(&periodic(200, 50, 8_000, 60)?, "cubic")?;
    // W(t) = 0.4 (t - K)^3 + W_max, from the reduction to 0.7 on.
    let state = std::cell::Cell::new((0.0f64, 0.0f64, 0.0f64));
    let fall = |window: &mut f64, now: f64| {
        let (_, _, last) = state.get();
        let plateau = if *window < last { *window * 0.85 } else { *window };
        *window *= 0.7;
        state.set((now, ((plateau - *window) / 0.4).max(0.0).cbrt(), plateau));
    };
    let grow = |window: &mut f64, now: f64| {
        let (since, k, plateau) = state.get();
        if plateau == 0.0 {
            *window += 1.0;
            return;
        }
        let target = (0.4 * (now + 0.1 - since - 0.1 - k).powi(3) + plateau).clamp(*window, 1.5 * *window);
        *window += (target - *window) / *window;
    };
    let expected = per_round(8_000, grow, fall, 0.1);
    let measured = value(&record, Figure::Goodput)? * 0.1 / 8.0 / payload(&record);
    Ok(Card::new("V5 CUBIC packet by packet")
        .near("packets in a round trip, every 8000th lost", measured, expected, 0.06 * expected, "")
        .done())
}

/// Slow start doubles: 10, 20, 40, … packets; an answer of 200 kB takes five rounds after the handshake.
pub(super) fn slow_start() -> Result<Check, String> {
    let flow = |size: &str| -> Result<f64, String> {
        let traffic =
            format!("workload = \"flows\"\nconnections = 20\nstart-spread = \"4 s\"\nresponse-size = \"{size}\"");
        let path = link(1_000, 50, "10 MB");
        Ok(value(&run(&tables(&path, &path, &traffic, "duration = \"8 s\"")?, "newreno")?, Figure::FlowP50)? * 1e3)
    };
    let (small, large) = (flow("20 kB")?, flow("200 kB")?);
    // A flow that fills a deep buffer in slow start: HyStart++ leaves before anything is dropped.
    let path = link(50, 25, "8 MB");
    let mut gentle = tables(&path, &path, BULK, "duration = \"6 s\"")?;
    gentle.run.warmup = units::Duration::ZERO;
    let record = run(&gentle, "cubic")?;
    Ok(Card::new("V5 slow start")
        .within("flow of 20 kB, two rounds", small, 300.0, 315.0, " ms")
        .within("flow of 200 kB, five rounds", large, 500.0, 625.0, " ms")
        .near("dropped by a deep queue in 6 s of cubic", value(&record, Figure::QueueLoss)?, 0.0, 0.0, "")
        .within("goodput in them, of 50", value(&record, Figure::Goodput)? / 1e6, 40.0, 49.0, " Mbit/s")
        .done())
}

/// A receive window of 300 kB that cannot grow, at 100 ms, and one that may grow and then carries the path.
pub(super) fn flow_control() -> Result<Check, String> {
    let path = link(100, 50, "5 MB");
    let scenario = tables(&path, &path, BULK, "warmup = \"5 s\"\nduration = \"10 s\"")?;
    let fixed = "{ name = \"a\", congestion = \"newreno\", streams = { receive_window_stream = 300000, \
                 receive_window_connection = 300000, receive_window_max = 300000 } }";
    let fixed = run_profile(&scenario, fixed)?;
    let free = run(&scenario, "newreno")?;
    // Credit is given when half of the window is used. What is credited first is half a window and the rest of a packet, so the
    // second half falls short of being a half by that rest and waits: half a window in a round trip, 12 Mbit/s.
    Ok(Card::new("flow control")
        .within("goodput with a window of 300 kB", value(&fixed, Figure::Goodput)? / 1e6, 11.7, 12.6, " Mbit/s")
        .within("goodput with one that grows, of 100", value(&free, Figure::Goodput)? / 1e6, 88.0, 98.0, " Mbit/s")
        .done())
}

/// BBR after a rise of the RTT from 20 to 120 ms: the old minimum is forgotten within its 10 s, or two fifths of the rate are lost.
pub(super) fn forgetting_the_minimum() -> Result<Check, String> {
    let change =
        |delay: u32| link(20, 10, "600 kB") + &format!("\nchanges = [{{ at = \"15 s\", delay = \"{delay} ms\" }}]");
    let scenario = tables(&change(60), &change(60), BULK, "warmup = \"40 s\"\nduration = \"15 s\"")?;
    let (first, third) = (run(&scenario, "bbr1")?, run(&scenario, "bbr3")?);
    let goodput = |record| value(record, Figure::Goodput).map(|goodput| goodput / 1e6);
    Ok(Card::new("V6 BBR forgets a minimum")
        .within("bbr1 after the RTT rose sixfold, of 20", goodput(&first)?, 17.0, 19.6, " Mbit/s")
        .within("bbr3", goodput(&third)?, 17.0, 19.6, " Mbit/s")
        .done())
}

/// BBR alone keeps a buffer of four bandwidth-delay products nearly empty, because it paces; CUBIC fills it.
pub(super) fn short_queues() -> Result<Check, String> {
    let path = link(20, 25, "500 kB");
    let scenario = tables(&path, &path, BULK, "warmup = \"8 s\"\nduration = \"25 s\"")?;
    let mut card = Card::new("V6 queues of BBR");
    for (controller, wait) in [("bbr1", 30.0), ("bbr3", 55.0)] {
        let record = run(&scenario, controller)?;
        let median = value(&record, Figure::RttP50)? * 1e3;
        card = card
            .within(&format!("{controller}: RTT p50 of 50"), median, 50.0, 60.0, " ms")
            .within("goodput of 20", value(&record, Figure::Goodput)? / 1e6, 17.0, 19.7, " Mbit/s")
            .within("queue delay p99", value(&record, Figure::QueueDelayP99)? * 1e3, 0.5, wait, " ms");
    }
    let record = run(&scenario, "newreno")?;
    Ok(card
        .within("newreno: queue delay p99 of 200", value(&record, Figure::QueueDelayP99)? * 1e3, 165.0, 200.5, " ms")
        .done())
}

/// A managed queue that marks: no packet is lost, the queue stays short, and the window answers the marks.
pub(super) fn marks() -> Result<Check, String> {
    let queue = "{ codel = { bytes = \"1 MB\", target = \"5 ms\", interval = \"100 ms\", ecn = true } }";
    let path = format!("rate = \"20 Mbit/s\"\nqueue = {queue}\ndelay = \"25 ms\"");
    let scenario = tables(&path, &link(20, 25, "500 kB"), BULK, "warmup = \"5 s\"\nduration = \"20 s\"")?;
    let record = run(&scenario, "cubic")?;
    Ok(Card::new("V3 marks instead of losses")
        .near("link loss", value(&record, Figure::LinkLoss)?, 0.0, 0.0, "")
        .within("RTT p50 of 50 and a target of 5", value(&record, Figure::RttP50)? * 1e3, 50.0, 62.0, " ms")
        .within("goodput of 20", value(&record, Figure::Goodput)? / 1e6, 15.0, 19.7, " Mbit/s")
        .done())
}
