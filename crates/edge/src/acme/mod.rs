//! Certificates from an authority (ACME, RFC 8555): ordered when there is none, and renewed in time.
//!
//! `order` is the exchange with the authority, `error` the causes of its failure; `store` keeps account, keys and certificates in a folder
//! for its owner only. The authority validates the names by TLS-ALPN-01 (RFC 8737): the gateway presents a special certificate at the
//! addresses that it serves anyway. A new certificate replaces the old one like every changed certificate. A failure changes nothing.

mod error;
mod order;
mod store;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use rustls::{server::ClientHello, sign::CertifiedKey};

pub(crate) use self::store::file;
use self::{
    error::OrderError,
    store::{Validity, load},
};
use crate::{
    config::Acme,
    metrics::{Metrics, ReasonLabel},
};

/// Protocol of a validation by the authority (RFC 8737 §6.2).
pub(crate) const ALPN: &[u8] = b"acme-tls/1";

/// Interval between checks whether a certificate is due.
const LOOK: Duration = Duration::from_secs(2);
/// The first wait after a failure; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// The longest wait after a failure: authorities count them.
const LONGEST_WAIT: Duration = Duration::from_secs(6 * 3_600);
/// An order takes no longer than this.
const PATIENCE: Duration = Duration::from_secs(300);

/// Certificates for the validation that a name leads here, by name; and the last one from an authority that was good.
#[derive(Debug, Default)]
pub(crate) struct Challenges {
    shown: RwLock<HashMap<String, Arc<CertifiedKey>>>,
    last: Mutex<Option<(PathBuf, Arc<CertifiedKey>)>>,
}

/// A certificate that is shown until this is dropped.
struct Shown {
    challenges: Arc<Challenges>,
    name: String,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.challenges.shown.write().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

impl Challenges {
    /// Returns whether this is a TLS-ALPN-01 validation.
    pub(crate) fn is_look(hello: &ClientHello<'_>) -> bool {
        hello.alpn().is_some_and(|mut names| names.next() == Some(ALPN) && names.next().is_none())
    }

    pub(crate) fn answer(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        self.shown.read().unwrap_or_else(PoisonError::into_inner).get(&name).cloned()
    }

    /// The certificate from an authority. When what is kept cannot be read, the last one that could.
    pub(crate) fn certificate(&self, config: &Acme) -> Option<Arc<CertifiedKey>> {
        let file = file(config)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match load(config) {
            Some(Ok(key)) => *last = Some((file.clone(), Arc::new(key))),
            Some(Err(error)) => tracing::error!("the certificate of the authority cannot be used: {error}"),
            None => {}
        }
        last.as_ref().filter(|(of, _)| *of == file).map(|(_, key)| key.clone())
    }

    fn show(self: &Arc<Self>, name: &str, certificate: Arc<CertifiedKey>) -> Shown {
        let name = name.to_ascii_lowercase();
        self.shown.write().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), certificate);
        Shown { challenges: self.clone(), name }
    }
}

/// Reason to request a certificate now; `None` when none is due.
fn due(config: &Acme, now: SystemTime) -> Option<&'static str> {
    let Ok(validity) = store::validity(config) else { return Some("there is none that can be used") };
    if !validity.is_for(&config.names.0) {
        return Some("it is for other names");
    }
    (now >= renewal(&validity, config.renew_before.0)).then_some("it ends soon")
}

/// Time of renewal: as long before the certificate's end as is configured, but at the earliest when a third of its life is left.
fn renewal(validity: &Validity, before: Duration) -> SystemTime {
    let life = validity.until.duration_since(validity.from).unwrap_or_default();
    validity.until - before.min(life / 3)
}

/// Orders certificates when they are due, under the configuration that `current` returns. Does not end.
pub(crate) async fn keep(current: impl Fn() -> Acme, challenges: &Arc<Challenges>, metrics: &Metrics) {
    let mut wait = FIRST_WAIT;
    let mut not_before: Option<Instant> = None;
    let mut last: Option<Acme> = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let config = current();
        if config.names.0.is_empty() {
            continue;
        }
        // Another configuration gets its chance at once.
        if last.as_ref() != Some(&config) {
            (wait, not_before) = (FIRST_WAIT, None);
            last = Some(config.clone());
        }
        if let Ok(validity) = store::validity(&config) {
            let until = validity.until.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
            metrics.certificates.acme_until.set(until.cast_signed());
        }
        let Some(why) = due(&config, SystemTime::now()).filter(|_| not_before.is_none_or(|at| at <= Instant::now()))
        else {
            continue;
        };
        tracing::info!("a certificate for {} is asked for: {why}", config.names.0.join(", "));
        let ordered = tokio::time::timeout(PATIENCE, order::order(&config, challenges)).await;
        let outcome = ordered.unwrap_or_else(|_| Err(OrderError::Late(PATIENCE)));
        let reason = if outcome.is_ok() { "completed" } else { "failed" };
        metrics.certificates.orders.get_or_create(&ReasonLabel { reason }).inc();
        match outcome {
            Ok(()) => {
                tracing::info!("a certificate for {} has come", config.names.0.join(", "));
                (wait, not_before) = (FIRST_WAIT, None);
            }
            Err(error) => {
                tracing::error!("no certificate from {}, next try in {} s: {error}", config.directory, wait.as_secs());
                not_before = Some(Instant::now() + wait);
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewed_in_time_whatever_the_life() {
        let day = Duration::from_secs(86_400);
        let from = SystemTime::UNIX_EPOCH;
        for (days, before, expected) in [(90, 30, 60), (90, 10, 80), (90, 80, 60), (6, 30, 4)] {
            let validity = Validity { from, until: from + day * days, names: Vec::new() };
            assert_eq!(renewal(&validity, day * before), from + day * expected, "{days} {before}");
        }
    }

    #[test]
    fn without_a_good_certificate_one_is_due() {
        let config = Acme { folder: "/nowhere".to_owned(), ..Acme::default() };
        assert!(due(&config, SystemTime::now()).is_some());
    }
}
