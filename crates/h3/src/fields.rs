//! Field sections as messages: the requirements of RFC 9114 §4.2 and §4.3, and conversion to the types of `http`.

use std::borrow::Cow;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    uri::{Authority, PathAndQuery, Scheme},
};
use qpack::Field;

use crate::error::{Code, Error, RequestFault, Violation};

/// Protocol of an extended CONNECT (RFC 9220): the value of `:protocol`, in the extensions of a request
/// whose method is CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol(HeaderValue);

impl Protocol {
    /// The protocol's name, from the registry of upgrade tokens.
    ///
    /// # Panics
    /// When it is no field value: the name is a constant of the program.
    pub fn from_static(name: &'static str) -> Self {
        Self(HeaderValue::from_static(name))
    }

    /// The protocol's name, as in an `upgrade` field. `None` for what is no field value.
    pub fn new(name: &str) -> Option<Self> {
        HeaderValue::from_str(name).ok().map(Self)
    }

    /// The protocol's name; empty when it has letters that no name has.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Fields that concern one connection of HTTP/1.1, which has no place here (RFC 9114 §4.2).
const FORBIDDEN: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Collector of the fields of one section during decompression. The first fault is kept until the end, because the rest has to be
/// decompressed.
#[derive(Default)]
pub(crate) struct Collector {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    protocol: Option<Protocol>,
    status: Option<StatusCode>,
    fields: HeaderMap,
    cookies: usize,
    wrong: Option<&'static str>,
}

fn set<T>(place: &mut Option<T>, value: Option<T>) -> Result<(), &'static str> {
    if place.is_some() {
        return Err("has a pseudo-field twice");
    }
    *place = Some(value.ok_or("has a pseudo-field that makes no sense")?);
    Ok(())
}

