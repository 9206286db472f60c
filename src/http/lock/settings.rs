//! What a layer was told, and what that means for a request.

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, request::Parts};

use tokio::time::Instant;

use super::{
    held::Guards,
    outage::Outage,
    request_guards::{NotLocked, RequestGuards},
};
use crate::{
    Error, ErrorKind, LockGuard, LockKey, Locks,
    key::{DeriveKey, Derived},
    locks::{Holding, Wait},
    rejection::{Rejection, Renderer, grpc},
    time::later,
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
/// use tower_distributed_lock::lock::Fenced;
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
    pub(super) holding: Holding,
    pub(super) loss: LeaseLoss,
    pub(super) confirm: bool,
    pub(super) hold_body: bool,
    pub(super) fail_open: bool,
    pub(super) outage: Arc<Outage>,
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
            // A server answers HEAD as GET without its body, so the same handler runs.
            Self::Chosen(methods) if method == Method::HEAD => {
                methods.contains(method) || methods.contains(&Method::GET)
            }
            Self::Chosen(methods) => methods.contains(method),
        }
    }
}

/// What is to be done with a request.
pub(super) enum Plan {
    /// It is not locked.
    Pass(NotLocked),
    /// Layers further out have locked the same for it.
    Enter(Guards),
    /// It waits for its turn.
    Lock(Wanted),
    /// It has no key, and should have one.
    Refuse(Rejection),
}

/// The turn that a request wants.
pub(super) struct Wanted {
    /// As the key function gave them, each once. Those that layers further out have locked come with their guard.
    keys: Vec<(LockKey, Option<LockGuard>)>,
    /// How long the request waits at most; not at all if `None`.
    wait: Option<Duration>,
}

impl Settings {
    pub(super) fn new(locks: Locks, key: Arc<dyn DeriveKey>) -> Self {
        Self {
            locks,
            key,
            name: None,
            methods: Methods::Unsafe,
            wait: Some(Duration::from_secs(5)),
            holding: Holding::default(),
            loss: LeaseLoss::default(),
            confirm: false,
            hold_body: false,
            fail_open: false,
            outage: Arc::default(),
            retry_after: Duration::from_secs(1),
            renderer: Renderer::default(),
        }
    }

    pub(super) fn plan(&self, parts: &mut Parts) -> Plan {
        if !self.methods.contains(&parts.method) {
            return Plan::Pass(NotLocked::Method);
        }
        if let Err(error) = self.locks.check_holding(self.holding) {
            return Plan::Refuse(Rejection::misconfigured(error.to_string()));
        }
        let keys = match self.key.derive(parts) {
            Ok(Derived::Key(key)) => vec![key],
            Ok(Derived::Keys(keys)) => keys,
            Ok(Derived::NoLock) => return Plan::Pass(NotLocked::NoKey),
            Ok(Derived::NoRoute) => return Plan::Pass(NotLocked::NoRoute),
            Err(error) => return Plan::Refuse(Rejection::from_key_error(error)),
        };
        let mut wanted: Vec<(LockKey, Option<LockGuard>)> = Vec::with_capacity(keys.len());
        for key in keys {
            if !wanted.iter().any(|(known, _)| *known == key) {
                let held = RequestGuards::find(&parts.extensions, &self.locks, &key);
                wanted.push((key, held));
            }
        }
        if wanted.is_empty() {
            return Plan::Pass(NotLocked::NoKey);
        }
        let held: Option<Vec<LockGuard>> = wanted.iter().map(|(_, held)| held.clone()).collect();
        match held {
            Some(held) => Plan::Enter(Guards::from(held)),
            None => Plan::Lock(Wanted {
                keys: wanted,
                wait: self.wait.map(|wait| within_deadline(parts, wait)),
            }),
        }
    }

    /// Waits for the turn; `None` if the request may go on without one.
    pub(super) async fn acquire(self: Arc<Self>, wanted: Wanted) -> Result<Option<Guards>, Error> {
        if self.fail_open && self.outage.is_on() {
            return Ok(None);
        }
        let outcome = self.lock_all(wanted).await;
        match outcome {
            Err(error) if self.fail_open && error.kind() == ErrorKind::Unreachable => {
                self.outage.begin();
                trace::failed_open(&error);
                Ok(None)
            }
            outcome => {
                self.outage.end();
                outcome.map(Some)
            }
        }
    }

    /// Takes one key after another, in one fixed order, within one limit for all. An error gives back what was taken.
    async fn lock_all(&self, wanted: Wanted) -> Result<Guards, Error> {
        let until = wanted.wait.map(|limit| later(Instant::now(), limit));
        let wanted = wanted.keys;
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by(|&one, &other| wanted[one].0.cmp(&wanted[other].0));
        loop {
            let mut guards: Vec<Option<LockGuard>> = vec![None; wanted.len()];
            for &at in &order {
                let (key, held) = &wanted[at];
                guards[at] = match held {
                    Some(held) => Some(held.clone()),
                    None => Some(self.lock(key, until).await?),
                };
            }
            // The wait for the later keys may have outlasted the leases of the earlier ones.
            let is_held = |((_, held), guard): (&(_, Option<LockGuard>), &Option<LockGuard>)| {
                held.is_some() || guard.as_ref().is_some_and(LockGuard::begin_anew)
            };
            if wanted.len() == 1 || wanted.iter().zip(&guards).all(is_held) {
                let guards = guards.into_iter().flatten();
                return Ok(Guards::from(guards.collect::<Vec<_>>()));
            }
        }
    }

    async fn lock(&self, key: &LockKey, until: Option<Instant>) -> Result<LockGuard, Error> {
        let wait = until.map_or(Wait::NotAtAll, |until| {
            Wait::AtMost(until.saturating_duration_since(Instant::now()))
        });
        let Self {
            holding, fail_open, ..
        } = *self;
        self.locks
            .lock_for_layer(key, wait, holding, fail_open)
            .await
    }

    pub(super) fn refuse(&self, error: Error) -> Rejection {
        Rejection::from_error(error, self.retry_after)
    }
}

/// A gRPC client that has given up does not wait in line any more.
fn within_deadline(parts: &Parts, wait: Duration) -> Duration {
    match grpc::timeout(&parts.headers) {
        Some(deadline) => wait.min(deadline),
        None => wait,
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
