//! The closest `tc` and `nft` commands to a link, for Linux with netem.
//!
//! Two devices are needed, because a packet is queued first and lost or delayed behind the queue. The bottleneck's shaper is on the sending
//! device (`queue`); delay and loss are on the next one (`wire`), for example an `ifb` at the receiver. Notes name the differences to
//! netem.

use units::{Bitrate, DataSize, Duration};

use crate::config::{Codel, LinkConfig, Loss, Queue};

/// Commands, and their differences to the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// In the order in which they are to be run, as root.
    pub commands: Vec<String>,
    /// Differences of the result from the model.
    pub notes: Vec<String>,
}

/// The commands for one direction. `queue` is the device in front of the bottleneck, `wire` the one behind it.
pub fn commands(link: &LinkConfig, queue: &str, wire: &str) -> Commands {
    let mut out = Commands::default();
    policer(link, queue, &mut out);
    shaper(link, queue, &mut out);
    netem(link, wire, &mut out);
    if let Some(mtu) = link.mtu {
        out.commands.push(format!("nft add table netdev path-{wire}"));
        out.commands.push(format!(
            "nft add chain netdev path-{wire} mtu '{{ type filter hook ingress device {wire} priority 0; }}'"
        ));
        // nft counts the IP packet without its link-layer header, as the model does.
        out.commands.push(format!("nft add rule netdev path-{wire} mtu ip length gt {mtu} drop"));
    }
    if !link.ecn.is_pass() {
        out.notes.push("ECN marks arrive as they are; `ecn` of the model rewrites them".to_owned());
    }
    schedule(link, queue, wire, &mut out);
    out
}

fn rate(rate: Bitrate) -> String {
    format!("{}bit", rate.as_bps())
}

fn time(span: Duration) -> String {
    format!("{}us", span.as_micros())
}

