//! HTTPS records (RFC 9460), and the choice among them. Sends no query.

use std::net::{IpAddr, SocketAddr};

use hickory_resolver::proto::rr::rdata::svcb::{SVCB, SvcParamKey, SvcParamValue};

/// A place where a service is to be had: an HTTPS record in service mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The smaller, the better; never 0, which is an alias.
    pub priority: u16,
    /// Host that has the addresses, without a trailing dot; `None` for the requested name.
    pub target: Option<String>,
    /// The port, if it is another one than the URL's.
    pub port: Option<u16>,
    /// Protocols in TLS, the default one included.
    pub alpn: Vec<String>,
    /// Addresses that may be used until the target's addresses are known.
    pub hints: Vec<IpAddr>,
}

/// Content of one HTTPS record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordContent {
    /// Look there.
    Alias(String),
    /// A service.
    Offer(Offer),
    /// Mandatory parameter that this client does not know.
    Foreign,
}

/// Parameters that this client knows (RFC 9460 §14.3.2).
fn is_known(key: &SvcParamKey) -> bool {
    matches!(
        key,
        SvcParamKey::Mandatory
            | SvcParamKey::Alpn
            | SvcParamKey::NoDefaultAlpn
            | SvcParamKey::Port
            | SvcParamKey::Ipv4Hint
            | SvcParamKey::Ipv6Hint
    )
}

/// Reads one record.
pub(super) fn read(record: &SVCB) -> RecordContent {
    let target = record.target_name.to_ascii();
    let target = target.trim_end_matches('.').to_ascii_lowercase();
    if record.svc_priority == 0 {
        // RFC 9460 §2.5.1: an alias to the root says that there is no service.
        return if target.is_empty() { RecordContent::Foreign } else { RecordContent::Alias(target) };
    }
    let mut offer = Offer {
        priority: record.svc_priority,
        target: (!target.is_empty()).then_some(target),
        port: None,
        alpn: Vec::new(),
        hints: Vec::new(),
    };
    let mut default = true;
    for (key, value) in &record.svc_params {
        match value {
            // RFC 9460 §8: a record with a mandatory parameter that is not known is not used.
            SvcParamValue::Mandatory(keys) if !keys.0.iter().all(is_known) => return RecordContent::Foreign,
            SvcParamValue::Alpn(alpn) => offer.alpn.extend(alpn.0.iter().cloned()),
            SvcParamValue::Port(port) => offer.port = Some(*port),
            SvcParamValue::Ipv4Hint(hints) => offer.hints.extend(hints.0.iter().map(|hint| IpAddr::V4(hint.0))),
            SvcParamValue::Ipv6Hint(hints) => offer.hints.extend(hints.0.iter().map(|hint| IpAddr::V6(hint.0))),
            _ => default &= *key != SvcParamKey::NoDefaultAlpn,
        }
    }
    // RFC 9460 §9.5: HTTP/1.1 is what every https service speaks unless it says otherwise.
    if default {
        offer.alpn.push("http/1.1".to_owned());
    }
    RecordContent::Offer(offer)
}

impl Offer {
    /// Returns whether the record offers HTTP/3.
    pub fn has_http3(&self) -> bool {
        self.alpn.iter().any(|name| name == "h3")
    }

    /// Returns whether the record offers HTTP over TCP.
    pub fn has_tcp(&self) -> bool {
        self.alpn.iter().any(|name| name == "h2" || name == "http/1.1")
    }

    /// Addresses of the offer, by its hints.
    pub(super) fn hinted(&self, port: u16) -> Vec<SocketAddr> {
        let port = self.port.unwrap_or(port);
        self.hints.iter().map(|ip| SocketAddr::new(*ip, port)).collect()
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::rr::{
        Name,
        rdata::svcb::{Alpn, IpHint, Mandatory},
    };

    use super::*;

    fn record(priority: u16, target: &str, params: Vec<(SvcParamKey, SvcParamValue)>) -> SVCB {
        SVCB::new(priority, Name::from_ascii(target).unwrap(), params)
    }

    fn alpn(names: &[&str]) -> (SvcParamKey, SvcParamValue) {
        (SvcParamKey::Alpn, SvcParamValue::Alpn(Alpn(names.iter().map(|name| (*name).to_owned()).collect())))
    }

    #[test]
    fn records_are_read() {
        assert_eq!(read(&record(0, "Svc.Example.", vec![])), RecordContent::Alias("svc.example".to_owned()));
        assert_eq!(read(&record(0, ".", vec![])), RecordContent::Foreign);
        let hint = SvcParamValue::Ipv4Hint(IpHint(vec!["192.0.2.1".parse().unwrap()]));
        let said = read(&record(
            1,
            ".",
            vec![alpn(&["h3", "h2"]), (SvcParamKey::Port, SvcParamValue::Port(8_443)), (SvcParamKey::Ipv4Hint, hint)],
        ));
        let RecordContent::Offer(offer) = said else { panic!("{said:?}") };
        assert_eq!(
            (offer.target.clone(), offer.port, offer.has_http3(), offer.has_tcp()),
            (None, Some(8_443), true, true)
        );
        assert_eq!(offer.hinted(443), ["192.0.2.1:8443".parse().unwrap()]);
        let said = read(&record(2, "b.example.", vec![]));
        let RecordContent::Offer(offer) = said else { panic!("{said:?}") };
        assert_eq!((offer.target.as_deref(), offer.alpn.as_slice()), (Some("b.example"), &["http/1.1".to_owned()][..]));
    }

    #[test]
    fn what_is_mandatory_has_to_be_known() {
        let mandatory = |keys: Vec<SvcParamKey>| (SvcParamKey::Mandatory, SvcParamValue::Mandatory(Mandatory(keys)));
        let said = read(&record(1, ".", vec![mandatory(vec![SvcParamKey::Alpn, SvcParamKey::Port]), alpn(&["h3"])]));
        assert!(matches!(said, RecordContent::Offer(_)), "{said:?}");
        for key in [SvcParamKey::EchConfigList, SvcParamKey::Key(700)] {
            assert_eq!(read(&record(1, ".", vec![mandatory(vec![key]), alpn(&["h3"])])), RecordContent::Foreign);
        }
    }

    #[test]
    fn a_service_may_speak_http3_alone() {
        let none = (
            SvcParamKey::NoDefaultAlpn,
            SvcParamValue::Unknown(hickory_resolver::proto::rr::rdata::svcb::Unknown(vec![])),
        );
        let RecordContent::Offer(offer) = read(&record(1, ".", vec![alpn(&["h3"]), none])) else { panic!() };
        assert!(offer.has_http3() && !offer.has_tcp());
    }
}
