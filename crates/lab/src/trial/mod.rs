//! QUIC against TCP on live traffic: clients from which a gateway withholds HTTP/3, and those to which it is offered.
//!
//! Clients are compared by what they were offered (intention to treat): a client of the QUIC arm whose network does not pass UDP counts in
//! its arm, because leaving it out would select clients by their result. Contender is the QUIC arm, baseline the TCP arm.
//!
//! Before anything is compared, doubts are looked for. With one of them there is no verdict.

pub mod merge;
pub mod networks;
pub mod record;

use std::collections::BTreeMap;

use serde::Serialize;

use self::{
    networks::NetworkTable,
    record::{Arm, Client, Records},
};
use crate::stats::{
    clusters::{compare_quantile, compare_share, imbalance},
    compare::{Better, Comparison, MARGIN, Rule, Scale, Tolerance},
    quantile::quantile,
};

/// Confidence of all intervals of a table together.
pub const CONFIDENCE: f64 = 0.99;
/// Probability below which chance does not explain how clients are divided.
const IMBALANCE: f64 = 0.001;
/// Share of clients in both arms above which nothing is compared.
const IN_BOTH_MAX: f64 = 0.01;
/// Share of the TCP arm's requests over QUIC above which nothing is compared.
const OFF_ARM_MAX: f64 = 0.05;
/// Networks that are compared, those with most clients.
const NETWORKS_MAX: usize = 20;
/// Name of addresses in no network of the table.
const UNLISTED: &str = "not in the table";

const TIME: Rule =
    Rule { better: Some(Better::Lower), scale: Scale::Ratio, tolerance: Tolerance { relative: MARGIN, absolute: 0.0 } };
/// Half a percent of all requests.
const FAILURES: Rule = Rule {
    better: Some(Better::Lower),
    scale: Scale::Difference,
    tolerance: Tolerance { relative: 0.0, absolute: 0.005 },
};

/// A value of each arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PerArm<T> {
    /// Of clients from which HTTP/3 is withheld.
    pub tcp: T,
    /// Of clients to which it is offered.
    pub quic: T,
}

impl<T> PerArm<T> {
    fn of(mut value: impl FnMut(Arm) -> T) -> Self {
        Self { tcp: value(Arm::Tcp), quic: value(Arm::Quic) }
    }
}

/// Reason for which arms are not comparable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Doubt {
    /// Observation that is in doubt.
    pub reason: String,
    /// Advice to the operator.
    pub hint: &'static str,
}

/// Comparison of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureRow {
    /// `p50`, `p95`, `p99` or `failures`.
    pub figure: &'static str,
    /// Values of the arms: seconds, or a share.
    pub values: PerArm<Option<f64>>,
    /// QUIC arm against TCP arm.
    pub result: Option<Comparison>,
    /// Reason for which there is none.
    pub not_comparable: Option<String>,
}

/// Comparison of a part of the clients or requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Network or network type.
    pub name: String,
    /// Clients with requests.
    pub clients: PerArm<usize>,
    /// Figures.
    pub figures: Vec<FigureRow>,
}

/// Rows of which the intervals hold together with the probability [`CONFIDENCE`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// `all`, `network` or `network type`.
    pub by: &'static str,
    /// Confidence of each interval.
    pub confidence_each: f64,
    /// Rows, the largest first.
    pub rows: Vec<Row>,
}

/// Result of a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Share of the clients from which HTTP/3 is withheld.
    pub share: f64,
    /// Start of the observation, in Unix seconds.
    pub since: u64,
    /// Clients in the sample.
    pub clients: PerArm<usize>,
    /// Estimated number of all clients.
    pub clients_seen: f64,
    /// Requests of the clients in the sample.
    pub requests: PerArm<u64>,
    /// Requests of the QUIC arm that came over QUIC.
    pub over_quic: u64,
    /// Clients of the QUIC arm of which some request came over QUIC.
    pub quic_users: usize,
    /// Requests of the TCP arm that came over QUIC. They are in no figure.
    pub off_arm: u64,
    /// Clients seen in both arms. They are in no figure.
    pub in_both: usize,
    /// Reasons for which nothing is compared.
    pub not_comparable: Vec<Doubt>,
    /// Comparisons.
    pub tables: Vec<Table>,
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn part(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

/// Looks for reasons for which the arms are not comparable.
fn doubts(report: &Report) -> Vec<Doubt> {
    let mut all = Vec::new();
    let mut doubt = |reason: String, hint| all.push(Doubt { reason, hint });
    let PerArm { tcp, quic } = report.clients;
    for (clients, arm) in [(tcp, "TCP"), (quic, "QUIC")] {
        if clients == 0 {
            let reason = format!("no client is in the {arm} arm (share {} %)", 100.0 * report.share);
            doubt(reason, "a comparison needs a share between 0 % and 100 %, and clients with different addresses");
        }
    }
    if let Some(chance) = imbalance(tcp, quic, report.share).filter(|chance| *chance < IMBALANCE) {
        let reason = format!(
            "{tcp} of {} clients are in the TCP arm, and {} % are meant to be (p = {chance:.1e})",
            tcp + quic,
            100.0 * report.share
        );
        doubt(
            reason,
            "were share or key changed, or do requests of one arm go elsewhere? Give the policy a new name to begin anew",
        );
    }
    if part(report.in_both as u64, (tcp + quic) as u64) > IN_BOTH_MAX {
        let reason = format!("{} of {} clients were seen in both arms", report.in_both, tcp + quic);
        doubt(reason, "share or key were changed: give the policy a new name to begin anew");
    }
    if part(report.off_arm, report.off_arm + report.requests.tcp) > OFF_ARM_MAX {
        let reason = format!(
            "{} of {} requests of the TCP arm came over QUIC",
            report.off_arm,
            report.off_arm + report.requests.tcp
        );
        doubt(
            reason,
            "do the names have an HTTPS record with h3? Else wait until clients have forgotten (alt-svc-max-age)",
        );
    }
    all
}

/// Part of the clients or requests: its name, the clients, and the network type of their requests.
struct Stratum<'a> {
    name: String,
    clients: Vec<&'a Client>,
    network_type: Option<&'a str>,
}

