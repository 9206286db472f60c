//! Credentials, and the provider that returns them for each new connection.

use std::{error::Error as StdError, fmt, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};

use crate::{Error, ErrorKind};

/// A user name and a password, as returned by the provider of `RedisStoreBuilder::credentials` or
/// `PostgresStoreBuilder::credentials`.
///
/// The `Debug` output does not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Credentials {
    /// Creates the credentials of a user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            password: password.into(),
        }
    }

    /// Creates credentials without a user name: the user is that of the URL, or the default user of
    /// the server.
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: password.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

type Source = Box<dyn StdError + Send + Sync>;
type Ask = dyn Fn() -> BoxFuture<'static, Result<Credentials, Source>> + Send + Sync;

/// Returns the credentials for a new connection.
#[derive(Clone)]
pub(super) struct Provider(Arc<Ask>);

impl Provider {
    pub(super) fn new<F, Answer, E>(ask: F) -> Self
    where
        F: Fn() -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Source>,
    {
        Self(Arc::new(move || {
            ask().map(|answer| answer.map_err(Into::into)).boxed()
        }))
    }

    /// Asks the provider. The caller limits the time.
    pub(super) async fn ask(&self) -> Result<Credentials, Error> {
        // A panic in the application's code must not end the task that keeps a lane.
        let asked = AssertUnwindSafe(async { (self.0)().await }).catch_unwind();
        let answer = asked
            .await
            .unwrap_or_else(|_| Err("the provider panicked".into()));
        answer.map_err(|error| {
            let message = format!(
                "the provider of credentials failed, so no connection can be made: {error}"
            );
            Error::with_source(ErrorKind::Unreachable, message, error)
        })
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").finish_non_exhaustive()
    }
}
