//! Settings and checks of `[route.ip-proxy]`.

use std::{path::Path, sync::Arc, time::Duration};

use h3_quic::connect_ip::{MIN_IPV6_MTU, Prefix, Template};

use super::{
    Many, Route, Size, Span,
    proxy::check_certificates,
    read::{
        ConfigCause, Fault,
        Step::{Key, Number},
    },
    section::section,
};

/// The longest MTU of a device: that of jumbo frames.
const MAX_MTU: u16 = 9_000;

section! {
    /// `[route.ip-proxy]`: a proxy for IP packets (CONNECT-IP, RFC 9484) at the path of the route. Clients get addresses of `addresses`, and
    /// their packets go through a TUN device to the kernel, which has to forward them: `sysctl net.ipv4.ip_forward=1`, and for private
    /// addresses a rule that translates them. Destinations without a public host are prohibited as at `[route.proxy]`, and so are the
    /// addresses of this machine.
    pub struct IpProxy {
        /// Networks whose addresses clients get, one of IPv4 and one of IPv6 at most, as in `10.89.0.0/16`. The first host of each is the
        /// gateway. One or a list.
        addresses: Many = Many::default(),
        /// Name of the TUN device. One that does not exist is made, which takes `CAP_NET_ADMIN`.
        device: String = "tiderace0".to_owned(),
        /// MTU of the device, from 1280 to 9000. Larger packets to clients are fragmented by the kernel, or answered with an ICMP message.
        mtu: u16 = 1_280,
        /// Networks to which clients are told to send packets; none for all addresses of the versions in `addresses`. One or a list.
        routes: Many = Many::default(),
        /// URI template with `{target}` and `{ipproto}`, as in `/masque/ip{?target,ipproto}`; none for the route's `path` followed by
        /// `/{target}/{ipproto}/`.
        template: String = String::new(),
        /// File with `NAME TOKEN` in each line, not readable by others. Clients send a token (`authorization: Bearer TOKEN`, or
        /// `proxy-authorization`). Read with the configuration.
        tokens: String = String::new(),
        /// Certificates of clients that are served, beside those with a token: `subject:CN=alice,O=Ours` (RFC 4514), `subject:*,O=Ours` for
        /// all whose subject ends so, `dns:alice.example.org`, `dns:*.example.org` for one label, `email:alice@example.org`,
        /// `email:*@example.org`, `uri:spiffe://ours/alice`, `uri:spiffe://ours/*`, `ip:192.0.2.1`, `sha256:` with a fingerprint, or `*`
        /// for all that `[client-certificates]` verifies. One or a list.
        client_certificates: Many = Many::default(),
        /// Serve all clients, without `tokens` and `client-certificates`.
        open: bool = false,
        /// Networks that are permitted although they have no public hosts, as in `10.1.0.0/16`. One or a list.
        allow: Many = Many::default(),
        /// Networks that are prohibited; takes precedence over `allow`. One or a list.
        deny: Many = Many::default(),
        /// Ports of TCP, UDP, UDP-Lite, SCTP and DCCP that are prohibited. A list.
        deny_ports: Vec<u16> = vec![25],
        /// Concurrent tunnels of all clients of the gateway's proxies.
        tunnels: usize = 4_096,
        /// Concurrent tunnels of one client: the owner of a token, or an address (IPv4) or /64 (IPv6).
        tunnels_per_client: usize = 10,
        /// Tunnels that one client may open per second.
        opened_per_second: u32 = 10,
        /// Bytes per second that one client may send and receive through all its tunnels; 0 B: no limit. Beyond it packets are dropped.
        rate_per_client: Size = Size(0),
        /// Time limit for the look-up of a name, and for the discovery that the path to a client carries the packets of IPv6.
        connect_timeout: Span = Span::secs(10),
        /// Idle timeout of a tunnel, at least 2 min.
        idle_timeout: Span = Span::secs(1_800),
    }
}

impl IpProxy {
    /// Path and query by which requests say what they are limited to.
    pub(crate) fn template_of(&self, route: &Route) -> String {
        match self.template.as_str() {
            "" => format!("{}/{{target}}/{{ipproto}}/", route.path.trim_end_matches('/')),
            template => template.to_owned(),
        }
    }

