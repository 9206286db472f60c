//! Tokens rise, even if the server loses its counters.

use futures_util::future::join_all;
use redis::Value;
use tower_distributed_lock::{
    LockKey,
    store::{Acquire, Acquired, Instance, Mode, RedisStore, Renewed, Store},
};

use crate::{server_and_store, support::words::*};

/// Takes and frees the key. Returns the token.
async fn next_token(store: &RedisStore) -> u64 {
    let (key, a) = (key("k"), owner());
    let token = store.take(&key, a).await.tokens.first().unwrap();
    store.free(&key, a).await;
    token
}

#[tokio::test]
async fn tokens_rise_over_a_flush() {
    let (server, store) = server_and_store().await;
    let before = next_token(&store).await;
    let _: Value = server.send(&["FLUSHALL"]).await;
    assert!(next_token(&store).await > before);
}

#[tokio::test]
async fn tokens_rise_over_a_restart() {
    let (mut server, store) = server_and_store().await;
    let before = next_token(&store).await;
    server.restart().await;
    let after = next_token(&store).await;
    assert!(after > before);
    // Tokens also rise for a store that has seen no token before.
    server.restart().await;
    let newcomer = RedisStore::connect(server.url()).await.unwrap();
    assert!(next_token(&newcomer).await > after);
}

/// Asks for huge blocks as fast as possible, by grants and by refills. Returns the highest token.
async fn exhaust(store: &RedisStore, mode: Mode, key: &LockKey) -> u64 {
    let mut highest = 0;
    for _ in 0..100 {
        let instance = Instance::new();
        let further = if mode.is_permit() { 1..10 } else { 1..1 };
        let request = Acquire {
            block: u32::MAX,
            mode,
            more: further.map(|n| attempt_of(instance, n + 1)).collect(),
            ..attempt(key, attempt_of(instance, 1))
        };
        let grant = granted(store.ask_for(request).await.unwrap());
        assert!(grant.tokens.left() >= grant.count);
        assert!(grant.tokens.first().unwrap() > highest);
        let refill = store.renew_as(mode, key, attempt_of(instance, 1), u32::MAX);
        let Renewed::Renewed { tokens, .. } = refill.await else {
            panic!("the lease is ours");
        };
        assert!(tokens.unwrap().first() > grant.tokens.last());
        highest = tokens.unwrap().last().unwrap();
        for n in 1..=grant.count {
            store
                .free_as(mode, key, attempt_of(instance, n.into()))
                .await;
        }
    }
    highest
}

#[tokio::test]
async fn tokens_rise_over_a_restart_although_huge_blocks_were_asked_for() {
    let (mut server, store) = server_and_store().await;
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Permit { of: 10 }];
    for mode in modes {
        let key = key(&mode.to_string());
        let highest = exhaust(&store, mode, &key).await;
        let (seconds, micros): (u64, u64) = server.send(&["TIME"]).await;
        assert!(highest <= seconds * 1_000_000 + micros, "{mode}: {highest}");
        server.restart().await;
        let newcomer = RedisStore::connect(server.url()).await.unwrap();
        let token = newcomer.take(&key, owner()).await.tokens.first();
        assert!(token > Some(highest), "{mode}: {token:?} after {highest}");
    }
}

/// A clock that was set back by eleven days leaves a counter far ahead of the clock.
#[tokio::test]
async fn tokens_rise_although_the_clock_was_set_back() {
    let (server, store) = server_and_store().await;
    let ahead = next_token(&store).await + 1_000_000_000_000;
    store.raise_fence(key("k"), ahead).await.unwrap();
    let before = next_token(&store).await;
    assert!(before > ahead);
    assert!(next_token(&store).await > before);
    let _: Value = server.send(&["FLUSHALL"]).await;
    assert!(
        next_token(&store).await > before,
        "this process remembers what it saw"
    );
}

#[tokio::test]
async fn a_refill_is_above_all_tokens_although_the_counter_was_lost() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    let before = store.take(&key, a).await.tokens.last().unwrap();
    let fences: Vec<String> = server.send(&["KEYS", "*:fence"]).await;
    let _: Value = server.send(&["DEL", &fences[0]]).await;
    let Renewed::Renewed { tokens, .. } = store.renew_one(renewal(&key, a, 3)).await else {
        panic!("the lease is a's");
    };
    assert!(tokens.unwrap().first().unwrap() > before);
}

#[tokio::test]
async fn a_hundred_thousand_keys_leave_only_the_counters() {
    let (server, store) = server_and_store().await;
    let instance = Instance::new();
    for start in (0..100_000).step_by(500) {
        let turn = |n: u64| {
            let (key, a) = (key(&format!("customers/{n}")), attempt_of(instance, n));
            let store = &store;
            async move {
                let taken = store.ask_for(attempt(&key, a)).await.unwrap();
                assert!(matches!(taken, Acquired::Granted(_)));
                store.free(&key, a).await;
            }
        };
        join_all((start..start + 500).map(turn)).await;
    }
    assert_eq!(server.leftovers().await, [""; 0]);
    let counters: u64 = server.send(&["DBSIZE"]).await;
    assert!((1..=4096).contains(&counters), "{counters} counters");
}
