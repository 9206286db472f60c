//! Several keys for one request.

use std::{fmt, sync::Arc};

use http::request::Parts;

use super::{DeriveKey, Derived, KeyError};

/// Several keys for one request. Made by [`all_of`].
#[derive(Clone)]
pub struct AllOf(Vec<Arc<dyn DeriveKey>>);

/// Locks all of these keys for a request.
///
/// The handler runs when every key is held, and the keys are released together. Two requests cannot
/// wait for each other: a request that waits for one of its keys holds none of the others, or, if
/// they are in much use, takes them in one order for all. See
/// [`Locks::lock_all`](crate::Locks::lock_all).
///
/// For both accounts of a transfer:
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// # use axum::{Router, routing::post};
/// # use tower_distributed_lock::{DistributedLockLayer, Locks, key};
/// # let locks = Locks::in_memory();
/// let account = |param| key::name("account").param_as::<u64>(param).labelled("id");
/// let both = key::all_of([account("from"), account("to")]);
/// let app: Router = Router::new()
///     .route("/transfers/{from}/{to}", post(|| async {}))
///     .route_layer(DistributedLockLayer::new(locks, both));
/// ```
///
/// The handler takes [`AllGuards`](crate::lock::AllGuards). A key function that returns
/// [`NoLock`](Derived::NoLock) or [`NoRoute`](Derived::NoRoute) adds no key. Where the request
/// decides the number of keys, give the layer a closure that returns [`Derived::Keys`].
pub fn all_of<K: DeriveKey>(keys: impl IntoIterator<Item = K>) -> AllOf {
    let keys = keys.into_iter().map(|key| Arc::new(key) as _);
    AllOf(keys.collect())
}

impl AllOf {
    /// Adds a key of another type.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed_lock::{LockKey, key::{self, DeriveKey}};
    ///
    /// let order = key::name("order").query("id");
    /// let all = key::all_of([order]).and(LockKey::new("stock")?);
    /// let (mut parts, ()) = Request::post("/orders?id=7").body(())?.into_parts();
    /// assert_eq!(all.derive(&mut parts)?.keys().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn and(mut self, key: impl DeriveKey) -> Self {
        self.0.push(Arc::new(key));
        self
    }
}

impl DeriveKey for AllOf {
    fn derive(&self, parts: &mut Parts) -> Result<Derived, KeyError> {
        let (mut keys, mut nothing) = (Vec::new(), Derived::NoLock);
        for key in &self.0 {
            match key.derive(parts)? {
                Derived::Key(key) => keys.push(key),
                Derived::Keys(more) => keys.extend(more),
                none @ (Derived::NoLock | Derived::NoRoute) => nothing = none,
            }
        }
        if keys.is_empty() {
            return Ok(nothing);
        }
        Ok(Derived::Keys(keys))
    }
}

impl fmt::Debug for AllOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllOf")
            .field("keys", &self.0.len())
            .finish()
    }
}
