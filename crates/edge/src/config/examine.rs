//! Examination of a configuration on this machine: errors that `run` would find at its start, and faults that would show later.
//!
//! Errors keep a gateway from starting. Warnings do not: a name may resolve tomorrow, and a site with an expired certificate is better
//! than none.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::CertificateDer;
use serde_json::Value;

use super::{
    Config, Many, ResolvedConfig,
    address::{address, back_end_name, host_port},
    read::{
        ConfigError, Fault,
        Step::{self, Key, Number},
    },
    system,
};
use crate::{
    admin, certificate,
    port::check_unshared,
    resolve::{Resolve, SystemResolver},
};

/// Parts of an examination that may be left out.
#[derive(Clone, Copy, Debug)]
pub struct Examination {
    /// Try the addresses of the gateway.
    pub addresses: bool,
    /// Look up the names of back ends, and ask the signer for its keys, within this time.
    pub names: Option<Duration>,
}

impl Default for Examination {
    fn default() -> Self {
        Self { addresses: true, names: Some(Duration::from_secs(3)) }
    }
}

/// A configuration with which a gateway starts.
#[derive(Debug)]
pub struct Examined {
    /// The configuration.
    pub config: Config,
    /// Faults that do not keep it from starting.
    pub warnings: Vec<ConfigError>,
}

/// Reads the configuration in `file` and examines it on this machine. Nothing remains: addresses are released.
///
/// # Errors
/// When a gateway would not start with it.
pub async fn examine(file: &Path, examination: Examination) -> Result<Examined, ConfigError> {
    let read = super::read::load_text(file)?;
    let mut warnings = certificates(&read.config);
    let tried = if examination.addresses { addresses(&read.config, &mut warnings) } else { Ok(()) };
    let tried = tried.and_then(|()| outputs(&read.config, &mut warnings));
    tried.and_then(|()| devices(&read.config, &mut warnings)).map_err(|fault| read.text.locate(fault))?;
    if let Some(patience) = examination.names {
        let resolver: Arc<dyn Resolve> = Arc::new(SystemResolver::default());
        warnings.extend(names(&read.config, &resolver, patience).await);
        warnings.extend(super::signer::examine(&read.config, patience).await);
    }
    let warnings = warnings.into_iter().map(|fault| read.text.locate(fault)).collect();
    let ResolvedConfig { config, .. } = read;
    Ok(Examined { config, warnings })
}

/// Addresses that the gateway which runs with this configuration serves already.
fn served(config: &Config) -> Vec<String> {
    if config.admin.socket.is_empty() {
        return Vec::new();
    }
    let Ok(status) = admin::ask(Path::new(&config.admin.socket), "status") else { return Vec::new() };
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let all = ["listen", "redirect_from"].into_iter().flat_map(list);
    let metrics = status["metrics"].as_str().map(Value::from);
    all.chain(metrics).filter_map(|at| Some(at.as_str()?.to_owned())).collect()
}

/// Tries the addresses that are to be served.
fn addresses(config: &Config, warnings: &mut Vec<Fault>) -> Result<(), Fault> {
    let served = served(config);
    let mut tried: Vec<SocketAddr> = Vec::new();
    let metrics = Many(Some(config.metrics.listen.clone()).filter(|at| !at.is_empty()).into_iter().collect());
    for (field, list) in
        [("listen", &config.listen), ("redirect-from", &config.redirect_from), ("metrics.listen", &metrics)]
    {
        let is_tls = field == "listen";
        for text in &list.0 {
            let Ok(address) = address(text) else { continue };
            // An address of this process may be shared with itself, as `run` does.
            let is_own = served.contains(&address.to_string())
                || is_tls && tried.iter().any(|other| other.port() == address.port());
            if address.port() == 0 || is_own {
                continue;
            }
            tried.push(address);
            let result = if is_tls { check_unshared(address) } else { std::net::TcpListener::bind(address).map(drop) };
            let Err(error) = result else { continue };
            let fault = system::listen(field, address, &error);
            // Another user may.
            if error.kind() != io::ErrorKind::PermissionDenied {
                return Err(fault);
            }
            warnings.push(fault);
        }
    }
    Ok(())
}

/// Tries the TUN devices. One that does not exist is made, and vanishes again. A gateway that runs has its own.
fn devices(config: &Config, warnings: &mut Vec<Fault>) -> Result<(), Fault> {
    for (number, route) in config.routes.iter().enumerate() {
        let Some(proxy) = &route.ip_proxy else { continue };
        let Err(error) = tun::Device::open(&proxy.device) else { continue };
        match error.kind() {
            io::ErrorKind::ResourceBusy => {}
            // Another user may.
            io::ErrorKind::PermissionDenied => warnings.push(system::device(number, &proxy.device, &error)),
            _ => return Err(system::device(number, &proxy.device, &error)),
        }
    }
    Ok(())
}