/// tc wants per cent with a point.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "used as a function")]
fn percent(share: &f64) -> String {
    let text = format!("{:.6}", share * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

fn policer(link: &LinkConfig, device: &str, out: &mut Commands) {
    let Some(policer) = &link.policer else { return };
    out.commands.push(format!("tc qdisc add dev {device} clsact"));
    let which = if policer.udp_only { "protocol ip flower ip_proto udp" } else { "protocol all matchall" };
    out.commands.push(format!(
        "tc filter add dev {device} egress {which} action police rate {} burst {} conform-exceed drop",
        rate(policer.rate),
        policer.burst.as_bytes()
    ));
}

fn shaper(link: &LinkConfig, device: &str, out: &mut Commands) {
    let Some(bits) = link.mean_rate() else { return };
    if link.rate_trace.is_some() {
        out.notes.push(format!(
            "the rate of the trace varies; {bits} is its mean (use mahimahi's mm-link for the trace itself)"
        ));
    }
    if link.varying_rate.is_some() {
        out.notes.push(format!("the rate varies by a distribution; {bits} is its mean"));
    }
    // One packet at a time: a larger bucket would send bursts faster than the rate.
    let burst = 1_600.max(bits.as_bps() / 8 / 1_000);
    match link.queue {
        Queue::Unlimited => {}
        Queue::DropTail { bytes } => out.commands.push(format!(
            "tc qdisc replace dev {device} root handle 1: tbf rate {} burst {burst} limit {}",
            rate(bits),
            bytes.as_bytes() + burst
        )),
        Queue::Codel(codel) => managed(device, bits, burst, &format!("codel limit {}", aqm(&codel)), out),
        Queue::FqCodel(fq) => {
            let words = format!("fq_codel limit {} quantum {}", aqm(&fq.codel), fq.quantum);
            managed(device, bits, burst, &words, out);
        }
    }
    if burst > 1_600 {
        out.notes.push(format!(
            "the shaper may send {} at once; the model spaces every packet",
            DataSize::from_bytes(burst)
        ));
    }
}

/// tc counts packets, the model bytes.
fn aqm(codel: &Codel) -> String {
    format!(
        "{} target {} interval {} {}",
        codel.bytes.as_bytes().div_ceil(1_500),
        time(codel.target),
        time(codel.interval),
        if codel.ecn { "ecn" } else { "noecn" }
    )
}

fn managed(device: &str, bits: Bitrate, burst: u64, qdisc: &str, out: &mut Commands) {
    out.commands.push(format!("tc qdisc replace dev {device} root handle 1: htb default 10"));
    out.commands.push(format!(
        "tc class replace dev {device} parent 1: classid 1:10 htb rate {0} ceil {0} burst {burst} cburst {burst}",
        rate(bits)
    ));
    out.commands.push(format!("tc qdisc replace dev {device} parent 1:10 handle 10: {qdisc}"));
    out.notes.push("the queue's limit is in packets; it is given for packets of 1500 bytes".to_owned());
}

fn netem(link: &LinkConfig, device: &str, out: &mut Commands) {
    let mut words = Vec::new();
    let extra = link.jitter_max();
    if extra.is_zero() {
        words.push(format!("delay {}", time(link.delay)));
    } else {
        // The model adds from zero on, netem around a mean.
        words.push(format!("delay {} {}", time(link.delay + extra / 2), time(extra / 2)));
        if !link.jitter_reorders {
            out.notes.push("netem's jitter changes the order of packets; the model keeps it".to_owned());
        }
        if !link.jitter_period.is_zero() || !link.jitter_quantiles.is_empty() {
            out.notes.push(
                "netem's jitter is drawn for each packet and evenly; the model's follows time or a distribution"
                    .to_owned(),
            );
        }
    }
    match &link.loss {
        Loss::None => {}
        Loss::Iid { p } => words.push(format!("loss random {}", percent(&p.get()))),
        Loss::Burst { mean, length } => {
            if let Ok(Loss::GilbertElliott { p, r, .. }) = Loss::from_bursts(*mean, *length) {
                words.push(format!("loss gemodel {} {} 100% 0%", percent(&p.get()), percent(&r.get())));
            }
        }
        Loss::GilbertElliott { p, r, loss_good, loss_bad } => words.push(format!(
            "loss gemodel {} {} {} {}",
            percent(&p.get()),
            percent(&r.get()),
            percent(&loss_bad.get()),
            percent(&loss_good.get())
        )),
        Loss::Group { size, drop, .. } => {
            out.notes.push(format!("netem cannot lose exactly {drop} of each {size} packets; nothing is lost"));
        }
        Loss::Trace(trace) => out.notes.push(format!(
            "netem cannot lose packets by a trace; `tiderace lab fit` finds a chain for {} ({} lost)",
            trace.file,
            percent(&trace.mean())
        )),
    }
    if link.corrupt.get() > 0.0 {
        words.push(format!("corrupt {}", percent(&link.corrupt.get())));
    }
    if let Some(duplicate) = &link.duplicate {
        words.push(format!("duplicate {}", percent(&duplicate.probability.get())));
    }
    if let Some(reorder) = &link.reorder {
        words.push(format!("reorder {}", percent(&reorder.probability.get())));
        out.notes
            .push("netem reorders by sending a packet without delay; the model's `reorder` sends it later".to_owned());
    }
    // netem's own queue must never be the one that drops: twice what the path holds, in packets of 100 bytes.
    let held = link.mean_rate().map_or(100_000, |rate| rate.in_time((link.delay + extra) * 2).as_bytes() / 100);
    out.commands.push(format!(
        "tc qdisc replace dev {device} root netem {} limit {}",
        words.join(" "),
        held.max(1_000)
    ));
}

fn schedule(link: &LinkConfig, queue: &str, wire: &str, out: &mut Commands) {
    for change in &link.changes {
        let at = units::duration_text::display(change.at).to_string();
        let mut then = Vec::new();
        then.extend(change.rate.map(|bits| format!("rate {bits} on {queue}")));
        then.extend(change.delay.map(|delay| format!("delay {} on {wire}", units::duration_text::display(delay))));
        then.extend(change.mtu.map(|mtu| format!("packets above {mtu} bytes dropped")));
        out.notes.push(format!("after {at}: {} (tc has no schedule: run `tc qdisc change` then)", then.join(", ")));
    }
    for outage in &link.outages {
        let display = |span| units::duration_text::display(span).to_string();
        let again = outage.every.map(|every| format!(", every {}", display(every))).unwrap_or_default();
        out.notes.push(format!(
            "after {}: nothing gets through for {}{again} (`tc qdisc change … loss 100%`)",
            display(outage.at),
            display(outage.lasts)
        ));
    }
}

#[cfg(test)]
mod tests {
    use units::Probability;

    use super::*;
    use crate::config::FqCodel;

    #[test]
    fn a_mobile_path() {
        let link = LinkConfig {
            rate: Some(Bitrate::from_bps(1_100_000)),
            queue: Queue::DropTail { bytes: DataSize::from_bytes(64_000) },
            delay: Duration::from_millis(100),
            loss: Loss::Burst { mean: Probability::new(0.006).unwrap(), length: 6.0 },
            mtu: Some(1_350),
            ..LinkConfig::default()
        };
        let made = commands(&link, "eth0", "ifb0");
        assert_eq!(
            made.commands,
            [
                "tc qdisc replace dev eth0 root handle 1: tbf rate 1100000bit burst 1600 limit 65600",
                "tc qdisc replace dev ifb0 root netem delay 100000us loss gemodel 0.100604% 16.666667% 100% 0% limit 1000",
                "nft add table netdev path-ifb0",
                "nft add chain netdev path-ifb0 mtu '{ type filter hook ingress device ifb0 priority 0; }'",
                "nft add rule netdev path-ifb0 mtu ip length gt 1350 drop",
            ]
        );
        assert!(made.notes.is_empty());
    }

    #[test]
    fn what_tc_cannot_do_is_said() {
        let codel = Codel {
            bytes: DataSize::from_bytes(150_000),
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: true,
        };
        let link = LinkConfig {
            rate: Some(Bitrate::from_mbps(20)),
            queue: Queue::FqCodel(FqCodel { codel, quantum: 1514 }),
            jitter: Duration::from_millis(10),
            loss: Loss::Group { size: 11, drop: 1, min_bytes: 600, after: units::Duration::ZERO },
            ..LinkConfig::default()
        };
        let made = commands(&link, "a", "b");
        assert!(
            made.commands
                .iter()
                .any(|c| c.ends_with("fq_codel limit 100 target 5000us interval 100000us ecn quantum 1514")),
            "{made:?}"
        );
        assert_eq!(made.notes.len(), 4, "{:?}", made.notes);
    }
}
