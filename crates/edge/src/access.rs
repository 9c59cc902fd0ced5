//! Access to a proxy: bearer tokens (RFC 6750) of its clients, `NAME TOKEN` in each line of a file, and certificates.

use std::{
    collections::HashMap,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::digest::{SHA256, digest};
use http::{HeaderMap, header};

use crate::{certificate_rule::CertificateRule, client_certificate::ClientCertificate};

/// Smallest number of characters of a token: shorter ones can be guessed.
const TOKEN_MIN: usize = 16;

/// Clients that a proxy serves.
#[derive(Debug)]
pub(crate) enum Access {
    /// Access for all clients.
    Open,
    /// Access for some of them.
    Restricted {
        /// Owners of tokens, by the digest of their token. The duration of a look-up by digest reveals nothing about tokens.
        tokens: HashMap<[u8; 32], Arc<str>>,
        /// Rules of certificates.
        certificates: Vec<CertificateRule>,
    },
}

/// Client that a proxy does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoAccess {
    /// A token would give access.
    pub(crate) by_token: bool,
}

/// File of tokens that cannot be used. No message has a token in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokensError {
    /// File that the system does not let be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// File that users beside the owner and its group may read.
    #[error("everybody on this machine may read the tokens in {}", .0.display())]
    Exposed(PathBuf),
    /// Line that cannot be used.
    #[error("{}:{line}: {fault}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line in the file, from 1.
        line: usize,
        /// Fault of the line.
        #[source]
        fault: TokenFault,
    },
    /// File without a token.
    #[error("{} has no token", .0.display())]
    Empty(PathBuf),
}

/// Fault of a line in a file of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFault {
    /// Other words than a name and a token.
    #[error("expected a name and a token")]
    Words,
    /// Token that is too short or has other characters.
    #[error("expected a token of at least 16 letters, digits and `-._~+/=`")]
    Token,
    /// Token of another line.
    #[error("another line has the same token")]
    Repeated,
}

fn digest_of(token: &[u8]) -> [u8; 32] {
    digest(&SHA256, token).as_ref().try_into().unwrap_or_default()
}

