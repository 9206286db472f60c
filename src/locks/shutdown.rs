//! Closing a [`Locks`], and the counts that show whether anything is left.

use std::time::Duration;

use super::{
    HeldKey, Locks,
    inner::{Counted, Counter},
};
use crate::{Loss, time::timeout, trace};

/// The current load of a [`Locks`], from [`Locks::stats`].
///
/// All counts are zero when nothing is held, waited for or under way.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// use tower_distributed_lock::Stats;
///
/// let reading = locks.lock("reports/7").shared().await?;
/// let also_reading = locks.lock("reports/7").shared().await?;
/// let stats = locks.stats();
/// assert_eq!((stats.keys, stats.leases), (1, 1)); // two turns, one lease
///
/// drop((reading, also_reading));
/// assert_eq!(locks.stats(), Stats::default()); // nothing is left
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are held or waited for.
    pub keys: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Leases that are renewed.
    pub leases: usize,
    /// Background calls to the store: renewals, and contenders for keys that are held elsewhere.
    pub calls: usize,
    /// Handlers that the layers of this crate run, detached ones and those of idempotent requests
    /// included.
    pub running: usize,
    /// Releases that the store has not confirmed yet.
    pub releases: usize,
}

/// How long [`Locks::close`] waits after the grace, for handlers that are cancelled and for the
/// releases of their keys. Longer than the default time limit of a call to Redis.
const AFTER_GRACE: Duration = Duration::from_secs(2);

/// What was left when [`Locks::close`] ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_distributed_lock::Locks;
///
/// # let locks = Locks::in_memory();
/// let closed = locks.close(Duration::from_secs(20)).await;
/// for held in &closed.held {
///     eprintln!("{} was not released, and is free when its lease has expired", held.key);
/// }
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// The load at the end. All counts are zero after a complete end.
    pub stats: Stats,
    /// The keys that were still held: by handlers of idempotent requests, which run to their end,
    /// or because the store did not answer. Their owners are in the store until their leases
    /// expire.
    pub held: Vec<HeldKey>,
}

impl Closed {
    /// Returns whether nothing was left: no handler runs, and all keys have been released.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_distributed_lock::Locks;
    ///
    /// # let locks = Locks::in_memory();
    /// let closed = locks.close(Duration::from_secs(20)).await;
    /// assert!(closed.is_complete(), "{} releases without an answer", closed.stats.releases);
    /// # }
    /// ```
    pub fn is_complete(&self) -> bool {
        self.stats == Stats::default()
    }
}

impl Locks {
    /// Closes these locks, for a graceful shutdown. Returns what was left at the end.
    ///
    /// From now on no request gets a turn: requests that wait, and requests that ask later, fail
    /// with [`ErrorKind::Closed`](crate::ErrorKind::Closed). Turns under way may finish within
    /// `grace`. Turns that take longer are lost with [`Loss::Closed`], and their keys are
    /// released.
    ///
    /// The future resolves as soon as nothing is left, and **at the latest 2 seconds after `grace`
    /// has passed**. These 2 seconds are for the releases. Choose a grace that ends in time
    /// before the platform kills the process: Kubernetes does that 30 seconds after SIGTERM by
    /// default. See the [recipe](crate::guide::operating#shutting-down) for axum.
    ///
    /// The handler of an idempotent request always runs to its end, because a handler that was cut
    /// off could be neither repeated nor answered. If such a handler outlasts `grace`, its key
    /// is **not** released, so that no other instance begins the same work; the key is in
    /// [`Closed::held`]. If the process ends then, the key is free when its lease expires, and
    /// the outcome of the work is not known.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{ErrorKind, Locks};
    ///
    /// let locks = Locks::in_memory();
    /// let closed = locks.close(Duration::from_secs(5)).await;
    /// assert!(closed.is_complete(), "still running: {closed:?}");
    ///
    /// let error = locks.lock("orders/42").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// The locks stay closed when the future is dropped. Call `close` again to wait for the
    /// remaining turns.
    pub async fn close(&self, grace: Duration) -> Closed {
        let inner = &self.0;
        trace::closing(inner.lines.len());
        inner.lines.close();
        if inner.lines.len() + inner.lines.endings() > 0 {
            // The background may have ended with its runtime.
            inner.scheduler.start(inner);
        }
        let mut is_idle = timeout(grace, self.idle()).await.is_some();
        if !is_idle {
            for lease in inner.lines.leases() {
                inner.lose(&lease, Loss::Closed);
            }
            is_idle = timeout(AFTER_GRACE, self.idle()).await.is_some();
        }
        inner.troubles.close();
        if is_idle {
            // Nothing begins any more, but a renewal that was due before may only be sent now, in
            // vain.
            return Closed::default();
        }
        Closed {
            stats: self.stats(),
            held: self.held(),
        }
    }

    /// Returns whether [`close`](Locks::close) was called.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_distributed_lock::Locks;
    ///
    /// let locks = Locks::in_memory();
    /// assert!(!locks.is_closed());
    /// locks.close(Duration::ZERO).await;
    /// assert!(locks.is_closed());
    /// # }
    /// ```
    pub fn is_closed(&self) -> bool {
        self.0.lines.is_closed()
    }

    /// Returns the current load. All counts are zero when nothing is left behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// assert_eq!(locks.stats().leases, 1);
    /// drop(guard);
    /// assert_eq!(locks.stats().keys, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        let inner = &self.0;
        let (mut waiting, mut leases) = (0, 0);
        inner.lines.each(|_, line| {
            waiting += line.waiting();
            leases += line.leases().count();
        });
        Stats {
            keys: inner.lines.len(),
            waiting,
            leases,
            calls: inner.background.get(),
            running: inner.busy.get(),
            releases: inner.lines.endings(),
        }
    }

    /// Counts a handler as running until the returned value is dropped.
    pub(crate) fn busy(&self) -> Busy {
        Busy {
            _counted: Counter::one(&self.0.busy),
        }
    }

    /// Resolves when nothing is held, waited for or under way.
    async fn idle(&self) {
        let inner = &self.0;
        loop {
            let emptied = inner.lines.emptied();
            let background = inner.background.ended();
            let busy = inner.busy.ended();
            let stats = self.stats();
            if stats == Stats::default() {
                return;
            }
            tokio::select! {
                biased;
                () = emptied => {}
                () = background => {}
                () = busy => {}
            }
        }
    }
}

/// A handler that runs, and that [`Locks::close`] waits for.
pub(crate) struct Busy {
    _counted: Counted,
}
