//! The configuration file: what may stand in it, and what is wrong with it.
//!
//! `section` declares, `human` has the values, `read` goes from text to [`Config`] and says where it stumbles, `check` finds what
//! only shows in combination, `clients` has what concerns clients, `machine` what concerns load balancers in front, `examine` what only shows on a machine, `proxy` does both for the proxy of a route, `webtransport` for its sessions, and `site` for what a site does with its answers, `reference`
//! prints the page of documentation and `schema` what other programs read.

mod check;
mod clients;
mod examine;
mod human;
mod machine;
mod proxy;
pub(crate) mod read;
pub mod reference;
pub(crate) mod schema;
pub(crate) mod section;
mod site;
pub(crate) mod webtransport;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use self::examine::certificates;
use self::read::ResolvedConfig;
use self::section::section;
pub use self::{
    clients::{BasicAuth, ClientCertificates, Cors, ForwardedField, RateLimit, TrustedProxies},
    examine::{Examination, Examined, examine},
    human::{Many, Part, Size, Span},
    machine::LoadBalancer,
    proxy::Proxy,
    read::{ConfigCause, ConfigError, load, parse},
    schema::schema,
    site::{Compression, HeaderRules},
    webtransport::WebTransport,
};
pub(crate) use check::{address, back_end, host_port};
pub(crate) use machine::nonce_len;

section! {
    /// The whole file. Five lines are a working site: `listen`, `certificate`, `key`, and a `[[route]]` with `to`.
    pub struct Config {
        /// Addresses and ports; each serves HTTP/3 on UDP, and HTTP/2 and HTTP/1.1 over TLS on TCP. One or a list.
        listen: Many = Many(vec!["[::]:443".to_owned()]),
        /// Addresses and ports of plain HTTP, as in `[::]:80`. A request there is redirected to the same URL with `https` (308). One or
        /// a list.
        redirect_from: Many = Many::default(),
        /// The certificate chain (PEM), for clients that no `[[certificate-for]]` fits. Read again when it changes.
        certificate: String = String::new(),
        /// The private key of `certificate` (PEM).
        key: String = String::new(),
        /// Threads that serve. 0: one for each processor.
        workers: u8 = 0,
        /// Time limit for a stop: what is under way has so long to end.
        drain: Span = Span::secs(30),
        /// Upgrades of the program.
        upgrade: Upgrade = Upgrade::default(),
        /// Certificates by server name.
        #[serde(rename = "certificate-for")]
        certificates: Vec<Certificate> = Vec::new(),
        /// Certificates from an authority.
        acme: Acme = Acme::default(),
        /// Certificates of clients (mutual TLS).
        client_certificates: Option<ClientCertificates> = None,
        /// HTTP/3.
        http3: Http3 = Http3::default(),
        /// Settings of QUIC.
        transport: Transport = Transport::default(),
        /// Transport settings for some of the clients; the first policy that fits wins.
        #[serde(rename = "policy")]
        policies: Vec<Policy> = Vec::new(),
        /// Static files.
        files: Files = Files::default(),
        /// Proxies in front of the gateway that are believed when they name the client.
        trusted_proxies: TrustedProxies = TrustedProxies::default(),
        /// Load balancers in front of this machine, which is one of several.
        load_balancer: LoadBalancer = LoadBalancer::default(),
        /// Requests of each client, to all routes together.
        rate_limit: Option<RateLimit> = None,
        /// Limits.
        limits: Limits = Limits::default(),
        /// Keys and registers that several gateways share so that a client may return to any of them.
        keys: Keys = Keys::default(),
        /// The access log.
        log: Log = Log::default(),
        /// The socket for `tiderace edge reload`, `upgrade`, `status`, `connections`, `capture` and `compare`.
        admin: Admin = Admin::default(),
        /// Captures of single connections.
        capture: Capture = Capture::default(),
        /// Figures for Prometheus.
        metrics: Metrics = Metrics::default(),
        /// Routes of requests: the longest `path` of the best `host` wins.
        #[serde(rename = "route")]
        routes: Vec<Route> = Vec::new(),
        /// Routes of streams of other protocols than HTTP.
        #[serde(rename = "stream")]
        streams: Vec<Stream> = Vec::new(),
    }
}

