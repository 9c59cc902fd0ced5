//! Faults of a `[[route]]`.

use super::{
    super::{
        BackEndTls, Balance, Route,
        address::{back_end, back_end_name},
        clients, ip_proxy, proxy,
        read::{
            Fault,
            Step::{Key, Number},
        },
        site, webtransport,
    },
    names,
};

pub(super) fn check(number: usize, route: &Route) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key(key)];
    names(&route.host, &at("host"))?;
    if !route.path.starts_with('/') || route.path.contains(['?', '#']) {
        return Err(Fault::new(&at("path"), format!("expected a path that begins with `/`, found `{}`", route.path)));
    }
    // No path of a request has another form, so the route would never be taken.
    if !crate::path::normal(&route.path).is_ok_and(|normal| normal.loose.is_empty()) {
        let message =
            format!("expected a path without `%2F`, `;`, backslashes and `..` above its root, found `{}`", route.path);
        return Err(Fault::new(&at("path"), message));
    }
    let handlers = [
        ("proxy", route.proxy.is_some()),
        ("ip-proxy", route.ip_proxy.is_some()),
        ("webtransport", route.webtransport.is_some()),
        ("to", !route.to.0.is_empty()),
        ("files", !route.files.is_empty()),
        ("redirect", !route.redirect.is_empty()),
    ];
    match handlers.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect::<Vec<_>>()[..] {
        [] => {
            return Err(Fault::new(
                &[Key("route"), Number(number)],
                "expected `to`, `files`, `redirect`, `proxy`, `ip-proxy` or `webtransport`",
            )
            .hint(
                "to = \"http://127.0.0.1:8080\" sends requests to a back end, files = \"/var/www\" serves a directory",
            ));
        }
        [_] => {}
        [first, second, ..] => {
            return Err(Fault::new(&at(second), format!("expected either `{first}` or `{second}`, found both")));
        }
    }
    clients::check_route(number, route)?;
    site::check(number, route)?;
    if let Some(config) = &route.proxy {
        return proxy::check(number, route, config);
    }
    if let Some(config) = &route.ip_proxy {
        return ip_proxy::check(number, route, config);
    }
    if let Some(config) = &route.webtransport {
        return webtransport::check(number, route, config);
    }
    if route.requests == 0 {
        return Err(Fault::new(&at("requests"), "a limit of 0 serves nobody; expected at least 1"));
    }
    for to in &route.to.0 {
        back_end(to).map_err(|message| {
            Fault::new(&at("to"), message)
                .hint("http://127.0.0.1:8080, h2c://127.0.0.1:8080 for HTTP/2, https://app.internal:8443, or h3://app.internal:8443")
        })?;
    }
    check_balance(number, route)?;
    // RFC 9110 §7.8
    let is_token = |name: &str| http::HeaderName::from_bytes(name.as_bytes()).is_ok();
    if let Some(name) = route.tunnels.0.iter().find(|name| !is_token(name)) {
        return Err(Fault::new(&at("tunnels"), format!("expected names of upgrade tokens, found `{name}`"))
            .hint("tunnels = [\"websocket\", \"connect-udp\"]; an empty list carries none"));
    }
    let tls = &route.tls;
    let has_tls = |to: &String| back_end(to).is_ok_and(|(protocol, _)| protocol.is_tls());
    if *tls != BackEndTls::default() && !route.to.0.iter().any(has_tls) {
        return Err(Fault::new(&at("tls"), "it is for back ends over TLS, and `to` has none").hint("https://host:port"));
    }
    check_tls(number, tls)?;
    if route.symlinks_outside && route.files.is_empty() {
        return Err(Fault::new(&at("symlinks-outside"), "expected `files`: a back end has no symbolic links"));
    }
    if route.listing && route.files.is_empty() {
        return Err(Fault::new(&at("listing"), "expected `files`: a back end lists what it has by itself"));
    }
    if route.health.is_some() && route.to.0.is_empty() {
        return Err(Fault::new(&at("health"), "expected `to`: a directory has no health"));
    }
    Ok(())
}

/// Checks how the certificate of a back end is verified.
pub(in crate::config) fn check_tls(number: usize, tls: &BackEndTls) -> Result<(), Fault> {
    let at = [Key("route"), Number(number), Key("tls")];
    if !tls.name.is_empty() && rustls::pki_types::ServerName::try_from(tls.name.as_str()).is_err() {
        return Err(Fault::new(&at, format!("expected a name as in `app.internal`, found `{}`", tls.name)));
    }
    if !tls.verify && !tls.roots.is_empty() {
        return Err(Fault::new(&at, "`roots` are for certificates that are verified, and `verify` is off"));
    }
    Ok(())
}

/// Checks how a route chooses among its back ends.
fn check_balance(number: usize, route: &Route) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key(key)];
    let given = [
        ("balance", route.balance != Balance::default()),
        ("sticky", route.sticky.is_some()),
        ("refresh", route.refresh.is_some()),
    ];
    if let Some((key, _)) = given.iter().find(|(_, given)| *given && route.to.0.is_empty()) {
        return Err(Fault::new(&at(key), "expected `to`: it is about back ends"));
    }
    if let Some(every) = route.refresh {
        if every.0 < std::time::Duration::from_secs(1) {
            return Err(Fault::new(&at("refresh"), "expected at least 1 s").hint("refresh = \"30 s\""));
        }
        if !route.to.0.iter().any(|to| back_end_name(to).is_some()) {
            return Err(Fault::new(&at("refresh"), "`to` has no name that could be looked up"));
        }
    }
    let Some(sticky) = &route.sticky else { return Ok(()) };
    let cookie = [Key("route"), Number(number), Key("sticky"), Key("cookie")];
    if http::HeaderName::from_bytes(sticky.cookie.as_bytes()).is_err() {
        return Err(Fault::new(&cookie, format!("`{}` is no name of a cookie", sticky.cookie)));
    }
    // RFC 6265bis: browsers take such a cookie for the whole host only.
    if sticky.cookie.starts_with("__Host-") && !route.path.trim_end_matches('/').is_empty() {
        return Err(Fault::new(&cookie, "`__Host-` is for cookies of the path `/`, and the route has another"));
    }
    Ok(())
}
