//! Helpers for tests on real servers.

// Every test binary compiles this for itself and uses only a part of it.
#![allow(dead_code)]

pub(crate) mod authority;
pub(crate) mod cluster;
pub(crate) mod fake_sentinel;
pub(crate) mod ledger;
pub(crate) mod proxy;
pub(crate) mod redis_server;
pub(crate) mod replica;
pub(crate) mod sentinels;
pub(crate) mod warnings;
pub(crate) mod words;

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a test waits before it fails. Generous: no other test takes so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until the answer is yes.
pub(crate) async fn eventually(what: &str, is_so: impl AsyncFnMut() -> bool) {
    eventually_within(PATIENCE, what, is_so).await;
}

/// Asks again and again until the answer is yes, for at most so long.
pub(crate) async fn eventually_within(
    patience: Duration,
    what: &str,
    mut is_so: impl AsyncFnMut() -> bool,
) {
    let until = Instant::now() + patience;
    while !is_so().await {
        assert!(Instant::now() < until, "still not so: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}
