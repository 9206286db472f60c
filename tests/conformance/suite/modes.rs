//! Readers share a key, a writer has the key alone, and all of them wait in one queue.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use futures_util::future::join_all;
use tower_distributed_lock::store::{
    Acquire, Acquired, Hint,
    Mode::{Exclusive, Shared},
    Owner, Queueing, Released, Renew, Renewed,
};

use crate::subject::*;

fn owners<const N: usize>() -> [Owner; N] {
    std::array::from_fn(|_| owner())
}

pub(crate) async fn readers_share_a_key_and_keep_a_writer_out(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, writer] = owners();
    for reader in [a, b] {
        let grant = granted(store.ask_as(Shared, &key, reader).await);
        assert_eq!((grant.count, grant.others_wait), (1, false));
    }
    assert_eq!(store.holders(&key).await, sorted([a, b]));
    let answer = held(store.ask(&key, writer).await);
    assert_eq!(answer.label.as_deref(), subject.label());
    assert!(answer.remaining > LONG / 2 && answer.remaining <= LONG);

    assert_eq!(store.free_as(Shared, &key, a).await, Released::Freed);
    held(store.ask(&key, writer).await);
    assert_eq!(store.free_as(Shared, &key, b).await, Released::Freed);
    store.take(&key, writer).await;
    store.free(&key, writer).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_writer_keeps_readers_out(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [writer, a, b] = owners();
    store.take(&key, writer).await;
    held(store.ask_as(Shared, &key, a).await);
    held(store.queue_as(Shared, &key, b).await);
    assert_eq!(store.see(&key).await.queue, [b]);
    store.free(&key, writer).await;
    granted(store.queue_as(Shared, &key, b).await);
    store.free_as(Shared, &key, b).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn mixed_attempts_are_served_in_order_of_arrival(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [first, r1, r2, w1, r3, w2, r4] = owners();
    let all = [
        (r1, Shared),
        (r2, Shared),
        (w1, Exclusive),
        (r3, Shared),
        (w2, Exclusive),
        (r4, Shared),
    ];
    store.take(&key, first).await;
    for (waiter, mode) in all {
        held(store.queue_as(mode, &key, waiter).await);
    }
    assert_eq!(store.see(&key).await.queue, [r1, r2, w1, r3, w2, r4]);
    store.free(&key, first).await;

    let mut waiting = all.to_vec();
    for turn in [&[r1, r2][..], &[w1], &[r3], &[w2], &[r4]] {
        // The last ones ask first, so that only the queue can bring the attempts into order.
        let mut inside = Vec::new();
        for (waiter, mode) in waiting.iter().rev() {
            if let Acquired::Granted(_) = store.queue_as(*mode, &key, *waiter).await {
                inside.push((*waiter, *mode));
            }
        }
        let owners = inside.iter().map(|(owner, _)| *owner);
        assert_eq!(sorted(owners), sorted(turn.iter().copied()));
        assert_eq!(store.holders(&key).await, sorted(turn.iter().copied()));
        for (owner, mode) in inside {
            assert_eq!(store.free_as(mode, &key, owner).await, Released::Freed);
        }
        waiting.retain(|(owner, _)| !turn.contains(owner));
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_waiting_writer_is_not_overtaken_by_later_readers(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [reader, writer, late] = owners();
    granted(store.ask_as(Shared, &key, reader).await);
    held(store.queue(&key, writer).await);
    held(store.ask_as(Shared, &key, owner()).await);
    held(store.queue_as(Shared, &key, late).await);
    store.free_as(Shared, &key, reader).await;
    held(store.queue_as(Shared, &key, late).await);
    granted(store.queue(&key, writer).await);
    held(store.queue_as(Shared, &key, late).await);
    store.free(&key, writer).await;
    granted(store.queue_as(Shared, &key, late).await);
}

pub(crate) async fn a_reader_that_skips_the_queue_joins_the_readers(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [reader, writer, hasty] = owners();
    granted(store.ask_as(Shared, &key, reader).await);
    held(store.queue(&key, writer).await);
    let skipping = Acquire {
        queueing: Queueing::Skip,
        mode: Shared,
        ..attempt(&key, hasty)
    };
    assert!(granted(store.ask_for(skipping.clone()).await.unwrap()).others_wait);
    for reader in [reader, hasty] {
        store.free_as(Shared, &key, reader).await;
    }
    granted(store.queue(&key, writer).await);
    held(store.ask_for(skipping).await.unwrap());
}

pub(crate) async fn the_same_reader_is_granted_again(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, writer] = owners();
    let first = granted(store.ask_as(Shared, &key, a).await);
    held(store.queue(&key, writer).await);
    let again = granted(store.ask_as(Shared, &key, a).await);
    assert!(again.tokens.first() > first.tokens.last());
    assert!(again.others_wait);
    assert_eq!(store.holders(&key).await, [a]);
    store.free_as(Shared, &key, a).await;
    granted(store.queue(&key, writer).await);
}

pub(crate) async fn tokens_rise_from_readers_to_writers_and_back(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let mut highest = 0;
    for round in 0..3 {
        let [a, b, writer] = owners();
        let mut rises = |answer: Acquired| {
            let tokens = granted(answer).tokens;
            assert_eq!(tokens.left(), 3);
            assert!(tokens.first().unwrap() > highest, "round {round}");
            highest = tokens.last().unwrap();
        };
        let block = |mode, owner| Acquire {
            block: 3,
            mode,
            ..attempt(&key, owner)
        };
        rises(store.ask_for(block(Shared, a)).await.unwrap());
        rises(store.ask_for(block(Shared, b)).await.unwrap());
        let Renewed::Renewed { tokens, .. } = store.renew_as(Shared, &key, a, 5).await else {
            panic!("the lease is a's");
        };
        let tokens = tokens.unwrap();
        assert!(tokens.left() == 5 && tokens.first().unwrap() > highest);
        highest = tokens.last().unwrap();
        for reader in [a, b] {
            store.free_as(Shared, &key, reader).await;
        }
        let mut rises = |answer: Acquired| {
            let tokens = granted(answer).tokens;
            assert!(tokens.first().unwrap() > highest, "round {round}");
            highest = tokens.last().unwrap();
        };
        rises(store.ask_for(block(Exclusive, writer)).await.unwrap());
        store.free(&key, writer).await;
    }
}

pub(crate) async fn each_reader_is_renewed_and_expires_alone(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, writer] = owners();
    granted(store.ask_as(Shared, &key, a).await);
    let brief = Acquire {
        lease: SHORT,
        mode: Shared,
        ..attempt(&key, owner())
    };
    let (b, _) = store.take_briefly(brief).await;
    eventually("b's lease has expired", async || {
        store.holders(&key).await == [a]
    })
    .await;
    // One node of a quorum may have it for a little longer.
    tokio::time::sleep(SHORT).await;
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    let fence = store.see(&key).await.fence;
    let answer = store.renew_as(Shared, &key, b, 4).await;
    assert!(matches!(answer, Renewed::NotOurs), "{answer:?}");
    assert_eq!(store.see(&key).await.fence, fence, "no token for b");
    assert_eq!(store.free_as(Shared, &key, b).await, Released::NotOurs);
    held(store.ask(&key, writer).await);
    store.free_as(Shared, &key, a).await;
    store.take(&key, writer).await;
}

pub(crate) async fn the_release_of_an_expired_reader_is_not_ours(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    for is_wanted in [false, true] {
        let [a, writer] = owners();
        granted(store.ask_as(Shared, &key, a).await);
        let brief = Acquire {
            lease: SHORT,
            mode: Shared,
            ..attempt(&key, owner())
        };
        let (b, _) = store.take_briefly(brief).await;
        if is_wanted {
            held(store.queue(&key, writer).await);
        }
        // The other holder keeps the store from forgetting the key as a whole.
        tokio::time::sleep(SHORT * 2).await;
        assert_eq!(store.free_as(Shared, &key, b).await, Released::NotOurs);
        assert_eq!(store.free_as(Shared, &key, a).await, Released::Freed);
        store.free(&key, writer).await;
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_renewal_prolongs_one_of_several_readers(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let brief = |owner| Acquire {
        lease: SHORT * 50,
        mode: Shared,
        ..attempt(&key, owner)
    };
    // A slow machine may see the leases expire before the renewal: then once more.
    let (mut a, mut b) = (owner(), owner());
    eventually("a is renewed", async || {
        (a, b) = (owner(), owner());
        granted(store.ask_for(brief(a)).await.unwrap());
        granted(store.ask_for(brief(b)).await.unwrap());
        is_renewed(&store.renew_as(Shared, &key, a, 0).await)
    })
    .await;
    eventually("only a is left", async || store.holders(&key).await == [a]).await;
    let seen = store.see(&key).await;
    assert!(seen.holder().unwrap().remaining > LONG / 2);
    // A shorter renewal shortens nothing.
    let shorter = tower_distributed_lock::store::Renew {
        lease: SHORT,
        mode: Shared,
        ..renewal(&key, a, 0)
    };
    assert!(is_renewed(&store.renew_one(shorter).await));
    assert!(store.see(&key).await.holder().unwrap().remaining > LONG / 2);
}

pub(crate) async fn expired_readers_are_forgotten_without_being_asked_about(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    for _ in 0..3 {
        let brief = Acquire {
            lease: SHORT,
            mode: Shared,
            ..attempt(&key, owner())
        };
        store.take_briefly(brief).await;
    }
    eventually("the store is empty", async || subject.is_empty().await).await;
}

pub(crate) async fn a_writer_takes_over_when_the_last_reader_has_expired(subject: impl Subject) {
    let (store, key, writer) = (subject.store(), key("k"), owner());
    let brief = Acquire {
        lease: SHORT,
        mode: Shared,
        ..attempt(&key, owner())
    };
    store.take_briefly(brief).await;
    eventually("the writer has the key", async || {
        matches!(store.queue(&key, writer).await, Acquired::Granted(_))
    })
    .await;
    assert_eq!(store.holders(&key).await, [writer]);
    held(store.ask_as(Shared, &key, owner()).await);
}

pub(crate) async fn a_release_in_another_mode_does_nothing_for_others(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b] = owners();
    granted(store.ask_as(Shared, &key, a).await);
    for mode in [Exclusive, Shared] {
        assert_eq!(store.free_as(mode, &key, b).await, Released::NotOurs);
        for refill in [0, 1] {
            let answer = store.renew_as(mode, &key, b, refill).await;
            assert!(matches!(answer, Renewed::NotOurs), "{answer:?}");
        }
    }
    assert_eq!(store.record(&key, b, b"late").await, Released::NotOurs);
    assert_eq!(store.holders(&key).await, [a]);
}

pub(crate) async fn a_reader_that_gives_up_leaves_the_queue(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [writer, a, b] = owners();
    store.take(&key, writer).await;
    held(store.queue_as(Shared, &key, a).await);
    held(store.queue_as(Shared, &key, b).await);
    assert_eq!(store.free_as(Shared, &key, a).await, Released::NotOurs);
    assert_eq!(store.see(&key).await.queue, [b]);
    held(store.ask_as(Shared, &key, b).await);
    assert_eq!(store.see(&key).await.queue, []);
    store.free(&key, writer).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn dead_readers_at_the_head_are_passed_by(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [holder, dead, dead_too, live] = owners();
    store.take(&key, holder).await;
    held(store.queue_as(Shared, &key, dead).await);
    held(store.queue_as(Shared, &key, dead_too).await);
    held(store.queue(&key, live).await);
    store.free(&key, holder).await;
    held(store.queue(&key, live).await);
    assert_eq!(store.see(&key).await.queue, [dead, dead_too, live]);
    eventually("the live writer has the key", async || {
        let request = waiting_behind(&key, live, SHORT);
        matches!(store.ask_for(request).await, Ok(Acquired::Granted(_)))
    })
    .await;
}

/// More of them than a store looks at in one call.
pub(crate) async fn many_dead_readers_at_the_head_are_passed_by(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [writer, live, live_too] = owners();
    store.take(&key, writer).await;
    for _ in 0..40 {
        held(store.queue_as(Shared, &key, owner()).await);
    }
    held(store.queue_as(Shared, &key, live).await);
    held(store.queue(&key, live_too).await);
    store.free(&key, writer).await;
    eventually("the live reader has the key", async || {
        let request = in_mode(Shared, waiting_behind(&key, live, SHORT));
        matches!(store.ask_for(request).await, Ok(Acquired::Granted(_)))
    })
    .await;
    store.free_as(Shared, &key, live).await;
    eventually("the live writer has the key", async || {
        let request = waiting_behind(&key, live_too, SHORT);
        matches!(store.ask_for(request).await, Ok(Acquired::Granted(_)))
    })
    .await;
}

pub(crate) async fn a_dead_writer_at_the_head_is_passed_by_readers(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [holder, dead, live, live_too] = owners();
    let [late] = owners();
    store.take(&key, holder).await;
    held(store.queue(&key, dead).await);
    held(store.queue_as(Shared, &key, live).await);
    held(store.queue_as(Shared, &key, live_too).await);
    store.free(&key, holder).await;
    eventually("the live readers have the key", async || {
        for reader in [live, live_too] {
            let request = in_mode(Shared, waiting_behind(&key, reader, SHORT));
            store.ask_for(request).await.unwrap();
        }
        store.holders(&key).await == sorted([live, live_too])
    })
    .await;
    // A node of a quorum that got the readers' leases later, by healing, still has the dead writer
    // in its queue. Nobody has to wait for that.
    if subject.has_one_node() {
        assert_eq!(store.see(&key).await.queue, []);
    }
    for reader in [live, live_too] {
        store.free_as(Shared, &key, reader).await;
    }
    eventually("a late writer has the key", async || {
        let request = waiting_behind(&key, late, SHORT);
        matches!(store.ask_for(request).await, Ok(Acquired::Granted(_)))
    })
    .await;
}

pub(crate) async fn a_writer_that_waits_for_readers_is_not_passed_by(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [reader, writer, late] = owners();
    granted(store.ask_as(Shared, &key, reader).await);
    held(store.queue(&key, writer).await);
    // The writer cannot have the key, so no head start runs.
    for _ in 0..3 {
        let request = in_mode(Shared, waiting_behind(&key, late, SHORT / 40));
        held(store.ask_for(request).await.unwrap());
        tokio::time::sleep(SHORT / 4).await;
    }
    assert_eq!(store.see(&key).await.queue, [writer, late]);
}

pub(crate) async fn a_downgraded_lease_is_shared_without_a_gap(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, r1, writer, r2] = owners();
    let before = store.take(&key, a).await.tokens.last();
    held(store.queue_as(Shared, &key, r1).await);
    held(store.queue(&key, writer).await);
    held(store.queue_as(Shared, &key, r2).await);
    let Renewed::Renewed {
        tokens,
        others_wait,
    } = store.renew_as(Shared, &key, a, 2).await
    else {
        panic!("the lease is a's");
    };
    assert!(others_wait && tokens.unwrap().first() > before);
    let seen = store.see(&key).await;
    assert_eq!(seen.holders.len(), 1);
    assert_eq!((seen.holders[0].owner, seen.holders[0].mode), (a, Shared));
    assert!(seen.holders[0].remaining > LONG / 2);

    held(store.queue(&key, writer).await);
    held(store.queue_as(Shared, &key, r2).await);
    granted(store.queue_as(Shared, &key, r1).await);
    assert_eq!(store.holders(&key).await, sorted([a, r1]));
    // The downgrade can be asked for again, and the lease ends as a shared one.
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    for reader in [a, r1] {
        assert_eq!(store.free_as(Shared, &key, reader).await, Released::Freed);
    }
    granted(store.queue(&key, writer).await);
    store.free(&key, writer).await;
    granted(store.queue_as(Shared, &key, r2).await);
    store.free_as(Shared, &key, r2).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_downgrade_never_shortens(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    let shorter = tower_distributed_lock::store::Renew {
        lease: SHORT,
        mode: Shared,
        ..renewal(&key, a, 0)
    };
    assert!(is_renewed(&store.renew_one(shorter).await));
    let seen = store.see(&key).await;
    assert_eq!(seen.holders[0].mode, Shared);
    assert!(seen.holders[0].remaining > LONG / 2);
}

pub(crate) async fn a_lease_with_a_fingerprint_is_not_downgraded(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, reader] = owners();
    let request = Acquire {
        fingerprint: Some(Bytes::from_static(b"note")),
        ..attempt(&key, a)
    };
    granted(store.ask_for(request).await.unwrap());
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    assert_eq!(store.see(&key).await.holders[0].mode, Exclusive);
    held(store.ask_as(Shared, &key, reader).await);
    store.record(&key, a, b"done").await;
    let answer = store.ask_as(Shared, &key, reader).await;
    assert!(matches!(answer, Acquired::Recorded(_)));
}

pub(crate) async fn an_exclusive_lease_is_released_as_a_shared_one(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    // The holder asked for a downgrade that never arrived.
    for is_wanted in [false, true] {
        let [a, writer] = owners();
        store.take(&key, a).await;
        if is_wanted {
            held(store.queue(&key, writer).await);
        }
        assert_eq!(store.free_as(Shared, &key, a).await, Released::Freed);
        store.take(&key, writer).await;
        store.free(&key, writer).await;
    }
    assert!(subject.is_empty().await);
}

/// A renewal or a release that was made before the downgrade takes effect after it.
pub(crate) async fn a_downgraded_lease_is_known_in_its_earlier_mode(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    for refill in [0, 1] {
        let [a, reader, writer] = owners();
        let brief = Acquire {
            lease: LONG / 10,
            ..attempt(&key, a)
        };
        granted(store.ask_for(brief).await.unwrap());
        let downgrade = Renew {
            lease: LONG / 10,
            mode: Shared,
            ..renewal(&key, a, 0)
        };
        assert!(is_renewed(&store.renew_one(downgrade).await));
        granted(store.ask_as(Shared, &key, reader).await);
        held(store.queue(&key, writer).await);

        let answer = store.renew_as(Exclusive, &key, a, refill).await;
        assert!(tells_of_others(&answer));
        let seen = store.see(&key).await;
        assert!(seen.holders.iter().all(|holder| holder.mode == Shared));
        let holder = seen.holders.iter().find(|holder| holder.owner == a);
        assert!(holder.unwrap().remaining > LONG / 2, "{seen:?}");

        assert_eq!(store.free_as(Shared, &key, reader).await, Released::Freed);
        assert_eq!(store.free_as(Exclusive, &key, a).await, Released::Freed);
        assert_eq!(store.free_as(Exclusive, &key, a).await, Released::NotOurs);
        granted(store.queue(&key, writer).await);
        store.free(&key, writer).await;
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_release_in_the_earlier_mode_is_hinted_to_the_next(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, writer] = owners();
    let mut hints = store.watch_for_sure(writer.instance).await;
    store.take(&key, a).await;
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    held(store.queue(&key, writer).await);
    assert_eq!(store.free_as(Exclusive, &key, a).await, Released::Freed);
    hinted(&mut hints, Hint::Free(key.clone())).await;
    granted(store.queue(&key, writer).await);
}

pub(crate) async fn a_shared_lease_does_not_end_with_a_record(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, reader] = owners();
    store.take(&key, a).await;
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    granted(store.ask_as(Shared, &key, reader).await);
    assert_eq!(store.record(&key, a, b"done").await, Released::NotOurs);
    let seen = store.see(&key).await;
    assert_eq!(seen.record, None);
    assert_eq!(store.holders(&key).await, sorted([a, reader]));
}

pub(crate) async fn a_downgrade_of_nothing_is_not_ours(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b] = owners();
    let answer = store.renew_as(Shared, &key, a, 1).await;
    assert!(matches!(answer, Renewed::NotOurs));
    store.take(&key, b).await;
    let answer = store.renew_as(Shared, &key, a, 1).await;
    assert!(matches!(answer, Renewed::NotOurs));
    assert_eq!(store.see(&key).await.holders[0].mode, Exclusive);
}

pub(crate) async fn inspecting_tells_all_holders_and_their_modes(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [late, early, writer] = owners();
    granted(store.ask_as(Shared, &key, late).await);
    let request = Acquire {
        lease: LONG / 2,
        mode: Shared,
        ..attempt(&key, early)
    };
    granted(store.ask_for(request).await.unwrap());
    held(store.queue(&key, writer).await);
    for _ in 0..2 {
        let seen = store.see(&key).await;
        let found: Vec<_> = seen.holders.iter().map(|it| (it.owner, it.mode)).collect();
        assert_eq!(found, [(early, Shared), (late, Shared)]);
        assert_eq!(seen.queue, [writer]);
        assert_eq!(seen.record, None);
        for (holder, lease) in seen.holders.iter().zip([LONG / 2, LONG]) {
            assert!(holder.remaining > lease * 3 / 4 && holder.remaining <= lease);
            assert_eq!(holder.label.as_deref(), subject.label());
            assert_eq!(holder.fingerprint, None);
        }
    }
}

pub(crate) async fn a_forced_release_takes_the_key_from_all_readers(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let readers: [Owner; 3] = owners();
    for reader in readers {
        granted(store.ask_as(Shared, &key, reader).await);
    }
    assert!(store.force_release(key.clone()).await.unwrap());
    for reader in readers {
        let renewed = store.renew_as(Shared, &key, reader, 0).await;
        assert!(matches!(renewed, Renewed::NotOurs));
        assert_eq!(store.free_as(Shared, &key, reader).await, Released::NotOurs);
    }
    assert!(!store.force_release(key.clone()).await.unwrap());
    store.take(&key, owner()).await;
}

pub(crate) async fn readers_and_writers_are_never_inside_together(subject: impl Subject) {
    const WRITING: usize = 1000;
    let (store, key) = (subject.store(), key("k"));
    let inside = Arc::new(AtomicUsize::new(0));
    let visitors = (0..16).map(|n| {
        let (mode, weight) = if n % 4 == 0 {
            (Exclusive, WRITING)
        } else {
            (Shared, 1)
        };
        let (inside, key) = (&inside, &key);
        async move {
            for _ in 0..10 {
                let a = owner();
                eventually("it is my turn", async || {
                    matches!(store.queue_as(mode, key, a).await, Acquired::Granted(_))
                })
                .await;
                let now = inside.fetch_add(weight, SeqCst) + weight;
                assert!(now <= WRITING, "a writer is not alone: {now}");
                tokio::task::yield_now().await;
                inside.fetch_sub(weight, SeqCst);
                assert_eq!(store.free_as(mode, key, a).await, Released::Freed);
            }
        }
    });
    join_all(visitors).await;
    assert!(subject.is_empty().await);
}