    /// Networks whose addresses clients get, checked when the configuration was read.
    pub(crate) fn pools(&self) -> Vec<Prefix> {
        self.addresses.0.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Networks that are advertised, checked when the configuration was read.
    pub(crate) fn advertised(&self) -> Vec<Prefix> {
        if !self.routes.0.is_empty() {
            return self.routes.0.iter().filter_map(|text| text.parse().ok()).collect();
        }
        let pools = self.pools();
        let has = |is_v4: bool| pools.iter().any(|pool| pool.address().is_ipv4() == is_v4);
        let all = [("0.0.0.0/0", has(true)), ("::/0", has(false))];
        all.into_iter().filter(|(_, has)| *has).filter_map(|(text, _)| text.parse().ok()).collect()
    }
}

/// Checks that no two proxies give the same addresses, or have the same device with other settings.
pub(super) fn check_all(routes: &[Route]) -> Result<(), Fault> {
    let proxies = || routes.iter().enumerate().filter_map(|(number, route)| Some((number, route.ip_proxy.as_ref()?)));
    for (number, proxy) in proxies() {
        let at = |key| [Key("route"), Number(number), Key("ip-proxy"), Key(key)];
        for (_, earlier) in proxies().take_while(|(other, _)| *other < number) {
            if earlier.device == proxy.device {
                return Err(Fault::new(&at("device"), format!("another route has the device `{}`", proxy.device)));
            }
            let other = earlier.pools();
            let has_common = |pool: &Prefix| other.iter().any(|other| is_overlapping(*pool, *other));
            if let Some(pool) = proxy.pools().iter().find(|pool| has_common(pool)) {
                return Err(Fault::new(&at("addresses"), format!("another route gives addresses of `{pool}`")));
            }
        }
    }
    Ok(())
}

fn is_overlapping(a: Prefix, b: Prefix) -> bool {
    a.contains(b.address()) || b.contains(a.address())
}

/// Checks the files of all proxies.
pub(super) fn check_files(routes: &[Route]) -> Result<(), Fault> {
    for (number, route) in routes.iter().enumerate() {
        if let Some(proxy) = route.ip_proxy.as_ref().filter(|proxy| !proxy.tokens.is_empty()) {
            let at = [Key("route"), Number(number), Key("ip-proxy"), Key("tokens")];
            crate::access::read(Path::new(&proxy.tokens)).map_err(|error| {
                Fault::of(&at, error.to_string(), ConfigCause::Tokens(Arc::new(error)))
                    .hint("`NAME TOKEN` in each line, chmod 600; `openssl rand -hex 32` makes a token")
            })?;
        }
    }
    Ok(())
}

/// Checks the proxy of a route.
pub(super) fn check(number: usize, route: &Route, proxy: &IpProxy) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key("ip-proxy"), Key(key)];
    let whole = [Key("route"), Number(number), Key("ip-proxy")];
    match (proxy.tokens.is_empty() && proxy.client_certificates.0.is_empty(), proxy.open) {
        (true, false) => {
            return Err(Fault::new(
                &whole,
                "expected `tokens` or `client-certificates`: everybody could send from this machine's network",
            )
            .hint("tokens = \"tokens\" is a file with `NAME TOKEN` in each line; open = true serves everybody"));
        }
        (false, true) => {
            return Err(Fault::new(
                &at("open"),
                "expected either `open`, or `tokens` and `client-certificates`, found both",
            ));
        }
        _ => {}
    }
    check_certificates(&at("client-certificates"), &proxy.client_certificates)?;
    check_addresses(&whole, &at("addresses"), proxy)?;
    for text in &proxy.routes.0 {
        text.parse::<Prefix>().map_err(|error| Fault::new(&at("routes"), format!("`{text}`: {error}")))?;
    }
    let name = &proxy.device;
    if name.is_empty()
        || name.len() > 15
        || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        let message = format!("expected 1 to 15 letters, digits, `-`, `_` and `.`, found `{name}`");
        return Err(Fault::new(&at("device"), message));
    }
    if usize::from(proxy.mtu) < MIN_IPV6_MTU || proxy.mtu > MAX_MTU {
        return Err(Fault::new(&at("mtu"), format!("expected 1280 to {MAX_MTU}, found {}", proxy.mtu)));
    }
    let template = proxy.template_of(route);
    Template::for_server(&template).map_err(|error| {
        Fault::new(&at("template"), error.to_string())
            .hint("/.well-known/masque/ip/{target}/{ipproto}/, or /masque/ip{?target,ipproto}")
    })?;
    let path = route.path.trim_end_matches('/');
    if !template.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '{'])) {
        let message =
            format!("expected a template that begins with the route's path `{}`, found `{template}`", route.path);
        return Err(Fault::new(&at("template"), message));
    }
    for (key, networks) in [("allow", &proxy.allow), ("deny", &proxy.deny)] {
        for text in &networks.0 {
            text.parse::<crate::network::Network>().map_err(|message| Fault::new(&at(key), message))?;
        }
    }
    check_limits(number, proxy)
}

/// Checks the networks whose addresses clients get.
fn check_addresses(whole: &[super::read::Step], at: &[super::read::Step], proxy: &IpProxy) -> Result<(), Fault> {
    let hint = "addresses = [\"10.89.0.0/16\", \"fd00:89::/64\"]";
    if proxy.addresses.0.is_empty() {
        return Err(Fault::new(whole, "expected `addresses`: clients would get none").hint(hint));
    }
    for text in &proxy.addresses.0 {
        let pool: Prefix = text.parse().map_err(|error| Fault::new(at, format!("`{text}`: {error}")).hint(hint))?;
        // The address of the network, that of the gateway, and in IPv4 that of the broadcast are not given.
        if pool.last_offset() < 3 {
            return Err(Fault::new(at, format!("expected at least four addresses, found `{text}`")).hint(hint));
        }
    }
    let pools = proxy.pools();
    for is_v4 in [true, false] {
        if pools.iter().filter(|pool| pool.address().is_ipv4() == is_v4).count() > 1 {
            return Err(Fault::new(at, "expected one network of each IP version at most").hint(hint));
        }
    }
    Ok(())
}

