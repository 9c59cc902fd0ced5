//! Session of a client: keys, byte counts, validated addresses for datagrams, and records of sent packets.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::limits::Ledger;
use crate::probe::{
    protocol::Refusal,
    wire::{Key, Record},
};

/// Records of a session: some 6 MB.
const RECORDS: usize = 200_000;
/// Largest number of addresses of a session: the measurement of a NAT timeout uses one for each time tried.
const ADDRESSES: usize = 32;
/// Largest number of concurrent connections of a session: those that load the path, and one that is opened meanwhile.
const CONNECTIONS: usize = 12;

/// Locks; a thread that panicked leaves counters and lists whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session.
pub(super) struct Session {
    /// Validated by the handshake of QUIC.
    pub(super) client: IpAddr,
    pub(super) join: Key,
    pub(super) udp: Key,
    pub(super) tcp: Key,
    ends: Instant,
    /// Bytes that may still be sent and received.
    left: AtomicU64,
    connections: AtomicUsize,
    /// Source addresses of pings, with their nonces.
    addresses: Mutex<Vec<(u64, SocketAddr, Option<IpAddr>)>>,
    trains: Mutex<Trains>,
    ledger: Arc<Mutex<Ledger>>,
}

/// Records of trains.
#[derive(Default)]
struct Trains {
    records: HashMap<u8, Vec<Record>>,
    count: usize,
    dropped: HashMap<u8, u64>,
}

/// Random bytes of the system.
pub(super) fn random() -> Key {
    let mut bytes = Key::default();
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random numbers");
    bytes
}

impl Session {
    /// Begins a session.
    ///
    /// # Errors
    /// When the limits do not allow it.
    pub(super) fn begin(client: IpAddr, ledger: &Arc<Mutex<Ledger>>, lasts: Duration) -> Result<Arc<Self>, Refusal> {
        let now = Instant::now();
        let left = lock(ledger).begin(client, now)?;
        Ok(Arc::new(Self {
            client,
            join: random(),
            udp: random(),
            tcp: random(),
            ends: now + lasts,
            left: AtomicU64::new(left),
            connections: AtomicUsize::new(1),
            addresses: Mutex::default(),
            trains: Mutex::default(),
            ledger: ledger.clone(),
        }))
    }

    /// Takes bytes out of the session's. Returns whether there were as many, and the session is not over.
    pub(super) fn spend(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        !self.is_over() && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }

    /// Time at which it ends.
    pub(super) const fn ends(&self) -> Instant {
        self.ends
    }

    /// Adds a connection. Returns whether there may be one more.
    pub(super) fn join(&self) -> bool {
        let more = |count: usize| (count < CONNECTIONS).then_some(count + 1);
        !self.is_over() && self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nonce of an address of this client; `None` when there are too many, or it is another host's.
    pub(super) fn nonce(&self, from: SocketAddr, to: Option<IpAddr>) -> Option<u64> {
        if from.ip().to_canonical() != self.client {
            return None;
        }
        let mut addresses = lock(&self.addresses);
        if let Some((nonce, ..)) = addresses.iter().find(|(_, known, _)| *known == from) {
            return Some(*nonce);
        }
        if addresses.len() >= ADDRESSES {
            return None;
        }
        let bytes = random();
        let nonce = u64::from_be_bytes(bytes[..8].try_into().expect("8 bytes"));
        addresses.push((nonce, from, to));
        Some(nonce)
    }

    /// Address of a nonce that the client has received there, and the address of this host that it talks to.
    pub(super) fn address(&self, nonce: u64) -> Option<(SocketAddr, Option<IpAddr>)> {
        let addresses = lock(&self.addresses);
        addresses.iter().find(|(known, ..)| *known == nonce).map(|(_, address, own)| (*address, *own))
    }

    /// Stores the record of a packet if there is room.
    pub(super) fn record(&self, train: u8, record: Record) {
        let mut trains = lock(&self.trains);
        if trains.count >= RECORDS {
            *trains.dropped.entry(train).or_default() += 1;
            return;
        }
        trains.count += 1;
        trains.records.entry(train).or_default().push(record);
    }

    /// Removes the records of a train and returns them with the number of dropped ones.
    pub(super) fn take_records(&self, train: u8) -> (Vec<Record>, u64) {
        let mut trains = lock(&self.trains);
        let records = trains.records.remove(&train).unwrap_or_default();
        trains.count -= records.len();
        (records, trains.dropped.remove(&train).unwrap_or(0))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        lock(&self.ledger).end(self.client, self.left());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::limits::Limits, *};
    use crate::probe::estimate::Arrival;

    fn session() -> Arc<Session> {
        let limits = Limits { sessions: 1, client: 1_000_000, total: 1_000_000 };
        let ledger = Arc::new(Mutex::new(Ledger::new(limits, Instant::now())));
        Session::begin("192.0.2.1".parse().unwrap(), &ledger, Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn bytes_are_spent_once_and_the_rest_comes_back() {
        let first = session();
        assert!(first.spend(700_000) && !first.spend(400_000) && first.spend(300_000) && !first.spend(1));
        let second = session();
        let ledger = second.ledger.clone();
        second.spend(200_000);
        drop(second);
        let again = Session::begin("192.0.2.1".parse().unwrap(), &ledger, Duration::from_secs(60)).unwrap();
        assert_eq!(again.left(), 800_000);
    }

    #[test]
    fn only_addresses_of_the_validated_host_are_sent_to_and_they_are_few() {
        let session = session();
        assert_eq!(session.nonce("192.0.2.2:5".parse().unwrap(), None), None);
        let nonces: Vec<u64> =
            (0..100).filter_map(|port| session.nonce(SocketAddr::new(session.client, port), None)).collect();
        assert_eq!(nonces.len(), ADDRESSES);
        assert_eq!(session.address(nonces[3]).unwrap().0.port(), 3);
        assert_eq!(session.nonce(SocketAddr::new(session.client, 3), None), Some(nonces[3]));
        assert_eq!(session.address(nonces[0].wrapping_add(1)), None);
    }

    #[test]
    fn records_have_a_limit_and_are_taken_once() {
        let session = session();
        let record = |number| Record { arrival: Arrival { number, sent: 0, received: 0 }, ecn: 0 };
        (0..u32::try_from(RECORDS).unwrap() + 5).for_each(|number| session.record(1, record(number)));
        let (records, dropped) = session.take_records(1);
        assert_eq!((records.len(), dropped, session.take_records(1)), (RECORDS, 5, (Vec::new(), 0)));
        session.record(2, record(1));
        assert_eq!(session.take_records(2).0.len(), 1);
    }

    #[test]
    fn connections_of_a_session_are_few() {
        let session = session();
        assert_eq!((0..100).filter(|_| session.join()).count(), CONNECTIONS - 1);
        session.leave();
        assert!(session.join());
    }
}
