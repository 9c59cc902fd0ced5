//! Settings and checks about clients: trusted proxies, rate limits, passwords, certificates, cross-origin requests.

use std::{path::Path, sync::Arc};

use http::HeaderName;
use serde::{Deserialize, Serialize};

use super::{
    Config, Many, Route, Span,
    read::{
        ConfigCause, Fault,
        Step::{self, Key, Number},
    },
    section::section,
};

section! {
    /// `[trusted-proxies]`: proxies in front of the gateway, such as those of a content delivery network, that name the client of a
    /// request. For requests from their networks, the client is the rightmost address of `field` that is in none of them. For other
    /// requests the field is ignored. Access log, rate limits, limits of MASQUE clients and `x-forwarded-for` use the named client.
    pub struct TrustedProxies {
        /// Networks of the proxies, as in `192.0.2.0/24`. One or a list.
        networks: Many = Many::default(),
        /// Field that the proxies set: `x-forwarded-for`, or `forwarded` (RFC 7239). The other one is ignored, because a proxy may forward
        /// it as the client sent it.
        field: ForwardedField = ForwardedField::XForwardedFor,
    }
}

section! {
    /// `[rate-limit]` for all requests, `[route.rate-limit]` for one route: a client above the limit is answered with 429 and
    /// `retry-after`. A client is its validated address (IPv4) or /64 (IPv6); a request in early data waits for the validation. The latest
    /// 114,688 clients are remembered.
    pub struct RateLimit {
        /// Sustained requests per second of one client. May be a fraction, as in `0.5`.
        requests_per_second: f64 = 10.0,
        /// Requests that a client may send at once.
        burst: u32 = 20,
    }
}

section! {
    /// `[client-certificates]`: client certificates (mutual TLS), over TCP and QUIC, under every server name. Back ends get the subject in
    /// `x-client-cert-subject` and the SHA-256 in `x-client-cert-fingerprint`. Sessions resume in this process only, as long as the roots
    /// stay, and the certificate is verified each time.
    pub struct ClientCertificates {
        /// Root certificates (PEM) for client certificates. Read again when they change.
        roots: String = String::new(),
        /// Refuse connections of clients without a certificate. `false`: such clients are accepted, and routes with `client-certificate`
        /// refuse their requests. A certificate that a client presents has to be valid in either case.
        required: bool = true,
    }
}

section! {
    /// `[route.basic-auth]`: basic authentication (RFC 7617). Back ends get the name in `x-forwarded-user`, and no password.
    pub struct BasicAuth {
        /// File with `NAME:HASH` in each line, not readable by others: hashes of bcrypt (`htpasswd -B`) or Argon2. Read again when it
        /// changes.
        users: String = String::new(),
        /// Name of the protected part, which browsers show.
        realm: String = "site".to_owned(),
        /// Verifications of passwords per client. A verified password is remembered (4,096 of them) and costs none. Beyond the limit no
        /// password is compared, and the answer is 429.
        attempts: RateLimit = RateLimit { requests_per_second: 1.0, burst: 10 },
    }
}

section! {
    /// `[route.cors]`: cross-origin requests of browsers. The gateway answers preflights, and replaces the CORS fields of back ends.
    /// Requests from other origins are served without these fields, so browsers keep the responses from scripts.
    pub struct Cors {
        /// Origins whose scripts may read responses, as in `https://app.example`, `https://*.example.org` for one label, or `*` for all.
        /// One or a list.
        origins: Many = Many::default(),
        /// Methods that scripts may use, beside GET, HEAD and POST. One or a list.
        methods: Many = Many(["GET", "HEAD", "POST"].map(str::to_owned).to_vec()),
        /// Request fields that scripts may set. One or a list.
        headers: Many = Many::default(),
        /// Response fields that scripts may read, beside the safelisted ones. One or a list.
        expose: Many = Many::default(),
        /// Time for which browsers may remember the answer to a preflight.
        max_age: Span = Span::secs(600),
        /// Allow cookies and passwords. Not with `*`.
        credentials: bool = false,
    }
}

