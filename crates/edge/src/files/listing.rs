//! Lists of directories: the names that requests find there, in order, as a page of HTML.

use std::{
    fmt::Write as _,
    fs::{self, File, Metadata},
    io,
    os::fd::AsRawFd,
};

use http::{HeaderValue, Method, Response, header};

use crate::body::{AnyBody, full};

/// Names that a list has at most: each costs a look at the file.
const MOST: usize = 10_000;

/// Name in a directory.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// Directories come first.
    is_file: bool,
    name: String,
    length: u64,
}

/// Entries of a directory, and whether there are more than [`MOST`].
pub(super) struct Listed {
    entries: Vec<Entry>,
    are_all: bool,
}

/// Reads the directory that is open, without the names that no request finds: hidden ones, and those that `look` does not reach.
///
/// # Errors
/// Whatever reading the directory fails with.
pub(super) fn entries(directory: &File, look: impl Fn(&str) -> io::Result<Metadata>) -> io::Result<Listed> {
    // The directory that is open, even if another one has its name by now.
    let mut names = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    let (mut entries, mut are_all) = (Vec::new(), true);
    for name in names.by_ref() {
        let Ok(name) = name?.file_name().into_string() else { continue };
        if name.starts_with('.') || name.contains('\\') {
            continue;
        }
        if entries.len() == MOST {
            are_all = false;
            break;
        }
        let Ok(found) = look(&name) else { continue };
        if found.is_file() || found.is_dir() {
            entries.push(Entry { is_file: found.is_file(), name, length: found.len() });
        }
    }
    entries.sort_unstable();
    Ok(Listed { entries, are_all })
}

/// Builds the response for the directory that `path` asks for.
pub(super) fn answer(path: &str, is_root: bool, listed: &Listed, method: &Method) -> Response<AnyBody> {
    let page = page(path, is_root, listed);
    let length = HeaderValue::from(page.len());
    let mut response = Response::new(full(if *method == Method::HEAD { String::new() } else { page }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_LENGTH, length);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Names are the work of whoever writes files there: nothing in the page runs, even if one got around the escapes.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

fn page(path: &str, is_root: bool, listed: &Listed) -> String {
    let title = escaped(path);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>:root{{color-scheme:light dark;font-family:sans-serif}}td{{padding:.1em .8em .1em 0}}\
         td+td{{text-align:right}}td{{overflow-wrap:anywhere}}</style>\n<h1>{title}</h1>\n<table>\n"
    );
    if !is_root {
        page.push_str("<tr><td><a href=\"../\">../</a><td>\n");
    }
    for Entry { is_file, name, length } in &listed.entries {
        let (slash, length) = if *is_file { ("", length.to_string()) } else { ("/", String::new()) };
        // `./`: a name with a colon in it would be a scheme.
        let _ =
            writeln!(page, "<tr><td><a href=\"./{}{slash}\">{}{slash}</a><td>{length}", encoded(name), escaped(name));
    }
    page.push_str("</table>\n");
    if !listed.are_all {
        let _ = writeln!(page, "<p>There are more than {MOST} names here: these are some of them.");
    }
    page
}

/// Text of HTML, in content and in attributes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Line ends, and marks that turn the direction of what follows.
            control if control.is_control() || matches!(control, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                out.push('\u{fffd}');
            }
            other => out.push(other),
        }
    }
    out
}

/// Segment of a path: RFC 3986 §2.3's unreserved characters stay, others are percent-encoded.
fn encoded(name: &str) -> String {
    name.bytes().fold(String::with_capacity(name.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_sorted() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b<script>", "a&\"'", "javascript:alert(1)", ".hidden", "ü 1%", "back\\slash", "tu\u{202e}rn\n"] {
            fs::write(folder.path().join(name), "four").unwrap();
        }
        fs::create_dir(folder.path().join("z")).unwrap();
        std::os::unix::fs::symlink("/nowhere", folder.path().join("dangling")).unwrap();
        let opened = File::open(folder.path()).unwrap();
        let listed = entries(&opened, |name| fs::metadata(folder.path().join(name))).unwrap();
        let page = page("/x<y>/", false, &listed);
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("<tr>")).collect();
        assert_eq!(
            rows,
            [
                "<tr><td><a href=\"../\">../</a><td>",
                "<tr><td><a href=\"./z/\">z/</a><td>",
                "<tr><td><a href=\"./a%26%22%27\">a&amp;&quot;&#39;</a><td>4",
                "<tr><td><a href=\"./b%3Cscript%3E\">b&lt;script&gt;</a><td>4",
                "<tr><td><a href=\"./javascript%3Aalert%281%29\">javascript:alert(1)</a><td>4",
                "<tr><td><a href=\"./tu%E2%80%AErn%0A\">tu\u{fffd}rn\u{fffd}</a><td>4",
                "<tr><td><a href=\"./%C3%BC%201%25\">ü 1%</a><td>4",
            ]
        );
        assert!(page.contains("<h1>/x&lt;y&gt;/</h1>") && !page.contains("more than"), "{page}");
    }

    #[test]
    fn a_list_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        (0..=MOST).for_each(|number| drop(File::create(folder.path().join(number.to_string())).unwrap()));
        let opened = File::open(folder.path()).unwrap();
        let listed = entries(&opened, |name| fs::metadata(folder.path().join(name))).unwrap();
        assert_eq!((listed.entries.len(), listed.are_all), (MOST, false));
        assert!(page("/", true, &listed).contains("more than 10000"));
    }
}