/// Tries what the gateway writes to.
fn outputs(config: &Config, warnings: &mut Vec<Fault>) -> Result<(), Fault> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    // A name alone is in the directory of the process.
    let is_missing =
        |path: &str| Path::new(path).parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !parent.is_dir());
    let log = config.log.access.as_str();
    if !["-", "off"].contains(&log) {
        let existing = Path::new(log).exists().then(|| std::fs::OpenOptions::new().append(true).open(log).map(drop));
        match existing {
            Some(opened) => opened.map_err(|error| system::access_log(log, &error))?,
            None if is_missing(log) => return Err(system::access_log(log, &missing())),
            None => {}
        }
    }
    let socket = config.admin.socket.as_str();
    if !socket.is_empty() && is_missing(socket) {
        let fault = system::admin_socket(Path::new(socket), &missing());
        // It is there when the unit runs.
        if !Path::new(socket).starts_with("/run") {
            return Err(fault);
        }
        warnings.push(fault);
    }
    Ok(())
}

/// Certificates that clients will refuse.
pub(crate) fn certificates(config: &Config) -> Vec<Fault> {
    let mut warnings = Vec::new();
    let read = |chain: &str| certificate::read_chain(Path::new(chain)).ok();
    let mut judge = |at: &[Step], chain: &[CertificateDer<'_>], names: &[&String]| {
        if let Some(fault) = certificate::time_fault(chain) {
            warnings.push(Fault::new(at, fault).hint("clients refuse it; renew it, or let [acme] do so"));
        }
        for name in names {
            if !certificate::is_for(chain, name) {
                warnings.push(
                    Fault::new(at, format!("the certificate is not for `{name}`, and clients refuse it there"))
                        .hint("a certificate is for the names in its subjectAltName"),
                );
            }
        }
    };
    for (number, certificate) in config.certificates.iter().enumerate() {
        let Some(chain) = read(&certificate.certificate) else { continue };
        let at = [Key("certificate-for"), Number(number), Key("certificate")];
        judge(&at, &chain, &certificate.name.0.iter().collect::<Vec<_>>());
    }
    if config.certificate.is_empty() {
        return warnings;
    }
    // The names of routes for which there is no other certificate.
    let others = config.certificates.iter().flat_map(|certificate| &certificate.name.0).chain(&config.acme.names.0);
    let others: Vec<&String> = others.collect();
    let is_elsewhere = |name: &str| {
        let parent = name.split_once('.').map_or("", |(_, parent)| parent);
        others.iter().any(|other| {
            other.eq_ignore_ascii_case(name)
                || other.strip_prefix("*.").is_some_and(|own| own.eq_ignore_ascii_case(parent))
        })
    };
    let mut names: Vec<&String> =
        config.routes.iter().flat_map(|route| &route.host.0).filter(|name| !is_elsewhere(name)).collect();
    names.sort();
    names.dedup();
    if let Some(chain) = read(&config.certificate) {
        judge(&[Key("certificate")], &chain, &names);
    }
    warnings
}

/// Names of back ends that have no address, or lead back to the gateway.
async fn names(config: &Config, resolver: &Arc<dyn Resolve>, patience: Duration) -> Vec<Fault> {
    let mut wanted: Vec<(Vec<Step>, String, u16)> = Vec::new();
    for (number, route) in config.routes.iter().enumerate() {
        let at = [Key("route"), Number(number), Key("to")];
        wanted
            .extend(route.to.0.iter().filter_map(|to| back_end_name(to)).map(|(name, port)| (at.to_vec(), name, port)));
        let session = route.webtransport.as_ref().filter(|section| section.is_passed_on());
        if let Some((name, port)) = session.and_then(|section| back_end_name(&section.to)) {
            wanted.push((vec![Key("route"), Number(number), Key("webtransport"), Key("to")], name, port));
        }
    }
    let of_streams = config.streams.iter().enumerate().map(|(number, stream)| {
        (vec![Key("stream"), Number(number)], [("to", &stream.to), ("datagrams-to", &stream.datagrams_to)])
    });
    let of_sessions = config.routes.iter().enumerate().filter_map(|(number, route)| {
        let section = route.webtransport.as_ref()?;
        let at = vec![Key("route"), Number(number), Key("webtransport")];
        Some((at, [("to", &section.to), ("datagrams-to", &section.datagrams_to)]))
    });
    for (at, targets) in of_streams.chain(of_sessions) {
        for ((key, text), scheme) in targets.into_iter().zip(["tcp://", "udp://"]) {
            let Some((name, port)) = host_port(text, scheme).and_then(|rest| rest.rsplit_once(':')) else { continue };
            let name = name.trim_start_matches('[').trim_end_matches(']');
            if let (Err(_), Ok(port)) = (name.parse::<IpAddr>(), port.parse()) {
                wanted.push(([&at[..], &[Key(key)]].concat(), name.to_owned(), port));
            }
        }
    }
    let mut looks = tokio::task::JoinSet::new();
    for (number, (_, name, port)) in wanted.iter().enumerate() {
        let (resolver, name, port) = (resolver.clone(), name.clone(), *port);
        looks.spawn(async move {
            let found = tokio::time::timeout(patience, resolver.resolve(&name, port)).await;
            (number, found.unwrap_or_else(|_| Err(io::Error::other(format!("no answer within {patience:?}")))))
        });
    }
    let mut found = looks.join_all().await;
    found.sort_by_key(|(number, _)| *number);
    let judge = |(number, found): (usize, io::Result<Vec<SocketAddr>>)| {
        let (at, name, _) = &wanted[number];
        match found {
            Err(error) => Some(
                Fault::new(at, format!("`{name}` cannot be resolved: {error}"))
                    .hint("requests get 502 until it is; --no-names leaves this out"),
            ),
            Ok(found) => found.iter().any(|address| is_gateway(config, *address)).then(|| {
                Fault::new(at, format!("`{name}` leads back to the gateway itself"))
                    .hint("a request would go round until its time is over")
            }),
        }
    };
    found.into_iter().filter_map(judge).collect()
}

