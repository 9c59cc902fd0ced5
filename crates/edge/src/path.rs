//! Normalized path of a request: routes compare, and back ends receive, the same path.
//!
//! 1. A path begins with `/`; `*` is for OPTIONS only.
//! 2. Percent-encoded letters, digits, `-`, `.`, `_` and `~` are decoded, once; hexadecimal digits of others are in upper case; bytes
//!    beyond ASCII are encoded (RFC 3986 §6.2.2).
//! 3. Several slashes in a row are one.
//! 4. Segments `.` and `..` are resolved. A path that leads above its root is refused.
//! 5. Backslashes, control characters (encoded or not) and malformed encodings are refused.
//!
//! An encoded slash (`%2F`) and a semicolon are bytes of a segment. Some back ends treat the first as a separator, and ignore what follows
//! the second. So such a path has other readings, [`Normal::loose`]. The gateway refuses the request if it would choose another route for
//! one of them.

use std::borrow::Cow;

use http::{Method, Uri, uri::PathAndQuery};

/// A path that cannot be compared with routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// A path that can be compared with routes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Normal<'a> {
    pub(crate) path: Cow<'a, str>,
    /// The path as back ends may read it that decode slashes or leave parameters out.
    pub(crate) loose: Vec<String>,
}

/// The path of a request's target.
pub(crate) fn of<'a>(method: &Method, uri: &'a Uri) -> Result<Normal<'a>, Refused> {
    match uri.path() {
        "*" if *method == Method::OPTIONS => Ok(Normal { path: Cow::Borrowed("*"), loose: Vec::new() }),
        path => normal(path),
    }
}

/// The request target with another path and the same query.
pub(crate) fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let target = match uri.query() {
        None => path.parse::<PathAndQuery>(),
        Some(query) => format!("{path}?{query}").parse(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.ok()?);
    Uri::from_parts(parts).ok()
}

/// The request target with `by` in place of `prefix`, which its path begins with; `None` when it does not.
pub(crate) fn replaced(uri: &Uri, prefix: &str, by: &str) -> Option<Uri> {
    let rest = uri.path().strip_prefix(prefix.trim_end_matches('/'))?;
    let path = match (by.trim_end_matches('/'), rest.trim_start_matches('/')) {
        // `/api` becomes `/v2`, not `/v2/`.
        (by, "") if !by.is_empty() && !rest.starts_with('/') => by.to_owned(),
        (by, rest) => format!("{by}/{rest}"),
    };
    with_path(uri, &path)
}

/// A path in its normal form.
pub(crate) fn normal(path: &str) -> Result<Normal<'_>, Refused> {
    if !path.starts_with('/') {
        return Err(Refused);
    }
    if is_plain(path) {
        return Ok(Normal { path: Cow::Borrowed(path), loose: Vec::new() });
    }
    let decoded = decode(path)?;
    let path = resolve(&decoded, true)?;
    let loose = loose(&path)?;
    Ok(Normal { path: Cow::Owned(path), loose })
}

/// Returns whether a path is certain to be in its normal form, and to have one reading.
fn is_plain(path: &str) -> bool {
    let mut before = 0;
    path.bytes().all(|byte| {
        let follows_slash = std::mem::replace(&mut before, byte) == b'/';
        byte.is_ascii_graphic()
            && !matches!(byte, b'%' | b';' | b'\\')
            && !(follows_slash && matches!(byte, b'/' | b'.'))
    })
}

/// Decodes what needs no encoding, and encodes what needs it.
fn decode(path: &str) -> Result<String, Refused> {
    let mut decoded = String::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let (byte, was_encoded) = match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (Some(high), Some(low)) = (digit(), digit()) else { return Err(Refused) };
                (u8::try_from(high * 16 + low).map_err(|_| Refused)?, true)
            }
            byte => (byte, false),
        };
        match byte {
            b'\\' | 0..=0x1f | 0x7f => return Err(Refused),
            b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => decoded.push(byte.into()),
            0x21..=0x7e if !was_encoded => decoded.push(byte.into()),
            _ => encode(&mut decoded, byte),
        }
    }
    Ok(decoded)
}

fn encode(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(DIGITS[usize::from(byte >> 4)].into());
    text.push(DIGITS[usize::from(byte & 15)].into());
}

