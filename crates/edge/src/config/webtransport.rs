//! Settings and checks of `[route.webtransport]`.

use super::{
    BackEndTls, Config, Many, Protocol, Route, Span,
    address::{back_end, host_port},
    check::route::check_tls,
    read::{
        Fault,
        Step::{Key, Number},
    },
    section::section,
};

/// Back end that is the gateway itself: what comes is sent back.
pub(crate) const ECHO: &str = "echo:";

/// Origin that stands for every page.
pub(crate) const ANY: &str = "*";

section! {
    /// `[route.webtransport]`: sessions of WebTransport over HTTP/3 at the path of the route, for pages of browsers and other clients. Each
    /// bidirectional stream of a session becomes a connection to a back end, its datagrams go over UDP; or the session goes to a back end
    /// that speaks WebTransport.
    pub struct WebTransport {
        /// Origins whose pages may begin sessions, as browsers write them: `https://www.example.org`; `*` for every page. Clients that send
        /// no `origin` are no browsers, and pass. One or a list.
        origins: Many = Many::default(),
        /// The back end of bidirectional streams: `tcp://host:port`, `unix:/path`, or `echo:` for the gateway itself, which sends
        /// back what comes. `h3://host:port` is a back end that speaks WebTransport: all of the session goes there, on a connection of its
        /// own, verified as `[route.tls]` says.
        to: String = String::new(),
        /// The back end of datagrams: `udp://host:port`, or `echo:`; each session has a socket of its own.
        datagrams_to: String = String::new(),
        /// Application protocols that a session may have. The first that the client offers of them is chosen; clients that offer others only
        /// begin no session. One or a list.
        protocols: Many = Many::default(),
        /// Begin each connection with the client's address (PROXY protocol version 2).
        proxy_protocol: bool = false,
        /// A connection to the back end has to be there within this time. The response of a back end that speaks WebTransport has the
        /// `timeout` of the route.
        connect_timeout: Span = Span::secs(5),
        /// Streams at a time in a session, of the client and of a back end that speaks WebTransport. More are reset. A page may open 100.
        streams_per_session: usize = 128,
        /// Sessions at a time of one client: an address (IPv4) or /64 (IPv6).
        sessions_per_client: usize = 100,
        /// Sessions that one client may begin per second.
        begun_per_second: u32 = 50,
        /// A session that carries nothing, on streams or in datagrams, is closed after this time.
        idle_timeout: Span = Span::secs(600),
        /// A session is asked to end (WT_DRAIN_SESSION) when a reload has removed or changed its route, or another program has taken over. It
        /// is closed after this time.
        drain: Span = Span::secs(600),
        /// Answer a GET for the path of the route with a page that tries sessions, a download and an upload in the browser that shows it.
        /// With `echo:` in `to` and `datagrams-to`, and the gateway's own origin in `origins`.
        test_page: bool = false,
    }
}

impl WebTransport {
    /// Returns whether sessions go to a back end that speaks WebTransport.
    pub(crate) fn is_passed_on(&self) -> bool {
        matches!(back_end(&self.to), Ok((Protocol::Http3, _)))
    }
}

