//! How calls end: answered, refused or of unknown outcome.

use futures_util::{StreamExt, future::join_all};
use redis::Value;
use tokio::{runtime::Runtime, time::Instant};
use tower_distributed_lock::{
    ErrorKind,
    store::{Acquired, Answer, Outcome, RedisStore, Release, Released, Renewed, Store},
};

use crate::{
    LIMIT, impatient, keys, server_and_store,
    support::{
        PATIENCE, eventually,
        proxy::{Network, Proxy},
        redis_server::RedisServer,
        words::*,
    },
};

#[tokio::test]
async fn calls_in_flight_on_a_connection_that_breaks_are_unknown_at_once() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    let (key, a) = (key("k"), owner());
    proxy.set(Network::RepliesHeldBack);
    let asked = Instant::now();
    let taking = tokio::spawn(store.acquire(attempt(&key, a)));
    eventually("the acquire has run", async || {
        !server.leftovers().await.is_empty()
    })
    .await;
    proxy.cut();
    let outcome = taking.await.unwrap();
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert!(asked.elapsed() < PATIENCE);
    // The next connection has closed the one before.
    let release = Release {
        in_doubt: true,
        ..ending(&key, a)
    };
    assert_eq!(store.end(release.clone()).await.unwrap(), Released::Freed);
    assert_eq!(store.end(release).await.unwrap(), Released::NotOurs);
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn a_record_whose_answer_is_lost_is_found_by_the_next_one() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    proxy.set(Network::RepliesHeldBack);
    let recording_it = tokio::spawn(store.end(recording(&key, a, b"done")));
    eventually("the first record is there", async || {
        let value: String = server.send(&["GET", &server.leftovers().await[0]]).await;
        value.starts_with("record:")
    })
    .await;
    proxy.cut();
    let lost = recording_it.await.unwrap();
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(store.record(&key, a, b"done").await, Released::Freed);
    let found = store.ask(&key, owner()).await;
    assert!(matches!(found, Acquired::Recorded(_)));
}

#[tokio::test]
async fn calls_that_were_never_sent_are_refused() {
    let (mut server, _) = server_and_store().await;
    let store = impatient(&server.url()).await;
    server.kill();
    eventually("the connection has ended", async || {
        let outcome = store.acquire(attempt(&key("k"), owner())).await;
        matches!(outcome, Outcome::Refused(_))
    })
    .await;
    for _ in 0..10 {
        let calls = keys().into_iter().map(|key| {
            let store = store.clone();
            async move { store.acquire(attempt(&key, owner())).await }
        });
        for outcome in join_all(calls).await {
            assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        }
    }
}

#[test]
fn a_release_without_a_connection_and_without_a_runtime_is_refused() {
    let runtime = Runtime::new().unwrap();
    let (server, store) = runtime.block_on(server_and_store());
    let (key, a) = (key("k"), owner());
    runtime.block_on(store.take(&key, a));
    // The connection has ended with its runtime.
    drop(runtime);
    let (answer, outcome) = Answer::channel();
    store.release(ending(&key, a), answer);
    Runtime::new().unwrap().block_on(async {
        let outcome = outcome.await;
        assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        assert_eq!(server.leftovers().await.len(), 1);
        assert_eq!(store.free(&key, a).await, Released::Freed);
    });
}

#[tokio::test]
async fn where_killing_is_denied_a_release_in_doubt_is_answered_with_not_yet() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let rule = "ACL SETUSER app on >secret ~* &* +@all -client +client|info";
    let rule: Vec<_> = rule.split_whitespace().collect();
    let _: Value = server.send(&rule).await;
    let url = proxy.url().replace("redis://", "redis://app:secret@");
    let store = RedisStore::connect(url).await.unwrap();
    let (key, a) = (key("k"), owner());
    let end = |in_doubt| {
        store.end(Release {
            in_doubt,
            ..ending(&key, a)
        })
    };
    assert_eq!(end(true).await.unwrap(), Released::NotOurs);
    proxy.cut();
    eventually("there is a new connection", async || {
        store.inspect(key.clone()).await.is_ok()
    })
    .await;
    assert_eq!(end(true).await.unwrap(), Released::NotYet);
    assert_eq!(end(false).await.unwrap(), Released::NotOurs);
}

#[tokio::test]
async fn more_calls_than_a_connection_buffers_are_answered() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    let (key, mut takes, mut releases) = (key("k"), Vec::new(), Vec::new());
    for _ in 0..3000 {
        let a = owner();
        takes.push(store.ask_for(attempt(&key, a)));
        releases.push(store.end(ending(&key, a)));
    }
    for released in join_all(releases).await {
        released.unwrap();
    }
    for taken in join_all(takes).await {
        taken.unwrap();
    }
}

#[tokio::test]
async fn a_silent_lane_does_not_delay_the_renewals_of_another_lane() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).lanes(2).timeout(LIMIT * 8);
    let store = store.build().unwrap();
    let clients = async || -> usize {
        let list: String = server.send(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        list.lines().count()
    };
    let (silent, a) = (keys()[0].clone(), owner());
    store.take(&silent, a).await;
    proxy.only_new_ones_are_fine();
    let before = clients().await;
    // The first key of the other lane makes the other connection.
    let mut fine = None;
    for key in keys().into_iter().skip(1) {
        store.take(&key, a).await;
        if clients().await > before {
            fine = Some(key);
            break;
        }
    }
    let fine = fine.unwrap();
    proxy.old_ones_stop();
    let asked = Instant::now();
    let mut answers = store.renew(vec![renewal(&silent, a, 0), renewal(&fine, a, 0)]);
    let (index, answer) = answers.next().await.unwrap();
    assert!(index == 1 && is_renewed(&answer), "{index}: {answer:?}");
    assert!(asked.elapsed() < LIMIT * 8, "the answer did not wait");
    let (index, answer) = answers.next().await.unwrap();
    assert!(matches!((index, answer), (0, Renewed::Unknown(_))));
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn a_record_that_is_too_large_for_the_server_harms_no_other_call() {
    let server = RedisServer::start_with(&["--proto-max-bulk-len", "1mb"]).await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let large: &'static [u8] = vec![b'x'; 3 * 1024 * 1024].leak();
    for round in 0..5 {
        let (key, a) = (key(&format!("large/{round}")), owner());
        store.take(&key, a).await;
        let calls = async {
            for n in 0..50 {
                let (other, b) = (crate::keys()[n % 32].clone(), owner());
                store.take(&other, b).await;
                store.free(&other, b).await;
            }
        };
        let recording = store.end(recording(&key, a, large));
        let (recorded, ()) = tokio::join!(recording, calls);
        let error = recorded.unwrap_err();
        assert!(error.to_string().contains("proto-max-bulk-len"), "{error}");
        store.force_release(key).await.unwrap();
    }
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    assert_eq!(
        store.record(&key, a, &large[..1024 * 1000]).await,
        Released::Freed
    );
}

#[tokio::test]
async fn a_forced_release_whose_answer_is_lost_does_not_end_the_next_lease() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::start(server.port()).await;
    let store = RedisStore::builder(proxy.url()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    let elsewhere = RedisStore::connect(server.url()).await.unwrap();
    let (key, a, b) = (key("k"), owner(), owner());
    elsewhere.take(&key, a).await;
    proxy.set(Network::RepliesHeldBack);
    let forcing = tokio::spawn(store.force_release(key.clone()));
    eventually("the forced release has run", async || {
        server.leftovers().await.is_empty()
    })
    .await;
    elsewhere.take(&key, b).await;
    proxy.cut();
    let error = forcing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(store.holder(&key).await, Some(b));
}
