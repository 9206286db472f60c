//! The parts of a key: the value that each reads from a request, and the meaning of its absence.
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

use std::{borrow::Cow, fmt::Display, str::FromStr, sync::Arc};

pub(super) use source::Source;

use super::{
    KeyError, KeyErrorKind, RequestView,
    digest::hash_value,
    encode::{self, IS},
    values::Given,
};

/// One part of a key, with its label already encoded.
#[derive(Clone)]
pub(super) struct Part {
    label: String,
    source: Source,
    absent: Absent,
    /// Brings a value into its canonical form; `None` for a value that does not parse.
    canonical: Option<Canonical>,
}

type Canonical = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

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

/// The source of a key's values.
pub(super) enum Values<'r> {
    Request(&'r RequestView<'r>),
    Given(&'r Given),
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
        matches!(self.source, Source::Name(_))
    }

    /// Whether the value is set by the program.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.source, Source::Name(_) | Source::Value(..))
    }

    /// Whether only a matched route can have this part.
    #[cfg(feature = "axum")]
    pub(super) fn is_of_route(&self) -> bool {
        matches!(self.source, Source::Route | Source::Param(_))
    }

    #[cfg(feature = "axum")]
    pub(super) fn is_computed(&self) -> bool {
        matches!(self.source, Source::Computed(..))
    }

    #[cfg(feature = "axum")]
    pub(super) fn is_required(&self) -> bool {
        matches!(self.absent, Absent::Refused)
    }

    #[track_caller]
    pub(super) fn set_label(&mut self, label: &str) {
        assert!(!self.is_name(), "a name is its own label");
        self.label = encoded(label);
    }

    #[track_caller]
    pub(super) fn set_absent(&mut self, absent: Absent) {
        assert!(
            !self.is_constant() && !matches!(self.source, Source::Path | Source::Method),
            "a name, a value, the path and the method are never absent: a fallback must follow another part"
        );
        self.absent = absent;
    }

    pub(super) fn set_type<T: FromStr + Display>(&mut self) {
        self.canonical = Some(Arc::new(|text| {
            text.parse::<T>().ok().map(|value| value.to_string())
        }));
    }

    /// Appends the part to the key.
    pub(super) fn write(
        &self,
        values: &Values<'_>,
        max_value_len: usize,
        out: &mut String,
    ) -> Result<(), KeyError> {
        out.push_str(&self.label);
        if self.is_name() {
            return Ok(());
        }
        let separator_at = out.len();
        out.push(IS);
        let Some(value) = self.read(values)? else {
            return self.write_absent(values, out);
        };
        if value.is_empty() {
            return Err(self.source.empty());
        }
        // Values of any length come from clients, and are refused. A path, and a value of the program, must not fail.
        let is_hashed = self.source.is_hashed_when_long();
        if !is_hashed && value.len() > max_value_len {
            let message = format!("{} is longer than {max_value_len} bytes", self.source);
            return Err(KeyError::new(KeyErrorKind::TooLong, message));
        }
        self.source.encode(&self.in_one_form(value)?, out);
        let len = out.len() - separator_at - IS.len_utf8();
        if is_hashed && len > max_value_len {
            hash_value(out, separator_at);
        }
        Ok(())
    }

    /// The value of the part, or `None` if there is none.
    fn read<'r>(&'r self, values: &Values<'r>) -> Result<Option<Cow<'r, str>>, KeyError> {
        match values {
            Values::Request(request) => self.source.read(request),
            Values::Given(_) if self.is_constant() => Ok(self.source.constant()),
            Values::Given(given) => given
                .get(&self.label)
                .map(|value| self.source.check_given(value))
                .transpose(),
        }
    }

    /// The canonical form of a value, for a part with a type.
    fn in_one_form<'r>(&self, value: Cow<'r, str>) -> Result<Cow<'r, str>, KeyError> {
        let Some(canonical) = &self.canonical else {
            return Ok(value);
        };
        match canonical(&value) {
            Some(value) if !value.is_empty() => Ok(value.into()),
            _ => Err(KeyError::new(
                KeyErrorKind::Malformed,
                format!("{} is not of the expected type", self.source),
            )),
        }
    }

    /// Appends the value that stands for an absent part, or refuses the request.
    fn write_absent(&self, values: &Values<'_>, out: &mut String) -> Result<(), KeyError> {
        match (&self.absent, values) {
            (Absent::Refused, Values::Request(request)) => Err(self.source.missing(request)),
            (Absent::Refused, Values::Given(_)) => Err(KeyError::new(
                KeyErrorKind::Missing,
                format!("the key needs a value for `{}`", self.label),
            )),
            (Absent::SameAs(value), _) => {
                self.source.encode(&self.in_one_form(value.into())?, out);
                Ok(())
            }
            // Nothing after the `=`: no request can send an empty value, which is refused.
            (Absent::Distinct, _) => Ok(()),
        }
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
