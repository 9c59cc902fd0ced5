//! Configuration file: settings, and their checks.
//!
//! `section` declares, `human` has the values, `address` those that are addresses, `read` goes from text to [`Config`] and says where it stumbles, `check` finds what
//! only shows in combination, `clients` has what concerns clients, `machine` what concerns load balancers in front, `other_machines` the machines beside this one, `read_ids` the connection IDs that those make, `signer` private keys on another machine, `examine` what only shows on a machine, `proxy` and `ip_proxy` do both for the proxy of a route, `webtransport` for its sessions, and `site` for what a site does with its answers, `reference`
//! prints the page of documentation and `schema` what other programs read.

mod address;
mod bound_address;
mod check;
mod clients;
mod examine;
mod human;
mod ip_proxy;
mod machine;
mod other_machines;
mod proxy;
pub(crate) mod read;
mod read_ids;
pub mod reference;
pub(crate) mod schema;
pub(crate) mod section;
mod signer;
mod site;
pub(crate) mod system;
pub(crate) mod webtransport;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::read::ResolvedConfig;
use self::section::section;
pub use self::{
    address::AddressError,
    clients::{BasicAuth, ClientCertificates, Cors, ForwardedField, RateLimit, TrustedProxies},
    examine::{Examination, Examined, examine},
    human::{Many, Part, Size, Span},
    ip_proxy::IpProxy,
    machine::LoadBalancer,
    other_machines::OtherMachine,
    proxy::Proxy,
    read::{ConfigCause, ConfigError, load, parse},
    read_ids::ReadConnectionIds,
    schema::schema,
    signer::Signer,
    site::{Compression, HeaderRules},
    webtransport::WebTransport,
};
pub(crate) use self::{bound_address::BoundAddress, examine::certificates};
pub(crate) use address::{address, back_end, back_end_name, host_port};
pub(crate) use machine::nonce_len;

section! {
    /// The whole file. Four lines make a working site: `certificate`, `key`, and a `[[route]]` with `to`.
    pub struct Config {
        /// Addresses and ports; each serves HTTP/3 on UDP, and HTTP/2 and HTTP/1.1 over TLS on TCP. One or a list.
        listen: Many = Many(vec!["[::]:443".to_owned()]),
        /// Addresses and ports of plain HTTP, as in `[::]:80`. A request there is redirected to the same URL with `https` (308). One or
        /// a list.
        redirect_from: Many = Many::default(),
        /// Certificate chain (PEM) for clients that match no `[[certificate-for]]`. Read again when it changes.
        certificate: String = String::new(),
        /// The private key of `certificate` (PEM). Empty: the `[signer]` has it.
        key: String = String::new(),
        /// Number of worker threads. 0: one for each processor. An upgrade changes it, with the sockets for them; a reload does not.
        workers: u8 = 0,
        /// Time limit of a stop: requests in progress have this time to complete.
        drain: Span = Span::secs(30),
        /// Replacement of the running program.
        upgrade: Upgrade = Upgrade::default(),
        /// Certificates by server name.
        #[serde(rename = "certificate-for")]
        certificates: Vec<Certificate> = Vec::new(),
        /// Certificates from an authority (ACME).
        acme: Acme = Acme::default(),
        /// Private keys on another machine.
        signer: Option<Signer> = None,
        /// Certificates of clients (mutual TLS).
        client_certificates: Option<ClientCertificates> = None,
        /// HTTP/3.
        http3: Http3 = Http3::default(),
        /// Settings of QUIC.
        transport: Transport = Transport::default(),
        /// Transport settings for some of the clients; the first policy that matches wins.
        #[serde(rename = "policy")]
        policies: Vec<Policy> = Vec::new(),
        /// Static files.
        files: Files = Files::default(),
        /// Proxies in front of the gateway that may name the client of a request.
        trusted_proxies: TrustedProxies = TrustedProxies::default(),
        /// Load balancers in front of this machine.
        load_balancer: LoadBalancer = LoadBalancer::default(),
        /// Rate limit of each client, over all routes.
        rate_limit: Option<RateLimit> = None,
        /// Limits on connections, requests, time and memory.
        limits: Limits = Limits::default(),
        /// Keys and strike register that several gateways share.
        keys: Keys = Keys::default(),
        /// Access log.
        log: Log = Log::default(),
        /// Socket for `tiderace edge reload`, `upgrade`, `status`, `connections`, `capture` and `compare`.
        admin: Admin = Admin::default(),
        /// Captures of single connections.
        capture: Capture = Capture::default(),
        /// Metrics for Prometheus.
        metrics: Metrics = Metrics::default(),
        /// Routes of requests. The best `host` wins, then the longest `path`.
        #[serde(rename = "route")]
        routes: Vec<Route> = Vec::new(),
        /// Routes of streams of protocols other than HTTP.
        #[serde(rename = "stream")]
        streams: Vec<Stream> = Vec::new(),
    }
}

