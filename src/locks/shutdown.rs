//! Closing, and what is left to do before it is done.

use std::time::Duration;

use super::{
    Locks,
    inner::{Counted, Counter},
};
use crate::{Loss, time::timeout, trace};

/// How much a [`Locks`] has to do at the moment.
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
    /// Ends the use of these locks, for a graceful shutdown.
    ///
    /// From now on nobody gets a turn: those who ask and those who wait get [`ErrorKind::Closed`](crate::ErrorKind::Closed). Turns under way may
    /// finish for as long as `grace`; then they are lost, with [`Loss::Closed`](crate::Loss::Closed), and their keys released. The key of an
    /// idempotent request, whose handler always finishes, is released only when that has. Returns once all is given back,
    /// at the latest a lease's time after that.
    ///
    /// # Cancel safety
    ///
    /// The locks stay closed when the future is dropped; call it again to go on with the rest.
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

    /// Whether [`close`](Locks::close) was called.
    pub fn is_closed(&self) -> bool {
        self.0.lines.is_closed()
    }

    /// How much there is to do at the moment; all zero when nothing is left behind.
    pub fn stats(&self) -> Stats {
        let inner = &self.0;
        let (mut waiting, mut leases) = (0, 0);
        inner.lines.each(|line| {
            waiting += line.waiting();
            leases += usize::from(line.lease().is_some());
        });
        Stats {
            keys: inner.lines.len(),
            waiting,
            leases,
            calls: inner.background.get(),
            releases: inner.store.owed(),
        }
    }

    /// Keeps [`close`](Locks::close) waiting for as long as it lives.
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
