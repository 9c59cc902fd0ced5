//! URI templates of UDP proxies (RFC 9298 §2, RFC 6570): expanded by clients, matched by the proxy.
//!
//! Of RFC 6570 the subset that RFC 9298 permits is supported: `{name}` in path and query, `{?name,name}` and `{&name,name}`. Variables
//! other than `target_host` and `target_port` have no value, and expand to nothing.

use std::{fmt, net::IpAddr, str::FromStr};

use http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The default path of proxies (RFC 9298 §2).
const DEFAULT_PATH: &str = "/.well-known/masque/udp/{target_host}/{target_port}/";

const HOST: &str = "target_host";
const PORT: &str = "target_port";

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
pub struct Template {
    /// Scheme and authority; empty for a template that a server matches.
    origin: String,
    path: Vec<Part>,
    query: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    /// `{a,b}`: values with commas.
    Simple(Vec<String>),
    /// `{?a,b}` or `{&a,b}`: names with their values, behind this character.
    Form(char, Vec<String>),
}

/// Error of a text that is no URI template of a UDP proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{template}` is no URI template of a UDP proxy: {fault}")]
#[non_exhaustive]
pub struct TemplateError {
    /// The text.
    pub template: String,
    /// Fault of it.
    #[source]
    pub fault: TemplateFault,
}

/// Fault of a text that is no template of a UDP proxy (RFC 9298 §2). Its message names the violated rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateFault {
    /// Another scheme than `https`.
    #[error("it begins with `https://`")]
    Scheme,
    /// No host, or more than host and port.
    #[error("it has a host, and a port or none, behind `https://`")]
    Authority,
    /// Path that does not begin with `/`.
    #[error("its path begins with `/`")]
    Path,
    /// Characters outside of printable ASCII.
    #[error("it has characters other than the printable ones of ASCII")]
    Characters,
    /// Brace without its partner.
    #[error("its braces are not in pairs")]
    Braces,
    /// Operator other than `?` and `&`.
    #[error("it has an operator other than `?` and `&`")]
    Operator,
    /// Variable with modifiers, or with other characters than a name has.
    #[error("a variable has a name of letters, digits and `_`, without modifiers")]
    VariableName,
    /// `target_host` or `target_port` missing or repeated.
    #[error("it has the variables `target_host` and `target_port`, each once")]
    Variables,
    /// Fragment.
    #[error("it has a fragment")]
    Fragment,
    /// Text that expands to no URI.
    #[error("it expands to no URI")]
    NoUri,
    /// Variables that a server cannot find in a request.
    #[error("a server finds its variables as whole segments of the path or whole values of the query, and no others")]
    Unmatchable,
}

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
        let template = Self::parse("", path)
            .and_then(|template| if template.is_matchable() { Ok(template) } else { Err(TemplateFault::Unmatchable) });
        template.map_err(|fault| TemplateError { template: path.to_owned(), fault })
    }

    fn parse(origin: &str, rest: &str) -> Result<Self, TemplateFault> {
        // RFC 9298 §2 MUST-4
        if !rest.starts_with('/') {
            return Err(TemplateFault::Path);
        }
        // RFC 9298 §2 MUST NOT-1, MUST-7
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TemplateFault::Characters);
        }
        let split = query_start(rest);
        let (path, query) = rest.split_at(split.unwrap_or(rest.len()));
        let this = Self { origin: origin.to_owned(), path: parts(path)?, query: parts(query)? };
        // RFC 9298 §2 MUST-6
        for name in [HOST, PORT] {
            if this.names().filter(|own| *own == name).count() != 1 {
                return Err(TemplateFault::Variables);
            }
        }
        Ok(this)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.path.iter().chain(&self.query).flat_map(|part| match part {
            Part::Literal(_) => [].iter(),
            Part::Simple(names) | Part::Form(_, names) => names.iter(),
        })
    }

    /// The URI of a request for `host`, a name or an IP address without brackets, and `port`.
    // RFC 9298 §3 SHALL-1, RFC 9298 §3.4 SHALL-3, SHALL NOT-1, SHALL-4
    pub fn expand(&self, host: &str, port: u16) -> String {
        let value = |name: &str| match name {
            HOST => Some(encode(host)),
            PORT => Some(port.to_string()),
            _ => None,
        };
        let mut uri = self.origin.clone();
        for part in self.path.iter().chain(&self.query) {
            match part {
                Part::Literal(text) => uri.push_str(text),
                Part::Simple(names) => {
                    let values: Vec<String> = names.iter().filter_map(|name| value(name)).collect();
                    uri.push_str(&values.join(","));
                }
                Part::Form(first, names) => {
                    let pairs = names.iter().filter_map(|name| Some(format!("{name}={}", value(name)?)));
                    for (number, pair) in pairs.enumerate() {
                        uri.push(if number == 0 { *first } else { '&' });
                        uri.push_str(&pair);
                    }
                }
            }
        }
        uri
    }

    /// Returns whether a request shows its variables: each is a whole segment of the path, or a whole value of the query.
    fn is_matchable(&self) -> bool {
        let segments = self.segments();
        let is_whole = |text: &str| !text.contains(['{', '}']) || variable(text).is_some();
        let in_path = segments.iter().filter(|segment| variable(segment).is_some()).count();
        let pairs = self.pairs();
        let in_query = pairs.iter().filter(|(_, value)| variable(value).is_some()).count();
        segments.iter().all(|segment| is_whole(segment))
            && pairs.iter().all(|(name, value)| !name.contains(['{', '}']) && is_whole(value))
            && in_path + in_query == 2
    }

    fn segments(&self) -> Vec<String> {
        let path = written(&self.path);
        path.trim_end_matches('/').split('/').skip(1).map(str::to_owned).collect()
    }

    fn pairs(&self) -> Vec<(String, String)> {
        let query = written(&self.query);
        let pairs = query.trim_start_matches('?').split('&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect()
    }

    /// Finds host and port in path and query of a request; `None` when they do not fit the template, or are no host or port. A slash at
    /// the end of the path, and further pairs of the query, make no difference.
    pub fn find(&self, path: &str, query: Option<&str>) -> Option<(String, u16)> {
        let (mut host, mut port) = (None, None);
        let mut note = |name: &str, value: &str| match name {
            HOST => host = Some(value.to_owned()),
            _ => port = Some(value.to_owned()),
        };
        let own = self.segments();
        let theirs: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').skip(1).collect();
        if own.len() != theirs.len() {
            return None;
        }
        for (own, theirs) in own.iter().zip(theirs) {
            match variable(own) {
                Some(name) => note(name, theirs),
                None if own == theirs => {}
                None => return None,
            }
        }
        for (name, own) in self.pairs() {
            let mut values = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
            let value = values.find(|(other, _)| *other == name)?.1;
            match variable(&own) {
                Some(variable) => note(variable, value),
                None if own == value => {}
                None => return None,
            }
        }
        Some((target_host(&host?)?, target_port(&port?)?))
    }
}

