//! Metrics of a gateway in the text format of Prometheus, and the service for `/metrics`.

use std::{sync::Arc, time::Instant};

use tokio::net::TcpListener;

use super::Process;
use crate::metrics::{CertificateLabel, FormLabels, LimitLabel, Metrics, ReasonLabel, SourceLabel, service};

impl Process {
    /// The metrics, which outlive the gateway: its books can be looked at when everything has ended.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.shared.metrics.clone()
    }

    /// The figures, in Prometheus' text format.
    pub fn figures(&self) -> String {
        let metrics = &self.shared.metrics;
        self.shared.fallbacks.count(Instant::now(), &metrics.fallbacks);
        let sum = self.listeners.stats();
        let counts = [
            ("dropped", sum.dropped),
            ("version_negotiations", sum.version_negotiations),
            ("retries", sum.retries),
            ("resets", sum.resets),
            ("refused", sum.refused),
            ("overloaded", sum.overloaded),
            ("forwarded", sum.forwarded),
            ("connections", sum.connections),
            ("tokens_invalid", sum.tokens_invalid),
            ("tokens_unjudged", sum.tokens_unjudged),
            ("refused_for_memory", sum.refused_for_memory),
            ("closed_over_budget", sum.closed_over_budget),
            ("closed_for_process", sum.closed_for_process),
        ];
        self.count_siblings();
        for (reason, count) in counts {
            metrics.quic.endpoint.get_or_create(&ReasonLabel { reason }).set(count as f64);
        }
        let answers = &self.shared.persistent.strikes.answers;
        for (reason, count) in [("first", &answers.first), ("again", &answers.again), ("none", &answers.none)] {
            let count = count.load(std::sync::atomic::Ordering::Relaxed);
            metrics.quic.early_data_register.get_or_create(&ReasonLabel { reason }).set(count as f64);
        }
        let compression = &self.shared.compression;
        for (direction, volume) in [("in", &compression.received), ("out", &compression.sent)] {
            for (form, bytes) in [("plain", volume.plain()), ("compressed", volume.compressed())] {
                metrics.field_bytes.get_or_create(&FormLabels { direction, form }).set(bytes as f64);
            }
        }
        let files = &self.shared.persistent.files;
        for (source, bytes) in [("memory", &files.sources.memory), ("system", &files.sources.system)] {
            let bytes = bytes.load(std::sync::atomic::Ordering::Relaxed);
            metrics.file_bytes.get_or_create(&SourceLabel { source }).set(bytes as f64);
        }
        metrics.file_memory.set(files.held() as f64);
        let memory = self.shared.memory.process();
        for (reason, bytes) in [("held", memory.held()), ("limit", memory.limit())] {
            metrics.memory.bytes.get_or_create(&ReasonLabel { reason }).set(bytes as f64);
        }
        metrics.process.refresh();
        let generation = self.shared.current();
        metrics.certificates.days.clear();
        for (certificate, end) in &generation.tls.ends {
            let days = (*end - crate::keys::now().cast_signed()) as f64 / 86_400.0;
            metrics.certificates.days.get_or_create(&CertificateLabel { certificate: certificate.clone() }).set(days);
        }
        metrics.requests.rate_limit_clients.clear();
        for (key, limit) in &generation.rates {
            let clients = i64::try_from(limit.clients()).unwrap_or(i64::MAX);
            metrics.requests.rate_limit_clients.get_or_create(&LimitLabel { limit: key.label() }).set(clients);
        }
        let newest = self.shared.persistent.ring.keys().iter().map(|key| key.id).max().unwrap_or(0);
        metrics.ring_key.set(newest.into());
        metrics.render()
    }
}

/// Serves the figures until the task ends.
pub(super) async fn serve_metrics(listener: TcpListener, process: Arc<Process>) {
    service::serve(listener, move || process.figures()).await;
}
