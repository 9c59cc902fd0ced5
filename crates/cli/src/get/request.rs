//! Request from the options: method, fields and content.

use std::{io::Read, net::IpAddr, str::FromStr};

use bytes::Bytes;
use clap::Args as Group;
use client::KnownAddresses;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use url::Url;

use crate::failure::Failure;

/// Heading of the options about the request.
const REQUEST: &str = "Request";

/// The options about the request.
#[derive(Debug, Group)]
pub(super) struct RequestArgs {
    /// Use this method in place of GET
    #[arg(short = 'X', long = "request", value_name = "METHOD", help_heading = REQUEST)]
    method: Option<Method>,
    /// Send this field; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", help_heading = REQUEST)]
    fields: Vec<Field>,
    /// Send this content, with POST unless -X says otherwise; `@FILE` sends a file, `@-` standard input
    ///
    /// Several values are joined by `&`. The type is application/x-www-form-urlencoded unless -H says otherwise. A file is sent unchanged.
    #[arg(short = 'd', long = "data", value_name = "DATA", help_heading = REQUEST)]
    data: Vec<String>,
    /// Request the header only (HEAD), and print it
    #[arg(short = 'I', long = "head", conflicts_with_all = ["method", "data"], help_heading = REQUEST)]
    pub(super) head: bool,
    /// Request compressed content (zstd, br, gzip, deflate), and decompress it
    #[arg(long, help_heading = REQUEST)]
    pub(super) compressed: bool,
    /// Follow redirects to other https URLs
    ///
    /// After 301, 302 and 303 a request with content becomes a GET without it; 307 and 308 repeat it. Credentials (authorization,
    /// cookie) are not sent to another origin.
    #[arg(short = 'L', long = "location", help_heading = REQUEST)]
    pub(super) follow: bool,
    /// Follow at most this many redirects
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = REQUEST)]
    pub(super) max_redirs: u32,
}

/// A field of a request.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: HeaderName,
    pub(crate) value: HeaderValue,
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once(':').ok_or("write it like 'accept: text/html'")?;
        let name = name.trim().parse().map_err(|_| format!("`{}` is no name of a field", name.trim()))?;
        let value = value.trim().parse().map_err(|_| format!("`{}` is no value of a field", value.trim()))?;
        Ok(Self { name, value })
    }
}

/// An address that is not looked up: `HOST:PORT:ADDRESS`, an IPv6 address in brackets or without.
#[derive(Clone, Debug)]
pub(crate) struct Resolved(pub(crate) KnownAddresses);

impl FromStr for Resolved {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || "write it like example.org:443:192.0.2.1".to_owned();
        let (host, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (port, addresses) = rest.split_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| format!("`{port}` is no port"))?;
        let address = |text: &str| {
            let bare = text.trim().trim_start_matches('[').trim_end_matches(']');
            bare.parse::<IpAddr>().map_err(|_| format!("`{text}` is no IP address"))
        };
        let addresses = addresses.split(',').map(address).collect::<Result<_, _>>()?;
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self(KnownAddresses { host: host.to_ascii_lowercase(), port, addresses }))
    }
}

/// A request that can be made again where a redirect leads.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) url: Url,
    pub(super) method: Method,
    pub(super) fields: HeaderMap,
    content: Option<Bytes>,
}

