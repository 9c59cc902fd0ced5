//! Setup of a race: its targets, and its plan.

use std::{net::SocketAddr, time::Duration};

use http::{Uri, uri::Scheme};

use super::{Client, FetchError, Route, gone};
use crate::{
    dial::Destination,
    local::local_address,
    memory::Network,
    race::{Leg, Plan, SkipReason},
    resolve::{Offer, may_lead},
    setup_error::UrlError,
};

/// Target of a request.
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) secure: bool,
}

impl Target {
    pub(super) fn of(uri: &Uri) -> Result<Self, FetchError> {
        let secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(UrlError::Scheme { url: uri.to_string(), expected: "http or https" }.into()),
        };
        // RFC 9110 §4.2.1, RFC 9110 §4.2.2: a URI with an empty host is invalid.
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| UrlError::NoHost { url: uri.to_string() })?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(Self { host, port, secure })
    }

    pub(super) fn origin(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }
}

/// Destination of a race, and the knowledge about it.
pub(super) struct RaceSetup {
    pub(super) to: Destination,
    pub(super) plan: Plan,
    pub(super) network: Network,
    pub(super) offer: Option<Offer>,
    /// QUIC uses an alternative of `alt-svc`.
    pub(super) by_alternative: bool,
}

impl Client {
    /// Determines the destination and the plan.
    pub(super) async fn setup(&self, target: &Target, route: &Route, live: bool) -> Result<RaceSetup, FetchError> {
        let found = self.inner.resolver.resolve(&target.host, target.port).await;
        let found = found.map_err(|why| FetchError::Resolve { host: target.host.clone(), why })?;
        let origin = target.origin();
        let first = *found.tcp.first().or(found.quic.first()).ok_or_else(gone)?;
        let network = Network(local_address(first).unwrap_or(first.ip()));
        let mut quic = route.udp.map_or_else(|| routed(&found.quic), |udp| vec![udp]);
        let offers_http3 = found.offer.as_ref().is_some_and(Offer::has_http3);
        let alternative = match (route.udp, offers_http3) {
            (None, false) => self.memory().alternative(self.now(), network, &origin),
            // RFC 9460 §9.3: the record speaks of the origin itself, and is newer than what a response once said.
            _ => None,
        };
        let mut by_alternative = false;
        if let Some((host, port)) = alternative {
            let host = host.as_deref().unwrap_or(&target.host);
            let mut addresses = self.inner.resolver.addresses(host, port).await.unwrap_or_default();
            addresses.retain(|address| may_lead(&found.tcp, *address));
            if !addresses.is_empty() {
                (quic, by_alternative) = (routed(&addresses), true);
            }
        }
        let mut plan = match route.only {
            None => self.memory().plan(self.now(), network, &origin),
            Some(Leg::Quic) => {
                let long = Duration::from_secs(3_600);
                if quic.is_empty() {
                    quic = routed(&found.tcp);
                }
                Plan { head_start: long, judge_after: long, ..Plan::default() }
            }
            Some(Leg::Tcp) => Plan { quic: Err(SkipReason::Unwanted), ..Plan::default() },
        };
        if quic.is_empty() {
            plan.quic = plan.quic.and(Err(SkipReason::NotOffered));
        }
        if live {
            // TCP has waited already.
            plan = Plan { quic: Ok(()), head_start: Duration::ZERO, ..plan };
        }
        let to = Destination { host: target.host.clone(), tcp: found.tcp, quic };
        Ok(RaceSetup { to, plan, network, offer: found.offer, by_alternative })
    }
}

/// The addresses to which this host has a route, or else the first. The families take turns (RFC 8305 §4).
pub(crate) fn routed(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut routed: Vec<SocketAddr> =
        addresses.iter().filter(|address| local_address(**address).is_some()).copied().collect();
    if routed.is_empty() {
        routed.extend(addresses.first());
    }
    let first = routed.first().map(SocketAddr::is_ipv4);
    let (one, other): (Vec<_>, Vec<_>) = routed.into_iter().partition(|address| Some(address.is_ipv4()) == first);
    let mut other = other.into_iter();
    let mut turns: Vec<_> = one.into_iter().flat_map(|address| [Some(address), other.next()]).flatten().collect();
    turns.extend(other);
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let list = |text: &str| text.split(' ').map(|one| one.parse().unwrap()).collect::<Vec<SocketAddr>>();
        for (given, turns) in [
            ("127.0.0.1:1 127.0.0.2:1 [::1]:1", "127.0.0.1:1 [::1]:1 127.0.0.2:1"),
            ("[::1]:1 127.0.0.1:1 127.0.0.2:1", "[::1]:1 127.0.0.1:1 127.0.0.2:1"),
            ("127.0.0.1:1", "127.0.0.1:1"),
        ] {
            // A machine without IPv6 has no route there.
            let has_ipv6 = local_address("[::1]:1".parse().unwrap()).is_some();
            let turns: Vec<_> = list(turns).into_iter().filter(|address| address.is_ipv4() || has_ipv6).collect();
            assert_eq!(routed(&list(given)), turns);
        }
        assert!(routed(&[]).is_empty());
    }
}
