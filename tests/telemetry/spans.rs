//! Spans and events, as a subscriber at the most detailed level sees them.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use http::Request;
use tower::ServiceExt;
use tower_distributed_lock::{
    DistributedLockLayer, IdempotencyLayer, LockGuard, LockKey, Locks, key,
    store::{FaultyStore, Store},
};
use tower_http::trace::TraceLayer;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Registry,
    layer::{Context, Layer},
    prelude::*,
    registry::LookupSpan,
};

/// A span or an event.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) level: Level,
    /// The name of a span, or the message of an event.
    pub(crate) name: String,
    pub(crate) fields: BTreeMap<String, String>,
    /// The names of the spans around it, innermost first.
    around: Vec<String>,
}

impl Seen {
    fn new(metadata: &Metadata<'_>, around: Vec<String>) -> Self {
        Self {
            level: *metadata.level(),
            name: metadata.name().to_owned(),
            fields: BTreeMap::new(),
            around,
        }
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.name = text,
            name => drop(self.fields.insert(name.to_owned(), text)),
        }
    }
}

/// Collects all spans and events of the test's own thread.
#[derive(Clone, Default)]
pub(crate) struct Log {
    spans: Arc<Mutex<Vec<(Id, Seen)>>>,
    events: Arc<Mutex<Vec<Seen>>>,
}

impl Log {
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
        (log, guard)
    }

    fn spans(&self, name: &str) -> Vec<Seen> {
        let spans = self.spans.lock().unwrap();
        let spans = spans.iter().map(|(_, seen)| seen);
        spans.filter(|seen| seen.name == name).cloned().collect()
    }

    pub(crate) fn events(&self, name: &str) -> Vec<Seen> {
        let events = self.events.lock().unwrap();
        events
            .iter()
            .filter(|seen| seen.name == name)
            .cloned()
            .collect()
    }

    /// The events at warning level and above.
    pub(crate) fn warnings(&self) -> Vec<Seen> {
        let events = self.events.lock().unwrap();
        let warnings = events.iter().filter(|seen| seen.level <= Level::WARN);
        warnings.cloned().collect()
    }

    /// Everything that has this text in a field, a name or a message.
    fn with(&self, text: &str) -> Vec<Seen> {
        let spans = self.spans.lock().unwrap();
        let events = self.events.lock().unwrap();
        let all = spans.iter().map(|(_, seen)| seen).chain(events.iter());
        let has = |seen: &&Seen| format!("{seen:?}").contains(text);
        all.filter(has).cloned().collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let around = context.span_scope(id).into_iter().flatten().skip(1);
        let around = around.map(|span| span.name().to_owned()).collect();
        let mut seen = Seen::new(attributes.metadata(), around);
        attributes.record(&mut seen);
        self.spans.lock().unwrap().push((id.clone(), seen));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.spans.lock().unwrap();
        // The registry may use the id of a closed span again.
        let span = spans.iter_mut().rev().find(|(known, _)| known == id);
        values.record(&mut span.unwrap().1);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let around = context.event_scope(event).into_iter().flatten();
        let around = around.map(|span| span.name().to_owned()).collect();
        let mut seen = Seen::new(event.metadata(), around);
        event.record(&mut seen);
        self.events.lock().unwrap().push(seen);
    }
}

const SECRET: &str = "account,id=secret";

/// A handler that logs, behind a lock or an idempotency layer, behind tower-http's `TraceLayer`.
fn app(locks: &Locks) -> Router {
    let account = || key::name("account").param("id");
    let once = IdempotencyLayer::new(locks.clone(), key::name("all"));
    let handler = || post(async || tracing::info!("working"));
    Router::new()
        .route("/accounts/{id}", handler())
        .route_layer(DistributedLockLayer::new(locks.clone(), account()))
        .route("/payments", handler().layer(once))
        .layer(TraceLayer::new_for_http())
}