section! {
    /// `[upgrade]`: replacement of the running program by another one.
    pub struct Upgrade {
        /// Time limit for the new program to take over. After it, the running program continues.
        start_timeout: Span = Span::secs(30),
        /// Time for which QUIC connections and TCP requests stay with the replaced program. Then they drain.
        drain: Span = Span::secs(3_600),
        /// Lets the kernel pass packets of replaced processes to them (eBPF). Needs CAP_BPF, and connection IDs without
        /// `[load-balancer]`. Without these, the process that serves forwards the packets. A reload does not change it.
        kernel_steering: bool = true,
    }
}

section! {
    /// `[[certificate-for]]`: a certificate for some server names.
    pub struct Certificate {
        /// Server names, as in `example.org` or `*.example.org`. One or a list.
        name: Many = Many::default(),
        /// Certificate chain (PEM). Read again when it changes.
        certificate: String = String::new(),
        /// Private key (PEM). Empty: the `[signer]` has it.
        key: String = String::new(),
    }
}

section! {
    /// `[acme]`: a certificate from an authority (ACME), renewed automatically. The authority validates the names at port 443 over TLS
    /// (TLS-ALPN-01), so this port has to reach the gateway. `certificate` serves all other names, and is optional.
    pub struct Acme {
        /// Names of the certificate, as in `example.org`; none for no certificate. One or a list.
        names: Many = Many::default(),
        /// Agreement to the terms of the authority. It has to be `true`.
        terms_agreed: bool = false,
        /// E-mail addresses for the authority. One or a list.
        contact: Many = Many::default(),
        /// URL of the authority's directory.
        directory: String = "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
        /// Root certificates (PEM) for the authority's server; none for those of the system.
        roots: String = String::new(),
        /// Directory for account, keys and certificates, readable by its owner only.
        folder: String = "acme".to_owned(),
        /// Renewal starts this long before the certificate's end, or when a third of its life is left if that is later.
        renew_before: Span = Span::secs(30 * 86_400),
    }
}

section! {
    /// `[http3]`: HTTP/3 and its advertisement.
    pub struct Http3 {
        /// Serve HTTP/3, and advertise it with `alt-svc`.
        enabled: bool = true,
        /// Time for which clients may remember the advertisement.
        alt_svc_max_age: Span = Span::secs(86_400),
        /// Ask clients in `alt-svc` to report why they fell back to TCP. `tiderace` does.
        fallback_reports: bool = false,
        /// Refuse new QUIC connections. Clients fall back to TCP within one round trip.
        shed: bool = false,
    }
}

section! {
    /// `[transport]`: settings of QUIC.
    pub struct Transport {
        /// Congestion control: `newreno`, `cubic`, `bbr1`, `bbr2`, `bbr3` or `auto`.
        congestion: String = "cubic".to_owned(),
        /// Idle timeout: a connection without received packets ends after this time.
        idle_timeout: Span = Span::secs(30),
        /// Early data (0-RTT): returning clients send requests with their first packets.
        early_data: bool = false,
        /// Number of incomplete handshakes above which clients validate their address first (Retry). 0: always, which costs each new client
        /// a round trip.
        retry_above: usize = 1_000,
        /// Move clients that offer QUIC version 2 (RFC 9369) to it by compatible version negotiation (RFC 9368), which costs no round trip.
        /// A client that begins with version 2 is answered in version 2 in any case.
        upgrade_to_version_2: bool = false,
    }
}

