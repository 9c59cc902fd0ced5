//! Proxies of routes: tunnels for UDP (CONNECT-UDP, RFC 9298) and TCP (CONNECT) to targets that clients name, and in `ip` for IP packets
//! (CONNECT-IP, RFC 9484).
//!
//! The files, in the order in which a request meets them: `crate::access` identifies clients by tokens and certificates; `clients` limits each of them;
//! `crate::resolve` finds addresses; `rules` and `listeners` check them; `refusal` is the response to refused requests; `carry` runs a
//! tunnel with `udp` or `tcp`, or with `bound` one of UDP for many peers. `socket` has their sockets.

mod bound;
mod capsule_queue;
mod carry;
mod clients;
mod ip;
mod listeners;
mod refusal;
mod rules;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use h3_quic::{
    Datagrams,
    connect_udp::{PROTOCOL, Template, UdpTarget, bound::is_bound},
};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use tiderace::Charge;
use tokio::{net::TcpStream, time::Instant};

use self::{
    bound::BoundTunnel,
    carry::Tunnel,
    refusal::Refusal,
    rules::{Prohibited, Rules},
    tcp::TcpTunnel,
    udp::UdpTunnel,
};
pub(crate) use self::{
    carry::Upgraded,
    clients::{ClientKey, ClientLimits, Clients, NoPlace, TunnelPlace},
    ip::{IpProxy, IpShared, OfferedDevice, TunDevices},
    listeners::Listeners,
    socket::TargetSocket,
};
use crate::{
    access::Access,
    admission,
    body::{AnyBody, full},
    config,
    ending::Ending,
    metrics::{KindReasonLabels, Metrics, TunnelKind},
    observe::{Entry, Traffic},
    peer::Peer,
    resolve::{self, Resolve, SystemResolver},
    setup::SetupError,
    upstream::switch::SwitchRequest,
};

/// RFC 9209.
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// RFC 9297 §3.4.
const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");

/// Memory of a tunnel: its task, its socket, and the capsules of UDP that wait for the client on a stream of HTTP/3. What TCP reads is charged
/// beside it.
const TUNNEL: u64 = 8 * 1024;
/// Parts of an answer over HTTP/3 that wait for the client.
const PARTS: usize = 4;
/// Fault of a request for bound UDP where there is none.
const NOT_BOUND: &str =
    "a request without a target is one for bound UDP, which is not offered, or was not asked for by connect-udp-bind";
/// Addresses of a target that are tried.
const ADDRESSES: usize = 4;

/// The proxy of a route.
pub(crate) struct Proxy {
    config: config::Proxy,
    template: Template,
    access: Access,
    rules: Arc<Rules>,
    limits: ClientLimits,
    resolver: Box<dyn Resolve>,
    clients: Arc<Clients>,
    listeners: Arc<Listeners>,
    metrics: Arc<Metrics>,
}

/// A request that may have a tunnel, if there is a way to its target.
struct Admitted {
    target: UdpTarget,
    user: Option<Arc<str>>,
    place: TunnelPlace,
    charge: Charge,
}

/// An answer to a request for a tunnel.
pub(crate) enum Answer {
    /// A refusal, or a tunnel on a stream of HTTP/3.
    Whole(Response<AnyBody>),
    /// The head of an answer, behind which the connection or stream is a tunnel.
    Upgraded(Response<AnyBody>, Upgraded),
}

