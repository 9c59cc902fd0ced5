//! Anchors of the self-test: known behaviour of shapers, controllers, repair and acknowledgements. They are not part of the negative
//! controls, which break the steps between simulation and figures.

use netem::{Link, LinkConfig, Policer, RateTrace};
use units::{Bitrate, DataSize, Duration, Instant, Seed};

use super::{
    Check,
    calibration::{CLEAN, LOSSY, Part, check, number, packet, scenario, value},
};
use crate::{
    figure::Figure,
    record::Record,
    reference::{fec, shares},
    run::run_one,
    scenario::Scenario,
    tiderace::{contender, contender_asking},
};

/// All of them, by name.
pub(super) fn anchors() -> Vec<(&'static str, Part)> {
    let one = |name, make: fn() -> Result<Check, String>| -> (&'static str, Part) {
        (name, Box::new(move || make().map(|check| vec![check])))
    };
    vec![
        one("V3 policer", || Ok(policer())),
        one("V12 rate from a trace", || Ok(trace())),
        one("V3 CoDel", codel),
        one("V6 BBR under loss", bbr),
        one("V9 repair of datagrams", repair),
        one("V11 rhythm of acknowledgements", acknowledgements),
        one("V8 shares and buffers", fairness),
    ]
}

fn run(scenario: &Scenario, controller: &str) -> Result<Record, String> {
    let stack = contender(controller).ok_or_else(|| format!("there is no `{controller}`"))?;
    Ok(run_one(scenario, stack.as_ref(), 1, None))
}

/// V3: a policer takes what is above its rate, exactly: 20 Mbit/s at 15 Mbit/s lose a quarter.
fn policer() -> Check {
    const NAME: &str = "V3 policer";
    const PACKETS: u64 = 20_000;
    let policer = Policer { rate: Bitrate::from_mbps(15), burst: DataSize::from_bytes(15_000), udp_only: false };
    let Ok(mut link) = Link::new(&LinkConfig { policer: Some(policer), ..LinkConfig::default() }, Seed::from_number(1))
    else {
        return check(NAME, false, "no link");
    };
    let passed = (0..PACKETS).filter(|number| {
        link.offer(Instant::from_micros(number * 600), &packet(*number, 0)).verdict.arrival().is_some()
    });
    let passed = passed.count() as u64;
    // The bucket's ten packets, and three quarters of the others.
    let expected = 10 + PACKETS * 3 / 4;
    check(NAME, passed.abs_diff(expected) <= 2, format!("{passed} of {PACKETS} packets pass ({expected} ± 2)"))
}

/// V12: a trace carries exactly its opportunities, and repeats after its end.
fn trace() -> Check {
    const NAME: &str = "V12 rate from a trace";
    // Three packets in 10 ms, then nothing for 20 ms: 3600 bytes of 1200 would use three, and so do 1500.
    let Ok(trace) = RateTrace::parse("a trace", "2\n5\n10\n30\n") else { return check(NAME, false, "no trace") };
    let config = LinkConfig {
        rate_trace: Some(trace),
        queue: netem::Queue::DropTail { bytes: DataSize::from_bytes(1_500_000) },
        ..LinkConfig::default()
    };
    let Ok(mut link) = Link::new(&config, Seed::from_number(1)) else { return check(NAME, false, "no link") };
    let arrivals: Vec<u64> = (0..12)
        .filter_map(|number| link.offer(Instant::ZERO, &packet(number, 0)).verdict.arrival())
        .map(|at| at.as_nanos() / 1_000_000)
        .collect();
    let expected = [2, 5, 10, 30, 32, 35, 40, 60, 62, 65, 70, 90];
    check(NAME, arrivals == expected, format!("packets arrive at {arrivals:?} ms ({expected:?})"))
}

/// V3: with one greedy flow, CoDel keeps the queuing delay near its target of 5 ms in a buffer of 400 ms.
fn codel() -> Result<Check, String> {
    let queue = r#"{ codel = { bytes = "1 MB", target = "5 ms", interval = "100 ms" } }"#;
    let managed = scenario(&CLEAN.replace("\"125 kB\"", queue))?;
    let full = scenario(&CLEAN.replace("125 kB", "1 MB"))?;
    let rtt = |scenario: &Scenario| value(&run(scenario, "cubic")?, Figure::RttP50).map(|rtt| rtt * 1e3);
    let (managed, full) = (rtt(&managed)?, rtt(&full)?);
    Ok(check(
        "V3 CoDel",
        (50.0..62.0).contains(&managed) && full > 150.0,
        format!("RTT p50 {managed:.1} ms (50 and at most twice 5, with 2 to send packets), without it {full:.0} ms"),
    ))
}