section! {
    /// `[upgrade]`: another program takes the place of the one that runs.
    pub struct Upgrade {
        /// A program that has not taken over after this time is given up, and the one that runs goes on.
        start_timeout: Span = Span::secs(30),
        /// Connections over QUIC, and requests over TCP, stay with the program that was replaced for this long. Then they drain.
        drain: Span = Span::secs(3_600),
    }
}

section! {
    /// `[[certificate-for]]`: a certificate for some server names.
    pub struct Certificate {
        /// The names, as in `example.org` or `*.example.org`. One or a list.
        name: Many = Many::default(),
        /// The certificate chain (PEM). Read again when it changes.
        certificate: String = String::new(),
        /// Private key (PEM).
        key: String = String::new(),
    }
}

section! {
    /// `[acme]`: a certificate from an authority (ACME), which is replaced in time. The authority looks at port 443 of the names, over
    /// TLS (TLS-ALPN-01), so it has to lead here. `certificate` is for the names that are not here, and may be left out.
    pub struct Acme {
        /// The names of the certificate, as in `example.org`; none for no certificate. One or a list.
        names: Many = Many::default(),
        /// The authority agrees to serve those who agree to its terms: say so.
        terms_agreed: bool = false,
        /// Addresses for mail from the authority. One or a list.
        contact: Many = Many::default(),
        /// URL of the authority's directory.
        directory: String = "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
        /// Certificates (PEM) one of which has to have signed the authority's own; none for those that the system trusts.
        roots: String = String::new(),
        /// A directory, for its owner alone, that keeps account, keys and certificates.
        folder: String = "acme".to_owned(),
        /// A certificate is replaced so long before its end, or when a third of its life is left if that is later.
        renew_before: Span = Span::secs(30 * 86_400),
    }
}

section! {
    /// `[http3]`.
    pub struct Http3 {
        /// Serve HTTP/3, and say so in `alt-svc`.
        enabled: bool = true,
        /// Time for which clients may remember that HTTP/3 is available.
        alt_svc_max_age: Span = Span::secs(86_400),
        /// Ask clients in `alt-svc` to say why they fell back to TCP; `tiderace` does.
        fallback_reports: bool = false,
        /// Refuse new QUIC connections so that clients fall to TCP within one round trip.
        shed: bool = false,
    }
}

section! {
    /// `[transport]`: settings of QUIC.
    pub struct Transport {
        /// Congestion control: `newreno`, `cubic`, `bbr1`, `bbr2`, `bbr3` or `auto`.
        congestion: String = "cubic".to_owned(),
        /// A connection ends when nothing is heard for this long.
        idle_timeout: Span = Span::secs(30),
        /// Early data (0-RTT): requests of clients that come back leave with their first packet.
        early_data: bool = false,
        /// While more handshakes than this are incomplete, clients prove their address first (Retry). 0: always, which costs each
        /// new client a round trip.
        retry_above: usize = 1_000,
        /// Answer clients that offer version 2 of QUIC (RFC 9369) in it, whatever version their first packet has: compatible version
        /// negotiation (RFC 9368), without a round trip. A client that begins with version 2 is answered in it in any case.
        upgrade_to_version_2: bool = false,
    }
}

