//! Cost of tunnels (CONNECT-UDP, CONNECT-IP) at the gateway: processor time per GiB of UDP payloads, beside a relay that reads and writes each datagram, and beside a
//! download over HTTP/3. Rounds are interleaved; both directions are measured.
//!
//! The target asks for 2.2 times the relay: a datagram of a tunnel is read and written as there, and is encrypted or decrypted beside it.
//! The relay makes two system calls for a datagram of 1,200 bytes.

use std::{collections::BTreeMap, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    command::{Running, load},
    edge_servers::{self as servers, Gentle},
    row::{Row, Target},
    tunnel_cost_ip::IpSite,
};
use crate::processor;

const LIMIT: Duration = Duration::from_secs(3_600);
/// Bytes of a datagram, as the load sends them.
const PAYLOAD: f64 = 1_200.0;
/// Datagrams of a run: 0.56 GiB.
const DATAGRAMS: u32 = 500_000;
/// Most datagrams of a run that may be lost: the load sends no more than queues take.
const MOST_LOST: f64 = 0.01;
/// Bytes of the file, and downloads of a run over four connections.
const FILE: usize = 64 << 20;
const DOWNLOADS: u32 = 12;
/// Most that a tunnel may cost, in relays.
const MOST: f64 = 2.2;

/// Conditions of the rows of CONNECT-IP: the packets, and which work of the kernel counts.
const IP_DETAIL: &str = "payloads of 1200 B in packets of 1228 B; the kernel's routing counts where it runs within the gateway's system calls: \
                         up to the socket of the target. Down it does not: it runs within the call of the sender";

const DIRECTIONS: [&str; 2] = ["up", "down"];
const GIB: f64 = 1_073_741_824.0;

