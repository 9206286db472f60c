//! Calls for one key take effect in the order in which they were started.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::future::join_all;
use tower_distributed_lock::store::{Acquired, Released, StoreFuture};

use crate::subject::*;

pub(crate) async fn calls_take_effect_in_the_order_they_were_started(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    for _ in 0..20 {
        // Each taker finds the key free only if all calls before its own took effect before it.
        let mut calls: Vec<StoreFuture<bool>> = Vec::new();
        for _ in 0..50 {
            let a = owner();
            let (take, free) = (
                store.acquire(attempt(&key, a)),
                store.start_release(ending(&key, a)),
            );
            calls.push(Box::pin(async {
                matches!(take.await.unwrap(), Acquired::Granted(_))
            }));
            calls.push(Box::pin(async { free.await.unwrap() == Released::Freed }));
        }
        // Polls each call once, in their order, before it polls any of them again.
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