section! {
    /// `[[policy]]`: transport settings for some of the clients. All conditions of a policy have to match. The first policy in the file
    /// that matches wins. A connection under a policy moves only to one that stands before it. Policies with `http3 = false` are apart:
    /// among them, too, the first that matches wins.
    pub struct Policy {
        /// Name in logs and metrics.
        name: String = String::new(),
        /// Connections at these addresses of `listen`. One or a list.
        listen: Many = Many::default(),
        /// Clients in these networks, as in `192.0.2.0/24`. One or a list.
        network: Many = Many::default(),
        /// Server names. One or a list.
        sni: Many = Many::default(),
        /// Application protocols (ALPN), such as `h3`. One or a list.
        alpn: Many = Many::default(),
        /// Connections from the first request to one of these routes on. A route is named by its host (`*` for none) and path, as in
        /// `example.org/video`. One or a list.
        route: Many = Many::default(),
        /// Paths with a minimum RTT above this.
        rtt_above: Option<Span> = None,
        /// Paths with a loss rate above this, measured over at least 200 sent packets.
        loss_above: Option<Part> = None,
        /// Share of the matching connections that get the policy. The others are the control group of `tiderace edge compare`. With
        /// `http3 = false`: share of the matching clients.
        share: Part = Part(1.0),
        /// Congestion control, as in `[transport]`; none for the setting there.
        congestion: String = String::new(),
        /// Forward error correction: `off`, `receive`, `auto`, or a code such as `rlc:1/5:40`. Only in policies whose conditions are
        /// `listen` and `network`, which are known with the first packet.
        fec: String = String::new(),
        /// Acknowledgement frequency requested of clients: `off`, `adaptive`, or `fixed:N` packets. Only in policies whose conditions are
        /// `listen` and `network`.
        ack_frequency: String = String::new(),
        /// Requests and streams may be served from early data if their route or `[[stream]]` allows it. `false`: they wait for the end of
        /// the handshake.
        early_data: bool = true,
        /// `false`: withhold HTTP/3 from the share of the clients. They receive no `alt-svc`, and `alt-svc: clear` if they come over QUIC.
        /// The choice is by address (IPv4) or /64 (IPv6), and the same on all gateways whose policy has the same `name` and `key`.
        /// Conditions are `listen`, `network` and `sni`, which is compared with the host of a request. Publish no HTTPS record with `h3` for
        /// these names.
        http3: bool = true,
        /// Any text: another one draws the clients anew. Only with `http3 = false`.
        key: String = String::new(),
    }
}

impl Policy {
    /// Returns whether the client's first packet decides about every condition.
    pub(crate) fn is_known_at_once(&self) -> bool {
        let later = [&self.sni, &self.alpn, &self.route];
        later.iter().all(|names| names.0.is_empty()) && self.rtt_above.is_none() && self.loss_above.is_none()
    }
}

section! {
    /// `[files]`: cache of file content for routes with `files`.
    pub struct Files {
        /// Memory for frequently requested content, in pieces of 64 KiB; 0 B for none. Each request checks whether the file has changed.
        /// Content changed within the last 3 s is not kept.
        memory: Size = Size(128 * 1024 * 1024),
    }
}

