//! Strike register: used single-use tickets and tokens.
//!
//! Anyone who saw early data can replay it (RFC 8446 §8). A ticket is accepted for early data once within a window, and the register stores
//! this. Servers with a common ring need a common register, otherwise each of them accepts a replay once. Registers outside of this process
//! implement the trait.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    task::Waker,
};

/// Names what may be used once: the authentication tag of a ticket or token, which no two have in common.
pub type StrikeId = [u8; 16];

/// Answer of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// First use: known from here on.
    First,
    /// Used before.
    Again,
    /// The register has no room: prior use cannot be decided.
    Full,
    /// The answer is not there yet: ask again, with the same ID, once the waker was woken.
    Pending,
}

/// Register of used tickets and tokens. Asked once per handshake that offers early data, from any thread.
pub trait StrikeRegister: Send + Sync {
    /// Notes `id`, to be remembered until `expires`. Times are Unix seconds.
    ///
    /// An external register returns [`Strike::Pending`], and wakes `waker` when it has the answer. The caller may no longer wait for it.
    /// The calling thread drives connections, so the call must not block.
    fn strike(&self, id: &StrikeId, now: u64, expires: u64, waker: &Waker) -> Strike;
}

/// Register in the memory of this process. It never forgets before the expiry: when it is full, it reports that.
pub struct MemoryRegister {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: BTreeMap<StrikeId, u64>,
    by_expiry: BTreeSet<(u64, StrikeId)>,
}

impl MemoryRegister {
    /// Remembers at most `capacity` IDs, of about 100 bytes each.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::default() }
    }

    /// Number of IDs that are remembered.
    pub fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).known.len()
    }

    /// Returns whether the register is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for MemoryRegister {
    /// Room for 65,536: with a window of 10 seconds, more than 3,000 connections with early data in each second.
    fn default() -> Self {
        Self::new(1 << 16)
    }
}

impl StrikeRegister for MemoryRegister {
    fn strike(&self, id: &StrikeId, now: u64, expires: u64, _: &Waker) -> Strike {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(&(until, old)) = state.by_expiry.first().filter(|(until, _)| *until < now) {
            state.by_expiry.remove(&(until, old));
            state.known.remove(&old);
        }
        if state.known.contains_key(id) {
            return Strike::Again;
        }
        if state.known.len() >= self.capacity {
            return Strike::Full;
        }
        state.known.insert(*id, expires);
        state.by_expiry.insert((expires, *id));
        Strike::First
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strike(register: &MemoryRegister, id: &StrikeId, now: u64, expires: u64) -> Strike {
        register.strike(id, now, expires, Waker::noop())
    }

    #[test]
    fn once_within_the_time_and_bounded() {
        let register = MemoryRegister::new(2);
        assert_eq!(strike(&register, &[1; 16], 100, 110), Strike::First);
        assert_eq!(strike(&register, &[1; 16], 110, 120), Strike::Again);
        assert_eq!(strike(&register, &[2; 16], 105, 120), Strike::First);
        assert_eq!(strike(&register, &[3; 16], 105, 120), Strike::Full, "it does not forget to make room");
        assert_eq!(strike(&register, &[3; 16], 111, 120), Strike::First, "the first has expired");
        assert_eq!(register.len(), 2);
        assert_eq!(strike(&register, &[1; 16], 130, 140), Strike::First);
        assert_eq!(register.len(), 1);
    }
}
