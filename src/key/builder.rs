//! A key made of parts.
//!
//! A [`RequestKey`] is a list of parts and the rules that apply to all of them. The parts are read
//! and written by `assemble`, once for each request.

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
use crate::defaults::key::MAX_VALUE_LEN;

type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// A key made of parts of the request, in the order written.
///
/// Begun by [`key::name`](super::name()) or [`key::request`](super::request()); see [this
/// module](super) for the rules of all parts.
///
/// ```
/// use http::Request;
/// use tower_distributed_lock::key::{self, DeriveKey};
///
/// let order = key::name("order") // a constant
///     .header("x-tenant-id") // from the request
///     .labelled("tenant") // the label of the part before
///     .query("id")
///     .parsed_as::<u64>(); // the type of the part before
///
/// let request = Request::post("/orders?id=007").header("x-tenant-id", "acme").body(())?;
/// let (mut parts, ()) = request.into_parts();
/// assert_eq!(order.derive(&mut parts)?.key().unwrap().as_str(), "order,tenant=acme,id=7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct RequestKey {
    pub(super) parts: Vec<Part>,
    pub(super) max_value_len: usize,
    pub(super) secret: Option<Secret>,
    pub(super) condition: Option<Condition>,
}

impl RequestKey {
    /// A key without parts, to which at least one is added.
    pub(super) fn new() -> Self {
        Self {
            parts: Vec::new(),
            max_value_len: MAX_VALUE_LEN,
            secret: None,
            condition: None,
        }
    }

    pub(super) fn and(mut self, source: Source) -> Self {
        self.parts.push(Part::new(source));
        self
    }

    /// Gives the previous part another label. Default: the name of the header or parameter; the
    /// label that an extension, a closure or a value was given; `path`, `method`, `host`,
    /// `route`.
    ///
    /// A key consists of labels and values; the source of a value does not count. Routes with
    /// different parameter names, or a header and a parameter, can have the same key:
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
    /// When the label is empty, or the previous part is a name.
    #[track_caller]
    pub fn labelled(mut self, label: impl AsRef<str>) -> Self {
        let label = label.as_ref();
        assert!(!label.is_empty(), "a part of a key needs a label");
        self.last().set_label(label);
        self
    }

    /// Parses the previous part as a `T`, and writes the `T` into the key: one resource then has
    /// one key, however a client writes its id. A value that does not parse is refused (400).
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
    /// When the previous part is a name.
    #[track_caller]
    pub fn parsed_as<T: FromStr + Display>(mut self) -> Self {
        let last = self.last();
        assert!(!last.is_name(), "a name is not parsed");
        last.set_type::<T>();
        self
    }

    /// Gives the previous part a value for requests without it.
    ///
    /// Right if the handler assumes the same value: one resource then has one key. The fallback
    /// gives clients no new power: a client that can send the value can also leave it out. If
    /// absence differs from every value, use [`optional`](Self::optional).
    ///
    /// A doubled, empty or unreadable part is not absent, and is still refused.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey};
    ///
    /// // The handler treats a request without a currency as one in euros.
    /// let price = key::name("price").query("currency").or("eur");
    /// let (mut parts, ()) = Request::post("/price").body(())?.into_parts();
    /// assert_eq!(price.derive(&mut parts)?.key().unwrap().as_str(), "price,currency=eur");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When `value` is empty or cannot be sent (a host that is none, a header with characters that
    /// are not visible), or the previous part is a name, a value, the path or the method, which
    /// are never absent.
    #[track_caller]
    pub fn or(self, value: impl Into<String>) -> Self {
        let value = value.into();
        assert!(!value.is_empty(), "a fallback must not be empty");
        self.when_absent(Absent::SameAs(value))
    }

    /// Makes the previous part optional: requests without it have a key that no value can forge.
    ///
    /// The value of an absent part is empty in the key, as in `account,x-region=`.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey};
    ///
    /// let account = key::name("account").header("x-region").optional();
    /// let (mut parts, ()) = Request::post("/").body(())?.into_parts();
    /// assert_eq!(account.derive(&mut parts)?.key().unwrap().as_str(), "account,x-region=");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When the previous part is a name, a value, the path or the method, which are never absent.
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
        self.parts
            .last_mut()
            .expect("a part comes before its options")
    }

    /// Locks only requests that fulfil the condition; others pass straight through. Default: all
    /// requests.
    ///
    /// The condition is checked before the parts are read. A second condition replaces the first.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey, Derived};
    ///
    /// let import = key::name("import").only_when(|request| !request.headers.contains_key("x-dry-run"));
    /// let (mut parts, ()) = Request::post("/").header("x-dry-run", "1").body(())?.into_parts();
    /// assert_eq!(import.derive(&mut parts)?, Derived::NoLock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn only_when(mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.condition = Some(Arc::new(condition));
        self
    }

    /// The longest value of one part, in bytes. Default: 512.
    ///
    /// A longer value that a client has chosen is refused. A longer path, and a longer text of the
    /// program, in its encoded form, is replaced by its SHA-256.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::key::{self, DeriveKey, KeyErrorKind};
    ///
    /// let order = key::name("order").query("id").max_value_len(3);
    /// let (mut parts, ()) = Request::post("/orders?id=4711").body(())?.into_parts();
    /// assert_eq!(order.derive(&mut parts).unwrap_err().kind(), KeyErrorKind::TooLong);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_value_len(mut self, bytes: usize) -> Self {
        self.max_value_len = bytes;
        self
    }

    /// Replaces the key by its HMAC-SHA-256 under this secret, where tenant names must not be
    /// stored. Default: the key stays readable.
    ///
    /// Names at the beginning stay readable, since they come from the program:
    /// `account,#hmac-sha256=…`. All processes need the same secret: with two secrets, also
    /// during a deployment, there are two locks.
    ///
    /// ```
    /// use tower_distributed_lock::key;
    ///
    /// let secret = [7; 32]; // from the configuration of the service
    /// let key = key::name("account").value("tenant", "acme").hashed_with(secret).lock_key()?;
    /// assert!(key.as_str().starts_with("account,#hmac-sha256="));
    /// assert!(!key.as_str().contains("acme"));
    /// # Ok::<(), key::KeyError>(())
    /// ```
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