impl Proxy {
    /// Configured proxy of a route.
    ///
    /// # Errors
    /// When its template or its tokens cannot be used.
    pub(crate) fn new(
        route: &config::Route,
        config: &config::Proxy,
        clients: &Arc<Clients>,
        listeners: &Arc<Listeners>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, SetupError> {
        let access = Access::new(&config.tokens, &config.client_certificates.0)?;
        let limits = ClientLimits {
            total: config.tunnels,
            tunnels: config.tunnels_per_client,
            opened_per_second: config.opened_per_second,
            bytes_per_second: (config.rate_per_client.0 > 0).then_some(config.rate_per_client.0),
        };
        Ok(Self {
            template: Template::for_server(&config.template_of(route))?,
            access,
            rules: Arc::new(Rules::new(&config.allow, &config.deny, &config.deny_ports)),
            limits,
            resolver: Box::new(SystemResolver::default()),
            clients: clients.clone(),
            listeners: listeners.clone(),
            metrics: metrics.clone(),
            config: config.clone(),
        })
    }

    /// Returns whether the proxy carries TCP for CONNECT.
    pub(crate) fn carries_tcp(&self) -> bool {
        self.config.tcp
    }

    /// Returns whether the proxy carries this protocol of an extended CONNECT.
    pub(crate) fn carries(&self, protocol: &str) -> bool {
        self.config.udp && protocol == PROTOCOL
    }

    /// Answers a request. `asked` is `None` for a plain CONNECT, and for a request for no tunnel.
    pub(crate) async fn answer(
        &self,
        mut request: Request<AnyBody>,
        asked: Option<SwitchRequest>,
        peer: &Peer,
        entry: &mut Entry,
    ) -> Answer {
        let is_connect = asked.is_none() && *request.method() == Method::CONNECT;
        let kind = match is_connect {
            true => TunnelKind::Tcp,
            false if self.config.bound_udp && is_bound(request.headers()) => TunnelKind::BoundUdp,
            false => TunnelKind::Udp,
        };
        let opened = match self.admit(kind, &request, asked.as_ref(), peer) {
            Ok(Admitted { target, user, place, charge }) => {
                let opened = match target {
                    _ if kind == TunnelKind::BoundUdp => self.open_bound(&target, user, place).await,
                    UdpTarget::Host(host, port) => self.open(kind, &host, port, user, place).await,
                    UdpTarget::Any => Err(Refusal::Malformed(NOT_BOUND)),
                };
                opened.map(|tunnel| (tunnel, charge))
            }
            Err(refusal) => Err(refusal),
        };
        match opened {
            Ok((tunnel, charge)) => {
                entry.set_fault(Ending::Broken);
                entry.begin_traffic(tunnel.traffic().clone());
                accept(&mut request, asked.as_ref(), tunnel, charge, entry)
            }
            Err(refusal) => {
                let labels = KindReasonLabels { kind: kind.name(), reason: refusal.word() };
                self.metrics.tunnels.refused.get_or_create(&labels).inc();
                entry.end(refusal.ending());
                entry.record.error = Some(refusal.details());
                Answer::Whole(refusal.response(is_connect))
            }
        }
    }

    /// Judges a request by its contents, before a look-up.
    fn admit(
        &self,
        kind: TunnelKind,
        request: &Request<AnyBody>,
        asked: Option<&SwitchRequest>,
        peer: &Peer,
    ) -> Result<Admitted, Refusal> {
        // First: who may not use the proxy learns nothing from it.
        let found = self.access.find(request.headers(), peer.certificate.as_deref());
        let user = found.map_err(Refusal::of_access)?;
        let target = if kind == TunnelKind::Tcp { tcp_target(request) } else { self.udp_target(request, asked) };
        let target = target?;
        match &target {
            UdpTarget::Host(_, port) => self.rules.check_port(*port).map_err(Refusal::Prohibited)?,
            // The target of a request that is for bound UDP, and of no other.
            UdpTarget::Any if kind != TunnelKind::BoundUdp => return Err(Refusal::Malformed(NOT_BOUND)),
            UdpTarget::Any => {}
        }
        let key = user.clone().map_or_else(|| ClientKey::Address(admission::key(peer.remote.ip())), ClientKey::Token);
        let place = self.clients.enter(key, self.limits, Instant::now()).map_err(Refusal::NoPlace)?;
        let charge = peer.memory.charge(TUNNEL).ok_or(Refusal::Memory)?;
        Ok(Admitted { target, user, place, charge })
    }

    /// Opens a tunnel to a host by name.
    async fn open(
        &self,
        kind: TunnelKind,
        host: &str,
        port: u16,
        user: Option<Arc<str>>,
        place: TunnelPlace,
    ) -> Result<Tunnel, Refusal> {
        let until = Instant::now() + self.config.connect_timeout.0;
        let addresses = self.addresses(host, port, until).await?;
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let traffic = |address: SocketAddr| {
            Arc::new(Traffic::new(kind, target.clone(), address.to_string(), user.clone(), &self.metrics))
        };
        let mut failed = Refusal::Unreachable("no address".to_owned());
        for address in addresses.into_iter().take(ADDRESSES) {
            if kind == TunnelKind::Udp {
                match TargetSocket::connect(address).await {
                    Ok(socket) => {
                        self.check_own(address, socket.local()).map_err(Refusal::Prohibited)?;
                        let traffic = traffic(address);
                        let idle_timeout = self.config.idle_timeout.0;
                        return Ok(Tunnel::Udp(Box::new(UdpTunnel { socket, traffic, place, idle_timeout })));
                    }
                    Err(error) => failed = Refusal::Unreachable(error.to_string()),
                }
                continue;
            }
            // Connecting a UDP socket sends nothing.
            self.check_own(address, local_address_for(address)).map_err(Refusal::Prohibited)?;
            match tokio::time::timeout_at(until, TcpStream::connect(address)).await {
                Ok(Ok(target)) => {
                    // A failure costs some latency and nothing else.
                    let _ = target.set_nodelay(true);
                    let traffic = traffic(address);
                    let idle_timeout = self.config.tcp_idle_timeout.0;
                    return Ok(Tunnel::Tcp(Box::new(TcpTunnel::new(target, traffic, place, idle_timeout))));
                }
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    failed = Refusal::ConnectionRefused;
                }
                Ok(Err(error)) => failed = Refusal::Unreachable(error.to_string()),
                Err(_) => return Err(Refusal::Timeout),
            }
        }
        Err(failed)
    }

