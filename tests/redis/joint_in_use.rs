//! Calls that share a script, some of them at keys that others use or wait for.

use std::time::Duration;

use futures_util::future::join_all;
use tower_distributed_lock::{
    LockKey,
    store::{Acquire, Acquired, Hint, Mode, Owner, RedisStore, Released, Renewed, Store},
};

use crate::{
    assert_clean,
    joint::{MANY, free_all, many, take_all},
    server_and_store,
    support::{PATIENCE, eventually, proxy::Proxy, words::*},
};

/// Every eighth of the keys is in use, the others are free: messages have keys of both kinds.
fn some_in_use(keys: &[LockKey]) -> Vec<&LockKey> {
    keys.iter().step_by(8).collect()
}

/// Asks for all keys together. Those in use are held, and the others granted.
async fn are_held(store: &RedisStore, keys: &[LockKey], in_use: &[&LockKey], owner: Owner) {
    let taking = keys.iter().map(|key| store.ask_for(attempt(key, owner)));
    for (key, answer) in keys.iter().zip(join_all(taking).await) {
        let is_held = matches!(answer.unwrap(), Acquired::Held(_));
        assert_eq!(is_held, in_use.contains(&key), "{key:?}");
    }
}

#[tokio::test]
async fn delayed_calls_find_leases_that_were_downgraded() {
    let (server, store) = server_and_store().await;
    let (keys, a, b) = (many(), owner(), owner());
    take_all(&store, &keys, a).await;
    let shared = some_in_use(&keys);
    for key in &shared {
        assert!(is_renewed(&store.renew_as(Mode::Shared, key, a, 0).await));
    }
    for answer in join_all(keys.iter().map(|key| store.ask_for(attempt(key, b)))).await {
        held(answer.unwrap());
    }
    let renewals = keys.iter().map(|key| renewal(key, a, 0)).collect();
    assert!(store.renew_all(renewals).await.iter().all(is_renewed));
    for key in &shared {
        assert_eq!(store.see(key).await.holders[0].mode, Mode::Shared);
    }
    free_all(&store, &keys, a).await;
    assert_clean(&server).await;
}

#[tokio::test]
async fn keys_that_others_share_are_not_ours() {
    let (server, store) = server_and_store().await;
    let (keys, a, b) = (many(), owner(), owner());
    let shared = some_in_use(&keys);
    for key in &shared {
        granted(store.ask_as(Mode::Shared, key, b).await);
    }
    are_held(&store, &keys, &shared, a).await;
    let renewals = keys.iter().map(|key| renewal(key, a, 0)).collect();
    let renewed = store.renew_all(renewals).await;
    let recorded = join_all(keys.iter().map(|key| store.end(recording(key, a, b"r")))).await;
    let freed = join_all(keys.iter().map(|key| store.end(ending(key, a)))).await;
    for (n, key) in keys.iter().enumerate() {
        let is_ours = !shared.contains(&key);
        let released = if is_ours {
            Released::Freed
        } else {
            Released::NotOurs
        };
        assert_eq!(matches!(renewed[n], Renewed::Renewed { .. }), is_ours);
        assert_eq!(*recorded[n].as_ref().unwrap(), released);
        assert_eq!(*freed[n].as_ref().unwrap(), released);
        if is_ours {
            assert!(store.force_release(key.clone()).await.unwrap());
        } else {
            assert_eq!(store.holders(key).await, [b]);
            store.free_as(Mode::Shared, key, b).await;
        }
    }
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_newcomer_overtakes_no_offer_although_its_message_has_free_keys() {
    let (server, store) = server_and_store().await;
    let (keys, a, waiter, newcomer) = (many(), owner(), owner(), owner());
    let offered = some_in_use(&keys);
    for key in &offered {
        store.take(key, a).await;
        held(store.queue(key, waiter).await);
        store.free(key, a).await;
    }
    are_held(&store, &keys, &offered, newcomer).await;
    for key in &offered {
        granted(store.queue(key, waiter).await);
        store.free(key, waiter).await;
    }
    join_all(keys.iter().map(|key| store.end(ending(key, newcomer)))).await;
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_newcomer_overtakes_no_waiter_after_a_crash_although_its_message_has_free_keys() {
    let (server, store) = server_and_store().await;
    let (keys, waiter, newcomer) = (many(), owner(), owner());
    let crashed = some_in_use(&keys);
    for key in &crashed {
        store.take(key, owner()).await;
        held(store.queue(key, waiter).await);
        // The lease of a holder that does not renew it ends.
        let lock = server.leftovers().await.into_iter();
        let lock = lock.filter(|name| name.ends_with(&format!(":lock:{}", key.as_str())));
        for name in lock {
            server.send::<i64>(&["PEXPIRE", &name, "1"]).await;
        }
    }
    eventually("the leases have ended", async || {
        let left = server.leftovers().await;
        !left.iter().any(|name| name.contains(":lock:"))
    })
    .await;
    are_held(&store, &keys, &crashed, newcomer).await;
    for key in &crashed {
        granted(store.queue(key, waiter).await);
        store.free(key, waiter).await;
    }
    join_all(keys.iter().map(|key| store.end(ending(key, newcomer)))).await;
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_lease_that_is_wanted_since_its_release_was_sent_is_offered() {
    let (server, store) = server_and_store().await;
    let mut proxy = Proxy::start(server.port()).await;
    let far = RedisStore::builder(proxy.url()).lanes(1).timeout(PATIENCE);
    let far = far.connect().await.unwrap();
    let (keys, a, b) = (many(), owner(), owner());
    take_all(&far, &keys, a).await;
    proxy.only_new_ones_are_fine();
    proxy.old_ones_stop();
    let freeing: Vec<_> = keys.iter().map(|key| far.end(ending(key, a))).collect();
    let wanted = some_in_use(&keys);
    let mut hints = store.watch_for_sure(b.instance).await;
    for key in &wanted {
        let request = Acquire {
            lease: Duration::from_secs(60),
            ..waiting(key, b)
        };
        held(store.ask_for(request).await.unwrap());
    }
    server.reset_stats().await;
    proxy.old_ones_go_on();
    for answer in join_all(freeing).await {
        assert_eq!(answer.unwrap(), Released::Freed);
    }
    let scripts = server.commands().await["evalsha"];
    assert!(scripts < MANY as u64, "{scripts} scripts");
    for key in &wanted {
        hinted(&mut hints, Hint::Free((*key).clone())).await;
        held(store.ask(key, owner()).await);
        granted(store.queue(key, b).await);
        store.free(key, b).await;
    }
    assert_clean(&server).await;
}
