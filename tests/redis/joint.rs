//! Calls that share a script, because they are sent in one message.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use redis::Value;
use tokio::time::timeout;
use tower_distributed_lock::{
    ErrorKind, LockKey,
    store::{Acquired, Hint, Owner, RedisStore, Released, Renewed, Store},
};

use crate::{
    assert_clean, server_and_store,
    support::{eventually, redis_server::RedisServer, words::*},
};

pub(crate) const MANY: usize = 40;

pub(crate) fn many() -> Vec<LockKey> {
    (0..MANY).map(|n| key(&format!("k/{n}"))).collect()
}

/// Takes all keys. Returns their tokens.
pub(crate) async fn take_all(store: &RedisStore, keys: &[LockKey], owner: Owner) -> Vec<u64> {
    let taking = keys.iter().map(|key| store.ask_for(attempt(key, owner)));
    let taken = join_all(taking).await.into_iter();
    taken
        .map(|answer| granted(answer.unwrap()).tokens.first().unwrap())
        .collect()
}

pub(crate) async fn free_all(store: &RedisStore, keys: &[LockKey], owner: Owner) {
    let freeing = keys.iter().map(|key| store.end(ending(key, owner)));
    for answer in join_all(freeing).await {
        assert_eq!(answer.unwrap(), Released::Freed);
    }
}

#[tokio::test]
async fn calls_of_one_message_share_a_script() {
    let (server, store) = server_and_store().await;
    let (keys, a) = (many(), owner());
    server.reset_stats().await;
    take_all(&store, &keys, a).await;
    let renewals = keys.iter().map(|key| renewal(key, a, 0)).collect();
    assert!(store.renew_all(renewals).await.iter().all(is_renewed));
    free_all(&store, &keys, a).await;
    let scripts = server.commands().await["evalsha"];
    assert!(scripts < MANY as u64, "{scripts} scripts");
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_joint_script_that_the_server_has_forgotten_is_sent_again() {
    let (server, store) = server_and_store().await;
    let (keys, a) = (many(), owner());
    for _ in 0..2 {
        let _: Value = server.send(&["SCRIPT", "FLUSH"]).await;
        take_all(&store, &keys, a).await;
        let _: Value = server.send(&["SCRIPT", "FLUSH"]).await;
        let renewals = keys.iter().map(|key| renewal(key, a, 0)).collect();
        assert!(store.renew_all(renewals).await.iter().all(is_renewed));
        let _: Value = server.send(&["SCRIPT", "FLUSH"]).await;
        free_all(&store, &keys, a).await;
    }
    take_all(&store, &keys, a).await;
    let _: Value = server.send(&["SCRIPT", "FLUSH"]).await;
    for answer in join_all(keys.iter().map(|key| store.end(recording(key, a, b"r")))).await {
        assert_eq!(answer.unwrap(), Released::Freed);
    }
    for key in &keys {
        assert!(store.force_release(key.clone()).await.unwrap());
    }
    // The text of a joint script has brought it back.
    server.reset_stats().await;
    take_all(&store, &keys, a).await;
    free_all(&store, &keys, a).await;
    assert!(server.commands().await["evalsha"] < MANY as u64);
    assert_clean(&server).await;
}

/// Each key is in another state, and each call is answered as if it were alone.
#[tokio::test]
async fn every_call_of_a_joint_script_has_its_own_answer() {
    let (server, store) = server_and_store().await;
    let (mut keys, a, b) = (many(), owner(), owner());
    let foreign = key("orders/42");
    let lock = "tdl:2:{b2089}:lock:orders/42";
    let _: Value = server.send(&["HSET", lock, "a", "b"]).await;
    let [theirs, recorded, wanted] = ["theirs", "recorded", "wanted"].map(key);
    store.take(&theirs, b).await;
    store.take(&recorded, b).await;
    store.record(&recorded, b, b"content").await;
    keys.extend([foreign, theirs.clone(), recorded.clone(), wanted.clone()]);

    let taking = keys.iter().map(|key| store.ask_for(attempt(key, a)));
    let mut answers = join_all(taking).await;
    let special = answers.split_off(MANY);
    for answer in answers {
        granted(answer.unwrap());
    }
    let [foreign, held_by_b, record, last] = <[_; 4]>::try_from(special).unwrap();
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::Foreign);
    held(held_by_b.unwrap());
    assert!(matches!(record.unwrap(), Acquired::Recorded(content) if content == "content"));
    granted(last.unwrap());

    held(store.queue(&wanted, b).await);
    let renewals = keys.iter().map(|key| renewal(key, a, 0)).collect();
    let mut renewed = store.renew_all(renewals).await;
    let special = renewed.split_off(MANY);
    assert!(
        renewed
            .iter()
            .all(|it| is_renewed(it) && !tells_of_others(it))
    );
    assert!(matches!(
        &special[..],
        [Renewed::Unknown(_), Renewed::NotOurs, Renewed::NotOurs, last] if tells_of_others(last)
    ));

    let mut hints = store.watch_for_sure(b.instance).await;
    let freeing = keys.iter().map(|key| store.end(ending(key, a)));
    let mut answers = join_all(freeing).await;
    let special = answers.split_off(MANY);
    assert!(answers.into_iter().all(|it| it.unwrap() == Released::Freed));
    let [foreign, theirs_still, record, last] = <[_; 4]>::try_from(special).unwrap();
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(theirs_still.unwrap(), Released::NotOurs);
    assert_eq!(record.unwrap(), Released::NotOurs);
    assert_eq!(last.unwrap(), Released::Freed);
    hinted(&mut hints, Hint::Free(wanted.clone())).await;
    held(store.ask(&wanted, owner()).await);
    granted(store.queue(&wanted, b).await);
    assert_eq!(store.holder(&theirs).await, Some(b));
}

