//! Memory that a peer can make this endpoint hold, charged where it is held.
//!
//! A [`ProcessBudget`] bounds all connections of a process, a [`ConnectionBudget`] one connection. Every queue that a peer can fill takes a
//! [`Charge`] for the memory that it holds: the capacity of its buffers and an overhead per item, not only payload. A dropped charge is
//! returned.
//!
//! Counters are atomic, because the layers of a connection (transport, HTTP/3, gateway) run on several tasks. A queue on the packet path
//! keeps its own sum and calls [`Charge::set`] once per batch.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Overhead of an item in a queue beside its bytes: its place in the queue and the header of an allocation.
pub const ITEM_OVERHEAD: u64 = 64;

/// Memory that an allocation of `bytes` takes from the allocator, in bytes; 0 for none.
#[inline]
pub const fn allocation(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let chunk = (bytes + 8).next_multiple_of(16);
    if chunk < 32 { 32 } else { chunk }
}

/// The memory that all connections of a process may hold together. Clones share it.
///
/// ```
/// use transport::memory::{ConnectionBudget, ProcessBudget};
///
/// let process = ProcessBudget::new(10_000);
/// let connection = ConnectionBudget::new(1_000, &process);
/// let charge = connection.charge(600).expect("it fits");
/// assert!(connection.charge(600).is_none());
/// assert_eq!((connection.held(), process.held()), (600, 600));
/// drop(charge);
/// assert_eq!((connection.held(), process.held()), (0, 0));
/// ```
#[derive(Clone, Debug)]
pub struct ProcessBudget(Arc<Process>);

#[derive(Debug)]
struct Process {
    limit: u64,
    held: AtomicU64,
    connections: AtomicU64,
}

impl Default for ProcessBudget {
    /// No limit.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl ProcessBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Process { limit, held: AtomicU64::new(0), connections: AtomicU64::new(0) }))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes held at the moment.
    pub fn held(&self) -> u64 {
        self.0.held.load(Relaxed)
    }

    /// Share of each connection when all hold the same, in bytes.
    ///
    /// While the budget is exhausted by connections, one of them at least holds as much.
    pub fn fair_share(&self) -> u64 {
        self.0.limit / self.0.connections.load(Relaxed).max(1)
    }

    /// Charges `bytes` to the process and to no connection, also above the limit: for memory with a separate bound.
    #[must_use]
    pub fn charge(&self, bytes: u64) -> ProcessCharge {
        let mut charge = ProcessCharge { process: self.clone(), bytes: 0 };
        charge.set(bytes);
        charge
    }

    /// Returns whether more than three quarters are held: new connections and new work are refused.
    pub fn is_scarce(&self) -> bool {
        self.held() > self.0.limit - self.0.limit / 4
    }

    /// Returns whether all of it is held, or more: connections that hold much are closed.
    pub fn is_exhausted(&self) -> bool {
        self.held() >= self.0.limit
    }
}

/// The memory that one connection may hold, part of a process's. Clones share it.
#[derive(Clone, Debug)]
pub struct ConnectionBudget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: AtomicU64,
    held: AtomicU64,
    process: ProcessBudget,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.process.0.connections.fetch_sub(1, Relaxed);
    }
}

impl ConnectionBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64, process: &ProcessBudget) -> Self {
        let (limit, held) = (AtomicU64::new(limit), AtomicU64::new(0));
        process.0.connections.fetch_add(1, Relaxed);
        Self(Arc::new(Account { limit, held, process: process.clone() }))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit.load(Relaxed)
    }

    /// Sets another limit, in bytes: receive windows that grow bring their memory with them.
    pub fn set_limit(&self, limit: u64) {
        self.0.limit.store(limit, Relaxed);
    }

    /// Bytes held at the moment, by all users of this budget.
    pub fn held(&self) -> u64 {
        self.0.held.load(Relaxed)
    }

    /// More is held than the limit allows.
    pub fn is_exceeded(&self) -> bool {
        self.held() > self.limit()
    }

    /// The process that this is part of.
    pub fn process(&self) -> &ProcessBudget {
        &self.0.process
    }

    /// Charges `bytes`. `None`, without a charge, if the limit of the connection or of the process would be exceeded.
    #[must_use]
    pub fn charge(&self, bytes: u64) -> Option<Charge> {
        let mut charge = self.empty();
        charge.try_set(bytes).then_some(charge)
    }

    /// An empty charge, to be [set](Charge::set) later.
    #[must_use]
    pub fn empty(&self) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }

    fn add(&self, bytes: u64) {
        self.0.held.fetch_add(bytes, Relaxed);
        self.0.process.0.held.fetch_add(bytes, Relaxed);
    }

    fn give_back(&self, bytes: u64) {
        self.0.held.fetch_sub(bytes, Relaxed);
        self.0.process.0.held.fetch_sub(bytes, Relaxed);
    }
}

