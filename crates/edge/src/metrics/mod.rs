//! Figures for Prometheus: those of requests, connections and operation here; of paths, with and without a policy, in `paths`; of
//! clients that fall back to TCP in `fallbacks`.

/// Registers a figure under its name, with its help.
macro_rules! figure {
    ($registry:expr, $name:literal, $help:literal, $figure:expr) => {{
        let figure = $figure;
        $registry.register($name, $help, figure.clone());
        figure
    }};
}

mod fallbacks;
mod memory;
mod paths;
mod quic;
mod streams;

pub(crate) use self::{
    fallbacks::FallbackMetrics,
    memory::MemoryMetrics,
    paths::{HandshakeLabels, PathMetrics, PolicyLabels, PolicyMetrics, Shown, handshake_kind},
    quic::QuicMetrics,
    streams::StreamMetrics,
};

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// A request's protocol, route and status class, and whose doing its end was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) protocol: &'static str,
    pub(crate) route: String,
    pub(crate) status: &'static str,
    pub(crate) ended_by: &'static str,
}

/// A protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ProtocolLabel {
    pub(crate) protocol: &'static str,
}

/// A protocol and what came of it.
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

/// A back end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BackEndLabel {
    pub(crate) back_end: String,
}

/// A back end and what came of a request to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BackEndResult {
    pub(crate) back_end: String,
    pub(crate) result: &'static str,
}

/// A direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DirectionLabels {
    pub(crate) protocol: &'static str,
    pub(crate) direction: &'static str,
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

type ByProtocol<M> = Family<ProtocolLabel, M, fn() -> M>;

/// All figures of the process. They outlive reloads.
pub struct Metrics {
    registry: Registry,
    pub(crate) requests_begun: Family<ProtocolLabel, Counter>,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) request_seconds: ByProtocol<Histogram>,
    pub(crate) first_byte_seconds: ByProtocol<Histogram>,
    pub(crate) requests_in_flight: Family<ProtocolLabel, Gauge>,
    pub(crate) content_bytes: Family<DirectionLabels, Counter>,
    pub(crate) connections: Family<ProtocolLabel, Gauge>,
    pub(crate) connections_total: Family<ProtocolLabel, Counter>,
    pub(crate) connections_refused: Family<ReasonLabel, Counter>,
    pub(crate) handshakes: Family<ResultLabels, Counter>,
    pub(crate) connection_errors: Family<ResultLabels, Counter>,
    pub(crate) back_end_requests: Family<BackEndResult, Counter>,
    pub(crate) back_end_up: Family<BackEndLabel, Gauge>,
    pub(crate) retries: Counter,
    pub(crate) ring_key: Gauge,
    pub(crate) quic: QuicMetrics,
    pub(crate) alt_svc_clients: Family<ResultLabels, Counter>,
    pub(crate) field_bytes: Family<FormLabels, Gauge<f64, AtomicU64>>,
    pub(crate) file_bytes: Family<SourceLabel, Gauge<f64, AtomicU64>>,
    pub(crate) file_memory: Gauge<f64, AtomicU64>,
    pub(crate) memory: MemoryMetrics,
    pub(crate) streams: StreamMetrics,
    pub(crate) reloads: Family<ReasonLabel, Counter>,
    pub(crate) certificate_orders: Family<ReasonLabel, Counter>,
    pub(crate) certificate_until: Gauge,
    pub(crate) paths: PathMetrics,
    pub(crate) policies: PolicyMetrics,
    pub(crate) fallbacks: FallbackMetrics,
    pub(crate) generation: Gauge,
    pub(crate) log_lines_dropped: Counter,
}

fn seconds() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tiderace_edge");
        let by_protocol = || ByProtocol::<Histogram>::new_with_constructor(seconds);
        Self {
            requests_begun: figure!(
                registry,
                "requests_begun",
                "Requests whose header section was read: as many have ended (requests) or are in flight",
                Family::default()
            ),
            requests: figure!(
                registry,
                "requests",
                "Requests that have ended, by protocol, route, class of status, and whose doing the end was: the whole answer's \
                 (answer), client's, back end's (back_end), gateway's, or a limit's",
                Family::default()
            ),
            request_seconds: figure!(
                registry,
                "request_seconds",
                "Seconds from a request's fields to its end, without tunnels",
                by_protocol()
            ),
            first_byte_seconds: figure!(
                registry,
                "first_byte_seconds",
                "Seconds from a request's fields to the fields of its answer",
                by_protocol()
            ),
            requests_in_flight: figure!(
                registry,
                "requests_in_flight",
                "Requests that have begun and not ended",
                Family::default()
            ),
            content_bytes: figure!(
                registry,
                "content_bytes",
                "Bytes of content of requests (in) and answers (out)",
                Family::default()
            ),
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
                "Connections refused, by the limit",
                Family::default()
            ),
            handshakes: figure!(registry, "tls_handshakes", "TLS handshakes on TCP, by result", Family::default()),
            connection_errors: figure!(
                registry,
                "connection_errors",
                "Connections that ended by an error, by what was wrong",
                Family::default()
            ),
            back_end_requests: figure!(
                registry,
                "back_end_requests",
                "Requests to back ends, by result",
                Family::default()
            ),
            back_end_up: figure!(registry, "back_end_up", "1 while the back end is well", Family::default()),
            retries: figure!(registry, "retries", "Requests tried again", Counter::default()),
            ring_key: figure!(registry, "ring_key", "The number of the newest key of the ring", Gauge::default()),
            quic: QuicMetrics::register(&mut registry),
            alt_svc_clients: figure!(
                registry,
                "alt_svc_clients",
                "Clients by address to which HTTP/3 was advertised over TCP (advertised), that have used QUIC since (used), and that opened \
                 another connection over TCP at least a minute later (unused)",
                Family::default()
            ),
            field_bytes: figure!(
                registry,
                "field_bytes",
                "Bytes of fields over HTTP/3 since the start, plain and compressed (with what fills the tables)",
                Family::default()
            ),
            file_bytes: figure!(
                registry,
                "file_bytes",
                "Bytes of files since the start that came from the memory of the process (memory) and from the system (system)",
                Family::default()
            ),
            file_memory: figure!(
                registry,
                "file_memory_bytes",
                "Bytes of files in the memory of the process",
                Gauge::default()
            ),
            memory: MemoryMetrics::register(&mut registry),
            streams: StreamMetrics::register(&mut registry),
            reloads: figure!(registry, "reloads", "Reloads, by result", Family::default()),
            certificate_orders: figure!(
                registry,
                "acme_orders",
                "Certificates asked for from an authority, by what came of it",
                Family::default()
            ),
            certificate_until: figure!(
                registry,
                "acme_certificate_until_seconds",
                "When the certificate of the authority ends, in seconds since 1970",
                Gauge::default()
            ),
            paths: PathMetrics::register(&mut registry),
            policies: PolicyMetrics::register(&mut registry),
            fallbacks: FallbackMetrics::register(&mut registry),
            generation: figure!(
                registry,
                "generation",
                "The number of the configuration that is in use",
                Gauge::default()
            ),
            log_lines_dropped: figure!(
                registry,
                "log_lines_dropped",
                "Lines of the access log that found no room",
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
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_figure_of_the_dashboard_and_the_rules_exists() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/");
        // Figures without a value are not rendered.
        let code = [
            include_str!("mod.rs"),
            include_str!("paths.rs"),
            include_str!("quic.rs"),
            include_str!("memory.rs"),
            include_str!("streams.rs"),
            include_str!("fallbacks.rs"),
        ]
        .concat();
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
