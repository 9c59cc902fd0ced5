//! Settings of a route around its handler: redirections, header fields, compression, error pages.

use std::path::Path;

use http::{HeaderName, HeaderValue, StatusCode, Uri};

use super::{
    Many, Route, Size, WebTransport,
    read::{
        Fault,
        Step::{Key, Number},
        nearest,
    },
    section::section,
};

/// Content codings that exist, as HTTP names them.
pub(crate) const CODINGS: [&str; 3] = ["zstd", "br", "gzip"];

section! {
    /// `[route.compression]`: compression of content for clients that accept it. Content that has a coding, partial content, and
    /// `cache-control: no-transform` stay unchanged. An attacker who controls a part of a page can guess secrets in it from its compressed
    /// length (BREACH): leave compression off at routes with such pages.
    pub struct Compression {
        /// Codings in order of preference, for clients without one: `zstd`, `br`, `gzip`. One or a list.
        codings: Many = Many(CODINGS.map(str::to_owned).to_vec()),
        /// Media types; `text/*` matches all types with this prefix. One or a list.
        types: Many = Many([
            "text/html", "text/css", "text/plain", "text/javascript", "text/xml", "text/csv", "text/markdown", "application/json",
            "application/javascript", "application/xml", "application/wasm", "application/manifest+json", "application/ld+json",
            "application/rss+xml", "application/atom+xml", "image/svg+xml",
        ].map(str::to_owned).to_vec()),
        /// Smallest content that is compressed, if the length is known.
        min_size: Size = Size(1_024),
    }
}

section! {
    /// `[route.request-headers]` and `[route.response-headers]`: rules for header fields, applied in the order `remove`, `set`, `add`.
    /// Fields that frame a message or belong to one connection are refused. In requests, fields in which the gateway describes the client
    /// are refused too.
    pub struct HeaderRules {
        /// Fields to remove. One or a list.
        remove: Many = Many::default(),
        /// Fields that replace all fields of the same name: `{ x-frame-options = "DENY" }`.
        set: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new(),
        /// Fields that are added to those of the same name.
        add: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new(),
    }
}

/// Fields that no rule may touch: they frame a message, or concern one connection.
const FIXED: [&str; 11] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "alt-svc",
    "content-encoding",
];

