//! URI templates of UDP proxies (RFC 9298 §2): expanded by clients, matched by the proxy.
//!
//! Variables other than `target_host` and `target_port` have no value, and expand to nothing.

use std::{fmt, net::IpAddr, str::FromStr};

use percent_encoding::percent_decode_str;

use crate::uri_template::{TemplateError, TemplateFault, UriTemplate};

/// The default path of proxies (RFC 9298 §2).
const DEFAULT_PATH: &str = "/.well-known/masque/udp/{target_host}/{target_port}/";

const HOST: &str = "target_host";
const PORT: &str = "target_port";
/// Value of both variables in a request without a target (draft-ietf-masque-connect-udp-listen §2).
const ANY: &str = "*";

/// Target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UdpTarget {
    /// Host, a name or an IP address without brackets, and port.
    Host(String, u16),
    /// None: the request is for bound UDP.
    Any,
}

/// Template of the requests to a UDP proxy.
///
/// ```
/// use tiderace_h3::connect_udp::Template;
///
/// let template: Template = "https://proxy.example/masque{?target_host,target_port}".parse().unwrap();
/// let uri = template.expand("2001:db8::42", 443);
/// assert_eq!(uri, "https://proxy.example/masque?target_host=2001%3Adb8%3A%3A42&target_port=443");
/// assert_eq!(template.find("/masque", Some("target_port=443&target_host=192.0.2.6")), Some(("192.0.2.6".into(), 443)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(UriTemplate);

impl Template {
    /// The default template of the proxy at `authority`, a host with or without a port.
    ///
    /// # Errors
    /// When `authority` is none.
    pub fn at(authority: &str) -> Result<Self, TemplateError> {
        format!("https://{authority}{DEFAULT_PATH}").parse()
    }

    /// Parses path and query of a template, which begin with `/`, for a server.
    ///
    /// # Errors
    /// When they are none of a template, or no request can be matched with them.
    pub fn for_server(path: &str) -> Result<Self, TemplateError> {
        let template = UriTemplate::for_server(path, &[HOST, PORT]).and_then(complete);
        template.map_err(|fault| TemplateError { template: path.to_owned(), fault })
    }

    /// The URI of a request for `host`, a name or an IP address without brackets, and `port`.
    // RFC 9298 §3 SHALL-1, RFC 9298 §3.4 SHALL-3, SHALL NOT-1, SHALL-4
    // RFC 9298 §3 MUST-2: also the colons of an IPv6 address are encoded
    pub fn expand(&self, host: &str, port: u16) -> String {
        self.0.expand(|name| if name == HOST { host.to_owned() } else { port.to_string() })
    }

    /// The URI of a request for bound UDP without a target.
    // draft-ietf-masque-connect-udp-listen §2 MUST: `*` is percent-encoded
    pub fn expand_any(&self) -> String {
        self.0.expand(|_| ANY.to_owned())
    }

    /// Finds host and port in path and query of a request; `None` when they do not fit the template, or are no host or port. A slash at
    /// the end of the path, and further pairs of the query, make no difference.
    pub fn find(&self, path: &str, query: Option<&str>) -> Option<(String, u16)> {
        match self.find_target(path, query)? {
            UdpTarget::Host(host, port) => Some((host, port)),
            UdpTarget::Any => None,
        }
    }

    /// Finds the target in path and query of a request, as [`find`](Self::find) does, which may be none.
    // draft-ietf-masque-connect-udp-listen §2: a request with only one `*` is malformed
    pub fn find_target(&self, path: &str, query: Option<&str>) -> Option<UdpTarget> {
        let found = self.0.find(path, query)?;
        let value = |name| found.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        let (host, port) = (value(HOST)?, value(PORT)?);
        if [host, port].iter().all(|value| percent_decode_str(value).eq(ANY.bytes())) {
            return Some(UdpTarget::Any);
        }
        Some(UdpTarget::Host(target_host(host)?, target_port(port)?))
    }
}

// RFC 9298 §2 MUST-6
fn complete(template: UriTemplate) -> Result<Template, TemplateFault> {
    if [HOST, PORT].iter().any(|name| template.count(name) != 1) {
        return Err(TemplateFault::Variables);
    }
    Ok(Template(template))
}

