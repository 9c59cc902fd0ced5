//! Verification of passwords, which takes a tenth of a second of CPU time: on threads beside the workers, a few at a time, and once for
//! each right password.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::hmac;
use quick_cache::sync::Cache;
use tiderace::ProcessBudget;
use tokio::sync::Semaphore;

use crate::password_file::StoredHash;

/// Verifications that wait for a place. More are refused.
const WAITING_MAX: usize = 64;
/// Time limit for a place.
const PATIENCE: Duration = Duration::from_secs(10);
/// Right passwords that are remembered.
const REMEMBERED: usize = 4_096;

/// Too many passwords are being verified.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy;

/// All verifications of the process.
pub(crate) struct Hashing {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Credentials that were right, by a code that only this process can make: a look-up takes as long for any guess.
    right: Cache<[u8; 32], ()>,
    key: hmac::Key,
    /// Draws the decoys of unknown users.
    lots: RandomState,
    memory: ProcessBudget,
}

/// A verification that waits for its place.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hashing {
    /// `memory` is charged for the verifications that are in progress. `None` when the system has no random numbers.
    pub(crate) fn new(memory: &ProcessBudget) -> Option<Self> {
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).ok()?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Some(Self {
            // The other half is for what workers do.
            places: Arc::new(Semaphore::new((cores / 2).max(1))),
            waiting: AtomicUsize::new(0),
            right: Cache::new(REMEMBERED),
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            lots: RandomState::new(),
            memory: memory.clone(),
        })
    }

    pub(super) fn lot(&self, name: &str) -> u64 {
        self.lots.hash_one(name)
    }

    /// The code of credentials. A changed hash gives another.
    fn code(&self, stored: &StoredHash, name: &str, password: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [stored.text().as_bytes(), name.as_bytes(), password] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        context.sign().as_ref().try_into().unwrap_or_default()
    }

    /// Returns whether `password` is the one of `stored`, and whether that was remembered. The same credentials are verified one after
    /// the other: of the hundred requests of a page only the first takes its time. `permit` is asked before a verification.
    ///
    /// # Errors
    /// That of `permit`, or when there is no place.
    pub(super) async fn verify<E: From<Busy>>(
        &self,
        stored: Arc<StoredHash>,
        name: &str,
        password: &[u8],
        is_known: bool,
        permit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(bool, bool), E> {
        let code = self.code(&stored, name, password);
        let guard = match self.right.get_value_or_guard_async(&code).await {
            Ok(()) => return Ok((true, true)),
            Err(guard) => guard,
        };
        permit()?;
        let is_right = self.compute(stored, password.to_vec()).await? && is_known;
        if is_right {
            // An entry that was replaced meanwhile is the same one.
            let _ = guard.insert(());
        }
        Ok((is_right, false))
    }

    async fn compute(&self, stored: Arc<StoredHash>, password: Vec<u8>) -> Result<bool, Busy> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Busy);
        }
        let waiting = Waiting(&self.waiting);
        let place = tokio::time::timeout(PATIENCE, self.places.clone().acquire_owned()).await;
        drop(waiting);
        let Ok(Ok(place)) = place else { return Err(Busy) };
        let charge = self.memory.charge(stored.memory);
        // It continues when the client has left, so the place goes with it.
        let verifying = tokio::task::spawn_blocking(move || {
            let _held = (place, charge);
            stored.is_of(&password)
        });
        verifying.await.map_err(|_| Busy)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::password_file::tests::{bcrypt, file};

    fn hashing() -> (Arc<Hashing>, ProcessBudget) {
        let budget = ProcessBudget::new(1 << 30);
        (Arc::new(Hashing::new(&budget).unwrap()), budget)
    }

    fn stored(hash: &str) -> Arc<StoredHash> {
        file(&format!("a:{hash}\n"), 0o600).unwrap().find("a").unwrap().1
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_right_password_is_verified_once_and_a_wrong_one_each_time() {
        let (hashing, budget) = hashing();
        let stored = stored(&bcrypt("secret"));
        let count = Arc::new(AtomicU32::new(0));
        let permit = |count: &Arc<AtomicU32>| {
            let count = count.clone();
            move || {
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Busy>(())
            }
        };
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (hashing, stored, permit) = (hashing.clone(), stored.clone(), permit(&count));
            tasks.spawn(async move { hashing.verify(stored, "a", b"secret", true, permit).await });
        }
        assert!(tasks.join_all().await.iter().all(|result| matches!(result, Ok((true, _)))));
        assert_eq!(count.swap(0, Ordering::Relaxed), 1, "a page is verified once");
        for (name, password, is_known, right) in [
            ("a", &b"secre"[..], true, false),
            ("a", b"secre", true, false),
            ("b", b"secret", false, false),
            ("b", b"secret", false, false),
        ] {
            let verified = hashing.verify(stored.clone(), name, password, is_known, permit(&count)).await;
            assert_eq!(verified, Ok((right, false)), "{name}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 4, "nothing wrong is remembered");
        // Another hash of the same password is another password.
        let changed = self::stored(&bcrypt("other"));
        assert_eq!(hashing.verify(changed, "a", b"secret", true, permit(&count)).await, Ok((false, false)));
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flood_of_guesses_is_refused_and_stalls_nobody() {
        let (hashing, _) = hashing();
        // Long enough that all of them are there before the first is through.
        let stored = stored(&bcrypt::hash("secret", 7).unwrap());
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..1_000_u32 {
            let (hashing, stored) = (hashing.clone(), stored.clone());
            let guess = number.to_string();
            tasks.spawn(async move { hashing.verify(stored, "a", guess.as_bytes(), true, || Ok::<_, Busy>(())).await });
        }
        // Timers of this runtime continue meanwhile.
        let begun = std::time::Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        let results = tasks.join_all().await;
        let refused = results.iter().filter(|result| **result == Err(Busy)).count();
        let most = 1_000 - WAITING_MAX;
        assert!((most - 64..=most).contains(&refused), "{refused} refused");
        assert!(results.iter().all(|result| *result == Err(Busy) || *result == Ok((false, false))));
        assert_eq!(hashing.waiting.load(Ordering::Relaxed), 0);
    }
}
