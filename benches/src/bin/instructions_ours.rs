//! Locks and drops `N` times, for callgrind: `instructions_ours redis://127.0.0.1/ N`.

use std::time::Duration;

use tower_distributed_lock::{Locks, store::RedisStore};
use tower_distributed_lock_benches::{instructions::repeat, peers::Dropped};

fn main() {
    repeat(async |url| {
        // Under callgrind all takes fifty times as long, connecting included.
        let store = RedisStore::builder(url).timeout(Duration::from_secs(60));
        let store = store.connect().await.expect("the server is up");
        Dropped(Locks::builder(store).build().expect("valid settings"))
    });
}