fn check_limits(number: usize, proxy: &IpProxy) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key("ip-proxy"), Key(key)];
    if proxy.deny_ports.contains(&0) {
        return Err(Fault::new(&at("deny-ports"), "expected ports from 1 to 65535"));
    }
    let zero = [
        ("tunnels", proxy.tunnels == 0),
        ("tunnels-per-client", proxy.tunnels_per_client == 0),
        ("opened-per-second", proxy.opened_per_second == 0),
    ];
    if let Some((key, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
        return Err(Fault::new(&at(key), "a limit of 0 serves nobody; expected at least 1"));
    }
    // A packet has to fit into the bytes of one second.
    if (1..65_536).contains(&proxy.rate_per_client.0) {
        let message = "expected at least 64 KiB, the largest packet, or 0 B for no limit";
        return Err(Fault::new(&at("rate-per-client"), message));
    }
    if proxy.idle_timeout.0 < Duration::from_secs(120) {
        return Err(Fault::new(
            &at("idle-timeout"),
            "expected at least 2 min, for which every NAT keeps a mapping of UDP",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const TOP: &str = "listen = \"[::]:443\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n";

    #[test]
    fn wrong_settings_name_line_field_and_what_to_do() {
        let parse_with = |rest: &str| parse(&format!("{TOP}{rest}"), "edge.toml");
        let pool = "open = true\naddresses = \"10.89.0.0/16\"";
        for (proxy, line, field, hint) in [
            ("addresses = \"10.89.0.0/16\"", 6, "ip-proxy", "open = true"),
            ("open = true", 6, "ip-proxy", "10.89.0.0/16"),
            ("open = true\naddresses = \"10.89.0.1/16\"", 8, "ip-proxy.addresses", "10.89.0.0/16"),
            ("open = true\naddresses = \"10.89.0.0/31\"", 8, "ip-proxy.addresses", ""),
            ("open = true\naddresses = [\"10.1.0.0/16\", \"10.2.0.0/16\"]", 8, "ip-proxy.addresses", ""),
            (&format!("{pool}\ntokens = \"x\""), 7, "ip-proxy.open", ""),
            (&format!("{pool}\nroutes = \"10.0.0.1/8\""), 9, "ip-proxy.routes", ""),
            (&format!("{pool}\ndevice = \"a/b\""), 9, "ip-proxy.device", ""),
            (&format!("{pool}\ndevice = \"abcdefghijklmnop\""), 9, "ip-proxy.device", ""),
            (&format!("{pool}\nmtu = 1279"), 9, "ip-proxy.mtu", ""),
            (&format!("{pool}\nmtu = 9001"), 9, "ip-proxy.mtu", ""),
            (&format!("{pool}\ntemplate = \"/other/{{target}}\""), 9, "ip-proxy.template", ""),
            (&format!("{pool}\ntemplate = \"/ip{{+target}}\""), 9, "ip-proxy.template", "{?target,ipproto}"),
            (&format!("{pool}\nallow = \"10.0.0.0/33\""), 9, "ip-proxy.allow", ""),
            (&format!("{pool}\ndeny-ports = [0]"), 9, "ip-proxy.deny-ports", ""),
            (&format!("{pool}\ntunnels-per-client = 0"), 9, "ip-proxy.tunnels-per-client", ""),
            (&format!("{pool}\nrate-per-client = \"1 kB\""), 9, "ip-proxy.rate-per-client", ""),
            (&format!("{pool}\nidle-timeout = \"30 s\""), 9, "ip-proxy.idle-timeout", ""),
        ] {
            let error = parse_with(&format!("[[route]]\npath = \"/ip\"\n[route.ip-proxy]\n{proxy}\n")).unwrap_err();
            let field = format!("route[1].{field}");
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(field.as_str())), "{error}");
            assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
        }
        let route =
            |path: &str, more: &str| format!("\n[[route]]\npath = \"{path}\"\n[route.ip-proxy]\nopen = true\n{more}\n");
        let first = route("/a", "addresses = \"10.89.0.0/16\"");
        let config = parse_with(&first).unwrap();
        let proxy = config.routes[0].ip_proxy.as_ref().unwrap();
        assert_eq!(proxy.advertised(), ["0.0.0.0/0".parse().unwrap()], "no routes of a version without addresses");
        let field = |second: &str| parse_with(&format!("{first}{second}")).unwrap_err().field.unwrap();
        assert_eq!(field(&route("/b", "addresses = \"10.90.0.0/16\"")), "route[2].ip-proxy.device");
        let same = "addresses = \"10.89.4.0/24\"\ndevice = \"other\"";
        assert_eq!(field(&route("/b", same)), "route[2].ip-proxy.addresses");
        let both = first.replace("[route.ip-proxy]", "to = \"http://a:1\"\n[route.ip-proxy]");
        assert_eq!(parse_with(&both).unwrap_err().field.as_deref(), Some("route[1].to"));
    }
}
