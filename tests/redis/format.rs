//! The names and values that an operator sees in Redis.

use bytes::Bytes;
use redis::Value;
use tower_distributed_lock::{
    ErrorKind,
    store::{Acquire, RedisStore, Released, Renewed, Store},
};

use crate::{
    server_and_store,
    support::{eventually, redis_server::RedisServer, words::*},
};

const LOCK: &str = "tdl:2:{b2089}:lock:orders/42";
const QUEUE: &str = "tdl:2:{b2089}:queue:orders/42";

async fn labelled(server: &RedisServer, label: &str) -> RedisStore {
    let store = RedisStore::builder(server.url()).label(label);
    store.connect().await.unwrap()
}

#[tokio::test]
async fn names_and_values_are_as_documented() {
    let server = RedisServer::start().await;
    let store = labelled(&server, "host-7").await;
    let (key, a, b) = (key("orders/42"), owner(), owner());
    let request = Acquire {
        fingerprint: Some(Bytes::from_static(b"abc")),
        ..attempt(&key, a)
    };
    granted(store.ask_for(request).await.unwrap());
    let value = async || server.send::<String>(&["GET", LOCK]).await;
    assert_eq!(value().await, format!("lease:{a}@host-7 abc"));

    held(store.queue(&key, b).await);
    assert_eq!(value().await, format!("wanted:{a}@host-7 abc"));
    assert_eq!(server.leftovers().await, [LOCK, QUEUE]);
    let members: Vec<String> = server.send(&["ZRANGE", QUEUE, "0", "-1"]).await;
    assert_eq!(members, [b.to_string(), format!("until:{b}")]);

    store.free(&key, a).await;
    let members: Vec<String> = server.send(&["ZRANGE", QUEUE, "0", "-1"]).await;
    let of_b = [b.to_string(), format!("until:{b}"), format!("free:{b}")];
    assert_eq!(members, of_b);
    granted(store.queue(&key, b).await);
    store.record(&key, b, b"done").await;
    assert_eq!(value().await, format!("record:{b} done"));
}

#[tokio::test]
async fn a_lease_is_marked_as_long_as_an_attempt_is_queued() {
    let (server, store) = server_and_store().await;
    let (key, a, b) = (key("orders/42"), owner(), owner());
    let is_marked = async || {
        let value: String = server.send(&["GET", LOCK]).await;
        value.starts_with("wanted:")
    };
    store.take(&key, a).await;
    for gives_up_by_release in [true, false] {
        held(store.queue(&key, b).await);
        assert!(is_marked().await);
        if gives_up_by_release {
            store.free(&key, b).await;
        } else {
            held(store.ask(&key, b).await);
        }
        assert!(!is_marked().await);
    }
    let brief = Acquire {
        queueing: tower_distributed_lock::store::Queueing::Wait {
            deadline: SHORT,
            head_start: LONG,
        },
        ..attempt(&key, b)
    };
    held(store.ask_for(brief).await.unwrap());
    eventually("a renewal with tokens takes the mark off", async || {
        store.renew_one(renewal(&key, a, 1)).await;
        !is_marked().await
    })
    .await;
    assert!(matches!(
        store.renew_one(renewal(&key, a, 0)).await,
        Renewed::Renewed {
            others_wait: false,
            ..
        }
    ));
}

#[tokio::test]
async fn stores_of_different_labels_are_one_fleet() {
    let server = RedisServer::start().await;
    let (one, two) = (
        labelled(&server, "one").await,
        labelled(&server, "two").await,
    );
    let (key, a) = (key("k"), owner());
    assert_eq!(one.space(), two.space());
    one.take(&key, a).await;
    let answer = held(two.ask(&key, owner()).await);
    assert_eq!(answer.label.as_deref(), Some("one"));
    // A release counts by its owner, not by its label, because a process may have two stores.
    for refill in [0, 1] {
        assert!(is_renewed(&two.renew_one(renewal(&key, a, refill)).await));
    }
    assert_eq!(two.free(&key, a).await, Released::Freed);
}

#[tokio::test]
async fn the_label_is_the_host_name_unless_set() {
    let (_server, store) = server_and_store().await;
    let (key, a) = (key("k"), owner());
    store.take(&key, a).await;
    let holder = store.see(&key).await.holder().cloned().unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    if let Some(host) = host.filter(|host| host.trim().bytes().all(|b| b.is_ascii_alphanumeric())) {
        assert_eq!(holder.label.as_deref(), Some(host.trim()));
    }
}

#[tokio::test]
async fn a_label_that_cannot_be_read_back_is_refused() {
    for label in ["", "a b", "a@b", "büro", "a/b", &"a".repeat(65)] {
        let store = RedisStore::builder("redis://localhost/").label(label);
        let error = store.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("label"), "{error}");
    }
}

#[tokio::test]
async fn values_of_another_version_are_neither_read_nor_touched() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    let old = "tdl:{b2089}:lock:orders/42";
    let _: Value = server
        .send(&["SET", old, &format!("lease:{}", owner())])
        .await;
    store.take(&key, a).await;
    store.free(&key, a).await;
    assert_eq!(server.leftovers().await, [old]);
}