/// A script with many calls would delay all other clients of the server.
#[tokio::test]
async fn no_script_makes_many_calls() {
    let (server, store) = server_and_store().await;
    let (keys, a) = (many(), owner());
    take_all(&store, &keys, a).await;
    server.reset_stats().await;
    let renewals = keys.iter().map(|key| renewal(key, a, 0)).collect();
    assert!(store.renew_all(renewals).await.iter().all(is_renewed));
    let scripts = server.commands().await["evalsha"];
    assert!(scripts >= 2, "{scripts} scripts for {MANY} renewals");
}

/// A call at a key that others want takes the server long.
#[tokio::test]
async fn no_script_makes_many_calls_that_others_wait_for() {
    const MOST: u64 = 4;
    let (server, store) = server_and_store().await;
    let (keys, a, b) = (many(), owner(), owner());
    take_all(&store, &keys, a).await;
    server.reset_stats().await;
    for answer in join_all(keys.iter().map(|key| store.ask_for(waiting(key, b)))).await {
        held(answer.unwrap());
    }
    let asked = server.commands().await["evalsha"];
    let mut hints = store.watch_for_sure(b.instance).await;
    server.reset_stats().await;
    free_all(&store, &keys, a).await;
    let freed = server.commands().await["evalsha"];
    let mut told = HashSet::new();
    eventually("every key is offered", async || {
        while let Ok(Some(hint)) = timeout(Duration::from_millis(100), hints.recv()).await {
            if let Hint::Free(key) = hint {
                told.insert(key);
            }
        }
        keys.iter().all(|key| told.contains(key))
    })
    .await;
    for scripts in [asked, freed] {
        assert!(scripts * MOST >= MANY as u64, "{scripts} scripts");
    }
}

/// A proxy that does not know CLIENT INFO may spread the keys over several servers.
#[tokio::test]
async fn calls_share_no_script_at_a_server_that_is_not_known_to_be_one() {
    let (server, _) = server_and_store().await;
    let _: Value = (server.send(&["ACL", "SETUSER", "default", "-client|info"])).await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let (keys, a) = (many(), owner());
    server.reset_stats().await;
    take_all(&store, &keys, a).await;
    free_all(&store, &keys, a).await;
    assert_eq!(server.commands().await["evalsha"], 2 * MANY as u64);
    assert_clean(&server).await;
}

