//! Report of the cause of a fall-back to an origin that asks for it in `alt-svc`: the gateway sees that a client uses TCP, and only the
//! client knows the cause.
//!
//! The report is one word, in the field `quic-fallback` of the next request to the origin over TCP, once for each verdict. Origins that do
//! not ask receive no report. A report is sent only in the network of its verdict.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use http::HeaderName;

use crate::{alt_svc, local, memory::Network, race::Verdict};

/// The field.
pub(crate) const FIELD: HeaderName = HeaderName::from_static("quic-fallback");
/// Origins that are remembered at most.
const REMEMBERED: usize = 1_000;

/// Report that an origin has requested and not received.
#[derive(Clone, Copy, Debug)]
struct Report {
    asked: bool,
    /// Word of the report, its network, and the address of the origin.
    due: Option<(&'static str, Network, SocketAddr)>,
}

/// Reports by origin.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<HashMap<String, Report>>);

/// Word for a verdict; `None` without a fall-back.
fn word(verdict: Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Blocked { .. } => Some("blocked"),
        Verdict::BadPath => Some("bad-path"),
        Verdict::Refused => Some("refused"),
        // That QUIC was not tried because of an earlier verdict was told with that.
        Verdict::Works | Verdict::Slower { .. } | Verdict::NotTried(_) | Verdict::Unreachable => None,
    }
}

impl Reports {
    fn change(&self, origin: &str, change: impl FnOnce(&mut Report)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED && !all.contains_key(origin) {
            all.clear();
        }
        change(all.entry(origin.to_owned()).or_insert(Report { asked: false, due: None }));
    }

    /// Takes the value of an `alt-svc` field.
    pub(crate) fn hear(&self, origin: &str, value: &str) {
        let asked = alt_svc::http3(value).is_some_and(|said| said.wants_reports);
        self.change(origin, |report| report.asked = asked);
    }

    /// Stores a verdict about a network, on the route to `remote`.
    pub(crate) fn learn(&self, origin: &str, verdict: Verdict, network: Network, remote: SocketAddr) {
        let due = word(verdict).map(|word| (word, network, remote));
        if due.is_some() || matches!(verdict, Verdict::Works | Verdict::Slower { .. }) {
            self.change(origin, |report| report.due = due);
        }
    }

    /// Takes the report for a request over TCP that is about to leave; once.
    pub(crate) fn take(&self, origin: &str) -> Option<&'static str> {
        self.take_in(origin, |remote| local::local_address(remote).map(Network))
    }

    fn take_in(&self, origin: &str, network_to: impl Fn(SocketAddr) -> Option<Network>) -> Option<&'static str> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let report = all.get_mut(origin).filter(|report| report.asked)?;
        let (word, network, remote) = report.due.take()?;
        (network_to(remote) == Some(network)).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKS: &str = r#"h3=":443"; ma=60; fallback-reports=1"#;

    #[test]
    fn who_asks_is_told_once_and_only_about_the_network() {
        let reports = Reports::default();
        let network = |last: u8| Network([192, 0, 2, last].into());
        let remote: SocketAddr = "203.0.113.1:443".parse().unwrap();
        let take = |origin: &str| reports.take_in(origin, |_| Some(network(1)));
        for origin in ["asks", "does not", "elsewhere", "works again"] {
            reports.hear(origin, if origin == "does not" { r#"h3=":443""# } else { ASKS });
            let of = network(if origin == "elsewhere" { 2 } else { 1 });
            reports.learn(origin, Verdict::BadPath, of, remote);
        }
        reports.learn("works again", Verdict::Works, network(1), remote);
        assert_eq!(take("asks"), Some("bad-path"));
        assert_eq!(take("asks"), None);
        for origin in ["does not", "elsewhere", "works again", "unknown"] {
            assert_eq!(take(origin), None, "{origin}");
        }
        for number in 0..5_000 {
            reports.hear(&number.to_string(), ASKS);
        }
        assert!(reports.0.lock().unwrap().len() <= REMEMBERED);
    }
}
