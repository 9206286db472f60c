//! Limits, counts, and unreadable records.

use bytes::Bytes;
use http::StatusCode;
use tower::ServiceExt;
use tower_distributed_lock::{
    Stats,
    store::{Ending, Release},
};

use crate::{
    subject::Subject,
    support::{
        eventually,
        words::{LONG, Words, ending, key, owner},
    },
    web::{Runs, app, layer, lock_key, pay, pay_as, send, send_body, sending},
};

pub(crate) async fn a_scope_that_is_full_is_429_and_others_are_not(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let app = app(layer(&locks).max_running(2), runs.handler());
    let first = sending(&app, pay());
    runs.arrival().await;
    let duplicate = sending(&app, pay());
    eventually("it waits", async || locks.stats().waiting == 1).await;
    let asked = subject.asked().await;
    let third = || http::Request::post("/pay").header("x-tenant-id", "acme");
    let refused = send(&app, third().header("idempotency-key", "other")).await;
    refused.assert_refused(429, "too-many-running");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.problem()["idempotency_key"], "other");
    assert_eq!(subject.asked().await, asked);
    let other = sending(&app, pay_as("other"));
    // Without a key a request is none of this layer's business.
    let without = sending(&app, third());
    runs.arrival().await;
    runs.arrival().await;
    for _ in 0..3 {
        runs.open();
    }
    for answer in [first, duplicate, other, without] {
        assert_eq!(answer.await.unwrap().status, StatusCode::CREATED);
    }
    let later = send(&app, pay()).await;
    assert!(later.is_replayed());
}

pub(crate) async fn an_upload_that_never_ends_keeps_no_request_out(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks).max_running(1), runs.handler());
    let endless = || {
        let stream = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let request = http::Request::post("/pay")
            .header("x-tenant-id", "acme")
            .header("idempotency-key", "endless")
            .body(axum::body::Body::from_stream(stream));
        tokio::spawn(app.clone().oneshot(request.unwrap()))
    };
    let uploads = [endless(), endless(), endless()];
    tokio::task::yield_now().await;
    assert_eq!(send(&app, pay()).await.status, StatusCode::CREATED);
    for upload in uploads {
        assert!(!upload.is_finished());
        upload.abort();
    }
}

pub(crate) async fn all_layers_of_a_process_count_together(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::gated());
    let [one, two] = [(); 2].map(|()| app(layer(&locks).max_running(1), runs.handler()));
    let first = sending(&one, pay());
    runs.arrival().await;
    let other = || http::Request::post("/pay").header("idempotency-key", "other");
    let refused = send(&two, other().header("x-tenant-id", "acme")).await;
    refused.assert_refused(429, "too-many-running");
    runs.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    runs.open();
    let later = send(&two, other().header("x-tenant-id", "acme")).await;
    assert_eq!(later.status, StatusCode::CREATED);
}

pub(crate) async fn a_place_is_free_again_after_an_answer_a_refusal_and_a_panic(
    subject: impl Subject,
) {
    let locks = subject.replica().build().unwrap();
    let handler = async |uri: http::Uri| {
        assert_ne!(uri.path(), "/panic", "this panic is part of the test");
    };
    let app = app(layer(&locks).max_running(1).max_request(4), handler);
    let panicking = sending(&app, pay_as("clumsy").uri("/panic"));
    let too_large = send_body(&app, pay_as("other"), "five!".into()).await;
    too_large.assert_refused(413, "body-too-large");
    assert!(panicking.await.unwrap_err().is_panic());
    let again = send(&app, pay_as("clumsy").uri("/panic")).await;
    again.assert_refused(500, "handler-panicked");
    for replayed in [false, true] {
        assert_eq!(send(&app, pay()).await.is_replayed(), replayed);
        let other = send(&app, pay_as("other")).await;
        assert_eq!(other.is_replayed(), replayed);
    }
}

pub(crate) async fn a_damaged_record_is_an_error_and_not_a_second_run(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    send(&app, pay()).await;
    let store = subject.store();
    let whole = store.see(&lock_key()).await.record.unwrap();
    let newer = [&[9], &whole[1..]].concat();
    let a_value = [&[2, b'V'], &whole[2..34], b"x"].concat();
    let damaged: [&[u8]; 6] = [b"", b"\x02", &whole[..20], &whole[..40], &newer, &a_value];
    for damaged in damaged {
        store.force_release(lock_key()).await.unwrap();
        let somebody = owner();
        store.take(&lock_key(), somebody).await;
        let record = Ending::Record {
            content: Bytes::copy_from_slice(damaged),
            retain: LONG,
        };
        let release = Release {
            ending: record,
            ..ending(&lock_key(), somebody)
        };
        store.end(release).await.unwrap();
        let answer = send(&app, pay()).await;
        answer.assert_refused(500, "record-unreadable");
        assert_eq!(answer.problem()["retryable"], false);
    }
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn nothing_is_left_but_the_record(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let kept = app(layer(&locks), runs.handler());
    let not_kept = app(layer(&locks), runs.answering(503));
    let sent = (0..10).map(|_| sending(&kept, pay()));
    for answer in futures_util::future::join_all(sent).await {
        answer.unwrap();
    }
    send(&not_kept, pay_as("other")).await;
    eventually("nothing is under way", async || {
        locks.stats() == Stats::default()
    })
    .await;
    let store = subject.store();
    let seen = store.see(&lock_key()).await;
    assert!(seen.holder().is_none() && seen.queue.is_empty() && seen.record.is_some());
    let other = lock_key().as_str().replace("acme", "other");
    let seen = store.see(&key(&other)).await;
    assert!(seen.holder().is_none() && seen.queue.is_empty() && seen.record.is_none());
}
