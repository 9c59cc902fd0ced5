//! Assignment of clients to the arms of a policy that withholds HTTP/3.
//!
//! A keyed hash of the client decides, and nothing else does: no port, no connection, no state. So a client stays in its arm over
//! connections, reloads, workers and processes, and on every machine whose policy has the same name and key. The keys of the ring do not
//! serve for this: they rotate, and clients would change arms with them.

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::hmac;
use http::HeaderValue;

use crate::{
    config::{self, Config, Many},
    network::Network,
    policy::named,
};

/// Arm of a client: what it is offered, and not what it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// HTTP/3 is withheld.
    Tcp,
    /// HTTP/3 is offered. Clients whose network does not pass UDP are in this arm, too.
    Quic,
}

impl Arm {
    /// Name in metrics and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
        }
    }
}

/// Policy and arm of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Name of the policy.
    pub policy: String,
    /// Share of the clients from which HTTP/3 is withheld.
    pub share: f64,
    /// Arm of the client.
    pub arm: Arm,
    /// The client: an IPv4 address, or the first address of a /64.
    pub client: IpAddr,
    /// Place of the client in the order in which clients are sampled. Independent of the arm.
    pub order: u64,
}

impl Assignment {
    /// Value of `alt-svc` for a response to this client; `offer` is the one for clients from which nothing is withheld.
    pub(crate) fn alt_svc(&self, is_quic: bool, offer: Option<HeaderValue>) -> Option<HeaderValue> {
        match self.arm {
            Arm::Quic => offer,
            // RFC 7838 §3: without the field an earlier advertisement stays valid to its end, `clear` invalidates it. A client that comes
            // over QUIC has one; it may use this connection to its end.
            Arm::Tcp => is_quic.then(|| HeaderValue::from_static("clear")),
        }
    }
}

/// A policy that withholds HTTP/3.
struct WithholdingPolicy {
    name: String,
    listen: Vec<SocketAddr>,
    networks: Vec<Network>,
    names: Many,
    share: f64,
    key: hmac::Key,
}

/// The policies of a configuration that withhold HTTP/3. The first one that fits a client is in force.
#[derive(Default)]
pub struct Withholding(Vec<WithholdingPolicy>);

/// The client of an address: an IPv4 address, or a /64 of IPv6, which one host has for itself.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
    }
}

/// Name of a host without its port.
fn without_port(host: &str) -> &str {
    let port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    port.map_or(host, |(name, _)| name).trim_end_matches('.')
}

impl WithholdingPolicy {
    fn new(config: &config::Policy) -> Self {
        // The name's length comes first, so that no other name and key give the same bytes.
        let mut secret = (config.name.len() as u64).to_be_bytes().to_vec();
        secret.extend_from_slice(config.name.as_bytes());
        secret.extend_from_slice(config.key.as_bytes());
        Self {
            name: config.name.clone(),
            listen: config.listen.0.iter().filter_map(|text| text.parse().ok()).collect(),
            networks: Network::all(&config.network.0),
            names: config.sni.clone(),
            share: config.share.0,
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
        }
    }

    fn fits(&self, listener: SocketAddr, remote: IpAddr, host: Option<&str>) -> bool {
        (self.listen.is_empty() || self.listen.contains(&listener))
            && (self.networks.is_empty() || self.networks.iter().any(|network| network.has(remote)))
            && (self.names.0.is_empty() || host.is_some_and(|host| named(&self.names, without_port(host))))
    }

    fn assign(&self, remote: IpAddr) -> Assignment {
        let client = client(remote);
        let octets = match client {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets()[..8].to_vec(),
        };
        let tag = hmac::sign(&self.key, &octets);
        let (lot, rest) = tag.as_ref().split_first_chunk::<8>().expect("32 bytes");
        let order = rest.first_chunk::<8>().expect("24 bytes");
        // 53 bits, which a float holds.
        let lot = (u64::from_be_bytes(*lot) >> 11) as f64 / (1_u64 << 53) as f64;
        Assignment {
            policy: self.name.clone(),
            share: self.share,
            arm: if lot < self.share { Arm::Tcp } else { Arm::Quic },
            client,
            order: u64::from_be_bytes(*order),
        }
    }
}

impl Withholding {
    /// The policies of a configuration that was checked.
    pub fn new(config: &Config) -> Self {
        Self(config.policies.iter().filter(|policy| !policy.http3).map(WithholdingPolicy::new).collect())
    }

    /// Assignment of a client that asks for `host` at this listener. `None` when no policy fits.
    pub fn assign(&self, listener: SocketAddr, remote: IpAddr, host: Option<&str>) -> Option<Assignment> {
        let policy = self.0.iter().find(|policy| policy.fits(listener, remote, host))?;
        Some(policy.assign(remote))
    }