// RFC 9298 §2 SHOULD-1, MUST-8: there is no template that breaks a rule
impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let wrong = |fault| TemplateError { template: text.to_owned(), fault };
        // RFC 9298 §2 MUST-2, MUST-3: absolute, with scheme, authority and path
        let Some(rest) = text.strip_prefix("https://") else { return Err(wrong(TemplateFault::Scheme)) };
        let (authority, path) = rest.split_at(rest.find(['/', '{', '?']).unwrap_or(rest.len()));
        // RFC 9298 §2 MUST-5: no variable in the authority
        let is_authority =
            authority.parse::<http::uri::Authority>().is_ok_and(|authority| !authority.host().is_empty());
        if !is_authority || authority.contains('@') {
            return Err(wrong(TemplateFault::Authority));
        }
        let this = Self::parse(&format!("https://{authority}"), path).map_err(wrong)?;
        if this.expand("a.example", 1).parse::<Uri>().is_err() {
            return Err(wrong(TemplateFault::NoUri));
        }
        Ok(this)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.origin, written(&self.path), written(&self.query))
    }
}

/// Start of the query, which may be an expression.
fn query_start(text: &str) -> Option<usize> {
    let (mark, expression) = (text.find('?'), text.find("{?"));
    match (mark, expression) {
        (Some(mark), Some(expression)) => Some(mark.min(expression)),
        (mark, _) => mark,
    }
}

/// Takes a template apart.
fn parts(text: &str) -> Result<Vec<Part>, TemplateFault> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (literal, from) = rest.split_at(at);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.to_owned()));
        }
        let (expression, behind) =
            from.strip_prefix('{').and_then(|from| from.split_once('}')).ok_or(TemplateFault::Braces)?;
        // RFC 9298 §2 MUST-1, MUST NOT-2: level 3 at most, and of its operators two
        let (operator, names) = match expression.chars().next() {
            Some(operator @ ('?' | '&')) => (Some(operator), &expression[1..]),
            Some('+' | '#' | '.' | '/' | ';') => return Err(TemplateFault::Operator),
            _ => (None, expression),
        };
        let names: Vec<String> = names.split(',').map(str::to_owned).collect();
        let is_name = |name: &String| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'%'))
        };
        if !names.iter().all(is_name) {
            return Err(TemplateFault::VariableName);
        }
        parts
            .push(operator.map_or_else(|| Part::Simple(names.clone()), |operator| Part::Form(operator, names.clone())));
        rest = behind;
    }
    if rest.contains('#') || parts.iter().any(|part| matches!(part, Part::Literal(text) if text.contains('#'))) {
        return Err(TemplateFault::Fragment);
    }
    if !rest.is_empty() {
        parts.push(Part::Literal(rest.to_owned()));
    }
    Ok(parts)
}

/// Parts as text, with `{?a,b}` as its pairs.
fn written(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Literal(literal) => text.push_str(literal),
            Part::Simple(names) => text.push_str(&format!("{{{}}}", names.join(","))),
            Part::Form(first, names) => {
                let pairs: Vec<String> = names.iter().map(|name| format!("{name}={{{name}}}")).collect();
                text.push(*first);
                text.push_str(&pairs.join("&"));
            }
        }
    }
    text
}

/// The variable that a text consists of.
fn variable(text: &str) -> Option<&str> {
    text.strip_prefix('{')?.strip_suffix('}').filter(|name| [HOST, PORT].contains(name))
}

/// Value of a variable: everything is encoded but unreserved characters (RFC 6570 §3.2.2).
// RFC 9298 §3 MUST-2: also the colons of an IPv6 address
fn encode(value: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(value, RESERVED).to_string()
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
