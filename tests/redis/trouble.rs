//! Servers that are misconfigured, full or starting, and the errors that name the fault.

use std::{path::PathBuf, time::Duration};

use redis::Value;
use tokio::time::Instant;
use tower_distributed_lock::{
    Error, ErrorKind, IdempotencyLayer, Locks, key as request_key,
    store::{Acquire, Acquired, Mode, RedisStore, Released, Renewed, Store},
};

use crate::{
    LIMIT, server_and_store,
    support::{PATIENCE, eventually, redis_server::RedisServer, warnings::Warnings, words::*},
};

#[track_caller]
fn assert_says(error: &Error, words: &str) {
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(
        !format!("{error:?}").contains("secret"),
        "no password in errors"
    );
}

#[tokio::test]
async fn the_error_for_a_server_that_is_down_names_its_address() {
    let mut server = RedisServer::start().await;
    server.kill();
    let asked = Instant::now();
    let url = server.url().replace("redis://", "redis://app:secret@");
    let error = RedisStore::connect(url).await.unwrap_err();
    let address = format!("cannot connect to Redis at 127.0.0.1:{}", server.port());
    assert_says(&error, &address);
    assert_says(&error, "Connection refused");
    assert!(asked.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn the_error_for_a_host_without_an_address_says_so() {
    let store = RedisStore::builder("redis://app:secret@redis.invalid/").timeout(PATIENCE);
    assert_says(&store.connect().await.unwrap_err(), "failed to lookup");
}

#[tokio::test]
async fn the_error_for_a_database_that_does_not_exist_says_so() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url() + "99").build().unwrap();
    for error in [
        store.ping().await.unwrap_err(),
        store
            .ask_for(attempt(&key("k"), owner()))
            .await
            .unwrap_err(),
    ] {
        assert_says(&error, "has no database of the number in the URL");
    }
}

#[tokio::test]
async fn the_log_names_the_reason_why_the_store_cannot_be_reached() {
    let mut server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).timeout(LIMIT);
    let locks = Locks::builder(store.build().unwrap());
    let locks = locks.build().unwrap();
    server.kill();
    let log = Warnings::default();
    let _recording = tracing::subscriber::set_default(log.clone());
    let error = locks.lock("k").within(LIMIT).await.unwrap_err();
    assert_says(&error, "Connection refused");
    assert!(log.all().contains("Connection refused"), "{}", log.all());
}

#[tokio::test]
async fn connecting_to_a_server_that_does_not_answer_fails_in_time() {
    let server = RedisServer::start().await;
    server.freeze();
    let builder = RedisStore::builder(server.url()).timeout(LIMIT);
    assert_says(&builder.connect().await.unwrap_err(), "within 250ms");
}

#[tokio::test]
async fn a_store_can_be_built_before_its_server_runs() {
    let mut server = RedisServer::start().await;
    server.kill();
    let store = RedisStore::builder(server.url()).timeout(LIMIT);
    let store = store.build().unwrap();
    let (key, a) = (key("k"), owner());
    let error = store.ask_for(attempt(&key, a)).await.unwrap_err();
    assert_says(&error, "is it running?");
    server.restart().await;
    store.take(&key, a).await;
}

#[tokio::test]
async fn the_error_for_a_wrong_password_says_so() {
    let server = RedisServer::start().await;
    let _: Value = server
        .send(&["ACL", "SETUSER", "app", "on", ">other"])
        .await;
    let url = server.url().replace("redis://", "redis://app:secret@");
    let error = RedisStore::connect(url).await.unwrap_err();
    assert_says(&error, "refused the user name or password");
}

#[tokio::test]
async fn the_error_for_a_missing_password_says_so() {
    let server = RedisServer::start().await;
    let mut control = server.connection().await;
    let _: Value = redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "secret"])
        .query_async(&mut control)
        .await
        .unwrap();
    let error = RedisStore::connect(server.url()).await.unwrap_err();
    assert_says(&error, "wants a password");
}