section! {
    /// `[[policy]]`: how QUIC sends to some of the clients. Everything that it asks for has to fit. Of several that fit the first in
    /// the file wins; a connection that is under one only changes to one that stands before it.
    pub struct Policy {
        /// Name in logs and metrics.
        name: String = String::new(),
        /// Connections at these of the addresses in `listen`. One or a list.
        listen: Many = Many::default(),
        /// Clients in these networks, as in `192.0.2.0/24`. One or a list.
        network: Many = Many::default(),
        /// Server names. One or a list.
        sni: Many = Many::default(),
        /// Application protocols (ALPN), such as `h3`. One or a list.
        alpn: Many = Many::default(),
        /// Connections with a request of these routes, from that request on: the route's host (`*` for none) and path, as in
        /// `example.org/video`. One or a list.
        route: Many = Many::default(),
        /// Paths whose smallest round trip is longer.
        rtt_above: Option<Span> = None,
        /// Paths that lose more, as soon as 200 packets were sent.
        loss_above: Option<Part> = None,
        /// Share of the fitting connections that get it; the others are compared with them (`tiderace edge compare`).
        share: Part = Part(1.0),
        /// Congestion control, as in `[transport]`; none for that one.
        congestion: String = String::new(),
        /// Forward error correction: `off`, `receive`, `auto`, or a code such as `rlc:1/5:40`. Only with `listen` and `network`,
        /// which are known with the first packet.
        fec: String = String::new(),
        /// Acknowledgement rate asked of clients: `off`, `adaptive`, or `fixed:N` packets. Only with `listen` and `network`.
        ack_frequency: String = String::new(),
        /// Requests and streams may be served from early data where their route or `[[stream]]` says so; `false`: they wait for the end
        /// of the handshake.
        early_data: bool = true,
    }
}

impl Policy {
    /// Returns whether the client's first packet decides who gets it.
    pub(crate) fn is_known_at_once(&self) -> bool {
        let later = [&self.sni, &self.alpn, &self.route];
        later.iter().all(|names| names.0.is_empty()) && self.rtt_above.is_none() && self.loss_above.is_none()
    }
}

section! {
    /// `[files]`: how routes with `files` read them.
    pub struct Files {
        /// Memory for the content of files that are asked for often, in pieces of 64 KiB; 0 B for none. Every request looks whether
        /// the file has changed, and what was changed within 3 s is not kept.
        memory: Size = Size(128 * 1024 * 1024),
    }
}

section! {
    /// `[limits]`: what a client may use up.
    pub struct Limits {
        /// Connections at a time, TCP and QUIC together.
        connections: usize = 100_000,
        /// Connections at a time of one address (IPv4), or of one /64 (IPv6).
        connections_per_address: usize = 1_000,
        /// Requests at a time on one connection of HTTP/2 or HTTP/3.
        requests_per_connection: u32 = 100,
        /// Bytes of the fields of a request.
        fields: Size = Size(64 * 1024),
        /// A request's fields have to come within this time; an idle connection of HTTP/1.1 ends after it.
        fields_timeout: Span = Span::secs(30),
        /// While the gateway waits for a request's content, `content-progress` of it has to come in each interval of this length, or
        /// the rest of it. Once the back end has answered any part is enough.
        content_timeout: Span = Span::secs(60),
        /// Bytes of content that have to come in each `content-timeout`.
        content_progress: Size = Size(16 * 1024),
        /// A client that takes nothing of what is sent to it for this long is let go: its stream in HTTP/3 and HTTP/2, its connection
        /// in HTTP/1.1 and where TCP is stuck.
        read_timeout: Span = Span::secs(60),
        /// Requests that a client may give up within 10 s on one connection of HTTP/3 or HTTP/2. One that gives up more loses
        /// the connection.
        cancelled_requests: u32 = 200,
        /// Memory that all clients together can make the gateway hold. 0 B: a quarter of the machine's, or of what its cgroup allows.
        /// When three quarters of it are held new connections are refused, and when all of it is those that hold most are closed. It
        /// stays what it was at the start.
        memory: Size = Size(0),
        /// Memory that one client can make the gateway hold on one connection: 1 MiB at first, and so much when receive windows have
        /// grown. The buffers of each request that is with a back end come to it, with 16 KiB. At least 1 MiB.
        connection_memory: Size = Size(4 * 1024 * 1024),
        /// Requests and streams that are with all back ends at a time, each of which takes a connection where it is not HTTP/2. More
        /// wait for `queue-timeout` of their route.
        back_end_requests: usize = 4_096,
        /// Sessions of WebTransport at a time, of all clients.
        sessions: usize = 4_096,
        /// Sessions of WebTransport at a time on one connection. Clients that have no flow control of sessions, such as browsers, have one.
        /// Sessions count among `requests-per-connection`.
        sessions_per_connection: usize = 16,
        /// TLS has to be done within this time.
        handshake_timeout: Span = Span::secs(10),
    }
}

