//! Settings and checks of `[route.proxy]`.

use std::{path::Path, sync::Arc, time::Duration};

use super::{
    Many, Route, Size, Span,
    read::{
        ConfigCause, Fault,
        Step::{self, Key, Number},
    },
    section::section,
};

section! {
    /// `[route.proxy]`: a proxy for UDP (CONNECT-UDP, RFC 9298) at the path of the route, and for TCP (CONNECT). Targets without a public
    /// host are prohibited: private, loopback, link-local and multicast addresses, metadata services of clouds, and the gateway's own
    /// addresses, also embedded in IPv6 addresses. The proxy checks the resolved address, and connects to this address.
    pub struct Proxy {
        /// Forward UDP.
        udp: bool = true,
        /// Forward TCP: plain CONNECT requests, under any name of the gateway. At one route only.
        tcp: bool = false,
        /// URI template with `{target_host}` and `{target_port}` for path and query of UDP requests, as in
        /// `/masque{?target_host,target_port}`; none for the route's `path` followed by `/{target_host}/{target_port}/`.
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
        /// Ports that are prohibited. A list.
        deny_ports: Vec<u16> = vec![25],
        /// Serve bound UDP (draft-ietf-masque-connect-udp-listen): tunnels for many peers, which clients name by address. The rules for
        /// targets hold for each datagram.
        bound_udp: bool = false,
        /// Addresses from which bound UDP is sent, one of each IP version at most: `203.0.113.7`, or `10.0.0.5=203.0.113.7` where others see
        /// another address (1:1 NAT); none for the addresses of the routes to the Internet. One or a list.
        bound_udp_addresses: Many = Many::default(),
        /// Pass on datagrams of all peers to clients with an uncompressed context, as the draft has it. Otherwise those of addresses to which
        /// the client has sent or for which it has registered a context.
        bound_udp_any_peer: bool = false,
        /// Context IDs that a bound tunnel may have open, 1 to 1024.
        bound_udp_contexts: usize = 64,
        /// Addresses of peers that a bound tunnel remembers, 1 to 4096; another one takes the place of that to which nothing was sent for
        /// the longest time.
        bound_udp_peers: usize = 256,
        /// Concurrent tunnels of all clients of the gateway's proxies. Each uses a socket, a bound one up to two.
        tunnels: usize = 4_096,
        /// Concurrent tunnels of one client: the owner of a token, or an address (IPv4) or /64 (IPv6).
        tunnels_per_client: usize = 100,
        /// Tunnels that one client may open per second. A new peer of a bound tunnel counts as one.
        opened_per_second: u32 = 50,
        /// Bytes per second that one client may send and receive through all its tunnels; 0 B: no limit. Beyond it datagrams are dropped,
        /// and TCP waits.
        rate_per_client: Size = Size(0),
        /// Time limit for the look-up of a name, and for a TCP target to accept.
        connect_timeout: Span = Span::secs(10),
        /// Idle timeout of a UDP tunnel, at least 2 min.
        idle_timeout: Span = Span::secs(300),
        /// Idle timeout of a TCP tunnel.
        tcp_idle_timeout: Span = Span::secs(7_200),
    }
}

impl Proxy {
    /// Path and query by which the targets of the route are named.
    pub(crate) fn template_of(&self, route: &Route) -> String {
        match self.template.as_str() {
            "" => format!("{}/{{target_host}}/{{target_port}}/", route.path.trim_end_matches('/')),
            template => template.to_owned(),
        }
    }
}

/// Checks that one route at most takes plain CONNECT requests.
pub(super) fn check_connect(routes: &[Route]) -> Result<(), Fault> {
    let connects = |route: &Route| route.proxy.as_ref().is_some_and(|proxy| proxy.tcp);
    if let [_, second, ..] = routes.iter().enumerate().filter(|(_, route)| connects(route)).collect::<Vec<_>>()[..] {
        let at = [Key("route"), Number(second.0), Key("proxy"), Key("tcp")];
        let message = "another route carries TCP, and a plain CONNECT has no path by which to choose";
        return Err(Fault::new(&at, message).hint("tcp = true at one route"));
    }
    Ok(())
}

