//! A key made of parts.

use std::{fmt, sync::Arc};

use http::request::Parts;

use super::{
    digest::Secret,
    parts::{Absent, Part, Source},
};

type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// A key made of parts of the request, in the order written.
///
/// Begun by one of the functions of [this module](super), such as [`name`](super::name()); see there for what
/// the parts have in common.
#[derive(Clone)]
#[must_use]
pub struct RequestKey {
    pub(super) parts: Vec<Part>,
    pub(super) max_value_len: usize,
    pub(super) secret: Option<Secret>,
    pub(super) condition: Option<Condition>,
}

impl RequestKey {
    /// The default of [`max_value_len`](Self::max_value_len), in bytes.
    pub const DEFAULT_MAX_VALUE_LEN: usize = 512;

    pub(super) fn of(source: Source) -> Self {
        Self {
            parts: vec![Part::new(source)],
            max_value_len: Self::DEFAULT_MAX_VALUE_LEN,
            secret: None,
            condition: None,
        }
    }

    pub(super) fn and(mut self, source: Source) -> Self {
        self.parts.push(Part::new(source));
        self
    }

    /// A request without the part before this locks the same as one that sends `value`.
    ///
    /// Right where the handler, too, takes `value` for what is not sent: one resource then has one key. It gives a
    /// client no power that it does not have: whoever can send the value can also leave it out. Where absence is
    /// not the same as any value, say [`optional`](Self::optional).
    ///
    /// A part that is there twice, empty or unreadable is not absent, and still refused.
    ///
    /// # Panics
    ///
    /// When `value` is empty, or the part before is a name, the path or the method, which are never absent.
    #[track_caller]
    pub fn or(self, value: impl Into<String>) -> Self {
        let value = value.into();
        assert!(!value.is_empty(), "a fallback must not be empty");
        self.when_absent(Absent::SameAs(value))
    }

    /// A request without the part before this has a key, too: one that no value can forge.
    ///
    /// In the key, nothing stands for the value then, as in `account,header.x-region=`.
    ///
    /// # Panics
    ///
    /// When the part before is a name, the path or the method, which are never absent.
    #[track_caller]
    pub fn optional(self) -> Self {
        self.when_absent(Absent::Distinct)
    }

    #[track_caller]
    fn when_absent(mut self, absent: Absent) -> Self {
        if let Some(last) = self.parts.last_mut() {
            last.set_absent(absent);
        }
        self
    }

    /// Locks only requests for which this holds; others pass straight through. Default: all.
    ///
    /// Asked before the parts are read. A second condition replaces the first.
    pub fn only_when(mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.condition = Some(Arc::new(condition));
        self
    }

    /// The longest value of one part, in bytes. Default:
    /// [`DEFAULT_MAX_VALUE_LEN`](Self::DEFAULT_MAX_VALUE_LEN).
    ///
    /// A longer header, query parameter, path parameter, host or method is refused. A path, an extension and what a
    /// closure returned are then written as their SHA-256.
    pub fn max_value_len(mut self, bytes: usize) -> Self {
        self.max_value_len = bytes;
        self
    }

    /// Stores the HMAC-SHA-256 of the key under this secret instead of the key, for those who must not store tenant
    /// names. Default: the key stays readable.
    ///
    /// Names at the beginning stay readable also then, they are the program's own: `account,#hmac-sha256=…`.
    /// All processes need the same secret: two secrets are two locks. So is an old and a new one during a deployment.
    ///
    /// # Panics
    ///
    /// When the secret has fewer than 16 bytes; 32 random ones are a good choice.
    #[track_caller]
    pub fn hashed_with(mut self, secret: impl AsRef<[u8]>) -> Self {
        let secret = secret.as_ref();
        assert!(
            secret.len() >= Secret::MIN_LEN,
            "a secret of fewer than {} bytes hides nothing",
            Secret::MIN_LEN
        );
        self.secret = Some(Secret::new(secret));
        self
    }
}

impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestKey")
            .field("parts", &self.parts)
            .field("max_value_len", &self.max_value_len)
            .field("secret", &self.secret)
            .field("conditional", &self.condition.is_some())
            .finish()
    }
}
