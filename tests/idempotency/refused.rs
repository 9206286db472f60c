//! Records that the server refuses.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    subject::{Redis, Subject},
    support::{PATIENCE, words::Words},
    web::{Runs, app, layer, lock_key, pay, send, sending},
};

#[tokio::test]
async fn an_answer_that_the_store_refuses_is_marked_as_not_stored() {
    let redis = Redis::start().await;
    let (locks, runs) = (redis.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    // Another program uses the same name.
    let [lock] = &redis.server.leftovers().await[..] else {
        panic!("one key is expected");
    };
    let _: () = redis.server.send(&["SET", lock, "something else"]).await;
    runs.open();
    let first = first.await.unwrap();
    assert_eq!(
        (first.text(), first.header("idempotency-stored")),
        ("run 1", Some("false"))
    );
    // A foreign value at the key does not let the handler run again.
    send(&app, pay()).await.assert_refused(500, "misconfigured");
    assert_eq!(runs.begun(), 1);
}

#[tokio::test]
async fn a_record_that_is_refused_for_a_while_is_stored_under_the_renewed_lease() {
    let redis = Redis::start().await;
    let lease = Duration::from_millis(900);
    let (locks, runs) = (redis.replica().lease(lease).build().unwrap(), Runs::gated());
    let app = app(layer(&locks).store_within(PATIENCE), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    // A renewal needs no SET, a record does.
    let _: () = redis
        .server
        .send(&["ACL", "SETUSER", "default", "-set"])
        .await;
    let holder = redis.store().holder(&lock_key()).await;
    runs.open();
    // Longer than the lease would last by itself.
    sleep(3 * lease).await;
    assert!(!first.is_finished());
    assert_eq!(redis.store().holder(&lock_key()).await, holder);
    let _: () = redis
        .server
        .send(&["ACL", "SETUSER", "default", "+set"])
        .await;
    let first = first.await.unwrap();
    assert_eq!(
        (first.text(), first.header("idempotency-stored")),
        ("run 1", None)
    );
    assert!(send(&app, pay()).await.is_replayed());
    assert_eq!(runs.begun(), 1);
}
