//! Route selection: the best host, then the longest path.

use crate::{
    config,
    path::{Normal, Refused, normal},
};

/// Routes of a generation, each with its handler.
pub(crate) struct Routes<T> {
    /// The best match first: exact names, then wildcards, then any; among them longer paths first.
    all: Vec<Entry<T>>,
}

struct Entry<T> {
    host: Host,
    path: String,
    target: T,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    Exact(String),
    /// The name with its leading dot.
    Wild(String),
    Any,
}

impl Host {
    fn fits(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Wild(suffix) => {
                host.strip_suffix(suffix.as_str()).is_some_and(|label| !label.is_empty() && !label.contains('.'))
            }
            Self::Any => true,
        }
    }

    /// Better ones first.
    fn rank(&self) -> u8 {
        match self {
            Self::Exact(_) => 0,
            Self::Wild(_) => 1,
            Self::Any => 2,
        }
    }
}

impl<T: Clone> Routes<T> {
    pub(crate) fn new(routes: impl IntoIterator<Item = (config::Route, T)>) -> Self {
        let mut all = Vec::new();
        for (route, target) in routes {
            let names = route.host.0.iter().map(|name| match name.strip_prefix('*') {
                Some(suffix) => Host::Wild(suffix.to_ascii_lowercase()),
                None => Host::Exact(name.to_ascii_lowercase()),
            });
            let hosts: Vec<Host> = if route.host.0.is_empty() { vec![Host::Any] } else { names.collect() };
            // What has no normal form was refused when the file was.
            let path = normal(&route.path).map_or_else(|_| route.path.clone(), |normal| normal.path.into_owned());
            let path = path.trim_end_matches('/').to_owned();
            all.extend(hosts.into_iter().map(|host| Entry { host, path: path.clone(), target: target.clone() }));
        }
        all.sort_by_key(|entry| (entry.host.rank(), std::cmp::Reverse(entry.path.len())));
        Self { all }
    }

    /// Finds the handler of `path` at `host`, which is in lower case and has no port.
    ///
    /// A better host wins over a longer path: a site with its own name is complete.
    pub(crate) fn find(&self, host: &str, path: &str) -> Option<&T> {
        let fits = |entry: &&Entry<T>| entry.host.fits(host) && is_below(path, &entry.path);
        self.all.iter().find(fits).map(|entry| &entry.target)
    }

    /// As [`find`](Self::find), for a path that back ends may read in several ways.
    ///
    /// # Errors
    /// When one of them would lead to another route.
    pub(crate) fn find_for(&self, host: &str, path: &Normal<'_>) -> Result<Option<&T>, Refused> {
        let found = self.find(host, &path.path);
        let same = |loose: &String| match (self.find(host, loose), found) {
            (Some(other), Some(found)) => std::ptr::eq(other, found),
            (other, found) => other.is_none() && found.is_none(),
        };
        if path.loose.iter().all(same) { Ok(found) } else { Err(Refused) }
    }
}

/// Returns whether `path` is `prefix` or below it, by whole segments. `prefix` has no slash at its end.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || prefix.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Many, Route};

    fn routes(list: &[(&str, &str)]) -> Routes<usize> {
        Routes::new(list.iter().enumerate().map(|(number, (host, path))| {
            let host = Many(if host.is_empty() { vec![] } else { vec![(*host).to_owned()] });
            (Route { host, path: (*path).to_owned(), ..Route::default() }, number)
        }))
    }

    #[test]
    fn host_before_path_and_longer_before_shorter() {
        let routes = routes(&[
            ("", "/"),
            ("", "/api"),
            ("*.example.org", "/"),
            ("www.example.org", "/"),
            ("www.example.org", "/api/v2/"),
            ("only.example.net", "/x"),
        ]);
        for (host, path, expected) in [
            ("anything", "/", Some(0)),
            ("anything", "/api", Some(1)),
            ("anything", "/api/x", Some(1)),
            ("anything", "/apis", Some(0)),
            ("a.example.org", "/api", Some(2)),
            ("a.b.example.org", "/api", Some(1)),
            ("example.org", "/", Some(0)),
            ("www.example.org", "/api/v2", Some(4)),
            ("www.example.org", "/api/v2/x", Some(4)),
            ("www.example.org", "/api/v20", Some(3)),
            ("only.example.net", "/y", Some(0)),
            ("only.example.net", "/x/y", Some(5)),
            ("", "*", Some(0)),
        ] {
            assert_eq!(routes.find(host, path).copied(), expected, "{host}{path}");
        }
        assert_eq!(self::routes(&[("a.b", "/x")]).find("a.b", "/"), None);
    }
}
