//! A key with permits: as many hold the key at the same time as there are permits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tower_distributed_lock::{
    ErrorKind, LockKey,
    store::{
        Acquire, Acquired, End, Hint, Instance,
        Mode::{self, Exclusive, Permit, Shared},
        Owner, Queueing, Released, Renewed,
    },
};

use crate::subject::*;

const TWO: Mode = Permit { of: 2 };
const THREE: Mode = Permit { of: 3 };

fn owners<const N: usize>() -> [Owner; N] {
    std::array::from_fn(|_| owner())
}

/// An attempt of several owners of one instance.
fn several(mode: Mode, key: &LockKey, owners: &[Owner]) -> Acquire {
    Acquire {
        mode,
        more: owners[1..].to_vec(),
        ..waiting(key, owners[0])
    }
}

fn of_one_instance<const N: usize>() -> [Owner; N] {
    let instance = owner().instance;
    std::array::from_fn(|n| attempt_of(instance, n as u64 + 1))
}

pub(crate) async fn as_many_are_granted_as_there_are_permits(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, c, d] = owners();
    for owner in [a, b, c] {
        let grant = granted(store.ask_as(THREE, &key, owner).await);
        assert_eq!((grant.count, grant.others_wait), (1, false));
    }
    let answer = held(store.ask_as(THREE, &key, d).await);
    assert!(answer.remaining > LONG / 2 && answer.remaining <= LONG);
    assert_eq!(answer.label.as_deref(), subject.label());
    assert_eq!(store.free_as(THREE, &key, b).await, Released::Freed);
    granted(store.ask_as(THREE, &key, d).await);
    assert_eq!(store.holders(&key).await, sorted([a, c, d]));
    let seen = store.see(&key).await;
    assert!(seen.holders.iter().all(|holder| holder.mode == THREE));
    for owner in [a, c, d] {
        assert_eq!(store.free_as(THREE, &key, owner).await, Released::Freed);
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn each_number_counts_for_the_attempt_that_names_it(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, c, d] = owners();
    granted(store.ask_as(THREE, &key, a).await);
    granted(store.ask_as(THREE, &key, b).await);
    held(store.ask_as(TWO, &key, c).await);
    granted(store.ask_as(THREE, &key, d).await);
    for owner in [a, b] {
        store.free_as(THREE, &key, owner).await;
    }
    granted(store.ask_as(TWO, &key, c).await);
}

