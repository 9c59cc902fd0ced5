//! Connection limits: in total, and per address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// H3_EXCESSIVE_LOAD (RFC 9114 §8.1): the code for connections that exceed a limit.
pub(crate) const EXCESSIVE_LOAD: u64 = 0x107;

/// Counts connections. It outlives reloads; the limits come with each question.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    total: AtomicUsize,
    by_address: Mutex<HashMap<u128, usize>>,
}

/// A place among the connections, released when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    /// The client that it counts for, once that is known.
    key: Option<u128>,
}

/// Limit that refuses a connection: of the gateway, or of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Total,
    Address,
}

/// Counted client: an IPv4 address, or a /64 of IPv6, which one host has for itself.
pub(crate) fn key(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6) >> 64 << 64,
    }
}

impl Admission {
    /// A place for a connection of `address`, which is validated.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, total: usize, each: usize) -> Result<Place, Refusal> {
        let mut place = self.enter_unvalidated(total)?;
        place.count_for(address, each)?;
        Ok(place)
    }

    /// Takes a place for a connection whose address may be forged: an attacker must not use up the places of another client.
    pub(crate) fn enter_unvalidated(self: &Arc<Self>, total: usize) -> Result<Place, Refusal> {
        if self.total.fetch_add(1, Ordering::Relaxed) >= total {
            self.total.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Total);
        }
        Ok(Place { admission: self.clone(), key: None })
    }

    /// Connections at the moment.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }
}

impl Place {
    /// Counts the connection for `address`, which is validated.
    pub(crate) fn count_for(&mut self, address: IpAddr, each: usize) -> Result<(), Refusal> {
        let key = key(address);
        let mut by_address = self.admission.by_address.lock().expect("nothing panics under the lock");
        let count = by_address.entry(key).or_default();
        if *count >= each {
            if *count == 0 {
                by_address.remove(&key);
            }
            return Err(Refusal::Address);
        }
        *count += 1;
        self.key = Some(key);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.total.fetch_sub(1, Ordering::Relaxed);
        let Some(key) = self.key else { return };
        let mut by_address = self.admission.by_address.lock().expect("nothing panics under the lock");
        if let Some(count) = by_address.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let admission = Arc::new(Admission::default());
        let [a, same, b]: [IpAddr; 3] = ["2001:db8::1", "2001:db8::2", "192.0.2.1"].map(|text| text.parse().unwrap());
        let first = admission.enter(a, 3, 2).unwrap();
        let _second = admission.enter(same, 3, 2).unwrap();
        assert_eq!(admission.enter(a, 3, 2).unwrap_err(), Refusal::Address);
        let _third = admission.enter(b, 3, 2).unwrap();
        assert_eq!(admission.enter("192.0.2.2".parse().unwrap(), 3, 2).unwrap_err(), Refusal::Total);
        drop(first);
        assert_eq!(admission.total(), 2);
        let _again = admission.enter(a, 3, 2).unwrap();
        drop((_again, _second, _third));
        assert!(admission.by_address.lock().unwrap().is_empty());
    }

    #[test]
    fn an_address_counts_once_it_is_validated() {
        let admission = Arc::new(Admission::default());
        let client: IpAddr = "192.0.2.1".parse().unwrap();
        let mut forged = admission.enter_unvalidated(3).unwrap();
        let first = admission.enter(client, 3, 1).unwrap();
        assert_eq!(forged.count_for(client, 1), Err(Refusal::Address));
        drop(first);
        assert_eq!(forged.count_for(client, 1), Ok(()));
        assert_eq!(admission.enter(client, 3, 1).unwrap_err(), Refusal::Address);
        assert_eq!(admission.enter(client, 1, 9).unwrap_err(), Refusal::Total);
        drop(forged);
        assert!(admission.total() == 0 && admission.by_address.lock().unwrap().is_empty());
        assert_eq!(admission.enter(client, 1, 0).unwrap_err(), Refusal::Address);
        assert!(admission.total() == 0 && admission.by_address.lock().unwrap().is_empty());
    }
}
