//! Pages over ten thousand locks.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use serde_json::Value;
use tower_distributed_lock::{LockGuard, Locks};

use crate::{demo::Server, json::Fleet};

const MANY: usize = 10_000;

/// Redis returns keys in small groups, so a page of about 50 keys can be longer.
const LONGEST_PAGE: usize = 150;

async fn lock_many(locks: &Locks) -> Vec<LockGuard> {
    let keys = stream::iter(0..MANY).map(|number| locks.lock(format!("order,id={number:05}")));
    let guards = keys.buffer_unordered(500).map(Result::unwrap);
    guards.collect().await
}

fn keys(page: &Value) -> Vec<String> {
    let keys = page["keys"].as_array().unwrap().iter();
    keys.map(|key| key["key"].as_str().unwrap().to_owned())
        .collect()
}

async fn all_pages_together_have_every_key(fleet: Fleet) {
    let locks = fleet.instance("ours");
    let _guards = lock_many(&locks).await;
    let server = Server::read_only(&locks).await;

    let (mut seen, mut cursor, mut pages) = (BTreeSet::new(), String::new(), 0);
    loop {
        let page = server.ask("fleet", &[("cursor", &cursor)]).await;
        let keys = keys(&page);
        assert!(keys.len() <= LONGEST_PAGE);
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        seen.extend(keys);
        pages += 1;
        match page["next"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen.len(), MANY);
    assert!(pages >= MANY / LONGEST_PAGE, "{pages} pages");

    for offset in [0, MANY / 2, MANY - 50] {
        let fields = [("offset", &*offset.to_string())];
        let page = server.ask("instance", &fields).await;
        assert_eq!(page["total"], MANY);
        let expected = (offset..offset + 50).map(|number| format!("order,id={number:05}"));
        assert_eq!(keys(&page), expected.collect::<Vec<_>>());
    }

    // A page past the end is the last one.
    let page = server.ask("instance", &[("offset", "123456")]).await;
    assert_eq!(page["offset"], MANY - 50);
    let page = server.ask("instance", &[("prefix", "order,id=0123")]).await;
    assert_eq!((page["total"].as_u64(), keys(&page).len()), (Some(10), 10));
}

#[tokio::test]
async fn all_pages_together_have_every_key_in_memory() {
    all_pages_together_have_every_key(Fleet::memory()).await;
}

#[tokio::test]
async fn all_pages_together_have_every_key_in_redis() {
    all_pages_together_have_every_key(Fleet::redis().await).await;
}
