//! The parts of a key: what each reads from a request, and what its absence means.

mod header;
mod host;
mod path;
mod query;
mod source;

pub(super) use source::Source;

use super::{
    KeyError,
    digest::hash_value,
    encode::{self, IS},
};

/// One part of a key, with its label already encoded.
#[derive(Debug, Clone)]
pub(super) struct Part {
    label: String,
    source: Source,
    absent: Absent,
}

/// What the absence of a part means.
#[derive(Debug, Clone)]
pub(super) enum Absent {
    /// No key.
    Refused,
    /// The same as this value.
    SameAs(String),
    /// A value of its own, which no other can equal.
    Distinct,
}

/// A request, and what was found out about it before its parts are read.
pub(super) struct Incoming<'r> {
    pub(super) parts: &'r http::request::Parts,
    pub(super) max_value_len: usize,
    #[cfg(feature = "axum")]
    pub(super) route: Option<super::axum::MatchedRoute>,
}

impl Part {
    pub(super) fn new(source: Source) -> Self {
        Self {
            label: source.label(),
            source,
            absent: Absent::Refused,
        }
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn is_name(&self) -> bool {
        matches!(self.source, Source::Name(_))
    }

    /// Whether only a matched route can have this part.
    #[cfg(feature = "axum")]
    pub(super) fn is_of_route(&self) -> bool {
        matches!(self.source, Source::Route | Source::Param(_))
    }

    #[cfg(feature = "axum")]
    pub(super) fn is_required(&self) -> bool {
        matches!(self.absent, Absent::Refused)
    }

    #[track_caller]
    pub(super) fn set_absent(&mut self, absent: Absent) {
        assert!(
            !matches!(self.source, Source::Name(_) | Source::Path | Source::Method),
            "a name, the path and the method are never absent: a fallback must follow another part"
        );
        self.absent = absent;
    }

    /// Appends the part to the key.
    pub(super) fn write(&self, request: &Incoming<'_>, out: &mut String) -> Result<(), KeyError> {
        out.push_str(&self.label);
        if self.is_name() {
            return Ok(());
        }
        let separator_at = out.len();
        out.push(IS);
        if !self.source.write(request, out)? {
            return self.write_absent(request, out);
        }
        let len = out.len() - separator_at - IS.len_utf8();
        if len == 0 {
            return Err(self.source.empty());
        }
        // What a client sends freely was refused by the source already when it is too long; what is left
        // was made by the program, or is a path, and must not fail.
        if self.source.is_hashed_when_long() && len > request.max_value_len {
            hash_value(out, separator_at);
        }
        Ok(())
    }

    fn write_absent(&self, request: &Incoming<'_>, out: &mut String) -> Result<(), KeyError> {
        match &self.absent {
            Absent::Refused => return Err(self.source.missing(request)),
            Absent::SameAs(value) => encode::push_value(out, value),
            // Nothing after the `=`: an empty value is refused, so no request can be this one by what it sends.
            Absent::Distinct => {}
        }
        Ok(())
    }
}