async fn send(app: &Router, path: &str) {
    let request = Request::post(path).header("idempotency-key", "k");
    let request = request.body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn spans_nest_under_the_span_of_the_request() {
    let (log, _guard) = Log::start();
    let locks = Locks::in_memory();
    let app = app(&locks);
    send(&app, "/accounts/secret").await;
    let (acquire, hold) = (log.spans("lock.acquire"), log.spans("lock.hold"));
    assert_eq!((acquire.len(), hold.len()), (1, 1));
    assert_eq!(acquire[0].around, ["request"]);
    assert_eq!(hold[0].around, ["request"]);
    assert_eq!(acquire[0].fields["outcome"], "\"granted\"");
    assert_eq!(acquire[0].fields["token"], hold[0].fields["token"]);
    assert!(acquire[0].fields.contains_key("waited_ms"));
    assert_eq!(hold[0].fields["outcome"], "\"released\"");
    // The handler runs within the turn.
    assert_eq!(log.events("working")[0].around, ["lock.hold", "request"]);

    send(&app, "/payments").await;
    assert_eq!(log.events("working")[1].around, ["lock.hold", "request"]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_passed_on_says_so_and_how_long_it_waited() {
    let (log, _guard) = Log::start();
    let locks = Locks::in_memory();
    let first = locks.lock(SECRET).await.unwrap();
    let token = first.token();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock(SECRET).await.map(LockGuard::release) }
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    drop(first);
    waiting.await.unwrap().unwrap().await.unwrap();
    let acquires = log.spans("lock.acquire");
    assert_eq!(acquires[1].fields["outcome"], "\"passed_on\"");
    let waited: f64 = acquires[1].fields["waited_ms"].parse().unwrap();
    assert!((1500.0..1600.0).contains(&waited), "{waited}");
    let release = log.spans("lock.release");
    assert_eq!(release.len(), 1);
    assert_eq!(release[0].fields["token"], acquires[1].fields["token"]);
    assert_ne!(acquires[1].fields["token"], token.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_one_event_and_its_key_can_be_found_at_debug_level() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let guard = locks.lock(SECRET).await.unwrap();
    let key = LockKey::new(SECRET).unwrap();
    store.force_release(key).await.unwrap();
    guard.lost().await;
    drop(guard);

    let lost = log.events("lock.lost");
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].level, Level::WARN);
    let turn = log.events("lock.turn");
    assert_eq!(turn[0].level, Level::DEBUG);
    assert_eq!(turn[0].fields["owner"], lost[0].fields["owner"]);
    assert!(turn[0].fields["key"].contains("secret"));
    let hold = log.spans("lock.hold");
    assert_eq!(hold[0].fields["owner"], lost[0].fields["owner"]);
    assert_eq!(hold[0].fields["outcome"], "\"lost\"");
}

#[tokio::test(start_paused = true)]
async fn no_key_is_seen_at_info_level_or_above() {
    let (log, _guard) = Log::start();
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();
    let app = Router::new()
        .route("/accounts/{id}", post(async || tracing::info!("working")))
        .route_layer(DistributedLockLayer::new(
            locks.clone(),
            key::name("account").param("id"),
        ));
    send(&app, "/accounts/secret").await;
    let guard = locks.lock(SECRET).await.unwrap();
    assert!(locks.lock(SECRET).now().await.unwrap().is_none());
    store.restart();
    guard.lost().await;
    drop(guard);
    locks.close(Duration::ZERO).await;

    let secrets = log.with("secret");
    assert!(!secrets.is_empty());
    for seen in secrets {
        assert!(seen.level >= Level::DEBUG, "{seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_was_cancelled() {
    let (log, _guard) = Log::start();
    let locks = Locks::in_memory();
    let _held = locks.lock(SECRET).await.unwrap();
    let moment = Duration::from_millis(1);
    let waiting = tokio::time::timeout(moment, locks.lock(SECRET)).await;
    assert!(waiting.is_err());
    let acquires = log.spans("lock.acquire");
    assert_eq!(acquires[1].fields["outcome"], "\"cancelled\"");
}
