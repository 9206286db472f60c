//! The guards that a handler gets, and the use of them.

use std::convert::Infallible;

use axum::{
    Router,
    routing::{get, post},
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{ServiceBuilder, service_fn};
use tower_distributed_lock::{
    DistributedLockLayer, Error, ErrorKind, LockGuard, Locks, Status, key,
    lock::{AllGuards, NoGuard, NotLocked},
};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Server, account, lock, nothing_left, within},
};

async fn what_is_locked(guard: Option<LockGuard>) -> String {
    guard.map_or("nothing".into(), |guard| guard.key().to_string())
}

#[tokio::test]
async fn an_optional_guard_is_none_for_a_request_that_is_not_locked_on_purpose() {
    let only_big = account().only_when(|parts| parts.uri.query() != Some("small"));
    let app = Router::new()
        .route("/accounts/{id}", get(what_is_locked).post(what_is_locked))
        .route_layer(DistributedLockLayer::new(Locks::in_memory(), only_big));
    let server = Server::start(app).await;
    assert_eq!(server.post("/accounts/7").await.text(), ACCOUNT_7);
    assert_eq!(server.post("/accounts/7?small").await.text(), "nothing");
    let safe = server.send(http::Method::GET, "/accounts/7").await;
    assert_eq!(safe.text(), "nothing");
}

#[tokio::test]
async fn a_missing_guard_is_refused_with_the_reason() {
    let app = Router::new()
        .route("/accounts/{id}", get(async |_: LockGuard| {}))
        .route_layer(DistributedLockLayer::new(Locks::in_memory(), account()));
    let answer = Server::start(app)
        .await
        .send(http::Method::GET, "/accounts/7")
        .await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    if cfg!(debug_assertions) {
        assert!(
            answer.text().contains("DistributedLockLayer::methods"),
            "{}",
            answer.text()
        );
    }
}

/// Finds both guards by name, and the guard that an extractor without a name gets.
async fn names(guards: AllGuards, innermost: LockGuard) -> String {
    let key = |name| guards.named(name).map(|guard| guard.key().to_string());
    assert_eq!(guards.named("other").unwrap_err(), NoGuard::NoLayer);
    format!(
        "{} {} {}",
        key("tenant").unwrap(),
        key("account").unwrap(),
        innermost.key()
    )
}

#[tokio::test]
async fn guards_of_several_layers_are_found_by_name() {
    let locks = Locks::in_memory();
    let lock = |key| DistributedLockLayer::new(locks.clone(), key);
    let app = Router::new()
        .route("/tenants/{tenant}/accounts/{id}", post(names))
        .route_layer(lock(key::name("account").param("id")).name("account"))
        .route_layer(lock(key::name("tenant").param("tenant")).name("tenant"));
    let answer = Server::start(app).await.post("/tenants/a/accounts/7").await;
    let expected = "tenant,tenant=a account,id=7 account,id=7";
    assert_eq!(answer.text(), expected);
    nothing_left(&locks).await;
}

/// A service without axum: over http, with any body of `Bytes`.
async fn plain(request: Request<axum::body::Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    let told = match LockGuard::from_extensions(request.extensions()) {
        Ok(guard) => guard.key().to_string(),
        Err(reason) => format!("{reason:?}"),
    };
    Ok(Response::new(Full::from(told)))
}

#[tokio::test]
async fn a_plain_service_finds_its_guard_among_the_extensions() {
    let lock = DistributedLockLayer::new(Locks::in_memory(), key::request().path());
    let server = Server::start_service(ServiceBuilder::new().layer(lock).service_fn(plain)).await;
    assert_eq!(server.post("/orders/42").await.text(), "path=/orders/42");
    let safe = server.send(http::Method::GET, "/orders/42").await;
    let expected = format!("{:?}", NoGuard::NotLocked(NotLocked::Method));
    assert_eq!(safe.text(), expected);

    let server = Server::start_service(service_fn(plain)).await;
    assert_eq!(server.post("/orders/42").await.text(), "NoLayer");
}

#[tokio::test]
async fn a_guard_moved_into_a_task_keeps_the_key_until_the_task_ends() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let layer = lock(&locks);
    for lock in [
        layer.clone(),
        layer.clone().confirm_before_response(),
        layer.reject_if_held(),
    ] {
        let handler = {
            let gate = gate.clone();
            post(async move |guard: LockGuard| {
                tokio::spawn(async move {
                    gate.pass().await;
                    drop(guard);
                });
            })
        };
        let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
        let server = Server::start(app).await;
        assert_eq!(server.post("/accounts/7").await.status, StatusCode::OK);
        gate.arrival().await;
        assert!(locks.lock(ACCOUNT_7).now().await.unwrap().is_none());
        gate.open();
        nothing_left(&locks).await;
    }
}