/// Work that is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// Datagrams in this direction, through the relay.
    Relay(&'static str),
    /// The same through a tunnel.
    Tunnel(&'static str),
    /// The same through a tunnel of masque-go.
    MasqueGo(&'static str),
    /// The same in packets through a tunnel of CONNECT-IP.
    Ip(&'static str),
    /// A file over HTTP/3.
    Download,
}

impl Work {
    fn name(self) -> String {
        match self {
            Self::Relay(direction) => format!("relay, {direction}"),
            Self::Tunnel(direction) => format!("tunnel, {direction}"),
            Self::MasqueGo(direction) => format!("tunnel of masque-go, {direction}"),
            Self::Ip(direction) => format!("tunnel of CONNECT-IP, {direction}"),
            Self::Download => "download over HTTP/3".to_owned(),
        }
    }
}

/// Values of the rounds: seconds of processor time per GiB, and GiB per second.
#[derive(Default)]
struct Values {
    cost: Vec<f64>,
    rate: Vec<f64>,
}

/// Programs and addresses of the measurement.
struct Site {
    edge: Gentle,
    /// The gateway for packets, or why there is none.
    ip: Result<IpSite>,
    relay: Running,
    masque_go: Running,
    edge_address: String,
    masque_go_address: String,
    relay_address: String,
    target: String,
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    build_masque_go(context)?;
    let built = servers::build_ours(context)?;
    let rounds = if context.long { 11 } else { 7 };
    let (values, no_ip) = rounds_of(context, &built, rounds, DATAGRAMS, DOWNLOADS)?;
    rows(&values, no_ip.as_ref())
}

/// Builds the proxy by others (interop/masque-go).
fn build_masque_go(context: &Context) -> Result<()> {
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(std::path::absolute(context.commands.target())?.join("peers/masque-go")).arg(".");
    go.current_dir(context.root.join("interop/masque-go"));
    let ended = context.commands.run("tunnel-cost-masque-go-build", &mut go, LIMIT);
    ended.context("cannot start go: Go 1.26 or later builds masque-go (https://go.dev/dl)")?.ok()?;
    Ok(())
}

/// Measures so many rounds with the programs of a directory. Returns why CONNECT-IP was not among them, too, if it was not.
fn rounds_of(
    context: &Context,
    built: &Path,
    rounds: usize,
    datagrams: u32,
    downloads: u32,
) -> Result<(BTreeMap<Work, Values>, Option<anyhow::Error>)> {
    let scratch = context.commands.scratch("tunnel-cost")?;
    let mut site = start(context, built, &scratch)?;
    let of = |direction: &&'static str| [Work::Relay(direction), Work::Tunnel(direction), Work::MasqueGo(direction)];
    let of_ip = site.ip.as_ref().map_or(&[][..], |_| &DIRECTIONS).iter().copied().map(Work::Ip);
    let works = DIRECTIONS.iter().flat_map(of).chain(of_ip);
    let works: Vec<Work> = works.chain([Work::Download]).collect();
    let mut values: BTreeMap<Work, Values> = BTreeMap::new();
    // The first round fills caches.
    for round in 0..=rounds {
        for work in &works {
            let (cost, rate) = run(context, built, &scratch, &site, *work, (datagrams, downloads))?;
            if round > 0 {
                let values = values.entry(*work).or_default();
                values.cost.push(cost);
                values.rate.push(rate);
            }
        }
    }
    ensure!(site.edge.0.alive(), "the gateway ended: {}", site.edge.0.printed());
    if let Ok(ip) = &mut site.ip {
        ensure!(ip.edge.0.alive(), "the gateway for packets ended: {}", ip.edge.0.printed());
    }
    ensure!(site.relay.alive(), "the relay ended: {}", site.relay.printed());
    ensure!(site.masque_go.alive(), "masque-go ended: {}", site.masque_go.printed());
    Ok((values, site.ip.err()))
}

/// Starts the gateway and the relay.
fn start(context: &Context, built: &Path, scratch: &Path) -> Result<Site> {
    servers::site(scratch, &[("large", FILE)])?;
    let (port, relay_port, go_port, target) = (servers::port()?, servers::port()?, servers::port()?, servers::port()?);
    let [edge_address, relay_address, masque_go_address, target] =
        [port, relay_port, go_port, target].map(|port| format!("127.0.0.1:{port}"));
    let config = scratch.join("edge.toml");
    let text = format!(
        "listen = \"{edge_address}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[route]]\nfiles = \"www\"\n[[route]]\npath = \
         \"/.well-known/masque/udp\"\n[route.proxy]\nopen = true\nallow = \"127.0.0.1\"\n"
    );
    std::fs::write(&config, text)?;
    let mut edge = Command::new(built.join("tiderace"));
    let edge = context.commands.start("tunnel-cost-edge", edge.args(["edge", "run", "--config"]).arg(config))?;
    let mut relay = Command::new(built.join("examples/tunnel_load"));
    let relay = context.commands.start("tunnel-cost-relay", relay.args(["relay", &relay_address, &target]))?;
    let mut masque_go = Command::new(context.commands.target().join("peers/masque-go"));
    masque_go.arg("server").args([scratch.join("cert.pem"), scratch.join("key.pem")]);
    let template = format!("https://localhost:{go_port}/.well-known/masque/udp/{{target_host}}/{{target_port}}/");
    let masque_go = context.commands.start("tunnel-cost-masque-go", masque_go.args([&template, &masque_go_address]))?;
    let edge = Gentle(edge);
    servers::wait(port).with_context(|| edge.0.printed())?;
    let ip = IpSite::start(context, built, scratch);
    Ok(Site { edge, ip, relay, masque_go, edge_address, masque_go_address, relay_address, target })
}

/// Does a work once. Returns its processor time per GiB, at the gateway or the relay, and its rate in GiB per second.
fn run(
    context: &Context,
    built: &Path,
    scratch: &Path,
    site: &Site,
    work: Work,
    (datagrams, downloads): (u32, u32),
) -> Result<(f64, f64)> {
    let certificate = scratch.join("cert.pem");
    let program = if work == Work::Download { "load" } else { "tunnel_load" };
    let mut command = Command::new(built.join("examples").join(program));
    match work {
        Work::Relay(direction) => {
            command.args(["through-relay", &site.relay_address, &site.target, direction, &datagrams.to_string()]);
        }
        Work::Tunnel(direction) | Work::MasqueGo(direction) => {
            let is_ours = matches!(work, Work::Tunnel(_));
            let proxy = if is_ours { &site.edge_address } else { &site.masque_go_address };
            command.args(["through-tunnel", proxy]).arg(certificate);
            command.args([&site.target, direction, &datagrams.to_string()]);
        }
        Work::Ip(direction) => {
            let ip = site.ip.as_ref().map_err(|why| anyhow::anyhow!("{why:#}"))?;
            command = ip.load(&built.join("examples/tunnel_load"), &certificate, direction, datagrams);
        }
        Work::Download => {
            command.args(["closed", "h3", &site.edge_address]).arg(certificate);
            command.args(["/large", "4", "1", &downloads.to_string()]);
        }
    }
    let pid = match work {
        Work::Relay(_) => site.relay.id(),
        Work::MasqueGo(_) => site.masque_go.id(),
        Work::Ip(_) => site.ip.as_ref().map_or(0, |ip| ip.edge.0.id()),
        Work::Tunnel(_) | Work::Download => site.edge.0.id(),
    };
    let before = processor::seconds(pid)?;
    let ended = context.commands.run("tunnel-cost-load", &mut command, LIMIT)?.ok()?;
    let spent = processor::seconds(pid)? - before;
    let [count, other, seconds] = if work == Work::Download {
        let said = servers::Closed::read(&ended.stdout)?;
        [said.requests, said.bytes, said.seconds]
    } else {
        let numbers: Vec<f64> = ended.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        numbers[..].try_into().ok().with_context(|| format!("the load said {:?}", ended.stdout))?
    };
    let bytes = if work == Work::Download {
        ensure!(other == count * FILE as f64, "{other} bytes in {count} answers");
        other
    } else {
        // What another's proxy loses is not held against it: a datagram costs what those that arrive have cost.
        let is_ours = !matches!(work, Work::MasqueGo(_));
        ensure!(
            !is_ours || other <= MOST_LOST * count,
            "{}: {other} datagrams were lost, and {count} arrived",
            work.name()
        );
        count * PAYLOAD
    };
    Ok((spent * GIB / bytes, bytes / GIB / seconds))
}

fn rows(values: &BTreeMap<Work, Values>, no_ip: Option<&anyhow::Error>) -> Result<Vec<Row>> {
    let get = |work: Work| values.get(&work).with_context(|| format!("no value of {}", work.name()));
    let ratio = |what: String, a: Work, b: Work, target| {
        let ratios: Vec<f64> = get(a)?.cost.iter().zip(&get(b)?.cost).map(|(a, b)| a / b).collect();
        Ok::<_, anyhow::Error>(Row::median(what, &ratios, "", target))
    };
    let mut rows = Vec::new();
    for direction in DIRECTIONS {
        let (tunnel, relay) = (Work::Tunnel(direction), Work::Relay(direction));
        let what = format!("CPU per GiB through CONNECT-UDP, {direction} / plain relay");
        rows.push(ratio(what, tunnel, relay, Target::AtMost(MOST))?.detail(format!("payloads of 1200 B; {}", load())));
        let what = format!("CPU per GiB through CONNECT-UDP, {direction} / masque-go");
        rows.push(ratio(what, tunnel, Work::MasqueGo(direction), Target::Printed)?.detail("masque-go v0.5.0"));
        let what = format!("CPU per GiB through CONNECT-UDP, {direction} / download over HTTP/3");
        rows.push(ratio(what, tunnel, Work::Download, Target::Printed)?.detail("a file of 64 MiB, four connections"));
        let what = format!("CPU per GiB through CONNECT-IP, {direction} / plain relay");
        rows.push(match no_ip {
            Some(why) => Row::unmeasured(&what, why),
            None => ratio(what, Work::Ip(direction), relay, Target::AtMost(MOST))?.detail(IP_DETAIL),
        });
    }
    for (work, values) in values {
        let mut rates = values.rate.clone();
        rates.sort_by(f64::total_cmp);
        let rate = rates.get(rates.len() / 2).copied().unwrap_or_default();
        let row = Row::median(format!("CPU per GiB: {}", work.name()), &values.cost, "s", Target::Printed);
        rows.push(row.detail(format!("{rate:.2} GiB per second, all programs on the same processors")));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tunnel: f64) -> BTreeMap<Work, Values> {
        let constant = |cost: f64| Values { cost: vec![cost; 7], rate: vec![1.0; 7] };
        let of = |direction| {
            let works =
                [Work::Relay(direction), Work::Tunnel(direction), Work::MasqueGo(direction), Work::Ip(direction)];
            works.into_iter().zip([2.0, tunnel, 3.0, tunnel].map(constant))
        };
        let works = DIRECTIONS.iter().flat_map(|direction| of(direction));
        works.chain([(Work::Download, constant(1.0))]).collect()
    }

    #[test]
    fn a_tunnel_is_judged_by_the_relay_in_each_direction() {
        let judged = |tunnel| {
            let rows = rows(&values(tunnel), None).unwrap();
            rows.iter().filter(|row| !row.passed).map(|row| row.what.clone()).collect::<Vec<_>>()
        };
        assert!(judged(4.4).is_empty());
        assert_eq!(
            judged(4.6),
            DIRECTIONS
                .iter()
                .flat_map(|direction| {
                    ["UDP", "IP"].map(|kind| format!("CPU per GiB through CONNECT-{kind}, {direction} / plain relay"))
                })
                .collect::<Vec<_>>()
        );
        let mut values = values(4.0);
        let why = anyhow::anyhow!("no namespaces");
        let missed = rows(&values, Some(&why)).unwrap().iter().filter(|row| !row.passed).count();
        assert_eq!(missed, 2, "CONNECT-IP that was not measured is no pass");
        values.remove(&Work::Relay("up"));
        assert!(rows(&values, None).is_err(), "what was not measured is no pass");
    }
}
