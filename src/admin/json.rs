//! A JSON document, written from the outside in. Texts go through [`Quoted`] and cannot break out of their strings.
//!
//! ```text
//! Object::new().text("key", "a\"b").number("waiting", 2).finish()   ──▶   {"key":"a\"b","waiting":2}
//! ```

use std::{
    fmt::{self, Display, Write},
    time::Duration,
};

use crate::http::json::Quoted;

/// A JSON object that is being written.
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self("{".into())
    }

    /// Adds a text.
    pub(super) fn text(self, name: &str, text: impl Display) -> Self {
        let text = text.to_string();
        self.member(name, Quoted(&text))
    }

    /// Adds a text, or `null`.
    pub(super) fn maybe_text(self, name: &str, text: Option<impl Display>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self.null(name),
        }
    }

    /// Adds a whole number.
    pub(super) fn number(self, name: &str, number: impl TryInto<u64>) -> Self {
        self.member(name, number.try_into().unwrap_or(u64::MAX))
    }

    /// Adds a truth value.
    pub(super) fn bool(self, name: &str, value: bool) -> Self {
        self.member(name, value)
    }

    /// Adds a duration in milliseconds.
    pub(super) fn millis(self, name: &str, duration: Duration) -> Self {
        self.member(name, Millis(duration))
    }

    pub(super) fn maybe_millis(self, name: &str, duration: Option<Duration>) -> Self {
        match duration {
            Some(duration) => self.millis(name, duration),
            None => self.null(name),
        }
    }

    pub(super) fn object(self, name: &str, object: Object) -> Self {
        self.member(name, object.finish())
    }

    pub(super) fn maybe_object(self, name: &str, object: Option<Object>) -> Self {
        match object {
            Some(object) => self.object(name, object),
            None => self.null(name),
        }
    }

    /// Adds a list of objects.
    pub(super) fn array(self, name: &str, objects: impl IntoIterator<Item = Object>) -> Self {
        let objects: Vec<_> = objects.into_iter().map(Object::finish).collect();
        self.member(name, format_args!("[{}]", objects.join(",")))
    }

    pub(super) fn null(self, name: &str) -> Self {
        self.member(name, "null")
    }

    /// The finished text.
    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    /// Adds a member whose value is already JSON.
    fn member(mut self, name: &str, json: impl Display) -> Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        let _ = write!(self.0, "{}:{json}", Quoted(name));
        self
    }
}

/// A duration as a number of milliseconds, with three decimals.
struct Millis(Duration);

impl Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{}.{:03}", micros / 1000, micros % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_what_a_json_parser_reads() {
        let inner = Object::new().maybe_text("none", None::<&str>);
        let text = Object::new()
            .text("key", "</script>\"\\\u{1}")
            .number("n", 3)
            .bool("yes", true)
            .millis("ms", Duration::from_micros(1_002_003))
            .array("list", [Object::new(), inner])
            .maybe_object("absent", None)
            .finish();
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({
            "key": "</script>\"\\\u{1}",
            "n": 3,
            "yes": true,
            "ms": 1002.003,
            "list": [{}, { "none": null }],
            "absent": null,
        });
        assert_eq!(parsed, expected);
    }
}
