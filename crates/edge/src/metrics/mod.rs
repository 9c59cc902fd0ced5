//! Figures for Prometheus: those of requests, connections and operation here; of paths, with and without a policy, in `paths`; of
//! clients that fall back to TCP in `fallbacks`.

mod fallbacks;
mod paths;

pub(crate) use self::{
    fallbacks::FallbackMetrics,
    paths::{HandshakeLabels, PathMetrics, PolicyLabels, PolicyMetrics, Shown, handshake_kind},
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
    pub(crate) quic_early_data: Family<ReasonLabel, Counter>,
    pub(crate) early_data_register: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) ring_key: Gauge,
    pub(crate) quic_path_changes: Counter,
    pub(crate) quic_packets: Family<DirectionLabels, Counter>,
    pub(crate) quic_endpoint: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) quic_versions: Family<VersionLabel, Counter>,
    pub(crate) quic_repair: Family<ReasonLabel, Counter>,
    pub(crate) alt_svc_clients: Family<ResultLabels, Counter>,
    pub(crate) field_bytes: Family<FormLabels, Gauge<f64, AtomicU64>>,
    pub(crate) file_bytes: Family<SourceLabel, Gauge<f64, AtomicU64>>,
    pub(crate) file_memory: Gauge<f64, AtomicU64>,
    pub(crate) memory: Family<ReasonLabel, Gauge<f64, AtomicU64>>,
    pub(crate) memory_refused: Counter,
    pub(crate) memory_closed: Family<ReasonLabel, Counter>,
    pub(crate) streams_begun: Family<ProtocolLabel, Counter>,
    pub(crate) streams: Family<ResultLabels, Counter>,
    pub(crate) streams_in_flight: Family<ProtocolLabel, Gauge>,
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
        macro_rules! figure {
            ($name:literal, $help:literal, $figure:expr) => {{
                let figure = $figure;
                registry.register($name, $help, figure.clone());
                figure
            }};
        }
        let by_protocol = || ByProtocol::<Histogram>::new_with_constructor(seconds);
        Self {
            requests_begun: figure!(
                "requests_begun",
                "Requests whose header section was read: as many have ended (requests) or are in flight",
                Family::default()
            ),
            requests: figure!(
                "requests",
                "Requests that have ended, by protocol, route, class of status, and whose doing the end was: the whole answer's \
                 (answer), client's, back end's (back_end), gateway's, or a limit's",
                Family::default()
            ),
            request_seconds: figure!(
                "request_seconds",
                "Seconds from a request's fields to its end, without tunnels",
                by_protocol()
            ),
            first_byte_seconds: figure!(
                "first_byte_seconds",
                "Seconds from a request's fields to the fields of its answer",
                by_protocol()
            ),
            requests_in_flight: figure!(
                "requests_in_flight",
                "Requests that have begun and not ended",
                Family::default()
            ),
            content_bytes: figure!(
                "content_bytes",
                "Bytes of content of requests (in) and answers (out)",
                Family::default()
            ),
            connections: figure!("connections", "Connections of clients at the moment", Family::default()),
            connections_total: figure!(
                "connections_accepted",
                "Connections of clients since the start",
                Family::default()
            ),
            connections_refused: figure!("connections_refused", "Connections refused, by the limit", Family::default()),
            handshakes: figure!("tls_handshakes", "TLS handshakes on TCP, by result", Family::default()),
            connection_errors: figure!(
                "connection_errors",
                "Connections that ended by an error, by what was wrong",
                Family::default()
            ),
            back_end_requests: figure!("back_end_requests", "Requests to back ends, by result", Family::default()),
            back_end_up: figure!("back_end_up", "1 while the back end is well", Family::default()),
            retries: figure!("retries", "Requests tried again", Counter::default()),
            quic_early_data: figure!(
                "quic_early_data",
                "QUIC connections by what became of early data",
                Family::default()
            ),
            early_data_register: figure!(
                "early_data_register",
                "What the register of early data has answered since the start: first, again (refused), none (refused)",
                Family::default()
            ),
            ring_key: figure!("ring_key", "The number of the newest key of the ring", Gauge::default()),
            quic_path_changes: figure!("quic_path_changes", "Clients of QUIC that changed address", Counter::default()),
            quic_packets: figure!("quic_packets", "Packets of QUIC connections that have ended", Family::default()),
            quic_endpoint: figure!(
                "quic_endpoint",
                "What the QUIC endpoints have done that no connection reports, since the start",
                Family::default()
            ),
            quic_versions: figure!("quic_versions", "QUIC connections by version", Family::default()),
            quic_repair: figure!(
                "quic_repair",
                "Forward error correction of QUIC connections that have ended: packets it protected (protected), repair packets (sent), lost \
                 packets that the client has rebuilt (rebuilt_there), lost packets of clients rebuilt here (rebuilt_here)",
                Family::default()
            ),
            alt_svc_clients: figure!(
                "alt_svc_clients",
                "Clients by address to which HTTP/3 was advertised over TCP (advertised), that have used QUIC since (used), and that opened \
                 another connection over TCP at least a minute later (unused)",
                Family::default()
            ),
            field_bytes: figure!(
                "field_bytes",
                "Bytes of fields over HTTP/3 since the start, plain and compressed (with what fills the tables)",
                Family::default()
            ),
            file_bytes: figure!(
                "file_bytes",
                "Bytes of files since the start that came from the memory of the process (memory) and from the system (system)",
                Family::default()
            ),
            file_memory: figure!("file_memory_bytes", "Bytes of files in the memory of the process", Gauge::default()),
            memory: figure!(
                "memory_bytes",
                "Memory that clients make the process hold (held), and all that it may be (limit)",
                Family::default()
            ),
            memory_refused: figure!(
                "memory_refused",
                "Connections over TCP refused because memory was scarce",
                Counter::default()
            ),
            memory_closed: figure!(
                "memory_closed",
                "Connections over TCP closed because they held most when memory was used up",
                Family::default()
            ),
            streams_begun: figure!(
                "streams_begun",
                "Streams of other protocols: as many have ended (streams) or are in flight",
                Family::default()
            ),
            streams: figure!("streams", "Streams of other protocols that have ended, by result", Family::default()),
            streams_in_flight: figure!(
                "streams_in_flight",
                "Streams of other protocols that have begun and not ended",
                Family::default()
            ),
            reloads: figure!("reloads", "Reloads, by result", Family::default()),
            certificate_orders: figure!(
                "acme_orders",
                "Certificates asked for from an authority, by what came of it",
                Family::default()
            ),
            certificate_until: figure!(
                "acme_certificate_until_seconds",
                "When the certificate of the authority ends, in seconds since 1970",
                Gauge::default()
            ),
            paths: PathMetrics::register(&mut registry),
            policies: PolicyMetrics::register(&mut registry),
            fallbacks: FallbackMetrics::register(&mut registry),
            generation: figure!("generation", "The number of the configuration that is in use", Gauge::default()),
            log_lines_dropped: figure!(
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
        let code = [include_str!("mod.rs"), include_str!("paths.rs"), include_str!("fallbacks.rs")].concat();
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