/// Checks a route's settings of the site.
pub(super) fn check(number: usize, route: &Route) -> Result<(), Fault> {
    check_redirect(number, route)?;
    let at = |key| [Key("route"), Number(number), Key(key)];
    let files_only = [
        ("fallback", !route.fallback.is_empty()),
        ("precompressed", route.precompressed),
        ("index", route.index != Route::default().index),
    ];
    if let Some((key, _)) = files_only.iter().find(|(_, given)| *given && route.files.is_empty()) {
        return Err(Fault::new(&at(key), "expected `files`: it is about files of a directory"));
    }
    if let Some(name) =
        route.index.0.iter().chain(Some(&route.fallback)).find(|name| name.contains("..") || name.starts_with('/'))
    {
        let key = if *name == route.fallback { "fallback" } else { "index" };
        return Err(Fault::new(&at(key), format!("expected a name below `files`, found `{name}`")));
    }
    let rewrites = !route.rewrite.is_empty();
    let has_paths = !route.to.0.is_empty() || route.webtransport.as_ref().is_some_and(WebTransport::is_passed_on);
    if rewrites && !has_paths {
        return Err(Fault::new(&at("rewrite"), "expected `to`: it is about what a back end is asked for"));
    }
    if rewrites && route.strip {
        return Err(Fault::new(&at("rewrite"), "expected either `strip` or `rewrite`, found both"));
    }
    let is_path = |text: &str| text.starts_with('/') && !text.contains(['?', '#']) && text.parse::<Uri>().is_ok();
    if rewrites && !is_path(&route.rewrite) {
        let message = format!("expected a path that begins with `/`, found `{}`", route.rewrite);
        return Err(Fault::new(&at("rewrite"), message));
    }
    check_rules(number, "request-headers", &route.request_headers)?;
    check_rules(number, "response-headers", &route.response_headers)?;
    if route.request_headers != HeaderRules::default() && route.to.0.is_empty() {
        return Err(Fault::new(&at("request-headers"), "expected `to`: nobody else gets the request"));
    }
    for status in route.error_pages.keys() {
        let is_error = status.parse().is_ok_and(|status: u16| (400..600).contains(&status));
        if !is_error {
            return Err(Fault::new(&at("error-pages"), format!("expected a status of 400 to 599, found `{status}`"))
                .hint("error-pages = { 404 = \"404.html\" }"));
        }
    }
    let Some(compression) = &route.compression else { return Ok(()) };
    let at = |key| [Key("route"), Number(number), Key("compression"), Key(key)];
    if let Some(coding) = compression.codings.0.iter().find(|coding| !CODINGS.contains(&coding.as_str())) {
        let fault = Fault::new(&at("codings"), format!("there is no coding `{coding}`; expected zstd, br or gzip"));
        return Err(match nearest(coding, CODINGS) {
            Some(name) => fault.hint(format!("did you mean `{name}`?")),
            None => fault,
        });
    }
    if compression.codings.0.is_empty() || compression.types.0.is_empty() {
        return Err(Fault::new(&[Key("route"), Number(number), Key("compression")], "nothing would be compressed"));
    }
    let is_type =
        |text: &&String| text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    match compression.types.0.iter().find(|text| !is_type(text) || text.contains(';')) {
        Some(text) => Err(Fault::new(
            &at("types"),
            format!("expected a media type as in `text/html` or `text/*`, found `{text}`"),
        )),
        None => Ok(()),
    }
}

fn check_redirect(number: usize, route: &Route) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key(key)];
    if route.redirect.is_empty() {
        return match route.redirect_status == Route::default().redirect_status {
            true => Ok(()),
            false => Err(Fault::new(&at("redirect-status"), "expected `redirect` beside it")),
        };
    }
    if StatusCode::from_u16(route.redirect_status).is_err()
        || ![301, 302, 303, 307, 308].contains(&route.redirect_status)
    {
        let message = format!("expected 301, 302, 303, 307 or 308, found {}", route.redirect_status);
        return Err(Fault::new(&at("redirect-status"), message));
    }
    let filled = route.redirect.replace("{path}", "x");
    let is_path = filled.starts_with('/') && !filled.starts_with("//");
    let is_url = filled.starts_with("https://") || filled.starts_with("http://");
    if !(is_path || is_url) || filled.contains(['{', '}', ' ', '\\']) || filled.parse::<Uri>().is_err() {
        let message = format!("expected a URL or a path, found `{}`", route.redirect);
        return Err(Fault::new(&at("redirect"), message).hint("https://www.example.org/{path}, or /new/{path}"));
    }
    // The host is a matter of the configuration alone: a client's path never becomes a part of it.
    let host = filled.split("://").nth(1).map(|rest| rest.split('/').next().unwrap_or_default());
    let written = route.redirect.split("://").nth(1).map(|rest| rest.split('/').next().unwrap_or_default());
    if host != written {
        return Err(Fault::new(&at("redirect"), "`{path}` stands behind the host and a slash")
            .hint("https://www.example.org/{path}"));
    }
    Ok(())
}

fn check_rules(number: usize, section: &'static str, rules: &HeaderRules) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key(section), Key(key)];
    let (set, add) = (rules.set.iter().map(|rule| ("set", rule)), rules.add.iter().map(|rule| ("add", rule)));
    let removed = rules.remove.0.iter().map(|name| ("remove", name));
    let named = set.clone().chain(add.clone()).map(|(key, (name, _))| (key, name));
    for (key, name) in removed.chain(named) {
        let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
            return Err(Fault::new(&at(key), format!("`{name}` is no name of a header field")));
        };
        let is_gateways = section == "request-headers" && crate::fields::is_gateways(parsed.as_str());
        if FIXED.contains(&parsed.as_str()) || is_gateways {
            return Err(Fault::new(&at(key), format!("`{name}` is the gateway's")));
        }
    }
    match set.chain(add).find(|(_, (_, value))| HeaderValue::from_str(value).is_err()) {
        Some((key, (name, _))) => {
            Err(Fault::new(&at(key), format!("the value of `{name}` has characters that no field may have")))
        }
        None => Ok(()),
    }
}

