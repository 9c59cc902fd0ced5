//! The gateway's own addresses, which are prohibited targets of tunnels. Outlives reloads.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{PoisonError, RwLock},
};

use super::rules::{Prohibited, Rules};

/// Listeners of the gateway, with those of its metrics.
#[derive(Debug, Default)]
pub(crate) struct Listeners(RwLock<Vec<SocketAddr>>);

impl Listeners {
    /// Replaces all addresses.
    pub(crate) fn set(&self, addresses: Vec<SocketAddr>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Adds an address that is about to be opened.
    pub(crate) fn add(&self, address: SocketAddr) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    /// Checks a target that is reached from `local` and may be this machine, whose services may trust local connections. `allow` permits
    /// programs beside the gateway, and none of the gateway's own listeners: its limits and its log would treat the client as the gateway.
    // RFC 9298 §7
    pub(super) fn check(&self, rules: &Rules, target: SocketAddr, local: IpAddr) -> Result<(), Prohibited> {
        let local = local.to_canonical();
        let is_reached_from_itself = local == target.ip().to_canonical();
        // All of 127.0.0.0/8 is reached from 127.0.0.1.
        if (is_reached_from_itself || local.is_loopback()) && self.take(target, local) {
            return Err(Prohibited::Listener);
        }
        if is_reached_from_itself && !rules.allows(target.ip()) { Err(Prohibited::NotPublic) } else { Ok(()) }
    }

    /// Returns whether a listener takes what is sent to `target`, an address of this machine that is reached from `local`.
    pub(super) fn take(&self, target: SocketAddr, local: IpAddr) -> bool {
        // The unspecified address stands for the one that it is reached from.
        let target_ip = target.ip().to_canonical();
        let target_ip = if target_ip.is_unspecified() { local } else { target_ip };
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().any(|listener| {
            let ip = listener.ip().to_canonical();
            listener.port() == target.port() && (ip.is_unspecified() || ip == target_ip)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_listener_takes() {
        let takes = |listener: &str, target: &str, local: &str| {
            let listeners = Listeners::default();
            listeners.set(vec![listener.parse().unwrap()]);
            listeners.take(target.parse().unwrap(), local.parse().unwrap())
        };
        for listener in ["127.0.0.1:443", "0.0.0.0:443", "[::]:443"] {
            assert!(takes(listener, "127.0.0.1:443", "127.0.0.1"), "{listener}");
            assert!(takes(listener, "[::ffff:127.0.0.1]:443", "127.0.0.1"), "{listener}");
            assert!(takes(listener, "0.0.0.0:443", "127.0.0.1"), "{listener}");
            assert!(!takes(listener, "127.0.0.1:444", "127.0.0.1"), "{listener}");
        }
        assert!(takes("0.0.0.0:443", "127.0.0.2:443", "127.0.0.1"));
        assert!(!takes("127.0.0.1:443", "127.0.0.2:443", "127.0.0.1"));
        assert!(!Listeners::default().take("127.0.0.1:443".parse().unwrap(), "127.0.0.1".parse().unwrap()));
    }
}