impl Collector {
    /// Takes the next field.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8], sensitive: bool) {
        if self.wrong.is_none()
            && let Err(wrong) = self.take(name, value, sensitive)
        {
            self.wrong = Some(wrong);
        }
    }

    fn take(&mut self, name: &[u8], value: &[u8], sensitive: bool) -> Result<(), &'static str> {
        if let Some(pseudo) = name.strip_prefix(b":") {
            // RFC 9114 §4.3 MUST-2, MUST-3: they come first
            if !self.fields.is_empty() {
                return Err("has a pseudo-field behind a field");
            }
            // RFC 9114 §4.3 MUST-1: those that do not exist, or make no sense, make the message malformed
            return match pseudo {
                b"method" => set(&mut self.method, Method::from_bytes(value).ok()),
                b"scheme" => set(&mut self.scheme, Scheme::try_from(value).ok()),
                b"authority" => set(&mut self.authority, Authority::try_from(value).ok()),
                b"path" => set(&mut self.path, path(value)),
                b"protocol" => set(&mut self.protocol, HeaderValue::from_bytes(value).ok().map(Protocol)),
                b"status" => {
                    let digits = value.len() == 3 && value.iter().all(u8::is_ascii_digit);
                    set(&mut self.status, digits.then(|| StatusCode::from_bytes(value).ok()).flatten())
                }
                _ => Err("has a pseudo-field that does not exist"),
            };
        }
        // RFC 9114 §4.2 MUST-2: names have no capital letters. The library would make them small.
        if name.iter().any(u8::is_ascii_uppercase) {
            return Err("has a field name with capital letters");
        }
        // RFC 9114 §10.3 MUST-1, MUST-2: what cannot be a name or a value
        let name = HeaderName::from_bytes(name).map_err(|_| "has a field name that is none")?;
        let mut value = HeaderValue::from_bytes(value).map_err(|_| "has a field value that is none")?;
        // RFC 9204 §7.1.3 MUST NOT-1: it stays so wherever it goes
        value.set_sensitive(sensitive);
        // RFC 9114 §4.2 MUST-3: what concerns one connection of HTTP/1.1 makes the message malformed
        if FORBIDDEN.contains(&name.as_str()) {
            return Err("has a field that concerns one connection of HTTP/1.1");
        }
        // RFC 9114 §4.2 MUST NOT-2: of TE, one value has a meaning here
        if name == header::TE && value != "trailers" {
            return Err("has a `te` that has no place in HTTP/3");
        }
        if name == header::COOKIE {
            self.cookies += 1;
        }
        self.fields.try_append(name, value).map_err(|_| "has too many fields")?;
        Ok(())
    }

    /// The section as the head of a request.
    ///
    /// # Errors
    /// H3_MESSAGE_ERROR when it is none (RFC 9114 §4.3.1).
    pub(crate) fn request(mut self) -> Result<Request<()>, Violation> {
        self.check()?;
        // RFC 9114 §4.3 MUST NOT-3: no pseudo-fields of responses
        if self.status.is_some() {
            return Err(malformed("has a status"));
        }
        let Some(method) = self.method.take() else { return Err(malformed("has no method")) };
        let is_connect = method == Method::CONNECT;
        if self.protocol.is_some() && !is_connect {
            return Err(malformed("has a protocol without CONNECT"));
        }
        // RFC 9114 §4.4 MUST-1: a plain CONNECT names a host and a port, and nothing else. An extended one is as the others.
        let is_plain = is_connect && self.protocol.is_none();
        let has_port = self.authority.as_ref().is_some_and(|authority| authority.port().is_some());
        if is_plain && (self.scheme.is_some() || self.path.is_some() || !has_port) {
            return Err(malformed("is a CONNECT to something else than a host and a port"));
        }
        // RFC 9114 §4.3.1 MUST-4: all three, and each of them once
        if !is_plain && (self.scheme.is_none() || self.path.is_none()) {
            return Err(malformed("lacks its scheme or its path"));
        }
        if self.path.as_ref().is_some_and(|path| path.as_str() == "*") && method != Method::OPTIONS {
            return Err(malformed("asks for no path"));
        }
        // RFC 9114 §4.3.1 MUST-5, MUST-6, MUST NOT-3: an authority, a host, or the same twice; and not an empty one
        let mut hosts = self.fields.get_all(header::HOST).iter();
        match (&self.authority, hosts.next(), hosts.next()) {
            (_, Some(_), Some(_)) => return Err(malformed("has two hosts")),
            (Some(authority), Some(host), None) if host.as_bytes() != authority.as_str().as_bytes() => {
                return Err(malformed("has a host that contradicts its authority"));
            }
            (None, Some(host), None) => {
                let authority = Authority::try_from(host.as_bytes()).map_err(|_| malformed("has a host that is none"));
                self.authority = Some(authority?);
            }
            (None, None, None) => return Err(malformed("has no authority")),
            _ => {}
        }
        // RFC 9114 §4.3.1 MUST NOT-1, RFC 9110 §4.2.4: what has a user in it is an attempt to look like another site
        if self.authority.as_ref().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(malformed("has a user in its authority"));
        }
        self.join_cookies();
        let mut parts = http::uri::Parts::default();
        parts.scheme = self.scheme;
        parts.authority = self.authority;
        parts.path_and_query = self.path;
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| malformed("has an URI that is none"))?;
        *request.version_mut() = Version::HTTP_3;
        *request.headers_mut() = self.fields;
        if let Some(protocol) = self.protocol {
            request.extensions_mut().insert(protocol);
        }
        Ok(request)
    }

    /// The section as the head of a response.
    ///
    /// # Errors
    /// H3_MESSAGE_ERROR when it is none (RFC 9114 §4.3.2).
    pub(crate) fn response(mut self) -> Result<Response<()>, Violation> {
        self.check()?;
        // RFC 9114 §4.3 MUST NOT-2: no pseudo-fields of requests
        if self.has_request_fields() {
            return Err(malformed("has a pseudo-field of requests"));
        }
        if self.fields.contains_key(header::TE) {
            return Err(malformed("has a field of requests, `te`"));
        }
        // RFC 9114 §4.3.2 MUST-1: without a status it is no response
        let Some(status) = self.status.take() else { return Err(malformed("has no status")) };
        // RFC 9114 §4.5: there is nothing to be switched.
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(malformed("switches protocols"));
        }
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.version_mut() = Version::HTTP_3;
        *response.headers_mut() = self.fields;
        Ok(response)
    }

    /// The section as trailers.
    ///
    /// # Errors
    /// H3_MESSAGE_ERROR when it has pseudo-fields (RFC 9114 §4.3).
    pub(crate) fn trailers(self) -> Result<HeaderMap, Violation> {
        self.check()?;
        // RFC 9114 §4.3 MUST NOT-4, RFC 9114 §4.1 MUST-2: a second head is no trailers
        if self.status.is_some() || self.has_request_fields() {
            return Err(malformed("has a pseudo-field behind its content"));
        }
        Ok(self.fields)
    }

    fn has_request_fields(&self) -> bool {
        let Self { method, scheme, authority, path, protocol, .. } = self;
        method.is_some() || scheme.is_some() || authority.is_some() || path.is_some() || protocol.is_some()
    }

    fn check(&self) -> Result<(), Violation> {
        self.wrong.map_or(Ok(()), |wrong| Err(malformed(wrong)))
    }

    /// RFC 9114 §4.2.1 MUST-1: a cookie that was cut into fields for compression becomes one again.
    fn join_cookies(&mut self) {
        if self.cookies < 2 {
            return;
        }
        let crumbs: Vec<_> = self.fields.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
            self.fields.insert(header::COOKIE, joined);
        }
    }
}

