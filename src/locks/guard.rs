//! The handle to a turn.
//!
//! A [`LockGuard`] is a counted reference to a [`Turn`]. The count of guards is apart from the
//! count of the `Arc`, because the line and the waiter also have the turn, and must not keep the
//! turn from ending:
//!
//! ```text
//! LockGuard ──▶ Arc<Turn> ──▶ Granted { lease, number, token }
//!    clone: guards + 1            │
//!    drop:  guards - 1            └─▶ Arc<Lease>: deadline, loss, doubts
//!           0 left: the line ends the turn
//! ```

mod asking;
mod fencing;
mod watching;

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use super::{Locks, inner::Inner, line::Granted, turn::Turn};
use crate::{
    LockKey, Loss,
    store::{Mode, Owner},
    time::now,
    trace,
};

/// The use of a key, for as long as this guard or a clone of the guard lives: exclusive, shared
/// with others, or one of several permits, as [`mode`](LockGuard::mode) tells.
///
/// - Dropping the last clone ends the turn: the next local request gets its turn, or the key is
///   released in the background. Nothing is awaited, so a guard can be dropped anywhere, even
///   outside of a runtime.
/// - [`release`](LockGuard::release) ends the turn at once and for all clones, and asks the store
///   whether the lease was held until then.
/// - The lease is renewed in the background. When the lease is lost, [`lost`](LockGuard::lost)
///   resolves and [`is_held`](LockGuard::is_held) returns `false`. Writes after that moment may
///   collide with the next holder, unless the resource compares [`token`](LockGuard::token)s.
///
/// A clone holds the same turn once more, with the same token, which makes cloning a form of
/// re-entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// let guard = locks.lock("orders/42").await?;
/// let first = guard.token();
/// guard.release().await?;
///
/// let guard = locks.lock("orders/42").await?;
/// assert!(guard.token() > first);
/// # Ok(())
/// # }
/// ```
#[must_use = "a guard that is dropped at once gives the key back at once"]
pub struct LockGuard(Arc<Turn>);

/// The state of a guard's turn, from [`LockGuard::status`].
///
/// ```
/// use tower_distributed_lock::{LockGuard, Status};
///
/// fn describe(guard: &LockGuard) -> String {
///     match guard.status() {
///         Status::Held => format!("held for another {:?}", guard.remaining()),
///         Status::Released => "released".into(),
///         Status::Lost(loss) => format!("lost: {loss}"),
///         _ => "in a state that this program does not know".into(),
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The turn is under way, and the lease is held.
    Held,
    /// A clone of the guard has ended the turn with [`LockGuard::release`].
    Released,
    /// The lease was lost, for this reason.
    Lost(Loss),
}

impl LockGuard {
    /// Creates the first guard of a turn that has begun. Must be called before the next `.await`,
    /// so that a cancellation cannot leak the turn.
    pub(crate) fn new(turn: Arc<Turn>) -> Self {
        turn.add_guard();
        let guard = Self(turn);
        let Granted {
            lease,
            number,
            token,
        } = guard.granted();
        trace::turn_began(lease.key.as_str(), lease.owner, *token, *number > 1);
        guard
    }

    fn granted(&self) -> &Granted {
        let granted = self.0.granted();
        granted.expect("a guard is created after its turn has begun")
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    /// Returns how many may hold the key at the same time as this guard.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use tower_distributed_lock::store::Mode;
    ///
    /// assert_eq!(locks.lock("reports/7").await?.mode(), Mode::Exclusive);
    /// assert_eq!(locks.lock("reports/7").shared().await?.mode(), Mode::Shared);
    /// assert_eq!(locks.permit("exports", 4).await?.mode(), Mode::Permit { of: 4 });
    /// # Ok(())
    /// # }
    /// ```
    pub fn mode(&self) -> Mode {
        self.granted().lease.mode()
    }

    /// Returns the locked key.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// assert_eq!(guard.key().as_str(), "orders/42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &LockKey {
        &self.granted().lease.key
    }

    /// Returns the owner of the lease: the text that log events, [`Locks::held`] and the store have
    /// for this turn.
    ///
    /// Turns that a process passes on under one lease have the same owner and different tokens.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// println!("working as {}", guard.owner()); // find the same text in Redis, or on the admin page
    /// # Ok(())
    /// # }
    /// ```
    pub fn owner(&self) -> Owner {
        self.granted().lease.owner
    }

    /// Returns the fencing token, which rises with every exclusive turn at a key across the whole
    /// fleet.
    ///
    /// The token of a shared guard, or of a permit, is above those of all earlier exclusive guards
    /// and below those of all later ones. Guards that share a key may have the same token.
    ///
    /// Send the token along with every write. A resource that keeps the highest token seen, and
    /// refuses lower tokens, is safe even from a process that was paused for longer than its
    /// lease and has not noticed yet.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("accounts/1").await?;
    /// let statement = format!(
    ///     "UPDATE accounts SET balance = 5, token = {0} WHERE id = 1 AND token <= {0}",
    ///     guard.token(),
    /// );
    /// # drop(statement);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "fencing")]
    pub fn token(&self) -> u64 {
        self.granted().token
    }

