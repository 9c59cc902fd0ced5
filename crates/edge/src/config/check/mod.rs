//! Faults of a configuration that concern several settings: of a route, a stream or a policy, each in a file of its own, and of
//! the gateway as a whole. What needs the files that a configuration names is in `files`.

mod files;
mod policy;
pub(super) mod route;
mod stream;
#[cfg(test)]
mod tests;

use super::{
    Acme, Config, Many, Route,
    address::address,
    clients, ip_proxy, machine, other_machines, proxy,
    read::{
        Fault,
        Step::{self, Key, Number},
        nearest,
    },
    signer, webtransport,
};

const CONGESTION: [&str; 8] = ["newreno", "cubic", "bbr1", "bbr2", "bbr3", "bbr", "auto", "reno"];

pub(super) fn check(config: &Config) -> Result<(), Fault> {
    check_addresses(config)?;
    let has_signer = config.signer.is_some();
    if config.certificate.is_empty() != config.key.is_empty() && !(has_signer && config.key.is_empty()) {
        let (missing, given) = if config.key.is_empty() { ("key", "certificate") } else { ("certificate", "key") };
        return Err(Fault::new(&[Key(given)], format!("expected `{missing}` beside it")));
    }
    check_acme(&config.acme)?;
    let by_acme = !config.acme.names.0.is_empty();
    if config.certificate.is_empty() && config.certificates.is_empty() && !by_acme {
        return Err(Fault::new(&[Key("listen")], "expected `certificate` and `key`: nothing is served without TLS")
            .hint("certificate = \"cert.pem\" and key = \"key.pem\", before the first [section]"));
    }
    for (number, certificate) in config.certificates.iter().enumerate() {
        let at = [Key("certificate-for"), Number(number)];
        let empty = [("name", certificate.name.0.is_empty()), ("certificate", certificate.certificate.is_empty())];
        let missing = empty.iter().find(|(_, empty)| *empty).map(|(name, _)| *name);
        let missing = missing.or_else(|| (certificate.key.is_empty() && !has_signer).then_some("key"));
        if let Some(missing) = missing {
            return Err(Fault::new(&at, format!("expected `{missing}`")));
        }
        names(&certificate.name, &[Key("certificate-for"), Number(number), Key("name")])?;
    }
    check_congestion(&config.transport.congestion, &[Key("transport"), Key("congestion")])?;
    let strikes = config.keys.strikes.as_str();
    if !strikes.is_empty() && crate::keys::register(strikes).is_err() {
        // What was written may have a password in it.
        return Err(Fault::new(&[Key("keys"), Key("strikes")], "expected the URL of a Redis")
            .hint("redis://127.0.0.1:6379/ or redis://user:password@host:port/database"));
    }
    // RFC 8446 §8: where tickets are good at several servers, all have to know which were used.
    let is_shared = !config.keys.file.is_empty() && strikes.is_empty();
    if config.transport.early_data && is_shared && !config.keys.copies_do_no_harm {
        let message = "each gateway with this ring of keys would accept a copy of the same early data";
        return Err(Fault::new(&[Key("keys"), Key("file")], message).hint(
            "strikes = \"redis://host:port/\" lets one of them accept it; copies-do-no-harm = true says that all may",
        ));
    }
    if !config.metrics.listen.is_empty() {
        address(&config.metrics.listen)
            .map_err(|error| Fault::new(&[Key("metrics"), Key("listen")], error.to_string()))?;
    }
    if config.capture.enabled && config.admin.socket.is_empty() {
        return Err(Fault::new(&[Key("capture"), Key("enabled")], "nobody could ask for a capture")
            .hint("[admin] with socket = \"edge.sock\""));
    }
    clients::check(config)?;
    machine::check(config)?;
    other_machines::check(config)?;
    signer::check(config)?;
    let limits = &config.limits;
    if limits.connections == 0 || limits.requests_per_connection == 0 || limits.back_end_requests == 0 {
        return Err(Fault::new(&[Key("limits")], "a limit of 0 serves nobody; expected at least 1"));
    }
    if limits.connection_memory.0 < 1 << 20 {
        return Err(Fault::new(&[Key("limits"), Key("connection-memory")], "expected at least 1 MiB"));
    }
    if config.routes.is_empty() && config.streams.is_empty() {
        return Err(Fault::new(
            &[Key("listen")],
            "expected at least one [[route]] or [[stream]]: nothing would be served",
        )
        .hint("[[route]]\n      to = \"http://127.0.0.1:8080\""));
    }
    proxy::check_connect(&config.routes)?;
    ip_proxy::check_all(&config.routes)?;
    webtransport::check_limits(config)?;
    for (number, route) in config.routes.iter().enumerate() {
        route::check(number, route)?;
        let form = |route: &Route| {
            crate::path::normal(&route.path).map(|normal| normal.path.trim_end_matches('/').to_owned()).ok()
        };
        let earlier = config.routes[..number].iter().position(|other| {
            form(other) == form(route) && (other.host == route.host || overlap(&other.host, &route.host))
        });
        if let Some(earlier) = earlier {
            let message = format!("route {} has the same host and path", earlier + 1);
            return Err(Fault::new(&[Key("route"), Number(number), Key("path")], message));
        }
    }
    for (number, stream) in config.streams.iter().enumerate() {
        stream::check(number, stream)?;
    }
    for (number, policy) in config.policies.iter().enumerate() {
        policy::check(number, policy, config)?;
    }
    Ok(())
}

