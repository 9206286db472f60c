//! How calls end, in whatever order they take effect.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::future::join_all;
use tower_distributed_lock::store::{Acquired, Answer, Outcome, Release, Released};

use crate::subject::*;

pub(crate) async fn a_crowd_is_never_inside_together(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let inside = Arc::new(AtomicBool::new(false));
    let visitors = (0..16).map(|_| async {
        for _ in 0..10 {
            let a = owner();
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

pub(crate) async fn a_refused_call_has_no_effect(subject: impl Subject) {
    let (store, [held, free]) = (subject.store(), [key("held"), key("free")]);
    let (a, b) = (owner(), owner());
    store.take(&held, a).await;
    if !subject.refuse_writes(true).await {
        return;
    }
    let acquired = store.acquire(waiting(&free, b)).await;
    let (answer, released) = Answer::channel();
    store.release(ending(&held, a), answer);
    let released = released.await;
    subject.refuse_writes(false).await;
    if let Outcome::Refused(_) = acquired {
        let seen = store.see(&free).await;
        assert_eq!((seen.holders, seen.queue), (Vec::new(), Vec::new()));
    }
    if let Outcome::Refused(_) = released {
        assert_eq!(store.holder(&held).await, Some(a));
    }
    assert!(!matches!(acquired, Outcome::Answered(_)), "{acquired:?}");
    assert!(!matches!(released, Outcome::Answered(_)), "{released:?}");
}

pub(crate) async fn calls_of_unknown_outcome_are_ended_by_releases(subject: impl Subject) {
    let store = subject.store();
    for _ in 0..10 {
        let asked: Vec<_> = (0..30).map(|n| (key(&format!("k/{n}")), owner())).collect();
        let acquires: Vec<_> = asked
            .iter()
            .map(|(key, owner)| store.acquire(attempt(key, *owner)))
            .collect();
        let (outcomes, ()) = tokio::join!(join_all(acquires), subject.break_connections());
        for ((key, owner), outcome) in asked.into_iter().zip(outcomes) {
            let in_doubt = match outcome {
                Outcome::Answered(_) => false,
                Outcome::Unknown(_) => true,
                Outcome::Refused(_) => continue,
            };
            let release = Release {
                in_doubt,
                ..ending(&key, owner)
            };
            // Until nothing of the owner can come any more.
            eventually("the release is answered", async || {
                let released = store.end(release.clone()).await;
                matches!(released, Ok(Released::Freed | Released::NotOurs))
            })
            .await;
        }
        assert!(subject.is_empty().await, "a lease came after its release");
    }
}

pub(crate) async fn a_release_in_doubt_of_an_answered_call_is_a_release(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    let in_doubt = |owner| {
        store.end(Release {
            in_doubt: true,
            ..ending(&key, owner)
        })
    };
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    let not_freed = [Released::NotOurs, Released::NotYet];
    assert!(not_freed.contains(&in_doubt(b).await.unwrap()));
    assert_eq!(store.see(&key).await.queue, []);
    assert_eq!(in_doubt(a).await.unwrap(), Released::Freed);
    assert!(not_freed.contains(&in_doubt(a).await.unwrap()));
    assert!(subject.is_empty().await);
}
