//! Redirections to another URL.

use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};

use crate::{answer::plain, body::AnyBody, config::Route};

/// The handler of a route that redirects.
pub(crate) struct Redirect {
    to: String,
    status: StatusCode,
    /// The route's path without a slash at its end.
    prefix: String,
}

impl Redirect {
    pub(crate) fn new(route: &Route) -> Self {
        Self {
            to: route.redirect.clone(),
            status: StatusCode::from_u16(route.redirect_status).unwrap_or(StatusCode::PERMANENT_REDIRECT),
            prefix: route.path.trim_end_matches('/').to_owned(),
        }
    }

    /// Answers a request for `uri`.
    pub(crate) fn answer(&self, uri: &Uri) -> Response<AnyBody> {
        let asked = uri.path_and_query().map_or("/", |path| path.as_str());
        // Further slashes would stand at the beginning of a path, where two of them name a host.
        let rest = asked.strip_prefix(&self.prefix).unwrap_or(asked).trim_start_matches('/');
        located(self.status, &self.to.replace("{path}", rest))
    }
}

fn located(status: StatusCode, to: &str) -> Response<AnyBody> {
    let Ok(location) = HeaderValue::from_str(to) else { return plain(StatusCode::BAD_REQUEST) };
    let mut response = plain(status);
    response.headers_mut().insert(header::LOCATION, location);
    response
}

/// Redirects a request of plain HTTP to the same URL with `https`, at `port` if that is not 443.
pub(crate) fn to_https(uri: &Uri, fields: &HeaderMap, port: u16) -> Response<AnyBody> {
    let field = fields.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = uri.authority().map(http::uri::Authority::as_str).or(field);
    let authority = authority.filter(|host| crate::host::is_host(host));
    let Some(authority) = authority else { return plain(StatusCode::BAD_REQUEST) };
    let host = match authority.rsplit_once(':') {
        // Not the last part of an IPv6 address.
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.starts_with('/') { path } else { "/" };
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    located(StatusCode::PERMANENT_REDIRECT, &format!("https://{host}{port}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(response: &Response<AnyBody>) -> (u16, &str) {
        (response.status().as_u16(), response.headers().get("location").map_or("", |to| to.to_str().unwrap()))
    }

    #[test]
    fn the_path_goes_where_it_is_wanted() {
        let redirect = |path: &str, to: &str, asked: &str| {
            let route = Route { path: path.to_owned(), redirect: to.to_owned(), ..Route::default() };
            location(&Redirect::new(&route).answer(&asked.parse().unwrap())).1.to_owned()
        };
        assert_eq!(redirect("/", "https://www.example.org/{path}", "/a/b?c=d"), "https://www.example.org/a/b?c=d");
        assert_eq!(redirect("/old", "/new/{path}", "/old/a?b"), "/new/a?b");
        assert_eq!(redirect("/old", "/new/{path}", "/old"), "/new/");
        assert_eq!(redirect("/old", "/new", "/old/a"), "/new");
        assert_eq!(redirect("/old", "/{path}", "/old//evil.example/x"), "/evil.example/x");
    }

    #[test]
    fn plain_http_leads_to_the_same_with_tls() {
        let led = |uri: &str, host: Option<&'static str>, port| {
            let fields = host.map(|host| (header::HOST, HeaderValue::from_static(host))).into_iter().collect();
            let response = to_https(&uri.parse().unwrap(), &fields, port);
            let (status, to) = location(&response);
            (status, to.to_owned())
        };
        assert_eq!(led("/a?b", Some("example.org"), 443), (308, "https://example.org/a?b".to_owned()));
        assert_eq!(led("/", Some("example.org:80"), 8443), (308, "https://example.org:8443/".to_owned()));
        assert_eq!(led("/", Some("[::1]:80"), 443), (308, "https://[::1]/".to_owned()));
        assert_eq!(led("/", Some("[::1]"), 443), (308, "https://[::1]/".to_owned()));
        assert_eq!(led("http://example.org/x", Some("other"), 443), (308, "https://example.org/x".to_owned()));
        assert_eq!(led("*", Some("example.org"), 443), (308, "https://example.org/".to_owned()));
        assert_eq!(led("/", None, 443).0, 400);
        assert_eq!(led("/", Some("a/b@c"), 443).0, 400);
    }
}