/// Field in which a proxy names the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedField {
    /// `x-forwarded-for`: a list of addresses.
    #[default]
    XForwardedFor,
    /// `forwarded` (RFC 7239).
    Forwarded,
}

/// Checks what holds for all routes.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    for text in &config.trusted_proxies.networks.0 {
        let at = [Key("trusted-proxies"), Key("networks")];
        let network = text.parse::<crate::network::Network>().map_err(|message| Fault::new(&at, message))?;
        if network.is_everybody() {
            return Err(Fault::new(
                &at,
                format!("`{text}` has every client in it, and each could name another address"),
            )
            .hint("name the networks of your proxies alone"));
        }
    }
    if let Some(limit) = &config.rate_limit {
        check_rate(&[Key("rate-limit")], limit)?;
    }
    if config.client_certificates.as_ref().is_some_and(|clients| clients.roots.is_empty()) {
        let at = [Key("client-certificates")];
        return Err(
            Fault::new(&at, "expected `roots`: certificates that sign those of clients").hint("roots = \"ca.pem\"")
        );
    }
    let asks = config.routes.iter().position(|route| route.client_certificate);
    if let (Some(number), None) = (asks, &config.client_certificates) {
        let at = [Key("route"), Number(number), Key("client-certificate")];
        return Err(Fault::new(&at, NOBODY_ASKED).hint(ASK));
    }
    let by_certificate = config.routes.iter().enumerate().find_map(|(number, route)| {
        let of_udp = route.proxy.as_ref().map(|proxy| ("proxy", &proxy.client_certificates));
        let (key, rules) = of_udp.or(route.ip_proxy.as_ref().map(|proxy| ("ip-proxy", &proxy.client_certificates)))?;
        (!rules.0.is_empty()).then_some([Key("route"), Number(number), Key(key), Key("client-certificates")])
    });
    if let (Some(at), None) = (by_certificate, &config.client_certificates) {
        return Err(Fault::new(&at, NOBODY_ASKED).hint(ASK));
    }
    Ok(())
}

const NOBODY_ASKED: &str = "no client is asked for a certificate";
const ASK: &str = "[client-certificates] with roots = \"ca.pem\"";

/// Checks what a route asks of its clients.
pub(super) fn check_route(number: usize, route: &Route) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key(key)];
    if let Some(limit) = &route.rate_limit {
        check_rate(&at("rate-limit"), limit)?;
    }
    check_auth(number, route)?;
    check_cors(number, route)
}

/// Checks the files that are named for clients.
pub(super) fn check_files(config: &Config) -> Result<(), Fault> {
    if let Some(clients) = &config.client_certificates {
        crate::client_certificate::ClientVerification::load(&clients.roots, clients.required).map_err(|error| {
            let at = [Key("client-certificates"), Key("roots")];
            Fault::of(&at, error.to_string(), ConfigCause::Roots(Arc::new(error)))
        })?;
    }
    for (number, route) in config.routes.iter().enumerate() {
        if let Some(auth) = &route.basic_auth {
            let at = [Key("route"), Number(number), Key("basic-auth"), Key("users")];
            crate::password_file::read(Path::new(&auth.users)).map_err(|error| {
                Fault::of(&at, error.to_string(), ConfigCause::Passwords(Arc::new(error)))
                    .hint("htpasswd -B -c users alice makes one; chmod 600, or 640 for the group of the gateway")
            })?;
        }
    }
    Ok(())
}

/// Checks the limit for the requests of each client at `at`.
fn check_rate(at: &[Step], limit: &RateLimit) -> Result<(), Fault> {
    let field = |key| [at, &[Key(key)]].concat();
    let rate = limit.requests_per_second;
    // Slower ones would outlive everything that is remembered, faster ones are no limit.
    if !(1e-4..=1e6).contains(&rate) {
        let message = format!("expected requests per second from 0.0001 to 1000000, found {rate}");
        return Err(Fault::new(&field("requests-per-second"), message).hint("leave the section out for no limit"));
    }
    if limit.burst == 0 {
        return Err(Fault::new(&field("burst"), "a limit of 0 serves nobody; expected at least 1"));
    }
    Ok(())
}