/// Checks the files of all proxies.
pub(super) fn check_files(routes: &[Route]) -> Result<(), Fault> {
    for (number, route) in routes.iter().enumerate() {
        if let Some(proxy) = route.proxy.as_ref().filter(|proxy| !proxy.tokens.is_empty()) {
            let at = [Key("route"), Number(number), Key("proxy"), Key("tokens")];
            crate::access::read(Path::new(&proxy.tokens)).map_err(|error| {
                Fault::of(&at, error.to_string(), ConfigCause::Tokens(Arc::new(error)))
                    .hint("`NAME TOKEN` in each line, chmod 600; `openssl rand -hex 32` makes a token")
            })?;
        }
    }
    Ok(())
}

/// Checks rules of certificates.
pub(super) fn check_certificates(at: &[Step], rules: &Many) -> Result<(), Fault> {
    for rule in &rules.0 {
        rule.parse::<crate::certificate_rule::CertificateRule>().map_err(|error| {
            Fault::new(at, error.to_string())
                .hint("client-certificates = \"dns:*.clients.example.org\", or \"subject:CN=alice,O=Ours\"")
        })?;
    }
    Ok(())
}

/// Checks the settings of bound UDP.
fn check_bound(number: usize, proxy: &Proxy) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key("proxy"), Key(key)];
    let mut versions = Vec::new();
    for text in &proxy.bound_udp_addresses.0 {
        let address = text.parse::<super::BoundAddress>().map_err(|message| {
            Fault::new(&at("bound-udp-addresses"), message).hint("`203.0.113.7`, or `10.0.0.5=203.0.113.7`")
        })?;
        if versions.contains(&address.local.is_ipv4()) {
            return Err(Fault::new(&at("bound-udp-addresses"), "expected one address of each IP version at most"));
        }
        versions.push(address.local.is_ipv4());
    }
    if proxy.bound_udp && !proxy.udp {
        return Err(Fault::new(&at("bound-udp"), "expected `udp`, without which there is no bound UDP"));
    }
    let limits =
        [("bound-udp-contexts", proxy.bound_udp_contexts, 1_024), ("bound-udp-peers", proxy.bound_udp_peers, 4_096)];
    match limits.into_iter().find(|(_, limit, most)| !(1..=*most).contains(limit)) {
        Some((key, _, most)) => Err(Fault::new(&at(key), format!("expected 1 to {most}"))),
        None => Ok(()),
    }
}