/// Checks the files that routes name beside their directories.
pub(super) fn check_files(routes: &[Route]) -> Result<(), Fault> {
    for (number, route) in routes.iter().enumerate() {
        if let Some((status, path)) = route.error_pages.iter().find(|(_, path)| !Path::new(path).is_file()) {
            let message = format!("expected a page for {status}, found no file at {path}");
            return Err(Fault::new(&[Key("route"), Number(number), Key("error-pages")], message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const TOP: &str = "certificate = \"c\"\nkey = \"k\"\n[[route]]\n";

    #[test]
    fn faults_name_their_field() {
        let to = "to = \"http://a:1\"\n";
        let files = "files = \"/var/www\"\n";
        for (route, field) in [
            ("redirect = \"ftp://x/\"".to_owned(), "redirect"),
            ("redirect = \"//evil.example/{path}\"".to_owned(), "redirect"),
            ("redirect = \"https://{path}\"".to_owned(), "redirect"),
            ("redirect = \"https://www.example.org{path}\"".to_owned(), "redirect"),
            ("redirect = \"/x\"\nredirect-status = 200".to_owned(), "redirect-status"),
            (format!("{to}redirect-status = 301"), "redirect-status"),
            (format!("{to}redirect = \"/x\""), "redirect"),
            (format!("{to}fallback = \"x.html\""), "fallback"),
            (format!("{to}precompressed = true"), "precompressed"),
            (format!("{files}fallback = \"../x\""), "fallback"),
            (format!("{files}index = \"/etc/passwd\""), "index"),
            (format!("{files}rewrite = \"/x\""), "rewrite"),
            (format!("{to}strip = true\nrewrite = \"/x\""), "rewrite"),
            (format!("{to}rewrite = \"x\""), "rewrite"),
            (format!("{to}error-pages = {{ 200 = \"x\" }}"), "error-pages"),
            (format!("{files}request-headers.set = {{ x-a = \"1\" }}"), "request-headers"),
            (format!("{to}request-headers.set = {{ x-forwarded-for = \"1\" }}"), "request-headers.set"),
            (format!("{to}response-headers.remove = \"content-length\""), "response-headers.remove"),
            (format!("{to}response-headers.set = {{ \"a b\" = \"1\" }}"), "response-headers.set"),
            (format!("{to}response-headers.add = {{ x-a = \"1\\n2\" }}"), "response-headers.add"),
            (format!("{to}compression.codings = \"gzipp\""), "compression.codings"),
            (format!("{to}compression.codings = []"), "compression"),
            (format!("{to}compression.types = \"html\""), "compression.types"),
        ] {
            let error = parse(&format!("{TOP}{route}\n"), "edge.toml").expect_err(&route);
            assert_eq!(error.field, Some(format!("route[1].{field}")), "{route}: {error}");
        }
        for good in [
            "redirect = \"https://www.example.org/{path}\"\nhsts = \"365 d\"".to_owned(),
            "redirect = \"/new\"\nredirect-status = 302".to_owned(),
            format!(
                "{to}rewrite = \"/v2\"\ncompression = {{}}\nresponse-headers.set = {{ x-frame-options = \"DENY\" }}"
            ),
            format!("{files}fallback = \"app.html\"\nindex = [\"a.html\", \"b.html\"]\nprecompressed = true"),
        ] {
            parse(&format!("{TOP}{good}\n"), "edge.toml").unwrap_or_else(|error| panic!("{good}: {error}"));
        }
    }
}
