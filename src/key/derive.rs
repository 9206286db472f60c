//! Key functions: from a request to the keys that it locks.

use std::sync::Arc;

use http::request::Parts;

use super::{KeyError, LockKey};

/// Derives the keys that a request locks.
///
/// Implemented by [`RequestKey`](super::RequestKey), by a [`LockKey`] (one lock for all requests),
/// and by closures:
///
/// ```
/// use http::request::Parts;
/// use tower_distributed_lock::key::{self, DeriveKey, Derived, KeyError};
///
/// let order = key::name("order").header("x-order-id");
/// let only_orders = move |parts: &mut Parts| -> Result<Derived, KeyError> {
///     match parts.headers.contains_key("x-dry-run") {
///         true => Ok(Derived::NoLock),
///         false => order.derive(parts),
///     }
/// };
/// # fn takes(_: impl DeriveKey) {}
/// # takes(only_orders);
/// ```
///
/// Two requests that must not run at once need equal keys, in every process and in all versions
/// that are deployed side by side. Text from a client needs care: prefer the parts of a
/// `RequestKey`, which encode such text.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which key a request locks",
    label = "not a key function",
    note = "for one key for all requests, use `key::name(\"..\")`; for a key from the request, add parts to it: `key::name(\"order\").path()`",
    note = "a closure is `|parts: &mut Parts| -> Result<Derived, KeyError> {{ .. }}`"
)]
pub trait DeriveKey: Send + Sync + 'static {
    /// The keys of this request.
    ///
    /// `&mut` for axum's `FromRequestParts`, the only access to path parameters that does not copy
    /// all extensions. An implementation may keep parsed values in the extensions.
    ///
    /// # Errors
    ///
    /// The request is refused, and its handler does not run.
    fn derive(&self, parts: &mut Parts) -> Result<Derived, KeyError>;
}

/// The keys that a request locks.
///
/// ```
/// use tower_distributed_lock::{LockKey, key::Derived};
///
/// let both = Derived::from(vec![LockKey::new("accounts/1")?, LockKey::new("accounts/2")?]);
/// assert_eq!(both.keys().len(), 2);
/// assert!(both.key().is_none()); // not exactly one
/// assert!(Derived::NoLock.keys().is_empty());
/// # Ok::<(), tower_distributed_lock::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Derived {
    /// This key.
    Key(LockKey),
    /// All of these keys together; see [`all_of`](super::all_of()).
    Keys(Vec<LockKey>),
    /// No key, on purpose: the request passes straight through.
    NoLock,
    /// No key: the key needs a route, and the router has found none. The request passes straight
    /// through, to the router's fallback.
    NoRoute,
}

impl Derived {
    /// The key, if there is exactly one.
    pub fn key(&self) -> Option<&LockKey> {
        match self.keys() {
            [key] => Some(key),
            _ => None,
        }
    }

    /// All keys.
    pub fn keys(&self) -> &[LockKey] {
        match self {
            Self::Key(key) => std::slice::from_ref(key),
            Self::Keys(keys) => keys,
            Self::NoLock | Self::NoRoute => &[],
        }
    }
}

impl From<LockKey> for Derived {
    fn from(key: LockKey) -> Self {
        Self::Key(key)
    }
}

impl From<Vec<LockKey>> for Derived {
    fn from(keys: Vec<LockKey>) -> Self {
        Self::Keys(keys)
    }
}

impl DeriveKey for LockKey {
    fn derive(&self, _: &mut Parts) -> Result<Derived, KeyError> {
        Ok(Derived::Key(self.clone()))
    }
}

impl<F> DeriveKey for F
where
    F: Fn(&mut Parts) -> Result<Derived, KeyError> + Send + Sync + 'static,
{
    fn derive(&self, parts: &mut Parts) -> Result<Derived, KeyError> {
        self(parts)
    }
}

impl<T: DeriveKey + ?Sized> DeriveKey for Arc<T> {
    fn derive(&self, parts: &mut Parts) -> Result<Derived, KeyError> {
        (**self).derive(parts)
    }
}

/// The one key of a request, for a layer that cannot do with several: its mistake is then
/// `several`. `None` if the request passes.
pub(crate) fn one_key(
    of: &dyn DeriveKey,
    parts: &mut Parts,
    several: &'static str,
) -> Result<Option<LockKey>, KeyError> {
    match of.derive(parts)? {
        Derived::Key(key) => Ok(Some(key)),
        Derived::Keys(_) => Err(KeyError::misconfigured(several)),
        Derived::NoLock | Derived::NoRoute => Ok(None),
    }
}

/// Whether a route may be there for the request. `false` only in an axum router that has found
/// none.
pub(crate) fn may_have_route(parts: &mut Parts) -> bool {
    #[cfg(feature = "axum")]
    let may_have = !matches!(super::axum::MatchedRoute::of(parts), Ok(None));
    #[cfg(not(feature = "axum"))]
    let (may_have, _) = (true, parts);
    may_have
}
