//! From the parts of a request to its key.
//!
//! 1. A request that does not fulfil the condition of [`RequestKey::only_when`] needs no lock.
//! 2. If a part comes from the route, the route is looked up first. A request without a route
//!    passes, and the router answers 404.
//! 3. Each part is read, checked and appended, with a comma in between.
//! 4. A key that is too long, or that has a secret, is replaced by its hash after the names at its
//!    beginning.

use std::{borrow::Cow, cell::Cell};

use http::{Uri, request::Parts};

#[cfg(feature = "axum")]
use super::axum::MatchedRoute;
use super::{
    DeriveKey, Derived, KeyError, KeyErrorKind, LockKey, RequestKey, RequestView,
    digest::{hash_key, hash_value},
    encode::{IS, IS_HMAC_SHA256, NEXT, push_value},
    parts::{Absent, Part, Source},
    values::Given,
};

/// The source of a key's values.
enum Values<'r> {
    Request(&'r RequestView<'r>),
    Given(&'r Given),
}

impl DeriveKey for RequestKey {
    fn derive(&self, parts: &mut Parts) -> Result<Derived, KeyError> {
        if self.condition.as_ref().is_some_and(|holds| !holds(parts)) {
            return Ok(Derived::NoLock);
        }
        self.derive_locked(parts)
    }
}

impl RequestKey {
    #[cfg(not(feature = "axum"))]
    fn derive_locked(&self, parts: &mut Parts) -> Result<Derived, KeyError> {
        let view = RequestView::new(parts);
        self.write(&Values::Request(&view)).map(Derived::Key)
    }

    #[cfg(feature = "axum")]
    fn derive_locked(&self, parts: &mut Parts) -> Result<Derived, KeyError> {
        // The route comes first: a 404 stays a 404 even if a header is missing.
        let route = if self.needs_route() {
            MatchedRoute::of(parts)?
        } else if self.has_closure() {
            MatchedRoute::if_matched(parts)?
        } else {
            None
        };
        if route.is_none() && self.requires_match() {
            return Ok(Derived::NoRoute);
        }
        let view = RequestView::new(parts, route);
        let written = self.write(&Values::Request(&view));
        if written.is_err() && view.lacks_route() && MatchedRoute::of(parts)?.is_none() {
            return Ok(Derived::NoRoute);
        }
        written.map(Derived::Key)
    }

    /// Whether a part comes from the route, with or without a fallback: a fallback is for routes
    /// without the part, not for a layer in the wrong place.
    #[cfg(feature = "axum")]
    fn needs_route(&self) -> bool {
        self.parts.iter().any(Part::is_of_route)
    }

    /// Whether a part of the route has no fallback, so that a request without a route has no key.
    #[cfg(feature = "axum")]
    fn requires_match(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.is_of_route() && matches!(part.absent, Absent::Refused))
    }

    #[cfg(feature = "axum")]
    fn has_closure(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| matches!(part.source, Source::Computed(..)))
    }

    /// The key of these values, without a request.
    pub(super) fn fill(&self, given: &Given) -> Result<LockKey, KeyError> {
        let is_open = |label: &str| {
            let mut parts = self.parts.iter();
            parts.any(|part| !part.is_constant() && part.label() == label)
        };
        if let Some(label) = given.labels().find(|label| !is_open(label)) {
            return Err(KeyError::misconfigured(format!(
                "the key has no part `{label}` that could be given a value"
            )));
        }
        self.write(&Values::Given(given))
    }

    /// Writes all parts, from a request or from values of the program.
    fn write(&self, values: &Values<'_>) -> Result<LockKey, KeyError> {
        if self.parts.is_empty() {
            return Err(KeyError::misconfigured(
                "the key has no parts: add one to `key::request()`",
            ));
        }
        with_buffer(|key| {
            for (at, part) in self.parts.iter().enumerate() {
                if at > 0 {
                    key.push_str(NEXT);
                }
                if let Values::Request(view) = values {
                    view.begin_part();
                }
                part.write(values, self.max_value_len, key)?;
            }
            match &self.secret {
                Some(secret) => secret.hash_key(key, self.readable_len()),
                None if key.len() > LockKey::MAX_LEN => hash_key(key, self.readable_len()),
                None => {}
            }
            Ok(LockKey::from_encoded(key))
        })
    }

    /// The length of the names at the beginning, which stay readable before a hash; zero if the
    /// hash would not fit.
    fn readable_len(&self) -> usize {
        let names = self.parts.iter().take_while(|part| part.is_name());
        let len: usize = names.map(|name| name.label().len() + NEXT.len()).sum();
        if len + HASH_LEN > LockKey::MAX_LEN {
            return 0;
        }
        len.saturating_sub(NEXT.len())
    }
}

