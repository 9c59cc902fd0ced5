//! Networks with names: what their links do over time, and that they do what their sources say.

use std::fmt::Write as _;

use netem::{Fate, Link, LinkConfig, PacketMeta, Verdict};
use tiderace_lab::scenario::{PRESETS, Scenario, load};
use units::{Duration, Instant, Seed};

fn networks() -> impl Iterator<Item = Scenario> {
    PRESETS.iter().filter(|preset| preset.group.starts_with("Networks: ")).map(|preset| load(preset.name).unwrap())
}

/// Arrival of a packet of these bytes that finds the link empty.
fn arrival(link: &mut Link, now: Instant, size: u32, number: u64) -> Option<Instant> {
    match link.offer(now, &PacketMeta { size, number, ..PacketMeta::default() }).verdict {
        Verdict::Held(_) => {
            let due = link.deadline()?;
            link.poll(due)?.transit.verdict.arrival()
        }
        verdict => verdict.arrival(),
    }
}

/// For each second: delays of 20 small packets (median, in ms), of how many, and the rate that the last of two packets shows.
fn record(config: &LinkConfig, seed: u64) -> String {
    let mut link = Link::new(config, Seed::from_number(seed)).unwrap();
    let mut text = String::new();
    for second in 0..40_u64 {
        let mut delays = Vec::new();
        for probe in 0..20 {
            let now = Instant::from_millis(second * 1_000 + probe * 50);
            if let Some(at) = arrival(&mut link, now, 64, second * 20 + probe) {
                delays.push((at - now).as_micros());
            }
        }
        delays.sort_unstable();
        let median = delays.get(delays.len() / 2).map_or_else(|| "-".to_owned(), |micros| (micros / 100).to_string());
        let _ = write!(text, "{median}/{} ", delays.len());
    }
    text.trim_end().to_owned()
}

/// Median delays in tenths of a millisecond, and packets of 20 that arrived, second by second: of seed 1, for each network and direction.
/// A change of a generator, of its draws or of a preset shows here. `TIDERACE_GOLDEN=write` writes the file anew.
#[test]
fn networks_do_what_they_did() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/networks.golden");
    let mut text = String::new();
    for scenario in networks() {
        for (side, link) in [("down", &scenario.path.down), ("up", scenario.path.up())] {
            let _ = writeln!(text, "{} {side}: {}", scenario.name, record(link, 1));
        }
    }
    if std::env::var("TIDERACE_GOLDEN").is_ok_and(|word| word == "write") {
        std::fs::write(file, &text).unwrap();
    }
    let golden = std::fs::read_to_string(file).unwrap();
    for (is, was) in text.lines().zip(golden.lines()) {
        assert_eq!(is, was);
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}

#[test]
fn another_seed_is_another_day() {
    for scenario in networks().filter(|scenario| scenario.path.down.varying_rate.is_some()) {
        assert_ne!(record(&scenario.path.down, 1), record(&scenario.path.down, 2), "{}", scenario.name);
    }
}