/// Reads a file of tokens.
///
/// # Errors
/// When it cannot be read, all users may read it, or a line is malformed. No message contains a token.
pub(crate) fn read(path: &Path) -> Result<HashMap<[u8; 32], Arc<str>>, TokensError> {
    let unreadable = |source| TokensError::Unreadable { path: path.to_owned(), source };
    let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(TokensError::Exposed(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let mut tokens = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |fault| Err(TokensError::Line { path: path.to_owned(), line: number + 1, fault });
        let mut words = line.split_whitespace();
        let (name, token) = match (words.next(), words.next(), words.next()) {
            (None, ..) => continue,
            (Some(comment), ..) if comment.starts_with('#') => continue,
            (Some(name), Some(token), None) => (name, token),
            _ => return wrong(TokenFault::Words),
        };
        // RFC 6750 §2.1
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if token.len() < TOKEN_MIN || !token.bytes().all(is_token) {
            return wrong(TokenFault::Token);
        }
        if tokens.insert(digest_of(token.as_bytes()), Arc::from(name)).is_some() {
            return wrong(TokenFault::Repeated);
        }
    }
    if tokens.is_empty() { Err(TokensError::Empty(path.to_owned())) } else { Ok(tokens) }
}

impl Access {
    /// Configured access: by the tokens in a file, if one is named, and by rules of certificates.
    ///
    /// # Errors
    /// When the tokens cannot be used.
    pub(crate) fn new(tokens: &str, certificates: &[String]) -> Result<Self, TokensError> {
        if tokens.is_empty() && certificates.is_empty() {
            return Ok(Self::Open);
        }
        let tokens = if tokens.is_empty() { HashMap::new() } else { read(Path::new(tokens))? };
        let certificates = certificates.iter().filter_map(|rule| rule.parse().ok()).collect();
        Ok(Self::Restricted { tokens, certificates })
    }

    /// Finds the client of a request: `Ok(None)` where access is open, the name of a certificate or of a token's owner.
    ///
    /// # Errors
    /// When the client has neither.
    pub(crate) fn find(
        &self,
        fields: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Option<Arc<str>>, NoAccess> {
        let Self::Restricted { tokens, certificates } = self else { return Ok(None) };
        let of_certificate = certificate.and_then(|own| certificates.iter().find_map(|rule| rule.permits(own)));
        if let Some(name) = of_certificate {
            return Ok(Some(name));
        }
        // `authorization` for a resource, `proxy-authorization` for a proxy: clients of CONNECT-UDP use either.
        let mut given =
            [header::PROXY_AUTHORIZATION, header::AUTHORIZATION].into_iter().flat_map(|name| fields.get_all(name));
        given
            .find_map(|value| {
                let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
                let token = token.trim();
                if scheme.eq_ignore_ascii_case("bearer") { tokens.get(&digest_of(token.as_bytes())) } else { None }
            })
            .map(|name| Some(name.clone()))
            .ok_or(NoAccess { by_token: !tokens.is_empty() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> Result<HashMap<[u8; 32], Arc<str>>, TokensError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read(&path)
    }

    #[test]
    fn files_of_tokens() {
        let good = "# clients\nalice  0123456789abcdef\n\nbob fedcba9876543210==\n";
        assert_eq!(file(good, 0o600).unwrap().len(), 2);
        for (text, mode, expected) in [
            (good, 0o644, "everybody"),
            ("alice\n", 0o600, ":1: expected a name"),
            ("alice a b\n", 0o600, ":1: expected a name"),
            ("\nalice short\n", 0o600, ":2: expected a token"),
            ("alice 0123456789abcde\u{e4}\n", 0o600, ":1: expected a token"),
            ("a 0123456789abcdef\nb 0123456789abcdef\n", 0o600, ":2: another line"),
            ("", 0o600, "no token"),
        ] {
            let error = file(text, mode).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("0123456789"), "{error}");
        }
        let missing = read(Path::new("/nowhere/tokens")).unwrap_err();
        assert!(matches!(missing, TokensError::Unreadable { .. }), "{missing:?}");
    }

    #[test]
    fn tokens_name_their_owners() {
        let tokens = file("alice 0123456789abcdef\n", 0o600).unwrap();
        let access = Access::Restricted { tokens, certificates: Vec::new() };
        let find = |fields: &[(&str, &str)]| {
            let fields = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            access.find(&fields.collect(), None)
        };
        for name in ["authorization", "proxy-authorization"] {
            for value in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef"] {
                assert_eq!(find(&[(name, value)]).unwrap().as_deref(), Some("alice"), "{name}: {value}");
            }
            for value in ["Bearer 0123456789abcdeF", "Bearer 0123456789abcde", "Basic 0123456789abcdef", "Bearer", ""] {
                assert!(find(&[(name, value)]).is_err(), "{name}: {value}");
            }
        }
        assert!(find(&[]).is_err() && find(&[("cookie", "Bearer 0123456789abcdef")]).is_err());
        assert_eq!(Access::Open.find(&HeaderMap::new(), None), Ok(None));
    }

    #[test]
    fn a_certificate_or_a_token_gives_access() {
        let certificate = |subject: &str| ClientCertificate {
            fingerprint: "0".repeat(64),
            subject: Some(subject.to_owned()),
            names: Vec::new(),
        };
        let (alice, bob) = (certificate("CN=alice"), certificate("CN=bob"));
        let mut fields = HeaderMap::new();
        let only = Access::new("", &["subject:CN=alice".to_owned()]).unwrap();
        assert_eq!(only.find(&fields, Some(&alice)).unwrap().as_deref(), Some("CN=alice"));
        for other in [Some(&bob), None] {
            assert_eq!(only.find(&fields, other), Err(NoAccess { by_token: false }));
        }
        let Access::Restricted { certificates, .. } = only else { panic!("it is not open") };
        let either = Access::Restricted { tokens: file("carol 0123456789abcdef\n", 0o600).unwrap(), certificates };
        assert_eq!(either.find(&fields, Some(&bob)), Err(NoAccess { by_token: true }));
        fields.insert("authorization", "Bearer 0123456789abcdef".parse().unwrap());
        assert_eq!(either.find(&fields, Some(&bob)).unwrap().as_deref(), Some("carol"));
        assert_eq!(either.find(&fields, None).unwrap().as_deref(), Some("carol"));
    }
}
