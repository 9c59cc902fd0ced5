//! Operator commands and their output: status, connections, captures, DNS records.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::Process;
use crate::{
    admin,
    capture::{CaptureRequest, CaptureTarget},
    config::Config,
    trial::Withholding,
};

impl Process {
    /// The records to publish in DNS so that clients come over HTTP/3 at once (RFC 9460), for the names in the routes.
    pub fn https_records(&self) -> Vec<String> {
        let generation = self.shared.current();
        let ports: Vec<u16> = self.addresses().iter().map(SocketAddr::port).collect();
        https_records(&generation.config, &ports)
    }

    /// Status of the gateway, as JSON.
    pub fn status(&self) -> Value {
        let generation = self.shared.current();
        let back_ends: Vec<Value> = generation
            .back_ends()
            .iter()
            .map(|back_end| {
                json!({
                    "to": back_end.name(),
                    "well": back_end.is_well(),
                    "requests": back_end.in_flight(),
                    "protocol": back_end.protocol(),
                    "tls": back_end.is_tls(),
                    "fall_back": back_end.fall_back(),
                })
            })
            .collect();
        let certificates: Vec<Value> = generation
            .tls
            .ends
            .iter()
            .map(|(certificate, end)| {
                let days = (*end - crate::keys::now().cast_signed()) as f64 / 86_400.0;
                json!({"certificate": certificate, "days": (days * 10.0).round() / 10.0})
            })
            .collect();
        json!({
            "generation": generation.number,
            "process": self.number,
            "processes": self.siblings.to_json()
                .chain([json!({
                    "process": self.number,
                    "pid": std::process::id(),
                    "serving": !self.has_handed_over(),
                    "connections": self.open_connections(),
                })])
                .collect::<Vec<_>>(),
            "kernel_steering": self.kernel_steering(),
            "config": self.file.display().to_string(),
            "uptime_s": self.started.elapsed().as_secs(),
            "listen": self.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "metrics": self.metrics_address().map(|address| address.to_string()),
            "redirect_from": self.redirecting().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "workers": self.workers.count(),
            "sockets": self.workers.sockets(),
            "worker_panics": self.shared.panics.count(),
            "connections": self.shared.admission.total(),
            "version": env!("CARGO_PKG_VERSION"),
            "requests": self.shared.metrics.requests.open(),
            "memory": {"held": self.shared.memory.process().held(), "limit": self.shared.memory.process().limit()},
            "certificates": certificates,
            "back_ends": back_ends,
            "machines": self.shared.persistent.machines.to_json(),
            "machine_datagrams_dropped": self.shared.persistent.machines.dropped(self.socket_stats().proxied_dropped)
                .map(|(reason, count)| (reason.to_owned(), json!(count)))
                .collect::<serde_json::Map<_, _>>(),
            // Numbers and times, and no secret.
            "keys": self.shared.persistent.ring.keys().iter()
                .map(|key| json!({"id": key.id, "from": key.from, "until": key.until}))
                .collect::<Vec<_>>(),
        })
    }

    /// Open QUIC connections as JSON.
    pub fn connections(&self) -> Value {
        self.shared.persistent.captures.list()
    }

    /// Captures the connections of a client (`client`), or the one with an ID (`cid`), for this number of `seconds`, or until `stop` is
    /// ready; returns the result as JSON, with `error` and `hint` on failure.
    async fn capture(&self, order: &Value, stop: impl Future<Output = ()>) -> Value {
        let text = |name: &str| order[name].as_str();
        let who = match (text("client"), text("cid")) {
            (Some(client), None) => CaptureTarget::client(client),
            (None, Some(id)) => CaptureTarget::id(id),
            _ => Err("expected either a client or a connection ID".to_owned()),
        };
        let seconds = order["seconds"].as_f64().filter(|seconds| *seconds > 0.0);
        let time = Duration::try_from_secs_f64(seconds.unwrap_or(10.0)).unwrap_or(Duration::MAX);
        let config = self.shared.current().config.capture.clone();
        let done = match who {
            Err(wrong) => Err((wrong, "")),
            Ok(who) => self.shared.persistent.captures.run(&config, CaptureRequest { who, time }, stop).await,
        };
        done.unwrap_or_else(|(error, hint)| json!({"error": error, "hint": (!hint.is_empty()).then_some(hint)}))
    }

    /// Samples of connections, by policy and by whether they got it, for a comparison of the two.
    pub fn arms(&self) -> Value {
        json!({"gateway": self.instance(), "arms": self.shared.arms.to_json()})
    }

    /// Requests of clients from which HTTP/3 is withheld and of those to which it is offered, by policy and client.
    pub fn trials(&self) -> Value {
        json!({"gateway": self.instance(), "trials": self.shared.trials.to_json()})
    }

    /// Name of this process, by which a comparison of several gateways notices the same one twice.
    fn instance(&self) -> String {
        format!("{:032x}", self.shared.persistent.instance)
    }
}

impl admin::Operated for Process {
    async fn answer(self: &Arc<Self>, command: &str, order: &str, gone: impl Future<Output = ()> + Send) -> Value {
        match command {
            "status" => self.status(),
            "arms" => self.arms(),
            "trials" => self.trials(),
            "connections" => self.connections(),
            "capture" => match serde_json::from_str(order) {
                // Whoever hangs up has seen enough.
                Ok(order) => self.capture(&order, gone).await,
                Err(error) => json!({"error": format!("the order cannot be read: {error}")}),
            },
            "upgrade" => self.ordered_upgrade(order).await,
            "reload" => match self.reload().await {
                Ok(generation) => json!({"generation": generation}),
                Err(error) => json!({"error": error.to_string(), "hint": error.hint()}),
            },
            other => {
                let hint = "there are status, connections, capture, arms, trials, reload and upgrade";
                json!({"error": format!("there is no command `{other}`"), "hint": hint})
            }
        }
    }
}

/// The records of `config` for a service at these ports: one for each name and port. Names for which a policy withholds HTTP/3 are without
/// it: a client that learned of it from DNS would use it, whatever its arm.
pub fn https_records(config: &Config, ports: &[u16]) -> Vec<String> {
    let exact = |name: &&String| !name.starts_with('*');
    let mut names: Vec<&String> = config.routes.iter().flat_map(|route| &route.host.0).filter(exact).collect();
    names.sort();
    names.dedup();
    let withholding = Withholding::new(config);
    let record = |name: &str, port: u16| {
        let alpn = if config.http3.enabled && !withholding.concerns(name) { "h3,h2" } else { "h2" };
        match port {
            443 => format!("{name}. 3600 IN HTTPS 1 . alpn=\"{alpn}\""),
            _ => format!("_{port}._https.{name}. 3600 IN HTTPS 1 {name}. alpn=\"{alpn}\" port={port}"),
        }
    };
    let mut ports = ports.to_vec();
    ports.sort_unstable();
    ports.dedup();
    ports.iter().flat_map(|port| names.iter().map(|name| record(name, *port)).collect::<Vec<_>>()).collect()
}
