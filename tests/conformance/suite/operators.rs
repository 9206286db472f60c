//! Operators inspect keys and release them by force.

use std::collections::BTreeSet;

use bytes::Bytes;
use tower_distributed_lock::{
    ErrorKind, LockKey,
    store::{Acquire, Expected, Inspection, List, Mode, Released, Renewed, Store},
};

use crate::subject::*;

pub(crate) async fn inspecting_tells_all_and_changes_nothing(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    let nothing = store.see(&key).await;
    assert_eq!((nothing.holder(), nothing.record.clone()), (None, None));
    assert_eq!(nothing.queue, []);
    assert!(subject.is_empty().await);

    let request = Acquire {
        fingerprint: Some(Bytes::from_static(b"note")),
        ..attempt(&key, a)
    };
    let grant = granted(store.ask_for(request).await.unwrap());
    held(store.queue(&key, b).await);
    let look = async || {
        let Inspection {
            mut holders,
            queue,
            record,
            fence,
            ..
        } = store.see(&key).await;
        let holder = holders.remove(0);
        assert!(holders.is_empty());
        assert!(holder.remaining > LONG / 2 && holder.remaining <= LONG);
        (holder.owner, holder.fingerprint, queue, record, fence)
    };
    let expected = (
        a,
        Some(Bytes::from_static(b"note")),
        vec![b],
        None,
        grant.tokens.last().unwrap(),
    );
    assert_eq!(look().await, expected);
    assert_eq!(look().await, expected);
}

pub(crate) async fn a_forced_release_takes_the_key_from_its_holder(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    assert!(!store.force_release(key.clone()).await.unwrap());
    store.take(&key, a).await;
    assert!(store.force_release(key.clone()).await.unwrap());
    let renewed = store.renew_one(renewal(&key, a, 0)).await;
    assert!(matches!(renewed, Renewed::NotOurs));
    assert_eq!(store.free(&key, a).await, Released::NotOurs);
    store.take(&key, owner()).await;
}

