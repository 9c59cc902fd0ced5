//! Resolution of a host: A, AAAA and HTTPS records, queried at the same time.
//!
//! Addresses come from the system (its hosts file included). HTTPS records come from the system's name servers, because no system function
//! returns them. With a server of its own choice, a client sends all queries to that server.
//!
//! ```no_run
//! # async fn example() -> Result<(), tiderace_client::resolve::ResolveError> {
//! use tiderace_client::resolve::Resolver;
//!
//! let found = Resolver::system().resolve("www.example.org", 443).await?;
//! println!("TCP to {:?}, QUIC to {:?}", found.tcp, found.quic);
//! # Ok(())
//! # }
//! ```

mod record;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::{RData, RecordType},
};

use tiderace::transport::reach::may_refer;

pub use self::record::Offer;
use self::record::RecordContent;

/// Further wait for the HTTPS record once there are addresses (RFC 8305 §3 waits as long for better addresses).
pub const RECORD_DELAY: Duration = Duration::from_millis(50);
/// … and when it has none.
const RECORD_PATIENCE: Duration = Duration::from_secs(5);
/// RFC 9460 §2.4.2: aliases that are followed, so that a loop ends.
const ALIASES: usize = 4;
/// Addresses of one origin that are used.
const ADDRESSES: usize = 16;

/// Cause for which a host has no address here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Error of the system's resolver, which does not tell an unknown name from other causes.
    #[error(transparent)]
    System(io::Error),
    /// The chosen name server does not answer, or answers with an error.
    #[error("the name server does not help: {source}")]
    NameServer {
        /// Error of the exchange.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The host does not exist, or has no address.
    #[error("it has no address")]
    NoAddress,
}

impl ResolveError {
    fn of_server(error: NetError) -> Self {
        if error.is_nx_domain() || error.is_no_records_found() {
            return Self::NoAddress;
        }
        Self::NameServer { source: error.into() }
    }
}

/// Result of resolving an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Addresses for TCP, best first.
    pub tcp: Vec<SocketAddr>,
    /// Addresses for QUIC, best first. Empty when the HTTPS record does not offer HTTP/3.
    pub quic: Vec<SocketAddr>,
    /// The HTTPS record by which this was chosen.
    pub offer: Option<Offer>,
}

/// Finds origins.
#[derive(Clone)]
pub struct Resolver {
    records: Option<TokioResolver>,
    /// Addresses come from the same servers, not from the system.
    own: bool,
    delay: Duration,
    known: Vec<KnownAddresses>,
}

/// Addresses of a host and port that need no look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAddresses {
    /// The host's name, in lower case.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Addresses, best first.
    pub addresses: Vec<IpAddr>,
}

impl Resolver {
    /// As the system does, and HTTPS records from its name servers.
    pub fn system() -> Self {
        let records = TokioResolver::builder_tokio().and_then(hickory_resolver::ResolverBuilder::build);
        if let Err(error) = &records {
            tracing::debug!("no HTTPS records are asked for: {error}");
        }
        Self { records: records.ok(), own: false, delay: RECORD_DELAY, known: Vec::new() }
    }