#[tokio::test]
async fn a_stray_copy_of_the_extensions_does_not_keep_the_key() {
    let locks = Locks::in_memory();
    let (keep, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let handler = post(async move |request: axum::extract::Request| {
        keep.send(request.extensions().clone()).unwrap();
    });
    let lock = lock(&locks);
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let server = Server::start(app).await;
    assert_eq!(server.post("/accounts/7").await.status, StatusCode::OK);
    let extensions = kept.recv().await.unwrap();
    nothing_left(&locks).await;
    assert_eq!(
        LockGuard::from_extensions(&extensions).unwrap_err(),
        NoGuard::Ended
    );
}

#[tokio::test]
async fn a_handler_can_release_early() {
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move |guard: LockGuard| {
            let copy = guard.clone();
            guard.release().await.unwrap();
            assert_eq!(copy.status(), Status::Released);
            gate.pass().await;
        })
    };
    let lock = lock(&locks).reject_if_held();
    let app = Router::new().route("/accounts/{id}", handler.route_layer(lock));
    let server = Server::start(app).await;
    let first = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    // The handler of the first request still runs.
    let second = tokio::spawn(server.post("/accounts/7"));
    gate.arrival().await;
    assert_eq!(gate.inside(), 2);
    gate.open();
    gate.open();
    for post in [first, second] {
        let status = within("the answer", post).await.unwrap().status;
        assert_eq!(status, StatusCode::OK);
    }
    nothing_left(&locks).await;
}

#[tokio::test]
async fn head_is_locked_as_get_is() {
    let locks = Locks::in_memory();
    let says = async |guard: Option<LockGuard>| [("x-locked", guard.is_some().to_string())];
    for (methods, locked) in [
        (vec![Method::GET], "true"),
        (vec![Method::HEAD], "true"),
        (vec![Method::POST], "false"),
    ] {
        let layer = lock(&locks).methods(methods.clone());
        let app = Router::new().route("/accounts/{id}", get(says).route_layer(layer));
        let server = Server::start(app).await;
        let answer = server.send(Method::HEAD, "/accounts/7").await;
        assert_eq!(answer.header("x-locked"), Some(locked), "{methods:?}");
    }
}

/// The handler would wait for its own end.
#[tokio::test]
async fn a_handler_that_locks_its_own_key_fails_at_once() {
    let locks = Locks::in_memory();
    let handler = |locks: Locks| {
        async move |guard: LockGuard| {
            let error = locks.lock(ACCOUNT_7).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Held);
            assert!(
                error.to_string().contains("use the guard of the request"),
                "{error}"
            );
            // Other keys can be locked, and the request's own key once the turn has ended.
            drop(locks.lock("account,id=8").await.unwrap());
            guard.release().await.unwrap();
            drop(locks.lock(ACCOUNT_7).await.unwrap());
        }
    };
    let attached = post(handler(locks.clone())).route_layer(lock(&locks));
    let detached = post(handler(locks.clone())).route_layer(lock(&locks).detached());
    let inner = key::name("inner");
    let inner = DistributedLockLayer::new(locks.clone(), inner).name("inner");
    let nested = async |locks: Locks| {
        let error = locks.lock(ACCOUNT_7).await.unwrap_err();
        assert!(
            error.to_string().contains("use the guard of the request"),
            "{error}"
        );
    };
    let nested = {
        let locks = locks.clone();
        post(async move || nested(locks).await)
    };
    let nested = nested.route_layer(inner).route_layer(lock(&locks));
    for (name, handler) in [
        ("attached", attached),
        ("detached", detached),
        ("nested", nested),
    ] {
        let app = Router::new().route("/accounts/{id}", handler);
        let answer = Server::start(app).await.post("/accounts/7").await;
        assert_eq!(answer.status, StatusCode::OK, "{name}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_error_for_the_handlers_own_key_is_a_mistake_of_the_program() {
    let locks = Locks::in_memory();
    let handler = {
        let locks = locks.clone();
        async move || {
            let guard = locks.lock(ACCOUNT_7).await?;
            Ok::<_, Error>(guard.token().to_string())
        }
    };
    let app = Router::new()
        .route("/accounts/{id}", post(handler))
        .route_layer(lock(&locks));
    let answer = Server::start(app).await.post("/accounts/7").await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.reason()),
        (500, "misconfigured")
    );
    assert_eq!(answer.json()["retryable"], false);
    let detail = answer.json()["detail"].to_string();
    assert!(detail.contains("use the guard of the request"), "{detail}");
}
