//! The places where the layer can be put.

use axum::{Router, body::Body, extract::Request, routing::post};
use http::StatusCode;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_distributed_lock::{DistributedLockLayer, LockGuard, Locks, key, rejection::Rejection};

use crate::support::{Server, account};

async fn what_is_locked(guard: LockGuard) -> String {
    guard.key().to_string()
}

fn lock() -> DistributedLockLayer {
    DistributedLockLayer::new(Locks::in_memory(), account())
}

fn routes() -> Router {
    Router::new().route("/accounts/{id}", post(what_is_locked))
}

#[tokio::test]
async fn the_layer_works_everywhere_in_a_router() {
    let method_router = post(what_is_locked).route_layer(lock());
    let layered = post(what_is_locked).layer(lock());
    let built = ServiceBuilder::new().layer(lock());
    for app in [
        routes().route_layer(lock()),
        routes().layer(lock()),
        routes().route_layer(built),
        Router::new().route("/accounts/{id}", method_router),
        Router::new().route("/accounts/{id}", layered),
        Router::new().merge(routes().route_layer(lock())),
    ] {
        let answer = Server::start(app).await.post("/accounts/7").await;
        assert_eq!(answer.text(), "account,id=7");
    }
}

#[tokio::test]
async fn the_layer_works_in_and_around_nested_routers() {
    for app in [
        Router::new().nest("/banks/{bank}", routes().route_layer(lock())),
        Router::new()
            .nest("/banks/{bank}", routes())
            .route_layer(lock()),
        Router::new().nest("/banks/{bank}", routes()).layer(lock()),
    ] {
        let answer = Server::start(app).await.post("/banks/a/accounts/7").await;
        assert_eq!(answer.text(), "account,id=7");
    }
}

#[tokio::test]
async fn a_key_without_a_route_works_around_a_router() {
    let lock = DistributedLockLayer::new(Locks::in_memory(), key::request().path());
    let app = ServiceBuilder::new().layer(lock).service(routes());
    let answer = Server::start_service(app).await.post("/accounts/7").await;
    assert_eq!(answer.text(), "path=/accounts/7");
}

#[tokio::test]
async fn a_key_that_needs_a_route_is_500_around_a_router_and_the_error_names_the_fix() {
    let app = ServiceBuilder::new().layer(lock()).service(routes());
    let answer = Server::start_service(app).await.post("/accounts/7").await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.reason(), "misconfigured");
    if cfg!(debug_assertions) {
        assert!(
            answer.text().contains("Router::route_layer"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn requests_without_a_route_pass_a_layer_around_all_routes() {
    let app = routes().layer(lock());
    let answer = Server::start(app).await.post("/nowhere").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

/// The error is no `std::error::Error`.
#[tokio::test]
async fn a_service_may_have_any_error() {
    #[derive(Debug, PartialEq)]
    struct Odd(String);
    let service = service_fn(async |request: Request| {
        let path = request.uri().path().to_owned();
        tokio::task::yield_now().await;
        match &*path {
            "/odd" => Err(Odd(path)),
            _ => Ok(http::Response::new(Body::empty())),
        }
    });
    let lock =
        DistributedLockLayer::new(Locks::in_memory(), key::request().path()).reject_if_held();
    let service = ServiceBuilder::new().layer(lock).service(service);
    let post = |path| Request::post(path).body(Body::empty()).unwrap();
    let odd = service.clone().oneshot(post("/odd")).await.unwrap_err();
    assert_eq!(odd, Odd("/odd".into()));
    let even = service.oneshot(post("/even")).await.unwrap();
    assert!(even.extensions().get::<Rejection>().is_none());
}

/// The future of a layer is `Send` if the inner future is.
#[test]
fn futures_and_bodies_are_send() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    let request = || Request::post("/").body(Body::empty()).unwrap();
    let service =
        service_fn(async |_: Request| Ok::<_, std::io::Error>(http::Response::new(Body::empty())));
    let layer = DistributedLockLayer::new(Locks::in_memory(), key::request().path());
    drop(send(
        ServiceBuilder::new()
            .layer(layer.clone())
            .service(service)
            .oneshot(request()),
    ));
    drop(send(
        ServiceBuilder::new()
            .layer(layer.detached())
            .service(service)
            .oneshot(request()),
    ));
    drop(send(tower_distributed_lock::gate::Body::<Body>::default()));
}