pub(crate) async fn a_forced_release_removes_a_record(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    store.record(&key, a, b"done").await;
    assert!(store.force_release(key.clone()).await.unwrap());
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_forced_release_takes_only_what_is_expected(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    let take = async |expected| store.force_release_if(key.clone(), expected).await.unwrap();
    for expected in [Expected::Holder(a), Expected::Record] {
        assert!(!take(expected).await, "the key is free");
    }
    store.take(&key, a).await;
    for other in [Expected::Holder(b), Expected::Record] {
        assert!(!take(other).await);
    }
    assert_eq!(store.see(&key).await.holder().unwrap().owner, a);
    assert!(take(Expected::Holder(a)).await);
    assert!(store.see(&key).await.holder().is_none());

    // Of several holders, one is enough.
    for reader in [a, b] {
        let request = Acquire {
            mode: Mode::Shared,
            ..attempt(&key, reader)
        };
        granted(store.ask_for(request).await.unwrap());
    }
    for other in [Expected::Holder(owner()), Expected::Record] {
        assert!(!take(other).await);
    }
    assert_eq!(store.see(&key).await.holders.len(), 2);
    assert!(take(Expected::Holder(b)).await);
    assert!(store.see(&key).await.holders.is_empty());

    let c = owner();
    store.take(&key, c).await;
    store.record(&key, c, b"done").await;
    assert!(!take(Expected::Holder(c)).await, "not a lease any more");
    assert!(take(Expected::Record).await);
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_ping_is_answered_and_changes_nothing(subject: impl Subject) {
    let store = subject.store();
    store.ping().await.unwrap();
    assert!(subject.is_empty().await);
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    let before = store.see(&key).await;
    store.ping().await.unwrap();
    let after = store.see(&key).await;
    assert_eq!((after.holders.len(), after.fence), (1, before.fence));
}

pub(crate) async fn keys_with_a_lease_a_record_or_a_queue_are_listed(subject: impl Subject) {
    let store = subject.store();
    assert_eq!(list(store, List::all()).await, texts([]));
    let [leased, recorded, queued] = ["leased", "recorded", "queued"].map(key);
    let (a, b, c) = (owner(), owner(), owner());
    store.take(&leased, a).await;
    store.take(&recorded, b).await;
    store.record(&recorded, b, b"done").await;
    // The head of a queue at a free key.
    store.take(&queued, c).await;
    held(store.queue(&queued, owner()).await);
    store.free(&queued, c).await;
    let all = texts(["leased", "queued", "recorded"]);
    assert_eq!(list(store, List::all()).await, all);

    store.free(&leased, a).await;
    store.force_release(recorded.clone()).await.unwrap();
    eventually("keys without anything are not listed", async || {
        list(store, List::all()).await == texts(["queued"])
    })
    .await;
}

pub(crate) async fn every_character_of_a_prefix_stands_for_itself(subject: impl Subject) {
    let store = subject.store();
    let keys = [
        "*",
        "**",
        "a*b",
        "a?b",
        "axb",
        "[a]",
        "a",
        "]",
        "[^a]",
        "^",
        "\\*",
        "\\",
        "a b",
        " ",
        "a  ",
        "é",
        "è",
        "日本語/1",
        "日本",
        "{b1}",
        "lock:a",
        "queue:a",
        "a:lock:b",
        "}:lock:a",
        "<b>&\"'",
        "tdl:2:{b1}:lock:a",
        "\u{202e}x",
        "a/1",
        "a/10",
        "A",
    ];
    for text in keys {
        store.take(&key(text), owner()).await;
    }
    let more = ["", "\n", "nothing", "a[", "日", "[^", "a/", "tdl"];
    for prefix in keys.into_iter().chain(more) {
        let with_prefix = keys.iter().filter(|text| text.starts_with(prefix));
        let expected: BTreeSet<String> = with_prefix.map(|text| (*text).to_owned()).collect();
        let listed = list(store, List::starting_with(prefix)).await;
        assert_eq!(listed, expected, "{prefix:?}");
    }
}

pub(crate) async fn pages_together_have_all_keys(subject: impl Subject) {
    let store = subject.store();
    let keys: BTreeSet<String> = (0..80).map(|n| format!("k/{n}")).collect();
    for text in &keys {
        store.take(&key(text), owner()).await;
    }
    store.take(&key("other"), owner()).await;
    for at_most in [0, 7, 80, usize::MAX] {
        let request = List::starting_with("k/").at_most(at_most);
        assert_eq!(list(store, request).await, keys, "{at_most}");
    }
    let first = store.list(List::starting_with("k/").at_most(7)).await;
    let first = first.unwrap();
    // Every node of a store returns its keys in groups of about ten.
    assert!((1..=100).contains(&first.keys.len()), "{first:?}");
    assert!(first.keys.is_sorted() && first.next.is_some());
}

pub(crate) async fn a_cursor_of_another_store_is_refused(subject: impl Subject) {
    for text in ["x", "0", "after", "nodes:", "nodes:x,x,x", "-1@", "x@y"] {
        let cursor = text.parse().unwrap();
        let listed = subject.store().list(List::all().after(cursor)).await;
        assert_eq!(
            listed.unwrap_err().kind(),
            ErrorKind::InvalidConfig,
            "{text}"
        );
    }
}

/// The keys of all pages.
async fn list(store: &dyn Store, mut request: List) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for _ in 0..2000 {
        let page = store.list(request.clone()).await.unwrap();
        keys.extend(page.keys.iter().map(LockKey::to_string));
        match page.next {
            // A cursor is the same after its way through a client.
            Some(next) => request.cursor = Some(next.to_string().parse().unwrap()),
            None => return keys,
        }
    }
    panic!("the listing does not end");
}

fn texts<const N: usize>(keys: [&str; N]) -> BTreeSet<String> {
    keys.into_iter().map(str::to_owned).collect()
}