fn check_auth(number: usize, route: &Route) -> Result<(), Fault> {
    let Some(auth) = &route.basic_auth else { return Ok(()) };
    let at = |key| [Key("route"), Number(number), Key("basic-auth"), Key(key)];
    if route.proxy.is_some() || route.ip_proxy.is_some() {
        let hint = "tokens in [route.proxy] or [route.ip-proxy]";
        return Err(Fault::new(&at("users"), "a proxy knows its clients by tokens").hint(hint));
    }
    if auth.users.is_empty() {
        let whole = [Key("route"), Number(number), Key("basic-auth")];
        return Err(Fault::new(&whole, "expected `users`, a file with `NAME:HASH` in each line")
            .hint("htpasswd -B -c users alice makes one"));
    }
    let is_quotable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if auth.realm.is_empty() || !auth.realm.bytes().all(is_quotable) {
        return Err(Fault::new(&at("realm"), "expected letters of ASCII without quotes and backslashes"));
    }
    check_rate(&at("attempts"), &auth.attempts)
}

fn check_cors(number: usize, route: &Route) -> Result<(), Fault> {
    let Some(cors) = &route.cors else { return Ok(()) };
    let at = |key| [Key("route"), Number(number), Key("cors"), Key(key)];
    if cors.origins.0.is_empty() {
        let whole = [Key("route"), Number(number), Key("cors")];
        return Err(Fault::new(&whole, "expected `origins`").hint("origins = [\"https://app.example\"]"));
    }
    let any = |names: &Many| names.0.iter().any(|name| name == "*");
    // Fetch §3.2.5: browsers refuse it, and with the origin in its place every site could act for the user.
    let star =
        [("origins", &cors.origins), ("methods", &cors.methods), ("headers", &cors.headers), ("expose", &cors.expose)];
    if let Some((key, _)) = star.into_iter().find(|(_, names)| cors.credentials && any(names)) {
        return Err(Fault::new(&at(key), "`*` is not possible with `credentials`: every site could act for the user")
            .hint("name each"));
    }
    if any(&cors.origins) && cors.origins.0.len() > 1 {
        return Err(Fault::new(&at("origins"), "`*` has all others in it"));
    }
    let is_origin = |text: &str| {
        let Some((scheme, rest)) = text.split_once("://") else { return false };
        let name = rest.strip_prefix("*.").unwrap_or(rest);
        let is_scheme =
            !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || b"+-.".contains(&byte));
        is_scheme && crate::host::is_host(name) && !name.bytes().any(|byte| byte.is_ascii_uppercase())
    };
    if let Some(origin) = cors.origins.0.iter().find(|origin| *origin != "*" && !is_origin(origin)) {
        let message = format!("expected an origin as in `https://app.example`, found `{origin}`");
        return Err(Fault::new(&at("origins"), message).hint("scheme, name and port, without a path, in lower case"));
    }
    let default_port = |origin: &&String| {
        origin.starts_with("https://") && origin.ends_with(":443")
            || origin.starts_with("http://") && origin.ends_with(":80")
    };
    if let Some(origin) = cors.origins.0.iter().find(default_port) {
        let message = format!("no browser writes the port of its scheme, found `{origin}`");
        return Err(Fault::new(&at("origins"), message).hint("leave the port out"));
    }
    let is_method = |name: &str| name.parse::<http::Method>().is_ok();
    if let Some(name) = cors.methods.0.iter().find(|name| *name != "*" && !is_method(name)) {
        return Err(Fault::new(&at("methods"), format!("`{name}` is no method")));
    }
    for (key, names) in [("headers", &cors.headers), ("expose", &cors.expose)] {
        if let Some(name) = names.0.iter().find(|name| HeaderName::from_bytes(name.as_bytes()).is_err()) {
            return Err(Fault::new(&at(key), format!("`{name}` is no name of a header field")));
        }
    }
    Ok(())
}
