//! Sticky sessions: a cookie leads the requests of a client to the same back end.
//!
//! The cookie has a keyed code, which only gateways with the same keys can make, and no address. So a client can neither choose a back end
//! nor learn its address.

use std::{fmt::Write, sync::Arc};

use aws_lc_rs::hmac;
use http::{HeaderMap, HeaderValue, header};
use tiderace::{KeyRing, transport::ring::RingKey};

use super::BackEnd;
use crate::config::{self, SameSite};

/// Bytes of a code.
const CODE: usize = 16;

/// Sticky sessions of a route.
pub(super) struct Sticky {
    cookie: String,
    /// Attributes of the cookie, which follow the code.
    attributes: String,
    route: String,
    ring: KeyRing,
}

impl Sticky {
    pub(super) fn new(config: &config::Sticky, route: &config::Route, ring: &KeyRing) -> Self {
        let same_site = match config.same_site {
            SameSite::Strict => "Strict",
            SameSite::Lax => "Lax",
            SameSite::None => "None",
        };
        let path = match route.path.trim_end_matches('/') {
            "" => "/",
            path => path,
        };
        let age = config.max_age.map(|age| format!("; Max-Age={}", age.0.as_secs())).unwrap_or_default();
        let attributes = format!("; Path={path}{age}; Secure; HttpOnly; SameSite={same_site}");
        Self { cookie: config.cookie.clone(), attributes, route: route.name(), ring: ring.clone() }
    }

    /// The code of a back end, by one key.
    fn code(&self, key: &RingKey, back_end: &BackEnd) -> String {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &key.secret));
        for part in ["tiderace sticky session", &self.route, back_end.name()] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        context.sign().as_ref()[..CODE].iter().fold(String::new(), |mut text, byte| {
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The back end that a request with these fields belongs to, if it is among `all`.
    pub(super) fn find(&self, fields: &HeaderMap, all: &[Arc<BackEnd>]) -> Option<Arc<BackEnd>> {
        let given = fields.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = given.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        // A client may have the cookie of several paths; the first is that of the longest (RFC 6265 §5.4).
        let code = pairs.filter(|(name, _)| *name == self.cookie).map(|(_, code)| code).next()?;
        if code.len() != 2 * CODE {
            return None;
        }
        let keys = self.ring.keys();
        let fits = |back_end: &&Arc<BackEnd>| keys.iter().any(|key| self.code(key, back_end) == code);
        all.iter().find(fits).cloned()
    }

    /// The field that makes a client stay at a back end.
    pub(super) fn field(&self, back_end: &BackEnd) -> Option<HeaderValue> {
        // The newest key is known longest.
        let key = self.ring.keys().into_iter().max_by_key(|key| key.id)?;
        let code = self.code(&key, back_end);
        HeaderValue::from_str(&format!("{}={code}{}", self.cookie, self.attributes)).ok()
    }
}
