//! The log of idempotent requests.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_distributed_lock::{
    Locks,
    store::{Fault, FaultyStore},
};
use tracing::{Event, Level, Subscriber, field::Field};
use tracing_subscriber::{Registry, layer::Context, prelude::*};

use crate::web::{Runs, app, layer, pay, pay_as, send, sending};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl<S: Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, "{field}={value:?} ").unwrap();
        });
        self.0
            .lock()
            .unwrap()
            .push((*event.metadata().level(), line));
    }
}

#[cfg_attr(
    not(feature = "tracing"),
    ignore = "without the feature there is no log"
)]
#[tokio::test(start_paused = true)]
async fn an_answer_that_could_not_be_stored_is_an_error_in_the_log_without_its_key() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
    let (store, runs) = (FaultyStore::new(), Runs::gated());
    let locks = Locks::builder(store.clone()).build().unwrap();
    let app = app(
        layer(&locks).store_within(Duration::from_secs(1)),
        runs.handler(),
    );
    let first = sending(&app, pay());
    runs.arrival().await;
    store.set_fault(Some(Fault::Unreachable));
    runs.open();
    first.await.unwrap();
    let lines = log.0.lock().unwrap();
    let errors: Vec<_> = lines
        .iter()
        .filter(|(level, _)| *level == Level::ERROR)
        .collect();
    let [(_, line)] = &errors[..] else {
        panic!("{errors:?}");
    };
    assert!(
        line.contains("idempotency.not_kept") && !line.contains("acme"),
        "{line}"
    );
}

/// The lines of this level, in the order written.
fn lines_of(log: &Log, level: Level) -> Vec<String> {
    let lines = log.0.lock().unwrap();
    let lines = lines.iter().filter(|(of, _)| *of == level);
    lines.map(|(_, line)| line.clone()).collect()
}

#[cfg_attr(
    not(feature = "tracing"),
    ignore = "without the feature there is no log"
)]
#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_kept_is_logged_at_once_with_the_fix() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
    let locks = Locks::in_memory();
    let large = app(layer(&locks).max_response(3), async || "four");
    send(&large, pay_as("large")).await;
    let endless = app(layer(&locks), async || {
        axum::body::Body::from_stream(
            futures_util::stream::pending::<Result<String, axum::Error>>(),
        )
    });
    let request = pay().body(axum::body::Body::from("five")).unwrap();
    let _response = tower::ServiceExt::oneshot(endless, request).await.unwrap();
    let lines = lines_of(&log, Level::WARN);
    let [large, endless] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        large.contains("idempotency.answer_not_kept") && large.contains("max_response"),
        "{large}"
    );
    assert!(endless.contains("read_within"), "{endless}");
}

#[cfg_attr(
    not(feature = "tracing"),
    ignore = "without the feature there is no log"
)]
#[tokio::test]
async fn each_record_is_logged_with_its_scope_and_its_size() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
    let app = app(layer(&Locks::in_memory()), async || "paid");
    for key in ["one", "two"] {
        let request = http::Request::post("/pay").header("x-tenant-id", "acme");
        send(&app, request.header("idempotency-key", key)).await;
    }
    let lines = lines_of(&log, Level::DEBUG);
    let stored = lines
        .iter()
        .filter(|line| line.contains("idempotency.stored"));
    let stored: Vec<_> = stored.collect();
    let [_, line] = &stored[..] else {
        panic!("{lines:?}");
    };
    for field in ["scope=\"x-tenant-id=acme\"", " bytes=", " retain="] {
        assert!(line.contains(field), "{line} has no {field}");
    }
}

#[cfg_attr(
    not(feature = "tracing"),
    ignore = "without the feature there is no log"
)]
#[tokio::test(start_paused = true)]
async fn a_refused_duplicate_is_logged_with_the_holder_of_its_key() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
    let runs = Runs::gated();
    let app = app(
        layer(&Locks::in_memory()).reject_if_running(),
        runs.handler(),
    );
    let first = sending(&app, pay());
    runs.arrival().await;
    send(&app, pay()).await.assert_refused(409, "in-progress");
    let lines = lines_of(&log, Level::DEBUG);
    let is_refusal = |line: &&String| line.contains("InProgress");
    let line = lines
        .iter()
        .find(is_refusal)
        .expect("the refusal is logged");
    assert!(line.contains("held in this process, for "), "{line}");
    runs.open();
    first.await.unwrap();
}

#[cfg_attr(
    not(feature = "tracing"),
    ignore = "without the feature there is no log"
)]
#[tokio::test]
async fn a_missing_key_is_logged_as_that() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
    let required = app(layer(&Locks::in_memory()).required(), async || {});
    let request = http::Request::post("/pay").header("x-tenant-id", "acme");
    send(&required, request).await;
    let lines = lines_of(&log, Level::DEBUG);
    let refused = lines.iter().filter(|line| line.contains("lock.refused"));
    let refused: Vec<_> = refused.collect();
    let [line] = &refused[..] else {
        panic!("{lines:?}");
    };
    assert!(line.contains("MissingIdempotencyKey"), "{line}");
}
