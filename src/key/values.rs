//! Keys outside of a request, from values of the program.

use std::fmt::Display;

use super::{KeyError, LockKey, RequestKey, encode};
use crate::{Error, ErrorKind};

/// Values by their encoded label.
#[derive(Debug, Clone, Default)]
pub(super) struct Given(Vec<(String, String)>);

impl Given {
    pub(super) fn get(&self, label: &str) -> Option<&str> {
        let mut given = self.0.iter().rev();
        given
            .find(|(given, _)| given == label)
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(label, _)| label.as_str())
    }

    fn set(&mut self, label: &str, value: impl Display) {
        let mut encoded = String::new();
        encode::push_value(&mut encoded, label);
        self.0.push((encoded, value.to_string()));
    }
}

/// A [`RequestKey`] and the values of its parts, for use outside of a request. Made by
/// [`RequestKey::with`].
///
/// ```
/// use tower_distributed_lock::key;
///
/// let account = key::name("account").header("x-tenant-id").labelled("tenant").query("id");
/// let values = account.with("tenant", "acme").with("id", 7);
/// assert_eq!(values.lock_key()?.as_str(), "account,tenant=acme,id=7");
///
/// // A value that is missing, or that no part asks for, is an error.
/// assert!(account.with("tenant", "acme").lock_key().is_err());
/// assert!(account.with("tenant", "acme").with("id", 7).with("other", 1).lock_key().is_err());
/// # Ok::<(), key::KeyError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "values are no key until `lock_key` is called, or a method of `Locks` takes them"]
pub struct KeyValues<'k> {
    key: &'k RequestKey,
    given: Given,
}

impl RequestKey {
    /// Gives the part with this label a value, for a key outside of a request: for example the
    /// other account of a transfer, or the account of a nightly job.
    ///
    /// The key is exactly the key that a layer with this `RequestKey` derives from a request with
    /// the same values, including types, fallbacks, limits and hashes. Only
    /// [`only_when`](Self::only_when) does not apply. Define a key once, and use it in both places:
    #[cfg_attr(feature = "axum", doc = "```")]
    #[cfg_attr(not(feature = "axum"), doc = "```ignore")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{DistributedLockLayer, Locks, key};
    ///
    /// let locks = Locks::in_memory();
    /// let account =
    /// key::name("account").header("x-tenant-id").labelled("tenant").param_as::<u64>("id"); let
    /// layer = DistributedLockLayer::new(locks.clone(), account.clone());
    ///
    /// // Elsewhere:
    /// let guard = locks.lock(account.with("tenant", "acme").with("id", 7)).await?;
    /// assert_eq!(guard.key().as_str(), "account,tenant=acme,id=7");
    /// # Ok(())
    /// # }
    /// ```
    pub fn with(&self, label: impl AsRef<str>, value: impl Display) -> KeyValues<'_> {
        let given = Given::default();
        KeyValues { key: self, given }.with(label, value)
    }

    /// The key, where all parts are [names](Self::name) and [values](Self::value).
    ///
    /// ```
    /// use tower_distributed_lock::key;
    ///
    /// let key = key::name("account").value("tenant", "acme, inc").value("id", 7).lock_key()?;
    /// assert_eq!(key.as_str(), "account,tenant=acme%2C%20inc,id=7");
    /// # Ok::<(), key::KeyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A part needs a value: use [`with`](Self::with).
    pub fn lock_key(&self) -> Result<LockKey, KeyError> {
        self.fill(&Given::default())
    }
}

impl KeyValues<'_> {
    /// Gives one more part its value. A later value replaces an earlier one of the same label.
    pub fn with(mut self, label: impl AsRef<str>, value: impl Display) -> Self {
        self.given.set(label.as_ref(), value);
        self
    }

    /// The key.
    ///
    /// # Errors
    ///
    /// A part lacks its value, a value would be refused in a request, or the key has no part with a
    /// given label.
    pub fn lock_key(&self) -> Result<LockKey, KeyError> {
        self.key.fill(&self.given)
    }
}

impl TryFrom<KeyValues<'_>> for LockKey {
    type Error = KeyError;

    fn try_from(values: KeyValues<'_>) -> Result<Self, KeyError> {
        values.lock_key()
    }
}

impl TryFrom<&RequestKey> for LockKey {
    type Error = KeyError;

    fn try_from(key: &RequestKey) -> Result<Self, KeyError> {
        key.lock_key()
    }
}

impl TryFrom<RequestKey> for LockKey {
    type Error = KeyError;

    fn try_from(key: RequestKey) -> Result<Self, KeyError> {
        key.lock_key()
    }
}

/// [`ErrorKind::InvalidKey`]. Lets the methods of [`Locks`](crate::Locks) take a [`KeyValues`].
impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Self::new(ErrorKind::InvalidKey, error.to_string())
    }
}
