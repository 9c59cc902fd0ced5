//! `tiderace edge compare` on replayed clients: a planted difference between the QUIC and the TCP arm, and an A/A split.
//!
//! A population is 8,000 clients. The gateway's own code assigns them to arms and keeps their records, and the laboratory's
//! compares these. Only the time of requests is drawn: a speed of the client, a factor of the request, and now and then a long one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use edge::trial::{Arm, NetworkType, ObservedRequest, Trials, Withholding};
use lab::{
    stats::compare::Verdict,
    trial::{Report, compare, record::Records},
};
use rand_core::RngCore;
use units::{RandomStream, Seed};

use super::{
    Context,
    row::{Row, Target},
};

/// Populations of each kind.
const POPULATIONS: u64 = 20;
/// Clients without UDP.
const WITHOUT_UDP: f64 = 0.08;

/// A uniform draw between 0 and 1.
fn uniform(random: &mut RandomStream) -> f64 {
    (f64::from(random.next_u32()) + 0.5) / (f64::from(u32::MAX) + 1.0)
}

/// A draw of the standard normal distribution.
fn normal(random: &mut RandomStream) -> f64 {
    (-2.0 * uniform(random).ln()).sqrt() * (std::f64::consts::TAU * uniform(random)).cos()
}

/// Clients of a service, and what is planted among them.
struct Population {
    seed: u64,
    clients: u32,
    /// Share of the TCP arm, in percent.
    share: u32,
    /// Time of requests in the QUIC arm over that in the TCP arm.
    ratio: f64,
    /// Failures beside the 1 % that both arms have.
    failures: f64,
}

impl Population {
    /// Population with a difference: in every second one QUIC is slower, and loses requests.
    fn planted(seed: u64) -> Self {
        let mut random = Seed::from_number(seed).stream("planted difference");
        let effect = 0.12 + 0.13 * uniform(&mut random);
        let is_slower = seed.is_multiple_of(2);
        let ratio = if is_slower { 1.0 + effect } else { 1.0 - effect };
        Self {
            seed,
            clients: 8_000,
            share: [50, 40, 60, 30][seed as usize % 4],
            ratio,
            failures: if is_slower { 0.03 } else { 0.0 },
        }
    }

    /// Population without one.
    fn same(seed: u64) -> Self {
        Self { seed: 1_000 + seed, clients: 8_000, share: [50, 20][seed as usize % 2], ratio: 1.0, failures: 0.0 }
    }

    /// Requests of all clients, assigned and recorded by the gateway's code, and compared.
    fn report(&self) -> Result<Report> {
        let text = format!(
            "listen = \"127.0.0.1:443\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[policy]]\nname = \"live\"\nhttp3 = false\n\
             share = \"{} %\"\nkey = \"{}\"\n[[route]]\nto = \"http://127.0.0.1:8080\"\n",
            self.share, self.seed
        );
        let config = edge::config::parse(&text, "edge.toml")?;
        let (withholding, trials) = (Withholding::new(&config), Trials::new(&Default::default()));
        let mut random = Seed::from_number(self.seed).stream("clients");
        let listener = SocketAddr::from(([127, 0, 0, 1], 443));
        for number in 0..self.clients {
            let address = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number * 37));
            let assignment = withholding.assign(listener, address, None).context("the policy fits everybody")?;
            let (own, has_udp) = ((0.6 * normal(&mut random)).exp(), uniform(&mut random) > WITHOUT_UDP);
            // Most clients send few requests, and some send many.
            let requests = (2.0 / uniform(&mut random).powf(0.7)).min(400.0) as u32;
            let network_type = if number.is_multiple_of(3) { NetworkType::FourG } else { NetworkType::Unreported };
            let (ratio, failures) = match assignment.arm {
                Arm::Quic => (self.ratio, self.failures),
                Arm::Tcp => (1.0, 0.0),
            };
            for request in 0..requests {
                let long = if uniform(&mut random) < 0.03 { 4.0 } else { 1.0 };
                let seconds = 0.1 * own * long * ratio * (0.4 * normal(&mut random)).exp();
                let seconds = (uniform(&mut random) >= 0.01 + failures).then_some(seconds);
                // The first request comes over TCP: the client has yet to learn of HTTP/3.
                let is_quic = assignment.arm == Arm::Quic && has_udp && request > 0;
                trials.note(&assignment, &ObservedRequest { is_quic, network_type, seconds });
            }
        }
        let records: Records = serde_json::from_value(trials.to_json()["live"].clone())?;
        let report = compare(&records, None);
        ensure!(report.not_comparable.is_empty(), "{:?}", report.not_comparable);
        Ok(report)
    }
}

