//! Log events at warning level, or from info level on.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Collects log events at warning level.
#[derive(Clone, Default)]
pub struct Warnings {
    text: Arc<Mutex<String>>,
    /// Whether events at info level are collected, too.
    with_infos: bool,
}

impl Warnings {
    /// Collects events at info level, too.
    pub fn with_infos() -> Self {
        Self {
            with_infos: true,
            ..Self::default()
        }
    }

    pub fn all(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// How often an event was logged.
    pub fn count(&self, event: &str) -> usize {
        self.text.lock().unwrap().matches(event).count()
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = *metadata.level();
        level == Level::WARN || self.with_infos && level == Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Text(&mut self.text.lock().unwrap()));
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
