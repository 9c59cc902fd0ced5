//! Metrics of the gateway's own certificates.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::ReasonLabel;

/// A certificate: its file, or `acme`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CertificateLabel {
    pub(crate) certificate: String,
}

/// Orders of certificates by ACME, and the ends of validity of all.
pub(crate) struct CertificateMetrics {
    pub(crate) orders: Family<ReasonLabel, Counter>,
    pub(crate) acme_until: Gauge,
    pub(crate) days: Family<CertificateLabel, Gauge<f64, AtomicU64>>,
}

impl CertificateMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            orders: figure!(registry, "acme_orders", "Orders of ACME certificates, by result", Family::default()),
            acme_until: figure!(
                registry,
                "acme_certificate_until_seconds",
                "End of validity of the ACME certificate, in seconds since 1970",
                Gauge::default()
            ),
            days: figure!(
                registry,
                "certificate_days",
                "Days until a certificate chain expires; negative after that",
                Family::default()
            ),
        }
    }
}