/// Counts over the populations of a kind.
#[derive(Debug, Default)]
struct Tally {
    /// Populations in which the median has the verdict of the planted difference.
    found: f64,
    /// Intervals of the three quantiles that cover the planted ratio.
    covered: f64,
    /// Populations with any verdict for an arm.
    differing: f64,
    /// Verdicts for an arm against the planted difference.
    wrong: f64,
}

fn tally(populations: impl Iterator<Item = Population>) -> Result<Tally> {
    let mut tally = Tally::default();
    for population in populations {
        let report = population.report()?;
        let better = if population.ratio < 1.0 { Verdict::Better } else { Verdict::Worse };
        let times = &report.tables[0].rows[0].figures[..3];
        let verdicts = report.tables.iter().flat_map(|table| &table.rows).flat_map(|row| &row.figures);
        let verdicts: Vec<Verdict> = verdicts.filter_map(|row| Some(row.result?.verdict)).collect();
        let is_for_an_arm = |verdict: &&Verdict| matches!(verdict, Verdict::Better | Verdict::Worse);
        for (number, row) in times.iter().enumerate() {
            let result = row.result.with_context(|| format!("{}: {:?}", row.figure, row.not_comparable))?;
            tally.found += f64::from(u8::from(number == 0 && result.verdict == better));
            tally.covered += f64::from(u8::from(result.ratio.is_some_and(|ratio| ratio.covers(population.ratio))));
        }
        tally.differing += f64::from(u8::from(verdicts.iter().any(|verdict| is_for_an_arm(&verdict))));
        tally.wrong += verdicts.iter().filter(is_for_an_arm).filter(|verdict| **verdict != better).count() as f64;
    }
    Ok(tally)
}

pub(super) fn measure(_: &Context) -> Result<Vec<Row>> {
    let about = "8,000 clients each, 8 % of them without UDP; intervals hold together with 99 %";
    let planted = tally((1..=POPULATIONS).map(Population::planted))?;
    let same = tally((1..=POPULATIONS).map(Population::same))?;
    let all = POPULATIONS as f64;
    let row = |what: &str, value: f64, target| Row::new(what, value, "", target).detail(about);
    Ok(vec![
        row("planted differences of 12 to 25 % found, with the right arm, of 20", planted.found, Target::AtLeast(all)),
        row("verdicts for the wrong arm", planted.wrong, Target::AtMost(0.0)),
        row(
            "intervals of p50, p95 and p99 that cover the planted ratio, of 60",
            planted.covered,
            Target::AtLeast(3.0 * all - 1.0),
        ),
        row("A/A splits with any verdict for an arm, of 20", same.differing, Target::AtMost(0.0)),
        row("intervals of p50, p95 and p99 that cover 1, of 60", same.covered, Target::AtLeast(3.0 * all - 1.0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_differences_are_found_and_a_a_splits_have_none() {
        let planted = tally((1..=POPULATIONS).map(Population::planted)).unwrap();
        let same = tally((1..=POPULATIONS).map(Population::same)).unwrap();
        assert!(planted.found >= 20.0 && planted.wrong <= 0.0 && planted.covered >= 59.0, "{planted:?}");
        assert!(same.differing <= 0.0 && same.covered >= 59.0, "{same:?}");
    }
}
