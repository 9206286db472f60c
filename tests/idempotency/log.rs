//! What an operator is told.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_distributed_lock::{
    Locks,
    store::{Fault, MemoryStore},
};
use tracing::{Event, Level, Subscriber, field::Field};
use tracing_subscriber::{Registry, layer::Context, prelude::*};

use crate::web::{Runs, app, layer, pay, sending};

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
    let (store, runs) = (MemoryStore::new(), Runs::gated());
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
