//! Calls for one key take effect in the order in which they were started.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_distributed_lock::store::{Acquired, Released, StoreFuture};

use crate::subject::*;

pub(crate) async fn calls_take_effect_in_the_order_they_were_started(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    for _ in 0..20 {
        // Each taker finds the key free only if all calls before its own took effect before it.
        let mut calls: Vec<StoreFuture<bool>> = Vec::new();
        for _ in 0..50 {
            let a = owner();
            let (take, free) = (store.ask_for(attempt(&key, a)), store.end(ending(&key, a)));
            calls.push(Box::pin(async {
                matches!(take.await.unwrap(), Acquired::Granted(_))
            }));
            calls.push(Box::pin(async { free.await.unwrap() == Released::Freed }));
        }
        // The order is that of the calls above: the last one is polled first.
        calls.reverse();
        assert!(join_all(calls).await.into_iter().all(|in_order| in_order));
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_crowd_is_never_inside_together(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let inside = Arc::new(AtomicBool::new(false));
    let visitors = (0..16).map(|_| async {
        let a = owner();
        for _ in 0..10 {
            eventually("it is my turn", async || {
                matches!(store.queue(&key, a).await, Acquired::Granted(_))
            })
            .await;
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            tokio::task::yield_now().await;
            inside.store(false, Ordering::SeqCst);
            assert_eq!(store.free(&key, a).await, Released::Freed);
        }
    });
    join_all(visitors).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn order_survives_a_broken_connection(subject: impl Subject) {
    let store = subject.store();
    for _ in 0..10 {
        let mut calls = Vec::new();
        for n in 0..30 {
            let (key, a) = (key(&format!("k/{n}")), owner());
            let take = store.ask_for(attempt(&key, a));
            calls.push((take, store.end(ending(&key, a))));
        }
        let (mut takes, mut releases) = (Vec::new(), Vec::new());
        for (take, release) in calls {
            takes.push(take);
            releases.push(release);
        }
        // Whatever the answers are: a lease that is left was taken after its release.
        tokio::join!(
            subject.break_connections(),
            join_all(releases),
            join_all(takes)
        );
    }
    eventually("no lease is left", async || subject.is_empty().await).await;
}

pub(crate) async fn a_refused_repetition_leaves_nothing(subject: impl Subject) {
    let store = subject.store();
    for _ in 0..10 {
        let owners: Vec<_> = (0..30).map(|n| (key(&format!("k/{n}")), owner())).collect();
        let takes = owners
            .iter()
            .map(|(key, a)| store.ask_for(attempt(key, *a)));
        let takes: Vec<_> = takes.collect();
        let faults = async {
            subject.refuse_writes(true).await;
            subject.break_connections().await;
            // Long enough for the repetitions. Some stores answer only when the clean-up was accepted.
            sleep(Duration::from_millis(200)).await;
            subject.refuse_writes(false).await;
        };
        let (taken, ()) = tokio::join!(join_all(takes), faults);
        for (taken, (key, a)) in taken.into_iter().zip(&owners) {
            // The store itself cleans up after those that failed.
            if let Ok(Acquired::Granted(_)) = taken {
                let _ = store.end(ending(key, *a)).await;
            }
        }
        eventually("no lease is left", async || subject.is_empty().await).await;
    }
}
