//! Helpers for tests on real servers.

// No test needs these futures to be `Send`.
#![allow(async_fn_in_trait)]

pub mod at_commit;
pub mod authority;
pub mod cluster;
pub mod fake_sentinel;
pub mod ledger;
pub mod pooler;
pub mod postgres;
pub mod proxy;
pub mod random;
pub mod redis_server;
pub mod replica;
pub mod sentinels;
pub mod warnings;
pub mod words;

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a test waits before it fails. Generous: no other test takes so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until the answer is yes.
pub async fn eventually(what: &str, is_so: impl AsyncFnMut() -> bool) {
    eventually_within(PATIENCE, what, is_so).await;
}

/// Asks again and again until the answer is yes, for at most so long.
pub async fn eventually_within(
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
