//! Forward error correction compared with the theory of its codes, and its benefit: residual loss of datagrams, latency of messages and
//! requests, goodput of bulk transfers.
//!
//! Every run with a code is checked for evidence: repair symbols on the wire.

use std::fmt::Write;

use super::{Centre, Failed, Finding, TOLD, at_least, at_most, centre, figure, finding, records_of, scaled};
use crate::{figure::Figure, record::Record};

/// A path and its traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Share of packets lost in the direction of the data, in percent.
    pub loss: f64,
    /// Mean length of bursts of loss; 1 is independent loss.
    pub burst: f64,
    /// Instead, one of each eleven large packets is lost.
    pub group: bool,
    /// Round-trip time in milliseconds.
    pub rtt: u32,
    /// The `[traffic]` table.
    pub traffic: &'static str,
    /// Fields of the profile, beside `fec`.
    pub profile: &'static str,
    /// Seconds that are measured.
    pub seconds: u64,
    /// Seeds.
    pub seeds: u64,
}

/// Datagrams at a constant rate, so that only loss removes any.
pub const DATAGRAMS: Setting = Setting {
    loss: 5.0,
    burst: 1.0,
    group: false,
    rtt: 50,
    traffic: "workload = \"datagrams\"\ndirection = \"upload\"\nconnections = 1\npacket-rate = 1500\ndatagram-size = \"1100 B\"",
    profile: "congestion = \"bbr3\", random_loss_tolerance = \"15 %\"",
    seconds: 40,
    seeds: 10,
};

/// The same with exactly one of each eleven packets lost: a block of ten and its repair. Groups begin when the first packet is protected, a
/// little more than two round trips after the start. One size and a rate far below the path's, so that nothing else shifts the groups or
/// loses packets.
pub const GROUPS: Setting = Setting {
    loss: 0.0,
    group: true,
    traffic: "workload = \"datagrams\"\ndirection = \"upload\"\nconnections = 1\npacket-rate = 500\ndatagram-size = \"1100 B\"",
    profile: "congestion = \"bbr3\", random_loss_tolerance = \"15 %\", max_mtu = 1200",
    seconds: 20,
    ..DATAGRAMS
};

/// 4.8 Mbit/s of messages in order, as packets of 1,200 bytes, with BBRv3 that passes over random loss.
pub const MESSAGES: Setting = Setting {
    loss: 5.0,
    burst: 1.0,
    group: false,
    rtt: 100,
    traffic: "workload = \"messages\"\ndirection = \"upload\"\nconnections = 1\npacket-rate = 500\ndatagram-size = \"1100 B\"",
    profile: "congestion = \"bbr3\", random_loss_tolerance = \"15 %\", max_mtu = 1200",
    seconds: 30,
    seeds: 10,
};

/// Requests of 12 kB one after the other on a warm connection, which has moved 5 MB before and so knows the rate of its path; the
/// answer is small and is never lost.
pub const REQUESTS: Setting = Setting {
    loss: 1.0,
    burst: 1.0,
    group: false,
    rtt: 100,
    traffic: "workload = \"requests\"\ndirection = \"upload\"\nconnections = 1\nrequest-size = \"12 kB\"\nresponse-size = \"10 B\"\n\
              warm-bytes = \"5 MB\"",
    profile: "congestion = \"bbr3\", random_loss_tolerance = \"15 %\", max_mtu = 1200",
    seconds: 60,
    seeds: 10,
};

/// The same on a connection that has carried only such requests: its controller knows of the path only that it carries a window within a
/// round trip, and paces the requests by this.
pub const COLD_REQUESTS: Setting = Setting {
    traffic: "workload = \"requests\"\ndirection = \"upload\"\nconnections = 1\nrequest-size = \"12 kB\"\nresponse-size = \"10 B\"",
    ..REQUESTS
};

/// A bulk transfer.
pub const BULK: Setting = Setting {
    loss: 5.0,
    burst: 1.0,
    group: false,
    rtt: 50,
    traffic: "workload = \"bulk\"\ndirection = \"upload\"\nconnections = 1",
    profile: "congestion = \"cubic\"",
    seconds: 30,
    seeds: 10,
};

