//! Waiting for the loss of a turn.
//!
//! A watcher normally sleeps until the lease's line tells the loss. While no scheduler runs (its runtime has ended), no line would
//! find out that a deadline has passed. The watcher then starts a scheduler on its own runtime, or watches the clock itself.

use std::sync::Arc;

use super::{
    inner::Inner,
    line::{Granted, Lost},
    turn::Turn,
};
use crate::{
    Loss,
    lease::Lease,
    time::{Instant, can_sleep, sleep_until},
};

/// Resolves when the turn or its lease is lost. Never resolves if the lease ends in any other way.
pub(super) async fn loss(turn: Arc<Turn>) -> Loss {
    let inner = &turn.inner;
    let Some(Granted { lease, .. }) = turn.granted() else {
        return std::future::pending().await;
    };
    let mut is_under_way = true;
    loop {
        // The scheduler ends with its runtime. The current runtime may be a different one, and can run the next
        // scheduler.
        let started = inner.scheduler.start(inner);
        let told = lease.loss_told();
        if let Some(loss) = turn.loss() {
            return loss;
        }
        if started && !inner.scheduler.is_running() {
            continue;
        }
        let end = end_to_watch(inner, lease).filter(|_| is_under_way);
        let Some((end, loss)) = end else {
            told.await;
            continue;
        };
        tokio::select! {
            biased;
            () = told => {}
            () = sleep_until(end) => {
                is_under_way = inner.lose(lease, loss) != Lost::NotHere;
            }
        }
    }
}

/// The time at which the watcher must report a loss itself, and the loss to report. Only needed if the scheduler is
/// on another runtime, which may not be driven.
fn end_to_watch(inner: &Inner, lease: &Lease) -> Option<(Instant, Loss)> {
    if inner.scheduler.is_on_this_runtime() || !can_sleep() {
        return None;
    }
    let (deadline, turn_ends) = (lease.deadline(), lease.turn_ends());
    Some(if deadline <= turn_ends {
        (deadline, Loss::Expired)
    } else {
        (turn_ends, Loss::MaxHold)
    })
}
