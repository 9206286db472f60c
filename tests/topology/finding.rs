//! The choice of the server that counts as the primary.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::Instant;
use tower_distributed_lock::{
    ErrorKind,
    store::{Hint, RedisStore, RedisStoreBuilder, Released, Store},
};

use crate::{
    connected,
    support::{
        PATIENCE, eventually,
        fake_sentinel::{FakeSentinel, Says},
        proxy::{Network, Proxy},
        redis_server::{RedisServer, pass},
        sentinels::{SERVICE, replica_of},
        warnings::Warnings,
        words::*,
    },
};

const LIMIT: Duration = Duration::from_millis(800);

fn names(server: &RedisServer, epoch: u64) -> Says {
    let port = server.port();
    Says::Primary { port, epoch }
}

fn behind<'a>(sentinels: impl IntoIterator<Item = &'a FakeSentinel>) -> RedisStoreBuilder {
    let urls: Vec<String> = sentinels.into_iter().map(FakeSentinel::url).collect();
    RedisStore::sentinel(urls, SERVICE).timeout(LIMIT)
}

#[tokio::test]
async fn a_replica_that_a_sentinel_names_does_not_count_as_the_primary() {
    let primary = RedisServer::start().await;
    let replica = replica_of(primary.port()).await;
    let sentinel = FakeSentinel::start(names(&replica, 1)).await;
    let error = behind([&sentinel]).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("no primary"), "{error}");
}

#[tokio::test]
async fn the_answer_with_the_latest_epoch_counts_and_a_sentinel_that_hangs_delays_nothing() {
    let (old, new) = (RedisServer::start().await, RedisServer::start().await);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let sentinels = [
            FakeSentinel::start(names(&old, 9)).await,
            FakeSentinel::start(names(&new, 10)).await,
            FakeSentinel::start(Says::Nothing).await,
        ];
        // A machine that is busy slows down some of the connections.
        let (mut fastest, mut connected) = (Duration::MAX, None);
        for _ in 0..3 {
            let began = Instant::now();
            let store = behind(order.map(|at| &sentinels[at])).lanes(1);
            connected = Some(store.connect().await.unwrap());
            fastest = fastest.min(began.elapsed());
        }
        assert!(fastest < LIMIT / 2, "a sentinel that hangs delays nothing");
        let (store, key, a) = (connected.unwrap(), key("k"), owner());
        store.take(&key, a).await;
        assert_eq!(new.leftovers().await.len(), 1);
        store.free(&key, a).await;
    }
}

#[tokio::test]
async fn one_sentinel_that_answers_is_enough() {
    let server = RedisServer::start().await;
    let sentinels = [
        FakeSentinel::start(Says::Nothing).await,
        FakeSentinel::start(names(&server, 1)).await,
        FakeSentinel::start(Says::Nothing).await,
    ];
    let store = behind(&sentinels).connect().await.unwrap();
    store.take(&key("k"), owner()).await;
}

#[tokio::test]
async fn a_store_without_a_sentinel_that_answers_is_an_error() {
    let error = RedisStore::sentinel([""; 0], SERVICE).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let nobody = RedisStore::sentinel(["redis://127.0.0.1:1"], SERVICE);
    let error = nobody.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("no sentinel"), "{error}");
}

/// An operator who moves the primary by hand closes no connection.
#[tokio::test]
async fn a_demoted_primary_is_left_by_the_first_call_and_by_the_subscription() {
    let first = RedisServer::start().await;
    let second = replica_of(first.port()).await;
    let sentinel = FakeSentinel::start(names(&first, 1)).await;
    let store = behind([&sentinel]).connect().await.unwrap();
    let (key, a) = (key("k"), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    let before = store.take(&key, a).await.tokens.last().unwrap();
    eventually("the replica has the lease", async || {
        second.leftovers().await.len() == 1
    })
    .await;

    let _: Value = second.send(&["REPLICAOF", "NO", "ONE"]).await;
    let port = second.port().to_string();
    let _: Value = first.send(&["REPLICAOF", "127.0.0.1", &port]).await;
    sentinel.say(names(&second, 2));
    // The first call finds the new primary, and succeeds.
    store.take(&crate::subject::key("other"), owner()).await;
    hinted(&mut hints, Hint::Reconnected).await;
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 1)).await));
    store.free(&key, a).await;
    assert!(store.take(&key, a).await.tokens.first().unwrap() > before);
    // The subscription has moved as well.
    let fresh = owner();
    store
        .take(&crate::support::words::key("third"), fresh)
        .await;
    let clients: String = first.send(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    assert!(clients.trim().is_empty(), "{clients}");
}