pub(crate) async fn permits_are_granted_in_order_of_arrival(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, c, d, e] = owners();
    for owner in [a, b] {
        granted(store.ask_as(TWO, &key, owner).await);
    }
    for owner in [c, d, e] {
        held(store.queue_as(TWO, &key, owner).await);
    }
    assert_eq!(store.see(&key).await.queue, [c, d, e]);
    store.free_as(TWO, &key, a).await;
    for later in [d, e] {
        held(store.queue_as(TWO, &key, later).await);
    }
    held(store.ask_as(TWO, &key, owner()).await);
    store.free_as(TWO, &key, b).await;
    // Two permits are free, for the first two: the second need not wait for the first.
    held(store.queue_as(TWO, &key, e).await);
    granted(store.queue_as(TWO, &key, d).await);
    held(store.queue_as(TWO, &key, e).await);
    assert!(granted(store.queue_as(TWO, &key, c).await).others_wait);
    held(store.queue_as(TWO, &key, e).await);
    store.free_as(TWO, &key, c).await;
    assert!(!granted(store.queue_as(TWO, &key, e).await).others_wait);
    for owner in [d, e] {
        store.free_as(TWO, &key, owner).await;
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn one_call_takes_several_permits(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let some: [Owner; 3] = of_one_instance();
    granted(store.ask_as(THREE, &key, a).await);
    let grant = granted(store.ask_for(several(THREE, &key, &some)).await.unwrap());
    assert_eq!(grant.count, 2, "one of three is held");
    assert_eq!(store.holders(&key).await, sorted([a, some[0], some[1]]));
    assert_eq!(store.see(&key).await.queue, []);

    // A repetition grants the same owners, and a third as soon as there is room.
    let again = granted(store.ask_for(several(THREE, &key, &some)).await.unwrap());
    assert_eq!(again.count, 2);
    assert!(again.tokens.first() > grant.tokens.last());
    store.free_as(THREE, &key, a).await;
    let more = granted(store.ask_for(several(THREE, &key, &some)).await.unwrap());
    assert_eq!(more.count, 3);
    assert_eq!(store.holders(&key).await, sorted(some));
    for owner in some {
        assert_eq!(store.free_as(THREE, &key, owner).await, Released::Freed);
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn one_call_takes_no_more_permits_than_there_are(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let some: [Owner; 3] = of_one_instance();
    let request = Acquire {
        block: 3,
        ..several(TWO, &key, &some)
    };
    let grant = granted(store.ask_for(request).await.unwrap());
    assert_eq!(grant.count, 2);
    assert!(grant.tokens.left() >= 2, "each permit has a token");
    assert_eq!(store.holders(&key).await, sorted([some[0], some[1]]));
    for owner in &some[..2] {
        assert_eq!(store.free_as(TWO, &key, *owner).await, Released::Freed);
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn the_release_of_an_expired_permit_is_not_ours(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    granted(store.ask_as(TWO, &key, a).await);
    let brief = Acquire {
        lease: SHORT,
        mode: TWO,
        ..attempt(&key, owner())
    };
    let (b, _) = store.take_briefly(brief).await;
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(store.free_as(TWO, &key, b).await, Released::NotOurs);
    assert_eq!(store.free_as(TWO, &key, a).await, Released::Freed);
    assert!(subject.is_empty().await);
}

pub(crate) async fn an_attempt_of_several_owners_has_one_place_in_the_queue(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b] = owners();
    let some: [Owner; 3] = of_one_instance();
    granted(store.ask_as(TWO, &key, a).await);
    granted(store.ask_as(TWO, &key, b).await);
    held(store.ask_for(several(TWO, &key, &some)).await.unwrap());
    assert_eq!(store.see(&key).await.queue, [some[0]]);
    store.free_as(TWO, &key, a).await;
    let grant = granted(store.ask_for(several(TWO, &key, &some)).await.unwrap());
    assert_eq!(grant.count, 1);
    assert_eq!(store.see(&key).await.queue, []);
}

pub(crate) async fn a_crashed_holders_permit_comes_back(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, waiter] = owners();
    granted(store.ask_as(TWO, &key, a).await);
    let brief = Acquire {
        lease: SHORT,
        mode: TWO,
        ..attempt(&key, owner())
    };
    let (crashed, _) = store.take_briefly(brief).await;
    eventually("the waiter has the permit", async || {
        matches!(
            store.queue_as(TWO, &key, waiter).await,
            Acquired::Granted(_)
        )
    })
    .await;
    assert_eq!(store.holders(&key).await, sorted([a, waiter]));
    let renewed = store.renew_as(TWO, &key, crashed, 1).await;
    assert!(matches!(renewed, Renewed::NotOurs));
    assert_eq!(store.free_as(TWO, &key, crashed).await, Released::NotOurs);
    held(store.ask_as(TWO, &key, owner()).await);
}

pub(crate) async fn each_permit_is_renewed_alone(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let brief = |owner| Acquire {
        lease: SHORT * 50,
        mode: TWO,
        ..attempt(&key, owner)
    };
    // A slow machine may see the leases expire before the renewal: then once more.
    let (mut a, mut b) = (owner(), owner());
    eventually("a is renewed", async || {
        for owner in [a, b] {
            store.free_as(TWO, &key, owner).await;
        }
        (a, b) = (owner(), owner());
        granted(store.ask_for(brief(a)).await.unwrap());
        granted(store.ask_for(brief(b)).await.unwrap());
        let answer = store.renew_as(TWO, &key, a, 3).await;
        matches!(answer, Renewed::Renewed { tokens: Some(tokens), .. } if tokens.left() == 3)
    })
    .await;
    eventually("only a is left", async || store.holders(&key).await == [a]).await;
    assert!(store.see(&key).await.holder().unwrap().remaining > LONG / 2);
}

pub(crate) async fn locks_and_permits_do_not_mix(subject: impl Subject) {
    let store = subject.store();
    let kinds = [Exclusive, Shared, TWO];
    for (n, holder_mode) in kinds.into_iter().enumerate() {
        for mode in kinds {
            if mode.is_permit() == holder_mode.is_permit() {
                continue;
            }
            let (key, [holder, other]) = (key(&format!("k/{n}")), owners());
            granted(store.ask_as(holder_mode, &key, holder).await);
            for request in [attempt(&key, other), waiting(&key, other)] {
                let error = store.ask_for(in_mode(mode, request)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
                let names_the_fix = error.to_string().contains("use another key");
                assert!(names_the_fix, "{error}");
            }
            let seen = store.see(&key).await;
            assert_eq!(seen.queue, []);
            assert_eq!(store.holders(&key).await, [holder]);
            assert!(is_renewed(
                &store.renew_as(holder_mode, &key, holder, 1).await
            ));
            let freed = store.free_as(holder_mode, &key, holder).await;
            assert_eq!(freed, Released::Freed);
            granted(store.ask_as(mode, &key, other).await);
            store.free_as(mode, &key, other).await;
        }
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn locks_and_permits_do_not_wait_in_one_queue(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, waiter, other] = owners();
    store.take(&key, a).await;
    held(store.queue(&key, waiter).await);
    store.free(&key, a).await;
    // The key is free, and a writer is next.
    let error = store.ask_for(in_mode(TWO, waiting(&key, other))).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(store.see(&key).await.queue, [waiter]);
    granted(store.queue(&key, waiter).await);
    store.free(&key, waiter).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn free_permits_are_hinted_to_as_many_attempts(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let holders: [Owner; 2] = of_one_instance();
    let [c, d, e] = owners();
    let mut hints = Vec::new();
    for owner in [c, d, e] {
        hints.push(store.watch_for_sure(owner.instance).await);
    }
    granted(store.ask_for(several(TWO, &key, &holders)).await.unwrap());
    for owner in [c, d, e] {
        held(store.queue_as(TWO, &key, owner).await);
    }
    let (free, next) = (Hint::Free(key.clone()), Hint::Next(key.clone()));
    store.free_as(TWO, &key, holders[0]).await;
    hinted(&mut hints[0], free.clone()).await;
    hinted(&mut hints[1], next.clone()).await;
    store.free_as(TWO, &key, holders[1]).await;
    hinted(&mut hints[1], free.clone()).await;
    hinted(&mut hints[2], next).await;
    // The first attempt gives up.
    store.free_as(TWO, &key, c).await;
    hinted(&mut hints[2], free).await;
}

pub(crate) async fn every_attempt_that_is_next_is_hinted_whatever_number_those_ahead_name(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let holders: [Owner; 3] = owners();
    let [first, second] = owners();
    let mut hints = store.watch_for_sure(second.instance).await;
    for holder in holders {
        granted(store.ask_as(THREE, &key, holder).await);
    }
    held(store.queue_as(Permit { of: 1 }, &key, first).await);
    held(store.queue_as(THREE, &key, second).await);
    for holder in &holders[..2] {
        store.free_as(THREE, &key, *holder).await;
    }
    // One of three is held, and one attempt is ahead, which waits for the last holder.
    hinted(&mut hints, Hint::Free(key.clone())).await;
    held(store.queue_as(Permit { of: 1 }, &key, first).await);
    granted(store.queue_as(THREE, &key, second).await);
}

pub(crate) async fn a_waiter_is_hinted_to_all_holders_but_its_own_instance(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b] = owners();
    let mut hints = Vec::new();
    for owner in [a, b] {
        hints.push(store.watch_for_sure(owner.instance).await);
        granted(store.ask_as(TWO, &key, owner).await);
    }
    let wanted = Hint::Wanted(key.clone());
    let own = attempt_of(b.instance, 2);
    held(store.queue_as(TWO, &key, own).await);
    hinted(&mut hints[0], wanted.clone()).await;
    assert!(!tells_of_others(&store.renew_as(TWO, &key, b, 0).await));
    assert!(tells_of_others(&store.renew_as(TWO, &key, a, 0).await));
    held(store.queue_as(TWO, &key, owner()).await);
    hinted(&mut hints[1], wanted).await;
    assert!(tells_of_others(&store.renew_as(TWO, &key, b, 0).await));
}

pub(crate) async fn dead_attempts_are_passed_by_for_a_permit(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, dead, dead_too, live] = owners();
    for owner in [a, b] {
        granted(store.ask_as(TWO, &key, owner).await);
    }
    for owner in [dead, dead_too, live] {
        held(store.queue_as(TWO, &key, owner).await);
    }
    store.free_as(TWO, &key, a).await;
    let minute = Duration::from_secs(60);
    let request = in_mode(TWO, waiting_behind(&key, live, minute));
    let answer = held(store.ask_for(request).await.unwrap());
    assert!(answer.remaining > minute / 2 && answer.remaining <= minute);
    eventually("the live attempt has the permit", async || {
        let request = in_mode(TWO, waiting_behind(&key, live, SHORT));
        matches!(store.ask_for(request).await, Ok(Acquired::Granted(_)))
    })
    .await;
    assert_eq!(store.holders(&key).await, sorted([b, live]));
}

pub(crate) async fn an_attempt_that_skips_the_queue_takes_only_a_free_permit(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, waiter, hasty, late] = owners();
    let minute = Duration::from_secs(60);
    let skipping = Acquire {
        queueing: Queueing::Skip,
        mode: TWO,
        ..attempt(&key, hasty)
    };
    for owner in [a, b] {
        granted(store.ask_as(TWO, &key, owner).await);
    }
    held(store.queue_as(TWO, &key, waiter).await);
    held(store.ask_for(skipping.clone()).await.unwrap());
    store.free_as(TWO, &key, a).await;
    granted(store.ask_for(skipping).await.unwrap());
    held(store.queue_as(TWO, &key, waiter).await);
    // The offer to the waiter is withdrawn: no head start runs.
    let request = in_mode(TWO, waiting_behind(&key, late, minute));
    assert!(held(store.ask_for(request).await.unwrap()).remaining > minute);
    store.free_as(TWO, &key, b).await;
    granted(store.queue_as(TWO, &key, waiter).await);
}

pub(crate) async fn a_forced_release_takes_all_permits(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, waiter] = owners();
    let mut hints = store.watch_for_sure(waiter.instance).await;
    for owner in [a, b] {
        granted(store.ask_as(TWO, &key, owner).await);
    }
    held(store.queue_as(TWO, &key, waiter).await);
    assert!(store.force_release(key.clone()).await.unwrap());
    hinted(&mut hints, Hint::Free(key.clone())).await;
    assert_eq!(store.free_as(TWO, &key, a).await, Released::NotOurs);
    granted(store.queue_as(TWO, &key, waiter).await);
    store.free_as(TWO, &key, waiter).await;
    assert!(subject.is_empty().await);
}

pub(crate) async fn never_more_are_inside_than_there_are_permits(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let inside = Arc::new(AtomicUsize::new(0));
    let visitors = (0..12).map(|n| {
        let (inside, key) = (&inside, &key);
        async move {
            let some: Vec<Owner> = of_one_instance::<2>()[..1 + n % 2].to_vec();
            for _ in 0..10 {
                let mut count = 0;
                eventually("it is my turn", async || {
                    let request = several(THREE, key, &some);
                    if let Acquired::Granted(grant) = store.ask_for(request).await.unwrap() {
                        count = grant.count as usize;
                    }
                    count > 0
                })
                .await;
                let now = inside.fetch_add(count, SeqCst) + count;
                assert!(now <= 3, "{now} are inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(count, SeqCst);
                for owner in &some[..count] {
                    assert_eq!(store.free_as(THREE, key, *owner).await, Released::Freed);
                }
            }
        }
    });
    join_all(visitors).await;
    assert!(subject.is_empty().await);
}

/// For a store without permits.
#[allow(dead_code)] // `tests/topology` has no such store
pub(crate) async fn permits_are_refused_and_leave_nothing(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    for request in [attempt(&key, a), waiting(&key, a)] {
        let error = store.ask_for(in_mode(TWO, request)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("one server"), "{error}");
    }
    assert!(subject.is_empty().await);
    store.take(&key, a).await;
}

pub(crate) async fn an_attempt_ends_a_permit_and_takes_it(subject: impl Subject) {
    let (store, key, mode) = (subject.store(), key("k"), Mode::Permit { of: 2 });
    let (instance, other) = (Instance::new(), owner());
    let [a, b, c] = [1, 2, 3].map(|number| attempt_of(instance, number));
    for holder in [a, other] {
        granted(store.ask_as(mode, &key, holder).await);
    }
    held(store.ask_as(mode, &key, b).await);
    let ends = vec![End { owner: a, mode }];
    let attempt = in_mode(mode, attempt(&key, b));
    let grant = store.ask_for(Acquire {
        more: vec![c],
        ends,
        ..attempt
    });
    assert_eq!(granted(grant.await.unwrap()).count, 1);
    assert_eq!(store.holders(&key).await, sorted([b, other]));
}