/// RFC 9114 §4.3.1 MUST NOT-2: a path is not empty, and begins with a slash unless OPTIONS asks about the server. What the library would
/// leave out, a fragment, has no place in it.
fn path(value: &[u8]) -> Option<PathAndQuery> {
    let is_path = value.starts_with(b"/") || value == b"*";
    (is_path && !value.contains(&b'#')).then(|| PathAndQuery::try_from(value).ok()).flatten()
}

fn malformed(what: &str) -> Violation {
    Violation { code: Code::MESSAGE_ERROR, reason: format!("a message that {what}") }
}

/// Fields to send; trailers consist of these only. Fields of HTTP/1.1 for one connection are left out.
pub(crate) fn ordinary(fields: &HeaderMap) -> impl Iterator<Item = Field<'_>> {
    // RFC 9114 §4.2 MUST NOT-1, MUST NOT-2, RFC 9114 §4.1 MUST NOT-1: nothing of one connection, and of TE the one value that is left
    let stays = |(name, value): &(&HeaderName, &HeaderValue)| {
        !FORBIDDEN.contains(&name.as_str()) && (*name != header::TE || *value == "trailers")
    };
    // RFC 9114 §4.2 MUST-1: the library's names have small letters only
    // RFC 9204 §4.5.4 MUST-2, RFC 9204 §7.1.3 MUST-1: what was not to be indexed stays so
    fields.iter().filter(stays).map(|(name, value)| Field {
        name: name.as_str().as_bytes(),
        value: value.as_bytes(),
        sensitive: value.is_sensitive(),
    })
}

fn pseudo<'a>(name: &'a [u8], value: &'a [u8]) -> Field<'a> {
    Field { name, value, sensitive: false }
}

/// Target of a request.
pub(crate) struct Target<'a> {
    authority: &'a str,
    /// `None` for a plain CONNECT.
    path: Option<Cow<'a, str>>,
}

/// Target of a request, as its URI or its `host` states it.
///
/// # Errors
/// When it names no host, or, for a plain CONNECT, no port.
pub(crate) fn target<'a>(head: &'a http::request::Parts, protocol: Option<&Protocol>) -> Result<Target<'a>, Error> {
    let host = || head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = head.uri.authority().map(Authority::as_str).or_else(host);
    let authority = authority.ok_or(Error::Request(RequestFault::NoHost))?;
    // RFC 9114 §4.3.1 MUST NOT-1: who asks is not part of where
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if authority.is_empty() {
        return Err(Error::Request(RequestFault::NoHost));
    }
    if head.method == Method::CONNECT && protocol.is_none() {
        // RFC 9114 §4.4 MUST-1: a host and a port
        let has_port = authority.parse::<Authority>().is_ok_and(|authority| authority.port().is_some());
        let target = Target { authority, path: None };
        return has_port.then_some(target).ok_or(Error::Request(RequestFault::NoPort));
    }
    // RFC 9114 §4.3.1 MUST-3: an URI may end behind its host, or go on with a query there
    let path = match head.uri.path_and_query().map_or("/", PathAndQuery::as_str) {
        path if path.starts_with(['/', '*']) => Cow::Borrowed(path),
        query => Cow::Owned(format!("/{query}")),
    };
    Ok(Target { authority, path: Some(path) })
}

/// Encoded fields of a request.
pub(crate) fn of_request<'a>(
    head: &'a http::request::Parts,
    target: &'a Target<'a>,
    protocol: Option<&'a Protocol>,
) -> impl Iterator<Item = Field<'a>> {
    let scheme = head.uri.scheme_str().unwrap_or("https");
    let place = target.path.as_deref();
    let place = place.map(|path| [pseudo(b":scheme", scheme.as_bytes()), pseudo(b":path", path.as_bytes())]);
    // RFC 9114 §4.3 MUST NOT-1, MUST-2: these, before all others
    let first =
        [pseudo(b":method", head.method.as_str().as_bytes()), pseudo(b":authority", target.authority.as_bytes())];
    let protocol = protocol.map(|protocol| pseudo(b":protocol", protocol.0.as_bytes()));
    // RFC 9114 §4.3.1 SHOULD-1, MUST-6: the authority stands for the host, so that they cannot differ
    let others = ordinary(&head.headers).filter(|field| field.name != b"host");
    first.into_iter().chain(place.into_iter().flatten()).chain(protocol).chain(others)
}

