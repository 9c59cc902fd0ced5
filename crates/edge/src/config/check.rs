//! Faults of a configuration that concern several settings.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tiderace::transport::{ack_frequency::AckFrequency, fec::FecPolicy};

use super::{
    Acme, BackEndTls, Balance, Config, Many, Policy, Route, Stream,
    address::{address, back_end, back_end_name, host_port},
    clients, examine, machine, proxy,
    read::{
        ConfigCause, Fault,
        Step::{Key, Number},
        nearest,
    },
    signer, site, webtransport,
};

const CONGESTION: [&str; 8] = ["newreno", "cubic", "bbr1", "bbr2", "bbr3", "bbr", "auto", "reno"];

pub(super) fn check(config: &Config) -> Result<(), Fault> {
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
    webtransport::check_limits(config)?;
    for (number, route) in config.routes.iter().enumerate() {
        check_route(number, route)?;
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
        check_stream(number, stream)?;
    }
    for (number, policy) in config.policies.iter().enumerate() {
        check_policy(number, policy, config)?;
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

fn check_congestion(name: &str, at: &[super::read::Step]) -> Result<(), Fault> {
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

fn check_policy(number: usize, policy: &Policy, config: &Config) -> Result<(), Fault> {
    let at = |key| [Key("policy"), Number(number), Key(key)];
    let whole = [Key("policy"), Number(number)];
    if policy.name.is_empty() || !policy.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err(Fault::new(&whole, "expected a `name` of letters, digits, `-`, `_` and `.`"));
    }
    if config.policies[..number].iter().any(|other| other.name == policy.name) {
        return Err(Fault::new(&at("name"), format!("another policy has the name `{}`", policy.name)));
    }
    if let Some(text) = policy.listen.0.iter().find(|text| !config.listen.0.contains(text)) {
        return Err(Fault::new(&at("listen"), format!("`{text}` is not among the addresses in `listen`")));
    }
    for text in &policy.network.0 {
        text.parse::<crate::network::Network>().map_err(|message| Fault::new(&at("network"), message))?;
    }
    names(&policy.sni, &at("sni"))?;
    let routes: Vec<String> = config.routes.iter().map(Route::name).collect();
    if let Some(text) = policy.route.0.iter().find(|text| !routes.contains(text)) {
        let fault = Fault::new(&at("route"), format!("there is no route `{text}`"));
        return Err(fault.hint(format!("there are {}", routes.join(", "))));
    }
    let changes = [&policy.congestion, &policy.fec, &policy.ack_frequency].iter().any(|text| !text.is_empty());
    if !changes && policy.early_data {
        let message = "expected `congestion`, `fec`, `ack-frequency` or `early-data = false`: it would change nothing";
        return Err(Fault::new(&whole, message));
    }
    if !policy.congestion.is_empty() {
        check_congestion(&policy.congestion, &at("congestion"))?;
    }
    for (key, text) in [("fec", &policy.fec), ("ack-frequency", &policy.ack_frequency)] {
        if !text.is_empty() && !policy.is_known_at_once() {
            let fault =
                Fault::new(&at(key), "it is agreed on with the first packets, when only address and network are known");
            return Err(fault.hint("leave `sni`, `alpn`, `route`, `rtt-above` and `loss-above` out of this policy"));
        }
    }
    if !policy.fec.is_empty() {
        policy.fec.parse::<FecPolicy>().map_err(|error| Fault::new(&at("fec"), error.to_string()))?;
    }
    if !policy.ack_frequency.is_empty() {
        let parsed = policy.ack_frequency.parse::<AckFrequency>();
        parsed.map_err(|error| Fault::new(&at("ack-frequency"), error.to_string()))?;
    }
    Ok(())
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

fn check_route(number: usize, route: &Route) -> Result<(), Fault> {
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
        ("webtransport", route.webtransport.is_some()),
        ("to", !route.to.0.is_empty()),
        ("files", !route.files.is_empty()),
        ("redirect", !route.redirect.is_empty()),
    ];
    match handlers.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect::<Vec<_>>()[..] {
        [] => {
            return Err(Fault::new(
                &[Key("route"), Number(number)],
                "expected `to`, `files`, `redirect`, `proxy` or `webtransport`",
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
    if !tls.name.is_empty() && rustls::pki_types::ServerName::try_from(tls.name.as_str()).is_err() {
        return Err(Fault::new(&at("tls"), format!("expected a name as in `app.internal`, found `{}`", tls.name)));
    }
    if !tls.verify && !tls.roots.is_empty() {
        return Err(Fault::new(&at("tls"), "`roots` are for certificates that are verified, and `verify` is off"));
    }
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

fn check_stream(number: usize, stream: &Stream) -> Result<(), Fault> {
    let at = |key| [Key("stream"), Number(number), Key(key)];
    if stream.alpn.0.is_empty() {
        return Err(Fault::new(&[Key("stream"), Number(number)], "expected `alpn`"));
    }
    for alpn in &stream.alpn.0 {
        if alpn.is_empty() || alpn.len() > 255 {
            return Err(Fault::new(&at("alpn"), "expected a name of 1 to 255 bytes"));
        }
        if ["h3", "h2", "http/1.1"].contains(&alpn.as_str()) {
            return Err(Fault::new(&at("alpn"), format!("`{alpn}` is HTTP")).hint("HTTP goes to a [[route]]"));
        }
    }
    for alpn in &stream.qmux.0 {
        if alpn.is_empty() || alpn.len() > 255 {
            return Err(Fault::new(&at("qmux"), "expected a name of 1 to 255 bytes"));
        }
        // draft-ietf-quic-qmux §8.1 MUST: the names over QUIC and over TCP differ.
        if ["h3", "h2", "http/1.1"].contains(&alpn.as_str()) || stream.alpn.0.contains(alpn) {
            let message = format!("`{alpn}` has a meaning already");
            return Err(
                Fault::new(&at("qmux"), message).hint("over TCP a protocol needs another name, such as `name-qx`")
            );
        }
    }
    names(&stream.sni, &at("sni"))?;
    if stream.to.is_empty() && stream.datagrams_to.is_empty() {
        return Err(Fault::new(&[Key("stream"), Number(number)], "expected `to` or `datagrams-to`"));
    }
    if !stream.to.is_empty() && !stream.to.starts_with("unix:/") && host_port(&stream.to, "tcp://").is_none() {
        return Err(Fault::new(
            &at("to"),
            format!("expected `tcp://host:port` or `unix:/path`, found `{}`", stream.to),
        ));
    }
    if !stream.datagrams_to.is_empty() && host_port(&stream.datagrams_to, "udp://").is_none() {
        let message = format!("expected `udp://host:port`, found `{}`", stream.datagrams_to);
        return Err(Fault::new(&at("datagrams-to"), message));
    }
    Ok(())
}

/// Fault of a file with root certificates.
fn roots(at: &[super::read::Step], error: crate::trust::RootsError) -> Fault {
    Fault::of(at, error.to_string(), ConfigCause::Roots(Arc::new(error)))
}

fn names(names: &Many, at: &[super::read::Step]) -> Result<(), Fault> {
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

impl Config {
    /// Makes paths in the file relative to its directory.
    pub(super) fn resolve(&mut self, directory: &Path) {
        let clients = self.client_certificates.as_mut().map(|clients| &mut clients.roots);
        let certificates = self.certificates.iter_mut().flat_map(|c| [&mut c.certificate, &mut c.key]);
        let signer = self.signer.iter_mut().flat_map(|s| [&mut s.roots, &mut s.certificate, &mut s.key]);
        let own = [
            &mut self.certificate,
            &mut self.key,
            &mut self.admin.socket,
            &mut self.keys.file,
            &mut self.load_balancer.key,
            &mut self.capture.folder,
            &mut self.acme.folder,
            &mut self.acme.roots,
        ];
        let paths = own.into_iter().chain(certificates).chain(clients).chain(signer);
        let files = self.routes.iter_mut().flat_map(|route| {
            let tokens = route.proxy.as_mut().map(|proxy| &mut proxy.tokens);
            let pages = route.error_pages.values_mut();
            let users = route.basic_auth.as_mut().map(|auth| &mut auth.users);
            [&mut route.files, &mut route.tls.roots].into_iter().chain(tokens).chain(users).chain(pages)
        });
        for path in paths.chain(files).filter(|path| !path.is_empty()) {
            *path = directory.join(&*path).to_string_lossy().into_owned();
        }
        if !["-", "off"].contains(&self.log.access.as_str()) {
            self.log.access = directory.join(&self.log.access).to_string_lossy().into_owned();
        }
    }

    /// Checks for back ends that are the gateway itself, as far as addresses show.
    fn check_loops(&self) -> Result<(), Fault> {
        for (number, route) in self.routes.iter().enumerate() {
            for to in &route.to.0 {
                let Ok((protocol, authority)) = back_end(to) else { continue };
                let port = authority.port_u16().unwrap_or(protocol.default_port());
                let Ok(ip) = authority.host().trim_start_matches('[').trim_end_matches(']').parse() else { continue };
                if examine::is_gateway(self, SocketAddr::new(ip, port)) {
                    let at = [Key("route"), Number(number), Key("to")];
                    return Err(Fault::new(&at, format!("`{to}` is the gateway itself"))
                        .hint("a request would go round until its time is over; name the port of the back end"));
                }
            }
        }
        Ok(())
    }

    /// Certificates and keys that belong together and can be read, directories that exist.
    pub(super) fn check_files(&self) -> Result<(), Fault> {
        let with_path = |path: &[super::read::Step], chain: &str, key: &str| {
            crate::certificate::read(Path::new(chain), Path::new(key)).map(drop).map_err(|error| {
                let mut path = path.to_vec();
                path.push(Key(if error.is_key() { "key" } else { "certificate" }));
                let hint = error.hint();
                Fault { hint, ..Fault::of(&path, error.to_string(), ConfigCause::Certificate(Arc::new(error))) }
            })
        };
        if !self.certificate.is_empty() && !self.key.is_empty() {
            with_path(&[], &self.certificate, &self.key)?;
        }
        signer::check_files(self)?;
        for (number, certificate) in self.certificates.iter().enumerate().filter(|(_, c)| !c.key.is_empty()) {
            let at = [Key("certificate-for"), Number(number)];
            with_path(&at, &certificate.certificate, &certificate.key)?;
        }
        if !self.acme.names.0.is_empty() {
            crate::trust::Trust::read(&self.acme.roots).map_err(|error| roots(&[Key("acme"), Key("roots")], error))?;
        }
        if !self.keys.file.is_empty() {
            crate::keys::read(Path::new(&self.keys.file)).map_err(|error| {
                let hint =
                    "`tiderace edge keys --file FILE` makes one; chmod 600, or 640 for a group of the gateway's own";
                let at = [Key("keys"), Key("file")];
                Fault::of(&at, error.to_string(), ConfigCause::Keys(Arc::new(error))).hint(hint)
            })?;
        }
        for (number, route) in self.routes.iter().enumerate() {
            crate::trust::Trust::read(&route.tls.roots)
                .map_err(|error| roots(&[Key("route"), Number(number), Key("tls")], error))?;
        }
        self.check_loops()?;
        proxy::check_files(&self.routes)?;
        clients::check_files(self)?;
        machine::check_files(self)?;
        site::check_files(&self.routes)?;
        for (number, route) in self.routes.iter().enumerate().filter(|(_, route)| !route.files.is_empty()) {
            if !PathBuf::from(&route.files).is_dir() {
                let message = format!("expected a directory, found none at {}", route.files);
                let at = [Key("route"), Number(number), Key("files")];
                return Err(Fault::of(&at, message, ConfigCause::NoDirectory));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigCause, ConfigError, load, parse};
    use crate::certificate::CertificateError;

    const GOOD: &str = r#"listen = "[::]:443"
certificate = "cert.pem"
key = "key.pem"

[[route]]
to = "http://127.0.0.1:8080"

[[route]]
host = ["example.org", "*.example.org"]
path = "/files"
files = "/var/www"

[[stream]]
alpn = "redis"
to = "tcp://127.0.0.1:6379"
"#;

    fn error(from: &str, to: &str) -> ConfigError {
        assert!(GOOD.contains(from), "{from}");
        parse(&GOOD.replacen(from, to, 1), "edge.toml").unwrap_err()
    }

    #[test]
    fn five_lines_are_enough() {
        parse(GOOD, "edge.toml").unwrap();
        let five: String = GOOD.lines().take(6).map(|line| format!("{line}\n")).collect();
        let config = parse(&five, "edge.toml").unwrap();
        assert!(config.http3.enabled && config.routes.len() == 1);
    }

    #[test]
    fn errors_name_file_line_field_and_what_to_do() {
        for (from, to, line, field, hint) in [
            ("listen =", "lissen =", 1, "lissen", "did you mean `listen`?"),
            ("\"[::]:443\"", "\"localhost\"", 1, "listen", "every address"),
            ("\"[::]:443\"", "443", 1, "listen", ""),
            ("key = \"key.pem\"\n", "", 2, "certificate", ""),
            ("to = \"http", "too = \"http", 6, "route.too", "did you mean `to`?"),
            ("http://127", "https//127", 6, "route[1].to", "http://127.0.0.1:8080"),
            ("to = \"http://127.0.0.1:8080\"\n", "", 5, "route[1]", "to = "),
            ("\"/files\"", "\"files\"", 10, "route[2].path", ""),
            ("path = \"/files\"", "timeout = \"5\"", 10, "route.timeout", ""),
            ("*.example.org", "https://example.org", 9, "route[2].host", "no scheme"),
            ("files = \"/var/www\"", "files = \"/x\"\nto = \"http://a:1\"", 11, "route[2].files", ""),
            ("\"redis\"", "\"h3\"", 14, "stream[1].alpn", "[[route]]"),
            ("tcp://", "http://", 15, "stream[1].to", ""),
            ("\n[[route]]", "\n[transport]\ncongestion = \"cubik\"\n[[route]]", 6, "transport.congestion", "`cubic`"),
            (
                "to = \"http://127.0.0.1:8080\"\n",
                "to = \"http://a:1\"\ntls = { name = \"b\" }\n",
                7,
                "route[1].tls",
                "https",
            ),
            ("to = \"http:", "tunnels = \"a b\"\nto = \"http:", 6, "route[1].tunnels", "connect-udp"),
            (
                "\n[[route]]",
                "\n[keys]\nfile = \"ring\"\n[transport]\nearly-data = true\n[[route]]",
                6,
                "keys.file",
                "copies-do-no-harm = true",
            ),
            ("\"/files\"", "\"/a/../..\"", 10, "route[2].path", ""),
            ("\"/files\"", "\"/a%2fb\"", 10, "route[2].path", ""),
            ("\"/files\"", "\"/a;b\"", 10, "route[2].path", ""),
            ("to = \"http://127", "listing = true\nto = \"http://127", 6, "route[1].listing", ""),
            ("to = \"http://127", "symlinks-outside = true\nto = \"http://127", 6, "route[1].symlinks-outside", ""),
            ("\n[[route]]", "\n[acme]\nnames = \"a.example\"\n[[route]]", 6, "acme.names", "terms"),
            ("\n[[route]]", "\n[acme]\nnames = \"*.example\"\nterms-agreed = true\n[[route]]", 6, "acme.names", "each"),
            ("\n[[route]]", "\n[capture]\nenabled = true\n[[route]]", 6, "capture.enabled", "edge.sock"),
            ("\n[[stream]]", "[[policy]]\nname = \"a\"\n[[stream]]", 12, "policy[1]", ""),
            (
                "\n[[stream]]",
                "[[policy]]\nname = \"a\"\ncongestion = \"bbr4\"\n[[stream]]",
                14,
                "policy[1].congestion",
                "",
            ),
            (
                "\n[[stream]]",
                "[[policy]]\nname = \"a\"\nnetwork = \"192.0.2.0/33\"\ncongestion = \"bbr3\"\n[[stream]]",
                14,
                "policy[1].network",
                "",
            ),
            (
                "\n[[stream]]",
                "[[policy]]\nname = \"a\"\nroute = \"*/x\"\ncongestion = \"bbr3\"\n[[stream]]",
                14,
                "policy[1].route",
                "there are */, example.org/files",
            ),
            (
                "\n[[stream]]",
                "[[policy]]\nname = \"a\"\nsni = \"a.example\"\nfec = \"auto\"\n[[stream]]",
                15,
                "policy[1].fec",
                "leave `sni`",
            ),
            ("\n[[stream]]", "[[policy]]\nname = \"a\"\nshare = \"110 %\"\n[[stream]]", 14, "policy.share", ""),
        ] {
            let error = error(from, to);
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(field)), "{error}");
            assert!(error.to_string().starts_with(&format!("edge.toml:{line}: {field}: ")), "{error}");
            assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
        }
        let twice = parse(&format!("{GOOD}\n[[route]]\nto = \"http://a:1\"\n"), "x").unwrap_err();
        assert_eq!(twice.field.as_deref(), Some("route[3].path"), "{twice}");
        assert!(parse("listen = ", "x").is_err() && parse("", "x").is_err());
    }

    fn of_certificate(error: &ConfigError) -> Option<&CertificateError> {
        match &error.cause {
            ConfigCause::Certificate(error) => Some(error),
            _ => None,
        }
    }

    #[test]
    fn causes_can_be_told_apart() {
        fn goes_anywhere<E: std::error::Error + Send + Sync + 'static>() {}
        goes_anywhere::<ConfigError>();
        let value = error("\"[::]:443\"", "\"localhost\"");
        assert!(matches!(value.cause, ConfigCause::Value), "{value:?}");
        let syntax = error("listen =", "lissen =");
        assert!(matches!(syntax.cause, ConfigCause::Syntax), "{syntax:?}");

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("edge.toml");
        let missing = load(&file).unwrap_err();
        let source = std::error::Error::source(&missing).and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound), "{missing:?}");
        std::fs::write(&file, GOOD).unwrap();
        let unreadable = load(&file).unwrap_err();
        let cause = of_certificate(&unreadable);
        assert!(matches!(cause, Some(CertificateError::Unreadable { key: false, .. })), "{unreadable:?}");
        std::fs::write(folder.path().join("cert.pem"), "").unwrap();
        let empty = load(&file).unwrap_err();
        assert!(matches!(of_certificate(&empty), Some(CertificateError::NoCertificate(_))), "{empty:?}");
    }
}