    /// Resolver that asks this name server alone.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn at(server: SocketAddr) -> Result<Self, ResolveError> {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = server.port();
            connection
        });
        let server = NameServerConfig::new(server.ip(), true, connections.into());
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let resolver = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).build();
        let records = Some(resolver.map_err(ResolveError::of_server)?);
        Ok(Self { records, own: true, delay: RECORD_DELAY, known: Vec::new() })
    }

    /// Waits this time for the HTTPS record after the addresses, in place of [`RECORD_DELAY`].
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Uses these addresses in place of a look-up.
    #[must_use]
    pub fn with_addresses(self, known: Vec<KnownAddresses>) -> Self {
        Self { known, ..self }
    }

    /// The addresses that need no look-up, of this host and port.
    fn known(&self, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
        let known = self.known.iter().find(|known| known.host == host && known.port == port)?;
        Some(known.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect())
    }

    /// Resolves the https origin `host` with `port`.
    ///
    /// # Errors
    /// When no address is found.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Found, ResolveError> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            let address = SocketAddr::new(ip, port);
            return Ok(Found { tcp: vec![address], quic: vec![address], offer: None });
        }
        if let Some(addresses) = self.known(host, port) {
            return Ok(Found { tcp: addresses.clone(), quic: addresses, offer: None });
        }
        let mut offers = std::pin::pin!(self.offers(host, port));
        let mut addresses = std::pin::pin!(self.addresses(host, port));
        let (addresses, (alias, offers)) = tokio::select! {
            found = &mut addresses => {
                let patience = if found.is_ok() { self.delay } else { RECORD_PATIENCE };
                (found, tokio::time::timeout(patience, offers).await.unwrap_or_default())
            }
            offers = &mut offers => (addresses.await, offers),
        };
        let own = match (addresses, alias) {
            (Ok(addresses), _) => Ok(addresses),
            // RFC 9460 §3: who has only an alias has the addresses of that.
            (Err(_), Some(alias)) => self.addresses(&alias, port).await,
            (Err(error), None) => Err(error),
        };
        let http3 = offers.iter().find(|offer| offer.has_http3());
        let tcp = offers.iter().find(|offer| offer.has_tcp());
        let mut found = Found { offer: http3.or(tcp).cloned(), ..Found::default() };
        let bare = own.as_ref().map(Vec::as_slice).unwrap_or_default();
        found.quic = match http3 {
            Some(offer) => self.of_offer(offer, bare, port).await,
            None if offers.is_empty() => bare.to_vec(),
            None => Vec::new(),
        };
        if let Some(offer) = tcp {
            found.tcp = self.of_offer(offer, bare, port).await;
        }
        // RFC 9460 §3.1: when what the records offer cannot be had, the origin itself is tried.
        for address in bare {
            if !found.tcp.contains(address) {
                found.tcp.push(*address);
            }
        }
        match own {
            Err(error) if found.tcp.is_empty() && found.quic.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Resolves an offer. `bare` are the addresses of the requested name.
    async fn of_offer(&self, offer: &Offer, bare: &[SocketAddr], port: u16) -> Vec<SocketAddr> {
        let port = offer.port.unwrap_or(port);
        let own = || bare.iter().map(|address| SocketAddr::new(address.ip(), port)).collect::<Vec<_>>();
        let mut addresses = match &offer.target {
            None => own(),
            // RFC 9460 §7.3: the hints serve until the addresses are known, and save a round trip to the name server.
            Some(_) if !offer.hints.is_empty() => offer.hinted(port),
            Some(target) => self.addresses(target, port).await.unwrap_or_default(),
        };
        if addresses.is_empty() {
            addresses = offer.hinted(port);
        }
        addresses.retain(|address| may_lead(bare, *address));
        addresses.truncate(ADDRESSES);
        addresses
    }

    /// Resolves a host with this port by its addresses alone.
    ///
    /// # Errors
    /// When it has none.
    pub async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Some(addresses) = self.known(host, port) {
            return Ok(addresses);
        }
        let mut found: Vec<SocketAddr> = match &self.records {
            Some(resolver) if self.own => {
                let looked = resolver.lookup_ip(absolute(host)).await.map_err(ResolveError::of_server)?;
                looked.iter().map(|ip| SocketAddr::new(ip, port)).collect()
            }
            _ => tokio::net::lookup_host((host, port)).await.map_err(ResolveError::System)?.collect(),
        };
        found.truncate(ADDRESSES);
        if found.is_empty() { Err(ResolveError::NoAddress) } else { Ok(found) }
    }

    /// The offers of an origin, best first, and the alias that led to them. What cannot be found out is no offer.
    async fn offers(&self, host: &str, port: u16) -> (Option<String>, Vec<Offer>) {
        let Some(resolver) = &self.records else { return Default::default() };
        // RFC 9460 §9.1: the name of another port is below its number.
        let mut name = if port == 443 { absolute(host) } else { format!("_{port}._https.{}", absolute(host)) };
        let mut alias = None;
        for _ in 0..=ALIASES {
            let looked = match resolver.lookup(name.as_str(), RecordType::HTTPS).await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::debug!("{name} has no HTTPS record: {error}");
                    break;
                }
            };
            let said: Vec<RecordContent> = looked
                .answers()
                .iter()
                .filter_map(|answer| match &answer.data {
                    RData::HTTPS(record) => Some(record::read(&record.0)),
                    _ => None,
                })
                .collect();
            // RFC 9460 §2.4.1: beside an alias nothing else counts.
            let next =
                said.iter().find_map(|said| if let RecordContent::Alias(to) = said { Some(to.clone()) } else { None });
            let Some(next) = next else {
                let mut offers: Vec<Offer> = said
                    .into_iter()
                    .filter_map(|said| if let RecordContent::Offer(offer) = said { Some(offer) } else { None })
                    .collect();
                offers.sort_by_key(|offer| offer.priority);
                for offer in &mut offers {
                    let itself = offer.target.as_deref().is_none_or(|target| target.eq_ignore_ascii_case(host));
                    // RFC 9460 §2.5.2: "." is the name that has the record, which after an alias is the alias.
                    offer.target = match (&alias, itself) {
                        (Some(alias), true) if offer.target.is_none() => Some(String::clone(alias)),
                        (_, true) => None,
                        (_, false) => offer.target.take(),
                    };
                }
                return (alias, offers);
            };
            name = absolute(&next);
            alias = Some(next);
        }
        (alias, Vec::new())
    }
}

/// Returns whether an origin at `own` may refer clients to `to`: an origin on the Internet may not refer them to hosts of their own
/// networks. An origin without addresses may name any host.
pub(crate) fn may_lead(own: &[SocketAddr], to: SocketAddr) -> bool {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let from = if own.is_empty() { std::slice::from_ref(&anywhere) } else { own };
    from.iter().any(|from| may_refer(from.ip(), to))
}

/// Absolute name, without a search domain of the system.
fn absolute(host: &str) -> String {
    format!("{}.", host.trim_end_matches('.'))
}
