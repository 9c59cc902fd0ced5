//! Forward error correction against what theory says of its codes, and what it is worth: residual loss of datagrams, latency of
//! messages and requests, goodput of bulk transfers.
//!
//! Every run is checked for evidence: repair symbols on the wire where a code was asked for.

use std::fmt::Write;

use super::{Failed, Finding, centre, figure, scenario};
use crate::{
    figure::Figure,
    matrix::cells,
    record::{Record, RunOutcome},
    run::{Execution, run_all},
    settings::profiles,
    tiderace::with_profile,
};

/// A path and what runs over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Share of packets lost on the way of the data, in percent.
    pub loss: f64,
    /// Mean length of bursts of loss; 1 is independent loss.
    pub burst: f64,
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

/// Datagrams at a constant rate, so that nothing but loss takes any away.
pub const DATAGRAMS: Setting = Setting {
    loss: 5.0,
    burst: 1.0,
    rtt: 50,
    traffic: "workload = \"datagrams\"\ndirection = \"upload\"\nconnections = 1\npacket-rate = 1500\ndatagram-size = \"1100 B\"",
    profile: "congestion = \"bbr3\", random_loss_tolerance = \"15 %\"",
    seconds: 60,
    seeds: 3,
};

/// 4.8 Mbit/s of messages in order, as packets of 1,200 bytes, with BBRv3 that passes over random loss.
pub const MESSAGES: Setting = Setting {
    loss: 5.0,
    burst: 1.0,
    rtt: 100,
    traffic: "workload = \"messages\"\ndirection = \"upload\"\nconnections = 1\npacket-rate = 500\ndatagram-size = \"1100 B\"",
    profile: "congestion = \"bbr3\", random_loss_tolerance = \"15 %\", max_mtu = 1200",
    seconds: 30,
    seeds: 10,
};

/// Requests of 12 kB one after the other on a warm connection; the answer is small and is never lost.
pub const REQUESTS: Setting = Setting {
    loss: 1.0,
    burst: 1.0,
    rtt: 100,
    traffic: "workload = \"requests\"\ndirection = \"upload\"\nconnections = 1\nrequest-size = \"12 kB\"\nresponse-size = \"10 B\"",
    profile: "congestion = \"bbr3\", random_loss_tolerance = \"15 %\", max_mtu = 1200",
    seconds: 60,
    seeds: 10,
};

/// A bulk transfer.
pub const BULK: Setting = Setting {
    loss: 5.0,
    burst: 1.0,
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
    let scenario = scenario(&text)?;
    let profiles =
        profiles(&scenario.contenders).map_err(|fault| Failed(format!("{}: {}", fault.field, fault.message)))?;
    let contenders: Vec<_> = profiles.into_iter().map(with_profile).collect();
    let first = scenario.run.seed;
    let cells = cells(1, first..first + u64::from(scenario.run.seeds));
    let records = run_all(&scenario, &contenders, &cells, &Execution::default(), &|_| {});
    for record in &records {
        if let RunOutcome::Failed(reason) = &record.outcome {
            return Err(Failed(format!("{fec}, seed {}: {reason}", record.seed)));
        }
    }
    Ok(records)
}

/// A figure with this code: its median over the seeds, and the interval.
///
/// # Errors
/// As [`records`].
pub fn measured(
    setting: &Setting,
    fec: &str,
    what: Figure,
) -> Result<(f64, Option<crate::stats::interval::Interval>), Failed> {
    let records = records(setting, fec)?;
    centre(&records.iter().map(|record| figure(record, what)).collect::<Result<Vec<_>, _>>()?)
}

fn scaled(
    (value, interval): (f64, Option<crate::stats::interval::Interval>),
    by: f64,
    less: f64,
) -> (f64, Option<crate::stats::interval::Interval>) {
    let interval = interval.map(|mut interval| {
        interval.low = interval.low * by - less;
        interval.high = interval.high * by - less;
        interval
    });
    (value * by - less, interval)
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
        let (value, interval) = scaled(measured(&setting, code, Figure::ResidualLoss)?, 100.0, 0.0);
        let kind = if burst > 1.0 { format!("mean burst {burst}") } else { "independent loss".to_owned() };
        findings.push(Finding {
            name: format!("residual loss of datagrams, {code}, 5 %, {kind}"),
            value,
            interval,
            target: f64::NEG_INFINITY..=target,
            unit: "%",
            detail: format!(
                "theory {theory} %; {} seeds x {} s, 1500 datagrams a second",
                setting.seeds, setting.seconds
            ),
        });
    }
    Ok(findings)
}

/// p99 of messages in order and of requests, with and without repair, and with plain copies at equal overhead.
///
/// # Errors
/// As [`records`].
pub fn latency() -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    let any = f64::NEG_INFINITY..=f64::INFINITY;
    for (rtt, target) in [(100, 80.0), (200, 135.0)] {
        let setting = Setting { rtt, ..MESSAGES };
        for code in ["off", "dup:5", "rlc:1/5:40", "auto"] {
            let (value, interval) = scaled(measured(&setting, code, Figure::DelayP99)?, 1e3, 0.0);
            findings.push(Finding {
                name: format!("p99 of messages in order, {code}, 5 %, RTT {rtt} ms"),
                value,
                interval,
                target: if code.starts_with("rlc") { f64::NEG_INFINITY..=target } else { any.clone() },
                unit: "ms",
                detail: format!("500 messages of 1,100 B a second, {} seeds x {} s", setting.seeds, setting.seconds),
            });
        }
    }
    for code in ["off", "dup:5", "rlc:1/5:40", "auto"] {
        let back = f64::from(REQUESTS.rtt) / 2.0;
        let (value, interval) = scaled(measured(&REQUESTS, code, Figure::RequestP99)?, 1e3, back);
        findings.push(Finding {
            name: format!("p99 of a request of 12 kB one way, {code}, 1 %, RTT 100 ms"),
            value,
            interval,
            target: if code == "rlc:1/5:40" { f64::NEG_INFINITY..=65.0 } else { any.clone() },
            unit: "ms",
            detail: format!("time to the answer less {back} ms; {} seeds x {} s", REQUESTS.seeds, REQUESTS.seconds),
        });
    }
    Ok(findings)
}

