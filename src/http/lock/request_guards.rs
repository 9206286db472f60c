//! The turns of a request, in an extension of the request.
//!
//! ```text
//! extensions: RequestGuards [ Lock("tenant"): 1 turn, Idempotency: 1 turn, Lock("order"): 2 turns ]
//!
//! LockGuard::from_extensions        NoGuard::Several, because `order` has two keys
//! AllGuards::named("tenant")       the guard of `tenant`
//! AllGuards::named("idempotency")  the claim of the idempotent request
//! AllGuards::all                   the guards of `tenant`, then those of `order`
//! ```

use std::{error::Error as StdError, fmt, sync::Arc};

use http::Extensions;
use smallvec::SmallVec;

use super::OnLoss;
use crate::{
    LockGuard, LockKey, Locks,
    http::gate::{Guards, TaskTurns},
    locks::{
        WeakGuard,
        reentry::{self, WeakGuards},
    },
};

/// The outcome of each layer that a request has passed, from the outermost on.
///
/// Private, so that no other crate's type collides with this extension. The handles are weak: a
/// stray copy of the extensions does not prolong a turn.
#[derive(Clone, Default)]
pub(crate) struct RequestGuards(SmallVec<[Passed; 1]>);

#[derive(Clone)]
struct Passed {
    by: Layer,
    turns: Result<WeakGuards, NotLocked>,
}

/// The kind of a layer that a request has passed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Layer {
    Lock {
        name: Option<Arc<str>>,
        on_loss: OnLoss,
    },
    /// Its turn is the claim.
    Idempotency,
}

impl Layer {
    /// The name by which [`AllGuards`] find the layer's guard.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Lock { name, .. } => name.as_deref(),
            Self::Idempotency => Some("idempotency"),
        }
    }
}

/// Why a request that has passed a lock's layer was not locked.
///
/// ```
/// use tower_distributed_lock::lock::NotLocked;
///
/// assert!(NotLocked::Method.to_string().contains("DistributedLockLayer::methods"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotLocked {
    /// The layer does not lock this method. By default, safe methods are not locked.
    Method,
    /// The layer's key function has returned no key.
    NoKey,
    /// The router found no route for the request.
    NoRoute,
    /// The store was out of reach, and the layer fails open.
    FailedOpen,
}

/// Why a request has no [`LockGuard`].
///
/// With axum, a handler that takes a [`LockGuard`] and has none answers 500, and the log says which
/// layer to add. A handler that takes an `Option<LockGuard>` gets `None` for
/// [`NotLocked`](Self::NotLocked).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoGuard {
    /// The request has passed no [`DistributedLockLayer`](crate::DistributedLockLayer), or none of
    /// that name.
    NoLayer,
    /// The layer has not locked the request, on purpose.
    NotLocked(NotLocked),
    /// The request was locked, and its turn has ended.
    Ended,
    /// The layer has locked several keys for the request, and no single token fences all of them:
    /// see [`AllGuards`].
    Several,
}

impl RequestGuards {
    /// Adds the outcome of a layer.
    pub(crate) fn add(
        extensions: &mut Extensions,
        by: Layer,
        guards: Result<&[LockGuard], NotLocked>,
    ) {
        let turns = guards.map(reentry::weak);
        let passed = extensions.get_or_insert_default::<Self>();
        passed.0.push(Passed { by, turns });
    }

    /// The turn that the request already holds at this key.
    pub(crate) fn find(extensions: &Extensions, locks: &Locks, key: &LockKey) -> Option<LockGuard> {
        let passed = extensions.get::<Self>()?.0.iter().rev();
        let mut guards = passed.flat_map(Passed::guards);
        guards.find(|guard| guard.is_for(locks, key) && guard.is_held())
    }

    /// Whether the innermost layer is the one that counts the request's handler as running: the
    /// layer has locked the request, or would have, and no layer further out counts the same
    /// handler.
    pub(super) fn counts_handler(extensions: &Extensions) -> bool {
        let guards = extensions.get::<Self>();
        let innermost = guards.and_then(|guards| guards.0.split_last());
        innermost.is_some_and(|(innermost, outer)| {
            innermost.is_at_work() && !outer.iter().any(Passed::is_at_work)
        })
    }

    /// The turns of all lock layers, for the task of the request's handler.
    pub(crate) fn for_task(extensions: &Extensions) -> TaskTurns {
        let (mut cancelling, mut others) = (Guards::new(), Guards::new());
        for passed in extensions.get::<Self>().iter().flat_map(|it| &it.0) {
            // A claim ends with a record, which its own task stores.
            let Layer::Lock { on_loss, .. } = &passed.by else {
                continue;
            };
            match on_loss {
                OnLoss::Cancel => cancelling.extend(passed.guards()),
                OnLoss::Finish => others.extend(passed.guards()),
            }
        }
        TaskTurns::new(cancelling, others)
    }
}

impl Passed {
    fn is_lock(&self) -> bool {
        matches!(self.by, Layer::Lock { .. })
    }

    /// Whether the layer has locked the request, or would have if its store had been in reach.
    fn is_at_work(&self) -> bool {
        matches!(self.turns, Ok(_) | Err(NotLocked::FailedOpen))
    }

    fn guards(&self) -> impl Iterator<Item = LockGuard> {
        let turns = self.turns.iter().flat_map(WeakGuards::as_slice);
        turns.filter_map(WeakGuard::upgrade)
    }

