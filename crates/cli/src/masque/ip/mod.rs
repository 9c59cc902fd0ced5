//! A TUN device whose packets go through an IP proxy.

mod device;
mod packets;

use std::{net::IpAddr, process::ExitCode, sync::Arc, time::Duration};

use client::masque::{
    IpEvent, IpReceiver, IpSender, ProxyError,
    connect_ip::{AddressAssign, MIN_IPV6_MTU, Prefix, RouteAdvertisement, Scope, ScopeTarget},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};

use self::{
    device::TunnelDevice,
    packets::{Counts, down, up},
};
use super::{IpArgs, Tunnels, connections, refused};
use crate::{
    failure::{Failure, UNSOUND},
    interrupt::Interrupt,
    printable::printable,
    stdout::write_json_line,
};

/// Largest MTU of the device: that of most links.
const MAX_MTU: usize = 1_500;
/// Smallest MTU of a device that carries IPv4 alone (RFC 791 §3.1).
const MIN_IPV4_MTU: usize = 68;
/// Packets that are carried in one direction before the other gets its turn.
const TURN: usize = 64;
/// Interval in which the MTU of the device follows that of the path.
const MTU_CHECK: Duration = Duration::from_millis(100);

/// State of an open tunnel.
struct Link {
    device: TunnelDevice,
    packets: mpsc::Receiver<Vec<u8>>,
    sender: IpSender,
    routes: RouteAdvertisement,
    addresses: Vec<Prefix>,
    /// Address of the proxy, which is reached outside of the tunnel.
    proxy: Option<IpAddr>,
    /// The proxy has been asked for addresses, and has answered.
    is_assigned: bool,
    /// Until then the path has to carry IPv6.
    patience: Instant,
    /// The device has the MTU of the path.
    has_mtu: bool,
    is_announced: bool,
    counts: Counts,
}

