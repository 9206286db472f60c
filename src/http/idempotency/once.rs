//! Idempotency outside of HTTP: work that is done once, and its kept result.

use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use bytes::Bytes;

use super::{fingerprint::Fingerprint, keep::keep, record::Outcome};
use crate::{
    Error, ErrorKind, LockGuard, LockKey, Locks,
    defaults::idempotency::STORE_WITHIN,
    key,
    locks::{Holding, NoTurn, Wait},
    trace::{self, Idempotent, KeepResult},
};

/// The first part of the keys of work that is done once, which keeps them apart from plain locks.
const LABEL: &str = "once";

/// A result that can be kept.
///
/// Implemented for [`Bytes`], `String` and `()`, and with the feature `json` for any serde value in
/// a `Json`.
///
/// ```
/// use bytes::Bytes;
/// use tower_distributed_lock::idempotency::Recordable;
///
/// #[derive(Debug, PartialEq)]
/// struct Receipt(u64);
///
/// impl Recordable for Receipt {
///     type Error = std::array::TryFromSliceError;
///
///     fn to_bytes(&self) -> Result<Bytes, Self::Error> {
///         Ok(Bytes::copy_from_slice(&self.0.to_be_bytes()))
///     }
///
///     fn from_bytes(bytes: Bytes) -> Result<Self, Self::Error> {
///         Ok(Self(u64::from_be_bytes(bytes[..].try_into()?)))
///     }
/// }
///
/// assert_eq!(Receipt::from_bytes(Receipt(7).to_bytes()?)?, Receipt(7));
/// # Ok::<(), std::array::TryFromSliceError>(())
/// ```
pub trait Recordable: Sized {
    /// The error of both conversions.
    type Error: StdError + Send + Sync + 'static;

    /// The value as bytes.
    ///
    /// # Errors
    ///
    /// The value cannot be written as bytes. The work has been done, and is not done again; its
    /// result is not kept.
    fn to_bytes(&self) -> Result<Bytes, Self::Error>;

    /// The value from its bytes.
    ///
    /// # Errors
    ///
    /// The bytes were not written by [`to_bytes`](Self::to_bytes).
    fn from_bytes(bytes: Bytes) -> Result<Self, Self::Error>;
}

/// The result of work that is done once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// let hour = Duration::from_secs(3600);
/// let once = locks.run_once("mail/7", hour, async |_| Ok::<_, std::io::Error>("sent".to_owned())).await?;
/// assert_eq!(once.value, "sent");
/// assert!(once.stored && !once.replayed);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Once<T> {
    /// The result.
    pub value: T,
    /// Whether the work was done by an earlier call, perhaps in another process.
    pub replayed: bool,
    /// Whether the result is kept. If not, a later call may do the work again.
    pub stored: bool,
}

/// Why [`Locks::run_once`] has no result.
///
/// | error | the work | a later call |
/// |---|---|---|
/// | [`Work`](Self::Work) | was done and failed | does the work again |
/// | [`Lock`](Self::Lock) | was not begun, or was overtaken | does the work, or gets the result of the other call |
/// | [`Unreadable`](Self::Unreadable) | was done | fails in the same way until the record expires |
#[derive(Debug)]
#[non_exhaustive]
pub enum RunOnceError<E> {
    /// The work failed. The next call does the work again.
    Work(E),
    /// The work was not begun. Or the lease was lost during the work, and another call has begun
    /// the same work since.
    Lock(Error),
    /// A result cannot be kept, or a kept one cannot be read. The work is not done again.
    Unreadable(Box<dyn StdError + Send + Sync>),
}

