//! URI templates of proxies (RFC 9298 §2, RFC 9484 §3, RFC 6570): expanded by clients, matched by the proxy.
//!
//! Of RFC 6570 the subset that these permit is supported: `{name}` in path and query, `{?name,name}` and `{&name,name}`. Variables that the
//! kind of proxy does not know have no value, and expand to nothing.

use std::fmt;

use http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Template whose variables have these names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UriTemplate {
    /// Names of the variables that have values.
    known: &'static [&'static str],
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

/// Error of a text that is no URI template of a MASQUE proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{template}` is no URI template of a MASQUE proxy: {fault}")]
#[non_exhaustive]
pub struct TemplateError {
    /// The text.
    pub template: String,
    /// Fault of it.
    #[source]
    pub fault: TemplateFault,
}

/// Fault of a text that is no template of a proxy (RFC 9298 §2, RFC 9484 §3). Its message names the violated rule.
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
    /// `target` or `ipproto` repeated.
    #[error("it has the variables `target` and `ipproto`, each at most once")]
    RepeatedVariable,
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

impl UriTemplate {
    /// Parses path and query of a template, which begin with `/`, for a server.
    ///
    /// # Errors
    /// When they are none of a template, or no request can be matched with them.
    pub(crate) fn for_server(path: &str, known: &'static [&'static str]) -> Result<Self, TemplateFault> {
        let this = Self::parse("", path, known)?;
        if this.is_matchable() { Ok(this) } else { Err(TemplateFault::Unmatchable) }
    }

    /// Parses a template in absolute form, for a client.
    pub(crate) fn for_client(text: &str, known: &'static [&'static str]) -> Result<Self, TemplateFault> {
        // RFC 9298 §2 MUST-2, MUST-3, RFC 9484 §3 MUST-2, MUST-3, RFC 9484 §4 MUST-1: absolute, with scheme, authority and path, and
        // inside of TLS or QUIC
        let Some(rest) = text.strip_prefix("https://") else { return Err(TemplateFault::Scheme) };
        let (authority, path) = rest.split_at(rest.find(['/', '{', '?']).unwrap_or(rest.len()));
        // RFC 9298 §2 MUST-5, RFC 9484 §3 MUST-5: no variable in the authority
        let is_authority =
            authority.parse::<http::uri::Authority>().is_ok_and(|authority| !authority.host().is_empty());
        if !is_authority || authority.contains('@') {
            return Err(TemplateFault::Authority);
        }
        let this = Self::parse(&format!("https://{authority}"), path, known)?;
        if this.expand(|_| "1".to_owned()).parse::<Uri>().is_err() {
            return Err(TemplateFault::NoUri);
        }
        Ok(this)
    }

    fn parse(origin: &str, rest: &str, known: &'static [&'static str]) -> Result<Self, TemplateFault> {
        // RFC 9298 §2 MUST-4, RFC 9484 §3 MUST-4
        if !rest.starts_with('/') {
            return Err(TemplateFault::Path);
        }
        // RFC 9298 §2 MUST NOT-1, MUST-7, RFC 9484 §3 MUST NOT-2, MUST-6
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TemplateFault::Characters);
        }
        let split = query_start(rest);
        let (path, query) = rest.split_at(split.unwrap_or(rest.len()));
        Ok(Self { known, origin: origin.to_owned(), path: parts(path)?, query: parts(query)? })
    }

    /// Number of times that a variable occurs.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.names().filter(|own| *own == name).count()
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.path.iter().chain(&self.query).flat_map(|part| match part {
            Part::Literal(_) => [].iter(),
            Part::Simple(names) | Part::Form(_, names) => names.iter(),
        })
    }

    /// The URI of a request in which the known variables have these values.
    pub(crate) fn expand(&self, value_of: impl Fn(&str) -> String) -> String {
        let value = |name: &str| self.known.contains(&name).then(|| encode(&value_of(name)));
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
        let is_whole = |text: &str| !text.contains(['{', '}']) || self.variable(text).is_some();
        let in_path = segments.iter().filter(|segment| self.variable(segment).is_some()).count();
        let pairs = self.pairs();
        let in_query = pairs.iter().filter(|(_, value)| self.variable(value).is_some()).count();
        segments.iter().all(|segment| is_whole(segment))
            && pairs.iter().all(|(name, value)| !name.contains(['{', '}']) && is_whole(value))
            && in_path + in_query == self.known.iter().map(|name| self.count(name)).sum::<usize>()
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

    /// Finds the encoded values of the variables in path and query of a request; `None` when these do not fit the template. A slash at the
    /// end of the path, and further pairs of the query, make no difference.
    pub(crate) fn find<'a>(&self, path: &'a str, query: Option<&'a str>) -> Option<Vec<(&'static str, &'a str)>> {
        let mut found = Vec::new();
        let own = self.segments();
        let theirs: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').skip(1).collect();
        if own.len() != theirs.len() {
            return None;
        }
        for (own, theirs) in own.iter().zip(theirs) {
            match self.variable(own) {
                Some(name) => found.push((name, theirs)),
                None if own == theirs => {}
                None => return None,
            }
        }
        for (name, own) in self.pairs() {
            let mut values = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
            let value = values.find(|(other, _)| *other == name)?.1;
            match self.variable(&own) {
                Some(name) => found.push((name, value)),
                None if own == value => {}
                None => return None,
            }
        }
        Some(found)
    }

    /// The known variable that a text consists of.
    fn variable(&self, text: &str) -> Option<&'static str> {
        let name = text.strip_prefix('{')?.strip_suffix('}')?;
        self.known.iter().copied().find(|known| *known == name)
    }
}

impl fmt::Display for UriTemplate {
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
        // RFC 9298 §2 MUST-1, MUST NOT-2, RFC 9484 §3 MUST-1, MUST NOT-3: level 3 at most, and of its operators two
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

/// Value of a variable: everything is encoded but unreserved characters (RFC 6570 §3.2.2).
// RFC 9298 §3 MUST-2, RFC 9484 §4.6 MUST-2, SHALL-1: also the colons of an IPv6 address
fn encode(value: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(value, RESERVED).to_string()
}