/// Merges slashes and resolves segments of dots, or refuses them.
fn resolve(path: &str, has_dots: bool) -> Result<String, Refused> {
    let mut resolved = String::with_capacity(path.len());
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." if !has_dots => return Err(Refused),
            "" | "." => {}
            ".." => {
                let parent = resolved.rfind('/').ok_or(Refused)?;
                resolved.truncate(parent);
            }
            segment => {
                resolved.push('/');
                resolved.push_str(segment);
                continue;
            }
        }
        if is_last {
            resolved.push('/');
        }
    }
    Ok(resolved)
}

/// Readings of a path by back ends that treat encoded slashes as separators, or ignore parameters: one, the other, or both in either order.
/// Dot segments are refused there: no conforming client hides them.
fn loose(path: &str) -> Result<Vec<String>, Refused> {
    let has_slashes = path.contains("%2F");
    let has_parameters = path.contains(';') || path.contains("%3B");
    let mut readings = Vec::new();
    if has_slashes {
        readings.push(path.replace("%2F", "/"));
    }
    if has_parameters {
        readings.push(named(path));
    }
    if has_slashes && has_parameters {
        readings.push(named(&path.replace("%2F", "/")));
        readings.push(named(path).replace("%2F", "/"));
    }
    readings.iter().map(|path| resolve(path, false)).collect()
}

