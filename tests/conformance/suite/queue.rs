//! Attempts that wait are served in the order in which they first arrived.

use std::time::Duration;

use tokio::time::Instant;
use tower_distributed_lock::store::{Acquire, Acquired, Owner, Queueing, Released, Renewed};

use crate::subject::*;

pub(crate) async fn attempts_are_served_in_order_of_arrival(subject: impl Subject) {
    let (store, key, holder) = (subject.store(), key("k"), owner());
    let waiters: Vec<Owner> = (0..12).map(|_| owner()).collect();
    store.take(&key, holder).await;
    for waiter in &waiters {
        held(store.queue(&key, *waiter).await);
    }
    assert_eq!(store.see(&key).await.queue, waiters);

    let mut last = holder;
    for (turn, head) in waiters.iter().enumerate() {
        assert_eq!(store.free(&key, last).await, Released::Freed);
        for later in &waiters[turn + 1..] {
            held(store.queue(&key, *later).await);
        }
        granted(store.queue(&key, *head).await);
        last = *head;
    }
    store.free(&key, last).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn asking_again_keeps_the_place(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    store.take(&key, a).await;
    for waiter in [b, c, b, b, c] {
        held(store.queue(&key, waiter).await);
    }
    assert_eq!(store.see(&key).await.queue, [b, c]);
}

pub(crate) async fn a_free_key_is_for_the_head_of_the_queue_only(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    store.free(&key, a).await;

    held(store.ask(&key, owner()).await);
    held(store.queue(&key, owner()).await);
    assert_eq!(store.holder(&key).await, None);
    // The same holds for an attempt that no longer asks to wait.
    assert!(store.take(&key, b).await.others_wait);
}

pub(crate) async fn an_attempt_that_does_not_queue_leaves_nothing_behind(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    held(store.ask(&key, owner()).await);
    assert_eq!(store.see(&key).await.queue, []);
    store.free(&key, a).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_queued_attempt_that_asks_without_queueing_leaves_the_queue(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    held(store.ask(&key, b).await);
    assert_eq!(store.see(&key).await.queue, [c]);

    // The same of a free key that is another attempt's.
    held(store.queue(&key, b).await);
    store.free(&key, a).await;
    held(store.ask(&key, b).await);
    assert_eq!(store.see(&key).await.queue, [c]);
    granted(store.queue(&key, c).await);
    store.free(&key, c).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn an_attempt_that_skips_the_queue_takes_only_a_free_key(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, hasty) = (owner(), owner(), owner());
    let skipping = Acquire {
        queueing: Queueing::Skip,
        ..attempt(&key, hasty)
    };
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.ask_for(skipping.clone()).await.unwrap());
    assert_eq!(store.see(&key).await.queue, [b]);

    store.free(&key, a).await;
    assert!(granted(store.ask_for(skipping).await.unwrap()).others_wait);
    held(store.queue(&key, b).await);
    store.free(&key, hasty).await;
    granted(store.queue(&key, b).await);
}

pub(crate) async fn an_attempt_past_its_deadline_counts_as_gone(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, gone, c) = (owner(), owner(), owner());
    store.take(&key, a).await;
    held(store.ask_for(short_wait(&key, gone)).await.unwrap());
    held(store.queue(&key, c).await);
    store.free(&key, a).await;
    eventually("c is granted the key", async || {
        matches!(store.queue(&key, c).await, Acquired::Granted(_))
    })
    .await;
    assert_eq!(store.see(&key).await.queue, []);
}

pub(crate) async fn asking_again_refreshes_the_deadline(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c, witness) = (owner(), owner(), owner(), owner());
    store.take(&key, a).await;
    held(store.ask_for(short_wait(&key, b)).await.unwrap());
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    // The attempt with the first deadline of b is gone, and b is not.
    held(store.ask_for(short_wait(&key, witness)).await.unwrap());
    eventually("the witness is gone", async || {
        !store.see(&key).await.queue.contains(&witness)
    })
    .await;
    assert_eq!(store.see(&key).await.queue, [b, c]);
}

pub(crate) async fn giving_up_leaves_the_queue(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    assert_eq!(store.free(&key, b).await, Released::NotOurs);
    assert_eq!(store.see(&key).await.queue, [c]);
    store.free(&key, a).await;
    granted(store.queue(&key, c).await);
}