    /// Opens a tunnel for many peers, with a target or none.
    async fn open_bound(
        &self,
        target: &UdpTarget,
        user: Option<Arc<str>>,
        place: TunnelPlace,
    ) -> Result<Tunnel, Refusal> {
        let sockets = bound::Sockets::open(&self.config.bound_udp_addresses).await?;
        let target = match target {
            UdpTarget::Any => None,
            UdpTarget::Host(host, port) => {
                let until = Instant::now() + self.config.connect_timeout.0;
                let addresses = self.addresses(host, *port, until).await?;
                let reached = addresses.into_iter().find(|address| sockets.reach(address.ip()));
                let unreachable = || Refusal::Unreachable("the proxy has no address of its IP version".to_owned());
                let address = reached.ok_or_else(unreachable)?;
                self.check_own(address, local_address_for(address)).map_err(Refusal::Prohibited)?;
                Some(address)
            }
        };
        let name = target.map_or_else(|| "*".to_owned(), |target| target.to_string());
        let traffic =
            Traffic::new(TunnelKind::BoundUdp, name, sockets.public_addresses().join(" "), user, &self.metrics);
        let policy = bound::Policy::new(self.rules.clone(), self.listeners.clone());
        Ok(Tunnel::BoundUdp(Box::new(BoundTunnel::new(
            &self.config,
            sockets,
            (policy, target),
            Arc::new(traffic),
            place,
        ))))
    }

    /// The addresses of a host that the rules permit. These are connected to: the name is not looked up again.
    // RFC 9298 §3.1 MUST-1, MUST-2: resolved before the answer, which is a refusal when that fails
    async fn addresses(&self, host: &str, port: u16, until: Instant) -> Result<Vec<SocketAddr>, Refusal> {
        let resolving = resolve::addresses(&*self.resolver, host, port);
        let found = match tokio::time::timeout_at(until, resolving).await {
            Ok(Ok(found)) if !found.is_empty() => found,
            Ok(Ok(_)) => return Err(Refusal::Dns("none was found".to_owned())),
            Ok(Err(error)) => return Err(Refusal::Dns(error.to_string())),
            Err(_) => return Err(Refusal::DnsTimeout),
        };
        let mut prohibited = Prohibited::NotPublic;
        let mut permitted = Vec::new();
        for address in found {
            match self.rules.check(address) {
                Ok(()) => permitted.push(address),
                Err(why) => prohibited = why,
            }
        }
        if permitted.is_empty() { Err(Refusal::Prohibited(prohibited)) } else { Ok(permitted) }
    }