/// The other lane's connection to the old server still works, and does not count any more.
#[tokio::test]
async fn all_lanes_follow_the_lane_that_finds_another_primary() {
    let (first, second) = (RedisServer::start().await, RedisServer::start().await);
    let sentinel = FakeSentinel::start(names(&first, 1)).await;
    let store = behind([&sentinel]).lanes(2).connect().await.unwrap();
    let keys: Vec<_> = (0..16).map(|n| key(&format!("k/{n}"))).collect();
    sentinel.say(names(&second, 2));
    // Both servers act as the primary. The connection of one lane breaks, and the lane finds the
    // other server.
    let clients: String = first.send(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    let id = |line: &str| {
        line.split_whitespace()
            .next()?
            .strip_prefix("id=")
            .map(str::to_owned)
    };
    let lane = clients
        .lines()
        .filter(|line| !line.contains("cmd=client|list"))
        .find_map(id);
    let _: Value = first.send(&["CLIENT", "KILL", "ID", &lane.unwrap()]).await;
    eventually("the lane has moved", async || {
        for key in &keys {
            let a = owner();
            store.take(key, a).await;
            store.free(key, a).await;
        }
        let counters: Vec<String> = second.send(&["KEYS", "*:fence"]).await;
        !counters.is_empty()
    })
    .await;
    for key in &keys {
        store.take(key, owner()).await;
    }
    assert_eq!(first.leftovers().await, [""; 0]);
    assert_eq!(second.leftovers().await.len(), keys.len());
}

/// Commands that lie unread at a server can still run when that server is the primary again.
#[tokio::test]
async fn coming_back_to_a_server_closes_the_connections_that_were_left_there() {
    let (first, second) = (RedisServer::start().await, RedisServer::start().await);
    let mut proxy = Proxy::start(first.port()).await;
    let through_proxy = |epoch| Says::Primary {
        port: proxy.port(),
        epoch,
    };
    let sentinel = FakeSentinel::start(through_proxy(1)).await;
    let back = through_proxy(3);
    let store = behind([&sentinel]).timeout(LIMIT / 4).lanes(1);
    let store = crate::connected(store).await;
    let key = key("k");
    proxy.set(Network::BlackHole);
    store.ask_for(attempt(&key, owner())).await.unwrap_err();
    proxy.set(Network::ClientGone);
    proxy.only_new_ones_are_fine();

    sentinel.say(names(&second, 2));
    eventually("the lane has moved", async || {
        store.inspect(key.clone()).await.is_ok()
    })
    .await;
    store.take(&key, owner()).await;
    assert_eq!(second.leftovers().await.len(), 1);
    sentinel.say(back);
    let _: Value = second.send(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    eventually("the lane has come back", async || {
        store.inspect(key.clone()).await.is_ok()
    })
    .await;
    proxy.old_ones_go_on();
    pass(300).await;
    assert_eq!(first.leftovers().await, [""; 0]);
    store.take(&key, owner()).await;
    assert_eq!(first.leftovers().await.len(), 1);
}

#[tokio::test]
async fn a_subscription_waits_for_a_slow_primary_as_long_as_a_call() {
    let server = RedisServer::start().await;
    let sentinel = FakeSentinel::start(names(&server, 1)).await;
    let store = behind([&sentinel]).timeout(PATIENCE).build().unwrap();
    let log = Warnings::default();
    let _recording = tracing::subscriber::set_default(log.clone());
    server.freeze();
    let mut hints = store.watch(owner().instance);
    // Longer than the time limits of the client library.
    pass(2000).await;
    server.thaw();
    hinted(&mut hints, Hint::Listening).await;
    assert_eq!(log.count("redis.subscription_lost"), 0, "{}", log.all());
}

#[tokio::test]
async fn calls_of_one_message_share_a_script_behind_sentinel() {
    const MANY: u64 = 40;
    let server = RedisServer::start().await;
    let sentinel = FakeSentinel::start(names(&server, 1)).await;
    let [early, late] = [0; 2].map(|_| connected(behind([&sentinel]).timeout(PATIENCE)));
    let (early, late) = (early.await, late.await);
    let (keys, a): (Vec<_>, _) = ((0..MANY).map(|n| key(&format!("k/{n}"))).collect(), owner());
    let take_all = async |store: &RedisStore| {
        let taking = keys.iter().map(|key| store.ask_for(attempt(key, a)));
        let taken = join_all(taking).await.into_iter();
        let tokens = taken.map(|answer| granted(answer.unwrap()).tokens.last().unwrap());
        tokens.collect::<Vec<_>>()
    };
    let free_all = async |store: &RedisStore| {
        for answer in join_all(keys.iter().map(|key| store.end(ending(key, a)))).await {
            assert_eq!(answer.unwrap(), Released::Freed);
        }
    };
    server.reset_stats().await;
    let mut before = take_all(&early).await;
    let renewals = keys.iter().map(|key| renewal(key, a, 0)).collect();
    assert!(early.renew_all(renewals).await.iter().all(is_renewed));
    free_all(&early).await;
    let scripts = server.commands().await["evalsha"];
    assert!(scripts < 2 * MANY, "{scripts} scripts");
    // Tokens rise within a second, also if the counters are lost.
    for round in 0..12 {
        let store = if round % 2 == 0 { &late } else { &early };
        let after = take_all(store).await;
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(before, after)| before < after)
        );
        free_all(store).await;
        before = after;
        if round % 3 == 2 {
            let _: Value = server.send(&["FLUSHALL"]).await;
        }
    }
}