impl RequestArgs {
    /// The request for `url`.
    ///
    /// # Errors
    /// When the URL cannot be asked for, or a file with content cannot be read.
    pub(super) fn request(&self, url: &str) -> Result<Asked, Failure> {
        let url = https(url)?;
        let content = self.content()?;
        let mut fields = HeaderMap::new();
        fields.insert(header::USER_AGENT, HeaderValue::from_static(concat!("tiderace/", env!("CARGO_PKG_VERSION"))));
        if self.compressed {
            fields.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("zstd, br, gzip, deflate"));
        }
        if content.is_some() {
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            fields.insert(header::CONTENT_TYPE, form);
        }
        // The first of a name replaces ours; the others come beside it.
        let mut own: Vec<&HeaderName> = Vec::new();
        for Field { name, value } in &self.fields {
            if own.contains(&name) {
                fields.append(name, value.clone());
            } else {
                fields.insert(name, value.clone());
                own.push(name);
            }
        }
        let usual = match (self.head, &content) {
            (true, _) => Method::HEAD,
            (false, Some(_)) => Method::POST,
            (false, None) => Method::GET,
        };
        Ok(Asked { url, method: self.method.clone().unwrap_or(usual), fields, content })
    }

    fn content(&self) -> Result<Option<Bytes>, Failure> {
        if self.data.is_empty() {
            return Ok(None);
        }
        let mut content = Vec::new();
        for (place, data) in self.data.iter().enumerate() {
            if place > 0 {
                content.push(b'&');
            }
            match data.strip_prefix('@') {
                None => content.extend_from_slice(data.as_bytes()),
                Some("-") => {
                    let read = std::io::stdin().lock().read_to_end(&mut content);
                    read.map_err(|error| {
                        Failure::new(format_args!("cannot read the standard input: {error}"))
                            .hint("`-d @-` sends what is written to it")
                    })?;
                }
                Some(file) => content.extend(std::fs::read(file).map_err(|error| {
                    Failure::new(format_args!("cannot read {file}: {error}"))
                        .hint("`-d @FILE` sends a file; content that begins with @ comes from a file as well")
                })?),
            }
        }
        Ok(Some(content.into()))
    }
}

