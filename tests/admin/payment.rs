//! A payment that runs at most once, and a process that dies while it does.

use std::{future::pending, sync::Arc, time::Duration};

use axum::{Router, body::Body, handler::Handler, routing::post};
use http::{Request, Response};
use tokio::{runtime::Runtime, sync::Notify, task::spawn_blocking};
use tower::ServiceExt;
use tower_distributed_lock::{IdempotencyLayer, Locks, LocksBuilder, key};

/// The key of the payment.
pub(crate) const KEY: &str = "idempotency,payments,key=8e03";

/// Once a process has been silent for this time, it counts as dead.
const LEASE: Duration = Duration::from_millis(600);

/// A service in which payments run at most once.
pub(crate) fn service<H: Handler<T, ()>, T: 'static>(locks: &Locks, handler: H) -> Router {
    let layer = IdempotencyLayer::new(locks.clone(), key::name("payments"));
    Router::new()
        .route("/pay", post(handler))
        .route_layer(layer.at_most_once().reject_if_running())
}

/// Sends the payment.
pub(crate) async fn pay(service: Router) -> Response<Body> {
    let request = Request::post("/pay").header("idempotency-key", "8e03");
    let request = request.body(Body::from("five")).unwrap();
    service.oneshot(request).await.unwrap()
}

/// Begins the payment in a process that dies, so that its claim stays.
pub(crate) async fn begin_and_die(locks: LocksBuilder) {
    let die = move || {
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let locks = locks.lease(LEASE).build().unwrap();
            let begun = Arc::new(Notify::new());
            let paying = {
                let begun = begun.clone();
                async move || {
                    begun.notify_one();
                    pending::<()>().await;
                }
            };
            tokio::spawn(pay(service(&locks, paying)));
            begun.notified().await;
        });
    };
    spawn_blocking(die).await.unwrap();
}
