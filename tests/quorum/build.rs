//! Nodes that cannot make a quorum are refused.

use std::time::Duration;

use tower_distributed_lock::{
    Error, ErrorKind, Locks,
    store::{FaultyStore, List, QuorumStore, RedisStore, Store},
};

use crate::support::{
    eventually,
    redis_server::RedisServer,
    words::{self, Words},
};

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, Error>, words: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains(words), "{error}");
}

fn nodes(count: usize) -> Vec<FaultyStore> {
    (0..count).map(|_| FaultyStore::new()).collect()
}

#[test]
fn an_even_number_of_nodes_and_too_few_nodes_are_refused() {
    for (count, words) in [
        (0, "at least 3 nodes, not 0"),
        (1, "at least 3 nodes, not 1"),
        (2, "at least 3 nodes, not 2"),
        (4, "odd number of nodes, not 4"),
        (6, "odd number of nodes, not 6"),
    ] {
        assert_refused(QuorumStore::new(nodes(count)), words);
    }
    for count in [3, 5, 7] {
        QuorumStore::new(nodes(count)).unwrap();
    }
}

#[test]
fn the_same_node_twice_is_refused() {
    let mut nodes = nodes(2);
    nodes.push(nodes[0].clone());
    let space = nodes[0].space();
    assert_refused(
        QuorumStore::new(nodes),
        &format!("`{space}` is there twice"),
    );
    let url = |port| RedisStore::builder(format!("redis://127.0.0.1:{port}/")).build();
    let nodes = [url(1), url(2), url(1)].map(Result::unwrap);
    assert_refused(QuorumStore::new(nodes), "127.0.0.1:1");
}

#[test]
fn a_timeout_that_lets_no_call_succeed_is_refused() {
    let builder = QuorumStore::builder(nodes(3)).node_timeout(Duration::ZERO);
    assert_refused(builder.build(), "0ns");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_more_than_an_hour_is_refused() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let build = |timeout| QuorumStore::builder(nodes(3)).node_timeout(timeout).build();
    assert_refused(build(Duration::MAX), &format!("{:?}", Duration::MAX));
    assert_refused(build(HOUR + Duration::from_nanos(1)), "one hour");

    // The longest timeout works for calls that take several times as long.
    let store = build(HOUR).unwrap();
    let (key, owner) = (words::key("k"), words::owner());
    store.take(&key, owner).await;
    store.list(List::all()).await.unwrap();
    store.record(&key, owner, b"done").await;
}

#[test]
fn nodes_may_differ_in_kind_and_their_order_does_not_matter() {
    let (nodes, redis) = (
        nodes(2),
        RedisStore::builder("redis://127.0.0.1:1/").build(),
    );
    let redis = redis.unwrap();
    let one = QuorumStore::builder(nodes.clone()).node(redis.clone());
    let other = QuorumStore::builder([redis]).node(nodes[1].clone());
    let other = other.node(nodes[0].clone());
    assert_eq!(one.build().unwrap().space(), other.build().unwrap().space());
}

#[tokio::test]
async fn connecting_by_urls_needs_a_majority_of_nodes() {
    let mut servers = [
        RedisServer::start().await,
        RedisServer::start().await,
        RedisServer::start().await,
    ];
    let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
    assert_refused(Locks::quorum(&urls[..2]).await, "at least 3");
    assert_refused(Locks::quorum([&urls[0], &urls[1], &urls[0]]).await, "twice");
    assert_refused(
        Locks::quorum(["redis://a", "no url", "redis://c"]).await,
        "not a Redis URL",
    );

    let locks = Locks::quorum(&urls).await.unwrap();
    locks.lock("k").await.unwrap().release().await.unwrap();
    servers[1].kill();
    Locks::quorum(&urls).await.unwrap();
    servers[2].kill();
    let error = Locks::quorum(&urls).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let words = error.to_string();
    assert!(
        words.starts_with("no quorum: 2 of 3 nodes unreachable: ")
            && words.contains("cannot connect")
            && words.contains("Connection refused"),
        "{words}"
    );
}

/// They share their fate, and no majority of them means anything.
#[tokio::test]
async fn three_databases_of_one_server_are_refused() {
    let server = RedisServer::start().await;
    let urls = [0, 1, 2].map(|database| format!("{}{database}", server.url()));
    assert_refused(Locks::quorum(&urls).await, "nodes 0 and 1 are one server");

    // A store that was built without a connection finds out at the first answers.
    let nodes = urls.map(|url| RedisStore::builder(url).build().unwrap());
    let store = QuorumStore::new(nodes).unwrap();
    for _ in 0..2 {
        let (key, owner) = (words::key("k"), words::owner());
        let asking = store.ask_for(words::attempt(&key, owner));
        assert_refused(asking.await, "are one server");
    }
    eventually("nothing is left", async || {
        server.leftovers().await.is_empty()
    })
    .await;
}
