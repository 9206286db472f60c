//! The error type of this crate.
//!
//! [`ErrorKind`] is the part of an error that programs decide by; [`rejection`](crate::rejection)
//! turns an error into the response that a client gets.

use std::{convert::Infallible, error::Error as StdError, fmt, sync::Arc};

/// The reason why a key could not be locked, held or released.
///
/// The error is opaque and cheap to clone. [`kind`](Error::kind) is for decisions in code. The
/// [`Display`](fmt::Display) text is for people, and names the cause, such as a refused connection.
/// [`source`](StdError::source) returns the store's own error if there is one; its text may quote a
/// key.
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
/// let refused = locks.lock("orders/42").within(Duration::from_millis(5)).await;
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
    held_by: HeldBy,
    unanswered: Option<Unanswered>,
}

/// Why a call got no answer, where asking again may help at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unanswered {
    /// The runtime of the call has ended, which says nothing about the store.
    RuntimeEnded,
    /// The connection broke. A call whose time was over is another matter: the store is slow.
    ConnectionBroke,
}

/// Who is in the way of a request, for errors of the kind [`ErrorKind::Held`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldBy {
    Another,
    /// The request itself, which would wait for its own end: a mistake in the program.
    Itself,
    /// The holders of all of these permits.
    Permits(u32),
}

