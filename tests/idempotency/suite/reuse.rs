//! The same key for another request.

use axum::body::Body;
use http::{StatusCode, request::Builder};

use crate::{
    subject::Subject,
    support::eventually,
    web::{Answer, Runs, app, layer, pay, send, send_body, sending},
};

/// Requests that differ from [`pay`], each in one part, which the refusal names.
fn others() -> [(&'static str, Builder); 6] {
    let typed = |value| pay().header("content-type", value);
    [
        ("method", pay().method("PATCH")),
        ("path", pay().uri("/refund")),
        ("query", pay().uri("/pay?now")),
        ("query", pay().uri("/pay?")),
        ("content type", typed("text/plain")),
        ("host", pay().header("host", "other.example")),
    ]
}

#[track_caller]
fn assert_names(answer: &Answer, parts: &str) {
    answer.assert_refused(422, "key-reused");
    let detail = answer.problem()["detail"].as_str().unwrap().to_owned();
    let end = format!("used for another request, with another {parts}");
    assert!(detail.ends_with(&end), "{detail}");
}

pub(crate) async fn another_request_with_the_key_is_422_after_the_first(subject: impl Subject) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::free();
    let apps = replicas
        .each_ref()
        .map(|locks| app(layer(locks), runs.handler()));
    send(&apps[0], pay()).await;
    for app in &apps {
        for (part, other) in others() {
            assert_names(&send(app, other).await, part);
        }
        let other = send_body(app, pay(), Body::from("six")).await;
        assert_names(&other, "body");
        assert_eq!(other.header("retry-after"), None);
        assert!(send(app, pay()).await.is_replayed());
    }
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn another_request_with_the_key_is_422_while_the_first_runs(
    subject: impl Subject,
) {
    let replicas = [(); 2].map(|()| subject.replica().build().unwrap());
    let runs = Runs::gated();
    let waiting = replicas
        .each_ref()
        .map(|locks| app(layer(locks), runs.handler()));
    let hasty = |locks| app(layer(locks).reject_if_running(), runs.handler());
    let first = sending(&waiting[0], pay());
    runs.arrival().await;
    for app in waiting.iter().chain(&replicas.each_ref().map(hasty)) {
        for (part, other) in others() {
            assert_names(&send(app, other).await, part);
        }
        let other = send_body(app, pay().uri("/refund"), Body::from("six")).await;
        assert_names(&other, "path and another body");
    }
    runs.open();
    assert_eq!(first.await.unwrap().text(), "run 1");
    assert_eq!(runs.begun(), 1);
}

pub(crate) async fn every_part_of_a_request_counts(subject: impl Subject) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    let typed = || pay().header("content-type", "a");
    send_body(&app, typed().uri("/pay?q"), Body::from("bc")).await;
    // The same bytes, cut otherwise.
    for (request, body) in [
        (typed().uri("/pay?qa"), "bc"),
        (typed().uri("/payq?"), "bc"),
        (pay().uri("/pay?q").header("content-type", "ab"), "c"),
        (pay().uri("/pay?q"), "abc"),
    ] {
        let other = send_body(&app, request, Body::from(body)).await;
        other.assert_refused(422, "key-reused");
    }
    // Other headers, and the frames of the body, do not count.
    let frames = futures_util::stream::iter(["b", "c"].map(Ok::<_, std::convert::Infallible>));
    let request = typed().uri("/pay?q").header("x-request-id", "2");
    assert!(
        send_body(&app, request, Body::from_stream(frames))
            .await
            .is_replayed()
    );
}

pub(crate) async fn an_answer_that_was_not_kept_leaves_the_key_to_another_request(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.answering(503));
    assert_eq!(
        send(&app, pay()).await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    let other = send_body(&app, pay(), Body::from("six")).await;
    assert_eq!(
        (other.status, other.text()),
        (StatusCode::SERVICE_UNAVAILABLE, "run 2")
    );
}

pub(crate) async fn a_request_that_does_not_wait_does_not_decide_for_another_request(
    subject: impl Subject,
) {
    let (locks, runs) = (subject.replica().build().unwrap(), Runs::free());
    let app = app(layer(&locks), runs.handler());
    // Several requests for one key, all at once; the first to be asked for goes away meanwhile.
    let leaving = sending(&app, pay());
    tokio::task::yield_now().await;
    let other = tokio::spawn({
        let app = app.clone();
        async move { send_body(&app, pay(), Body::from("six")).await }
    });
    tokio::task::yield_now().await;
    leaving.abort();
    let other = other.await.unwrap();
    // The first request at the store decides. Two requests with one key never run both.
    match other.status {
        StatusCode::CREATED => assert_eq!(other.text(), "run 1"),
        _ => other.assert_refused(422, "key-reused"),
    }
    eventually("nothing is under way", async || {
        locks.stats() == Default::default()
    })
    .await;
    assert_eq!(runs.begun(), 1);
}
