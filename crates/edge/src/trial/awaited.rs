//! Responses whose delivery is awaited. A client that takes responses and acknowledges none would hold a task for each of them, so the number
//! of each client is bounded.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tiderace::{ProcessBudget, transport::memory::ProcessCharge};

/// Responses of one client that are awaited at a time.
pub const AWAITED: usize = 64;
/// Memory of a task that waits, in bytes.
const TASK: u64 = 512;

/// Owns the numbers of all clients that have any.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    counts: Mutex<HashMap<IpAddr, usize>>,
}

impl Awaiting {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a response of a client; `None` when it has as many as it may.
    pub(super) fn enter(self: &Arc<Self>, client: IpAddr, memory: &ProcessBudget) -> Option<Awaited> {
        let mut counts = self.counts();
        let count = counts.entry(client).or_default();
        if *count >= AWAITED {
            return None;
        }
        *count += 1;
        Some(Awaited { of: self.clone(), client, _charge: memory.charge(TASK) })
    }
}

/// Place of a response, until its delivery is known.
pub(crate) struct Awaited {
    of: Arc<Awaiting>,
    client: IpAddr,
    _charge: ProcessCharge,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_acknowledges_nothing_holds_a_bounded_number_of_tasks() {
        let (awaiting, memory) = (Arc::new(Awaiting::default()), ProcessBudget::new(1 << 30));
        let [slow, other] = [1_u32, 2].map(|number| IpAddr::V4(number.into()));
        let mut held: Vec<_> = (0..1_000).filter_map(|_| awaiting.enter(slow, &memory)).collect();
        assert_eq!((held.len(), memory.held()), (AWAITED, AWAITED as u64 * TASK));
        assert!(awaiting.enter(other, &memory).is_some());
        held.pop();
        held.extend(awaiting.enter(slow, &memory));
        assert!(awaiting.enter(slow, &memory).is_none());
        drop(held);
        assert_eq!((awaiting.counts().len(), memory.held()), (0, 0));
    }
}
