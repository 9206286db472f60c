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

suite::conformance!(behind_sentinel, crate::sentinel::BehindSentinel, together);
suite::conformance!(with_a_replica, crate::replicas::WithReplica, together);
suite::conformance!(in_a_cluster, crate::cluster::InCluster, together);