#[tokio::test]
async fn the_error_for_a_missing_permission_says_so() {
    let server = RedisServer::start().await;
    for denied in ["-evalsha", "-psetex", "-incr"] {
        let rule = [
            "ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all", denied,
        ];
        let _: Value = server.send(&rule).await;
        let url = server.url().replace("redis://", "redis://app:secret@");
        let store = RedisStore::connect(url).await.unwrap();
        let error = store
            .ask_for(attempt(&key("k"), owner()))
            .await
            .unwrap_err();
        assert_says(&error, "denies a command");
        assert_eq!(server.leftovers().await, [""; 0]);
    }
}

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let server = RedisServer::start().await;
    let rule = "ACL SETUSER app on >secret ~tdl:* resetchannels &tdl:* +eval +evalsha +script|load +get +set +psetex +del +exists +incr +incrby \
                +pttl +pexpire +time +zadd +zrem +zscore +zrange +zrangebyscore +zrevrangebyscore +zcard +zcount +zrank +zremrangebyscore \
                +publish +subscribe \
                +client|info +client|kill +hello +echo +info";
    let _: Value = server
        .send(&rule.split_whitespace().collect::<Vec<_>>())
        .await;
    let url = server.url().replace("redis://", "redis://app:secret@");
    let store = RedisStore::connect(url).await.unwrap();
    let (key, a, b) = (key("k"), owner(), owner());
    let mut hints = store.watch_for_sure(b.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 2)).await));
    store.see(&key).await;
    store.free(&key, a).await;
    hinted(
        &mut hints,
        tower_distributed_lock::store::Hint::Free(key.clone()),
    )
    .await;
    granted(store.queue(&key, b).await);
    store.record(&key, b, b"done").await;
    store.raise_fence(key.clone(), 7).await.unwrap();
    assert!(store.force_release(key.clone()).await.unwrap());

    for mode in [Mode::Shared, Mode::Permit { of: 2 }] {
        let (c, brief) = (owner(), Duration::from_millis(1));
        let crashes = Acquire {
            lease: brief,
            mode,
            ..attempt(&key, a)
        };
        granted(store.ask_for(crashes).await.unwrap());
        granted(store.ask_as(mode, &key, b).await);
        let waits = match mode {
            Mode::Shared => Mode::Exclusive,
            _ => Mode::Permit { of: 1 },
        };
        held(store.queue_as(waits, &key, c).await);
        assert!(is_renewed(&store.renew_as(mode, &key, b, 2).await));
        store.see(&key).await;
        store.free_as(mode, &key, b).await;
        eventually("the key is free", async || {
            matches!(store.queue_as(waits, &key, c).await, Acquired::Granted(_))
        })
        .await;
        if waits == Mode::Exclusive {
            assert!(is_renewed(&store.renew_as(mode, &key, c, 0).await));
        }
        assert!(store.force_release(key.clone()).await.unwrap());
    }
}

#[tokio::test]
async fn a_full_server_grants_no_locks_and_keeps_its_leases() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let error = store
        .ask_for(attempt(&crate::keys()[0], owner()))
        .await
        .unwrap_err();
    assert_says(&error, "Redis is full");
    let error = store.ask_for(waiting(&key, owner())).await.unwrap_err();
    assert_says(&error, "Redis is full");
    assert!(matches!(
        store.renew_one(renewal(&key, a, 8)).await,
        Renewed::Renewed { .. }
    ));
    // The record is refused, or accepted: a script that has written once may go on. Either way the
    // next one is answered as the first.
    let _ = store.end(recording(&key, a, b"done")).await;

    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(store.record(&key, a, b"done").await, Released::Freed);
    assert!(store.see(&key).await.record.is_some());
}

#[tokio::test]
async fn a_full_server_still_releases() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    held(store.queue(&key, owner()).await);
    let _: Value = server.send(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(store.free(&key, a).await, Released::Freed);
}

