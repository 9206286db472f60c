//! Waiting for the loss of a turn.
//!
//! A watcher sleeps until the lease's line tells the loss. The scheduler, which finds out that a
//! deadline has passed, may end with its runtime. The watcher is woken then, and starts the
//! scheduler again.

use std::sync::Arc;

use super::{line::Granted, turn::Turn};
use crate::Loss;

/// Resolves when the turn or its lease is lost. Never resolves if the lease ends in any other way.
pub(super) async fn loss(turn: Arc<Turn>) -> Loss {
    let inner = &turn.inner;
    let Some(Granted { lease, .. }) = turn.granted() else {
        return std::future::pending().await;
    };
    loop {
        let told = lease.loss_told();
        if let Some(loss) = turn.loss() {
            return loss;
        }
        // Looked at after `told` was made: whoever ends the scheduler wakes the watchers.
        inner.scheduler.start(inner);
        told.await;
    }
}
