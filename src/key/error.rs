//! Why no key could be derived from a request.

use std::{borrow::Cow, error::Error as StdError, fmt};

use crate::Error;

/// Why no key could be derived from a request.
///
/// Either the request is at fault (400), or the place of the layer
/// ([`is_misconfigured`](Self::is_misconfigured), 500).
///
/// The message names the part of the request and the mistake. The message never repeats a value:
/// text from a client does not belong into the log, nor into a response.
///
/// ```
/// use http::Request;
/// use tower_distributed_lock::key::{self, DeriveKey};
///
/// let (mut parts, ()) = Request::post("/").body(())?.into_parts();
/// let error = key::request().header("x-order-id").derive(&mut parts).unwrap_err();
/// assert!(!error.is_misconfigured());
/// assert_eq!(error.to_string(), "the header `x-order-id` is missing");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyError {
    kind: KeyErrorKind,
    message: Cow<'static, str>,
}

/// What kind of failure a [`KeyError`] is.
///
/// | kind | a request to a layer with `key::request().query("id")` |
/// |---|---|
/// | [`Missing`](Self::Missing) | `/orders` |
/// | [`Doubled`](Self::Doubled) | `/orders?id=1&id=2` |
/// | [`Empty`](Self::Empty) | `/orders?id=` |
/// | [`Malformed`](Self::Malformed) | `/orders?id=%FF` |
/// | [`TooLong`](Self::TooLong) | `/orders?id=…`, with an id that is longer than [`max_value_len`](super::RequestKey::max_value_len) |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyErrorKind {
    /// The request does not have the part.
    Missing,
    /// The request has the part more than once, or in two places that disagree.
    Doubled,
    /// The part is there, and empty.
    Empty,
    /// The part cannot be read: not visible ASCII, not UTF-8, not a host.
    Malformed,
    /// The part is longer than
    /// [`RequestKey::max_value_len`](crate::key::RequestKey::max_value_len).
    TooLong,
    /// A key function of the program has refused the request.
    Refused,
    /// The key cannot be derived where the layer is. The message names the fix.
    Misconfigured,
}

impl KeyError {
    /// A refusal by a key function of the program; the client is at fault.
    ///
    /// The client sees the message: keep secrets out of it.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tower_distributed_lock::{LockKey, key::{Derived, KeyError}};
    ///
    /// fn slot(parts: &mut Parts) -> Result<Derived, KeyError> {
    ///     let slot = parts.uri.path().strip_prefix("/slots/");
    ///     let slot = slot.and_then(|slot| slot.parse::<u32>().ok());
    ///     let slot = slot.ok_or_else(|| KeyError::bad_request("the path has no number of a slot"))?;
    ///     Ok(Derived::Key(LockKey::new(format!("slot/{slot}"))?))
    /// }
    /// ```
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(KeyErrorKind::Refused, message)
    }

    /// The key cannot be derived where the layer is; the message should name the fix.
    ///
    /// The layer answers 500. The message is in the log, and in the response of a debug build only.
    pub fn misconfigured(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(KeyErrorKind::Misconfigured, message)
    }

    pub(super) fn new(kind: KeyErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> KeyErrorKind {
        self.kind
    }

    /// The server is at fault: [`KeyErrorKind::Misconfigured`]. Otherwise the client is.
    pub fn is_misconfigured(&self) -> bool {
        self.kind == KeyErrorKind::Misconfigured
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for KeyError {}

/// Lets `LockKey::new(text)?` work in key functions. The client is at fault. The message is
/// replaced, because it quotes the client's text.
impl From<Error> for KeyError {
    fn from(_: Error) -> Self {
        Self::new(
            KeyErrorKind::Malformed,
            "the request gives a text that cannot be a lock key",
        )
    }
}
