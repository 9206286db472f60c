//! A service with one idempotent route, requests to it, and handlers that a test lets go on.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::{Router, body::Body, handler::Handler, routing::any};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use tokio::{sync::Semaphore, task::JoinHandle, time::timeout};
use tower::ServiceExt;
use tower_distributed_lock::{IdempotencyLayer, LockKey, Locks, key};

use crate::support::PATIENCE;

/// Where the answer to [`pay`] with the key `k` is kept.
pub(crate) const KEY: &str = "idempotency,x-tenant-id=acme,key=k";

pub(crate) fn lock_key() -> LockKey {
    LockKey::new(KEY).unwrap()
}

pub(crate) fn layer(locks: &Locks) -> IdempotencyLayer {
    IdempotencyLayer::new(locks.clone(), key::request().header("x-tenant-id"))
}

/// All paths and methods lead to the handler.
pub(crate) fn app<H, T>(layer: IdempotencyLayer, handler: H) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
{
    Router::new()
        .route("/{*path}", any(handler))
        .route_layer(layer)
}

/// The request that most tests send, and send again.
pub(crate) fn pay() -> http::request::Builder {
    pay_as("acme")
}

/// The same by another tenant.
pub(crate) fn pay_as(tenant: &str) -> http::request::Builder {
    Request::post("/pay")
        .header("x-tenant-id", tenant)
        .header("idempotency-key", "k")
}

pub(crate) async fn send(app: &Router, request: http::request::Builder) -> Answer {
    send_body(app, request, Body::from("five")).await
}

pub(crate) async fn send_body(app: &Router, request: http::request::Builder, body: Body) -> Answer {
    let request = request.body(body).unwrap();
    let answering = async {
        let response = app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let whole = body.collect().await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            trailers: whole.trailers().cloned(),
            body: whole.to_bytes(),
        }
    };
    timeout(PATIENCE, answering).await.expect("an answer")
}

/// Sends a request in a task.
pub(crate) fn sending(app: &Router, request: http::request::Builder) -> JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { send(&app, request).await })
}

#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Checks that the answer is a refusal with this status and reason.
    #[track_caller]
    pub(crate) fn assert_refused(&self, status: u16, reason: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        let problem = self.problem();
        let kind = problem["type"].as_str().unwrap();
        assert_eq!(kind.rsplit('#').next(), Some(reason));
        assert_eq!(problem["status"], status);
    }
}

/// The runs of a handler: each reports its arrival, and goes on after [`open`](Self::open).
#[derive(Clone)]
pub(crate) struct Runs(Arc<Inner>);

struct Inner {
    begun: AtomicU64,
    ended: AtomicU64,
    arrived: Semaphore,
    open: Semaphore,
}

impl Runs {
    /// Handlers wait for [`open`](Self::open).
    pub(crate) fn gated() -> Self {
        Self(Arc::new(Inner {
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            arrived: Semaphore::new(0),
            open: Semaphore::new(0),
        }))
    }

    /// Handlers run through.
    pub(crate) fn free() -> Self {
        let runs = Self::gated();
        runs.0.open.add_permits(1000);
        runs
    }

    /// For a handler: the number of the run, from 1.
    pub(crate) async fn run(&self) -> u64 {
        let run = self.0.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.arrived.add_permits(1);
        self.0.open.acquire().await.unwrap().forget();
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        run
    }

    /// Waits until one more handler runs.
    pub(crate) async fn arrival(&self) {
        let arrived = timeout(PATIENCE, self.0.arrived.acquire()).await;
        arrived.expect("a handler to be run").unwrap().forget();
    }

    /// Lets one handler go on.
    pub(crate) fn open(&self) {
        self.0.open.add_permits(1);
    }

    pub(crate) fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self) -> u64 {
        self.0.ended.load(Ordering::SeqCst)
    }

    /// A handler that answers with the number of its run.
    pub(crate) fn handler(&self) -> impl Handler<((),), ()> + use<> {
        let runs = self.clone();
        async move || (StatusCode::CREATED, format!("run {}", runs.run().await))
    }

    /// A handler that answers with this status.
    pub(crate) fn answering(&self, status: u16) -> impl Handler<((),), ()> + use<> {
        let (runs, status) = (self.clone(), StatusCode::from_u16(status).unwrap());
        async move || (status, format!("run {}", runs.run().await))
    }
}
