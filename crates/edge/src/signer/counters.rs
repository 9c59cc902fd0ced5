//! Counters of a signer.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use super::token::Logins;

/// Counters of a signer.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) signed: AtomicU64,
    pub(super) unknown_key: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Signatures that a token should have made.
    pub(super) failed: AtomicU64,
    /// Connections that were accepted with their TLS.
    pub(super) gateways: AtomicU64,
    /// Connections without a certificate that is accepted, or without TLS.
    pub(super) not_admitted: AtomicU64,
    pub(super) over_limit: AtomicU64,
    pub(super) malformed: AtomicU64,
    /// Open connections.
    pub(super) open: AtomicUsize,
    pub(super) logins: Arc<Logins>,
}

impl Counters {
    /// Counters beside the names of the keys, as JSON.
    pub(super) fn status(&self, keys: &[String]) -> Value {
        let Self { signed, unknown_key, refused, failed, gateways, not_admitted, over_limit, malformed, open, logins } =
            self;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "keys": keys,
            "gateways": {
                "open": open.load(Ordering::Relaxed),
                "accepted": get(gateways),
                "not_admitted": get(not_admitted),
                "over_limit": get(over_limit),
            },
            "signatures": {
                "signed": get(signed),
                "unknown_key": get(unknown_key),
                "refused": get(refused),
                "failed": get(failed),
                "malformed": get(malformed),
            },
            "token_logins": {
                "succeeded": get(&logins.succeeded),
                "failed": get(&logins.failed),
            },
        })
    }

    /// The metrics, in the text format of OpenMetrics.
    pub(super) fn text(&self) -> String {
        let Self { signed, unknown_key, refused, failed, gateways, not_admitted, over_limit, malformed, open, logins } =
            self;
        let mut page = String::new();
        let _ = write!(
            page,
            "# HELP tiderace_signer_gateways_open Connections of gateways.\n# TYPE tiderace_signer_gateways_open gauge\n"
        );
        let _ = writeln!(page, "tiderace_signer_gateways_open {}", open.load(Ordering::Relaxed));
        type Series<'a> = &'a [(&'a str, &'a AtomicU64)];
        let families: [(&str, &str, Series<'_>); 3] = [
            (
                "tiderace_signer_gateways",
                "Connections, by what came of them",
                &[("accepted", gateways), ("not_admitted", not_admitted), ("over_limit", over_limit)],
            ),
            (
                "tiderace_signer_requests",
                "Requests for signatures, by outcome",
                &[
                    ("signed", signed),
                    ("unknown_key", unknown_key),
                    ("refused", refused),
                    ("failed", failed),
                    ("malformed", malformed),
                ],
            ),
            (
                "tiderace_signer_token_logins",
                "Logins to the PKCS #11 token, by outcome",
                &[("succeeded", &logins.succeeded), ("failed", &logins.failed)],
            ),
        ];
        for (name, help, samples) in families {
            let _ = write!(page, "# HELP {name} {help}.\n# TYPE {name} counter\n");
            for (result, count) in samples {
                let _ = writeln!(page, "{name}_total{{result=\"{result}\"}} {}", count.load(Ordering::Relaxed));
            }
        }
        page.push_str("# EOF\n");
        page
    }
}