section! {
    /// `[limits]`: limits on what clients can use.
    pub struct Limits {
        /// Concurrent connections, TCP and QUIC together.
        connections: usize = 100_000,
        /// Concurrent connections of one address (IPv4) or one /64 (IPv6).
        connections_per_address: usize = 1_000,
        /// Concurrent requests on one connection of HTTP/2 or HTTP/3.
        requests_per_connection: u32 = 100,
        /// Size of the fields of a request.
        fields: Size = Size(64 * 1024),
        /// Time limit for the fields of a request. An idle HTTP/1.1 connection ends after it.
        fields_timeout: Span = Span::secs(30),
        /// Interval in which a client has to send `content-progress` of a request's content, or the rest of it. It applies while the
        /// gateway waits for content. After the response has begun, any amount is enough.
        content_timeout: Span = Span::secs(60),
        /// Content that has to arrive in each `content-timeout`.
        content_progress: Size = Size(16 * 1024),
        /// Time without progress after which a client that does not read loses its stream (HTTP/3, HTTP/2) or its connection (HTTP/1.1, or
        /// TCP without progress).
        read_timeout: Span = Span::secs(60),
        /// Requests that a client may cancel within 10 s on one connection of HTTP/3 or HTTP/2. Beyond it the connection is closed.
        cancelled_requests: u32 = 200,
        /// Memory that all clients together can make the gateway hold. 0 B: a quarter of the machine's memory, or of its cgroup's limit.
        /// Above three quarters of it, new connections are refused; when it is full, the connections that hold most are closed. A reload
        /// does not change it.
        memory: Size = Size(0),
        /// Memory that one client can make the gateway hold on one connection, at least 1 MiB. It starts at 1 MiB and grows to this with
        /// the receive windows. The buffers of each request at a back end are extra: 76 KiB over HTTP/1.1, 16 KiB otherwise.
        connection_memory: Size = Size(4 * 1024 * 1024),
        /// Concurrent requests and streams at all back ends. Each uses a connection unless the back end uses HTTP/2. Further ones wait for
        /// `queue-timeout` of their route.
        back_end_requests: usize = 4_096,
        /// Concurrent WebTransport sessions of all clients.
        sessions: usize = 4_096,
        /// Concurrent WebTransport sessions on one connection. Clients without session flow control, such as browsers, may have one.
        /// Sessions count among `requests-per-connection`.
        sessions_per_connection: usize = 16,
        /// Time limit for the TLS handshake.
        handshake_timeout: Span = Span::secs(10),
    }
}

section! {
    /// `[keys]`: state that several gateways share, so that a client may return to any of them.
    pub struct Keys {
        /// Key ring for session tickets, tokens and stateless resets, created and rotated by `tiderace edge keys`. Read again when it
        /// changes. None: keys of this process, which end with it.
        file: String = String::new(),
        /// Strike register of used early data, which is then accepted once: `redis://host:port/` for a Redis that all gateways share; empty
        /// for the memory of this process.
        strikes: String = String::new(),
        /// Accept early data with the keys of `file` without `strikes`. Each gateway with these keys then accepts a copy of the early data
        /// once. Set it only if repeated requests do no harm.
        copies_do_no_harm: bool = false,
    }
}

section! {
    /// `[log]`: access log, one line for each request at its end.
    pub struct Log {
        /// File, `-` for standard output, or `off`. A reload opens the file again: to rotate, rename it and reload.
        access: String = "off".to_owned(),
        /// `json`, or `combined` for the combined log format of other servers, which has fewer fields.
        format: LogFormat = LogFormat::Json,
    }
}

section! {
    /// `[admin]`: administration socket.
    pub struct Admin {
        /// Path of a Unix socket that only its owner may use; empty for none.
        socket: String = String::new(),
    }
}

section! {
    /// `[capture]`: captures by `tiderace edge capture`. A capture has the content of connections, and their keys.
    pub struct Capture {
        /// Allow captures. They are requested over the admin socket.
        enabled: bool = false,
        /// Directory for the folders of captures, readable by its owner only.
        folder: String = "captures".to_owned(),
        /// Longest time of a capture.
        max_time: Span = Span::secs(300),
        /// Largest size of a capture, at which it ends.
        max_size: Size = Size(64 * 1024 * 1024),
        /// Connections of a capture that get a qlog file.
        max_connections: usize = 100,
        /// Number of captures in the folder. At this number no further one starts.
        keep: usize = 20,
    }
}

section! {
    /// `[metrics]`: metrics for Prometheus.
    pub struct Metrics {
        /// Address and port that serve `/metrics` over plain HTTP; empty for none.
        listen: String = String::new(),
    }
}