impl Part {
    /// Appends the part to the key.
    fn write(
        &self,
        values: &Values<'_>,
        max_value_len: usize,
        out: &mut String,
    ) -> Result<(), KeyError> {
        out.push_str(self.label());
        if self.is_name() {
            return Ok(());
        }
        let separator_at = out.len();
        out.push_str(IS);
        // Values of any length come from clients, and are refused. A path, and a value of the
        // program, must not fail.
        let is_hashed = self.source.is_hashed_when_long();
        let value = match (self.read(values)?, &self.absent) {
            (Some(value), _) if value.is_empty() => return Err(self.source.empty()),
            (Some(value), _) if !is_hashed && value.len() > max_value_len => {
                let message = format!("{} is longer than {max_value_len} bytes", self.source);
                return Err(KeyError::new(KeyErrorKind::TooLong, message));
            }
            (Some(value), _) => value,
            (None, Absent::SameAs(value)) => self.source.check_given(value)?,
            // Nothing after the `=`: no request can send an empty value, which is refused.
            (None, Absent::Distinct) => return Ok(()),
            (None, Absent::Refused) => return Err(self.missing(values)),
        };
        self.source.encode(&self.in_one_form(value)?, out);
        let len = out.len() - separator_at - IS.len();
        if is_hashed && len > max_value_len {
            hash_value(out, separator_at);
        }
        Ok(())
    }

    /// The value of the part, or `None` if there is none.
    fn read<'r>(&'r self, values: &Values<'r>) -> Result<Option<Cow<'r, str>>, KeyError> {
        match (values, &self.source) {
            (Values::Request(request), source) => source.read(request),
            (Values::Given(_), Source::Value(_, value)) => Ok(Some(value.into())),
            (Values::Given(given), _) => given
                .get(self.label())
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

    /// The refusal for want of this part.
    fn missing(&self, values: &Values<'_>) -> KeyError {
        match values {
            Values::Request(request) => self.source.missing(request),
            Values::Given(_) => KeyError::new(
                KeyErrorKind::Missing,
                format!("the key needs a value for `{}`", self.label()),
            ),
        }
    }
}

/// The key of a name that a client has chosen, within a scope: no name can reach into another
/// scope.
pub(crate) fn scoped(label: &str, scope: &LockKey, name: &str) -> LockKey {
    fitted(label, |key| {
        key.extend([label, NEXT, scope.as_str(), NEXT, "key", IS]);
        // An encoded name contains no separator: the text has one reading only.
        push_value(key, name);
    })
}

/// A key with a label of this crate before it; hashed if the whole is too long.
pub(crate) fn prefixed(label: &str, key: &LockKey) -> LockKey {
    fitted(label, |text| text.extend([label, NEXT, key.as_str()]))
}

fn fitted(label: &str, write: impl FnOnce(&mut String)) -> LockKey {
    with_buffer(|key| {
        write(key);
        if key.len() > LockKey::MAX_LEN {
            hash_key(key, label.len());
        }
        LockKey::from_encoded(key)
    })
}

/// Writes a key in a buffer of the thread. Not borrowed: a part may be the user's own, and write
/// another key.
fn with_buffer<T>(write: impl FnOnce(&mut String) -> T) -> T {
    let mut key = BUFFER.take();
    key.clear();
    let written = write(&mut key);
    if key.capacity() <= LARGEST_BUFFER {
        BUFFER.set(key);
    }
    written
}

/// The request's target before any nested router stripped its prefix.
pub(crate) fn original_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = super::axum::original_uri(parts) {
        return original;
    }
    &parts.uri
}

thread_local! {
    /// Where keys are written before they have their length, so that a key is one allocation.
    static BUFFER: Cell<String> = const { Cell::new(String::new()) };
}

/// A buffer that has grown beyond the longest key, for a value that was then hashed, is not kept.
const LARGEST_BUFFER: usize = 2 * LockKey::MAX_LEN;
const HASH_LEN: usize = IS_HMAC_SHA256.len() + 64;