section! {
    /// `[keys]`: what several gateways share so that a client may come back to any of them.
    pub struct Keys {
        /// A ring of keys for session tickets, tokens and stateless resets, made and rotated by `tiderace edge keys`. Read again
        /// when it changes. None: keys of this process, which end with it.
        file: String = String::new(),
        /// Register of used early data, so that it is accepted once: `redis://host:port/` for a Redis that all
        /// gateways share; empty for the memory of this process.
        strikes: String = String::new(),
        /// Take early data with the keys of `file` also without `strikes`: each gateway that has them then accepts a copy of it
        /// once, so say that requests which happen as often as there are gateways do no harm.
        copies_do_no_harm: bool = false,
    }
}

section! {
    /// `[log]`: one line for each request that has ended.
    pub struct Log {
        /// A file, `-` for the standard output, or `off`. A reload opens it again, so that another program may rename it before.
        access: String = "off".to_owned(),
        /// `json`, or `combined` for the combined log format of other servers, which has less.
        format: LogFormat = LogFormat::Json,
    }
}

section! {
    /// `[admin]`.
    pub struct Admin {
        /// Path of a Unix socket that only its owner may use; empty for none.
        socket: String = String::new(),
    }
}

section! {
    /// `[capture]`: what `tiderace edge capture` may do. A capture has what clients and back ends have said to each other, and the
    /// keys for it.
    pub struct Capture {
        /// Allow captures. They are asked for over the admin socket.
        enabled: bool = false,
        /// A directory, for its owner alone, that gets a folder for each capture.
        folder: String = "captures".to_owned(),
        /// A capture ends after this time, however long was asked for.
        max_time: Span = Span::secs(300),
        /// A capture ends when it has so much.
        max_size: Size = Size(64 * 1024 * 1024),
        /// Connections of a capture that get a qlog file.
        max_connections: usize = 100,
        /// While there are so many captures in the folder there is no other.
        keep: usize = 20,
    }
}

section! {
    /// `[metrics]`.
    pub struct Metrics {
        /// Address and port that serve `/metrics` over plain HTTP; empty for none.
        listen: String = String::new(),
    }
}

