//! Later: the same answer again.

use std::time::Duration;

use axum::{Router, body::Body, response::AppendHeaders, routing::post};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use tower::{Layer, ServiceExt};
use tower_distributed_lock::{IdempotencyLayer, key};

use crate::{
    subject::Subject,
    support::eventually,
    web::{Runs, app, layer, lock_key, pay, pay_as, send},
};

pub(crate) async fn status_body_and_headers_are_replayed(subject: impl Subject) {
    let locks = subject.replica().build().unwrap();
    let header = |name, value| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_bytes(value).unwrap(),
        )
    };
    let headers = [
        header("content-type", b"application/x-any"),
        header("location", b"/payments/1"),
        header("x-twice", b"one"),
        header("x-twice", b"t\xfco"),
        header("x-empty", b""),
    ];
    let body = Bytes::from_static(b"\0\xff any bytes\r\n");
    let answer = (StatusCode::ACCEPTED, AppendHeaders(headers), body.clone());
    let app = app(layer(&locks), async move || answer);
    let mut first = send(&app, pay()).await;
    let again = send(&app, pay()).await;
    assert_eq!((first.status, &first.body), (StatusCode::ACCEPTED, &body));
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(first.header("idempotency-stored"), None);
    let twice: Vec<_> = again.headers.get_all("x-twice").iter().collect();
    assert_eq!(twice, ["one".as_bytes(), b"t\xfco"]);
    // A map's equality does not look at the order of names.
    first
        .headers
        .insert("idempotent-replayed", HeaderValue::from_static("true"));
    assert_eq!(again, first);
}

pub(crate) async fn headers_of_one_exchange_are_not_replayed(subject: impl Subject) {
    const NEVER: [&str; 13] = [
        "set-cookie",
        "www-authenticate",
        "date",
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-hop",
        "content-length",
    ];
    let locks = subject.replica().build().unwrap();
    let handler = async || {
        let mut headers = http::HeaderMap::new();
        for name in NEVER {
            let value = match name {
                "connection" => "close, x-hop",
                "content-length" => "4",
                _ => "anything",
            };
            headers.insert(name, HeaderValue::from_static(value));
        }
        (headers, "body")
    };
    // Around a router, since a router would count the bytes and set the header.
    let service = layer(&locks).layer(Router::new().route("/pay", post(handler)));
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = pay().body(Body::from("five")).unwrap();
        answers.push(service.clone().oneshot(request).await.unwrap());
    }
    for name in NEVER {
        assert!(answers[0].headers().contains_key(name), "{name}");
        assert!(!answers[1].headers().contains_key(name), "{name}");
    }
    assert_eq!(answers[1].headers()["idempotent-replayed"], "true");
}

pub(crate) async fn a_replay_asks_the_store_once(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    let before = subject.asked().await;
    send(&app, pay()).await;
    let first = subject.asked().await;
    assert!(send(&app, pay()).await.is_replayed());
    let again = subject.asked().await;
    // The server may have lost a script, and gets the script once more.
    assert!(first - before >= 2);
    assert_eq!(again - first, 1);
}

pub(crate) async fn another_replica_gives_the_same_answer(subject: impl Subject) {
    let runs = Runs::free();
    for replayed in [false, true, true] {
        let app = app(layer(&subject.replica().build().unwrap()), runs.handler());
        let answer = send(&app, pay()).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("run 1", replayed));
    }
}

pub(crate) async fn two_tenants_do_not_see_each_others_answers(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    let request = |tenant: &str, key: &str| {
        http::Request::post("/pay")
            .header("x-tenant-id", tenant)
            .header("idempotency-key", key)
    };
    // Names that would run into one another if one could forge a separator.
    let pairs = [
        ("a", "k"),
        ("b", "k"),
        ("a,key=k", "x"),
        ("a", "k,key=x"),
        ("a,key", "k"),
    ];
    for (at, (tenant, key)) in pairs.into_iter().enumerate() {
        let key = format!("\"{key}\"");
        for replayed in [false, true] {
            let answer = send(&app, request(tenant, &key)).await;
            assert_eq!(answer.text(), format!("run {}", at + 1));
            assert_eq!(answer.is_replayed(), replayed);
        }
    }
}

pub(crate) async fn a_scope_for_everybody_is_said_by_name(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let global = IdempotencyLayer::new(locks, key::name("everybody"));
    let app = app(global, runs.handler());
    for tenant in ["a", "b"] {
        assert_eq!(send(&app, pay_as(tenant)).await.text(), "run 1");
    }
}

pub(crate) async fn after_its_retention_an_answer_is_forgotten(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let retain = Duration::from_millis(200);
    let app = app(layer(&locks).retain(retain), runs.handler());
    let began = tokio::time::Instant::now();
    assert_eq!(send(&app, pay()).await.text(), "run 1");
    // The store removes the record by itself, without a request for the key.
    eventually("the record is gone", async || {
        subject
            .store()
            .inspect(lock_key())
            .await
            .unwrap()
            .record
            .is_none()
    })
    .await;
    assert!(began.elapsed() >= retain);
    assert_eq!(send(&app, pay()).await.text(), "run 2");
}

pub(crate) async fn an_empty_answer_is_an_answer(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let handler = {
        let runs = runs.clone();
        async move || {
            runs.run().await;
            StatusCode::NO_CONTENT
        }
    };
    let app = app(
        layer(&locks).methods([http::Method::POST, http::Method::HEAD]),
        handler,
    );
    for replayed in [false, true] {
        for request in [pay(), pay_as("head").method("HEAD")] {
            let answer = send(&app, request).await;
            assert_eq!(answer.status, StatusCode::NO_CONTENT);
            assert_eq!((answer.text(), answer.is_replayed()), ("", replayed));
        }
    }
    assert_eq!(runs.begun(), 2);
}