pub(crate) async fn a_grant_and_a_renewal_tell_whether_others_wait(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    let others_wait = async |owner| match store.renew_one(renewal(&key, owner, 0)).await {
        Renewed::Renewed { others_wait, .. } => others_wait,
        other => panic!("expected a renewal, got {other:?}"),
    };
    assert!(!store.take(&key, a).await.others_wait);
    assert!(!others_wait(a).await);
    held(store.queue(&key, b).await);
    assert!(others_wait(a).await);
    assert!(
        store.take(&key, a).await.others_wait,
        "a repeated grant tells"
    );
    held(store.queue(&key, c).await);
    store.free(&key, a).await;
    assert!(granted(store.queue(&key, b).await).others_wait);
    store.free(&key, b).await;
    assert!(!granted(store.queue(&key, c).await).others_wait);
    assert!(!others_wait(c).await);
}

pub(crate) async fn an_abandoned_queue_is_forgotten(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    for _ in 0..5 {
        held(store.ask_for(short_wait(&key, owner())).await.unwrap());
    }
    store.free(&key, a).await;
    eventually("the store is empty", async || subject.is_empty().await).await;
}

pub(crate) async fn held_tells_when_to_ask_again(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    store.take(&key, a).await;
    let by_the_lease = held(store.queue(&key, b).await).remaining;
    assert!(by_the_lease > LONG / 2 && by_the_lease <= LONG);

    store.free(&key, a).await;
    let by_the_head = held(store.queue(&key, c).await).remaining;
    assert!(by_the_head > LONG / 2 && by_the_head <= LONG);
}

pub(crate) async fn heads_that_leave_a_free_key_untaken_are_passed_by(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, live) = (owner(), owner());
    let silent = [owner(), owner(), owner()];
    store.take(&key, a).await;
    for waiter in silent {
        held(store.queue(&key, waiter).await);
    }
    held(store.queue(&key, live).await);
    store.free(&key, a).await;
    held(store.queue(&key, live).await);
    assert_eq!(store.see(&key).await.queue.len(), 4, "it is not their time");

    eventually("the live attempt is granted the key", async || {
        let request = waiting_behind(&key, live, SHORT);
        matches!(store.ask_for(request).await, Ok(Acquired::Granted(_)))
    })
    .await;
}

pub(crate) async fn each_head_has_its_own_head_start(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c, d) = (owner(), owner(), owner(), owner());
    store.take(&key, a).await;
    for waiter in [b, c, d] {
        held(store.queue(&key, waiter).await);
    }
    store.free(&key, a).await;
    eventually("b is passed by", async || {
        held(store.ask_for(waiting_behind(&key, d, SHORT)).await.unwrap());
        !store.see(&key).await.queue.contains(&b)
    })
    .await;
    granted(store.queue(&key, c).await);
}

pub(crate) async fn held_tells_when_the_head_start_is_over(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    let minute = Duration::from_secs(60);
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    store.free(&key, a).await;
    let behind = async || {
        held(
            store
                .ask_for(waiting_behind(&key, c, minute))
                .await
                .unwrap(),
        )
    };
    let remaining = behind().await.remaining;
    assert!(remaining > minute / 2 && remaining <= minute);
    // The head start is counted once, not from each question.
    eventually("the time passes", async || {
        behind().await.remaining < remaining
    })
    .await;
}

pub(crate) async fn a_head_start_begins_anew_when_another_had_the_key(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, hasty, c) = (owner(), owner(), owner(), owner());
    let minute = Duration::from_secs(60);
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    store.free(&key, a).await;
    tokio::time::sleep(SHORT * 2).await;
    let skipping = Acquire {
        queueing: Queueing::Skip,
        ..attempt(&key, hasty)
    };
    granted(store.ask_for(skipping).await.unwrap());
    let freed = Instant::now();
    store.free(&key, hasty).await;
    let answer = held(
        store
            .ask_for(waiting_behind(&key, c, minute))
            .await
            .unwrap(),
    );
    // The store's clock counts in milliseconds.
    let rounding = Duration::from_millis(2);
    assert!(answer.remaining + freed.elapsed() + rounding >= minute);
}

fn short_wait(key: &tower_distributed_lock::LockKey, owner: Owner) -> Acquire {
    Acquire {
        queueing: Queueing::Wait {
            deadline: SHORT,
            head_start: LONG,
        },
        ..attempt(key, owner)
    }
}