// RFC 9298 §2 SHOULD-1, MUST-8: there is no template that breaks a rule
impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let template = UriTemplate::for_client(text, &[HOST, PORT]).and_then(complete);
        template.map_err(|fault| TemplateError { template: text.to_owned(), fault })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A host: a name, or an IP address without brackets and zone.
// RFC 9298 §3 MUST-1, MUST NOT-1
fn target_host(encoded: &str) -> Option<String> {
    // A `%` that encodes nothing stays, and no host has one.
    let host = percent_decode_str(encoded).decode_utf8().ok()?;
    let is_name = |text: &str| {
        let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        !text.is_empty() && text.len() <= 253 && text.bytes().all(sane)
    };
    (host.parse::<IpAddr>().is_ok() || is_name(&host)).then(|| host.into_owned())
}

/// A port.
// RFC 9298 §3 MUST-3
fn target_port(text: &str) -> Option<u16> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port != 0)
}

#[cfg(test)]
mod tests {
    use http::Uri;

    use super::*;

    /// RFC 9298 §3 SHALL-1, MUST-2, RFC 9298 §3.4 SHALL-3, SHALL NOT-1, SHALL-4
    #[test]
    fn templates_expand() {
        for (template, expected) in [
            (
                "https://p.example/.well-known/masque/udp/{target_host}/{target_port}/",
                "/.well-known/masque/udp/a.b/53/",
            ),
            ("https://p.example:4443/masque?h={target_host}&p={target_port}", ":4443/masque?h=a.b&p=53"),
            ("https://p.example:4443/masque{?target_host,target_port}", ":4443/masque?target_host=a.b&target_port=53"),
            ("https://p.example/m?x=1{&target_port,other,target_host}", "/m?x=1&target_port=53&target_host=a.b"),
            ("https://p.example/{target_host,target_port}", "/a.b,53"),
        ] {
            let parsed: Template = template.parse().unwrap();
            assert_eq!(parsed.expand("a.b", 53), format!("https://p.example{expected}"), "{template}");
        }
        let template = Template::at("p.example:8443").unwrap();
        assert_eq!(
            template.expand("2001:db8::42", 443),
            "https://p.example:8443/.well-known/masque/udp/2001%3Adb8%3A%3A42/443/"
        );
    }

    /// RFC 9298 §2 MUST-1, MUST-2, MUST-3, MUST-4, MUST-5, MUST-6, MUST-7, MUST-8, MUST NOT-1, MUST NOT-2, SHOULD-1
    #[test]
    fn what_is_no_template_is_refused() {
        for template in [
            "",
            "/masque/{target_host}/{target_port}",
            "http://p.example/{target_host}/{target_port}",
            "https:///{target_host}/{target_port}",
            "https://u@p.example/{target_host}/{target_port}",
            "https://{target_host}/{target_port}",
            "https://p.example{?target_host,target_port}",
            "https://p.example/{target_host}",
            "https://p.example/{target_host}/{target_host}/{target_port}",
            "https://p.example/{+target_host}/{target_port}",
            "https://p.example/x{#target_host,target_port}",
            "https://p.example/x#{target_host}{target_port}",
            "https://p.example/x{.target_host}/{target_port}",
            "https://p.example/x{/target_host,target_port}",
            "https://p.example/x{;target_host,target_port}",
            "https://p.example/{target_host:3}/{target_port}",
            "https://p.example/{target_host*}/{target_port}",
            "https://p.example/{target_host/{target_port}",
            "https://p.example/target_host}/{target_port}",
            "https://p.example/ä/{target_host}/{target_port}",
            "https://p.example/a b/{target_host}/{target_port}",
        ] {
            assert!(template.parse::<Template>().is_err(), "{template}");
        }
        let fault = |template: &str| template.parse::<Template>().unwrap_err().fault;
        assert_eq!(fault("http://p.example/{target_host}/{target_port}"), TemplateFault::Scheme);
        assert_eq!(fault("https://p.example/{target_host}"), TemplateFault::Variables);
        assert_eq!(fault("https://p.example/{+target_host}/{target_port}"), TemplateFault::Operator);
        for path in [
            "/{target_host}",
            "/x{target_host}/{target_port}",
            "/{target_host,target_port}",
            "/{a}/{target_host}/{target_port}",
        ] {
            assert!(Template::for_server(path).is_err(), "{path}");
        }
        let unmatchable = Template::for_server("/x{target_host}/{target_port}").unwrap_err();
        assert_eq!(unmatchable.fault, TemplateFault::Unmatchable);
    }

