//! Clients that received `alt-svc` over TCP, and whether they used QUIC afterwards. A client that stays on TCP is on a network without UDP,
//! or does not support HTTP/3.

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use crate::{
    admission::key,
    fallback::{TIME_TO_COME, memory::Generations},
};

/// Clients in each generation of the memory.
const GENERATION: usize = 32 * 1024;

/// Known state of a client, which is an IPv4 address, or a /64 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    /// HTTP/3 was advertised then.
    Advertised(Instant),
    /// The client has used QUIC.
    Used,
    /// Had time to come, and is still on TCP.
    Unused,
}

/// Change that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferEvent {
    /// The first advertisement to a client.
    Advertised,
    /// The client used QUIC, for the first time since the advertisement.
    Used,
    /// Opened another connection over TCP, when it had time to come.
    Unused,
}

impl OfferEvent {
    /// Name in the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Advertised => "advertised",
            Self::Used => "used",
            Self::Unused => "unused",
        }
    }
}

/// The clients. Outlives reloads.
#[derive(Debug)]
pub(crate) struct Offers(Mutex<Generations<ClientState>>);

impl Default for Offers {
    fn default() -> Self {
        Self(Mutex::new(Generations::new(GENERATION)))
    }
}

impl Offers {
    /// Notes a connection over TCP on which HTTP/3 is advertised to the client.
    pub(crate) fn tell(&self, client: IpAddr, now: Instant) -> Option<OfferEvent> {
        self.change(client, |known| match known {
            None => Some((ClientState::Advertised(now), OfferEvent::Advertised)),
            Some(ClientState::Advertised(at)) if now.duration_since(at) >= TIME_TO_COME => {
                Some((ClientState::Unused, OfferEvent::Unused))
            }
            Some(_) => None,
        })
    }

    /// A connection over QUIC.
    pub(crate) fn come(&self, client: IpAddr) -> Option<OfferEvent> {
        self.change(client, |known| match known {
            // Who was never told knows it from elsewhere.
            None | Some(ClientState::Used) => None,
            Some(ClientState::Advertised(_) | ClientState::Unused) => Some((ClientState::Used, OfferEvent::Used)),
        })
    }

    fn change(
        &self,
        client: IpAddr,
        step: impl FnOnce(Option<ClientState>) -> Option<(ClientState, OfferEvent)>,
    ) -> Option<OfferEvent> {
        let key = key(client);
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, news) = step(clients.get(key))?;
        clients.put(key, next);
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_client_is_counted_once() {
        let offers = Offers::default();
        let (one, two, three) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), [192, 0, 2, 3].into());
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(offers.tell(one, at(0)), Some(OfferEvent::Advertised));
        assert_eq!(offers.tell(one, at(59)), None);
        assert_eq!(offers.come(one), Some(OfferEvent::Used));
        assert_eq!((offers.come(one), offers.tell(one, at(1_000))), (None, None));
        assert_eq!(offers.tell(two, at(0)), Some(OfferEvent::Advertised));
        assert_eq!(offers.tell(two, at(60)), Some(OfferEvent::Unused));
        assert_eq!(offers.tell(two, at(120)), None);
        assert_eq!(offers.come(two), Some(OfferEvent::Used), "late is not never");
        assert_eq!(offers.come(three), None, "it was never told");
    }

    #[test]
    fn many_clients_take_bounded_memory() {
        let offers = Offers::default();
        let now = Instant::now();
        for number in 0..200_000_u32 {
            offers.tell(IpAddr::V4(number.into()), now);
        }
        let clients = offers.0.lock().unwrap();
        assert!(clients.len() <= 2 * GENERATION);
        assert!(clients.get(key(IpAddr::V4(199_999.into()))).is_some(), "the latest are known");
    }
}
