//! Shared leases and permits as Redis keeps them.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{
        Acquire,
        Mode::{self, Exclusive, Permit, Shared},
        RedisStore, Released, Renewed, Store,
    },
};

use crate::{
    LIMIT, assert_clean, impatient, server_and_store,
    support::{eventually, redis_server::RedisServer, words::*},
};

const LOCK: &str = "tdl:2:{b2089}:lock:orders/42";
const QUEUE: &str = "tdl:2:{b2089}:queue:orders/42";
const TWO: Mode = Permit { of: 2 };

async fn members(server: &RedisServer, name: &str) -> Vec<String> {
    server.send(&["ZRANGE", name, "0", "-1"]).await
}

#[tokio::test]
async fn names_and_values_are_as_documented() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).label("host-7");
    let store = store.connect().await.unwrap();
    let (key, a, b, c, d) = (key("orders/42"), owner(), owner(), owner(), owner());
    granted(store.ask_as(Shared, &key, a).await);
    assert_eq!(members(&server, LOCK).await, [format!("shared:{a}@host-7")]);
    let pttl: u64 = server.send(&["PTTL", LOCK]).await;
    let pttl = Duration::from_millis(pttl);
    assert!(
        pttl > LONG / 2 && pttl <= LONG,
        "the set ends with the lease"
    );

    held(store.queue(&key, b).await);
    held(store.queue_as(Shared, &key, c).await);
    let waiting = [
        b.to_string(),
        format!("shared:{c}"),
        format!("until:{b}"),
        format!("until:shared:{c}"),
    ];
    assert_eq!(members(&server, QUEUE).await, waiting);
    store.free(&key, b).await;
    let offered = [
        format!("shared:{c}"),
        format!("until:shared:{c}"),
        format!("free:shared:{c}"),
    ];
    assert_eq!(members(&server, QUEUE).await, offered);
    granted(store.queue_as(Shared, &key, c).await);
    store.free_as(Shared, &key, a).await;
    store.free_as(Shared, &key, c).await;
    assert_eq!(server.leftovers().await, [""; 0]);

    granted(store.ask_as(TWO, &key, a).await);
    granted(store.ask_as(TWO, &key, b).await);
    held(store.queue_as(TWO, &key, d).await);
    let mut found = members(&server, LOCK).await;
    found.sort_unstable();
    let mut expected = [a, b].map(|owner| format!("permit:2:{owner}@host-7"));
    expected.sort_unstable();
    assert_eq!(found, expected);
    let waiting = [format!("permit:2:{d}"), format!("until:permit:2:{d}")];
    assert_eq!(members(&server, QUEUE).await, waiting);
}

#[tokio::test]
async fn a_sorted_set_of_another_program_is_an_error_and_is_left_alone() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    let no_label = format!("shared:{a}@");
    for member in ["x", "shared:nobody:1", "permit:x", &no_label] {
        let _: Value = server.send(&["ZADD", LOCK, "99999999999999", member]).await;
        for (mode, kind) in [(Exclusive, "-"), (Shared, "shared:"), (TWO, "permit:")] {
            // An attempt that finds its own kind looks no closer.
            let requests = [attempt(&key, a), waiting(&key, a)];
            for request in requests.into_iter().filter(|_| !member.starts_with(kind)) {
                let error = store.ask_for(in_mode(mode, request)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Foreign, "{error:?}");
            }
            for refill in [0, 1] {
                let answer = store.renew_as(mode, &key, a, refill).await;
                assert!(matches!(answer, Renewed::Unknown(_)), "{answer:?}");
            }
        }
        let released = store.end(ending(&key, a)).await;
        assert_eq!(released.unwrap_err().kind(), ErrorKind::Foreign);
        assert!(store.force_release(key.clone()).await.is_err());
        assert!(store.inspect(key.clone()).await.is_err());
        assert_eq!(members(&server, LOCK).await, [member]);
        let _: Value = server.send(&["DEL", LOCK]).await;
    }
}

