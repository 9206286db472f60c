//! Refusals that the application renders in one place, and `?` in handlers.

use axum::{
    Json, Router,
    body::Body,
    routing::{get, post},
};
use bytes::Bytes;
use http::{Method, Response, StatusCode, request::Parts};
use http_body_util::Full;
use tower_distributed_lock::{
    Error, LockGuard, Locks, ReadBodyLayer,
    rejection::{Reason, Rejection, RejectionLayer},
};

use crate::support::{ACCOUNT_7, Server, lock};

/// A layer that renders all refusals, with the path and the id of the request.
fn own_words() -> RejectionLayer<(String, String)> {
    let note = |parts: &Parts| {
        let id = parts.headers.get("x-request-id");
        let id = id.and_then(|id| id.to_str().ok()).unwrap_or("none");
        (parts.uri.path().to_owned(), id.to_owned())
    };
    RejectionLayer::new(note, |rejection: &Rejection, (path, id)| {
        let text = format!("{path} {id} {}", rejection.reason().code());
        let mut response = Response::new(text);
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    })
}

#[tokio::test]
async fn one_layer_renders_the_refusals_of_all_layers_extractors_and_handlers() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let fails = {
        let locks = locks.clone();
        async move || -> Result<String, Error> {
            let guard = locks
                .lock(ACCOUNT_7)
                .within(std::time::Duration::ZERO)
                .await?;
            Ok(guard.key().to_string())
        }
    };
    let app = Router::new()
        .route(
            "/accounts/{id}",
            post(|| async {}).route_layer(lock(&locks).reject_if_held()),
        )
        .route("/fails", post(fails))
        .route("/extractor", post(async |_: LockGuard| {}))
        .route("/fine", post(async || "fine"))
        .route("/teapot", get(async || StatusCode::IM_A_TEAPOT))
        .layer(ReadBodyLayer::new(4))
        .layer(own_words());
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    for (path, body, text) in [
        ("/accounts/7", "", "/accounts/7 17 held"),
        ("/accounts/7", "five!", "/accounts/7 17 body-too-large"),
        ("/fails", "", "/fails 17 held"),
        ("/extractor", "", "/extractor 17 misconfigured"),
    ] {
        let request = http::Request::post(path).header("x-request-id", "17");
        let answer = client.whole(request.body(body.into()).unwrap()).await;
        let answer = answer.unwrap();
        assert_eq!(
            (answer.status, answer.text()),
            (StatusCode::IM_A_TEAPOT, text)
        );
    }
    assert_eq!(server.post("/fine").await.text(), "fine");
    assert_eq!(server.send(Method::GET, "/teapot").await.text(), "");
}

#[tokio::test]
async fn an_error_of_a_handler_is_rendered_like_a_layers_refusal() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let by_layer = post(|| async {}).route_layer(lock(&locks).reject_if_held());
    let by_handler = post(async move || -> Result<Json<u64>, Error> {
        let guard = locks
            .lock(ACCOUNT_7)
            .within(std::time::Duration::ZERO)
            .await?;
        Ok(Json(guard.token()))
    });
    let app = Router::new()
        .route("/accounts/{id}", by_layer)
        .route("/handler", by_handler);
    let server = Server::start(app).await;
    let [one, other] = [
        server.post("/accounts/7").await,
        server.post("/handler").await,
    ];
    assert_eq!(other.status, StatusCode::LOCKED);
    for name in ["type", "title", "status", "detail"] {
        assert_eq!(one.json()[name], other.json()[name], "{name}");
    }
    // The handler may have acted before.
    for (answer, may_be_sent_again) in [(one, true), (other, false)] {
        assert_eq!(answer.json()["retryable"], may_be_sent_again);
        assert_eq!(answer.header("retry-after").is_some(), may_be_sent_again);
    }
}

#[test]
fn every_reason_has_its_own_code_at_the_end_of_its_type() {
    let codes = [Reason::Held, Reason::LeaseLost, Reason::OutcomeUnknown].map(Reason::code);
    assert_eq!(codes, ["held", "lease-lost", "outcome-unknown"]);
}

/// Some servers need `Sync` bodies, as axum 0.6 did.
#[test]
fn bodies_are_sync_if_their_parts_are() {
    fn is_sync<T: Sync + Send>() {}
    is_sync::<tower_distributed_lock::gate::Body<Full<Bytes>>>();
    fn is_send<T: Send>() {}
    is_send::<tower_distributed_lock::gate::Body<Body>>();
}

#[tokio::test]
async fn a_grpc_request_waits_no_longer_than_its_own_deadline() {
    let locks = Locks::in_memory();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let app = Router::new().route(
        "/accounts/{id}",
        post(|| async {}).route_layer(lock(&locks)),
    );
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    let request = http::Request::post("/accounts/7")
        .header("content-type", "application/grpc+proto")
        .header("grpc-timeout", "50m");
    // The wait limit of the layer is longer than the patience of this test's client.
    let answer = client.whole(request.body(Full::default()).unwrap()).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), Some("application/grpc"));
    assert_eq!(answer.header("grpc-status"), Some("14"));
    assert_eq!(answer.header("grpc-retry-pushback-ms"), Some("1000"));
}