    /// Returns whether there is a policy of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|policy| policy.name == name)
    }

    /// Returns whether some clients of a host are without HTTP/3.
    pub(crate) fn concerns(&self, host: &str) -> bool {
        self.0.iter().any(|policy| policy.names.0.is_empty() || named(&policy.names, host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Part;

    fn withholding(policies: &[(&str, &str, f64)]) -> Withholding {
        let policy = |(name, key, share): &(&str, &str, f64)| config::Policy {
            name: (*name).to_owned(),
            key: (*key).to_owned(),
            share: Part(*share),
            http3: false,
            ..config::Policy::default()
        };
        Withholding::new(&Config { policies: policies.iter().map(policy).collect(), ..Config::default() })
    }

    const HERE: &str = "127.0.0.1:443";

    fn assign(withholding: &Withholding, address: &str) -> Assignment {
        withholding.assign(HERE.parse().unwrap(), address.parse().unwrap(), None).unwrap()
    }

    #[test]
    fn a_client_is_in_one_arm_wherever_it_comes() {
        let [one, same, named, keyed] =
            [("a", "", 0.5), ("a", "", 0.5), ("b", "", 0.5), ("a", "k", 0.5)].map(|policy| withholding(&[policy]));
        let address = |number: u32| IpAddr::V4((0x0a00_0000 + number).into()).to_string();
        let (mut by_name, mut by_key, mut tcp) = (0_u32, 0_u32, 0_u32);
        for number in 0..10_000 {
            let address = address(number);
            let own = assign(&one, &address);
            assert_eq!(own, assign(&same, &address));
            tcp += u32::from(own.arm == Arm::Tcp);
            by_name += u32::from(own.arm != assign(&named, &address).arm);
            by_key += u32::from(own.arm != assign(&keyed, &address).arm);
        }
        // Five standard deviations of a binomial with 10,000 draws.
        for count in [tcp, by_name, by_key] {
            assert!((4_750..=5_250).contains(&count), "{count}");
        }
    }

    #[test]
    fn a_client_is_an_address_or_a_64() {
        let all = withholding(&[("a", "", 0.5)]);
        let [one, other] = ["2001:db8::1", "2001:db8::ffff:1"].map(|text| assign(&all, text));
        assert_eq!((one.client, &one), ("2001:db8::".parse().unwrap(), &other));
        assert_ne!(one.order, assign(&all, "2001:db8:0:1::1").order);
        assert_eq!(assign(&all, "::ffff:192.0.2.1"), assign(&all, "192.0.2.1"));
        assert_ne!(assign(&all, "192.0.2.1").order, assign(&all, "192.0.2.2").order);
    }

    #[test]
    fn nobody_and_everybody() {
        for (share, arm) in [(0.0, Arm::Quic), (1.0, Arm::Tcp)] {
            let all = withholding(&[("a", "", share)]);
            let every = (0..1_000_u32).map(|number| assign(&all, &IpAddr::V4(number.into()).to_string()).arm);
            assert!(every.into_iter().all(|found| found == arm));
        }
    }

    #[test]
    fn the_arm_says_nothing_about_the_sample() {
        let all = withholding(&[("a", "", 0.5)]);
        let early = (0..20_000_u32).map(|number| assign(&all, &IpAddr::V4(number.into()).to_string()));
        let early: Vec<Assignment> = early.filter(|assignment| assignment.order < u64::MAX / 2).collect();
        let tcp = early.iter().filter(|assignment| assignment.arm == Arm::Tcp).count() as f64;
        let share = tcp / early.len() as f64;
        // Five standard deviations of about 10,000.
        assert!((share - 0.5).abs() < 0.025, "{share}");
    }

    #[test]
    fn conditions_choose_the_clients() {
        let mut config = Config::default();
        let many = |text: &str| Many(vec![text.to_owned()]);
        for (name, network, sni) in [("office", "192.0.2.0/24", ""), ("shop", "", "*.example.org")] {
            let mut policy = config::Policy { name: name.to_owned(), http3: false, ..config::Policy::default() };
            policy.network = if network.is_empty() { Many::default() } else { many(network) };
            policy.sni = if sni.is_empty() { Many::default() } else { many(sni) };
            config.policies.push(policy);
        }
        let all = Withholding::new(&config);
        let find = |address: &str, host| {
            let found = all.assign(HERE.parse().unwrap(), address.parse().unwrap(), host);
            found.map(|assignment| assignment.policy)
        };
        assert_eq!(find("192.0.2.7", Some("a.example.org")).as_deref(), Some("office"));
        assert_eq!(find("198.51.100.1", Some("A.example.org:8443")).as_deref(), Some("shop"));
        assert_eq!(find("198.51.100.1", Some("example.org")), None);
        assert_eq!(find("198.51.100.1", None), None);
        assert!(all.has("shop") && !all.has("other"));
    }

    #[test]
    fn what_clients_are_told() {
        let all = withholding(&[("a", "", 1.0)]);
        let offer = Some(HeaderValue::from_static("h3=\":443\""));
        let mut one = assign(&all, "192.0.2.1");
        assert_eq!(one.alt_svc(false, offer.clone()), None);
        assert_eq!(one.alt_svc(true, None).unwrap(), "clear");
        one.arm = Arm::Quic;
        assert_eq!((one.alt_svc(false, offer.clone()), one.alt_svc(true, None)), (offer, None));
    }
}
