//! IP proxy of a route: tunnels for IP packets (CONNECT-IP, RFC 9484).
//!
//! The files, in the order in which a request meets them: `pool` chooses addresses; `device` is the TUN device, and `devices` passes it on
//! in an upgrade; `queue` has packets that wait for a tunnel; `policy` judges packets; `tunnel` takes those of the client, `over_h3` and
//! `over_stream` carry both directions.

mod device;
mod devices;
mod over_h3;
mod over_stream;
mod policy;
mod pool;
mod queue;
#[cfg(test)]
mod tests;
mod tunnel;

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use h3_quic::{
    Datagrams,
    connect_ip::{AddressRange, MIN_IPV6_MTU, PROTOCOL, Prefix, RouteAdvertisement, Scope, ScopeTarget, Template},
};
use http::{Method, Request};
use tiderace::Charge;
use tokio::time::Instant;

pub(crate) use self::devices::{OfferedDevice, TunDevices};
pub(super) use self::tunnel::IpTunnel;
use self::{device::TunDevice, policy::Policy};
use super::{
    Answer, TUNNEL,
    carry::Tunnel,
    clients::{ClientKey, ClientLimits, Clients, TunnelPlace},
    listeners::Listeners,
    refusal::Refusal,
    rules::{Prohibited, Rules},
};
use crate::{
    access::Access,
    admission,
    body::AnyBody,
    config,
    ending::Ending,
    metrics::{KindReasonLabels, Metrics, TunnelKind},
    observe::{Entry, Traffic},
    peer::Peer,
    resolve::{self, Resolve, SystemResolver},
    setup::SetupError,
    upstream::switch::SwitchRequest,
};

/// Addresses of a name that a tunnel may lead to.
const ADDRESSES: usize = 16;
/// Interval in which the MTU of the path to a client is looked at until it is large enough.
const MTU_CHECK: Duration = Duration::from_millis(20);

/// The IP proxy of a route.
pub(crate) struct IpProxy {
    config: config::IpProxy,
    template: Template,
    access: Access,
    rules: Arc<Rules>,
    limits: ClientLimits,
    resolver: Box<dyn Resolve>,
    clients: Arc<Clients>,
    listeners: Arc<Listeners>,
    metrics: Arc<Metrics>,
    devices: Arc<TunDevices>,
    pools: Vec<Prefix>,
    /// `None` while another program has the device.
    device: Mutex<Option<Arc<TunDevice>>>,
}

/// State that outlives reloads.
pub(crate) struct IpShared<'a> {
    pub(crate) clients: &'a Arc<Clients>,
    pub(crate) listeners: &'a Arc<Listeners>,
    pub(crate) devices: &'a Arc<TunDevices>,
    pub(crate) metrics: &'a Arc<Metrics>,
}

/// A request that may have a tunnel.
struct Admitted {
    scope: Scope,
    user: Option<Arc<str>>,
    place: TunnelPlace,
    charge: Charge,
}

