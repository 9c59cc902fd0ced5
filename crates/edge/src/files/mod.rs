//! Static files of a directory.
//!
//! `path` maps a request to a file name; `beneath` finds the file within the directory; this module decides on the response; `reading`
//! reads the content, from the cache of `store` where possible; `listing` lists directories.

mod beneath;
mod listing;
mod path;
mod reading;
mod store;

use std::{
    fs::Metadata,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;

use self::{
    beneath::Purpose,
    listing::Place,
    path::relative,
    reading::{Part, Source},
    store::Version,
};
pub(crate) use self::{path::kind, store::Store};
use crate::{
    answer::plain,
    body::{AnyBody, full},
    config::Route,
    content_coding::{Coding, preferred},
};

/// A directory that is served.
pub(crate) struct Files {
    store: Arc<Store>,
    root: PathBuf,
    /// Prefix of request paths that is replaced by the directory, without a slash at its end.
    prefix: String,
    /// Symbolic links may lead out of the directory.
    may_leave: bool,
    /// Directories without an index are listed.
    lists: bool,
    /// Index files of a directory.
    index: Vec<String>,
    /// The file that is served in place of one that is not there.
    fallback: Option<PathBuf>,
    /// Files that were compressed beforehand are served.
    precompressed: bool,
}

impl Files {
    pub(crate) fn new(route: &Route, store: Arc<Store>) -> Self {
        let prefix = route.path.trim_end_matches('/').to_owned();
        Self {
            store,
            root: (&route.files).into(),
            prefix,
            may_leave: route.symlinks_outside,
            lists: route.listing,
            index: route.index.0.clone(),
            fallback: (!route.fallback.is_empty()).then(|| (&route.fallback).into()),
            precompressed: route.precompressed,
        }
    }

    fn look(&self, relative: &Path) -> io::Result<Metadata> {
        beneath::open(&self.root, relative, Purpose::Metadata, self.may_leave)?.metadata()
    }

    /// Builds the response for a file with this `metadata`. The file is opened, unless all of it is cached.
    fn found(&self, relative: &Path, metadata: &Metadata) -> io::Result<Found> {
        let source = match Source::kept(Version::of(metadata), &self.store) {
            Some(source) => source,
            None if metadata.is_file() => {
                Source::open(beneath::open(&self.root, relative, Purpose::Content, self.may_leave)?, &self.store)?
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Found { source, kind: kind(relative), coding: None, varies: self.precompressed })
    }

    /// First existing index file of a directory, with its metadata; the error of the first name if none exists.
    fn index(&self, directory: &Path) -> (PathBuf, io::Result<Metadata>) {
        let all = || self.index.iter().map(|name| directory.join(name));
        let found =
            all().map(|file| (self.look(&file), file)).find(|(found, _)| found.as_ref().is_ok_and(Metadata::is_file));
        match found {
            Some((found, file)) => (file, found),
            None => {
                let file = all().next().unwrap_or_else(|| directory.to_owned());
                let found = if self.index.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { self.look(&file) };
                (file, found)
            }
        }
    }

    /// The file, precompressed in a coding that the client accepts if there is one.
    fn coded(&self, relative: &Path, metadata: &Metadata, fields: &HeaderMap) -> io::Result<Found> {
        let mut offered = if self.precompressed { Coding::ALL.to_vec() } else { Vec::new() };
        while let Some(coding) = preferred(fields, &offered) {
            let mut name = relative.as_os_str().to_owned();
            name.push(match coding {
                Coding::Zstd => ".zst",
                Coding::Brotli => ".br",
                Coding::Gzip => ".gz",
            });
            let coded = Path::new(&name);
            let found = self.look(coded).and_then(|found| self.found(coded, &found));
            match found {
                Ok(found) => return Ok(Found { kind: kind(relative), coding: Some(coding), ..found }),
                Err(_) => offered.retain(|other| *other != coding),
            }
        }
        self.found(relative, metadata)
    }

    /// Answers a request.
    pub(crate) fn answer<B>(&self, request: &Request<B>) -> Response<AnyBody> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let path = request.uri().path();
        let rest = path.strip_prefix(&self.prefix).unwrap_or(path);
        let Some(mut file) = relative(rest) else { return plain(StatusCode::NOT_FOUND) };
        let found = match self.look(&file) {
            Ok(found) if found.is_dir() && path.ends_with('/') => {
                let (index_file, index) = self.index(&file);
                if self.lists && index.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                    let after = Place::of_query(request.uri().query());
                    return self.list(&file, path, after.as_ref(), request.method());
                }
                file = index_file;
                index
            }
            Ok(found) if found.is_dir() => {
                let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
                return redirect(&(path.to_owned() + "/" + &query));
            }
            Err(error) if is_scarce(&error) => Err(error),
            _ if path.ends_with('/') => Err(io::ErrorKind::NotFound.into()),
            found => found,
        };
        let found = match (&self.fallback, found) {
            (Some(fallback), Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                file.clone_from(fallback);
                self.look(fallback)
            }
            (_, found) => found,
        };
        match found.and_then(|found| self.coded(&file, &found, request.headers())) {
            Ok(found) => found.answer(request.method(), request.headers()),
            Err(error) => failed(&error),
        }
    }

    /// Answers for a directory with a page of the list of its files.
    fn list(&self, directory: &Path, path: &str, after: Option<&Place>, method: &Method) -> Response<AnyBody> {
        let listed = beneath::open(&self.root, directory, Purpose::Content, self.may_leave)
            .and_then(|opened| listing::entries(&opened, after, |name| self.look(&directory.join(name))));
        match listed {
            Ok(listed) => listing::answer(path, directory == Path::new(""), &listed, method),
            Err(error) => failed(&error),
        }
    }
}