/// A node of a Cluster refuses joint scripts, also where the store does not know that it is one.
#[tokio::test]
async fn a_server_that_refuses_joint_scripts_is_asked_for_one_once() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
    let _: Value = (server.send(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])).await;
    eventually("the Cluster is up", async || {
        let info: String = server.send(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let (keys, a) = (many(), owner());
    for _ in 0..3 {
        take_all(&store, &keys, a).await;
        free_all(&store, &keys, a).await;
    }
    let refused = server.errors("CROSSSLOT").await;
    assert!((1..=5).contains(&refused), "{refused} scripts were refused");
    assert_clean(&server).await;
}

#[tokio::test]
async fn long_records_share_no_script() {
    let (server, store) = server_and_store().await;
    const CONTENT: &[u8] = &[b'r'; 20 * 1024];
    let (keys, a) = (many(), owner());
    take_all(&store, &keys, a).await;
    server.reset_stats().await;
    for answer in join_all(keys.iter().map(|key| store.end(recording(key, a, CONTENT)))).await {
        assert_eq!(answer.unwrap(), Released::Freed);
    }
    assert_eq!(server.commands().await["evalsha"], MANY as u64);
}

#[tokio::test]
async fn records_of_one_message_share_a_script() {
    let (server, store) = server_and_store().await;
    let (keys, a) = (many(), owner());
    take_all(&store, &keys, a).await;
    let lost = key("lost");
    server.reset_stats().await;
    let all = keys.iter().chain([&lost]);
    let mut answers = join_all(all.map(|key| store.end(recording(key, a, b"r")))).await;
    assert_eq!(answers.pop().unwrap().unwrap(), Released::NotOurs);
    assert!(answers.into_iter().all(|it| it.unwrap() == Released::Freed));
    assert!(server.commands().await["evalsha"] < MANY as u64);
    for key in &keys {
        assert!(
            matches!(store.ask(key, owner()).await, Acquired::Recorded(content) if content == "r")
        );
    }
}

/// Nothing is taken without a token, and every caller gets the error.
#[tokio::test]
async fn a_full_server_refuses_every_call_of_a_joint_script() {
    let (server, store) = server_and_store().await;
    let (keys, a) = (many(), owner());
    let (free, taken) = keys.split_at(MANY / 2);
    take_all(&store, taken, a).await;
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let taking = free.iter().map(|key| store.ask_for(attempt(key, a)));
    for answer in join_all(taking).await {
        let error = answer.unwrap_err();
        assert!(format!("{error:?}").contains("OOM"), "{error:?}");
    }
    // A release needs no memory.
    free_all(&store, taken, a).await;
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_clean(&server).await;
}

#[tokio::test]
async fn a_full_server_leaves_the_leases_of_records_that_it_refuses() {
    let (server, store) = server_and_store().await;
    let (keys, a) = (many(), owner());
    take_all(&store, &keys, a).await;
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for answer in join_all(keys.iter().map(|key| store.end(recording(key, a, b"r")))).await {
        let error = answer.unwrap_err();
        assert!(format!("{error:?}").contains("OOM"), "{error:?}");
    }
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "0"]).await;
    free_all(&store, &keys, a).await;
    assert_clean(&server).await;
}

