//! Metrics for Prometheus: connections and operation in this file, other subjects in a file each.

/// Registers a figure under its name, with its help.
macro_rules! figure {
    ($registry:expr, $name:literal, $help:literal, $figure:expr) => {{
        let figure = $figure;
        $registry.register($name, $help, figure.clone());
        figure
    }};
}

mod back_ends;
mod certificates;
mod fallbacks;
mod memory;
mod other_machines;
mod paths;
mod process;
mod quic;
mod requests;
pub(crate) mod service;
mod signatures;
mod streams;
mod tunnels;
mod upgrade;

pub(crate) use self::{
    back_ends::{BackEndLabel, BackEndMetrics, BackEndReason, BackEndResult, NameResult},
    certificates::{CertificateLabel, CertificateMetrics},
    fallbacks::FallbackMetrics,
    memory::MemoryMetrics,
    other_machines::{MachineLabel, MachineLabels, OtherMachineMetrics},
    paths::{HandshakeLabels, PathMetrics, PolicyLabels, PolicyMetrics, Shown, handshake_kind},
    process::ProcessMetrics,
    quic::QuicMetrics,
    requests::{AuthenticationLabels, DirectionLabels, LimitLabel, RequestLabels, RequestMetrics},
    signatures::{LinkState, SignatureMetrics},
    streams::StreamMetrics,
    tunnels::{DropLabels, KindReasonLabels, TunnelCounters, TunnelKind, TunnelMetrics},
    upgrade::{ProcessLabel, UpgradeMetrics},
};

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{
        EncodeLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ProtocolLabel {
    pub(crate) protocol: &'static str,
}

/// A protocol and a result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabels {
    pub(crate) protocol: &'static str,
    pub(crate) result: &'static str,
}

/// A reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub(crate) reason: &'static str,
}

/// A version of QUIC, as in RFC 9000 (`1`) and RFC 9369 (`2`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct VersionLabel {
    pub(crate) version: &'static str,
}

/// A direction, and how bytes are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FormLabels {
    pub(crate) direction: &'static str,
    pub(crate) form: &'static str,
}

/// Source of a file's content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SourceLabel {
    pub(crate) source: &'static str,
}

