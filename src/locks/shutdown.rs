//! Closing a [`Locks`], and the counts that show whether anything is left.

use std::time::Duration;

use super::{
    Locks,
    inner::{Counted, Counter},
};
use crate::{Loss, time::timeout, trace};

/// The current load of a [`Locks`], from [`Locks::stats`].
///
/// All counts are zero when nothing is held, waited for or under way.
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
    /// Releases that the store has not answered yet, those of other [`Locks`] on the same store included.
    pub releases: usize,
}

impl Locks {
    /// Closes these locks, for a graceful shutdown.
    ///
    /// From now on no request gets a turn: requests that wait, and requests that ask later, fail with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). Turns under way may finish within `grace`. Turns that take
    /// longer are lost with [`Loss::Closed`](crate::Loss::Closed), and their keys are released. The key of an
    /// idempotent request is released only when the handler has finished, because such a handler always runs to its
    /// end.
    ///
    /// The future resolves when all keys have been released, at the latest one lease after `grace` has passed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{ErrorKind, Locks};
    ///
    /// let locks = Locks::in_memory();
    /// locks.close(Duration::from_secs(5)).await;
    /// let error = locks.lock("orders/42").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// The locks stay closed when the future is dropped. Call `close` again to wait for the remaining turns.
    pub async fn close(&self, grace: Duration) {
        let inner = &self.0;
        trace::closing(inner.lines.len());
        inner.lines.close();
        if timeout(grace, self.idle()).await.is_none() {
            for lease in inner.lines.leases() {
                inner.lose(&lease, Loss::Closed);
            }
            let _ = timeout(inner.config.lease, self.idle()).await;
        }
    }

    /// Returns whether [`close`](Locks::close) was called.
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
        inner.lines.each(|line| {
            waiting += line.waiting();
            leases += line.leases().count();
        });
        Stats {
            keys: inner.lines.len(),
            waiting,
            leases,
            calls: inner.background.get(),
            releases: inner.store.owed(),
        }
    }

    /// Keeps [`close`](Locks::close) waiting until the returned value is dropped.
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
            if stats == Stats::default() && inner.busy.get() == 0 {
                return;
            }
            tokio::select! {
                biased;
                () = emptied => {}
                () = background => {}
                () = busy => {}
                () = inner.store.settled(), if stats.releases > 0 => {}
            }
        }
    }
}

/// Work that [`Locks::close`] waits for.
pub(crate) struct Busy {
    _counted: Counted,
}
