//! Upgrades and reloads under load, with an eBPF program that steers packets and without any privilege.

use anyhow::{Result, anyhow};

use super::{
    Context,
    command::{Ended, load},
    continuity::{failures, measured, test},
    row::{Row, Target},
};

/// Ways in which packets reach older processes: the name of the test, what follows its rows, and whether the kernel steers.
const FORMS: [(&str, &str, bool); 2] =
    [("with_kernel_steering", "eBPF", true), ("without_privilege", "no privilege", false)];

/// Rows of both ways.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let (upgrades, reloads) = if context.long { (100, 1_000) } else { (10, 100) };
    let counts = [upgrades, reloads].map(|count: u32| count.to_string());
    let settings = [
        ("EDGE_UPGRADES", counts[0].as_str()),
        ("EDGE_RELOADS", &counts[1]),
        ("EDGE_CONNECTIONS", "200"),
        // Two cores have time left with 200 connections.
        ("EDGE_PAUSE_MS", "100"),
    ];
    let mut rows = Vec::new();
    for (filter, name, is_steered) in FORMS {
        let ended = test(context, &format!("continuity-upgrades-{filter}"), filter, &settings)?;
        if let Some(why) = ended.stdout.lines().find_map(|line| line.split_once("skipped: ").map(|(_, why)| why)) {
            rows.push(Row::absent(&format!("lost connections: {name}"), &anyhow!("{why}")));
            continue;
        }
        let form = Form { ended: &ended, name };
        rows.extend(form.losses()?);
        rows.extend(form.amounts(upgrades.into(), reloads.into(), is_steered)?);
    }
    Ok(rows)
}

/// One run of the test.
struct Form<'a> {
    ended: &'a Ended,
    name: &'static str,
}

impl Form<'_> {
    fn get(&self, what: &str) -> Result<f64> {
        Ok(measured(self.ended, what)?[0])
    }

    fn row(&self, what: &str, unit: &str, target: Target) -> Result<Row> {
        Ok(Row::new(format!("{what}: {}", self.name), self.get(what)?, unit, target))
    }

    /// Rows that have to be zero.
    fn losses(&self) -> Result<Vec<Row>> {
        let zero = |what: &str| self.row(what, "", Target::Exactly(0.0));
        let of_each: Vec<String> = ["Http3", "Http2", "Private", "Qmux", "Rebinding", "Migrating", "downloads"]
            .iter()
            .map(|kind| Ok(format!("{} {kind}", self.get(&format!("connections, {kind}"))?)))
            .collect::<Result<_>>()?;
        Ok(vec![
            failures(self.ended, &format!("failed tests: {}", self.name)),
            zero("lost connections")?.detail(format!(
                "connections at the same time: {}; every second one stays to the end, the others are replaced after one to seven upgrades; {} opened",
                of_each.join(", "),
                self.get("connections opened")?
            )),
            zero("failed requests")?.detail(format!(
                "of {}; each connection pauses {} ms to twice that between two; {} NAT rebindings, {} migrations; processors busy for {} %, \
                 other programs included; {}",
                self.get("requests")?,
                self.get("shortest pause between requests of a connection, ms")?,
                self.get("NAT rebindings")?,
                self.get("migrations")?,
                self.get("processors busy, %")?,
                load()
            )),
            zero("unanswered Initials")?.detail(format!(
                "packets with a ClientHello that the gateway never acknowledged; {} ClientHellos with X25519MLKEM768, each in two datagrams",
                self.get("ClientHellos in two datagrams")?
            )),
            zero("ClientHellos in another number of datagrams")?,
            zero("handshakes without any answer for 1 s")?.detail("the client's first probe timeout"),
        ])
    }

    /// Rows that tell how much was done.
    fn amounts(&self, upgrades: f64, reloads: f64, is_steered: bool) -> Result<Vec<Row>> {
        let (steered, forwarded) = if is_steered {
            (Target::AtLeast(1.0), Target::Printed)
        } else {
            (Target::Exactly(0.0), Target::AtLeast(1.0))
        };
        Ok(vec![
            self.row("upgrades", "", Target::AtLeast(upgrades))?,
            self.row("sockets at the end", "", Target::AtLeast(3.0))?.detail(
                "each upgrade changes the number of workers: 2, 3, 1, 2, 4, 1, 2 and so on; sockets stay as many as there were workers at the most",
            ),
            self.row("reloads", "", Target::AtLeast(reloads))?,
            self.row("processes side by side", "", Target::AtLeast(4.0))?,
            self.row("downloads through six upgrades", "", Target::AtLeast(1.0))?
                .detail(format!("of {}, over HTTP/3 and HTTP/2, every byte compared", self.get("downloads")?)),
            self.row("reads steered by the kernel", "", steered)?.detail("as the older processes report them"),
            self.row("reads forwarded", "", forwarded)?.detail("by the serving processes, to older ones"),
            self.row("slowest handshake, ms", "", Target::AtMost(1_000.0))?
                .detail(format!("the median is {:.0} ms", self.get("median handshake, ms")?)),
        ])
    }
}