#[tokio::test]
async fn the_error_for_a_replica_says_so() {
    let (server, store) = server_and_store().await;
    let _: Value = server.send(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = store
        .ask_for(attempt(&key("k"), owner()))
        .await
        .unwrap_err();
    assert_says(&error, "read-only replica");
    let _: Value = server.send(&["REPLICAOF", "NO", "ONE"]).await;
    store.take(&key("k"), owner()).await;
}

#[tokio::test]
async fn the_error_for_a_server_that_is_loading_says_so() {
    let folder = Folder::new();
    let path = folder.0.to_str().unwrap();
    let mut server = RedisServer::start_with(&["--dir", path, "--rdbcompression", "no"]).await;
    let fill =
        "for i = 1, 8000 do redis.call('SET', 'filler:' .. i, string.rep('x', 4096)) end return 1";
    let _: Value = server.send(&["EVAL", fill, "0"]).await;
    let _: Value = server.send(&["SAVE"]).await;
    // Loading takes 1 ms for each key, and so eight seconds. After every 2 MB the server answers
    // commands.
    server.restart_with(&["--key-load-delay", "1000"]).await;
    let store = RedisStore::builder(server.url()).timeout(Duration::from_secs(20));
    let store = store.build().unwrap();
    let error = store
        .ask_for(attempt(&key("k"), owner()))
        .await
        .unwrap_err();
    assert_says(&error, "still loading");
}

/// A folder that is deleted at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tdl-{}", owner().instance));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_flushed_script_is_sent_again() {
    let (server, store) = server_and_store().await;
    let keys = crate::keys();
    for _ in 0..5 {
        let a = owner();
        for key in &keys {
            store.take(key, a).await;
        }
        let _: Value = server.send(&["SCRIPT", "FLUSH"]).await;
        let batch = keys.iter().map(|key| renewal(key, a, 1)).collect();
        assert!(store.renew_all(batch).await.iter().all(is_renewed));
        let _: Value = server.send(&["SCRIPT", "FLUSH"]).await;
        for key in &keys {
            assert_eq!(store.free(key, a).await, Released::Freed);
        }
    }
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn a_server_that_evicts_keys_causes_a_warning() {
    let warnings = Warnings::default();
    let _recording = tracing::subscriber::set_default(warnings.clone());
    let server = RedisServer::start().await;
    RedisStore::connect(server.url()).await.unwrap();
    assert_eq!(warnings.all(), "");
    let _: Value = server
        .send(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    RedisStore::connect(server.url()).await.unwrap();
    assert!(warnings.all().contains("allkeys-lru"), "{}", warnings.all());
}

/// The server warns about itself when idempotent work relies on it, and only then.
#[tokio::test]
async fn records_on_a_server_without_an_append_only_file_cause_one_warning() {
    let forgetful = RedisServer::start().await;
    let lasting = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let warnings = Warnings::default();
    let _recording = tracing::subscriber::set_default(warnings.clone());
    let connect = async |server: &RedisServer| {
        let store = RedisStore::builder(server.url()).lanes(4);
        Locks::builder(store.connect().await.unwrap())
            .build()
            .unwrap()
    };
    let day = Duration::from_secs(24 * 3600);
    let work = async |_| Ok::<_, std::io::Error>(());

    let locks = connect(&lasting).await;
    let _layer = IdempotencyLayer::new(locks.clone(), request_key::name("all"));
    locks.run_once("message/17", day, work).await.unwrap();
    let locks = connect(&forgetful).await;
    drop(locks.lock("k").await.unwrap());
    assert_eq!(warnings.all(), "", "locks need no records");

    let _layers = [1, 2].map(|_| IdempotencyLayer::new(locks.clone(), request_key::name("all")));
    assert_eq!(warnings.count("redis.forgets"), 1, "{}", warnings.all());
    let warning = warnings.all();
    assert!(warning.contains(&forgetful.port().to_string()), "{warning}");

    // A store that connects at its first use, and work without a layer. Every connection finds out.
    let store = RedisStore::builder(forgetful.url()).lanes(4);
    let locks = Locks::builder(store.build().unwrap()).build().unwrap();
    for message in 0..16 {
        let message = format!("message/{message}");
        locks.run_once(message, day, work).await.unwrap();
    }
    assert_eq!(warnings.count("redis.forgets"), 2, "once for each store");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let build = |url: &str| RedisStore::builder(url);
    for (builder, words) in [
        (build("http://localhost/"), "not a Redis URL"),
        (
            build("redis://app:secret@localhost:port/"),
            "not a Redis URL",
        ),
        (build("redis://localhost/").lanes(0), "1 to 64 lanes, not 0"),
        (build("redis://localhost/").prefix(""), "a prefix is"),
        (build("redis://localhost/").prefix("a{b}"), "without braces"),
        (build("redis://localhost/").prefix("a b"), "visible ASCII"),
        (
            build("redis://localhost/").timeout(Duration::ZERO),
            "below 1 ms",
        ),
    ] {
        assert!(!format!("{builder:?}").contains("secret"));
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(words), "{error}");
    }
}
