//! How many connections there may be, in total and of one address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Counts connections. It outlives reloads; the limits come with each question.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    total: AtomicUsize,
    by_address: Mutex<HashMap<u128, usize>>,
}

/// A place among the connections, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    key: u128,
}

/// Why a connection finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Total,
    Address,
}

/// A client as it is counted: an IPv4 address, or a /64 of IPv6, which one host has for itself.
pub(crate) fn key(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6) >> 64 << 64,
    }
}

impl Admission {
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, total: usize, each: usize) -> Result<Place, Refusal> {
        let key = key(address);
        if self.total.fetch_add(1, Ordering::Relaxed) >= total {
            self.total.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Total);
        }
        let mut by_address = self.by_address.lock().expect("nothing panics under the lock");
        let count = by_address.entry(key).or_default();
        if *count >= each {
            drop(by_address);
            self.total.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Address);
        }
        *count += 1;
        Ok(Place { admission: self.clone(), key })
    }

    /// Connections at the moment.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.total.fetch_sub(1, Ordering::Relaxed);
        let mut by_address = self.admission.by_address.lock().expect("nothing panics under the lock");
        if let Some(count) = by_address.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.key);
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
}
