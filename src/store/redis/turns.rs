//! The order of calls where no lane keeps it: those for one bucket are made one at a time.

use tokio::{
    sync::{Mutex as FairMutex, MutexGuard},
    task::unconstrained,
    time::{Instant, timeout_at},
};

use super::{
    explain,
    lane::Failure,
    names::{BUCKETS, bucket},
};
use crate::LockKey;

#[derive(Debug)]
pub(super) struct Turns(Vec<FairMutex<()>>);

impl Turns {
    pub(super) fn new() -> Self {
        Self((0..BUCKETS).map(|_| FairMutex::new(())).collect())
    }

    /// Waits until all earlier calls for this key have ended.
    pub(super) async fn wait(
        &self,
        key: &LockKey,
        deadline: Instant,
    ) -> Result<MutexGuard<'_, ()>, Failure> {
        let turn = &self.0[bucket(key.as_str())];
        // Without `unconstrained`, a task that has used up its budget would not even stand in line at its first poll.
        let turn = timeout_at(deadline, unconstrained(turn.lock())).await;
        turn.map_err(|_| Failure::NotSent(explain::too_many_before()))
    }
}