/// Reason for which a tunnel ends.
enum End {
    Interrupted,
    Closed,
    Broken(ProxyError),
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl IpArgs {
    fn scope(&self) -> Result<Scope, Failure> {
        let wrong = |what: &str, text: &str, hint: &str| {
            Err(Failure::new(format_args!("{} is no {what}", printable(text))).hint(hint))
        };
        let Some(target) = ScopeTarget::parse(&self.target) else {
            return wrong("target", &self.target, "a name, an address, a network as in 192.0.2.0/24, or * for all");
        };
        let protocol = match self.protocol.as_deref() {
            None => None,
            Some("icmp") => Some(1),
            Some("tcp") => Some(6),
            Some("udp") => Some(17),
            Some(text) => match Scope::parse_protocol(text) {
                Some(number) => Some(number),
                None => return wrong("protocol", text, "tcp, udp, icmp, or a number from 1 to 255"),
            },
        };
        Ok(Scope { target, protocol })
    }
}

/// Runs until it is interrupted, or the tunnel ends.
pub(super) async fn run(args: &IpArgs, tunnels: &Arc<Tunnels>, mut interrupt: Interrupt) -> Result<ExitCode, Failure> {
    let scope = args.scope()?;
    // First: without a device nothing is asked of the proxy.
    let (device, packets) = TunnelDevice::open(&args.tun)?;
    let tunnel = tokio::select! {
        tunnel = tunnels.proxy.open_ip(&scope) => tunnel,
        () = interrupt.wait() => return Ok(ExitCode::SUCCESS),
    };
    let tunnel = match tunnel {
        Ok(tunnel) => tunnel,
        Err(error) => return Ok(refused(&error)),
    };
    connections::begin_reports(tunnels);
    let proxy = tunnel.remote().map(|remote| remote.ip().to_canonical());
    let (mut sender, mut receiver) = tunnel.split();
    request(&scope, &mut sender);
    let patience = Instant::now() + Duration::from_secs(args.proxy.connect_within);
    let mut link = Link {
        device,
        packets,
        sender,
        routes: RouteAdvertisement::default(),
        addresses: Vec::new(),
        proxy,
        is_assigned: false,
        patience,
        has_mtu: false,
        is_announced: false,
        counts: Counts::default(),
    };
    let end = link.carry(args, tunnels, &mut receiver, &mut interrupt).await;
    link.device.clear();
    let Link { device, sender, counts, .. } = link;
    drop(device);
    match &end {
        // What breaks the rules must not look like a regular end.
        End::Broken(_) | End::Failed(_) => sender.abort("this end has given the tunnel up"),
        End::Interrupted | End::Closed => receiver.close(sender).await,
    }
    tunnels.connections.end_reports().await;
    report_end(tunnels, end, &counts)
}

/// Requests an address of each version that the scope has.
// RFC 9484 §4.7.1 MUST-5
fn request(scope: &Scope, sender: &mut IpSender) {
    let is_wanted = |is_v4: bool| match scope.target {
        ScopeTarget::Prefix(prefix) => prefix.address().is_ipv4() == is_v4,
        ScopeTarget::Any | ScopeTarget::Name(_) => true,
    };
    let all = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
    let wanted: Vec<Prefix> = all.into_iter().filter(|any| is_wanted(any.is_ipv4())).map(Prefix::of).collect();
    sender.request(&wanted);
}

fn report_end(tunnels: &Tunnels, end: End, counts: &Counts) -> Result<ExitCode, Failure> {
    let (reason, hint) = match &end {
        End::Interrupted => ("interrupted".to_owned(), None),
        End::Closed => ("closed by the proxy".to_owned(), Some("it may be idle for too long, or the proxy has ended")),
        End::Broken(error) => (error.to_string(), Some(error.hint())),
        End::Failed(failure) => (failure.message().to_owned(), None),
    };
    if tunnels.json {
        write_json_line(&json!({ "event": "closed", "reason": reason, "hint": hint, "counts": counts.json() }))?;
    } else {
        eprintln!("{}; {}", printable(&reason), counts.text());
    }
    match end {
        End::Interrupted => Ok(ExitCode::SUCCESS),
        End::Broken(error) => Ok(refused(&error)),
        End::Closed => {
            let failure = Failure::new("the proxy has closed the tunnel").code(UNSOUND);
            Err(hint.into_iter().fold(failure, Failure::hint))
        }
        End::Failed(failure) => Err(failure),
    }
}

impl Link {
    /// Carries packets until the tunnel ends.
    async fn carry(
        &mut self,
        args: &IpArgs,
        tunnels: &Tunnels,
        receiver: &mut IpReceiver,
        interrupt: &mut Interrupt,
    ) -> End {
        let mut check = interval(MTU_CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                packet = self.packets.recv() => match packet {
                    Some(packet) => {
                        self.up(packet);
                        Ok(())
                    }
                    None => {
                        let message = format_args!("the TUN device {} is gone", self.device.name()).to_string();
                        Err(Failure::new(message).code(UNSOUND).into())
                    }
                },
                event = receiver.recv() => match event {
                    Ok(Some(event)) => self.take(event, receiver),
                    Ok(None) => Err(End::Closed),
                    Err(error) => Err(End::Broken(error)),
                },
                _ = check.tick() => self.follow_mtu(),
                () = interrupt.wait() => Err(End::Interrupted),
            };
            if let Err(end) = done.and_then(|()| self.announce(args, tunnels)) {
                return end;
            }
        }
    }

    fn up(&mut self, packet: Vec<u8>) {
        let mut next = Some(packet);
        for _ in 0..TURN {
            let Some(packet) = next else { break };
            up(&packet, &self.device, &self.routes, &mut self.sender, &mut self.counts);
            next = self.packets.try_recv().ok();
        }
    }

    /// Takes a message of the proxy.
    fn take(&mut self, event: IpEvent, receiver: &mut IpReceiver) -> Result<(), End> {
        match event {
            IpEvent::Packet(packet) => {
                let own = self.addresses.iter().map(|prefix| prefix.address()).find(IpAddr::is_ipv6);
                let mut next = Some(packet);
                for _ in 0..TURN {
                    let Some(packet) = next else { break };
                    down(&packet, &self.device, own, &self.routes, &mut self.sender, &mut self.counts);
                    next = receiver.try_recv();
                }
            }
            // One that finds no room is lost, and the proxy waits for it.
            IpEvent::Requested(requested) => {
                let _ = self.sender.refuse(&requested);
            }
            IpEvent::Addresses(assigned) => self.set_addresses(&assigned)?,
            IpEvent::Routes(routes) => {
                self.routes = routes;
                if self.has_mtu {
                    self.device.set_routes(&self.routes, self.proxy)?;
                }
            }
        }
        Ok(())
    }