/// Checks the addresses of clients, with TLS and without.
fn check_addresses(config: &Config) -> Result<(), Fault> {
    if config.listen.0.is_empty() {
        return Err(Fault::new(&[Key("listen")], "expected an address with a port, found none"));
    }
    for text in &config.listen.0 {
        address(text).map_err(|error| {
            Fault::new(&[Key("listen")], error.to_string())
                .hint("`[::]:443` is every address of this machine, IPv4 included")
        })?;
    }
    if let Some(text) = repeated(&config.listen).or_else(|| repeated(&config.redirect_from)) {
        let key = if config.listen.0.contains(text) { "listen" } else { "redirect-from" };
        return Err(Fault::new(&[Key(key)], format!("`{text}` is there twice")).hint("name each address once"));
    }
    for text in &config.redirect_from.0 {
        let at = [Key("redirect-from")];
        let parsed =
            address(text).map_err(|error| Fault::new(&at, error.to_string()).hint("`[::]:80` is every address"))?;
        if parsed.port() != 0 && config.listen.0.iter().any(|other| address(other) == Ok(parsed)) {
            return Err(
                Fault::new(&at, format!("`{text}` is served with TLS")).hint("plain HTTP has a port of its own: 80")
            );
        }
    }
    Ok(())
}

fn check_acme(acme: &Acme) -> Result<(), Fault> {
    if acme.names.0.is_empty() {
        return Ok(());
    }
    let at = |key| [Key("acme"), Key(key)];
    names(&acme.names, &at("names"))?;
    if let Some(name) = acme.names.0.iter().find(|name| name.starts_with('*')) {
        return Err(Fault::new(&at("names"), format!("an authority does not look at all of `{name}` by TLS-ALPN-01"))
            .hint("name each, or use a certificate from a file"));
    }
    if !acme.terms_agreed {
        return Err(Fault::new(&at("names"), "expected `terms-agreed = true` beside it")
            .hint("the authority serves those who agree to its terms; they are linked in its directory"));
    }
    if !acme.directory.starts_with("https://") || acme.directory.parse::<http::Uri>().is_err() {
        return Err(Fault::new(&at("directory"), format!("expected an https URL, found `{}`", acme.directory)));
    }
    if let Some(address) = acme.contact.0.iter().find(|address| !address.contains('@') || address.contains(':')) {
        return Err(Fault::new(&at("contact"), format!("expected an address for mail, found `{address}`")));
    }
    Ok(())
}

fn check_congestion(name: &str, at: &[Step]) -> Result<(), Fault> {
    if CONGESTION.contains(&name) {
        return Ok(());
    }
    let all = CONGESTION[..7].join(", ");
    let fault = Fault::new(at, format!("there is no congestion control `{name}`; expected one of {all}"));
    Err(match nearest(name, CONGESTION) {
        Some(name) => fault.hint(format!("did you mean `{name}`?")),
        None => fault,
    })
}

/// An address with a port that is in a list twice.
fn repeated(list: &Many) -> Option<&String> {
    let is_known = |number: usize, text: &str| {
        let parsed = address(text);
        parsed.as_ref().is_ok_and(|at| at.port() != 0) && list.0[..number].iter().any(|other| address(other) == parsed)
    };
    list.0.iter().enumerate().find(|(number, text)| is_known(*number, text)).map(|(_, text)| text)
}

fn overlap(a: &Many, b: &Many) -> bool {
    a.0.iter().any(|name| b.0.contains(name))
}

fn names(names: &Many, at: &[Step]) -> Result<(), Fault> {
    for name in &names.0 {
        let plain = name.strip_prefix("*.").unwrap_or(name);
        let good = !plain.is_empty()
            && plain.split('.').all(|label| {
                !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            });
        if !good {
            let message = format!("expected a name as in `example.org` or `*.example.org`, found `{name}`");
            let fault = Fault::new(at, message);
            return Err(if name.contains(':') { fault.hint("a name has no scheme and no port") } else { fault });
        }
    }
    Ok(())
}
