//! The turns of a request, among its extensions.

use std::{error::Error as StdError, fmt, sync::Arc};

use http::Extensions;

use crate::{LockGuard, LockKey, Locks, locks::WeakGuard};

/// What each layer that the request has passed has done, from the outermost to the innermost.
///
/// Private, so that nobody else's type collides with it. The handles are weak: a stray copy of the extensions does
/// not prolong a turn.
#[derive(Clone, Default)]
pub(crate) struct RequestGuards(Vec<Passed>);

#[derive(Clone)]
struct Passed {
    by: Layer,
    name: Option<Arc<str>>,
    turns: Result<Arc<[WeakGuard]>, NotLocked>,
}

/// What kind of layer a request has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Lock,
    Idempotency,
}

/// Under what name a request's guards have the idempotency layer's.
const IDEMPOTENCY: &str = "idempotency";

/// Why a request that has passed a lock's layer has no guard of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotLocked {
    /// The layer does not lock this method: by default only those that are not safe.
    Method,
    /// The layer's key said that this request needs no lock.
    NoKey,
    /// The router found no route for the request.
    NoRoute,
    /// The store was out of reach, and the layer fails open.
    FailedOpen,
}

/// Why there is no [`LockGuard`] to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoGuard {
    /// The request has passed no [`DistributedLockLayer`](crate::DistributedLockLayer), or none of that name.
    NoLayer,
    /// It has, and was not locked on purpose.
    NotLocked(NotLocked),
    /// It was locked, and the turn has ended.
    Ended,
    /// The layer has locked several keys for the request, and no one of their tokens fences it: see [`LockGuards`].
    Several,
}

impl RequestGuards {
    /// Notes what a lock's layer has done.
    pub(super) fn note(
        extensions: &mut Extensions,
        name: Option<Arc<str>>,
        guards: Result<&[LockGuard], NotLocked>,
    ) {
        Self::push(extensions, Layer::Lock, name, guards);
    }

    /// Notes what an idempotency layer has claimed.
    pub(crate) fn note_claim(extensions: &mut Extensions, guard: Result<&LockGuard, NotLocked>) {
        let name = Some(IDEMPOTENCY.into());
        let guards = guard.map(std::slice::from_ref);
        Self::push(extensions, Layer::Idempotency, name, guards);
    }

    fn push(
        extensions: &mut Extensions,
        by: Layer,
        name: Option<Arc<str>>,
        guards: Result<&[LockGuard], NotLocked>,
    ) {
        let turns = guards.map(|guards| guards.iter().map(LockGuard::downgrade).collect());
        let passed = extensions.get_or_insert_default::<Self>();
        passed.0.push(Passed { by, name, turns });
    }

    /// The turn that the request has at this key already, and still.
    pub(crate) fn find(extensions: &Extensions, locks: &Locks, key: &LockKey) -> Option<LockGuard> {
        let passed = extensions.get::<Self>()?.0.iter();
        passed
            .flat_map(Passed::guards)
            .find(|guard| guard.is_for(locks, key) && guard.is_held())
    }

    /// What the last lock's layer that the request has passed has done, whatever those further out did.
    fn last_lock(extensions: &Extensions) -> Result<&Passed, NoGuard> {
        let turns = extensions.get::<Self>().ok_or(NoGuard::NoLayer)?;
        let mut locks = turns.0.iter().rev();
        locks
            .find(|passed| passed.by == Layer::Lock)
            .ok_or(NoGuard::NoLayer)
    }

    /// All guards of the last lock's layer that the request has passed.
    pub(super) fn last(extensions: &Extensions) -> Result<Vec<LockGuard>, NoGuard> {
        let passed = Self::last_lock(extensions)?;
        match passed.turns {
            Ok(_) => Ok(passed.guards().collect()),
            Err(reason) => Err(NoGuard::NotLocked(reason)),
        }
    }
}

impl Passed {
    fn guards(&self) -> impl Iterator<Item = LockGuard> {
        let turns = self.turns.iter().flat_map(|turns| turns.iter());
        turns.filter_map(WeakGuard::upgrade)
    }

    /// The one guard of the layer.
    fn guard(&self) -> Result<LockGuard, NoGuard> {
        match &self.turns {
            Ok(turns) => match &**turns {
                [turn] => turn.upgrade().ok_or(NoGuard::Ended),
                _ => Err(NoGuard::Several),
            },
            Err(reason) => Err(NoGuard::NotLocked(*reason)),
        }
    }
}

impl LockGuard {
    /// The guard of the innermost [`DistributedLockLayer`](crate::DistributedLockLayer) that this request has passed.
    ///
    /// Only that layer's: where it did not lock the request, there is no guard, whatever layers further out have locked. A guard of
    /// another key would fence the wrong thing. All others go by their name, see [`LockGuards::named`].
    ///
    /// With axum, take a `LockGuard` as a handler's argument instead.
    ///
    /// # Errors
    ///
    /// See [`NoGuard`].
    pub fn from_extensions(extensions: &Extensions) -> Result<Self, NoGuard> {
        RequestGuards::last_lock(extensions)?.guard()
    }
}

/// All guards of a request, by the [`name`](crate::DistributedLockLayer::name) of their layer. With the feature `axum` it is
/// an extractor.
///
/// The guard of an [`IdempotencyLayer`](crate::IdempotencyLayer) goes by the name `idempotency`.
#[derive(Clone, Default)]
pub struct LockGuards(RequestGuards);

impl LockGuards {
    /// The guards of the layers that this request has passed.
    pub fn from_extensions(extensions: &Extensions) -> Self {
        Self(extensions.get().cloned().unwrap_or_default())
    }

    /// The guard of the layer with this name; of the innermost, if there are several.
    ///
    /// # Errors
    ///
    /// See [`NoGuard`].
    pub fn named(&self, name: &str) -> Result<LockGuard, NoGuard> {
        let mut passed = self.0.0.iter().rev();
        passed
            .find(|passed| passed.name.as_deref() == Some(name))
            .ok_or(NoGuard::NoLayer)?
            .guard()
    }

    /// The guard of this key, by whichever lock's layer it is held.
    pub fn of(&self, key: &LockKey) -> Option<LockGuard> {
        self.locks().find(|guard| guard.key() == key)
    }

    /// The guards of all lock layers, from the outermost to the innermost; of a layer that locks several keys, in the order of
    /// the keys.
    pub fn all(&self) -> Vec<LockGuard> {
        self.locks().collect()
    }

    fn locks(&self) -> impl Iterator<Item = LockGuard> {
        let passed = self.0.0.iter().filter(|passed| passed.by == Layer::Lock);
        passed.flat_map(Passed::guards)
    }
}

impl fmt::Debug for LockGuards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.0.iter().map(|passed| &passed.name);
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
                "the layer has locked several keys for the request: take `LockGuards` instead of one guard",
            ),
        }
    }
}

impl StdError for NoGuard {}
