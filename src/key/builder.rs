//! A key made of parts.

use std::{
    fmt::{self, Display},
    str::FromStr,
    sync::Arc,
};

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

    /// Gives the part before this another label. Default: the name of the header or parameter; the label that an extension, a
    /// closure or a value was given; `path`, `method`, `host`, `route`.
    ///
    /// Only labels and values make a key, not where a value came from. So routes whose parameters have different names, or
    /// a header and a parameter, can mean the same:
    ///
    /// ```
    /// use tower_distributed_lock::key;
    ///
    /// let by_header = key::name("account").header("x-account-id").labelled("id");
    /// let by_query = key::name("account").query("id");
    /// assert_eq!(by_header.with("id", 7).lock_key()?, by_query.with("id", 7).lock_key()?);
    /// # Ok::<(), key::KeyError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the label is empty, or the part before is a name.
    #[track_caller]
    pub fn labelled(mut self, label: impl AsRef<str>) -> Self {
        let label = label.as_ref();
        assert!(!label.is_empty(), "a part of a key needs a label");
        self.last().set_label(label);
        self
    }

    /// Reads the part before this as a `T`, and writes that into the key: one resource then has one key, however a client
    /// writes its id. A value that is no `T` is refused (400).
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey};
    ///
    /// let account = key::name("account").query("id").parsed_as::<u64>();
    /// let (mut parts, ()) = Request::post("/transfers?id=007").body(())?.into_parts();
    /// assert_eq!(account.derive(&mut parts)?.key().unwrap().as_str(), "account,id=7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the part before is a name.
    #[track_caller]
    pub fn parsed_as<T: FromStr + Display>(mut self) -> Self {
        let last = self.last();
        assert!(!last.is_name(), "a name is not parsed");
        last.set_type::<T>();
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
    /// When `value` is empty, or the part before is a name, a value, the path or the method, which are never absent.
    #[track_caller]
    pub fn or(self, value: impl Into<String>) -> Self {
        let value = value.into();
        assert!(!value.is_empty(), "a fallback must not be empty");
        self.when_absent(Absent::SameAs(value))
    }

    /// A request without the part before this has a key, too: one that no value can forge.
    ///
    /// In the key, nothing stands for the value then, as in `account,x-region=`.
    ///
    /// # Panics
    ///
    /// When the part before is a name, a value, the path or the method, which are never absent.
    #[track_caller]
    pub fn optional(self) -> Self {
        self.when_absent(Absent::Distinct)
    }

    #[track_caller]
    fn when_absent(mut self, absent: Absent) -> Self {
        self.last().set_absent(absent);
        self
    }

    fn last(&mut self) -> &mut Part {
        self.parts.last_mut().expect("a key begins with a part")
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