/// All figures of the process. They outlive reloads.
pub struct Metrics {
    registry: Registry,
    pub(crate) process: ProcessMetrics,
    pub(crate) requests: RequestMetrics,
    pub(crate) connections: Family<ProtocolLabel, Gauge>,
    pub(crate) connections_total: Family<ProtocolLabel, Counter>,
    pub(crate) connections_refused: Family<ReasonLabel, Counter>,
    pub(crate) redirected: Counter,
    pub(crate) handshakes: Family<ResultLabels, Counter>,
    pub(crate) client_certificates: Family<ReasonLabel, Counter>,
    pub(crate) connection_errors: Family<ResultLabels, Counter>,
    pub(crate) back_ends: BackEndMetrics,
    pub(crate) ring_key: Gauge,
    pub(crate) quic: QuicMetrics,
    pub(crate) alt_svc_clients: Family<ResultLabels, Counter>,
    pub(crate) field_bytes: Family<FormLabels, Gauge<f64, AtomicU64>>,
    pub(crate) file_bytes: Family<SourceLabel, Gauge<f64, AtomicU64>>,
    pub(crate) file_memory: Gauge<f64, AtomicU64>,
    pub(crate) memory: MemoryMetrics,
    pub(crate) streams: StreamMetrics,
    pub(crate) tunnels: TunnelMetrics,
    pub(crate) reloads: Family<ReasonLabel, Counter>,
    pub(crate) certificates: CertificateMetrics,
    pub(crate) paths: PathMetrics,
    pub(crate) policies: PolicyMetrics,
    pub(crate) fallbacks: FallbackMetrics,
    pub(crate) upgrade: UpgradeMetrics,
    pub(crate) other_machines: OtherMachineMetrics,
    pub(crate) generation: Gauge,
    pub(crate) log_lines_dropped: Counter,
    pub(crate) signatures: SignatureMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tiderace_edge");
        registry.register("build", "The version of the program", process::build());
        Self {
            process: ProcessMetrics::new(),
            requests: RequestMetrics::register(&mut registry),
            connections: figure!(registry, "connections", "Connections of clients at the moment", Family::default()),
            connections_total: figure!(
                registry,
                "connections_accepted",
                "Connections of clients since the start",
                Family::default()
            ),
            connections_refused: figure!(
                registry,
                "connections_refused",
                "Refused connections, by limit",
                Family::default()
            ),
            redirected: figure!(
                registry,
                "redirected_requests",
                "Plain HTTP requests redirected to the same URL with https",
                Counter::default()
            ),
            handshakes: figure!(registry, "tls_handshakes", "TLS handshakes on TCP, by result", Family::default()),
            client_certificates: figure!(
                registry,
                "client_certificates",
                "Connections with a request for a client certificate, by result: verified, none, missing or invalid (refused)",
                Family::default()
            ),
            connection_errors: figure!(
                registry,
                "connection_errors",
                "Connections that ended by an error, by cause",
                Family::default()
            ),
            back_ends: BackEndMetrics::register(&mut registry),
            signatures: SignatureMetrics::register(&mut registry),
            ring_key: figure!(registry, "ring_key", "The number of the newest key of the ring", Gauge::default()),
            quic: QuicMetrics::register(&mut registry),
            alt_svc_clients: figure!(
                registry,
                "alt_svc_clients",
                "Clients (addresses) that received alt-svc over TCP (advertised), that have used QUIC since (used), and that opened another \
                 TCP connection at least a minute later (unused)",
                Family::default()
            ),
            field_bytes: figure!(
                registry,
                "field_bytes",
                "Bytes of HTTP/3 fields since the start, plain and compressed (with the encoder stream)",
                Family::default()
            ),
            file_bytes: figure!(
                registry,
                "file_bytes",
                "Bytes of files sent since the start, by source: cache of the process (memory), system (system)",
                Family::default()
            ),
            file_memory: figure!(
                registry,
                "file_memory_bytes",
                "Bytes of files in the cache of the process",
                Gauge::default()
            ),
            memory: MemoryMetrics::register(&mut registry),
            streams: StreamMetrics::register(&mut registry),
            tunnels: TunnelMetrics::register(&mut registry),
            reloads: figure!(registry, "reloads", "Reloads, by result", Family::default()),
            certificates: CertificateMetrics::register(&mut registry),
            paths: PathMetrics::register(&mut registry),
            policies: PolicyMetrics::register(&mut registry),
            fallbacks: FallbackMetrics::register(&mut registry),
            upgrade: UpgradeMetrics::register(&mut registry),
            other_machines: OtherMachineMetrics::register(&mut registry),
            generation: figure!(registry, "generation", "Number of the configuration in use", Gauge::default()),
            log_lines_dropped: figure!(
                registry,
                "log_lines_dropped",
                "Lines of the access log that were lost: its queue was full, or they could not be written",
                Counter::default()
            ),
            registry,
        }
    }
}

impl Metrics {
    /// All figures in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &self.process.registry))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_text_has_one_end_and_the_figures_of_the_process() {
        let metrics = super::Metrics::default();
        metrics.process.refresh();
        let text = metrics.render();
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
        let version = env!("CARGO_PKG_VERSION");
        assert!(text.contains(&format!("tiderace_edge_build_info{{version=\"{version}\"")), "{text}");
        for name in ["resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds", "cpu_seconds_total"] {
            assert!(text.contains(&format!("\nprocess_{name} ")), "{name}");
        }
    }

    #[test]
    fn every_figure_of_the_dashboard_and_the_rules_exists() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/");
        // Figures without a value are not rendered.
        let sources = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics")).unwrap();
        let code: String = sources.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
        for file in ["grafana/tiderace-edge.json", "prometheus/rules.yml"] {
            let text = std::fs::read_to_string(format!("{root}{file}")).unwrap();
            for part in text.split("tiderace_edge_").skip(1) {
                let name: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                let name = name.trim_end_matches("_total").trim_end_matches("_bucket").trim_end_matches("_count");
                assert!(code.contains(&format!("\"{name}\"")), "{file} asks for {name}");
            }
        }
    }
}
