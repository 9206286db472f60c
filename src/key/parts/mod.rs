//! The parts of a key: the source of the value of each, and the meaning of its absence. `assemble`
//! reads and writes them.
//!
//! ```text
//! Part { label: "id", source: Query("id"), absent: Refused, canonical: u64 }
//!
//! ?id=007    read "007"  ──▶  canonical "7"  ──▶  "id=7"
//! ?id=       read ""     ──▶  refused: empty
//! (none)     absent      ──▶  refused, or the fallback of `or`, or "id=" with `optional`
//! ```

mod header;
mod host;
mod path;
mod query;
mod source;

use std::{fmt::Display, str::FromStr, sync::Arc};

use source::Origin;
pub(super) use source::{Source, written};

use super::encode;

/// One part of a key, with its label already encoded.
#[derive(Clone)]
pub(super) struct Part {
    label: String,
    pub(super) source: Source,
    pub(super) absent: Absent,
    /// Brings a value into its canonical form; `None` for a value that does not parse.
    pub(super) canonical: Option<Canonical>,
}

pub(super) type Canonical = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The meaning of a part's absence.
#[derive(Debug, Clone)]
pub(super) enum Absent {
    /// The request is refused.
    Refused,
    /// The part has this value.
    SameAs(String),
    /// The part has a value that no request can send.
    Distinct,
}

impl Part {
    pub(super) fn new(source: Source) -> Self {
        Self {
            label: encoded(source.label()),
            source,
            absent: Absent::Refused,
            canonical: None,
        }
    }

    /// The label, encoded.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn is_name(&self) -> bool {
        self.source.origin() == Origin::Name
    }

    /// Whether the value is set by the program.
    pub(super) fn is_constant(&self) -> bool {
        self.is_name() || self.source.origin() == Origin::Value
    }

    /// Whether only a matched route can have this part.
    #[cfg(feature = "axum")]
    pub(super) fn is_of_route(&self) -> bool {
        self.source.origin() == Origin::Route
    }

    #[track_caller]
    pub(super) fn set_label(&mut self, label: &str) {
        assert!(!self.is_name(), "a name is its own label");
        self.label = encoded(label);
    }

    #[track_caller]
    pub(super) fn set_absent(&mut self, absent: Absent) {
        assert!(
            self.source.may_be_absent(),
            "a name, a value, the path and the method are never absent: a fallback must follow another part"
        );
        if let Absent::SameAs(value) = &absent
            && let Err(error) = self.source.check_given(value)
        {
            panic!("no request can send the fallback `{value}`: {error}");
        }
        self.absent = absent;
    }

    pub(super) fn set_type<T: FromStr + Display>(&mut self) {
        self.canonical = Some(Arc::new(|text| {
            text.parse::<T>().ok().map(|value| value.to_string())
        }));
    }
}

fn encoded(label: &str) -> String {
    let mut out = String::new();
    encode::push_value(&mut out, label);
    out
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("label", &self.label)
            .field("source", &self.source)
            .field("absent", &self.absent)
            .field("typed", &self.canonical.is_some())
            .finish()
    }
}