/// Median of the time that a packet of 1500 bytes takes to leave, as a rate in Mbit/s, over ten minutes.
fn median_rate(config: &LinkConfig) -> f64 {
    let varying = config.varying_rate.clone();
    let bare = LinkConfig { varying_rate: varying, rate: config.rate, queue: config.queue, ..LinkConfig::default() };
    let mut rates: Vec<f64> = Vec::new();
    for seed in 1..=10 {
        let mut link = Link::new(&bare, Seed::from_number(seed)).unwrap();
        for number in 0..600 {
            let now = Instant::from_millis(number * 1_000 + 10);
            let took = arrival(&mut link, now, 1_500, number).unwrap() - now;
            rates.push(12_000.0 / took.as_secs_f64() / 1e6);
        }
    }
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[test]
fn rates_have_the_published_medians() {
    for (name, down, up) in [
        ("lte-rest", 13.0, 6.0),
        ("lte-walking", 13.0, 6.0),
        ("lte-driving", 13.0, 6.0),
        ("5g-rest", 210.0, 36.0),
        ("5g-walking", 210.0, 36.0),
        ("geo", 100.0, 10.0),
        ("dsl-uplink", 5.6, 0.46),
    ] {
        let path = load(name).unwrap().path;
        for (link, stated) in [(&path.down, down), (path.up(), up)] {
            let seen = median_rate(link);
            assert!((seen / stated - 1.0).abs() < 0.06, "{name}: {seen} of {stated} Mbit/s");
        }
    }
}

/// Delays over `minutes` minutes of a link, in milliseconds, ascending; without what waits for the rate.
fn delays(config: &LinkConfig, every: Duration, minutes: u64) -> Vec<f64> {
    let bare = LinkConfig {
        delay: config.delay,
        jitter_quantiles: config.jitter_quantiles.clone(),
        jitter_period: config.jitter_period,
        jitter_reorders: true,
        ..LinkConfig::default()
    };
    let mut link = Link::new(&bare, Seed::from_number(3)).unwrap();
    let end = Instant::from_millis(minutes * 60_000);
    let (mut now, mut seen) = (Instant::ZERO, Vec::new());
    while now < end {
        seen.push((arrival(&mut link, now, 64, 0).unwrap() - now).as_secs_f64() * 1e3);
        now += every;
    }
    seen.sort_by(f64::total_cmp);
    seen
}

#[test]
fn the_wireless_hop_has_the_published_percentiles() {
    for name in ["wifi-busy", "wifi-roaming", "hotel"] {
        let link = load(name).unwrap().path.down;
        let seen = delays(&link, link.jitter_period, 120);
        let base = link.delay.as_secs_f64() * 1e3;
        let at = |share: f64| seen[(share * seen.len() as f64) as usize] - base;
        for (share, stated, off) in [(0.5, 3.0, 0.5), (0.9, 20.0, 10.0), (0.99, 250.0, 30.0)] {
            assert!((at(share) - stated).abs() < off, "{name}: p{share} {} of {stated} ms", at(share));
        }
    }
}

#[test]
fn satellites_change_every_15_seconds_and_have_the_published_round_trips() {
    let path = load("leo").unwrap().path;
    let period = Duration::from_secs(15);
    assert_eq!(path.down.jitter_period, period);
    for link in [&path.down, path.up()] {
        assert_eq!(link.varying_rate.as_ref().unwrap().period, period);
        assert_eq!(link.outages[0].every, Some(period));
        assert_eq!(link.outages[0].packets, Fate::Lost);
    }
    let seen = delays(&path.down, period, 6_000);
    let up = path.up().delay.as_secs_f64() * 1e3;
    let quartile = |share: f64| seen[(share * seen.len() as f64) as usize] + up;
    for (share, stated) in [(0.0, 20.0), (0.25, 40.0), (0.5, 50.0), (0.75, 60.0)] {
        assert!((quartile(share) - stated).abs() < 2.0, "p{share}: {} of {stated} ms", quartile(share));
    }
    // Within a period the delay stands.
    let steady = LinkConfig { varying_rate: None, queue: netem::Queue::Unlimited, ..path.down };
    let mut link = Link::new(&steady, Seed::from_number(5)).unwrap();
    let mut steps = 0;
    let mut last = None;
    for second in 0..300_u64 {
        let now = Instant::from_millis(second * 1_000 + 500);
        let Some(at) = arrival(&mut link, now, 64, second) else { continue };
        let delay = at - now;
        steps += u64::from(last.is_some_and(|last| last != delay));
        last = Some(delay);
    }
    assert!((15..=19).contains(&steps), "{steps} steps in 20 periods");
}

#[test]
fn a_queue_of_a_modem_holds_what_was_measured() {
    let wait = |name: &str| {
        let link = load(name).unwrap().path.up().clone();
        link.rate.unwrap().time_for(link.queue.bytes().unwrap()).as_millis()
    };
    assert_eq!(wait("docsis-uplink"), 240);
    assert_eq!(wait("dsl-uplink"), 1_000);
}
