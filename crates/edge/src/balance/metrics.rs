//! Metrics of a load balancer for Prometheus.

use std::{fmt::Write, io, net::SocketAddr, sync::Arc};

use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    Shared,
    counters::{Counters, get},
    health::Health,
    table::Table,
};
use crate::metrics::service;

/// Serves the metrics until the task is aborted; the address has the port that it has got. Must be called within a tokio runtime.
pub(super) fn serve(address: SocketAddr, shared: Arc<Shared>) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let socket = std::net::TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    let render = move || text(&shared.table(), &shared.counters);
    Ok((local, tokio::spawn(service::serve(TcpListener::from_std(socket)?, render))))
}

/// Text under construction.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: u64) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }
}

/// The metrics, in the text format of OpenMetrics. Labels are hexadecimal digits and addresses, which need no escapes.
fn text(table: &Table, counters: &Counters) -> String {
    let mut page = Page(String::new());
    let label = |machine: &super::table::Machine| format!("machine=\"{}\"", machine.server_id);
    page.family("tiderace_balance_machine_state", "gauge", "State by the health checks, 1 for the one that applies.");
    for machine in table.machines() {
        for state in [Health::Up, Health::Closing, Health::Down] {
            let labels = format!("{},address=\"{}\",state=\"{}\"", label(machine), machine.address, state.name());
            page.sample("tiderace_balance_machine_state", &labels, (machine.health() == state).into());
        }
    }
    page.family("tiderace_balance_machine_drains", "gauge", "1 for a machine that gets no new connections.");
    for machine in table.machines() {
        page.sample("tiderace_balance_machine_drains", &label(machine), machine.drains.into());
    }
    page.family("tiderace_balance_datagrams", "counter", "Datagrams to and from a machine.");
    for machine in table.machines() {
        let counters = &machine.counters;
        let kinds =
            [("routed", &counters.routed), ("unroutable", &counters.unroutable), ("answered", &counters.answered)];
        for (kind, count) in kinds {
            let labels = format!("{},kind=\"{kind}\"", label(machine));
            page.sample("tiderace_balance_datagrams_total", &labels, get(count));
        }
    }
    page.family("tiderace_balance_datagrams_dropped", "counter", "Datagrams that went nowhere.");
    for (reason, count) in
        [("refused", &counters.refused), ("malformed", &counters.malformed), ("unsent", &counters.unsent)]
    {
        page.sample("tiderace_balance_datagrams_dropped_total", &format!("reason=\"{reason}\""), get(count));
    }
    page.family("tiderace_balance_connections_open", "gauge", "Open connections of TCP at a machine.");
    for machine in table.machines() {
        page.sample("tiderace_balance_connections_open", &label(machine), get(&machine.counters.open));
    }
    page.family("tiderace_balance_connections", "counter", "Connections of TCP that a machine has taken, or not.");
    for machine in table.machines() {
        for (result, count) in [("taken", &machine.counters.connections), ("failed", &machine.counters.failed)] {
            let labels = format!("{},result=\"{result}\"", label(machine));
            page.sample("tiderace_balance_connections_total", &labels, get(count));
        }
    }
    page.family("tiderace_balance_connections_ended", "counter", "Ends of connections of TCP.");
    for (end, count) in counters.tcp.ends() {
        page.sample("tiderace_balance_connections_ended_total", &format!("end=\"{end}\""), get(count));
    }
    page.family("tiderace_balance_bytes", "counter", "Bytes of connections of TCP.");
    for machine in table.machines() {
        for (direction, count) in [("in", &machine.counters.bytes_in), ("out", &machine.counters.bytes_out)] {
            let labels = format!("{},direction=\"{direction}\"", label(machine));
            page.sample("tiderace_balance_bytes_total", &labels, get(count));
        }
    }
    page.0.push_str("# EOF\n");
    page.0
}

#[cfg(test)]
mod tests {
    use super::{super::health::Asked, *};
    use crate::balance::config::{Resolved, ResolvedMachine};

    #[test]
    fn every_metric_of_the_rules_exists_and_the_text_is_whole() {
        let machine = ResolvedMachine {
            server_id: "0a01".parse().unwrap(),
            address: "10.0.0.1:443".parse().unwrap(),
            drains: true,
        };
        let table = Table::new(&Resolved::of(vec![machine]), None);
        table.machines()[0].state().set(Health::Closing);
        let text = text(&table, &Counters::default());
        assert!(text.ends_with("# EOF\n"));
        for line in [
            "tiderace_balance_machine_state{machine=\"0a01\",address=\"10.0.0.1:443\",state=\"closing\"} 1",
            "tiderace_balance_machine_state{machine=\"0a01\",address=\"10.0.0.1:443\",state=\"up\"} 0",
            "tiderace_balance_machine_drains{machine=\"0a01\"} 1",
            "tiderace_balance_connections_ended_total{end=\"untaken\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/rules.yml");
        let rules = std::fs::read_to_string(rules).unwrap();
        let mut found = 0;
        for part in rules.split("tiderace_balance_").skip(1) {
            let name: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            assert!(text.contains(&format!("\ntiderace_balance_{name}{{")), "the rules ask for {name}");
            found += 1;
        }
        assert!(found > 4);
    }
}