section! {
    /// `[[route]]`: a part of a site, and who answers for it. Exactly one of `to`, `files`, `redirect`, `proxy` and
    /// `webtransport`.
    pub struct Route {
        /// Names as in `example.org` or `*.example.org`; none for every name. One or a list.
        host: Many = Many::default(),
        /// The beginning of the path, whole segments: `/api` is for `/api` and `/api/x`, not for `/apis`.
        path: String = "/".to_owned(),
        /// Back ends: `http://host:port` for HTTP/1.1, `h2c://host:port` for HTTP/2 without TLS, `https://host:port` for either
        /// over TLS, by what the back end chooses. One or a list.
        to: Many = Many::default(),
        /// Choice among several back ends that are well: `round-robin`, or `least-connections` for the one with the fewest requests.
        balance: Balance = Balance::RoundRobin,
        /// Keeps the requests of a client at one back end.
        sticky: Option<Sticky> = None,
        /// Time after which names in `to` are looked up again, as in `30 s`. Each address of a name is then a back end of its own; one that
        /// stays keeps its connections, and a look-up that fails changes nothing. None: a name is one back end, looked up for each
        /// connection.
        refresh: Option<Span> = None,
        /// A directory whose files are served.
        files: String = String::new(),
        /// A URL, or a path of the same host, to which clients are redirected. `{path}` stands for the path and query of the request
        /// behind the route's `path`, as in `https://www.example.org/{path}`.
        redirect: String = String::new(),
        /// Status of the redirection: 301, 302, 303, 307 or 308.
        redirect_status: u16 = 308,
        /// A proxy to targets that clients name.
        proxy: Option<Proxy> = None,
        /// Sessions of WebTransport to a back end.
        webtransport: Option<WebTransport> = None,
        /// Names of files that stand for their directory; the first that exists is served. One or a list.
        index: Many = Many(vec!["index.html".to_owned()]),
        /// A file of `files` that is served in place of one that does not exist, as for applications of one page. Requests for
        /// hidden files stay 404.
        fallback: String = String::new(),
        /// Serve `NAME.zst`, `NAME.br` or `NAME.gz` of `files` in place of NAME to clients that accept its coding.
        precompressed: bool = false,
        /// Symbolic links in `files` may lead out of the directory. Without, what they lead to outside is not found.
        symlinks_outside: bool = false,
        /// Answer for a directory of `files` without `index.html` with a list of its files.
        listing: bool = false,
        /// Leave `path` out of what the back end is asked for.
        strip: bool = false,
        /// A path that the back end is asked for in place of the route's `path`: with `path = "/api"` and `rewrite = "/v2"` a
        /// request for `/api/x` asks for `/v2/x`.
        rewrite: String = String::new(),
        /// A connection to a back end has to be there within this time.
        connect_timeout: Span = Span::secs(5),
        /// Requests that are with one of the back ends at a time, each of which takes a connection where it is not HTTP/2. More wait.
        requests: usize = 512,
        /// A request that waits for so long is answered with 503 and `retry-after`.
        queue_timeout: Span = Span::secs(10),
        /// The fields of a response have to come within this time.
        timeout: Span = Span::secs(60),
        /// While a client waits for a response's content, `content-progress` of it has to come in each interval of this length, or the
        /// rest of it. 0 s: no limit. Tunnels have none.
        content_timeout: Span = Span::secs(300),
        /// Bytes of a response's content that have to come in each `content-timeout`.
        content_progress: Size = Size(1),
        /// Number of further tries of a request, with another back end if there is one: when none got it, or when it is
        /// idempotent, has no content and failed before its answer began.
        retries: u8 = 1,
        /// Requests may be served from early data, which somebody else may have sent again. Safe methods only.
        early_data: bool = false,
        /// Protocols that a request may switch to when client and back end agree (`upgrade`, or an extended CONNECT of HTTP/2 and
        /// HTTP/3): names of
        /// upgrade tokens. With `connect-udp` and others that speak in capsules, HTTP/3's datagrams are carried as capsules. A list.
        tunnels: Many = Many(vec!["websocket".to_owned()]),
        /// Authentication of `https://` back ends.
        tls: BackEndTls = BackEndTls::default(),
        /// Asks back ends how they are.
        health: Option<Health> = None,
        /// Requests of each client to this route.
        rate_limit: Option<RateLimit> = None,
        /// Names and passwords without which nobody is served.
        basic_auth: Option<BasicAuth> = None,
        /// Serve only clients that have shown a certificate; others get 403. Needs `[client-certificates]`. Requests in early data wait
        /// for the end of the handshake.
        client_certificate: bool = false,
        /// Scripts of other sites that may read the responses.
        cors: Option<Cors> = None,
        /// Compresses content.
        compression: Option<Compression> = None,
        /// Header fields of requests on their way to a back end.
        request_headers: HeaderRules = HeaderRules::default(),
        /// Header fields of responses on their way to the client.
        response_headers: HeaderRules = HeaderRules::default(),
        /// Time for which browsers ask for the site by HTTPS only (`strict-transport-security`, RFC 6797).
        hsts: Option<Span> = None,
        /// Pages in place of the gateway's own text for errors, by status: `{ 404 = "404.html", 502 = "down.html" }`. Responses of
        /// back ends stay as they are.
        error_pages: BTreeMap<String, String> = BTreeMap::new(),
    }
}

impl Route {
    /// Name in logs, metrics and policies.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.host.0.first().map_or("*", String::as_str), self.path)
    }
}