/// Checks the limits that concern all routes with sessions together.
pub(super) fn check_limits(config: &Config) -> Result<(), Fault> {
    let Some(number) = config.routes.iter().position(|route| route.webtransport.is_some()) else { return Ok(()) };
    if !config.http3.enabled {
        let at = [Key("route"), Number(number), Key("webtransport")];
        return Err(Fault::new(&at, "sessions need HTTP/3, which is off").hint("enabled = true in [http3]"));
    }
    let limits = &config.limits;
    let zero = [("sessions", limits.sessions == 0), ("sessions-per-connection", limits.sessions_per_connection == 0)];
    if let Some((key, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
        return Err(Fault::new(&[Key("limits"), Key(key)], "a limit of 0 serves nobody; expected at least 1"));
    }
    // Sessions are requests, too: with as many as all places nothing else would be answered.
    if limits.sessions_per_connection >= limits.requests_per_connection as usize {
        let message = format!(
            "expected fewer than `requests-per-connection` ({}), among which sessions count",
            limits.requests_per_connection
        );
        return Err(Fault::new(&[Key("limits"), Key("sessions-per-connection")], message));
    }
    Ok(())
}

/// Checks the sessions of a route.
pub(super) fn check(number: usize, route: &Route, config: &WebTransport) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key("webtransport"), Key(key)];
    let whole = [Key("route"), Number(number), Key("webtransport")];
    if config.origins.0.is_empty() {
        return Err(Fault::new(&whole, "expected `origins`: pages of every site could reach the back end")
            .hint("origins = [\"https://www.example.org\"]; origins = \"*\" lets every page in"));
    }
    if let Some(origin) = config.origins.0.iter().find(|origin| *origin != ANY && !is_origin(origin)) {
        return Err(Fault::new(&at("origins"), format!("expected an origin or `*`, found `{origin}`")).hint(
            "https://www.example.org or https://www.example.org:8443, in small letters, without a path and port 443",
        ));
    }
    if config.to.is_empty() && config.datagrams_to.is_empty() {
        return Err(Fault::new(&whole, "expected `to` or `datagrams-to`"));
    }
    let is_stream = |to: &str| to == ECHO || to.starts_with("unix:/") || host_port(to, "tcp://").is_some();
    if !config.to.is_empty() && !is_stream(&config.to) && !config.is_passed_on() {
        let message =
            format!("expected `tcp://host:port`, `unix:/path`, `h3://host:port` or `echo:`, found `{}`", config.to);
        return Err(Fault::new(&at("to"), message));
    }
    if config.is_passed_on() {
        let others = [("datagrams-to", !config.datagrams_to.is_empty()), ("proxy-protocol", config.proxy_protocol)];
        if let Some((key, _)) = others.into_iter().find(|(_, given)| *given) {
            return Err(Fault::new(&at(key), "all of a session goes to the back end of `h3://`"));
        }
    }
    let is_udp = |to: &str| to == ECHO || host_port(to, "udp://").is_some();
    if !config.datagrams_to.is_empty() && !is_udp(&config.datagrams_to) {
        let message = format!("expected `udp://host:port` or `echo:`, found `{}`", config.datagrams_to);
        return Err(Fault::new(&at("datagrams-to"), message));
    }
    let is_text = |name: &str| !name.is_empty() && name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if let Some(name) = config.protocols.0.iter().find(|name| !is_text(name)) {
        return Err(Fault::new(&at("protocols"), format!("expected names in ASCII, found `{name}`")));
    }
    let zero = [
        ("streams-per-session", config.streams_per_session == 0),
        ("sessions-per-client", config.sessions_per_client == 0),
        ("begun-per-second", config.begun_per_second == 0),
        ("idle-timeout", config.idle_timeout.0.is_zero()),
    ];
    if let Some((key, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
        return Err(Fault::new(&at(key), "a limit of 0 serves nobody; expected at least 1"));
    }
    if config.test_page && [&config.to, &config.datagrams_to] != [ECHO, ECHO] {
        let message = "the page expects that its streams and datagrams come back";
        return Err(Fault::new(&at("test-page"), message).hint("to = \"echo:\" and datagrams-to = \"echo:\""));
    }
    if config.streams_per_session > MAX_STREAMS {
        let message = format!("expected at most {MAX_STREAMS}, found {}", config.streams_per_session);
        return Err(Fault::new(&at("streams-per-session"), message));
    }
    check_others(number, route, config)
}

/// Largest number of streams that a session may have at a time.
const MAX_STREAMS: usize = 10_000;

/// Checks that a route with sessions asks for nothing that is about answers, or about another back end than it has.
fn check_others(number: usize, route: &Route, config: &WebTransport) -> Result<(), Fault> {
    let at = |key| [Key("route"), Number(number), Key(key)];
    if config.is_passed_on() {
        check_tls(number, &route.tls)?;
    } else if route.tls != BackEndTls::default() {
        return Err(Fault::new(&at("tls"), "it is for a back end over TLS").hint("to = \"h3://host:port\""));
    }
    let for_answers = [("compression", route.compression.is_some()), ("cors", route.cors.is_some())];
    match for_answers.into_iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(Fault::new(&at(key), "it is about answers, and sessions have none")),
        None => Ok(()),
    }
}

