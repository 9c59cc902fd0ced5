//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what a panic elsewhere leaves as it is.
pub(crate) fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}