section! {
    /// `[[route]]`: a part of a site and its source. Exactly one of `to`, `files`, `redirect`, `proxy`, `ip-proxy` and
    /// `webtransport` is set.
    pub struct Route {
        /// Host names, as in `example.org` or `*.example.org`; none for every name. One or a list.
        host: Many = Many::default(),
        /// Path prefix of whole segments: `/api` matches `/api` and `/api/x`, not `/apis`.
        path: String = "/".to_owned(),
        /// Back ends: `http://host:port` for HTTP/1.1, `h2c://host:port` for HTTP/2 without TLS, `https://host:port` for HTTP/1.1 or HTTP/2
        /// over TLS, as the back end chooses, `h3://host:port` for HTTP/3, with TLS over TCP at the same port where QUIC fails. One or a
        /// list.
        to: Many = Many::default(),
        /// Choice among several healthy back ends: `round-robin`, or `least-connections` for the one with the fewest requests.
        balance: Balance = Balance::RoundRobin,
        /// Cookie that keeps a client at one back end.
        sticky: Option<Sticky> = None,
        /// Interval of look-ups of names in `to`, as in `30 s`. Each address of a name is then a back end. An address that stays keeps its
        /// connections, and a look-up that fails changes nothing. None: a name is one back end, looked up for each connection.
        refresh: Option<Span> = None,
        /// Directory whose files are served.
        files: String = String::new(),
        /// URL, or path of the same host, to which clients are redirected. `{path}` is replaced by path and query of the request after the
        /// route's `path`, as in `https://www.example.org/{path}`.
        redirect: String = String::new(),
        /// Status of the redirection: 301, 302, 303, 307 or 308.
        redirect_status: u16 = 308,
        /// MASQUE proxy to targets that clients name.
        proxy: Option<Proxy> = None,
        /// MASQUE proxy for IP packets.
        ip_proxy: Option<IpProxy> = None,
        /// WebTransport sessions to a back end.
        webtransport: Option<WebTransport> = None,
        /// File names that are served for a directory; the first that exists wins. One or a list.
        index: Many = Many(vec!["index.html".to_owned()]),
        /// File of `files` that is served for paths that do not exist, for single-page applications. Requests for hidden files stay 404.
        fallback: String = String::new(),
        /// Serve `NAME.zst`, `NAME.br` or `NAME.gz` of `files` in place of NAME to clients that accept the coding.
        precompressed: bool = false,
        /// Follow symbolic links in `files` that lead out of the directory. Otherwise their targets are not found.
        symlinks_outside: bool = false,
        /// Answer requests for a directory of `files` without `index.html` with a list of its files.
        listing: bool = false,
        /// Remove `path` from the path that is sent to the back end.
        strip: bool = false,
        /// Path that replaces the route's `path` towards the back end: with `path = "/api"` and `rewrite = "/v2"` the back end receives
        /// `/v2/x` for `/api/x`.
        rewrite: String = String::new(),
        /// Time limit for a connection to a back end.
        connect_timeout: Span = Span::secs(5),
        /// Concurrent requests at one back end. Each uses a connection unless the back end uses HTTP/2 or HTTP/3. Further ones wait.
        requests: usize = 512,
        /// Time limit of the wait for a free place. After it the answer is 503 with `retry-after`.
        queue_timeout: Span = Span::secs(10),
        /// Time limit for the fields of a response.
        timeout: Span = Span::secs(60),
        /// Interval in which a back end has to send `content-progress` of a response's content, or the rest of it. It applies while a
        /// client waits for content. 0 s: no limit. Tunnels have no limit.
        content_timeout: Span = Span::secs(300),
        /// Content of a response that has to arrive in each `content-timeout`.
        content_progress: Size = Size(1),
        /// Number of retries of a request, at another back end if there is one. A request is retried if no back end received it, or if it
        /// is idempotent, has no content and failed before its response began.
        retries: u8 = 1,
        /// Serve requests from early data. Attackers can replay early data. Safe methods only.
        early_data: bool = false,
        /// Upgrade tokens of protocols to which requests may switch, by `upgrade` or by an extended CONNECT of HTTP/2 and HTTP/3. With
        /// `connect-udp` and other protocols that use capsules, HTTP/3 datagrams are carried as capsules. A list.
        tunnels: Many = Many(vec!["websocket".to_owned()]),
        /// TLS settings of `https://` and `h3://` back ends.
        tls: BackEndTls = BackEndTls::default(),
        /// Health checks of back ends.
        health: Option<Health> = None,
        /// Rate limit of each client at this route.
        rate_limit: Option<RateLimit> = None,
        /// User names and passwords that the route requires.
        basic_auth: Option<BasicAuth> = None,
        /// Require a client certificate; other clients get 403. Needs `[client-certificates]`. Requests in early data wait for the end of
        /// the handshake.
        client_certificate: bool = false,
        /// Cross-origin access by scripts of other sites.
        cors: Option<Cors> = None,
        /// Compression of content.
        compression: Option<Compression> = None,
        /// Header rules for requests to a back end.
        request_headers: HeaderRules = HeaderRules::default(),
        /// Header rules for responses to the client.
        response_headers: HeaderRules = HeaderRules::default(),
        /// Time for which browsers use HTTPS only (`strict-transport-security`, RFC 6797).
        hsts: Option<Span> = None,
        /// Pages in place of the gateway's own error texts, by status: `{ 404 = "404.html", 502 = "down.html" }`. Responses of back ends
        /// are not replaced.
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
    /// `[route.sticky]`: cookie that keeps a client at one back end as long as that is healthy. It has a keyed code and no address.
    /// Gateways with the same `keys.file` understand each other's cookies.
    pub struct Sticky {
        /// Name of the cookie.
        cookie: String = "edge-back-end".to_owned(),
        /// Time for which browsers keep the cookie; none for the browser session.
        max_age: Option<Span> = None,
        /// Cross-site requests that carry the cookie: `strict` for none, `lax` for links, `none` for all.
        same_site: SameSite = SameSite::Lax,
    }
}

section! {
    /// `[route.tls]`: verification of `https://` and `h3://` back ends. Requests have the back end's own name; the name that the client requested is in
    /// `x-forwarded-host`.
    pub struct BackEndTls {
        /// Root certificates (PEM) for the back end; none for those of the system. Read with the configuration.
        roots: String = String::new(),
        /// Name in the back end's certificate and in SNI; none for the host in `to`.
        name: String = String::new(),
        /// Verify the certificate. Without it, an attacker on the path can read and change everything.
        verify: bool = true,
    }
}

section! {
    /// `[route.health]`: health checks. A back end that fails gets no requests while others are healthy.
    pub struct Health {
        /// Path of the check; a status below 400 is healthy.
        path: String = "/".to_owned(),
        /// Time between checks.
        interval: Span = Span::secs(5),
        /// Time limit for the response.
        timeout: Span = Span::secs(2),
        /// Consecutive failures after which a back end is unhealthy.
        down_after: u32 = 2,
        /// Consecutive successes after which it is healthy again.
        up_after: u32 = 2,
    }
}

section! {
    /// `[[stream]]`: a protocol other than HTTP, selected by ALPN. Each bidirectional stream becomes a connection to the back end.
    pub struct Stream {
        /// Application protocols (ALPN). One or a list.
        alpn: Many = Many::default(),
        /// Protocol names (ALPN) of the same protocol over TLS on TCP, for clients whose network blocks UDP (QMux,
        /// draft-ietf-quic-qmux-02). They differ from the names in `alpn`. One or a list.
        qmux: Many = Many::default(),
        /// Server names; none for every name. One or a list.
        sni: Many = Many::default(),
        /// Back end of streams: `tcp://host:port` or `unix:/path`.
        to: String = String::new(),
        /// Back end of datagrams: `udp://host:port`. Each connection has its own socket.
        datagrams_to: String = String::new(),
        /// Serve streams of returning clients from early data, which attackers can replay. Other streams wait for the end of the handshake.
        /// Needs `transport.early-data`.
        early_data: bool = false,
        /// Begin each connection with the client's address (PROXY protocol version 2).
        proxy_protocol: bool = false,
        /// Time limit for a connection to the back end.
        connect_timeout: Span = Span::secs(5),
    }
}

/// Choice among healthy back ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// Back end with the fewest requests.
    LeastConnections,
}

/// Cross-site requests that carry a cookie (`SameSite`).
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
    /// One JSON object per line.
    #[default]
    Json,
    /// `CLIENT - USER [TIME] "METHOD PATH PROTOCOL" STATUS BYTES "REFERER" "USER-AGENT"`.
    Combined,
}

/// Protocol of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// TLS, with HTTP/2 or HTTP/1.1 by ALPN.
    Tls,
    /// HTTP/3, with [`Tls`](Self::Tls) where QUIC fails.
    Http3,
}

impl Protocol {
    /// Returns whether connections use TLS, QUIC included.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Http3)
    }

    /// Port of a URL that has none.
    pub(crate) fn default_port(self) -> u16 {
        if self.is_tls() { 443 } else { 80 }
    }
}

/// Admin socket in a configuration, also of one with errors elsewhere.
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
