//! Basic authentication (RFC 7617): names and passwords from a file, for the requests of a route.

mod hashing;

use std::{
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use self::hashing::Busy;
pub(crate) use self::hashing::Hashing;
use crate::{
    answer::{later, plain},
    body::AnyBody,
    config,
    ending::Ending,
    password_file::{Passwords, PasswordsError, read},
    rate::RateLimit,
};

/// Bytes of a password, at most.
const PASSWORD_MAX: usize = 1_024;

/// Basic authentication of a route.
pub(crate) struct BasicAuth {
    passwords: Passwords,
    challenge: HeaderValue,
    /// Verifications of each client.
    attempts: Arc<RateLimit>,
    hashing: Arc<Hashing>,
}

/// Reason for the refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No name and password.
    Missing,
    /// Unknown user, or another password.
    Wrong,
    /// Too many attempts of the client.
    Limited(Duration),
    /// Too many attempts of all clients.
    Busy,
}

impl From<Busy> for Denied {
    fn from(_: Busy) -> Self {
        Self::Busy
    }
}

/// An authenticated user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: Arc<str>,
    /// The password was verified before.
    pub(crate) is_remembered: bool,
}

impl BasicAuth {
    /// Configured authentication of a route.
    ///
    /// # Errors
    /// When the file of users cannot be used.
    pub(crate) fn new(
        config: &config::BasicAuth,
        attempts: Arc<RateLimit>,
        hashing: Arc<Hashing>,
    ) -> Result<Self, PasswordsError> {
        // The configuration has checked that the realm is quotable.
        let challenge = format!("Basic realm=\"{}\", charset=\"UTF-8\"", config.realm);
        let challenge = HeaderValue::from_str(&challenge).unwrap_or(HeaderValue::from_static("Basic realm=\"site\""));
        Ok(Self { passwords: read(Path::new(&config.users))?, challenge, attempts, hashing })
    }

    /// Finds the user of a request with these fields, of a client with a validated address.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) async fn find(&self, fields: &HeaderMap, client: IpAddr) -> Result<User, Denied> {
        let (name, password) = credentials(fields).ok_or(Denied::Missing)?;
        // Before anything is compared, whether it is remembered or not: who may guess no more learns nothing, be it right.
        self.attempts.check(client, Instant::now()).map_err(Denied::Limited)?;
        let found = self.passwords.find(&name);
        let is_known = found.is_some();
        let (name, stored) = found.unwrap_or_else(|| {
            let decoy = self.passwords.decoy(self.hashing.lot(&name));
            (Arc::from(name), decoy)
        });
        let permit = || self.attempts.take(client, Instant::now()).map_err(Denied::Limited);
        let (is_right, is_remembered) =
            self.hashing.verify(stored, &name, password.as_bytes(), is_known, permit).await?;
        if is_right { Ok(User { name, is_remembered }) } else { Err(Denied::Wrong) }
    }

    /// Response to a refused request.
    pub(crate) fn response(&self, denied: Denied) -> Response<AnyBody> {
        match denied {
            Denied::Missing | Denied::Wrong => {
                let mut response = plain(StatusCode::UNAUTHORIZED);
                response.headers_mut().insert(header::WWW_AUTHENTICATE, self.challenge.clone());
                response
            }
            Denied::Limited(wait) => later(StatusCode::TOO_MANY_REQUESTS, wait),
            Denied::Busy => later(StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO),
        }
    }
}

impl Denied {
    /// The result in metrics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Wrong => "wrong",
            Self::Limited(_) => "limited",
            Self::Busy => "busy",
        }
    }

    pub(crate) fn ending(self) -> Ending {
        match self {
            Self::Missing | Self::Wrong => Ending::Refused,
            Self::Limited(_) => Ending::Rate,
            Self::Busy => Ending::Queued,
        }
    }
}

/// Name and password of a request that has one pair of them.
fn credentials(fields: &HeaderMap) -> Option<(String, String)> {
    let mut given = fields.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, code) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(code.trim()).ok()?).ok()?;
    // RFC 7617 §2: a name has no colon.
    let (name, password) = text.split_once(':')?;
    (password.len() <= PASSWORD_MAX).then(|| (name.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use tiderace::ProcessBudget;

    use super::*;
    use crate::password_file::tests::{bcrypt, file};

    fn fields(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())).collect()
    }

    fn basic(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn one_pair_of_name_and_password_is_read() {
        let pair = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        for (values, expected) in [
            (&[basic("alice:secret").as_str()][..], pair("alice", "secret")),
            (&["basic  YWxpY2U6"], pair("alice", "")),
            (&[&basic("alice:a:b")], pair("alice", "a:b")),
            (&[&basic("al\u{ec}ce:s\u{e9}cret")], pair("al\u{ec}ce", "s\u{e9}cret")),
            (&[&basic("alice")], None),
            (&["Basic"], None),
            (&["Basic !!!"], None),
            (&["Basic /////w=="], None),
            (&["Bearer YWxpY2U6"], None),
            (&[&basic("a:b"), &basic("a:b")], None),
            (&[&basic(&format!("a:{}", "x".repeat(2_000)))], None),
            (&[], None),
        ] {
            assert_eq!(credentials(&fields(values)), expected, "{values:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_may_guess_no_more_learns_nothing() {
        let budget = ProcessBudget::new(1 << 30);
        let limit = config::RateLimit { requests_per_second: 0.001, burst: 3 };
        let auth = BasicAuth {
            passwords: file(&format!("alice:{}\n", bcrypt("secret")), 0o600).unwrap(),
            challenge: HeaderValue::from_static("Basic realm=\"x\""),
            attempts: Arc::new(RateLimit::new(&limit, &budget)),
            hashing: Arc::new(Hashing::new(&budget).unwrap()),
        };
        let find = async |text: &str, client: [u8; 4]| auth.find(&fields(&[&basic(text)]), client.into()).await;
        let user = |is_remembered| Ok(User { name: "alice".into(), is_remembered });
        let (one, two) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        assert_eq!(find("alice:secret", one).await, user(false));
        for _ in 0..100 {
            assert_eq!(find("alice:secret", one).await, user(true), "what is known costs no attempt");
        }
        assert_eq!(find("alice:wrong", one).await, Err(Denied::Wrong));
        assert_eq!(find("nobody:secret", one).await, Err(Denied::Wrong), "the decoy is the hash of alice");
        // Neither right nor wrong is told apart from here on.
        for guess in ["alice:secret", "alice:guess", "nobody:x"] {
            assert!(matches!(find(guess, one).await, Err(Denied::Limited(_))), "{guess}");
        }
        assert_eq!(find("alice:secret", two).await, user(true), "others are not concerned");
        assert_eq!(auth.find(&HeaderMap::new(), one.into()).await, Err(Denied::Missing));
    }
}
