//! The crate's one error.

use std::{convert::Infallible, error::Error as StdError, fmt, sync::Arc};

/// Why a lock could not be had, kept or given back.
///
/// Opaque, cheap to clone; [`kind`](Error::kind) tells what to do about it, [`Display`](fmt::Display) tells a
/// person what happened, and [`source`](StdError::source) has the store's own error where there was one.
#[derive(Clone)]
pub struct Error(Arc<Repr>);

#[derive(Debug)]
struct Repr {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What kind of failure an [`Error`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The key is held by somebody else, and the caller does not wait, or has waited long enough.
    Held,
    /// Too many local requests wait for this key already.
    LineFull,
    /// Too many keys are in use in this process already.
    TooManyKeys,
    /// The store did not answer, or could not do what it was asked. Nothing was locked.
    Unreachable,
    /// The lease was lost: somebody else may hold the key by now.
    Lost,
    /// [`Locks::close`](crate::Locks::close) was called.
    Closed,
    /// The text cannot be a lock key.
    InvalidKey,
    /// The configuration cannot work.
    InvalidConfig,
    /// The store holds something at this key that this crate did not write.
    Foreign,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Repr {
            kind,
            message: message.into(),
            source: None,
        }))
    }

    #[allow(dead_code)] // only stores that talk to a server have a source to tell
    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Repr {
            kind,
            message: message.into(),
            source: Some(source.into()),
        }))
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// So that a [`LockKey`](crate::LockKey) itself passes where anything that converts into one is taken.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
