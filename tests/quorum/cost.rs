//! What it sends.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use crate::{
    Fleet, short,
    support::{eventually, redis_server::RedisServer, words::*},
};
use tower_distributed_lock::store::Store;

#[tokio::test]
async fn one_round_trip_when_the_counters_agree() {
    let fleet = Fleet::start_mature(3).await;
    let key = key("k");
    // The counters start at each server's own clock; this lifts all of them to the highest.
    let turn = async || {
        let request = short(&key);
        granted(fleet.store.acquire(request.clone()).await.unwrap());
        fleet.store.free(&key, request.owner).await;
    };
    turn().await;
    let counters = async || {
        let looking = fleet.nodes.iter().map(|node| node.see(&key));
        join_all(looking).await.into_iter().map(|seen| seen.fence)
    };
    eventually("the counters agree", async || {
        let mut counters = counters().await;
        let first = counters.next().unwrap();
        counters.all(|counter| counter == first) && fleet.is_empty().await
    })
    .await;

    join_all(fleet.servers.iter().map(RedisServer::reset_stats)).await;
    turn().await;
    eventually("all nodes are free", async || fleet.is_empty().await).await;
    for server in &fleet.servers {
        let expected = BTreeMap::from([("evalsha".to_owned(), 2)]);
        assert_eq!(server.commands().await, expected);
    }
}