/// The records of all seeds with this code.
///
/// # Errors
/// When a run cannot be used, or shows no evidence of the code.
pub fn records(setting: &Setting, fec: &str) -> Result<Vec<Record>, Failed> {
    let mut text = String::new();
    let loss = match setting.burst {
        _ if setting.group => "{ group = { size = 11, drop = 1, min-bytes = 1000, after = \"100 ms\" } }".to_owned(),
        burst if burst > 1.0 => format!("{{ burst = {{ mean = \"{} %\", length = {burst:?} }} }}", setting.loss),
        _ => format!("\"{} %\"", setting.loss),
    };
    let bdp = 20_000_000 / 8 * u64::from(setting.rtt) / 1000;
    // Nothing goes into a string that can fail.
    let _ = write!(
        text,
        "name = \"fec\"\ntitle = \"fec\"\nabout = \"fec\"\n[path.up]\nrate = \"20 Mbit/s\"\nqueue = \"{bdp} B\"\n\
         delay = \"{delay} ms\"\nloss = {loss}\n[path.down]\nrate = \"20 Mbit/s\"\nqueue = \"{bdp} B\"\ndelay = \"{delay} ms\"\n\
         [traffic]\n{traffic}\n[run]\nwarmup = \"5 s\"\nduration = \"{seconds} s\"\nseeds = {seeds}\n\
         [contenders]\nprofiles = [{{ name = \"{fec}\", fec = \"{fec}\", {profile} }}]\n",
        delay = setting.rtt / 2,
        traffic = setting.traffic,
        seconds = setting.seconds,
        seeds = setting.seeds,
        profile = setting.profile,
    );
    records_of(&text, fec)
}

/// A figure with this code: its median over the seeds, and the interval.
///
/// # Errors
/// As [`records`].
pub fn measured(setting: &Setting, fec: &str, what: Figure) -> Result<Centre, Failed> {
    centre(&values(&records(setting, fec)?, what)?)
}

fn values(records: &[Record], what: Figure) -> Result<Vec<f64>, Failed> {
    records.iter().map(|record| figure(record, what)).collect()
}

/// Compares a figure of two codes at the same seed by a function: the median, and the interval.
fn paired(records: [&[Record]; 2], what: Figure, of: impl Fn(f64, f64) -> f64) -> Result<(Centre, [f64; 2]), Failed> {
    let (first, second) = (values(records[0], what)?, values(records[1], what)?);
    let each: Vec<f64> = first.iter().zip(&second).map(|(a, b)| of(*a, *b)).collect();
    Ok((centre(&each)?, [centre(&first)?.0, centre(&second)?.0]))
}

/// Residual loss of datagrams at 5 %, beside theory.
///
/// # Errors
/// As [`records`].
pub fn residual_loss() -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    for (code, burst, target, theory) in [
        ("off", 1.0, 6.0, "5"),
        ("xor:10", 1.0, 2.4, "2.01"),
        ("rs:10+2", 1.0, 0.6, "0.51"),
        ("rs:20+4", 1.0, 0.16, "0.13"),
        ("rlc:1/10:40", 1.0, 0.35, "0.20"),
        ("rlc:1/5:40", 1.0, 0.01, "below 0.001"),
        ("rlc:1/5:120", 3.0, 0.05, "0.007"),
        ("rlc:1/5:160", 6.0, 0.6, "0.24"),
    ] {
        let setting = Setting { burst, ..DATAGRAMS };
        let missing = scaled(measured(&setting, code, Figure::ResidualLoss)?, 100.0, 0.0);
        let kind = if burst > 1.0 { format!("mean burst {burst}") } else { "independent loss".to_owned() };
        let detail =
            format!("theory {theory} %; {} seeds x {} s, 1500 datagrams a second", setting.seeds, setting.seconds);
        let name = format!("residual loss of datagrams, {code}, 5 %, {kind}");
        findings.push(finding(name, missing, at_most(target), "%", detail));
    }
    let missing = scaled(measured(&GROUPS, "xor:10", Figure::ResidualLoss)?, 100.0, 0.0);
    let detail = format!("one of each eleven large packets is lost; {} seeds x {} s", GROUPS.seeds, GROUPS.seconds);
    findings.push(finding("residual loss of groups, xor:10".to_owned(), missing, at_most(0.0), "%", detail));
    Ok(findings)
}

/// p99 of messages in order and of requests, with and without repair, and with plain copies at equal overhead.
///
/// # Errors
/// As [`records`].
pub fn latency() -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    for (rtt, target) in [(100, 80.0), (200, 135.0)] {
        let setting = Setting { rtt, ..MESSAGES };
        for code in ["off", "dup:5", "rlc:1/5:40", "auto"] {
            let p99 = scaled(measured(&setting, code, Figure::DelayP99)?, 1e3, 0.0);
            let target = if code.starts_with("rlc") { at_most(target) } else { TOLD };
            let detail = format!("500 messages of 1,100 B a second, {} seeds x {} s", setting.seeds, setting.seconds);
            findings.push(finding(
                format!("p99 of messages in order, {code}, 5 %, RTT {rtt} ms"),
                p99,
                target,
                "ms",
                detail,
            ));
        }
    }
    for (setting, kind) in [(&REQUESTS, "after 5 MB"), (&COLD_REQUESTS, "nothing but such requests before")] {
        for code in ["off", "dup:5", "rlc:1/5:40", "auto"] {
            let back = f64::from(setting.rtt) / 2.0;
            let p99 = scaled(measured(setting, code, Figure::RequestP99)?, 1e3, back);
            let warm = kind == "after 5 MB";
            let target = if warm && code == "rlc:1/5:40" { at_most(65.0) } else { TOLD };
            let detail = format!("time to the answer less {back} ms; {} seeds x {} s", setting.seeds, setting.seconds);
            let name = format!("p99 of a request of 12 kB one way, {code}, 1 %, RTT 100 ms, {kind}");
            findings.push(finding(name, p99, target, "ms", detail));
        }
    }
    Ok(findings)
}

