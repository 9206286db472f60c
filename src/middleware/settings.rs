//! What a layer was told, and what that means for a request.

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, request::Parts};

use super::turns::{NotLocked, Turns};
use crate::{
    Error, ErrorKind, LockGuard, LockKey, Locks,
    key::{DeriveKey, Derived},
    locks::{Holding, Wait},
    rejection::{Rejection, Renderer},
    trace,
};

/// What happens to a handler whose lease is lost while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LeaseLoss {
    /// Its future is dropped at once, and the client gets 409.
    #[default]
    Cancel,
    /// It goes on, and can watch its guard. Its response is replaced by 409, unless it is marked as [`Fenced`].
    Finish,
}

/// A mark for a response, among its extensions: what it tells was done under the protection of a fencing token, so it
/// is true although the lease was lost meanwhile.
///
/// ```
/// # use http::Response;
/// use tower_distributed_lock::middleware::Fenced;
///
/// let mut response = Response::new("the ledger took it, with its token");
/// response.extensions_mut().insert(Fenced);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fenced;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) locks: Locks,
    pub(super) key: Arc<dyn DeriveKey>,
    pub(super) name: Option<Arc<str>>,
    pub(super) methods: Methods,
    /// How long a request waits for its turn; not at all if `None`.
    pub(super) wait: Option<Duration>,
    pub(super) loss: LeaseLoss,
    pub(super) confirm: bool,
    pub(super) hold_body: bool,
    pub(super) fail_open: bool,
    pub(super) retry_after: Duration,
    pub(super) renderer: Renderer,
}

/// Which methods are locked.
#[derive(Debug, Clone)]
pub(super) enum Methods {
    Unsafe,
    All,
    Chosen(Vec<Method>),
}

impl Methods {
    fn contains(&self, method: &Method) -> bool {
        match self {
            Self::Unsafe => !method.is_safe(),
            Self::All => true,
            Self::Chosen(methods) => methods.contains(method),
        }
    }
}

/// What is to be done with a request.
pub(super) enum Plan {
    /// It is not locked.
    Pass(NotLocked),
    /// A layer further out has locked the same for it.
    Enter(LockGuard),
    /// It waits for its turn.
    Lock(LockKey),
    /// It has no key, and should have one.
    Refuse(Rejection),
}

impl Settings {
    pub(super) fn new(locks: Locks, key: Arc<dyn DeriveKey>) -> Self {
        Self {
            locks,
            key,
            name: None,
            methods: Methods::Unsafe,
            wait: Some(Duration::from_secs(5)),
            loss: LeaseLoss::default(),
            confirm: false,
            hold_body: false,
            fail_open: false,
            retry_after: Duration::from_secs(1),
            renderer: Renderer::default(),
        }
    }

    pub(super) fn plan(&self, parts: &mut Parts) -> Plan {
        if !self.methods.contains(&parts.method) {
            return Plan::Pass(NotLocked::Method);
        }
        let key = match self.key.derive(parts) {
            Ok(Derived::Key(key)) => key,
            Ok(Derived::NoLock) => return Plan::Pass(NotLocked::NoKey),
            Ok(Derived::NoRoute) => return Plan::Pass(NotLocked::NoRoute),
            Err(error) => return Plan::Refuse(Rejection::from_key_error(error)),
        };
        match Turns::find(&parts.extensions, &self.locks, &key) {
            Some(guard) => Plan::Enter(guard),
            None => Plan::Lock(key),
        }
    }

    /// Waits for a turn; `None` if the request may go on without one.
    pub(super) async fn acquire(self: Arc<Self>, key: LockKey) -> Result<Option<LockGuard>, Error> {
        let outcome = match self.wait {
            Some(limit) => {
                let (wait, holding) = (Wait::AtMost(limit), Holding::default());
                self.locks
                    .lock_for_layer(&key, wait, holding, self.fail_open)
                    .await
            }
            None => match self.locks.try_lock(key).await {
                Ok(None) => Err(Error::new(
                    ErrorKind::Held,
                    "the key is held by somebody else",
                )),
                Ok(Some(guard)) => Ok(guard),
                Err(error) => Err(error),
            },
        };
        match outcome {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if self.fail_open && error.kind() == ErrorKind::Unreachable => {
                trace::failed_open(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn refuse(&self, error: Error) -> Rejection {
        Rejection::from_error(error, self.retry_after)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("locks", &self.locks)
            .field("name", &self.name)
            .field("methods", &self.methods)
            .field("wait", &self.wait)
            .field("loss", &self.loss)
            .field("confirm", &self.confirm)
            .field("hold_body", &self.hold_body)
            .field("fail_open", &self.fail_open)
            .field("retry_after", &self.retry_after)
            .field("renderer", &self.renderer)
            .finish_non_exhaustive()
    }
}