    /// The one guard of the layer.
    fn guard(&self) -> Result<LockGuard, NoGuard> {
        match self.turns.as_ref().map(WeakGuards::as_slice) {
            Ok([turn]) => turn.upgrade().ok_or(NoGuard::Ended),
            Ok(_) => Err(NoGuard::Several),
            Err(reason) => Err(NoGuard::NotLocked(*reason)),
        }
    }
}

impl LockGuard {
    /// The guard of the innermost [`DistributedLockLayer`](crate::DistributedLockLayer) that this
    /// request has passed.
    ///
    /// If that layer has not locked the request, the request has no guard, even if layers further
    /// out have locked it: a guard of another key would fence the wrong resource. The guards of
    /// other layers are found by name, see [`AllGuards::named`].
    ///
    /// With axum, take a `LockGuard` as a handler's argument instead.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::Full;
    /// use tower_distributed_lock::{LockGuard, lock::NoGuard};
    ///
    /// async fn handler(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, NoGuard> {
    ///     let guard = LockGuard::from_extensions(request.extensions())?;
    ///     Ok(Response::new(Full::from(format!("token {}", guard.token()))))
    /// }
    ///
    /// // A request that has passed no layer has no guard.
    /// let error = LockGuard::from_extensions(Request::new(()).extensions()).unwrap_err();
    /// assert_eq!(error, NoGuard::NoLayer);
    /// ```
    ///
    /// # Errors
    ///
    /// See [`NoGuard`].
    pub fn from_extensions(extensions: &Extensions) -> Result<Self, NoGuard> {
        let guards = extensions.get::<RequestGuards>();
        let mut passed = guards.iter().flat_map(|it| it.0.iter().rev());
        let innermost = passed.find(|passed| passed.is_lock());
        innermost.ok_or(NoGuard::NoLayer)?.guard()
    }
}

/// All guards of a request, by the [`name`](crate::DistributedLockLayer::name) of their layer. An
/// extractor with the feature `axum`.
///
/// The guard of an [`IdempotencyLayer`](crate::IdempotencyLayer) goes by the name `idempotency`. A
/// request that passed that layer without a key has none ([`NoGuard::NoLayer`]).
///
/// ```
/// use tower_distributed_lock::{LockGuard, LockKey, lock::AllGuards};
///
/// /// The handler behind a layer that locks both accounts of a transfer.
/// async fn transfer(guards: AllGuards) -> Result<String, tower_distributed_lock::Error> {
///     let guards = guards.all();
///     LockGuard::run_with(&guards, async { /* move the money */ }).await?;
///     Ok(format!("moved, with {} tokens", guards.len()))
/// }
///
/// # fn of(guards: AllGuards) -> Result<(), tower_distributed_lock::Error> {
/// let account = guards.of(&LockKey::new("account,id=7")?); // the guard of one key
/// # drop(account);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct AllGuards(RequestGuards);

impl AllGuards {
    /// The guards of the layers that this request has passed.
    pub fn from_extensions(extensions: &Extensions) -> Self {
        Self(extensions.get().cloned().unwrap_or_default())
    }

    /// The guard of the layer with this name; of the innermost, if several layers have the name.
    ///
    /// ```
    /// use tower_distributed_lock::{LockGuard, lock::{AllGuards, NoGuard}};
    ///
    /// async fn close_order(guards: AllGuards) -> Result<u64, NoGuard> {
    ///     let order: LockGuard = guards.named("order")?; // `DistributedLockLayer::name("order")`
    ///     Ok(order.token())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`NoGuard`].
    pub fn named(&self, name: &str) -> Result<LockGuard, NoGuard> {
        let mut passed = self.0.0.iter().rev();
        let found = passed.find(|passed| passed.by.name() == Some(name));
        found.ok_or(NoGuard::NoLayer)?.guard()
    }

    /// The guard of this key, from any lock's layer.
    pub fn of(&self, key: &LockKey) -> Option<LockGuard> {
        self.locks().find(|guard| guard.key() == key)
    }

    /// The guards of all lock layers, from the outermost to the innermost; of a layer that locks
    /// several keys, in the order of the keys.
    pub fn all(&self) -> Vec<LockGuard> {
        self.locks().collect()
    }

    fn locks(&self) -> impl Iterator<Item = LockGuard> {
        let locks = self.0.0.iter().filter(|passed| passed.is_lock());
        locks.flat_map(Passed::guards)
    }
}

impl fmt::Debug for AllGuards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.0.iter().map(|passed| passed.by.name());
        f.debug_list().entries(names).finish()
    }
}

impl fmt::Display for NotLocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => {
                "the layer does not lock this method (see `DistributedLockLayer::methods`)"
            }
            Self::NoKey => "the layer's key said that this request needs no lock",
            Self::NoRoute => "its key needs a route, and no router has matched one (add the layer with `route_layer`, inside of the router)",
            Self::FailedOpen => "the store was out of reach, and the layer fails open",
        })
    }
}

impl fmt::Display for NoGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLayer => f.write_str(
                "the request has passed no lock: add `.route_layer(DistributedLockLayer::new(..))` to its route",
            ),
            Self::NotLocked(reason) => write!(
                f,
                "the request was not locked: {reason}; a handler that is fine with that takes an `Option<LockGuard>`"
            ),
            Self::Ended => f.write_str("the request's turn has ended already"),
            Self::Several => f.write_str(
                "the layer has locked several keys for the request: take `AllGuards` instead of one guard",
            ),
        }
    }
}

impl StdError for NoGuard {}