    fn set_addresses(&mut self, assigned: &AddressAssign) -> Result<(), End> {
        self.is_assigned |= assigned.0.iter().any(|entry| entry.request_id != 0);
        self.addresses = assigned.prefixes();
        if self.addresses.is_empty() && self.is_assigned {
            let failure = Failure::new("the proxy gives this end no address").code(UNSOUND);
            return Err(failure.hint("the operator of the proxy may tell why; another --target may have one").into());
        }
        self.follow_mtu()?;
        self.lead_here()
    }

    /// Gives the device its addresses and routes, once it has an MTU. A packet that came before would be told that it is too large, and
    /// the system would go by the size of that answer for minutes.
    fn lead_here(&mut self) -> Result<(), End> {
        if !self.has_mtu {
            return Ok(());
        }
        self.device.set_addresses(self.addresses.iter().copied())?;
        // Routes that came before have an address to go from.
        self.device.set_routes(&self.routes, self.proxy)?;
        Ok(())
    }

    /// Gives the device the MTU of the path.
    // RFC 9484 §7.2 MUST-1, MUST-3: with less than 1,280 bytes for IPv6 the tunnel ends
    fn follow_mtu(&mut self) -> Result<(), End> {
        // The system takes no address of IPv6 at a device that had a smaller MTU before the path was measured.
        if self.addresses.is_empty() {
            return Ok(());
        }
        let has_ipv6 = self.addresses.iter().any(|prefix| prefix.address().is_ipv6()) || self.device.has_ipv6();
        let least = if has_ipv6 { MIN_IPV6_MTU } else { MIN_IPV4_MTU };
        let mtu = match self.sender.mtu() {
            None if self.sender.has_mtu() => return Ok(()),
            None => MAX_MTU,
            Some(mtu) => mtu,
        };
        if mtu >= least {
            self.device.set_mtu(u32::try_from(mtu.min(MAX_MTU)).unwrap_or(u32::MAX))?;
            if !std::mem::replace(&mut self.has_mtu, true) {
                self.lead_here()?;
            }
        } else if Instant::now() >= self.patience {
            let message =
                format_args!("the path to the proxy carries packets of {mtu} bytes, and IPv6 needs 1280").to_string();
            let failure = Failure::new(message).code(UNSOUND);
            return Err(failure
                .hint("--http2 carries packets of any size, or name an IPv4 network with --target")
                .into());
        }
        Ok(())
    }

    /// Says once that the tunnel is there.
    fn announce(&mut self, args: &IpArgs, tunnels: &Tunnels) -> Result<(), End> {
        if self.is_announced {
            return Ok(());
        }
        if self.addresses.is_empty() || self.routes.0.is_empty() || !self.has_mtu {
            if Instant::now() < self.patience {
                return Ok(());
            }
            let what = match (self.addresses.is_empty(), self.has_mtu) {
                (true, _) => "address",
                (false, true) => "route",
                (false, false) => "QUIC datagrams",
            };
            let message = format_args!("the proxy gives this end no {what} in time").to_string();
            return Err(Failure::new(message).code(UNSOUND).hint("the operator of the proxy may tell why").into());
        }
        self.is_announced = true;
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let routes: Vec<String> =
            self.routes.0.iter().map(|range| format!("{} to {}", range.start, range.end)).collect();
        let (name, proxy) = (self.device.name(), &args.proxy.proxy);
        if tunnels.json {
            write_json_line(&json!({
                "event": "opened", "device": name, "addresses": addresses, "routes": routes, "proxy": proxy,
            }))?;
        } else {
            let (addresses, routes) = (addresses.join(", "), routes.join(", "));
            eprintln!("{name} has {addresses} and leads to {routes} through {}, Ctrl-C ends", printable(proxy));
        }
        Ok(())
    }
}