/// Goodput of bulk transfers, and where `auto` is off.
///
/// # Errors
/// As [`records`].
pub fn goodput() -> Result<Vec<Finding>, Failed> {
    const TOLERANT: &str = "congestion = \"cubic\", random_loss_tolerance = \"8 %\"";
    let goodput = |setting: &Setting, code: &str| measured(setting, code, Figure::Goodput);
    let mut findings = Vec::new();
    let mut add = |name: String, value, interval, target, unit, detail: String| {
        findings.push(Finding { name, value, interval, target, unit, detail });
    };
    let runs = format!("20 Mbit/s, 50 ms, {} seeds x {} s", BULK.seeds, BULK.seconds);
    let (off, auto) = (goodput(&BULK, "off")?, goodput(&BULK, "auto")?);
    let detail = format!("{:.2} and {:.2} Mbit/s; {runs}", auto.0 / 1e6, off.0 / 1e6);
    add("goodput with auto / off, cubic, 5 %".to_owned(), auto.0 / off.0, None, 0.98..=f64::INFINITY, "", detail);
    let tolerant = Setting { profile: TOLERANT, ..BULK };
    let plain = goodput(&tolerant, "off")?;
    let (value, interval) = scaled(goodput(&tolerant, "auto")?, 1e-6, 0.0);
    let detail = format!("{:.2} Mbit/s without; {runs}", plain.0 / 1e6);
    add(
        "goodput with auto and loss discrimination, 5 %".to_owned(),
        value,
        interval,
        10.0..=f64::INFINITY,
        "Mbit/s",
        detail,
    );
    for code in ["rlc:1/20:40", "rlc:1/10:40", "rlc:3/20:40", "rlc:1/5:40", "rlc:1/4:40"] {
        let fixed = goodput(&tolerant, code)?;
        let detail = format!("{:.2} Mbit/s; {runs}", fixed.0 / 1e6);
        let any = f64::NEG_INFINITY..=f64::INFINITY;
        add(format!("goodput with {code} / off, loss discrimination, 5 %"), fixed.0 / plain.0, None, any, "", detail);
    }
    let clean = Setting { loss: 0.1, ..BULK };
    let (off, auto) = (goodput(&clean, "off")?, goodput(&clean, "auto")?);
    let detail = format!("{:.2} and {:.2} Mbit/s; {runs}", auto.0 / 1e6, off.0 / 1e6);
    add("goodput with auto / off, 0.1 %".to_owned(), auto.0 / off.0, None, 0.99..=f64::INFINITY, "", detail);
    Ok(findings)
}

/// Where `auto` protects nothing: its overhead is that of plain QUIC.
///
/// # Errors
/// As [`records`].
pub fn restraint() -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    for (name, setting) in [
        ("mean burst 6 at 500 packets a second", Setting { burst: 6.0, seconds: 30, ..MESSAGES }),
        ("RTT 20 ms", Setting { rtt: 20, seconds: 30, ..MESSAGES }),
    ] {
        let symbols = |code| measured(&setting, code, Figure::Overhead);
        let (auto, off) = (symbols("auto")?, symbols("off")?);
        findings.push(Finding {
            name: format!("overhead of auto above that of plain QUIC, {name}"),
            value: 100.0 * (auto.0 - off.0),
            interval: None,
            target: f64::NEG_INFINITY..=1.0,
            unit: "pp",
            detail: format!("{:.2} % and {:.2} % of the wire; {} seeds", auto.0 * 100.0, off.0 * 100.0, setting.seeds),
        });
    }
    Ok(findings)
}

/// What fixed rates take of the wire.
///
/// # Errors
/// As [`records`].
pub fn overhead() -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    let setting = Setting { loss: 0.5, seconds: 20, ..DATAGRAMS };
    let off = measured(&setting, "off", Figure::Overhead)?.0;
    for (code, expected) in
        [("rlc:1/20:40", 4.8), ("rlc:1/10:40", 9.1), ("rlc:3/20:40", 13.0), ("rlc:1/5:40", 16.7), ("rlc:1/4:40", 20.0)]
    {
        // Of a wire on which data had the efficiency that it has without repair, the share that is repair.
        let with = measured(&setting, code, Figure::Overhead)?.0;
        let share = 100.0 * (1.0 - (1.0 - with) / (1.0 - off));
        findings.push(Finding {
            name: format!("share of the wire that is repair, {code}"),
            value: share,
            interval: None,
            target: expected - 1.0..=expected + 1.0,
            unit: "%",
            detail: format!("bytes of IP packets, at 0.5 % loss; {} seeds x {} s", setting.seeds, setting.seconds),
        });
    }
    Ok(findings)
}
