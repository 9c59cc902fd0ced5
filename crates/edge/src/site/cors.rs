//! Cross-origin requests (Fetch standard): scripts of other sites that may read the responses of a route.
//!
//! The browser enforces this. The gateway answers preflights itself and sets the fields on responses. It removes the fields of back ends,
//! so that one place decides.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};

use crate::{
    answer::plain,
    body::{AnyBody, full},
    config,
};

/// Fields of responses that this decides about.
const OWN: [HeaderName; 6] = [
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_EXPOSE_HEADERS,
    header::ACCESS_CONTROL_MAX_AGE,
];

/// Rules of a route for other origins.
pub(super) struct Cors {
    origins: Origins,
    methods: HeaderValue,
    headers: Option<HeaderValue>,
    exposed: Option<HeaderValue>,
    max_age: HeaderValue,
    has_credentials: bool,
}

/// Origins that may read.
enum Origins {
    Any,
    These(Vec<Origin>),
}

enum Origin {
    Exact(String),
    /// Scheme with `://`, and the name and port behind the first label, with the dot.
    Wild(String, String),
}

impl Origin {
    fn read(text: &str) -> Self {
        match text.split_once("://*.") {
            Some((scheme, rest)) => Self::Wild(format!("{scheme}://"), format!(".{rest}")),
            None => Self::Exact(text.to_owned()),
        }
    }

    fn fits(&self, origin: &str) -> bool {
        match self {
            // Browsers write origins in lower case.
            Self::Exact(own) => own == origin,
            Self::Wild(scheme, rest) => {
                let label = origin.strip_prefix(scheme.as_str()).and_then(|name| name.strip_suffix(rest.as_str()));
                let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
                label.is_some_and(|label| !label.is_empty() && label.bytes().all(is_letter))
            }
        }
    }
}

/// Names in one field, none for an empty list.
fn list(names: &config::Many) -> Option<HeaderValue> {
    (!names.0.is_empty()).then(|| HeaderValue::from_str(&names.0.join(", ")).ok()).flatten()
}

impl Cors {
    /// Reads what the configuration has checked.
    pub(super) fn new(config: &config::Cors) -> Self {
        let origins = match config.origins.0.iter().any(|origin| origin == "*") {
            true => Origins::Any,
            false => Origins::These(config.origins.0.iter().map(|text| Origin::read(text)).collect()),
        };
        Self {
            origins,
            methods: list(&config.methods).unwrap_or(HeaderValue::from_static("GET")),
            headers: list(&config.headers),
            exposed: list(&config.expose),
            max_age: HeaderValue::from(config.max_age.0.as_secs()),
            has_credentials: config.credentials,
        }
    }

    /// Value of `access-control-allow-origin` for a request from `origin`.
    fn allowed(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match &self.origins {
            Origins::Any => Some(HeaderValue::from_static("*")),
            Origins::These(origins) => {
                let text = origin.to_str().ok()?;
                origins.iter().any(|own| own.fits(text)).then(|| origin.clone())
            }
        }
    }