impl Locks {
    /// Does some work once for each key, in the whole fleet, and keeps the result for `retain`,
    /// while the store can be reached and keeps its data (on Redis: `appendonly yes`). Calls
    /// with the same key that come meanwhile wait for the result, with the wait limit of
    /// [`lock`](Locks::lock); later calls get the result at once.
    ///
    /// For messages that queue consumers and webhooks receive twice. An `Err` of the work is not
    /// kept, and neither is a panic: the next call does the work again. After a crash during
    /// the work, another process begins the work again once the lease has passed; and work that
    /// outlasts its lease may run beside that of another process. For this the work gets the
    /// [`LockGuard`]: send the [`token`](LockGuard::token) along with every write, and stop when
    /// the lease is [`lost`](LockGuard::lost).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use tower_distributed_lock::LockGuard;
    ///
    /// let day = Duration::from_secs(24 * 3600);
    /// let send = async |guard: LockGuard| Ok::<_, std::io::Error>(format!("sent as {}", guard.token()));
    /// assert!(!locks.run_once("webhook/17", day, send).await?.replayed);
    /// assert!(locks.run_once("webhook/17", day, send).await?.replayed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`RunOnceError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and frees the key. After the end of the work, a drop
    /// does not keep the result from being stored.
    #[doc(alias = "exactly-once")]
    #[doc(alias = "dedupe")]
    pub async fn run_once<T, E>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        retain: Duration,
        work: impl AsyncFnOnce(LockGuard) -> Result<T, E>,
    ) -> Result<Once<T>, RunOnceError<E>>
    where
        T: Recordable,
    {
        self.run_claimed(key, retain, self.usual_wait(), work).await
    }

    /// Like [`run_once`](Locks::run_once), but waits no longer than `limit` for another call that
    /// does the same work, and then fails with [`ErrorKind::Held`]. The error names the process
    /// that does the work, if the store knows its label.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tower_distributed_lock::idempotency::RunOnceError;
    ///
    /// let (day, second) = (Duration::from_secs(24 * 3600), Duration::from_secs(1));
    /// let work = async |_| Ok::<_, std::io::Error>(());
    /// match locks.run_once_within("message/17", day, second, work).await {
    ///     Ok(once) if once.replayed => println!("done before"),
    ///     Ok(_) => println!("done now"),
    ///     Err(RunOnceError::Lock(error)) => println!("leave the message in the queue: {error}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`RunOnceError`].
    ///
    /// # Cancel safety
    ///
    /// As for [`run_once`](Locks::run_once).
    pub async fn run_once_within<T, E>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        retain: Duration,
        limit: Duration,
        work: impl AsyncFnOnce(LockGuard) -> Result<T, E>,
    ) -> Result<Once<T>, RunOnceError<E>>
    where
        T: Recordable,
    {
        self.run_claimed(key, retain, Wait::AtMost(limit), work)
            .await
    }

    async fn run_claimed<T, E>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        retain: Duration,
        wait: Wait,
        work: impl AsyncFnOnce(LockGuard) -> Result<T, E>,
    ) -> Result<Once<T>, RunOnceError<E>>
    where
        T: Recordable,
    {
        let key: LockKey = key.try_into().map_err(Into::into)?;
        self.expect_records();
        let key = key::prefixed(LABEL, &key);
        let fingerprint = Bytes::from_static(b"once");
        let claiming = self.claim(&key, fingerprint, wait, Holding::default());
        let guard = match claiming.await {
            Ok(guard) => guard,
            Err(NoTurn::Recorded(record)) => {
                trace::idempotent(Idempotent::Replayed);
                return recorded(record);
            }
            Err(no_turn) => {
                let error = no_turn.into_error();
                trace::idempotent(if error.kind() == ErrorKind::Held {
                    Idempotent::InProgress
                } else {
                    Idempotent::Failed
                });
                return Err(error.into());
            }
        };
        trace::idempotent(Idempotent::First);
        let value = work(guard.clone()).await.map_err(RunOnceError::Work)?;
        // The work is done, and must not be done again although its result panics.
        let bytes = catch_unwind(AssertUnwindSafe(|| value.to_bytes()));
        let outcome = match &bytes {
            Ok(Ok(bytes)) => Outcome::Value(bytes.clone()),
            Ok(Err(_)) | Err(_) => Outcome::NotKept,
        };
        let record = outcome.encode(Fingerprint::NONE);
        // A separate task: the work is done, and must not be done again although the caller goes
        // away now.
        let busy = self.busy();
        let kept = trace::spawn(async move {
            let _busy = busy;
            keep(guard, (&record, retain), STORE_WITHIN).await
        });
        // The task does not panic: an error means that the runtime has ended.
        let kept = kept.await.unwrap_or(KeepResult::Unknown);
        let bytes = bytes.unwrap_or_else(|panic| resume_unwind(panic));
        bytes.map_err(|error| RunOnceError::Unreadable(error.into()))?;
        match kept {
            KeepResult::Superseded => Err(RunOnceError::Lock(Error::new(
                ErrorKind::Lost,
                "the lease was lost during the work, and another call has begun the same work since",
            ))),
            kept @ (KeepResult::Kept | KeepResult::Refused | KeepResult::Unknown) => Ok(Once {
                value,
                replayed: false,
                // With a `retain` of zero, nothing is kept.
                stored: kept == KeepResult::Kept && !retain.is_zero(),
            }),
        }
    }
}

