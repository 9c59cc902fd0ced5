//! Directory listings as HTML: the names that requests find, in order, page by page.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, File, Metadata},
    io,
    os::fd::AsRawFd,
};

use http::{HeaderValue, Method, Response, header};

use super::path::decode;
use crate::body::{AnyBody, full};

/// Largest number of names on a page: each costs a look-up of the file.
const PAGE: usize = 500;
/// Bytes of a page after which no more names follow; long names take more than a thousand each.
const PAGE_BYTES: usize = 128 * 1024;
/// Names of a directory that are read for a page at most: reading goes through all of them to find the next ones in order.
const READ: usize = 100_000;

/// Place in the order of a list: directories come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    is_file: bool,
    name: String,
}

impl Place {
    /// The place that `?after=NAME` or `?after=NAME/` means; `None` without one.
    pub(super) fn of_query(query: Option<&str>) -> Option<Self> {
        let value = query?.split('&').find_map(|pair| pair.strip_prefix("after="))?;
        let name = decode(value)?;
        Some(match name.strip_suffix('/') {
            Some(directory) => Self { is_file: false, name: directory.to_owned() },
            None => Self { is_file: true, name },
        })
    }

    /// The end of a link to it.
    fn slash(&self) -> &'static str {
        if self.is_file { "" } else { "/" }
    }
}

/// Entry of a directory.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    place: Place,
    length: u64,
}

/// Part of the entries of a directory.
pub(super) struct Listed {
    entries: Vec<Entry>,
    /// Entries follow behind these.
    has_more: bool,
    /// Names were not read, because there are more than [`READ`].
    is_cut: bool,
}

/// Reads the entries after `after` of the open directory, without names that no request finds: hidden ones, and those that `look` does not
/// reach. Holds at most the names of a page.
///
/// # Errors
/// Errors of reading the directory.
pub(super) fn entries(
    directory: &File,
    after: Option<&Place>,
    look: impl Fn(&str) -> io::Result<Metadata>,
) -> io::Result<Listed> {
    // The directory that is open, even if another one has its name by now.
    let names = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    let (mut first, mut has_more, mut is_cut) = (BTreeSet::new(), false, false);
    for (number, entry) in names.enumerate() {
        if number == READ {
            is_cut = true;
            break;
        }
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') || name.contains('\\') {
            continue;
        }
        let is_file = match entry.file_type() {
            Ok(kind) if kind.is_dir() => false,
            Ok(kind) if kind.is_file() => true,
            // A link is what it leads to.
            _ => match look(&name) {
                Ok(found) if found.is_file() || found.is_dir() => found.is_file(),
                _ => continue,
            },
        };
        let place = Place { is_file, name };
        if after.is_some_and(|after| place <= *after) {
            continue;
        }
        first.insert(place);
        if first.len() > PAGE {
            first.pop_last();
            has_more = true;
        }
    }
    let entry = |place: Place| {
        let found = look(&place.name).ok()?;
        (found.is_file() || found.is_dir()).then_some(Entry { place, length: found.len() })
    };
    Ok(Listed { entries: first.into_iter().filter_map(entry).collect(), has_more, is_cut })
}

/// Builds the response for the directory of `path`.
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
    let mut last = None;
    let mut entries = listed.entries.iter().peekable();
    while let Some(Entry { place, length }) = entries.next_if(|_| page.len() < PAGE_BYTES) {
        let (name, slash) = (&place.name, place.slash());
        let length = if place.is_file { length.to_string() } else { String::new() };
        // `./`: a name with a colon in it would be a scheme.
        let _ =
            writeln!(page, "<tr><td><a href=\"./{}{slash}\">{}{slash}</a><td>{length}", encoded(name), escaped(name));
        last = Some(place);
    }
    page.push_str("</table>\n");
    if let (true, Some(last)) = (listed.has_more || entries.peek().is_some(), last) {
        let slash = if last.is_file { "" } else { "%2F" };
        let _ = writeln!(page, "<p><a rel=\"next\" href=\"?after={}{slash}\">more</a>", encoded(&last.name));
    }
    if listed.is_cut {
        let _ = writeln!(page, "<p>There are more than {READ} names here: some are on no page.");
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
        let listed = entries(&opened, None, |name| fs::metadata(folder.path().join(name))).unwrap();
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

    /// All pages of a directory: the names in links on each.
    fn pages(folder: &std::path::Path) -> Vec<Vec<String>> {
        let (mut pages, mut query) = (Vec::new(), None::<String>);
        loop {
            let opened = File::open(folder).unwrap();
            let after = Place::of_query(query.as_deref());
            let listed = entries(&opened, after.as_ref(), |name| fs::metadata(folder.join(name))).unwrap();
            let page = page("/", true, &listed);
            assert!(page.len() < PAGE_BYTES + 3_000 && !page.contains("no page"));
            let link = |line: &str| line.split("href=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
            pages.push(page.lines().filter(|line| line.starts_with("<tr>")).map(link).collect());
            match page.lines().find(|line| line.contains("rel=\"next\"")) {
                Some(line) => query = Some(link(line).trim_start_matches('?').to_owned()),
                None => return pages,
            }
        }
    }

    #[test]
    fn a_list_comes_page_by_page() {
        let folder = tempfile::tempdir().unwrap();
        let create = |number: usize| drop(File::create(folder.path().join(format!("{number:04}"))).unwrap());
        (0..PAGE - 1).for_each(create);
        fs::create_dir(folder.path().join("z & ü")).unwrap();
        assert_eq!(pages(folder.path()).len(), 1);
        (PAGE..2 * PAGE + 7).for_each(create);
        let found = pages(folder.path());
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [PAGE, PAGE, 7]);
        let names: Vec<String> = found.into_iter().flatten().collect();
        assert!(
            names[0] == "./z%20%26%20%C3%BC/" && names[1..].is_sorted() && names.len() == 2 * PAGE + 7,
            "{names:?}"
        );
    }

    #[test]
    fn pages_of_long_names_are_short() {
        let folder = tempfile::tempdir().unwrap();
        let name = |number: usize| format!("{}{number:03}", "'".repeat(250));
        (0..PAGE).for_each(|number| drop(File::create(folder.path().join(name(number))).unwrap()));
        fs::create_dir(folder.path().join("a")).unwrap();
        let found = pages(folder.path());
        assert!(found.len() > 5, "{}", found.len());
        assert_eq!(found.iter().map(Vec::len).sum::<usize>(), PAGE + 1);
    }

    #[test]
    fn queries_name_places() {
        let of = |query| Place::of_query(Some(query)).map(|place| (place.is_file, place.name));
        assert_eq!(of("after=a%20b"), Some((true, "a b".to_owned())));
        assert_eq!(of("x=1&after=dir%2F"), Some((false, "dir".to_owned())));
        assert_eq!((of("after=%zz"), of("before=a"), Place::of_query(None)), (None, None, None));
    }
}
