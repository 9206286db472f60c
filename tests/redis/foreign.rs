//! Values under the names of the store that another program wrote.

use redis::Value;
use tower_distributed_lock::{
    Error, ErrorKind,
    store::{Renewed, Store},
};

use crate::{server_and_store, support::words::*};

fn assert_foreign(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error:?}");
    assert!(
        !error.to_string().contains("orders/42"),
        "keys may be personal data"
    );
}

#[tokio::test]
async fn a_foreign_value_is_an_error_and_is_left_alone() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    let lock = "tdl:2:{b2089}:lock:orders/42";
    let record_without_content = format!("record:{a}");
    let empty_label = format!("lease:{a}@");
    let foreign: [&[&str]; 9] = [
        &["RPUSH", lock, "x"],
        &["HSET", lock, "a", "b"],
        &["SET", lock, ""],
        &["SET", lock, "locked"],
        &["SET", lock, "lease:"],
        &["SET", lock, "lease:nobody:1"],
        &["SET", lock, "leased:3f2b1c9e-7b1a-4a55-9f63-0b8d2e4c5a66:1"],
        &["SET", lock, &record_without_content],
        &["SET", lock, &empty_label],
    ];
    for words in foreign {
        let _: Value = server.send(words).await;
        let before: Value = server.send(&["DUMP", lock]).await;
        println!("{words:?}");

        assert_foreign(&store.ask_for(attempt(&key, a)).await.unwrap_err());
        assert_foreign(&store.ask_for(waiting(&key, a)).await.unwrap_err());
        assert_foreign(&store.end(ending(&key, a)).await.unwrap_err());
        assert_foreign(&store.end(recording(&key, a, b"r")).await.unwrap_err());
        assert_foreign(&store.force_release(key.clone()).await.unwrap_err());
        assert_foreign(&store.inspect(key.clone()).await.unwrap_err());
        for refill in [0, 1] {
            let Renewed::Unknown(error) = store.renew_one(renewal(&key, a, refill)).await else {
                panic!("there is nothing to renew");
            };
            assert_foreign(&error);
        }

        let after: Value = server.send(&["DUMP", lock]).await;
        assert_eq!(after, before);
        assert_eq!(server.leftovers().await, [lock]);
        let _: Value = server.send(&["DEL", lock]).await;
    }
    store.take(&key, a).await;
}

#[tokio::test]
async fn a_foreign_queue_is_an_error_and_nothing_is_taken_or_freed() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    let queue = "tdl:2:{b2089}:queue:orders/42";
    let _: Value = server.send(&["SET", queue, "x"]).await;
    assert_foreign(&store.ask_for(attempt(&key, a)).await.unwrap_err());
    assert_eq!(server.leftovers().await, [queue]);

    let _: Value = server.send(&["DEL", queue]).await;
    store.take(&key, a).await;
    held(store.queue(&key, owner()).await);
    let _: Value = server.send(&["DEL", queue]).await;
    let _: Value = server.send(&["SET", queue, "x"]).await;
    assert_foreign(&store.end(ending(&key, a)).await.unwrap_err());
    assert_eq!(
        server.leftovers().await.len(),
        2,
        "the lease is still there"
    );
}

#[tokio::test]
async fn a_foreign_token_counter_is_an_error_and_nothing_is_taken() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    let fence = "tdl:2:{b2089}:fence";
    for words in [
        ["SET", fence, "many"],
        ["SET", fence, "9007199254740991"],
        ["SET", fence, "9223372036854775807"],
        ["RPUSH", fence, "1"],
    ] {
        let _: Value = server.send(&words).await;
        assert_foreign(&store.ask_for(attempt(&key, a)).await.unwrap_err());
        assert_eq!(server.leftovers().await, [""; 0]);
        let _: Value = server.send(&["DEL", fence]).await;
    }
}

#[tokio::test]
async fn a_renewal_survives_a_counter_that_cannot_count() {
    let (server, store) = server_and_store().await;
    let (key, a) = (key("orders/42"), owner());
    store.take(&key, a).await;
    let _: Value = server.send(&["SET", "tdl:2:{b2089}:fence", "many"]).await;
    assert!(matches!(
        store.renew_one(renewal(&key, a, 8)).await,
        Renewed::Renewed { tokens: None, .. }
    ));
}
