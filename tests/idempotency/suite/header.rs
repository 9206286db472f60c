//! The header field.

use axum::{Router, routing::post};
use http::{Method, StatusCode};
use tower_distributed_lock::{IdempotencyLayer, key};

use crate::{
    subject::Subject,
    web::{Runs, app, layer, lock_key, pay, send},
};

fn without_key() -> http::request::Builder {
    http::Request::post("/pay").header("x-tenant-id", "acme")
}

pub(crate) async fn a_string_and_a_bare_value_are_the_same_key(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    for (at, key) in ["k-1", "\"k-1\"", "\"k-1\";v=1;w"].into_iter().enumerate() {
        let answer = send(&app, without_key().header("idempotency-key", key)).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("run 1", at > 0));
    }
}

pub(crate) async fn strict_takes_the_drafts_form_only(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks).strict(), runs.handler());
    let bare = send(&app, without_key().header("idempotency-key", "k")).await;
    bare.assert_refused(400, "bad-idempotency-key");
    let quoted = send(&app, without_key().header("idempotency-key", "\"k\"")).await;
    assert_eq!(quoted.text(), "run 1");
}

pub(crate) async fn a_malformed_key_is_refused_before_the_store_is_asked(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    let long = "x".repeat(256);
    let too_long = format!("\"{long}\"");
    let bad: [&[&[u8]]; 10] = [
        &[b"a", b"b"],
        &[b"a", b"a"],
        &[b""],
        &[b"\"\""],
        &[long.as_bytes()],
        &[too_long.as_bytes()],
        &[b"a b"],
        &[b"\xfc"],
        &[b"a,b"],
        &[b"\"a\", \"b\""],
    ];
    let asked = subject.asked().await;
    for lines in bad {
        let mut request = without_key();
        for line in lines {
            request = request.header("idempotency-key", *line);
        }
        let answer = send(&app, request).await;
        answer.assert_refused(400, "bad-idempotency-key");
        assert_eq!(answer.problem().get("idempotency_key"), None);
    }
    assert_eq!((runs.begun(), subject.asked().await), (0, asked));
}

pub(crate) async fn a_request_without_a_key_passes_or_is_refused_if_one_is_required(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let lax = app(layer(&locks), runs.handler());
    let asked = subject.asked().await;
    for run in ["run 1", "run 2"] {
        assert_eq!(send(&lax, without_key()).await.text(), run);
    }
    let strict = app(layer(&locks).required(), runs.handler());
    send(&strict, without_key())
        .await
        .assert_refused(400, "missing-idempotency-key");
    assert_eq!((runs.begun(), subject.asked().await), (2, asked));
}

pub(crate) async fn a_request_out_of_scope_needs_no_key(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let scope = key::request()
        .header("x-tenant-id")
        .only_when(|parts| parts.uri.path() != "/webhooks");
    let layer = IdempotencyLayer::new(locks.clone(), scope).required();
    let app = app(layer, runs.handler());
    for request in [without_key(), pay().header("idempotency-key", "another")] {
        let answer = send(&app, request.uri("/webhooks")).await;
        assert_eq!(answer.status, StatusCode::CREATED);
    }
    send(&app, without_key())
        .await
        .assert_refused(400, "missing-idempotency-key");
    // A 404 stays one.
    let routes_locks = locks.clone();
    let by_route = IdempotencyLayer::new(locks, key::request().route()).required();
    let routes = Router::new().route("/pay", post(runs.handler()));
    let routes = routes.layer(by_route);
    let nowhere = send(&routes, without_key().uri("/nowhere")).await;
    assert_eq!(nowhere.status, StatusCode::NOT_FOUND);
    send(&routes, without_key())
        .await
        .assert_refused(400, "missing-idempotency-key");
    // Neither does it matter whether the scope needs the route.
    let by_tenant =
        IdempotencyLayer::new(routes_locks, key::request().header("x-tenant-id")).required();
    let routes = Router::new().route("/pay", post(runs.handler()));
    let routes = routes.layer(by_tenant);
    let nowhere = send(&routes, without_key().uri("/nowhere")).await;
    assert_eq!(nowhere.status, StatusCode::NOT_FOUND);
    send(&routes, without_key())
        .await
        .assert_refused(400, "missing-idempotency-key");
}

pub(crate) async fn post_and_patch_are_handled_by_default_and_other_methods_by_a_setter(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let usual = app(layer(&locks).required(), runs.handler());
    for (at, method) in ["POST", "PATCH"].iter().enumerate() {
        let request = || pay().header("idempotency-key", "x").method(*method);
        // Two lines: the layer has looked.
        send(&usual, request())
            .await
            .assert_refused(400, "bad-idempotency-key");
        assert_eq!(runs.begun(), 0, "{at}");
    }
    for (at, method) in ["GET", "PUT", "DELETE"].iter().enumerate() {
        let answer = send(&usual, pay().method(*method)).await;
        assert_eq!(answer.text(), format!("run {}", at + 1));
    }
    let put = app(layer(&locks).methods([Method::PUT]), runs.handler());
    for replayed in [false, true] {
        let answer = send(&put, pay().method("PUT")).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("run 4", replayed));
    }
    assert_eq!(send(&put, pay()).await.text(), "run 5");
}

pub(crate) async fn refusals_contain_the_key_if_it_was_readable(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    let nobody = http::Request::post("/pay").header("idempotency-key", "\"k \\\" 1\"");
    let answer = send(&app, nobody).await;
    answer.assert_refused(400, "bad-key");
    assert_eq!(answer.problem()["idempotency_key"], "k \" 1");

    send(&app, pay()).await;
    let other = send(&app, pay().uri("/other")).await;
    other.assert_refused(422, "key-reused");
    assert_eq!(other.problem()["idempotency_key"], "k");
    assert!(
        subject
            .store()
            .inspect(lock_key())
            .await
            .unwrap()
            .record
            .is_some()
    );
}