    /// RFC 9298 §3 MUST-1, MUST-3, MUST NOT-1
    #[test]
    fn a_server_finds_host_and_port() {
        let default = Template::for_server("/udp/{target_host}/{target_port}/").unwrap();
        for (path, expected) in [
            ("/udp/192.0.2.6/443/", Some(("192.0.2.6", 443))),
            ("/udp/192.0.2.6/443", Some(("192.0.2.6", 443))),
            ("/udp/2001%3Adb8%3A%3A42/1/", Some(("2001:db8::42", 1))),
            ("/udp/a-b.example/65535/", Some(("a-b.example", 65_535))),
            ("/udp/192.0.2.6/443/x", None),
            ("/udp/192.0.2.6/443//", None),
            ("/udp/192.0.2.6/", None),
            ("/tcp/192.0.2.6/443/", None),
            ("/udp//443/", None),
            ("/udp/192.0.2.6//", None),
            ("/udp/192.0.2.6/0/", None),
            ("/udp/192.0.2.6/65536/", None),
            ("/udp/192.0.2.6/+443/", None),
            ("/udp/%5B%3A%3A1%5D/443/", None),
            ("/udp/fe80%3A%3A1%25eth0/443/", None),
            ("/udp/a%2Fb/443/", None),
            ("/udp/a%00b/443/", None),
            ("/udp/%zz/443/", None),
            ("/udp/%c3%a4/443/", None),
        ] {
            let found = default.find(path, None);
            assert_eq!(found.as_ref().map(|(host, port)| (host.as_str(), *port)), expected, "{path}");
        }
        for template in ["/m?h={target_host}&p={target_port}&v=1", "/m?v=1&p={target_port}&h={target_host}"] {
            let query = Template::for_server(template).unwrap();
            assert_eq!(query.find("/m", Some("v=1&x=2&h=a&p=5")), Some(("a".to_owned(), 5)));
            assert_eq!(query.find("/m", Some("v=2&h=a&p=5")), None);
            assert_eq!(query.find("/m", Some("v=1&h=a")), None);
            assert_eq!(query.find("/m", None), None);
        }
    }

    /// draft-ietf-masque-connect-udp-listen §2
    #[test]
    fn requests_without_a_target_have_two_wildcards() {
        let template = Template::at("p.example").unwrap();
        assert_eq!(template.expand_any(), "https://p.example/.well-known/masque/udp/%2A/%2A/");
        let server = Template::for_server(DEFAULT_PATH).unwrap();
        let find = |rest: &str| server.find_target(&format!("/.well-known/masque/udp/{rest}"), None);
        for path in ["%2A/%2A/", "%2a/%2A", "*/*/"] {
            assert_eq!(find(path), Some(UdpTarget::Any), "{path}");
            assert_eq!(server.find(&format!("/.well-known/masque/udp/{path}"), None), None);
        }
        for path in ["%2A/443/", "a.example/%2A/", "%2A%2A/%2A/", "%2A/", "//"] {
            assert_eq!(find(path), None, "{path}");
        }
        assert_eq!(find("a.example/53/"), Some(UdpTarget::Host("a.example".to_owned(), 53)));
        let query = Template::for_server("/m{?target_host,target_port}").unwrap();
        assert_eq!(query.find_target("/m", Some("target_port=%2A&target_host=%2A")), Some(UdpTarget::Any));
    }

    #[test]
    fn what_expands_is_found() {
        for path in ["/.well-known/masque/udp/{target_host}/{target_port}/", "/m{?target_host,target_port}"] {
            let (client, server) = (format!("https://p.example{path}"), Template::for_server(path).unwrap());
            for (host, port) in [("a.example", 53), ("2001:db8::1", 443), ("192.0.2.1", 1)] {
                let uri: Uri = client.parse::<Template>().unwrap().expand(host, port).parse().unwrap();
                assert_eq!(server.find(uri.path(), uri.query()), Some((host.to_owned(), port)));
            }
        }
    }
}
