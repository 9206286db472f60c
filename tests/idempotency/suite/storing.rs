//! A store that does not answer.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    subject::{A_WHILE, Subject},
    support::{PATIENCE, eventually, words::Words},
    web::{Runs, app, layer, lock_key, pay, send, sending},
};

/// How long the layers of these tests try to store an answer.
const WITHIN: Duration = Duration::from_millis(700);

pub(crate) async fn a_store_that_is_down_at_the_claim_is_503(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    subject.cut_off(true);
    let answer = send(&app, pay()).await;
    answer.assert_refused(503, "store-unreachable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.problem()["idempotency_key"], "k");
    assert_eq!(runs.begun(), 0);
    subject.cut_off(false);
    // Calls that were made meanwhile may have to be cleared away first.
    eventually("it works again", async || {
        send(&app, pay()).await.status == 201
    })
    .await;
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn a_store_that_is_down_after_the_handler_delays_the_answer_by_the_store_limit_only(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks).store_within(WITHIN), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    subject.cut_off(true);
    let began = Instant::now();
    runs.open();
    let first = first.await.unwrap();
    assert_eq!(first.text(), "run 1");
    assert_eq!(first.header("idempotency-stored"), Some("unknown"));
    assert!(began.elapsed() >= WITHIN, "{:?}", began.elapsed());
    assert!(began.elapsed() < PATIENCE / 2);
    subject.cut_off(false);
}

pub(crate) async fn a_store_that_comes_back_in_time_gets_the_answer(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks).store_within(PATIENCE), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    subject.cut_off(true);
    runs.open();
    sleep(2 * WITHIN).await;
    assert!(!first.is_finished());
    subject.cut_off(false);
    let first = first.await.unwrap();
    assert_eq!(
        (first.text(), first.header("idempotency-stored")),
        ("run 1", None)
    );
    assert!(send(&app, pay()).await.is_replayed());
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn waiting_duplicates_get_an_answer_that_was_not_stored(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(
        layer(&locks).store_within(WITHIN).wait(PATIENCE),
        runs.handler(),
    );
    let first = sending(&app, pay());
    runs.arrival().await;
    let duplicate = sending(&app, pay());
    eventually("it waits", async || locks.stats().waiting == 1).await;
    subject.cut_off(true);
    runs.open();
    assert_eq!(
        first.await.unwrap().header("idempotency-stored"),
        Some("unknown")
    );
    let duplicate = duplicate.await.unwrap();
    assert_eq!((duplicate.text(), duplicate.is_replayed()), ("run 1", true));
    subject.cut_off(false);
}

pub(crate) async fn a_key_whose_answer_was_not_stored_is_not_free_at_once(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(
        layer(&locks).store_within(WITHIN).wait(A_WHILE),
        runs.handler(),
    );
    let first = sending(&app, pay());
    runs.arrival().await;
    subject.cut_off(true);
    runs.open();
    first.await.unwrap();
    subject.cut_off(false);
    // Either the lease is still there, or the record has arrived after all.
    let retried = async || {
        let answer = send(&app, pay()).await;
        answer.is_replayed() || answer.status == 409
    };
    assert!(retried().await);
    eventually("the answer has arrived", async || {
        subject.store().see(&lock_key()).await.record.is_some()
    })
    .await;
    assert!(send(&app, pay()).await.is_replayed());
    assert_eq!(runs.begun(), 1);
}
