//! Field sections as messages: what RFC 9114 §4.2 and §4.3 ask of them, and the types of `http`.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    uri::{Authority, PathAndQuery, Scheme},
};
use qpack::Field;

use crate::error::{Code, Error, Violation};

/// What an extended CONNECT wants the stream to become (RFC 9220): the value of `:protocol`, in the extensions of a request
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

    /// The protocol's name; empty when it has letters that no name has.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Fields that concern one connection of HTTP/1.1, which has no place here (RFC 9114 §4.2).
const FORBIDDEN: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Collects the fields of one section as they are decompressed. The first thing that is wrong is kept until the end: the rest
/// still has to be decompressed.
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
            // RFC 9114 §4.3: they come first.
            if !self.fields.is_empty() {
                return Err("has a pseudo-field behind a field");
            }
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
        // RFC 9114 §4.2: names have no capital letters. The library would make them small.
        if name.iter().any(u8::is_ascii_uppercase) {
            return Err("has a field name with capital letters");
        }
        let name = HeaderName::from_bytes(name).map_err(|_| "has a field name that is none")?;
        let mut value = HeaderValue::from_bytes(value).map_err(|_| "has a field value that is none")?;
        value.set_sensitive(sensitive);
        if FORBIDDEN.contains(&name.as_str()) {
            return Err("has a field that concerns one connection of HTTP/1.1");
        }
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
        if self.status.is_some() {
            return Err(malformed("has a status"));
        }
        let Some(method) = self.method.take() else { return Err(malformed("has no method")) };
        let is_connect = method == Method::CONNECT;
        if self.protocol.is_some() && !is_connect {
            return Err(malformed("has a protocol without CONNECT"));
        }
        // RFC 9114 §4.4: a plain CONNECT names an authority and nothing else. An extended one is as the others.
        let is_plain = is_connect && self.protocol.is_none();
        if is_plain && (self.scheme.is_some() || self.path.is_some() || self.authority.is_none()) {
            return Err(malformed("is a CONNECT to something else than an authority"));
        }
        if !is_plain && (self.scheme.is_none() || self.path.is_none()) {
            return Err(malformed("lacks its scheme or its path"));
        }
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
        // RFC 9110 §4.2.4: what has a user in it is an attempt to look like another site.
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
        if self.has_request_fields() {
            return Err(malformed("has a pseudo-field of requests"));
        }
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

    /// RFC 9114 §4.2.1: a cookie that was cut into fields for compression becomes one again.
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

/// RFC 9114 §4.3.1: a path is not empty, and begins with a slash unless OPTIONS asks about the server.
fn path(value: &[u8]) -> Option<PathAndQuery> {
    let is_path = value.starts_with(b"/") || value == b"*";
    is_path.then(|| PathAndQuery::try_from(value).ok()).flatten()
}

fn malformed(what: &str) -> Violation {
    Violation { code: Code::MESSAGE_ERROR, reason: format!("a message that {what}") }
}

/// Fields as they are sent; trailers are nothing else. What concerns one connection of HTTP/1.1 is left out.
pub(crate) fn ordinary(fields: &HeaderMap) -> impl Iterator<Item = Field<'_>> {
    fields.iter().filter(|(name, _)| !FORBIDDEN.contains(&name.as_str())).map(|(name, value)| Field {
        name: name.as_str().as_bytes(),
        value: value.as_bytes(),
        sensitive: value.is_sensitive(),
    })
}

fn pseudo<'a>(name: &'a [u8], value: &'a [u8]) -> Field<'a> {
    Field { name, value, sensitive: false }
}

/// The authority that a request is for.
///
/// # Errors
/// When it names none.
pub(crate) fn authority(head: &http::request::Parts) -> Result<&[u8], Error> {
    let host = || head.headers.get(header::HOST).map(HeaderValue::as_bytes);
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes()).or_else(host);
    authority.ok_or(Error::Request("names no host"))
}

/// The fields of a request, as they are sent.
pub(crate) fn of_request<'a>(
    head: &'a http::request::Parts,
    authority: &'a [u8],
    protocol: Option<&'a Protocol>,
) -> impl Iterator<Item = Field<'a>> {
    let uri = &head.uri;
    let is_plain = head.method == Method::CONNECT && protocol.is_none();
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let scheme = uri.scheme_str().unwrap_or("https");
    let target = (!is_plain).then(|| [pseudo(b":scheme", scheme.as_bytes()), pseudo(b":path", path.as_bytes())]);
    let first = [pseudo(b":method", head.method.as_str().as_bytes()), pseudo(b":authority", authority)];
    let protocol = protocol.map(|protocol| pseudo(b":protocol", protocol.0.as_bytes()));
    first.into_iter().chain(target.into_iter().flatten()).chain(protocol).chain(ordinary(&head.headers))
}

/// The fields of a response, as they are sent.
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
