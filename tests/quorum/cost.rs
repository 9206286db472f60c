//! The commands that a quorum sends.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio::time::Instant;
use tower_distributed_lock::store::Store;

use crate::{
    Fleet, short,
    support::{eventually, redis_server::RedisServer, words::*},
};

#[tokio::test]
async fn a_lock_costs_one_round_trip_when_the_counters_agree() {
    let fleet = Fleet::start_not_young(3).await;
    let key = key("k");
    let turn = async || {
        let request = short(&key);
        granted(fleet.store.ask_for(request.clone()).await.unwrap());
        fleet.store.free(&key, request.owner).await;
    };
    let counters = async || {
        let looking = fleet.nodes.iter().map(|node| node.see(&key));
        join_all(looking).await.into_iter().map(|seen| seen.fence)
    };
    // The counters start at each server's own clock. A turn lifts those of all nodes that answer in
    // time to the highest.
    eventually("the counters agree", async || {
        turn().await;
        let mut counters = counters().await;
        let first = counters.next().unwrap();
        counters.all(|counter| counter == first) && fleet.is_empty().await
    })
    .await;

    // A node that answers only after the release was sent to it is told once more.
    let expected = BTreeMap::from([("evalsha".to_owned(), 2)]);
    let mut seen = Vec::new();
    for _ in 0..20 {
        join_all(fleet.servers.iter().map(RedisServer::reset_stats)).await;
        turn().await;
        eventually("all nodes are free", async || fleet.is_empty().await).await;
        let commands = join_all(fleet.servers.iter().map(RedisServer::commands)).await;
        if commands.iter().all(|commands| *commands == expected) {
            return;
        }
        seen.push(commands);
    }
    panic!("no turn cost one call for the lock and one for the release: {seen:?}");
}

/// For the record, not for judgement: machines differ.
#[tokio::test]
async fn the_time_to_take_a_free_key_is_printed() {
    let fleet = Fleet::start_not_young(3).await;
    let store: [(&str, &dyn Store); 2] = [
        ("one server", &fleet.nodes[0]),
        ("a quorum of three", &fleet.store),
    ];
    for (name, store) in store {
        let mut took = Vec::new();
        for turn in 0..300 {
            let request = short(&key(&format!("k/{}", turn % 7)));
            let asked = Instant::now();
            granted(store.ask_for(request.clone()).await.unwrap());
            took.push(asked.elapsed());
            store.free(&request.key, request.owner).await;
        }
        took.sort_unstable();
        println!(
            "{name}: granted after {:?} (p50), {:?} (p99)",
            took[150], took[297]
        );
    }
}