#[tokio::test]
async fn a_foreign_queue_is_an_error_and_nothing_is_taken_or_freed() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    for mode in [Shared, TWO] {
        let _: Value = server.send(&["SET", QUEUE, "x"]).await;
        let error = store.ask_for(in_mode(mode, attempt(&key, a))).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(server.leftovers().await, [QUEUE]);
        let _: Value = server.send(&["DEL", QUEUE]).await;

        granted(store.ask_as(mode, &key, a).await);
        let _: Value = server.send(&["SET", QUEUE, "x"]).await;
        let release = tower_distributed_lock::store::Release {
            mode,
            in_doubt: false,
            lasts: Duration::from_millis(1),
            ..ending(&key, a)
        };
        let error = store.end(release).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign);
        assert_eq!(server.leftovers().await, [LOCK, QUEUE]);
        let _: Value = server.send(&["DEL", LOCK, QUEUE]).await;
    }
}

#[tokio::test]
async fn a_free_key_costs_one_command_to_take_and_one_to_release() {
    let (server, store) = server_and_store().await;
    let (key, a, b) = (key("k"), owner(), owner());
    server.reset_stats().await;
    for mode in [Shared, TWO] {
        for owner in [a, b] {
            granted(store.ask_as(mode, &key, owner).await);
        }
        for owner in [a, b] {
            store.free_as(mode, &key, owner).await;
        }
    }
    let commands = server.commands().await;
    assert_eq!(
        commands.into_iter().collect::<Vec<_>>(),
        [("evalsha".to_owned(), 8)]
    );
}

#[tokio::test]
async fn a_full_server_renews_downgrades_and_releases() {
    let (server, store) = server_and_store().await;
    let (shared, counted, writing) = (key("shared"), key("counted"), key("writing"));
    let (a, b) = (owner(), owner());
    let brief = |mode, key, owner| Acquire {
        mode,
        lease: Duration::from_secs(60),
        ..attempt(key, owner)
    };
    for (mode, key) in [(Shared, &shared), (TWO, &counted), (Exclusive, &writing)] {
        granted(store.ask_for(brief(mode, key, a)).await.unwrap());
    }
    granted(store.ask_as(Shared, &shared, b).await);
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = store
        .ask_for(in_mode(Shared, attempt(&shared, owner())))
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
    for (mode, key) in [(Shared, &shared), (TWO, &counted), (Shared, &writing)] {
        for refill in [0, 8] {
            assert!(is_renewed(&store.renew_as(mode, key, a, refill).await));
        }
        let seen = store.see(key).await;
        let holder = seen.holders.iter().find(|holder| holder.owner == a);
        assert!(holder.unwrap().remaining > LONG / 2);
        assert_eq!(holder.unwrap().mode, mode);
        assert_eq!(store.free_as(mode, key, a).await, Released::Freed);
    }
    assert_eq!(store.holders(&shared).await, [b]);
}

#[tokio::test]
async fn holders_that_crashed_are_removed_at_the_next_renewal() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    granted(store.ask_as(Shared, &key, a).await);
    for _ in 0..10 {
        let crashes = Acquire {
            mode: Shared,
            lease: SHORT,
            ..attempt(&key, owner())
        };
        granted(store.ask_for(crashes).await.unwrap());
    }
    assert_eq!(members(&server, LOCK).await.len(), 11);
    eventually("one is left", async || {
        assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
        members(&server, LOCK).await.len() == 1
    })
    .await;
}

#[tokio::test]
async fn an_acquire_of_several_permits_that_failed_leaves_none() {
    let server = RedisServer::start().await;
    let store = impatient(&server.url()).await;
    let locks = Locks::builder(store).lease(LONG).build().unwrap();
    server.freeze();
    let asking = (0..5).map(|_| locks.permit("orders/42", 10).within(LIMIT));
    for failed in join_all(asking).await {
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unreachable);
    }
    server.thaw();
    assert_clean(&server).await;
    let asking = (0..10).map(|_| locks.permit("orders/42", 10));
    for permit in join_all(asking).await {
        drop(permit.unwrap());
    }
    assert_clean(&server).await;
}