/// Goodput of bulk transfers, with `auto` and with fixed rates, each beside the same controller without.
///
/// # Errors
/// As [`records`].
pub fn goodput() -> Result<Vec<Finding>, Failed> {
    const CUBIC: &str = "congestion = \"cubic\"";
    const TOLERANT: &str = "congestion = \"cubic\", random_loss_tolerance = \"8 %\"";
    const BBR: &str = "congestion = \"bbr3\", random_loss_tolerance = \"15 %\"";
    let ratio = |code: &[Record], off: &[Record]| paired([code, off], Figure::Goodput, |a, b| a / b);
    let mut findings = Vec::new();
    let runs = format!("20 Mbit/s, 50 ms, {} seeds x {} s", BULK.seeds, BULK.seconds);
    let detail = |[with, without]: [f64; 2]| format!("{:.2} and {:.2} Mbit/s; {runs}", with / 1e6, without / 1e6);
    for (profile, name) in [(CUBIC, "cubic"), (BBR, "bbr3, tolerance 15 %"), (TOLERANT, "cubic, tolerance 8 %")] {
        for (loss, least) in [(0.1, 0.99), (5.0, 0.98)] {
            let setting = Setting { profile, loss, ..BULK };
            let (auto, off) = (records(&setting, "auto")?, records(&setting, "off")?);
            let (value, both) = ratio(&auto, &off)?;
            let name = format!("goodput with auto / off, {name}, {loss} %");
            findings.push(finding(name, value, at_least(least), "", detail(both)));
            if (profile, loss) != (TOLERANT, 5.0) {
                continue;
            }
            let value = scaled(centre(&values(&auto, Figure::Goodput)?)?, 1e-6, 0.0);
            let name = "goodput with auto and loss discrimination, 5 %".to_owned();
            findings.push(finding(name, value, at_least(10.0), "Mbit/s", runs.clone()));
            for code in ["rlc:1/20:40", "rlc:1/10:40", "rlc:3/20:40", "rlc:1/5:40", "rlc:1/4:40"] {
                let (value, both) = ratio(&records(&setting, code)?, &off)?;
                let name = format!("goodput with {code} / off, loss discrimination, 5 %");
                findings.push(finding(name, value, TOLD, "", detail(both)));
            }
        }
    }
    Ok(findings)
}

/// Restraint of `auto` where it protects nothing: its overhead is that of plain QUIC.
///
/// # Errors
/// As [`records`].
pub fn restraint() -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    for (name, setting) in [
        ("mean burst 6 at 500 packets a second", Setting { burst: 6.0, ..MESSAGES }),
        ("RTT 20 ms", Setting { rtt: 20, ..MESSAGES }),
        ("0.1 % loss", Setting { loss: 0.1, ..MESSAGES }),
    ] {
        let (value, [auto, off]) =
            paired([&records(&setting, "auto")?, &records(&setting, "off")?], Figure::Overhead, |a, b| {
                100.0 * (a - b)
            })?;
        let detail = format!("{:.2} % and {:.2} % of the wire; {} seeds", auto * 100.0, off * 100.0, setting.seeds);
        let name = format!("overhead of auto above that of plain QUIC, {name}");
        findings.push(finding(name, value, at_most(1.0), "pp", detail));
    }
    Ok(findings)
}

/// Share of the wire that fixed rates take.
///
/// # Errors
/// As [`records`].
pub fn overhead() -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    let setting = Setting { loss: 0.5, seconds: 20, ..DATAGRAMS };
    let off = records(&setting, "off")?;
    for (code, expected) in
        [("rlc:1/20:40", 4.8), ("rlc:1/10:40", 9.1), ("rlc:3/20:40", 13.0), ("rlc:1/5:40", 16.7), ("rlc:1/4:40", 20.0)]
    {
        // Of a wire on which data had the efficiency that it has without repair, the share that is repair.
        let share = |with: f64, off: f64| 100.0 * (1.0 - (1.0 - with) / (1.0 - off));
        let with = records(&setting, code)?;
        let (value, _) = paired([&with, &off], Figure::Overhead, share)?;
        let counted = 100.0 * centre(&values(&with, Figure::Repair)?)?.0;
        let detail = format!(
            "bytes of IP packets at 0.5 % loss, from what is left for data; {counted:.2} % as the sender counts it; {} seeds x {} s",
            setting.seeds, setting.seconds
        );
        let name = format!("share of the wire that is repair, {code}");
        findings.push(finding(name, value, expected - 1.0..=expected + 1.0, "%", detail));
    }
    Ok(findings)
}