/// Memory that is charged to a connection until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: ConnectionBudget,
    bytes: u64,
}

impl Charge {
    /// Bytes charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The budget charged.
    pub fn budget(&self) -> &ConnectionBudget {
        &self.budget
    }

    /// Changes the charge to `bytes`, also above the limits: for memory that is already held and has a separate bound.
    pub fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.budget.add(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Charges `bytes` instead if the limits allow it. Less is always allowed.
    #[must_use]
    pub fn try_set(&mut self, bytes: u64) -> bool {
        let before = self.bytes;
        self.set(bytes);
        // Charged first and looked at then, so that two who charge at once cannot both fit into the last room.
        let is_over = self.budget.is_exceeded() || self.budget.process().held() > self.budget.process().limit();
        if bytes > before && is_over {
            self.set(before);
            return false;
        }
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Memory that is charged to a process until this is dropped.
#[derive(Debug)]
pub struct ProcessCharge {
    process: ProcessBudget,
    bytes: u64,
}

impl ProcessCharge {
    /// Charges `bytes` instead.
    pub fn set(&mut self, bytes: u64) {
        let held = &self.process.0.held;
        if bytes > self.bytes {
            held.fetch_add(bytes - self.bytes, Relaxed);
        } else if bytes < self.bytes {
            held.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for ProcessCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_process_bounds_connections_that_are_within_their_own() {
        let process = ProcessBudget::new(1_000);
        let [one, two] = [0, 1].map(|_| ConnectionBudget::new(700, &process));
        let first = one.charge(700).unwrap();
        assert!(two.charge(301).is_none());
        let second = two.charge(300).unwrap();
        assert!(process.is_scarce() && process.is_exhausted());
        drop(first);
        assert_eq!((process.held(), two.held(), second.bytes()), (300, 300, 300));
        assert!(!process.is_scarce());
    }

    #[test]
    fn a_fair_share_follows_the_number_of_connections() {
        let process = ProcessBudget::new(1_000);
        let budgets = [(); 4].map(|()| ConnectionBudget::new(700, &process));
        assert_eq!(process.fair_share(), 250);
        let charge = process.charge(800);
        assert!(process.is_scarce() && budgets[0].held() == 0);
        drop((budgets, charge));
        assert_eq!((process.fair_share(), process.held()), (1_000, 0));
    }

    #[test]
    fn what_is_set_is_charged_even_beyond_the_limit() {
        let budget = ConnectionBudget::new(100, &ProcessBudget::default());
        let mut charge = budget.empty();
        charge.set(150);
        assert!(budget.is_exceeded());
        assert!(!charge.try_set(151) && charge.try_set(120));
        budget.set_limit(120);
        assert!(!budget.is_exceeded());
    }

    proptest! {
        /// Sums of charges, whatever order they come and go in.
        #[test]
        fn held_is_the_sum_of_charges(actions in prop::collection::vec((0..3u8, 0..400u64, any::<prop::sample::Index>()), 1..200)) {
            let process = ProcessBudget::new(2_000);
            let budgets = [900, 1_500].map(|limit| ConnectionBudget::new(limit, &process));
            let mut charges: Vec<(usize, Charge)> = Vec::new();
            for (action, bytes, which) in actions {
                let of = which.index(2);
                match action {
                    0 => charges.extend(budgets[of].charge(bytes).map(|charge| (of, charge))),
                    1 if !charges.is_empty() => drop(charges.swap_remove(which.index(charges.len()))),
                    _ if !charges.is_empty() => {
                        let at = which.index(charges.len());
                        let _ = charges[at].1.try_set(bytes);
                    }
                    _ => {}
                }
                for (of, budget) in budgets.iter().enumerate() {
                    let sum: u64 = charges.iter().filter(|(whose, _)| *whose == of).map(|(_, charge)| charge.bytes()).sum();
                    prop_assert_eq!(budget.held(), sum);
                    prop_assert!(!budget.is_exceeded());
                }
                prop_assert_eq!(process.held(), budgets.iter().map(ConnectionBudget::held).sum::<u64>());
                prop_assert!(process.held() <= process.limit());
            }
        }
    }
}
