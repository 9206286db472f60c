//! The Redis store with replicas, behind Sentinel and in a Cluster, on real servers that fail over.

#[path = "../conformance/subject.rs"]
mod subject;
#[path = "../conformance/suite/mod.rs"]
mod suite;

mod cluster;
mod fail_over;
mod finding;
mod half_open;
mod operators;
mod replicas;
mod runtimes;
mod sentinel;
mod split_brain;

use test_support as support;
use tokio::time::Instant;
use tower_distributed_lock::store::{RedisStore, RedisStoreBuilder};

/// Connects. A busy machine may need more than the short time limit of a test.
async fn connected(builder: RedisStoreBuilder) -> RedisStore {
    let until = Instant::now() + support::PATIENCE;
    loop {
        match builder.clone().connect().await {
            Ok(store) => return store,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    }
}

suite::conformance!(behind_sentinel, crate::sentinel::BehindSentinel, together);
suite::conformance!(with_a_replica, crate::replicas::WithReplica, together);
suite::conformance!(in_a_cluster, crate::cluster::InCluster, together);
