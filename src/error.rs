//! The error type of this crate.

use std::{convert::Infallible, error::Error as StdError, fmt, sync::Arc};

/// The reason why a key could not be locked, held or released.
///
/// The error is opaque and cheap to clone. [`kind`](Error::kind) is for decisions in code, the
/// [`Display`](fmt::Display) text is for people, and [`source`](StdError::source) returns the store's own error if
/// there is one.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use std::time::Duration;
/// use tower_distributed_lock::{ErrorKind, Locks};
///
/// let locks = Locks::in_memory();
/// let _guard = locks.lock("orders/42").await?;
/// let refused = locks.lock_within("orders/42", Duration::from_millis(5)).await;
/// assert_eq!(refused.unwrap_err().kind(), ErrorKind::Held);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Repr>);

#[derive(Debug)]
struct Repr {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`], from [`Error::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another request holds the key, and the caller does not wait or has waited long enough.
    Held,
    /// Too many requests of this process already wait for the key.
    LineFull,
    /// Too many keys are already in use in this process.
    TooManyKeys,
    /// The store did not answer, or could not carry out the call. Nothing was locked.
    Unreachable,
    /// The lease was lost. Another request may hold the key by now.
    Lost,
    /// [`Locks::close`](crate::Locks::close) was called.
    Closed,
    /// The text cannot be a lock key.
    InvalidKey,
    /// The configuration cannot work.
    InvalidConfig,
    /// The key is in use for something else: for the record of an idempotent request, for data of another program, or for
    /// permits where a lock was asked for (or the other way round).
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

    #[allow(dead_code)] // only stores that talk to a server have a source
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

    /// Returns the kind of this error.
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

/// Lets a [`LockKey`](crate::LockKey) be passed where any type that converts into one is accepted.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
