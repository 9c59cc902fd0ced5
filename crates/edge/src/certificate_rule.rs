//! Rules by which certificates of clients are permitted: by subject, by a name of the certificate (`subjectAltName`), or by fingerprint.

use std::{fmt, str::FromStr, sync::Arc};

use crate::client_certificate::ClientCertificate;

/// Certificates that are permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CertificateRule {
    /// Any that was verified.
    Any,
    /// The one with this SHA-256, in hexadecimal digits.
    Fingerprint(String),
    /// Clients with this subject (RFC 4514), …
    Subject(String),
    /// … or whose subject ends with these parts, in front of which there are others.
    SubjectIn(String),
    /// Clients with this name, as `kind:value`, …
    Name(String),
    /// … with a name of this domain, one label below it, …
    Domain(String),
    /// … with a mail address of this host, …
    MailOf(String),
    /// … or with a URI that begins so.
    UriIn(String),
}

/// Text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoRule(String);

impl fmt::Display for NoRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected `*`, `subject:…`, `dns:…`, `email:…`, `uri:…`, `ip:…` or `sha256:…` of a certificate, found `{}`",
            self.0
        )
    }
}

impl FromStr for CertificateRule {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Self, NoRule> {
        let wrong = || NoRule(text.to_owned());
        if text == "*" {
            return Ok(Self::Any);
        }
        let (kind, value) = text.split_once(':').ok_or_else(wrong)?;
        let is_plain = !value.is_empty() && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let rule = match kind {
            "sha256" => {
                let digits: String = value.chars().filter(|c| *c != ':').collect::<String>().to_ascii_lowercase();
                let is_digest = digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                return if is_digest { Ok(Self::Fingerprint(digits)) } else { Err(wrong()) };
            }
            "subject" => match value.strip_prefix("*,") {
                Some(rest) => Self::SubjectIn(format!(",{rest}")),
                None => Self::Subject(value.to_owned()),
            },
            "dns" => match value.strip_prefix("*.") {
                Some(rest) => Self::Domain(format!(".{}", rest.to_ascii_lowercase())),
                None => Self::Name(format!("dns:{}", value.to_ascii_lowercase())),
            },
            "email" => match value.strip_prefix("*@") {
                Some(host) => Self::MailOf(format!("@{}", host.to_ascii_lowercase())),
                None => Self::Name(text.to_owned()),
            },
            "uri" => match value.strip_suffix("/*") {
                Some(rest) => Self::UriIn(format!("uri:{rest}/")),
                None => Self::Name(text.to_owned()),
            },
            "ip" => Self::Name(format!("ip:{}", value.parse::<std::net::IpAddr>().map_err(|_| wrong())?)),
            _ => return Err(wrong()),
        };
        // A star elsewhere would look as if it stood for something.
        let has_star = match &rule {
            Self::Subject(rest) | Self::SubjectIn(rest) | Self::Name(rest) => rest.contains('*'),
            Self::Domain(rest) | Self::MailOf(rest) | Self::UriIn(rest) => rest.contains('*') || rest.len() < 2,
            Self::Any | Self::Fingerprint(_) => false,
        };
        if is_plain && !has_star { Ok(rule) } else { Err(wrong()) }
    }
}

impl CertificateRule {
    /// The client's name, if its certificate is permitted: the part of the certificate by which it is.
    pub(crate) fn permits(&self, certificate: &ClientCertificate) -> Option<Arc<str>> {
        let subject = certificate.subject.as_deref();
        let name = |fits: &dyn Fn(&str) -> bool| certificate.names.iter().map(String::as_str).find(|name| fits(name));
        let by = match self {
            Self::Any => {
                return Some(subject.filter(|text| !text.is_empty()).map_or_else(|| digest(certificate), Arc::from));
            }
            Self::Fingerprint(digits) => return (certificate.fingerprint == *digits).then(|| digest(certificate)),
            Self::Subject(whole) => subject.filter(|subject| subject == whole),
            // No value has this text in it: there, each `=` is behind a backslash.
            Self::SubjectIn(end) => {
                subject.filter(|subject| subject.len() > end.len() && subject.ends_with(end.as_str()))
            }
            Self::Name(whole) => name(&|name| name == whole),
            Self::Domain(domain) => name(&|name| {
                let label = name.strip_prefix("dns:").and_then(|name| name.strip_suffix(domain.as_str()));
                label.is_some_and(|label| !label.is_empty() && !label.contains(['.', '*']))
            }),
            Self::MailOf(host) => name(&|name| {
                let address = name.strip_prefix("email:").and_then(|address| address.rsplit_once('@'));
                address.is_some_and(|(local, of)| !local.is_empty() && of.eq_ignore_ascii_case(&host[1..]))
            }),
            Self::UriIn(start) => name(&|name| name.len() > start.len() && name.starts_with(start.as_str())),
        };
        by.map(Arc::from)
    }
}

fn digest(certificate: &ClientCertificate) -> Arc<str> {
    format!("sha256:{}", certificate.fingerprint).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(subject: &str, names: &[&str]) -> ClientCertificate {
        ClientCertificate {
            fingerprint: "ab".repeat(32),
            subject: Some(subject.to_owned()),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn certificates_are_permitted_by_what_they_have() {
        let names =
            ["dns:alice.vpn.example.org", "email:alice@Example.org", "uri:spiffe://ours/team/alice", "ip:192.0.2.1"];
        let alice = certificate("CN=alice,O=Ours", &names);
        let digits = "AB:".repeat(32);
        for (rule, by) in [
            ("*", Some("CN=alice,O=Ours")),
            ("subject:CN=alice,O=Ours", Some("CN=alice,O=Ours")),
            ("subject:*,O=Ours", Some("CN=alice,O=Ours")),
            ("subject:CN=alice", None),
            ("subject:*,CN=alice", None),
            ("dns:Alice.VPN.example.org", Some(names[0])),
            ("dns:*.vpn.example.org", Some(names[0])),
            ("dns:*.example.org", None),
            ("dns:alice", None),
            ("email:alice@Example.org", Some(names[1])),
            ("email:*@example.org", Some(names[1])),
            ("email:*@ple.org", None),
            ("uri:spiffe://ours/team/*", Some(names[2])),
            ("uri:spiffe://ours/team/ali", None),
            ("uri:spiffe://our/*", None),
            ("ip:192.0.2.1", Some(names[3])),
            (&format!("sha256:{}", digits.trim_end_matches(':')), Some(&format!("sha256:{}", "ab".repeat(32)))),
            (&format!("sha256:{}", "0".repeat(64)), None),
        ] {
            let permits = rule.parse::<CertificateRule>().unwrap().permits(&alice);
            assert_eq!(permits.as_deref(), by, "{rule}");
        }
        // A value cannot look like parts of a subject.
        let mallory = certificate("CN=mallory\\,O\\=Ours", &["dns:*.vpn.example.org", "dns:.vpn.example.org"]);
        for rule in ["subject:*,O=Ours", "dns:*.vpn.example.org"] {
            assert_eq!(rule.parse::<CertificateRule>().unwrap().permits(&mallory), None, "{rule}");
        }
    }

    #[test]
    fn what_is_no_rule() {
        for text in [
            "",
            "alice",
            "cn:alice",
            "subject:",
            "dns:*",
            "dns:a*.org",
            "dns:*.",
            "uri:*",
            "email:*@",
            "sha256:ab",
            "ip:x",
        ] {
            assert!(text.parse::<CertificateRule>().is_err(), "{text}");
        }
    }
}