    /// Returns whether the key is held, by the clock of this process.
    ///
    /// That clock is monotonic, and on Linux the clock stands still while the machine sleeps (a
    /// closed laptop, a suspended virtual machine). After the machine wakes up, this method can
    /// return `true` although the lease has expired in the store, until the next renewal
    /// reports the loss. A resource that compares [`token`](LockGuard::token)s is safe in that
    /// case, too.
    ///
    /// Call `is_held` between the steps of a long computation that never awaits, and that
    /// [`run`](LockGuard::run) could therefore not interrupt:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// # fn step(_: u32) {}
    /// let guard = locks.lock("reports/7").await?;
    /// let finished = tokio::task::spawn_blocking(move || {
    ///     for part in 0..100 {
    ///         if !guard.is_held() {
    ///             return false; // another holder may have begun
    ///         }
    ///         step(part);
    ///     }
    ///     true
    /// });
    /// assert!(finished.await.unwrap());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_held(&self) -> bool {
        self.status() == Status::Held
    }

    /// Returns how long the lease lasts if no further renewal succeeds, or zero if the key is not
    /// held any more.
    ///
    /// The value jumps up with every renewal. Use the value as a time limit for a call that must
    /// not outlast the lease:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// # async fn pay() {}
    /// let guard = locks.lock("orders/42").await?;
    /// let paid = tokio::time::timeout(guard.remaining(), pay()).await;
    /// assert!(paid.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        match self.status() {
            Status::Held => self
                .granted()
                .lease
                .deadline()
                .saturating_duration_since(now()),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether the turn is still under way, or how the turn ended.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use tower_distributed_lock::Status;
    ///
    /// let guard = locks.lock("orders/42").await?;
    /// let clone = guard.clone();
    /// assert_eq!(clone.status(), Status::Held);
    /// guard.release().await?;
    /// assert_eq!(clone.status(), Status::Released);
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(&self) -> Status {
        let lease = &self.granted().lease;
        if self.0.is_released() {
            Status::Released
        } else if let Some(loss) = self.0.loss() {
            Status::Lost(loss)
        } else if !lease.is_valid(now()) {
            // The line may not have been told yet that the deadline has passed. Or the lease was
            // lost a moment ago.
            Status::Lost(lease.loss().unwrap_or(Loss::Expired))
        } else {
            Status::Held
        }
    }
}

/// Methods for the layers of this crate.
impl LockGuard {
    /// Describes the turn that has just begun.
    pub(crate) fn acquired(&self) -> trace::Acquired<'_> {
        let granted = self.granted();
        trace::Acquired::Turn {
            owner: &granted.lease.owner,
            token: granted.token,
            passed_on: granted.number > 1,
            hold: self.hold(),
        }
    }

    /// The time for which the turn lasts.
    pub(crate) fn hold(&self) -> &trace::Hold {
        self.0.hold()
    }

    /// The loss of the turn, by the clock: even before the line has been told.
    pub(crate) fn loss(&self) -> Option<Loss> {
        match self.status() {
            Status::Lost(loss) => Some(loss),
            _ => None,
        }
    }

    /// Whether this is the only guard of the turn.
    pub(crate) fn is_only_one(&self) -> bool {
        self.0.guards() == 1
    }

    /// Whether both guards are for the same turn.
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether asking `locks` for `key` would wait for this guard's turn.
    pub(crate) fn is_for(&self, locks: &Locks, key: &LockKey) -> bool {
        self.key() == key && self.inner().space == locks.0.space
    }

    /// Restarts the time that `max_hold` allows the turn. Returns whether the turn is still under
    /// way.
    pub(crate) fn begin_anew(&self) -> bool {
        let granted = self.granted();
        self.inner()
            .with_line(&granted.lease.key, |line, t| {
                line.begin_anew(&self.0, granted, t)
            })
            .unwrap_or(false)
    }

    /// Returns a handle that does not keep the turn from ending.
    pub(crate) fn weak(&self) -> WeakGuard {
        WeakGuard(Arc::downgrade(&self.0))
    }
}

/// A handle that does not keep the turn from ending.
///
/// The extensions of a request and the task-local of a handler have weak guards, so that neither a
/// copy of the extensions nor a forgotten task keeps a key locked.
#[derive(Clone)]
pub(crate) struct WeakGuard(Weak<Turn>);

impl WeakGuard {
    /// Returns a guard, unless the last guard of the turn has been dropped.
    pub(crate) fn upgrade(&self) -> Option<LockGuard> {
        let turn = self.0.upgrade()?;
        turn.add_guard_if_held().then(|| LockGuard(turn))
    }
}

impl Clone for LockGuard {
    fn clone(&self) -> Self {
        self.0.add_guard();
        Self(self.0.clone())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.0.remove_guard() && !self.0.is_released() {
            self.inner().end_turn(self.granted());
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("token", &self.token())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