/// An https URL.
pub(crate) fn https(text: &str) -> Result<Url, Failure> {
    let wrong = |why: &str| Failure::new(format_args!("`{text}` {why}")).hint("write it like https://localhost:8443/");
    let url = Url::parse(text).map_err(|error| wrong(&format!("is no URL: {error}")))?;
    if url.scheme() != "https" {
        return Err(wrong("is no https URL"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(wrong("has no host"));
    }
    Ok(url)
}

impl Asked {
    /// The request as the client takes it.
    ///
    /// # Errors
    /// When the URL cannot be written as a target.
    pub(super) fn request(&self) -> Result<Request<Full<Bytes>>, Failure> {
        let mut url = self.url.clone();
        // RFC 9110 §4.2.4, RFC 3986 §3.5: names and fragments are not sent.
        url.set_fragment(None);
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(url.as_str())
            .body(Full::new(self.content.clone().unwrap_or_default()))
            .map_err(|error| Failure::new(format_args!("`{url}` cannot be asked for: {error}")))?;
        *request.headers_mut() = self.fields.clone();
        Ok(request)
    }

    /// Request that an answer with this status and header leads to, or `None` where it is no redirect.
    ///
    /// # Errors
    /// When it leads where this program does not go.
    pub(super) fn redirected(&self, status: StatusCode, fields: &HeaderMap) -> Result<Option<Self>, String> {
        // RFC 9110 §15.4
        let repeats = match status.as_u16() {
            301..=303 => false,
            307 | 308 => true,
            _ => return Ok(None),
        };
        let Some(location) = fields.get(header::LOCATION) else { return Ok(None) };
        let location = String::from_utf8_lossy(location.as_bytes());
        let mut url = self.url.join(&location).map_err(|error| format!("the redirect to `{location}`: {error}"))?;
        if url.scheme() != "https" {
            return Err(format!("the redirect to `{url}` leaves https"));
        }
        // RFC 9110 §10.2.2: a fragment is inherited.
        if url.fragment().is_none() {
            url.set_fragment(self.url.fragment());
        }
        let mut next = Self { url, ..self.clone() };
        if next.url.origin() != self.url.origin() {
            for name in [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION] {
                next.fields.remove(name);
            }
        }
        let safe = self.method == Method::GET || self.method == Method::HEAD;
        if !repeats && !safe {
            next.method = Method::GET;
            next.content = None;
            next.fields.remove(header::CONTENT_TYPE);
        }
        Ok(Some(next))
    }

    /// The last part of the URL's path, as the name of a file.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn file_name(&self) -> Result<String, Failure> {
        let segment = self.url.path_segments().and_then(Iterator::last).unwrap_or_default();
        let letter = |letter: char| !letter.is_control() && !matches!(letter, '/' | '\\' | ':');
        if segment.is_empty() || segment == "." || segment == ".." || !segment.chars().all(letter) {
            return Err(Failure::new(format_args!("`{}` does not end with the name of a file", self.url))
                .hint("say with `-o FILE` where it goes"));
        }
        Ok(segment.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        request: RequestArgs,
    }

    fn asked(url: &str, options: &[&str]) -> Asked {
        let line = Line::try_parse_from(std::iter::once("get").chain(options.iter().copied())).unwrap();
        line.request.request(url).unwrap()
    }

    fn to(location: &str) -> HeaderMap {
        [(header::LOCATION, location.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn content_makes_a_post() {
        let one = asked("https://a.test/", &["-d", "a=1", "-d", "b=2"]);
        assert_eq!((one.method, one.content.as_deref()), (Method::POST, Some(&b"a=1&b=2"[..])));
        assert_eq!(one.fields[header::CONTENT_TYPE], "application/x-www-form-urlencoded");
        let put = asked("https://a.test/", &["-X", "PUT", "-d", "{}", "-H", "Content-Type: application/json"]);
        assert_eq!(
            (put.method, &put.fields[header::CONTENT_TYPE]),
            (Method::PUT, &"application/json".parse().unwrap())
        );
        let twice = asked("https://a.test/", &["-H", "cookie: a", "-H", "cookie: b", "-H", "User-Agent: x"]);
        assert_eq!(twice.fields.get_all(header::COOKIE).iter().count(), 2);
        assert_eq!(twice.fields[header::USER_AGENT], "x");
        assert_eq!(asked("https://a.test/", &["-I"]).method, Method::HEAD);
    }

    #[test]
    fn redirects_keep_what_they_should() {
        let post = asked("https://a.test/x/y?q#part", &["-d", "a", "-H", "authorization: me", "-H", "x-other: 1"]);
        for status in [301, 302, 303] {
            let next = post.redirected(StatusCode::from_u16(status).unwrap(), &to("../z")).unwrap().unwrap();
            assert_eq!(next.url.as_str(), "https://a.test/z#part");
            assert_eq!((next.method, next.content), (Method::GET, None));
            assert!(!next.fields.contains_key(header::CONTENT_TYPE) && next.fields.contains_key(header::AUTHORIZATION));
        }
        let next = post.redirected(StatusCode::PERMANENT_REDIRECT, &to("https://b.test/")).unwrap().unwrap();
        assert_eq!((next.method.clone(), next.content.as_deref()), (Method::POST, Some(&b"a"[..])));
        assert!(!next.fields.contains_key(header::AUTHORIZATION) && next.fields.contains_key("x-other"));
        assert!(post.redirected(StatusCode::FOUND, &to("http://a.test/")).unwrap_err().contains("leaves https"));
        assert!(post.redirected(StatusCode::OK, &to("/")).unwrap().is_none());
        assert!(post.redirected(StatusCode::FOUND, &HeaderMap::new()).unwrap().is_none());
        // A port makes another origin.
        let next = post.redirected(StatusCode::TEMPORARY_REDIRECT, &to("https://a.test:444/")).unwrap().unwrap();
        assert!(!next.fields.contains_key(header::AUTHORIZATION));
    }

    #[test]
    fn neither_names_nor_fragments_are_sent() {
        let one = asked("https://me:secret@a.test/x#part", &[]).request().unwrap();
        assert_eq!(one.uri(), "https://a.test/x");
    }

    #[test]
    fn names_of_files_stay_in_the_folder() {
        let name = |url: &str| asked(url, &[]).file_name().ok();
        assert_eq!(name("https://a.test/x/file.bin?q=/etc").as_deref(), Some("file.bin"));
        assert_eq!(name("https://a.test/a%2fb").as_deref(), Some("a%2fb"));
        for none in ["https://a.test", "https://a.test/x/", "https://a.test/..", "https://a.test/c:x"] {
            assert_eq!(name(none), None, "{none}");
        }
    }

    #[test]
    fn addresses_are_read() {
        let known = |text: &str| text.parse::<Resolved>().map(|resolved| resolved.0);
        let one = known("A.test:443:192.0.2.1").unwrap();
        assert_eq!((one.host.as_str(), one.port, one.addresses.len()), ("a.test", 443, 1));
        assert_eq!(known("a.test:1:[::1],127.0.0.1").unwrap().addresses.len(), 2);
        for wrong in ["a.test", "a.test:443", ":443:::1", "a.test:x:::1", "a.test:443:b.test"] {
            assert!(known(wrong).is_err(), "{wrong}");
        }
    }
}
