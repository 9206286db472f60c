//! Log events at warning level.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Collects log events at warning level.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<String>>);

impl Warnings {
    pub(crate) fn all(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Text(&mut self.0.lock().unwrap()));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}