/// The result in a record, as the value of a replay.
fn recorded<T: Recordable, E>(record: Bytes) -> Result<Once<T>, RunOnceError<E>> {
    let bytes = match Outcome::decode(record) {
        Ok((_, Outcome::Value(bytes))) => Ok(bytes),
        Ok((_, Outcome::Answer(_) | Outcome::NotKept | Outcome::Unknown)) => {
            Err("the record is not the result of some work")
        }
        Err(why) => Err(why),
    };
    let bytes = bytes.map_err(|why| RunOnceError::Unreadable(why.into()))?;
    let value = T::from_bytes(bytes).map_err(|error| RunOnceError::Unreadable(error.into()))?;
    Ok(Once {
        value,
        replayed: true,
        stored: true,
    })
}

impl<E> From<Error> for RunOnceError<E> {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl<E: fmt::Display> fmt::Display for RunOnceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => write!(f, "the work failed: {error}"),
            Self::Lock(error) => write!(f, "there is no result: {error}"),
            Self::Unreadable(error) => write!(f, "the result cannot be kept or read: {error}"),
        }
    }
}

impl<E: StdError + 'static> StdError for RunOnceError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Work(error) => Some(error),
            Self::Lock(error) => Some(error),
            Self::Unreadable(error) => Some(&**error),
        }
    }
}

impl Recordable for Bytes {
    type Error = Infallible;

    fn to_bytes(&self) -> Result<Bytes, Infallible> {
        Ok(self.clone())
    }

    fn from_bytes(bytes: Bytes) -> Result<Self, Infallible> {
        Ok(bytes)
    }
}

impl Recordable for () {
    type Error = Infallible;

    fn to_bytes(&self) -> Result<Bytes, Infallible> {
        Ok(Bytes::new())
    }

    fn from_bytes(_: Bytes) -> Result<Self, Infallible> {
        Ok(())
    }
}

impl Recordable for String {
    type Error = std::string::FromUtf8Error;

    fn to_bytes(&self) -> Result<Bytes, Self::Error> {
        Ok(Bytes::copy_from_slice(self.as_bytes()))
    }

    fn from_bytes(bytes: Bytes) -> Result<Self, Self::Error> {
        Self::from_utf8(bytes.into())
    }
}

/// Any serde value, kept as JSON.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// use tower_distributed_lock::idempotency::Json;
///
/// let hour = Duration::from_secs(3600);
/// let charge = async |_| Ok::<_, std::io::Error>(Json(vec!["receipt-1".to_owned(), "receipt-2".to_owned()]));
/// let Json(receipts) = locks.run_once("charge/7", hour, charge).await?.value;
/// assert_eq!(receipts.len(), 2);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "json")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<T>(pub T);

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Recordable for Json<T> {
    type Error = std::io::Error;

    fn to_bytes(&self) -> Result<Bytes, Self::Error> {
        Ok(serde_json::to_vec(&self.0)?.into())
    }

    fn from_bytes(bytes: Bytes) -> Result<Self, Self::Error> {
        Ok(Self(serde_json::from_slice(&bytes)?))
    }
}