/// A path without the parameters of its segments.
fn named(path: &str) -> String {
    let mut named = String::with_capacity(path.len());
    for segment in path.split('/').skip(1) {
        let name = segment.split(';').next().unwrap_or_default();
        named.push('/');
        named.push_str(name.split("%3B").next().unwrap_or_default());
    }
    named
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        config::{Many, Route},
        route::Routes,
    };

    fn path(text: &str) -> Option<String> {
        normal(text).ok().map(|normal| normal.path.into_owned())
    }

    #[test]
    fn one_form_for_each_path() {
        for (text, expected) in [
            ("/", Some("/")),
            ("/a/b.c", Some("/a/b.c")),
            ("/pub/../admin", Some("/admin")),
            ("/%61dmin", Some("/admin")),
            ("//admin", Some("/admin")),
            ("/a//b///", Some("/a/b/")),
            ("/pub/%2e%2e/admin", Some("/admin")),
            ("/pub/.%2E/admin", Some("/admin")),
            ("/a/.", Some("/a/")),
            ("/a/b/..", Some("/a/")),
            ("/a/./b", Some("/a/b")),
            ("/...", Some("/...")),
            ("/.well-known/x", Some("/.well-known/x")),
            ("/%7eme/%e4%3f", Some("/~me/%E4%3F")),
            ("/%252e%252e/x", Some("/%252e%252e/x")),
            ("/ä", Some("/%C3%A4")),
            ("/a;v=1", Some("/a;v=1")),
            ("/a%2fb", Some("/a%2Fb")),
            // Out of the root, or hidden dots.
            ("/..", None),
            ("/a/../../b", None),
            ("/%2e%2e/x", None),
            ("/admin%2f..", None),
            ("/pub%2F..%2Fadmin", None),
            ("/pub/..%2fadmin", None),
            ("/pub/..;/admin", None),
            ("/pub/.;x=1/admin", None),
            ("/pub/..%3b/admin", None),
            // What nobody means.
            ("/a\\b", None),
            ("/a%5cb", None),
            ("/a%00", None),
            ("/a%0ab", None),
            ("/a%7f", None),
            ("/%zz", None),
            ("/%4", None),
            ("/%", None),
            ("", None),
            ("*", None),
            ("admin", None),
        ] {
            assert_eq!(path(text).as_deref(), expected, "{text}");
        }
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        assert_eq!(of(&Method::OPTIONS, &uri("*")).unwrap().path, "*");
        assert_eq!(of(&Method::GET, &uri("*")), Err(Refused));
        assert_eq!(of(&Method::GET, &uri("localhost:443")), Err(Refused));
        assert_eq!(with_path(&uri("https://a/x//y?b=//c"), "/x/y"), Some(uri("https://a/x/y?b=//c")));
    }

    #[test]
    fn the_path_of_a_route_can_be_left_out() {
        for (path, prefix, by, expected) in [
            ("/api/x?y=1", "/api", "", "/x?y=1"),
            ("/api", "/api/", "", "/"),
            ("/api//evil", "/api", "", "/evil"),
            ("/x", "/", "", "/x"),
            ("/api/x?y=1", "/api", "/v2", "/v2/x?y=1"),
            ("/api", "/api", "/v2", "/v2"),
            ("/api/", "/api", "/v2/", "/v2/"),
            ("/api//x", "/api", "/", "/x"),
            ("/x", "/", "/v2", "/v2/x"),
        ] {
            let replaced = replaced(&path.parse().unwrap(), prefix, by).map(|uri| uri.to_string());
            assert_eq!(replaced.as_deref(), Some(expected), "{path}");
        }
        assert_eq!(replaced(&Uri::from_static("/other"), "/api", "/v2"), None);
    }

    #[test]
    fn the_other_readings() {
        for (text, expected) in [
            ("/a%2Fb", &["/a/b"][..]),
            ("/a;x=1/b;y", &["/a/b"]),
            ("/;/a", &["/a"]),
            ("/%2F/a", &["/a"]),
            ("/a%3Bx", &["/a"]),
            ("/;%2Fa/b", &["/;/a/b", "/b", "/a/b", "/b"]),
            ("/a/b", &[]),
        ] {
            assert_eq!(normal(text).unwrap().loose, expected, "{text}");
        }
    }

    fn routes() -> Routes<usize> {
        let list = ["/", "/a", "/a/b", "/pub", "/a.b", "/.b"];
        Routes::new(list.iter().enumerate().map(|(number, path)| {
            (Route { host: Many::default(), path: (*path).to_owned(), ..Route::default() }, number)
        }))
    }

    /// The route of a request for `text`; `None` when it is refused.
    fn routed(routes: &Routes<usize>, text: &str) -> Option<(usize, String)> {
        let normal = normal(text).ok()?;
        let route = routes.find_for("x", &normal).ok()??;
        Some((*route, normal.path.into_owned()))
    }

    /// A path as a careless server reads it: everything is decoded, backslashes separate, parameters are left out, dots resolved.
    fn careless(path: &str, decodes_slashes: bool, drops_parameters: bool) -> String {
        let kept = if decodes_slashes { path.to_owned() } else { path.replace("%2F", "%252F") };
        let mut decoded = Vec::new();
        let mut rest = kept.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            let digits =
                after.get(..2).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
            match digits.filter(|_| byte == b'%') {
                Some(value) => {
                    decoded.push(value);
                    rest = &after[2..];
                }
                None => {
                    decoded.push(byte);
                    rest = after;
                }
            }
        }
        let decoded = String::from_utf8_lossy(&decoded).replace('\\', "/");
        let mut segments: Vec<&str> = Vec::new();
        for segment in decoded.split('/') {
            match if drops_parameters { segment.split(';').next().unwrap() } else { segment } {
                "" | "." => {}
                ".." => drop(segments.pop()),
                segment => segments.push(segment),
            }
        }
        format!("/{}", segments.join("/"))
    }

    fn any_path() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("/"),
            Just("a"),
            Just("b"),
            Just("pub"),
            Just("."),
            Just(".."),
            Just("%2e"),
            Just("%2E"),
            Just("%2f"),
            Just("%2F"),
            Just("%61"),
            Just("%41"),
            Just(";"),
            Just("%3b"),
            Just("\\"),
            Just("%5c"),
            Just("%00"),
            Just("%"),
            Just("%25"),
            Just("?"),
            Just("/../"),
            Just("//"),
            Just("ä"),
            Just("=1"),
            Just("*"),
            Just("/a/b/"),
            Just("/pub/"),
            Just(".b"),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

        /// A back end receives the path whose route was chosen, however it reads the path.
        #[test]
        fn nobody_goes_around_a_route(text in any_path()) {
            let routes = routes();
            // What a client sends as its query is none of the path.
            let text = text.split('?').next().unwrap();
            if let Some((route, sent)) = routed(&routes, text) {
                prop_assert_eq!(routed(&routes, &sent), Some((route, sent.clone())), "{} is sent as {}", text, sent);
                for (slashes, parameters) in [(false, false), (false, true), (true, false), (true, true)] {
                    let read = careless(&sent, slashes, parameters);
                    prop_assert_eq!(routes.find("x", &read), Some(&route), "{} is sent as {} and read as {}", text, sent, read);
                }
            }
        }
    }
}