/// Returns whether this is an origin as browsers write it (RFC 6454 §6.2).
fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else { return false };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return false };
    let default_port = if scheme == "https" { 443 } else { 80 };
    ["https", "http"].contains(&scheme)
        && authority.port_u16() != Some(default_port)
        && text == format!("{scheme}://{}", authority.as_str().to_ascii_lowercase())
        && !authority.as_str().contains('@')
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    const TOP: &str = "listen = \"[::]:443\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n";

    #[test]
    fn wrong_settings_name_line_field_and_what_to_do() {
        for (section, line, field, hint) in [
            ("to = \"tcp://a:1\"", 6, "webtransport", "every page"),
            ("origins = \"*\"", 6, "webtransport", ""),
            ("to = \"tcp://a:1\"\norigins = \"https://a.example/\"", 8, "webtransport.origins", "small letters"),
            ("to = \"tcp://a:1\"\norigins = \"a.example\"", 8, "webtransport.origins", "small letters"),
            ("to = \"tcp://a:1\"\norigins = \"https://A.example\"", 8, "webtransport.origins", ""),
            ("to = \"tcp://a:1\"\norigins = \"https://a.example:443\"", 8, "webtransport.origins", ""),
            ("origins = \"*\"\nto = \"h3://a:1/x\"", 8, "webtransport.to", ""),
            ("origins = \"*\"\nto = \"h3://a:1\"\nproxy-protocol = true", 9, "webtransport.proxy-protocol", ""),
            ("origins = \"*\"\nto = \"tcp://a:1\"\n[route.tls]\nname = \"a\"", 9, "tls", "h3://"),
            ("origins = \"*\"\nto = \"h3://a:1\"\n[route.tls]\nname = \"a b\"", 9, "tls", ""),
            ("origins = \"*\"\nto = \"http://a:1\"", 8, "webtransport.to", ""),
            ("origins = \"*\"\ndatagrams-to = \"tcp://a:1\"", 8, "webtransport.datagrams-to", ""),
            ("origins = \"*\"\nto = \"tcp://a:1\"\nstreams-per-session = 0", 9, "webtransport.streams-per-session", ""),
            (
                "origins = \"*\"\nto = \"tcp://a:1\"\nstreams-per-session = 100000",
                9,
                "webtransport.streams-per-session",
                "",
            ),
            ("origins = \"*\"\nto = \"tcp://a:1\"\nprotocols = \"\"", 9, "webtransport.protocols", ""),
            ("origins = \"*\"\nto = \"tcp://a:1\"\nidle-timeout = \"0 s\"", 9, "webtransport.idle-timeout", ""),
            ("origins = \"*\"\nto = \"tcp://a:1\"\n[route.compression]", 9, "compression", ""),
            ("origins = \"*\"\nto = \"echo:\"\ntest-page = true", 9, "webtransport.test-page", "datagrams-to"),
        ] {
            let text = format!("{TOP}[[route]]\npath = \"/session\"\n[route.webtransport]\n{section}\n");
            let error = parse(&text, "edge.toml").unwrap_err();
            let whole = format!("route[1].{field}");
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(whole.as_str())), "{error}");
            assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
        }
    }

    #[test]
    fn limits_of_all_sessions_leave_room_for_requests() {
        let route = "[[route]]\nwebtransport = { origins = \"*\", to = \"tcp://a:1\" }\n";
        parse(&format!("{TOP}{route}"), "edge.toml").unwrap();
        for (limits, field) in [
            ("[limits]\nsessions-per-connection = 100\n", "limits.sessions-per-connection"),
            ("[limits]\nsessions = 0\n", "limits.sessions"),
            ("[http3]\nenabled = false\n", "route[1].webtransport"),
        ] {
            let error = parse(&format!("{TOP}{limits}{route}"), "edge.toml").unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{error}");
            let without = format!("{TOP}{limits}[[route]]\nto = \"http://a:1\"\n");
            parse(&without, "edge.toml").unwrap();
        }
        let both = format!("{TOP}{route}to = \"http://a:1\"\n");
        assert_eq!(parse(&both, "edge.toml").unwrap_err().field.as_deref(), Some("route[1].to"));
    }
}
