//! Metrics of requests.

use std::{collections::BTreeMap, sync::OnceLock};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::ProtocolLabel;

/// A request's protocol, route and status class, and whose doing its end was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) protocol: &'static str,
    pub(crate) route: String,
    pub(crate) status: &'static str,
    pub(crate) ended_by: &'static str,
}

/// A limit: the route that it is of, or `all` for that of all routes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LimitLabel {
    pub(crate) limit: String,
}

/// A route, and the result of a request's password.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AuthenticationLabels {
    pub(crate) route: String,
    pub(crate) result: &'static str,
}

/// A direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DirectionLabels {
    pub(crate) protocol: &'static str,
    pub(crate) direction: &'static str,
}

type ByProtocol<M> = Family<ProtocolLabel, M, fn() -> M>;

fn seconds() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
}

/// Versions of HTTP, as labels say them.
const PROTOCOLS: [&str; 3] = ["http/1.1", "h2", "h3"];

/// Figures of the requests over one version of HTTP: looked up once, because each request counts in all of them.
pub(crate) struct ProtocolFigures {
    pub(crate) begun: Counter,
    pub(crate) seconds: Histogram,
    pub(crate) first_byte_seconds: Histogram,
    pub(crate) in_flight: Gauge,
    pub(crate) bytes_out: Counter,
}

/// Figures about requests, registered together.
pub(crate) struct RequestMetrics {
    begun: Family<ProtocolLabel, Counter>,
    pub(crate) ended: Family<RequestLabels, Counter>,
    seconds: ByProtocol<Histogram>,
    first_byte_seconds: ByProtocol<Histogram>,
    in_flight: Family<ProtocolLabel, Gauge>,
    content_bytes: Family<DirectionLabels, Counter>,
    of: [OnceLock<ProtocolFigures>; PROTOCOLS.len()],
    pub(crate) authentications: Family<AuthenticationLabels, Counter>,
    pub(crate) rate_limited: Family<LimitLabel, Counter>,
    pub(crate) rate_limit_clients: Family<LimitLabel, Gauge>,
}

impl RequestMetrics {
    /// Requests in flight, by version of HTTP.
    pub(crate) fn open(&self) -> BTreeMap<&'static str, i64> {
        let open = |protocol| (protocol, self.in_flight.get_or_create(&ProtocolLabel { protocol }).get());
        PROTOCOLS.map(open).into()
    }

    /// Figures of the requests over this version of HTTP.
    pub(crate) fn of(&self, protocol: &'static str) -> &ProtocolFigures {
        let place = PROTOCOLS.iter().position(|known| *known == protocol);
        debug_assert!(place.is_some(), "{protocol} is no version of HTTP");
        let place = place.unwrap_or_default();
        self.of[place].get_or_init(|| {
            let label = ProtocolLabel { protocol };
            ProtocolFigures {
                begun: self.begun.get_or_create(&label).clone(),
                seconds: self.seconds.get_or_create(&label).clone(),
                first_byte_seconds: self.first_byte_seconds.get_or_create(&label).clone(),
                in_flight: self.in_flight.get_or_create(&label).clone(),
                bytes_out: self.content_bytes.get_or_create(&DirectionLabels { protocol, direction: "out" }).clone(),
            }
        })
    }

    pub(super) fn register(registry: &mut Registry) -> Self {
        let by_protocol = || ByProtocol::<Histogram>::new_with_constructor(seconds);
        Self {
            begun: figure!(
                registry,
                "requests_begun",
                "Requests whose header section was read; equals requests ended plus requests in flight",
                Family::default()
            ),
            ended: figure!(
                registry,
                "requests",
                "Ended requests, by protocol, route, class of status, and cause of the end: complete answer (answer), client, back end \
                 (back_end), gateway, limit",
                Family::default()
            ),
            seconds: figure!(
                registry,
                "request_seconds",
                "Duration of requests from their header section to their end, without tunnels",
                by_protocol()
            ),
            first_byte_seconds: figure!(
                registry,
                "first_byte_seconds",
                "Time from the header section of a request to that of its response",
                by_protocol()
            ),
            in_flight: figure!(registry, "requests_in_flight", "Requests in flight", Family::default()),
            content_bytes: figure!(registry, "content_bytes", "Bytes of content of responses (out)", Family::default()),
            authentications: figure!(
                registry,
                "authentications",
                "Requests to routes with passwords, by result: verified, remembered, missing, wrong, limited, busy",
                Family::default()
            ),
            rate_limited: figure!(
                registry,
                "rate_limited_requests",
                "Requests refused by a rate limit, by limit: a route, or all routes (all)",
                Family::default()
            ),
            rate_limit_clients: figure!(
                registry,
                "rate_limit_clients",
                "Clients that a rate limit remembers",
                Family::default()
            ),
            of: Default::default(),
        }
    }
}