impl Stratum<'_> {
    fn row(&self, confidence: f64) -> Row {
        let of = |arm| self.clients.iter().filter(move |client| client.arm == arm);
        let seconds = |arm| of(arm).map(|client| client.seconds(self.network_type)).collect::<Vec<Vec<f64>>>();
        let failures = |arm| of(arm).map(|client| client.failures(self.network_type)).collect::<Vec<(f64, f64)>>();
        let (times, failed) = (PerArm::of(seconds), PerArm::of(failures));
        let pooled = |clients: &Vec<Vec<f64>>| {
            let mut all = clients.concat();
            all.sort_by(f64::total_cmp);
            all
        };
        let pooled = PerArm { tcp: pooled(&times.tcp), quic: pooled(&times.quic) };
        let mut figures: Vec<FigureRow> = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)]
            .into_iter()
            .map(|(figure, of)| {
                let values = PerArm { tcp: quantile(&pooled.tcp, of).ok(), quic: quantile(&pooled.quic, of).ok() };
                let result = compare_quantile(&times.quic, &times.tcp, of, &TIME, confidence);
                let not_comparable = result.as_ref().err().map(ToString::to_string);
                FigureRow { figure, values, result: result.ok(), not_comparable }
            })
            .collect();
        let share = |counts: &[(f64, f64)]| {
            let sum = counts.iter().fold((0.0, 0.0), |sum, (failures, cases)| (sum.0 + failures, sum.1 + cases));
            (sum.1 > 0.0).then(|| sum.0 / sum.1)
        };
        let values = PerArm { tcp: share(&failed.tcp), quic: share(&failed.quic) };
        let result = compare_share(&failed.quic, &failed.tcp, &FAILURES, confidence);
        let not_comparable = result.as_ref().err().map(ToString::to_string);
        figures.push(FigureRow { figure: "failures", values, result: result.ok(), not_comparable });
        let clients = PerArm::of(|arm| of(arm).filter(|client| client.failures(self.network_type).1 > 0.0).count());
        Row { name: self.name.clone(), clients, figures }
    }
}

/// Compares the strata: with Bonferroni's correction, so that the intervals hold together.
fn table(by: &'static str, strata: &[Stratum<'_>]) -> Table {
    #[expect(clippy::cast_precision_loss, reason = "few strata")]
    let confidence_each = 1.0 - (1.0 - CONFIDENCE) / (4 * strata.len().max(1)) as f64;
    Table { by, confidence_each, rows: strata.iter().map(|stratum| stratum.row(confidence_each)).collect() }
}

/// Compares the arms of a trial: all clients, by network where there is a table, and by network type where clients report it.
pub fn compare(records: &Records, networks: Option<&NetworkTable>) -> Report {
    let clients: Vec<&Client> = records.clients.iter().filter(|client| !client.in_both).collect();
    let of = |arm| clients.iter().filter(move |client| client.arm == arm);
    let mut report = Report {
        share: records.share,
        since: records.since,
        clients: PerArm::of(|arm| records.clients.iter().filter(|client| client.arm == arm).count()),
        clients_seen: records.clients_seen,
        requests: PerArm::of(|arm| of(arm).map(|client| client.requests()).sum()),
        over_quic: of(Arm::Quic).map(|client| client.over_quic).sum(),
        quic_users: of(Arm::Quic).filter(|client| client.over_quic > 0).count(),
        off_arm: clients.iter().map(|client| client.off_arm).sum(),
        in_both: records.clients.iter().filter(|client| client.in_both).count(),
        not_comparable: Vec::new(),
        tables: Vec::new(),
    };
    report.not_comparable = doubts(&report);
    if !report.not_comparable.is_empty() {
        return report;
    }
    let all = Stratum { name: "all".to_owned(), clients: clients.clone(), network_type: None };
    report.tables.push(table("all", &[all]));
    if let Some(networks) = networks {
        let mut by_name: BTreeMap<&str, Vec<&Client>> = BTreeMap::new();
        for client in &clients {
            by_name.entry(networks.find(client.client).unwrap_or(UNLISTED)).or_default().push(client);
        }
        let mut strata: Vec<Stratum<'_>> = by_name
            .into_iter()
            .map(|(name, clients)| Stratum { name: name.to_owned(), clients, network_type: None })
            .collect();
        strata.sort_by_key(|stratum| std::cmp::Reverse(stratum.clients.len()));
        strata.truncate(NETWORKS_MAX);
        report.tables.push(table("network", &strata));
    }
    let mut types: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, (requests, _)) in clients.iter().flat_map(|client| &client.counts) {
        *types.entry(name).or_default() += requests;
    }
    // Where nobody reports anything, there is one type.
    if types.len() > 1 {
        let mut types: Vec<(&str, u64)> = types.into_iter().collect();
        types.sort_by_key(|(_, requests)| std::cmp::Reverse(*requests));
        let stratum = |(name, _): (&'_ str, u64)| (name.to_owned(), name.to_owned());
        let named: Vec<(String, String)> = types.into_iter().map(stratum).collect();
        let strata: Vec<Stratum<'_>> = named
            .iter()
            .map(|(name, of)| Stratum { name: name.clone(), clients: clients.clone(), network_type: Some(of) })
            .collect();
        report.tables.push(table("network type", &strata));
    }
    report
}

#[cfg(test)]
mod tests;
