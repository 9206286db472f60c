//! Why no key could be derived from a request.

use std::{borrow::Cow, error::Error as StdError, fmt};

use crate::Error;

/// Why no key could be derived from a request.
///
/// Either the client is at fault ([`is_bad_request`](Self::is_bad_request), to be answered with 400), or whoever
/// put the layer where its key cannot be ([`is_misconfigured`](Self::is_misconfigured), 500).
///
/// The message names the part of the request and what is wrong with it. It never repeats a value: what a client sent
/// has no place in a log line or in a response that somebody else may render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyError {
    kind: KeyErrorKind,
    message: Cow<'static, str>,
}

/// What kind of failure a [`KeyError`] is.
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
    /// The part is longer than [`RequestKey::max_value_len`](crate::key::RequestKey::max_value_len).
    TooLong,
    /// One's own key function refused the request.
    Refused,
    /// The key cannot be derived where the layer is. The message names the fix.
    Misconfigured,
}

impl KeyError {
    /// A refusal by one's own key function; the client is at fault.
    ///
    /// The message reaches the client: do not put into it what it must not see.
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(KeyErrorKind::Refused, message)
    }

    /// No request can have this key here; the message should name the fix.
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

    /// The client is at fault: everything but [`KeyErrorKind::Misconfigured`].
    pub fn is_bad_request(&self) -> bool {
        !self.is_misconfigured()
    }

    /// The server is at fault: [`KeyErrorKind::Misconfigured`].
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

/// So that `LockKey::new(text)?` works in one's own key function. The text came from the request, so the client is at
/// fault; the message is not passed on, it quotes the text.
impl From<Error> for KeyError {
    fn from(_: Error) -> Self {
        Self::new(
            KeyErrorKind::Malformed,
            "the request gives a text that cannot be a lock key",
        )
    }
}
