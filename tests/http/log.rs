//! The log events of the layers.

use std::{
    fmt::{Debug, Write},
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use futures_util::stream;
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, LockKey, Locks, ReadBodyLayer, key,
    store::{Fault, FaultyStore, Store},
};
use tracing::{
    Event, Instrument, Level, Metadata, Subscriber, field::Field, subscriber::DefaultGuard,
};
use tracing_subscriber::{Registry, layer::Context, prelude::*};

use crate::{
    gate::Gate,
    support::{ACCOUNT_7, Server, eventually, lock, nothing_left, watchful, within},
};

/// Records every event of this thread, with level, fields and spans.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    /// Starts to record. Only for tests whose runtime runs on the test's own thread.
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
        (log, guard)
    }

    fn lines(&self, matching: &str) -> Vec<(Level, String)> {
        let lines = self.0.lock().unwrap();
        let matching = lines.iter().filter(|(_, line)| line.contains(matching));
        matching.cloned().collect()
    }
}

impl<S> tracing_subscriber::Layer<S> for Log
where
    S: Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = String::new();
        for span in context.event_scope(event).into_iter().flatten() {
            write!(line, "[{}] ", span.name()).unwrap();
        }
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, "{field}={value:?} ").unwrap();
        });
        let level = Metadata::level(event.metadata());
        self.0.lock().unwrap().push((*level, line));
    }
}

#[tokio::test]
async fn every_refusal_is_logged_with_its_instance() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let _held = locks.lock(ACCOUNT_7).await.unwrap();
    let lock = lock(&locks).reject_if_held();
    let needy = DistributedLockLayer::new(locks.clone(), key::request().header("x-tenant-id"));
    let app = Router::new()
        .route("/accounts/{id}", post(|| async {}))
        .route("/about", post(|| async {}))
        .route_layer(lock)
        .route("/needy", post(|| async {}).route_layer(needy));
    let server = Server::start(app).await;
    let held = server.post("/accounts/7").await;
    let bad_key = server.post("/needy").await;
    let misconfigured = server.post("/about").await;
    store.set_fault(Some(Fault::Unreachable));
    let unreachable = server.post("/accounts/8").await;
    locks.close(Duration::ZERO).await;
    let closed = server.post("/accounts/8").await;
    for (answer, status, level) in [
        (held, 423, Level::DEBUG),
        (bad_key, 400, Level::DEBUG),
        (misconfigured, 500, Level::ERROR),
        // The instance tells the outage, once for all requests.
        (unreachable, 503, Level::DEBUG),
        (closed, 503, Level::DEBUG),
    ] {
        assert_eq!(answer.status.as_u16(), status);
        let problem = answer.json();
        let instance = problem["instance"].as_str().unwrap();
        let lines = log.lines(instance.strip_prefix("urn:uuid:").unwrap());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0].0, level);
    }
    assert_eq!(log.lines("lock.store_away").len(), 1);
    assert_eq!(log.lines("lock.store_away")[0].0, Level::WARN);
    // The log names mistakes in the routes in every build.
    assert_eq!(log.lines("`id` is not in the route").len(), 1);
}

#[tokio::test]
async fn the_cause_of_a_broken_body_is_logged() {
    let (log, _guard) = Log::start();
    let once = IdempotencyLayer::new(Locks::in_memory(), key::name("everybody"));
    let read = ReadBodyLayer::new(1024);
    let app = Router::new()
        .route("/read", post(|| async {}).route_layer(read))
        .route("/once", post(|| async {}).route_layer(once));
    for path in ["/read", "/once"] {
        let cause = format!("torn at {path}");
        let frames = [Ok("half"), Err(io::Error::other(cause.clone()))];
        let request = Request::post(path)
            .header("idempotency-key", "k")
            .body(Body::from_stream(stream::iter(frames)))
            .unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
        assert_eq!(log.lines(&cause).len(), 1, "{path}");
    }
}

#[tokio::test]
async fn keys_are_logged_at_debug_level_only() {
    let (log, _guard) = Log::start();
    let (store, gate) = (FaultyStore::new(), Gate::default());
    let locks = watchful(&store);
    let handler = {
        let gate = gate.clone();
        post(async move || gate.pass().await)
    };
    let lock = lock(&locks);
    let app = Router::new()
        .route("/accounts/{id}", handler)
        .route_layer(lock.fail_open());
    let server = Server::start(app).await;

    // A lease is lost, the store fails meanwhile, and a release fails.
    let lost = tokio::spawn(server.post("/accounts/secret"));
    gate.arrival().await;
    let key = LockKey::new("account,id=secret").unwrap();
    store.force_release(key).await.unwrap();
    assert_eq!(
        within("409", lost).await.unwrap().status,
        StatusCode::CONFLICT
    );
    let failing = tokio::spawn(server.post("/accounts/secret"));
    gate.arrival().await;
    store.set_fault(Some(Fault::Unreachable));
    eventually("renewals fail", || {
        !log.lines("lock.renewal_unknown").is_empty()
    })
    .await;
    gate.open();
    within("200", failing).await.unwrap();
    gate.open();
    let open = server.post("/accounts/secret").await;
    assert_eq!(open.status, StatusCode::OK);
    eventually("the release fails", || {
        !log.lines("lock.release_failed").is_empty()
    })
    .await;

    assert!(!log.lines("lock.lost").is_empty());
    assert!(!log.lines("lock.failed_open").is_empty());
    let secrets = log.lines("secret");
    assert!(!secrets.is_empty());
    for (level, line) in secrets {
        assert_eq!(level, Level::DEBUG, "{line}");
    }
}

#[tokio::test]
async fn a_detached_handler_stays_in_its_span() {
    let (log, _guard) = Log::start();
    let (locks, gate) = (Locks::in_memory(), Gate::default());
    let handler = {
        let gate = gate.clone();
        post(async move || {
            gate.pass().await;
            tracing::info!("working");
        })
    };
    let lock = lock(&locks).detached();
    let in_a_span = axum::middleware::from_fn(
        |request: axum::extract::Request, next: axum::middleware::Next| {
            next.run(request).instrument(tracing::info_span!("request"))
        },
    );
    let app = Router::new()
        .route("/accounts/{id}", handler)
        .route_layer(lock)
        .layer(in_a_span);
    let server = Server::start(app).await;
    let mut client = server.connect().await;
    let leaving = tokio::spawn(async move { client.post("/accounts/7").await });
    gate.arrival().await;
    leaving.abort();
    gate.open();
    nothing_left(&locks).await;
    let lines = log.lines("working");
    assert_eq!(lines.len(), 1);
    assert!(lines[0].1.contains("[request]"), "{lines:?}");
}