/// Checks the proxy of a route.
pub(super) fn check(number: usize, route: &Route, proxy: &Proxy) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key("proxy"), Key(key)];
    if !proxy.udp && !proxy.tcp {
        return Err(Fault::new(&at("udp"), "expected `udp` or `tcp`: nothing would be carried"));
    }
    let whole = [Key("route"), Number(number), Key("proxy")];
    match (proxy.tokens.is_empty() && proxy.client_certificates.0.is_empty(), proxy.open) {
        (true, false) => {
            return Err(Fault::new(
                &whole,
                "expected `tokens` or `client-certificates`: everybody could send from this machine's address",
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
    let template = proxy.template_of(route);
    h3_quic::connect_udp::Template::for_server(&template).map_err(|error| {
        Fault::new(&at("template"), error.to_string())
            .hint("/.well-known/masque/udp/{target_host}/{target_port}/, or /masque{?target_host,target_port}")
    })?;
    let path = route.path.trim_end_matches('/');
    if !template.strip_prefix(path).is_some_and(|rest| rest.starts_with(['/', '?', '{'])) {
        let message =
            format!("expected a template that begins with the route's path `{}`, found `{template}`", route.path);
        return Err(Fault::new(&at("template"), message));
    }
    for (key, networks) in [("allow", &proxy.allow), ("deny", &proxy.deny)] {
        for text in &networks.0 {
            text.parse::<crate::network::Network>().map_err(|message| Fault::new(&at(key), message))?;
        }
    }
    if proxy.deny_ports.contains(&0) {
        return Err(Fault::new(&at("deny-ports"), "expected ports from 1 to 65535"));
    }
    check_bound(number, proxy)?;
    let zero = [
        ("tunnels", proxy.tunnels == 0),
        ("tunnels-per-client", proxy.tunnels_per_client == 0),
        ("opened-per-second", proxy.opened_per_second == 0),
    ];
    if let Some((key, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
        return Err(Fault::new(&at(key), "a limit of 0 serves nobody; expected at least 1"));
    }
    // A datagram has to fit into the bytes of one second.
    if (1..65_536).contains(&proxy.rate_per_client.0) {
        return Err(Fault::new(
            &at("rate-per-client"),
            "expected at least 64 KiB, the largest datagram, or 0 B for no limit",
        ));
    }
    // RFC 9298 §3.1 SHOULD NOT-1
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

    /// RFC 9298 §3.1 SHOULD NOT-1
    #[test]
    fn wrong_settings_name_line_field_and_what_to_do() {
        let parse_with = |rest: &str| parse(&format!("{TOP}{rest}"), "edge.toml");
        for (proxy, line, field, hint) in [
            ("", 6, "proxy", "open = true"),
            ("open = true\ntokens = \"x\"", 7, "proxy.open", ""),
            ("client-certificates = \"*\"", 7, "proxy.client-certificates", "[client-certificates]"),
            ("open = true\nudp = false", 8, "proxy.udp", ""),
            ("open = true\ntemplate = \"/x/{target_host}\"", 8, "proxy.template", "{?target_host,target_port}"),
            ("open = true\ntemplate = \"/x/{target_host}/{target_port}\"", 8, "proxy.template", ""),
            ("open = true\ntemplate = \"/udp{+target_host,target_port}\"", 8, "proxy.template", ""),
            ("open = true\nbound-udp-addresses = \"a\"", 8, "proxy.bound-udp-addresses", "10.0.0.5=203.0.113.7"),
            ("open = true\nbound-udp-addresses = [\"192.0.2.1\", \"192.0.2.2\"]", 8, "proxy.bound-udp-addresses", ""),
            ("open = true\ntcp = true\nudp = false\nbound-udp = true", 10, "proxy.bound-udp", ""),
            ("open = true\nbound-udp-contexts = 0", 8, "proxy.bound-udp-contexts", ""),
            ("open = true\nbound-udp-peers = 4097", 8, "proxy.bound-udp-peers", ""),
            ("open = true\nallow = \"10.0.0.0/33\"", 8, "proxy.allow", ""),
            ("open = true\ndeny = [\"a\"]", 8, "proxy.deny", ""),
            ("open = true\ndeny-ports = [0]", 8, "proxy.deny-ports", ""),
            ("open = true\ntunnels = 0", 8, "proxy.tunnels", ""),
            ("open = true\nrate-per-client = \"1 kB\"", 8, "proxy.rate-per-client", ""),
            ("open = true\nidle-timeout = \"30 s\"", 8, "proxy.idle-timeout", ""),
        ] {
            let route = format!("[[route]]\npath = \"/udp\"\n[route.proxy]\n{proxy}\n");
            let error = parse_with(&route).unwrap_err();
            let whole = format!("route[1].{field}");
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(whole.as_str())), "{error}");
            assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
        }
        let asks = "[client-certificates]\nroots = \"ca.pem\"\n";
        for (proxy, field, hint) in [
            ("client-certificates = \"alice\"", "proxy.client-certificates", "subject:"),
            ("open = true\nclient-certificates = \"*\"", "proxy.open", ""),
        ] {
            for section in ["proxy", "ip-proxy"] {
                let route = format!("{asks}[[route]]\npath = \"/udp\"\n[route.{section}]\n{proxy}\n");
                let error = parse_with(&route).unwrap_err();
                let whole = format!("route[1].{}", field.replace("proxy", section));
                assert_eq!(error.field.as_deref(), Some(whole.as_str()), "{error}");
                assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
            }
        }
        parse_with(&format!("{asks}[[route]]\nproxy = {{ client-certificates = \"dns:*.a.example\" }}\n")).unwrap();
        let tcp = "\n[[route]]\npath = \"/udp\"\nproxy = { open = true, tcp = true }\n";
        let two = format!("{tcp}{}", tcp.replace("udp", "more"));
        assert_eq!(parse_with(&two).unwrap_err().field.as_deref(), Some("route[2].proxy.tcp"));
        parse_with(tcp).unwrap();
        let both = tcp.replace("proxy =", "to = \"http://a:1\"\nproxy =");
        assert_eq!(parse_with(&both).unwrap_err().field.as_deref(), Some("route[1].to"));
    }
}