/// Returns whether the gateway of this configuration serves at an address.
pub(super) fn is_gateway(config: &Config, back_end: SocketAddr) -> bool {
    config.listen.0.iter().chain(&config.redirect_from.0).filter_map(|text| address(text).ok()).any(|own| {
        let is_all = own.ip().is_unspecified() && (own.is_ipv6() || back_end.ip().to_canonical().is_ipv4());
        own.port() == back_end.port()
            && own.port() != 0
            && (own.ip().to_canonical() == back_end.ip().to_canonical() || is_all && is_local(back_end.ip()))
    })
}

/// Returns whether an address is one of this machine.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::parse, resolve::Lookup};

    /// Knows one name.
    struct OneName;

    impl Resolve for OneName {
        fn resolve(&self, host: &str, port: u16) -> Lookup<'_> {
            let answer = match host {
                "app.internal" => Ok(vec![SocketAddr::from(([192, 0, 2, 1], port))]),
                "own.internal" => Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]),
                "slow.internal" => return Box::pin(std::future::pending()),
                _ => Err(io::Error::other("no such name")),
            };
            Box::pin(async move { answer })
        }
    }

    #[tokio::test]
    async fn names_are_looked_up_together_and_within_their_time() {
        let text = "listen = \"[::]:8443\"\ncertificate = \"c\"\nkey = \"k\"\n\
             [[route]]\nto = [\"http://app.internal:1\", \"http://gone.internal:1\", \"http://slow.internal:1\", \"http://10.0.0.1:1\"]\n\
             [[route]]\npath = \"/own\"\nto = \"https://own.internal:8443\"\n\
             [[stream]]\nalpn = \"x\"\nto = \"tcp://gone.internal:1\"\ndatagrams-to = \"udp://app.internal:1\"\n";
        let config = parse(text, "edge.toml").unwrap();
        let resolver: Arc<dyn Resolve> = Arc::new(OneName);
        let begun = std::time::Instant::now();
        let warnings = names(&config, &resolver, Duration::from_millis(100)).await;
        assert!(begun.elapsed() < Duration::from_secs(60));
        let said: Vec<_> = warnings.iter().map(|fault| fault.message.as_str()).collect();
        assert_eq!(
            said,
            [
                "`gone.internal` cannot be resolved: no such name",
                "`slow.internal` cannot be resolved: no answer within 100ms",
                "`own.internal` leads back to the gateway itself",
                "`gone.internal` cannot be resolved: no such name",
            ]
        );
    }

    #[test]
    fn addresses_of_the_gateway_are_known() {
        let config = |listen: &str| {
            let text = format!("listen = {listen}\ncertificate = \"c\"\nkey = \"k\"\n[[route]]\nto = \"http://a:1\"\n");
            parse(&text, "edge.toml").unwrap()
        };
        for (listen, back_end, expected) in [
            ("\"[::]:443\"", "127.0.0.1:443", true),
            ("\"[::]:443\"", "[::1]:443", true),
            ("\"[::]:443\"", "127.0.0.1:444", false),
            ("\"0.0.0.0:443\"", "127.0.0.9:443", true),
            ("\"0.0.0.0:443\"", "[::1]:443", false),
            ("\"[::]:443\"", "192.0.2.1:443", false),
            ("\"192.0.2.1:443\"", "192.0.2.1:443", true),
            ("\"192.0.2.1:443\"", "127.0.0.1:443", false),
            ("[\"127.0.0.1:1\", \"127.0.0.1:2\"]", "[::ffff:127.0.0.1]:2", true),
        ] {
            assert_eq!(is_gateway(&config(listen), back_end.parse().unwrap()), expected, "{listen} {back_end}");
        }
    }
}