    /// Checks a target that may be this machine; see [`Listeners::check`].
    fn check_own(&self, target: SocketAddr, local: io::Result<SocketAddr>) -> Result<(), Prohibited> {
        let Ok(local) = local else { return Ok(()) };
        self.listeners.check(&self.rules, target, local.ip())
    }

    /// The target of a request for UDP.
    // RFC 9298 §3.2 SHALL-1, SHALL-3, SHALL-4, MUST-1, SHOULD-1: a request that is no GET with an upgrade, and no extended CONNECT, is
    // malformed
    fn udp_target(&self, request: &Request<AnyBody>, asked: Option<&SwitchRequest>) -> Result<UdpTarget, Refusal> {
        let is_for_udp = asked.is_some_and(|asked| self.carries(&asked.protocol));
        if !is_for_udp || ![Method::GET, Method::CONNECT].contains(request.method()) {
            return Err(Refusal::Malformed("expected a request for connect-udp"));
        }
        if SwitchRequest::is_malformed(request.headers()) {
            return Err(Refusal::Malformed("a request with capsules has no fields that describe content"));
        }
        let wrong = Refusal::Malformed("expected the URI template of the proxy with a host and a port from 1 to 65535");
        self.template.find_target(request.uri().path(), request.uri().query()).ok_or(wrong)
    }
}

/// The answer to a request whose tunnel is open.
// RFC 9298 §3.3 SHALL-1, SHALL-2, SHALL-3, SHALL-4, SHALL-5, RFC 9298 §3.5 SHALL-1, SHALL-2, SHALL-3
// RFC 9484 §4.3 SHALL-1, SHALL-2, SHALL-3, SHALL-4, RFC 9484 §4.5 SHALL-1, SHALL-2
fn accept(
    request: &mut Request<AnyBody>,
    asked: Option<&SwitchRequest>,
    tunnel: Tunnel,
    charge: Charge,
    entry: &Entry,
) -> Answer {
    let mut response = Response::new(full(""));
    if let Some(asked) = asked {
        if *request.method() == Method::GET {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        }
        asked.answer(&mut response);
        response.headers_mut().insert(CAPSULE_PROTOCOL, HeaderValue::from_static("?1"));
        if let Tunnel::BoundUdp(tunnel) = &tunnel {
            tunnel.announce(response.headers_mut());
        }
    }
    if request.version() != http::Version::HTTP_3 {
        let client = hyper::upgrade::on(request);
        return Answer::Upgraded(response, Upgraded { client, tunnel, charge });
    }
    let datagrams: Option<Datagrams> = request.extensions_mut().remove();
    let content = std::mem::replace(request.body_mut(), full(""));
    let body = tunnel.carry_stream(content, datagrams, charge, entry.cause());
    Answer::Whole(response.map(|_| body))
}

/// The local address from which a target would be reached.
fn local_address_for(target: SocketAddr) -> io::Result<SocketAddr> {
    let any = if target.is_ipv4() { SocketAddr::from(([0; 4], 0)) } else { SocketAddr::from(([0; 16], 0)) };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    socket.local_addr()
}

/// The target of a plain CONNECT.
fn tcp_target(request: &Request<AnyBody>) -> Result<UdpTarget, Refusal> {
    let authority = request.uri().authority();
    let target =
        authority.and_then(|authority| Some((authority.host(), authority.port_u16().filter(|port| *port > 0)?)));
    let (host, port) = target.ok_or(Refusal::Malformed("expected a host and a port from 1 to 65535"))?;
    Ok(UdpTarget::Host(host.trim_start_matches('[').trim_end_matches(']').to_owned(), port))
}
