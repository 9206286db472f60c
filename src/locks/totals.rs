//! What a [`Locks`] has done since it was created.
//!
//! The shards of [`Lines`](super::lines::Lines) count apart from each other, each under the lock
//! that a turn's begin takes anyway. [`Locks::totals`] adds them up.

use std::time::Duration;

use super::Locks;

/// What a [`Locks`] has done since it was created, from [`Locks::totals`]. The difference of two of
/// them gives the rates of the time in between.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// let before = locks.totals();
/// for _ in 0..3 {
///     drop(locks.lock("orders/42").await?);
/// }
/// let after = locks.totals();
///
/// let turns = after.turns - before.turns;
/// let mean_wait = (after.waited - before.waited) / turns as u32;
/// println!("{turns} turns, each after {mean_wait:?} on average");
/// # assert_eq!(turns, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// The turns that have begun.
    pub turns: u64,
    /// The turns among them that began without a new grant, under a lease that had served a turn
    /// before.
    pub passed_on: u64,
    /// How long the requests of these turns have waited, all together.
    pub waited: Duration,
    /// The requests that got no turn: the key stayed held, too many requests waited, or the store
    /// could not be reached.
    pub refused: u64,
    /// The leases that were lost, and the turns of shared leases that lasted too long.
    pub losses: u64,
    /// The renewals that the store has not answered.
    pub unanswered_renewals: u64,
}

impl Totals {
    /// Counts a turn.
    pub(super) fn began(&mut self, waited: Duration, passed_on: bool) {
        self.turns += 1;
        self.passed_on += u64::from(passed_on);
        self.waited += waited;
    }

    pub(super) fn add(&mut self, other: Self) {
        self.turns += other.turns;
        self.passed_on += other.passed_on;
        self.waited += other.waited;
    }
}

impl Locks {
    /// Returns what these locks have done so far. See [`stats`](Locks::stats) for what they do now.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// drop(locks.lock("orders/42").await?);
    /// assert_eq!(locks.totals().turns, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn totals(&self) -> Totals {
        let mut totals = self.0.lines.totals();
        self.0.troubles.add_to(&mut totals);
        totals
    }
}