/// A full server lets a script go on that has written once: the calls behind that write may
/// succeed.
#[tokio::test]
async fn what_a_full_server_answers_in_a_joint_script_is_so() {
    let (server, store) = server_and_store().await;
    let (keys, a, b, other) = (many(), owner(), owner(), owner());
    // Every second call removes a place from a queue, for which a full server has room.
    for (n, key) in keys.iter().enumerate() {
        match n % 4 {
            0 => assert_eq!(store.take(key, a).await.count, 1),
            1 | 3 => {
                store.take(key, other).await;
                held(store.queue(key, a).await);
                held(store.queue(key, b).await);
            }
            _ => {}
        }
    }
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let recording = join_all(keys.iter().map(|key| store.end(recording(key, a, b"r")))).await;
    let taking = join_all(keys.iter().map(|key| store.ask_for(attempt(key, b)))).await;
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "0"]).await;
    for (n, ((key, recorded), taken)) in keys.iter().zip(recording).zip(taking).enumerate() {
        let seen = store.see(key).await;
        let holder = seen.holders.first().map(|holder| holder.owner);
        match (n % 4, recorded) {
            (0, Ok(recorded)) => {
                assert_eq!(recorded, Released::Freed);
                assert_eq!((holder, seen.record), (None, Some("r".into())));
                assert!(matches!(taken, Ok(Acquired::Recorded(_))), "{taken:?}");
            }
            (0, Err(_)) => {
                assert_eq!((holder, seen.record), (Some(a), None));
                held(taken.unwrap());
            }
            (2, recorded) => {
                assert_eq!(recorded.unwrap(), Released::NotOurs);
                let is_granted = matches!(taken, Ok(Acquired::Granted(_)));
                assert_eq!(holder, is_granted.then_some(b), "{taken:?}");
            }
            (_, recorded) => {
                assert_eq!(recorded.unwrap(), Released::NotOurs);
                held(taken.unwrap());
                assert_eq!((holder, seen.queue), (Some(other), vec![]));
            }
        }
    }
}

/// A joint script does not know the floors of its counters.
#[tokio::test]
async fn tokens_rise_in_a_joint_script_that_has_lost_its_counters() {
    let (server, store) = server_and_store().await;
    let (keys, a) = (many(), owner());
    let ahead = store.see(&keys[0]).await.fence + 1_000_000_000_000;
    for key in &keys {
        store.raise_fence(key.clone(), ahead).await.unwrap();
    }
    take_all(&store, &keys, a).await;
    free_all(&store, &keys, a).await;
    let _: Value = server.send(&["FLUSHALL"]).await;
    let taking = keys.iter().map(|key| store.ask_for(attempt(key, a)));
    for answer in join_all(taking).await {
        let first = granted(answer.unwrap()).tokens.first().unwrap();
        assert!(first > ahead + 1, "{first} after {ahead}");
    }
    free_all(&store, &keys, a).await;
    assert_clean(&server).await;
}

/// Fault: a counter that was lost began at the clock of the store's connect. The tokens of others
/// since then were above that.
#[tokio::test]
async fn a_lost_counter_begins_at_the_clock_in_a_joint_script() {
    let (server, early) = server_and_store().await;
    early.ping().await.unwrap();
    let late = RedisStore::connect(server.url()).await.unwrap();
    let (keys, a) = (many(), owner());
    let before = take_all(&late, &keys, a).await;
    free_all(&late, &keys, a).await;
    let _: Value = server.send(&["FLUSHALL"]).await;
    let after = take_all(&early, &keys, a).await;
    for (before, after) in before.iter().zip(after) {
        assert!(after > *before, "{after} after {before}");
    }
    free_all(&early, &keys, a).await;
    assert_clean(&server).await;
}

/// Calls for one key run in the order in which they were started, also in one message.
#[tokio::test]
async fn calls_for_one_key_keep_their_order() {
    let (server, store) = server_and_store().await;
    let (keys, a, b) = (many(), owner(), owner());
    take_all(&store, &keys, a).await;
    let calls = keys.iter().map(|key| {
        // Both calls are started here.
        let (ended, asked) = (store.end(ending(key, a)), store.ask_for(attempt(key, b)));
        async { (ended.await.unwrap(), asked.await.unwrap()) }
    });
    for (ended, asked) in join_all(calls.collect::<Vec<_>>()).await {
        assert_eq!(ended, Released::Freed);
        granted(asked);
    }
    free_all(&store, &keys, b).await;
    assert_clean(&server).await;
}