/// The kind of an [`Error`], from [`Error::kind`].
///
/// | kind | a layer answers | a caller of [`Locks`](crate::Locks) should |
/// |---|---|---|
/// | [`Held`](Self::Held) | 423, or 429 for permits, `Retry-After` | wait longer, or tell its own caller to come back |
/// | [`LineFull`](Self::LineFull) | 503, `Retry-After` | shed load |
/// | [`TooManyKeys`](Self::TooManyKeys) | 503, `Retry-After` | shed load, and check who can invent keys |
/// | [`Unreachable`](Self::Unreachable) | 503, `Retry-After` | retry later; the locks recover by themselves |
/// | [`Lost`](Self::Lost) | 409 | stop writing, and check what was done |
/// | [`Closed`](Self::Closed) | 503, `Retry-After` | end as well |
/// | [`InvalidKey`](Self::InvalidKey) | 400 | correct the key; a retry does not help |
/// | [`InvalidConfig`](Self::InvalidConfig) | 500 | correct the program |
/// | [`Foreign`](Self::Foreign) | 500 | use another key |
///
/// ```
/// use std::time::Duration;
/// use tower_distributed_lock::{Error, ErrorKind};
///
/// /// How long a consumer of a queue leaves a message alone before the next try. `None`: do not try again.
/// fn retry_after(error: &Error) -> Option<Duration> {
///     match error.kind() {
///         ErrorKind::Held | ErrorKind::LineFull => Some(Duration::from_secs(1)),
///         ErrorKind::Unreachable | ErrorKind::TooManyKeys => Some(Duration::from_secs(10)),
///         ErrorKind::Closed => Some(Duration::ZERO), // another instance takes the message
///         _ => None,
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another request holds the key, and the caller does not wait or has waited long enough.
    ///
    /// [`Locks::lock`](crate::Locks::lock) returns this error after its
    /// [`wait_limit`](crate::LocksBuilder::wait_limit), and a layer after its
    /// [`wait`](crate::DistributedLockLayer::wait). The message tells where the key is held, and
    /// since when, as far as that is known.
    ///
    /// A handler that locks the key of its own request gets the error at once. If such a handler
    /// returns the error, the response is 500: the mistake is in the program, and a later try does
    /// not help.
    Held,
    /// Too many requests of this process already wait for the key.
    ///
    /// The limit is [`LocksBuilder::longest_line`](crate::LocksBuilder::longest_line). Nothing was
    /// sent to the store.
    LineFull,
    /// Too many keys are already in use in this process.
    ///
    /// The limit is [`LocksBuilder::max_keys`](crate::LocksBuilder::max_keys). Nothing was sent to
    /// the store.
    TooManyKeys,
    /// The store did not answer, or could not carry out the call. Nothing was locked.
    ///
    /// If only the answer was lost, and the store has locked the key, the key is freed once the
    /// store can be reached, and at the end of the lease at the latest. A release with this error
    /// has still ended the turn in this process; the key is freed likewise. Methods that wait also
    /// return this error outside of a tokio runtime.
    Unreachable,
    /// The lease was lost. Another request may hold the key by now.
    ///
    /// See [`Loss`](crate::Loss) for the reasons. The work under the lock may or may not have had
    /// its effects; a resource that compares [tokens](crate::LockGuard::token) is safe from a
    /// writer that has not noticed yet.
    Lost,
    /// [`Locks::close`](crate::Locks::close) was called.
    ///
    /// Turns that were under way before may finish within the grace of that call.
    Closed,
    /// The text cannot be a lock key.
    ///
    /// A [`LockKey`](crate::LockKey) is not empty, has at most 1,024 bytes and no control
    /// characters. Where a key comes from a request, use [`key`](crate::key), which encodes
    /// every value.
    InvalidKey,
    /// The configuration cannot work.
    ///
    /// The message names the setting and the values. Constructors return this error before anything
    /// is sent.
    InvalidConfig,
    /// The key is in use for something else: for the record of an idempotent request, for data of
    /// another program, or for permits where a lock was asked for (or the other way round).
    ///
    /// The key is left as it was found.
    Foreign,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Repr::new(kind, message)))
    }

    /// An error of the kind [`ErrorKind::Held`].
    pub(crate) fn held(held_by: HeldBy, message: impl Into<String>) -> Self {
        Self(Arc::new(Repr {
            held_by,
            ..Repr::new(ErrorKind::Held, message)
        }))
    }

    /// Who is in the way, if the kind is [`ErrorKind::Held`].
    pub(crate) fn held_by(&self) -> HeldBy {
        self.0.held_by
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Repr {
            source: Some(source.into()),
            ..Repr::new(kind, message)
        }))
    }

    /// The error of a call that gets no answer because its runtime has ended. Asking again, on
    /// another runtime, may succeed.
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self(Arc::new(Repr {
            unanswered: Some(Unanswered::RuntimeEnded),
            ..Repr::new(ErrorKind::Unreachable, message)
        }))
    }

    /// The error of a call whose connection has ended before the answer. Asking again, on another
    /// connection, may succeed.
    // Only stores with connections need it.
    #[cfg_attr(
        not(any(test, feature = "postgres", feature = "redis", feature = "test-util")),
        allow(dead_code)
    )]
    pub(crate) fn broken(
        message: impl Into<String>,
        source: Option<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Repr {
            source,
            unanswered: Some(Unanswered::ConnectionBroke),
            ..Repr::new(ErrorKind::Unreachable, message)
        }))
    }

    /// Whether the end of a runtime is the reason of this error.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.unanswered() == Some(Unanswered::RuntimeEnded)
    }

    /// Whether the end of a connection is the reason of this error.
    pub(crate) fn is_broken(&self) -> bool {
        self.unanswered() == Some(Unanswered::ConnectionBroke)
    }

    /// The reason of this error, or of the one that has led to it.
    fn unanswered(&self) -> Option<Unanswered> {
        let cause = || self.source()?.downcast_ref::<Self>()?.unanswered();
        self.0.unanswered.or_else(cause)
    }

    /// An error that another one has led to. The message names both.
    pub(crate) fn caused_by(kind: ErrorKind, message: impl fmt::Display, cause: Self) -> Self {
        Self::with_source(kind, format!("{message}: {cause}"), cause)
    }

    /// Returns the kind of this error.
    ///
    /// ```
    /// use tower_distributed_lock::{ErrorKind, LockKey};
    ///
    /// let error = LockKey::new("").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidKey);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl Repr {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            held_by: HeldBy::Another,
            unanswered: None,
        }
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
