//! The room that kept answers take in the store, by scope.
//!
//! Records are counted in batches, so that a scope with millions of records takes a few entries. With a retention of 24 h, a batch
//! takes the records of 90 minutes, and a scope has about 17 batches at most.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    LockKey,
    key::KeyMap,
    time::{Instant, later, now},
};

/// The records of one scope that a process has stored, and that have not expired. See
/// [`IdempotencyLayer::kept`](super::IdempotencyLayer::kept).
///
/// ```
/// use tower_distributed_lock::{IdempotencyLayer, Locks, key};
///
/// let layer = IdempotencyLayer::new(Locks::in_memory(), key::header("x-tenant-id"));
/// let bytes: u64 = layer.kept().iter().map(|(_, kept)| kept.bytes).sum();
/// assert_eq!(bytes, 0); // no request yet
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptAnswers {
    /// How many records.
    pub records: u64,
    /// How many bytes they take together, without their keys and the store's overhead.
    pub bytes: u64,
}

impl KeptAnswers {
    fn add(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Counts the records that a layer has stored. A record stops counting when it expires, or up to a sixteenth of its retention later.
///
/// A scope is in the map only as long as one of its records counts. The map takes much less room than the records.
#[derive(Debug, Default)]
pub(super) struct KeptByScope(Mutex<Scopes>);

#[derive(Debug, Default)]
struct Scopes {
    batches: KeyMap<Vec<Batch>>,
    /// The number of scopes at which the map is swept.
    sweep_at: usize,
}

/// Records that were stored within a sixteenth of their retention, and expire together.
#[derive(Debug)]
struct Batch {
    open_until: Instant,
    expires: Instant,
    kept: KeptAnswers,
}

/// Below this number of scopes, the map is not swept.
const FEW: usize = 64;

impl KeptByScope {
    /// Counts a record of `bytes` that is kept for `retain`, and returns the sum for its scope.
    pub(super) fn add(&self, scope: &LockKey, bytes: usize, retain: Duration) -> KeptAnswers {
        let (now, mut scopes) = (now(), self.lock());
        if scopes.batches.len() >= scopes.sweep_at {
            scopes.sweep(now);
        }
        let batches = scopes.batches.entry(scope.clone()).or_default();
        batches.retain(|batch| now < batch.expires);
        let one = KeptAnswers {
            records: 1,
            bytes: bytes as u64,
        };
        let expires = later(now, retain);
        match batches.last_mut() {
            Some(batch) if now < batch.open_until => {
                batch.kept = batch.kept.add(one);
                batch.expires = batch.expires.max(expires);
            }
            _ => batches.push(Batch {
                open_until: later(now, retain / 16),
                expires,
                kept: one,
            }),
        }
        sum(batches, now)
    }

    /// The sum for every scope, the largest first.
    pub(super) fn all(&self) -> Vec<(LockKey, KeptAnswers)> {
        let (now, mut scopes) = (now(), self.lock());
        scopes.sweep(now);
        let sums = scopes.batches.iter();
        let mut sums: Vec<_> = sums
            .map(|(scope, batches)| (scope.clone(), sum(batches, now)))
            .collect();
        sums.sort_by(|(a, one), (b, other)| other.bytes.cmp(&one.bytes).then_with(|| a.cmp(b)));
        sums
    }

    fn lock(&self) -> MutexGuard<'_, Scopes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scopes {
    fn sweep(&mut self, now: Instant) {
        self.batches
            .retain(|_, batches| batches.iter().any(|batch| now < batch.expires));
        self.sweep_at = FEW.max(2 * self.batches.len());
    }
}

fn sum(batches: &[Batch], now: Instant) -> KeptAnswers {
    let live = batches.iter().filter(|batch| now < batch.expires);
    live.fold(KeptAnswers::default(), |sum, batch| sum.add(batch.kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETAIN: Duration = Duration::from_secs(16);

    fn scope(name: &str) -> LockKey {
        LockKey::new(name).unwrap()
    }

    fn kept(records: u64, bytes: u64) -> KeptAnswers {
        KeptAnswers { records, bytes }
    }

    #[tokio::test(start_paused = true)]
    async fn records_count_until_they_expire() {
        let counted = KeptByScope::default();
        assert_eq!(counted.add(&scope("a"), 10, RETAIN), kept(1, 10));
        tokio::time::advance(RETAIN / 2).await;
        assert_eq!(counted.add(&scope("a"), 20, RETAIN), kept(2, 30));
        assert_eq!(counted.add(&scope("b"), 40, RETAIN), kept(1, 40));
        let sums = [(scope("b"), kept(1, 40)), (scope("a"), kept(2, 30))];
        assert_eq!(counted.all(), sums);
        tokio::time::advance(RETAIN / 2).await;
        assert_eq!(
            counted.all(),
            [(scope("b"), kept(1, 40)), (scope("a"), kept(1, 20))]
        );
        tokio::time::advance(RETAIN).await;
        assert!(counted.all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn expired_scopes_take_no_room() {
        let counted = KeptByScope::default();
        for number in 0..1_000 {
            counted.add(&scope(&number.to_string()), 1, RETAIN);
            tokio::time::advance(RETAIN / 8).await;
        }
        assert!(counted.lock().batches.len() <= FEW);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_scope_takes_few_batches() {
        let counted = KeptByScope::default();
        for _ in 0..1_000 {
            counted.add(&scope("a"), 1, RETAIN);
            tokio::time::advance(RETAIN / 200).await;
        }
        let batches = counted.lock().batches[&scope("a")].len();
        assert!(batches <= 18, "{batches}");
        let sum = counted.all()[0].1.records;
        assert!((200..=220).contains(&sum), "{sum}");
    }
}