section! {
    /// `[route.sticky]`: a cookie that keeps a client at its back end for as long as that is well. It has a code and no address. Gateways
    /// with the same `keys.file` understand each other's.
    pub struct Sticky {
        /// Name of the cookie.
        cookie: String = "edge-back-end".to_owned(),
        /// Time for which browsers keep it; none until they end.
        max_age: Option<Span> = None,
        /// Requests from other sites that have it: `strict` for none, `lax` for links, `none` for all.
        same_site: SameSite = SameSite::Lax,
    }
}

section! {
    /// `[route.tls]`: how `https://` back ends of a route are told from others. They are asked under their own name: what the client
    /// asked for is in `x-forwarded-host`.
    pub struct BackEndTls {
        /// Certificates (PEM) one of which has to have signed the back end's; none for those that the system trusts. Read with
        /// the configuration.
        roots: String = String::new(),
        /// The name that the back end's certificate has to have, and that is asked for (SNI); none for the host in `to`.
        name: String = String::new(),
        /// Verify the certificate. Without, an attacker on the path can read and change everything.
        verify: bool = true,
    }
}

section! {
    /// `[route.health]`: a back end that fails the check gets no requests while others are well.
    pub struct Health {
        /// Path of the check's request; a status below 400 is good.
        path: String = "/".to_owned(),
        /// Time between two checks.
        interval: Span = Span::secs(5),
        /// The answer has to come within this time.
        timeout: Span = Span::secs(2),
        /// Failures in a row until it is out.
        down_after: u32 = 2,
        /// Successes in a row until it is in again.
        up_after: u32 = 2,
    }
}

section! {
    /// `[[stream]]`: another protocol than HTTP, by ALPN. Each bidirectional stream becomes a connection to the back end.
    pub struct Stream {
        /// Application protocols (ALPN). One or a list.
        alpn: Many = Many::default(),
        /// Application protocols (ALPN) with which clients speak the same over TLS on TCP where UDP does not get through
        /// (QMux, draft-ietf-quic-qmux-02); other names than those in `alpn`. One or a list.
        qmux: Many = Many::default(),
        /// Server names; none for every name. One or a list.
        sni: Many = Many::default(),
        /// The back end of streams: `tcp://host:port` or `unix:/path`.
        to: String = String::new(),
        /// The back end of datagrams: `udp://host:port`; each connection has a socket of its own.
        datagrams_to: String = String::new(),
        /// Streams of clients that come back may be served from early data, which somebody else may have sent again; others
        /// wait for the end of the handshake. Needs `transport.early-data`.
        early_data: bool = false,
        /// Begin each connection with the client's address (PROXY protocol version 2).
        proxy_protocol: bool = false,
        /// A connection to the back end has to be there within this time.
        connect_timeout: Span = Span::secs(5),
    }
}

/// Choice among back ends that are well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest requests.
    LeastConnections,
}

/// Requests from other sites that have a cookie (`SameSite`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SameSite {
    /// None.
    Strict,
    /// Requests by which a user follows a link.
    #[default]
    Lax,
    /// All.
    None,
}

/// Format of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// One object of JSON a line.
    #[default]
    Json,
    /// `CLIENT - USER [TIME] "METHOD PATH PROTOCOL" STATUS BYTES "REFERER" "USER-AGENT"`.
    Combined,
}

/// A protocol with which a back end is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// TLS, and in it what ALPN chooses: HTTP/2, or HTTP/1.1.
    Tls,
}

/// The admin socket that a configuration names, as it is written, whatever else is wrong with the text.
pub fn admin_socket(text: &str) -> Option<String> {
    if let Ok(table) = text.parse::<toml::Table>() {
        return Some(table.get("admin")?.get("socket")?.as_str()?.to_owned());
    }
    // A text that is no TOML may still be read line by line.
    let section = text.lines().map(str::trim).skip_while(|line| *line != "[admin]").skip(1);
    section.take_while(|line| !line.starts_with('[')).find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "socket").then(|| value.trim().trim_matches('"').to_owned())
    })
}