    /// Answers a preflight; `None` for other requests, also for an OPTIONS that a browser did not send for itself.
    pub(super) fn preflight(&self, method: &Method, fields: &HeaderMap) -> Option<Response<AnyBody>> {
        let origin = fields.get(header::ORIGIN)?;
        if *method != Method::OPTIONS || !fields.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        if self.allowed(origin).is_none() {
            let mut refused = plain(StatusCode::FORBIDDEN);
            self.vary(refused.headers_mut());
            return Some(refused);
        }
        let mut response = Response::new(full(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let answer = response.headers_mut();
        answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, self.methods.clone());
        answer.extend(self.headers.clone().map(|names| (header::ACCESS_CONTROL_ALLOW_HEADERS, names)));
        answer.insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        Some(response)
    }

    fn vary(&self, fields: &mut HeaderMap) {
        // A cache must not give the response for one origin to another.
        if matches!(self.origins, Origins::These(_)) {
            fields.append(header::VARY, HeaderValue::from_static("origin"));
        }
    }

    /// Sets the fields of a response to a request from `origin`. `is_preflight`: the gateway has answered.
    pub(super) fn response(&self, fields: &mut HeaderMap, origin: Option<&HeaderValue>, is_preflight: bool) {
        let kept = |name: &HeaderName| {
            let of_preflight = *name == header::ACCESS_CONTROL_ALLOW_METHODS
                || *name == header::ACCESS_CONTROL_ALLOW_HEADERS
                || *name == header::ACCESS_CONTROL_MAX_AGE;
            is_preflight && of_preflight
        };
        for name in OWN.iter().filter(|name| !kept(name)) {
            fields.remove(name);
        }
        self.vary(fields);
        let Some(allowed) = origin.and_then(|origin| self.allowed(origin)) else { return };
        fields.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if self.has_credentials {
            fields.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        if let Some(exposed) = self.exposed.clone().filter(|_| !is_preflight) {
            fields.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(text: &str) -> Cors {
        Cors::new(&toml::from_str(text).unwrap())
    }

    fn response(cors: &Cors, origin: Option<&str>) -> HeaderMap {
        let mut fields = HeaderMap::new();
        fields.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("https://of-the-back-end.example"));
        fields.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        fields.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        let origin = origin.map(|origin| HeaderValue::from_str(origin).unwrap());
        cors.response(&mut fields, origin.as_ref(), false);
        fields
    }

    #[test]
    fn only_the_named_origins_may_read() {
        let cors = cors("origins = [\"https://app.example\", \"https://*.example.org:8443\"]\ncredentials = true");
        for (origin, allowed) in [
            (Some("https://app.example"), true),
            (Some("https://a.example.org:8443"), true),
            (Some("http://app.example"), false),
            (Some("https://app.example:444"), false),
            (Some("https://app.example.evil.example"), false),
            (Some("https://xapp.example"), false),
            (Some("https://a.b.example.org:8443"), false),
            (Some("https://.example.org:8443"), false),
            (Some("https://evil.example/.example.org:8443"), false),
            (Some("https://evil.example#.example.org:8443"), false),
            (Some("https://example.org:8443"), false),
            (Some("null"), false),
            (None, false),
        ] {
            let fields = response(&cors, origin);
            let expected = origin.filter(|_| allowed);
            let given = fields.get("access-control-allow-origin").map(|value| value.to_str().unwrap());
            assert_eq!(given, expected, "{origin:?}");
            assert_eq!(fields.contains_key("access-control-allow-credentials"), allowed, "{origin:?}");
            let vary: Vec<_> = fields.get_all("vary").iter().collect();
            assert_eq!(vary, ["accept-encoding", "origin"], "{origin:?}");
        }
    }

    #[test]
    fn any_origin_is_one_answer_for_all() {
        let cors = cors("origins = \"*\"\nexpose = [\"x-total\", \"etag\"]");
        let fields = response(&cors, Some("https://anything.example"));
        assert_eq!(fields["access-control-allow-origin"], "*");
        assert_eq!(fields["access-control-expose-headers"], "x-total, etag");
        assert!(!fields.contains_key("access-control-allow-credentials"));
        assert_eq!(fields.get_all("vary").iter().count(), 1);
    }

    #[test]
    fn a_preflight_is_told_from_other_requests() {
        let cors =
            cors("origins = \"https://a.example\"\nmethods = [\"GET\", \"PUT\"]\nheaders = \"x-a\"\nmax-age = \"1 h\"");
        let asked = |method: Method, fields: &[(&'static str, &'static str)]| {
            let fields: HeaderMap = fields
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            cors.preflight(&method, &fields)
        };
        let origin = ("origin", "https://a.example");
        let method = ("access-control-request-method", "PUT");
        for (asking, fields) in [
            (Method::OPTIONS, &[origin][..]),
            (Method::OPTIONS, &[method]),
            (Method::GET, &[origin, method]),
            (Method::OPTIONS, &[]),
        ] {
            assert!(asked(asking, fields).is_none(), "{fields:?}");
        }
        let mut response = asked(Method::OPTIONS, &[origin, method]).unwrap();
        cors.response(response.headers_mut(), Some(&HeaderValue::from_static("https://a.example")), true);
        let said: Vec<_> = [
            "access-control-allow-origin",
            "access-control-allow-methods",
            "access-control-allow-headers",
            "access-control-max-age",
        ]
        .iter()
        .map(|name| response.headers()[*name].to_str().unwrap().to_owned())
        .collect();
        assert_eq!(
            (response.status().as_u16(), said),
            (204, ["https://a.example", "GET, PUT", "x-a", "3600"].map(str::to_owned).to_vec())
        );
        let refused = asked(Method::OPTIONS, &[("origin", "https://b.example"), method]).unwrap();
        assert_eq!((refused.status().as_u16(), &refused.headers()["vary"]), (403, &HeaderValue::from_static("origin")));
    }
}
