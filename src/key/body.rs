//! The body of a request, for key functions.

use bytes::Bytes;

/// The whole body of a request: an extension for the key functions of layers further in. Added by
/// [`ReadBodyLayer`](crate::ReadBodyLayer), and by an [`IdempotencyLayer`](crate::IdempotencyLayer)
/// for requests with a key.
///
/// A part of a [`RequestKey`](crate::key::RequestKey) that looks for this extension in vain, and
/// has no value therefore, is a misconfiguration (500). A key function that is not made of parts
/// says so itself:
///
/// ```
/// use http::request::Parts;
/// use tower_distributed_lock::{
///     LockKey,
///     key::{Derived, KeyError},
///     read_body::WholeBody,
/// };
///
/// /// Locks every account that a batch of payments names, one in each line.
/// fn accounts(parts: &mut Parts) -> Result<Derived, KeyError> {
///     let body = parts.extensions.get::<WholeBody>();
///     let body = body.ok_or_else(|| KeyError::misconfigured("add a `ReadBodyLayer` outside of the lock's layer"));
///     let WholeBody(body) = body?;
///     let text = std::str::from_utf8(body).map_err(|_| KeyError::bad_request("the body is not UTF-8"))?;
///     let keys = text.lines().map(|id| LockKey::new(format!("account,id={id}")));
///     Ok(Derived::Keys(keys.collect::<Result<_, _>>()?))
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeBody(pub Bytes);