impl IpProxy {
    /// Configured proxy of a route.
    ///
    /// # Errors
    /// When its template, its tokens or its device cannot be used. Another process may have the device: it is the one from which this one
    /// takes over.
    pub(crate) fn new(
        (number, route): (usize, &config::Route),
        config: &config::IpProxy,
        shared: &IpShared<'_>,
    ) -> Result<Self, SetupError> {
        let access = Access::new(&config.tokens, &config.client_certificates.0)?;
        let limits = ClientLimits {
            total: config.tunnels,
            tunnels: config.tunnels_per_client,
            opened_per_second: config.opened_per_second,
            bytes_per_second: (config.rate_per_client.0 > 0).then_some(config.rate_per_client.0),
        };
        let this = Self {
            template: Template::for_server(&config.template_of(route))?,
            access,
            rules: Arc::new(Rules::new(&config.allow, &config.deny, &config.deny_ports)),
            limits,
            resolver: Box::new(SystemResolver::default()),
            clients: shared.clients.clone(),
            listeners: shared.listeners.clone(),
            metrics: shared.metrics.clone(),
            devices: shared.devices.clone(),
            pools: config.pools(),
            device: Mutex::default(),
            config: config.clone(),
        };
        match this.device() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!("another process has the TUN device {}: {error}", config.device);
            }
            Err(source) => {
                return Err(SetupError::Device { route: number, device: config.device.clone(), source });
            }
        }
        this.warn_without_forwarding();
        Ok(this)
    }

    /// Without forwarding by the kernel packets lead nowhere, and only this machine can say why.
    fn warn_without_forwarding(&self) {
        for (is_v4, file) in [(true, "ipv4/ip_forward"), (false, "ipv6/conf/all/forwarding")] {
            let is_used = self.pools.iter().any(|pool| pool.address().is_ipv4() == is_v4);
            let is_off = std::fs::read_to_string(format!("/proc/sys/net/{file}")).is_ok_and(|text| text.trim() == "0");
            if is_used && is_off {
                let name = file.replace('/', ".");
                tracing::warn!("the kernel does not forward packets of IP proxies: `sysctl net.{name}=1`");
            }
        }
    }

    /// The device, which another process may have had until now.
    fn device(&self) -> io::Result<Arc<TunDevice>> {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*device {
            return Ok(device.clone());
        }
        let opened = self.devices.open(&self.config.device, &self.pools, self.config.mtu)?;
        Ok(device.insert(opened).clone())
    }

    /// Returns whether the proxy carries this protocol of an extended CONNECT.
    pub(crate) fn carries(&self, protocol: &str) -> bool {
        protocol == PROTOCOL
    }

    /// Answers a request.
    pub(crate) async fn answer(
        &self,
        mut request: Request<AnyBody>,
        asked: Option<SwitchRequest>,
        peer: &Peer,
        entry: &mut Entry,
    ) -> Answer {
        let opened = match self.admit(&request, asked.as_ref(), peer) {
            Ok(admitted) => self.open(admitted, request.extensions().get(), peer).await,
            Err(refusal) => Err(refusal),
        };
        match opened {
            Ok((tunnel, charge)) => {
                entry.set_fault(Ending::Broken);
                entry.begin_traffic(tunnel.traffic.clone());
                super::accept(&mut request, asked.as_ref(), Tunnel::Ip(Box::new(tunnel)), charge, entry)
            }
            Err(refusal) => {
                let labels = KindReasonLabels { kind: TunnelKind::Ip.name(), reason: refusal.word() };
                self.metrics.tunnels.refused.get_or_create(&labels).inc();
                entry.end(refusal.ending());
                entry.record.error = Some(refusal.details());
                Answer::Whole(refusal.response(false))
            }
        }
    }

    /// Judges a request by its contents, before a look-up.
    fn admit(
        &self,
        request: &Request<AnyBody>,
        asked: Option<&SwitchRequest>,
        peer: &Peer,
    ) -> Result<Admitted, Refusal> {
        // RFC 9484 §11 SHOULD-1. First: who may not use the proxy learns nothing from it.
        let found = self.access.find(request.headers(), peer.certificate.as_deref());
        let user = found.map_err(Refusal::of_access)?;
        let scope = self.scope(request, asked)?;
        let key = user.clone().map_or_else(|| ClientKey::Address(admission::key(peer.remote.ip())), ClientKey::Token);
        let place = self.clients.enter(key, self.limits, Instant::now()).map_err(Refusal::NoPlace)?;
        let charge = peer.memory.charge(TUNNEL).ok_or(Refusal::Memory)?;
        Ok(Admitted { scope, user, place, charge })
    }

    /// The scope of a request.
    // RFC 9484 §4.1 MUST-1, MUST-2, RFC 9484 §4.2 SHALL-1, SHALL-3, SHALL-4, MUST-1, SHOULD-1: a request that is no GET with an upgrade,
    // and no extended CONNECT, is malformed
    fn scope(&self, request: &Request<AnyBody>, asked: Option<&SwitchRequest>) -> Result<Scope, Refusal> {
        let is_for_ip = asked.is_some_and(|asked| self.carries(&asked.protocol));
        if !is_for_ip || ![Method::GET, Method::CONNECT].contains(request.method()) {
            return Err(Refusal::Malformed("expected a request for connect-ip"));
        }
        if SwitchRequest::is_malformed(request.headers()) {
            return Err(Refusal::Malformed("a request with capsules has no fields that describe content"));
        }
        let wrong = "expected the URI template of the proxy with a target and a protocol number, or * for all";
        self.template.find(request.uri().path(), request.uri().query()).ok_or(Refusal::Malformed(wrong))
    }

    /// Opens a tunnel.
    async fn open(
        &self,
        Admitted { scope, user, place, charge }: Admitted,
        datagrams: Option<&Datagrams>,
        peer: &Peer,
    ) -> Result<(IpTunnel, Charge), Refusal> {
        let device = self.device().map_err(|error| {
            tracing::error!("the TUN device {} cannot be opened: {error}", self.config.device);
            Refusal::Device(error.to_string())
        })?;
        let until = Instant::now() + self.config.connect_timeout.0;
        let mut routes = self.routes(&scope, until).await?;
        let pool_of = |is_v4: bool| self.pools.iter().find(|pool| pool.address().is_ipv4() == is_v4).copied();
        let mut pools: Vec<Prefix> = [true, false]
            .into_iter()
            .filter(|is_v4| routes.iter().any(|range| range.start.is_ipv4() == *is_v4))
            .filter_map(pool_of)
            .collect();
        // Before packets come: the kernel remembers for minutes that one was too big for the path.
        if let Some(datagrams) = datagrams {
            datagrams.discover_max_size();
        }
        // RFC 9484 §7.2 MUST-1: without 1,280 bytes there is no IPv6
        if pools.iter().any(|pool| pool.address().is_ipv6()) && !carries_ipv6(datagrams, until).await {
            pools.retain(|pool| pool.address().is_ipv4());
            if pools.is_empty() {
                return Err(Refusal::PathMtu);
            }
        }
        routes.retain(|range| pools.iter().any(|pool| pool.address().is_ipv4() == range.start.is_ipv4()));
        if routes.is_empty() {
            return Err(Refusal::NoAddress("the proxy has no addresses of the IP version of the target"));
        }
        let lease = device.lease(&pools).ok_or_else(|| match device.is_handed_over() {
            // On a connection from before the upgrade: on a new one the newer process answers.
            true => Refusal::Device("a newer process opens new tunnels".to_owned()),
            false => Refusal::NoAddress("the proxy has no addresses left"),
        })?;
        let addresses: Vec<String> = lease.addresses().iter().map(ToString::to_string).collect();
        let traffic = Traffic::new(TunnelKind::Ip, scope.to_string(), addresses.join(" "), user, &self.metrics);
        let traffic = Arc::new(traffic);
        let policy = Policy {
            rules: self.rules.clone(),
            listeners: self.listeners.clone(),
            assigned: lease.addresses().to_vec(),
            routers: self.pools.iter().filter_map(|pool| pool::router(*pool)).collect(),
            routes: RouteAdvertisement::of(routes),
        };
        let waiting = lease.packets(&peer.memory, &traffic);
        let idle_timeout = self.config.idle_timeout.0;
        Ok((IpTunnel::new(lease, waiting, policy, traffic, place, idle_timeout), charge))
    }

    /// The ranges of a scope that are advertised.
    // RFC 9484 §4.6 SHOULD-1: all addresses of a name that the proxy reaches
    async fn routes(&self, scope: &Scope, until: Instant) -> Result<Vec<AddressRange>, Refusal> {
        let number = scope.protocol.unwrap_or(0);
        let advertised: Vec<_> =
            self.config.advertised().into_iter().map(|prefix| AddressRange::of(prefix, number)).collect();
        let targets: Vec<Prefix> = match &scope.target {
            ScopeTarget::Any => return Ok(advertised),
            ScopeTarget::Prefix(prefix) => vec![*prefix],
            ScopeTarget::Name(name) => self.resolve(name, until).await?.into_iter().map(Prefix::of).collect(),
        };
        let mut prohibited = Prohibited::NotPublic;
        let mut routes = Vec::new();
        for target in targets {
            // Larger ones may have permitted addresses in them: there the rules decide on each packet.
            match if target.is_single() { self.rules.check((target.address(), 0).into()) } else { Ok(()) } {
                Ok(()) => {
                    let range = AddressRange::of(target, number);
                    routes.extend(advertised.iter().filter_map(|route| range.intersection(route)));
                }
                Err(why) => prohibited = why,
            }
        }
        if routes.is_empty() { Err(Refusal::Prohibited(prohibited)) } else { Ok(routes) }
    }

    /// The addresses of a name. They are routed to: the name is not looked up again.
    // RFC 9484 §4.1 MUST-3, MUST-4: resolved before the answer, which is a refusal when that fails
    async fn resolve(&self, name: &str, until: Instant) -> Result<Vec<IpAddr>, Refusal> {
        match tokio::time::timeout_at(until, resolve::addresses(&*self.resolver, name, 0)).await {
            Ok(Ok(found)) if !found.is_empty() => {
                Ok(found.into_iter().map(|address| address.ip().to_canonical()).take(ADDRESSES).collect())
            }
            Ok(Ok(_)) => Err(Refusal::Dns("none was found".to_owned())),
            Ok(Err(error)) => Err(Refusal::Dns(error.to_string())),
            Err(_) => Err(Refusal::DnsTimeout),
        }
    }
}

/// Waits until the path to a client carries the packets that IPv6 needs. Where there are no datagrams, capsules carry them.
async fn carries_ipv6(datagrams: Option<&Datagrams>, until: Instant) -> bool {
    let Some(datagrams) = datagrams else { return true };
    while Instant::now() < until {
        // The context ID takes a byte.
        if datagrams.max_size().is_none_or(|room| room > MIN_IPV6_MTU) {
            return true;
        }
        tokio::time::sleep(MTU_CHECK).await;
    }
    false
}