/// Status for a file or directory that cannot be read.
fn failed(error: &io::Error) -> Response<AnyBody> {
    plain(match error.kind() {
        io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        // Caches would keep that there is no such file.
        _ if is_scarce(error) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::NOT_FOUND,
    })
}

/// Returns whether the system lacks descriptors or memory at the moment.
fn is_scarce(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

fn redirect(to: &str) -> Response<AnyBody> {
    // Two slashes at the beginning would name another host.
    let to = format!("/{}", to.trim_start_matches('/'));
    let mut response = plain(StatusCode::PERMANENT_REDIRECT);
    match HeaderValue::from_str(&to) {
        Ok(to) => {
            response.headers_mut().insert(header::LOCATION, to);
            response
        }
        Err(_) => plain(StatusCode::NOT_FOUND),
    }
}

/// An existing file.
struct Found {
    source: Source,
    kind: &'static str,
    /// The coding in which it lies there.
    coding: Option<Coding>,
    /// Other clients may get it in another coding.
    varies: bool,
}

impl Found {
    /// Entity tag, equal as long as the file is the same.
    fn tag(&self) -> String {
        let version = self.source.version();
        let time = version.modified().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("\"{:x}-{:x}\"", time.as_nanos(), version.length())
    }

    fn answer(self, method: &Method, fields: &HeaderMap) -> Response<AnyBody> {
        let (tag, version) = (self.tag(), self.source.version());
        let mut response = Response::new(full(""));
        let headers = response.headers_mut();
        headers.insert(header::ETAG, HeaderValue::from_str(&tag).expect("hexadecimal"));
        headers.insert(
            header::LAST_MODIFIED,
            HeaderValue::from_str(&httpdate::fmt_http_date(version.modified())).expect("a date is ASCII"),
        );
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(coding) = self.coding {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        }
        if self.varies {
            headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        if is_known(&version, fields, &tag) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        let (mut first, mut length) = (0, version.length());
        // RFC 9110 §14.2: a range is for GET only; §13.1.5: `if-range` has to fit.
        let whole = fields.get(header::IF_RANGE).is_some_and(|value| value.as_bytes() != tag.as_bytes());
        match fields
            .get(header::RANGE)
            .filter(|_| *method == Method::GET && !whole)
            .and_then(|value| range(value, version.length()))
        {
            Some(Ok((from, to))) => {
                (first, length) = (from, to - from + 1);
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let value = format!("bytes {from}-{to}/{}", version.length());
                response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&value).expect("numbers"));
            }
            Some(Err(())) => {
                let mut response = plain(StatusCode::RANGE_NOT_SATISFIABLE);
                let value = format!("bytes */{}", version.length());
                response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&value).expect("numbers"));
                return response;
            }
            None => {}
        }
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        if *method == Method::HEAD {
            return response;
        }
        match self.source.part(first, length) {
            Ok(Part::Whole(data)) => response.map(|_| full(data)),
            Ok(Part::Reading(reading)) => response.map(|_| reading.boxed_unsync()),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// RFC 9110 §13.2.2: whether the client has it already.
fn is_known(version: &Version, fields: &HeaderMap, tag: &str) -> bool {
    if let Some(tags) = fields.get(header::IF_NONE_MATCH) {
        let tags = tags.to_str().unwrap_or_default();
        return tags.split(',').map(str::trim).any(|other| other == "*" || other.trim_start_matches("W/") == tag);
    }
    let since = fields.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    let since = since.and_then(|text| httpdate::parse_http_date(text).ok());
    since.is_some_and(|since| version.modified().duration_since(since).map_or(0, |later| later.as_secs()) == 0)
}

/// The first and last byte of a range of one file. `None` when the field is to be ignored, an error when no byte is in it.
fn range(value: &HeaderValue, length: u64) -> Option<Result<(u64, u64), ()>> {
    let text = value.to_str().ok()?.strip_prefix("bytes=")?;
    // Several ranges would need several parts; the whole is a correct answer, too.
    let (from, to) = text.split_once('-').filter(|_| !text.contains(','))?;
    if from.is_empty() {
        let last: u64 = to.parse().ok()?;
        return Some(if last == 0 || length == 0 { Err(()) } else { Ok((length.saturating_sub(last), length - 1)) });
    }
    let from: u64 = from.parse().ok()?;
    let to: u64 = if to.is_empty() { u64::MAX } else { to.parse().ok()? };
    if to < from {
        return None;
    }
    Some(if from >= length { Err(()) } else { Ok((from, to.min(length - 1))) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_stays_on_the_host() {
        let located = redirect("//evil.example/x/");
        assert_eq!(located.headers()["location"], "/evil.example/x/");
    }

    #[test]
    fn ranges() {
        let range = |text: &str| range(&HeaderValue::from_str(text).unwrap(), 10);
        assert_eq!(range("bytes=0-3"), Some(Ok((0, 3))));
        assert_eq!(range("bytes=8-"), Some(Ok((8, 9))));
        assert_eq!(range("bytes=8-99"), Some(Ok((8, 9))));
        assert_eq!(range("bytes=-3"), Some(Ok((7, 9))));
        assert_eq!(range("bytes=-99"), Some(Ok((0, 9))));
        assert_eq!(range("bytes=10-"), Some(Err(())));
        assert_eq!(range("bytes=-0"), Some(Err(())));
        assert_eq!(range("bytes=3-1"), None);
        assert_eq!(range("bytes=0-1,3-4"), None);
        assert_eq!(range("lines=0-1"), None);
    }
}