/// Encoded fields of a response.
pub(crate) fn of_response(head: &http::response::Parts) -> impl Iterator<Item = Field<'_>> {
    [pseudo(b":status", head.status.as_str().as_bytes())].into_iter().chain(ordinary(&head.headers))
}

/// The size of a field section in bytes, as RFC 9114 §4.2.2 counts it.
pub(crate) fn size<'a>(fields: impl Iterator<Item = Field<'a>>) -> u64 {
    fields.map(|field| (field.name.len() + field.value.len()) as u64 + 32).sum()
}

/// The length of the content that the fields promise, in bytes.
///
/// # Errors
/// When there are several that differ, or one that is no number: RFC 9110 §8.6.
pub(crate) fn promised(fields: &HeaderMap) -> Result<Option<u64>, Violation> {
    let mut length = None;
    for value in fields.get_all(header::CONTENT_LENGTH) {
        let text =
            value.to_str().ok().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = text.and_then(|text| text.parse::<u64>().ok());
        if number.is_none() || length.is_some_and(|length| Some(length) != number) {
            return Err(malformed("has a content-length that makes no sense"));
        }
        length = number;
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(request: Request<()>) -> Result<Vec<(String, String)>, Error> {
        let (head, ()) = request.into_parts();
        let protocol = head.extensions.get::<Protocol>();
        let target = target(&head, protocol)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = of_request(&head, &target, protocol).map(|field| (text(field.name), text(field.value)));
        Ok(fields.collect())
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    /// RFC 9114 §4.3.1 MUST NOT-1, MUST NOT-2, MUST NOT-3, MUST-3, MUST-4, MUST-5, MUST-6, SHOULD-1, RFC 9114 §4.3 MUST NOT-1
    /// RFC 9114 §4.3 MUST-2
    #[test]
    fn what_a_request_is_for() {
        let get = |uri: &str| Request::get(uri).body(()).unwrap();
        for (request, authority, path) in [
            (get("https://a.example/x?y=1"), "a.example", "/x?y=1"),
            (get("https://a.example"), "a.example", "/"),
            (get("https://a.example?y=1"), "a.example", "/?y=1"),
            (get("https://somebody:secret@a.example:8443/"), "a.example:8443", "/"),
            (Request::get("https://a.example/").header("host", "b.example").body(()).unwrap(), "a.example", "/"),
            (Request::options("*").header("host", "a.example").body(()).unwrap(), "a.example", "*"),
        ] {
            let expected = [
                (":method", request.method().as_str()),
                (":authority", authority),
                (":scheme", "https"),
                (":path", path),
            ];
            assert_eq!(sent(request.clone()).unwrap(), pairs(&expected));
        }
        for request in [get("/x"), Request::get("/x").header("host", "").body(()).unwrap()] {
            assert!(matches!(sent(request), Err(Error::Request(RequestFault::NoHost))));
        }
    }

    /// RFC 9114 §4.4 MUST-1
    #[test]
    fn a_connect_names_a_host_and_a_port() {
        let connect = |uri: &str| Request::connect(uri).body(()).unwrap();
        let expected = pairs(&[(":method", "CONNECT"), (":authority", "a.example:443")]);
        assert_eq!(sent(connect("a.example:443")).unwrap(), expected);
        assert!(matches!(sent(connect("a.example")), Err(Error::Request(RequestFault::NoPort))));
        let mut extended = connect("https://a.example/x");
        extended.extensions_mut().insert(Protocol::from_static("websocket"));
        let names: Vec<_> = sent(extended).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [":method", ":authority", ":scheme", ":path", ":protocol"]);
    }

    /// RFC 9114 §4.1 MUST NOT-1, RFC 9114 §4.2 MUST-1, MUST NOT-1, MUST NOT-2
    #[test]
    fn what_concerns_one_connection_is_not_sent() {
        let mut fields = HeaderMap::new();
        for name in FORBIDDEN {
            fields.insert(name, "x".parse().unwrap());
        }
        fields.insert(HeaderName::from_bytes(b"X-Large").unwrap(), "1".parse().unwrap());
        for (te, stays) in [("gzip", false), ("trailers, deflate", false), ("trailers", true)] {
            fields.insert("te", te.parse().unwrap());
            let mut names: Vec<_> = ordinary(&fields).map(|field| field.name.to_vec()).collect();
            names.sort();
            assert_eq!(names, if stays { vec![&b"te"[..], b"x-large"] } else { vec![&b"x-large"[..]] });
        }
    }
}