/// V6: BBRv1 keeps its rate at 10 % loss and collapses at 20 %; BBRv3 reduces its rate above its limit of 2 %; CUBIC does so at far lower
/// loss.
fn bbr() -> Result<Check, String> {
    let at = |controller: &str, loss: &str| -> Result<f64, String> {
        let text = LOSSY.replace("\"1 %\"", &format!("\"{loss}\"")).replace("60 s", "20 s");
        let mut scenario = scenario(&text)?;
        scenario.run.warmup = Duration::from_secs(5);
        Ok(value(&run(&scenario, controller)?, Figure::Goodput)? / 1e6)
    };
    let (first, cliff) = (at("bbr1", "10 %")?, at("bbr1", "30 %")?);
    let (third, beyond, cubic) = (at("bbr3", "1 %")?, at("bbr3", "10 %")?, at("cubic", "1 %")?);
    let holds = first > 25.0 && cliff < first / 2.0 && third > 5.0 * cubic && beyond < third / 2.0 && beyond < first;
    Ok(check(
        "V6 BBR under loss",
        holds,
        format!(
            "of 50 Mbit/s: bbr1 {first:.1} at 10 % and {cliff:.1} at 30 %; bbr3 {third:.1} at 1 % and {beyond:.1} at 10 %; cubic \
             {cubic:.1} at 1 % (bbr1 above 25, and below half of that at 30 %; bbr3 above 5 x cubic, and below half of that at 10 %)"
        ),
    ))
}

/// V8: what BBR gets beside CUBIC falls as the buffer grows.
fn fairness() -> Result<Check, String> {
    let share = |buffer: f64| -> Result<f64, String> {
        let effort = shares::Effort { offsets: 2, seconds: 30 };
        let pairs = shares::pairs("bbr3", "cubic", buffer, effort).map_err(|failed| failed.0)?;
        Ok(pairs.iter().map(|[a, b]| a / (a + b)).sum::<f64>() / number(pairs.len() as u64))
    };
    let (small, large) = (share(0.5)?, share(8.0)?);
    Ok(check(
        "V8 shares and buffers",
        large < small,
        format!(
            "bbr3 beside cubic gets {:.0} % with half a BDP of buffer and {:.0} % with eight (less)",
            small * 100.0,
            large * 100.0
        ),
    ))
}

/// V9: an XOR symbol for each ten packets leaves 2.01 % of 5 % independent loss.
fn repair() -> Result<Check, String> {
    let setting = fec::Setting { seconds: 30, seeds: 2, ..fec::DATAGRAMS };
    let residual = |code: &str| -> Result<f64, String> {
        let records = fec::records(&setting, code).map_err(|failed| failed.0)?;
        let values = records.iter().map(|record| value(record, Figure::ResidualLoss)).collect::<Result<Vec<_>, _>>()?;
        Ok(values.iter().sum::<f64>() / number(values.len() as u64) * 100.0)
    };
    let (without, with) = (residual("off")?, residual("xor:10")?);
    Ok(check(
        "V9 repair of datagrams",
        (4.5..=5.5).contains(&without) && (1.7..=2.3).contains(&with),
        format!("{without:.2} % missing without repair (5 ± 0.5), {with:.2} % with XOR 10+1 (2.0 ± 0.3)"),
    ))
}

/// V11: acknowledging every tenth packet instead of every second takes a fifth of the bytes, and no goodput on a clean path.
fn acknowledgements() -> Result<Check, String> {
    let clean = scenario(CLEAN)?;
    let asking = |text: &str| -> Result<(f64, f64), String> {
        let policy = text.parse().map_err(|_| format!("`{text}` is no policy"))?;
        let stack = contender_asking("cubic", policy).ok_or("there is no cubic")?;
        let record = run_one(&clean, stack.as_ref(), 1, None);
        Ok((value(&record, Figure::Reverse)?, value(&record, Figure::Goodput)?))
    };
    let ((often, fast), (seldom, same)) = (asking("fixed:2")?, asking("fixed:10")?);
    let fewer = often / seldom;
    Ok(check(
        "V11 rhythm of acknowledgements",
        (4.0..=6.0).contains(&fewer) && (same / fast - 1.0).abs() < 0.02,
        format!("{fewer:.2} times fewer bytes back (5 ± 1), goodput × {:.4} (1 ± 0.02)", same / fast),
    ))
}
