//! The turns of a request, among its extensions.

use std::{error::Error as StdError, fmt, sync::Arc};

use http::Extensions;

use crate::{LockGuard, LockKey, Locks, locks::WeakGuard};

/// What each layer that the request has passed has done, from the outermost to the innermost.
///
/// Private, so that nobody else's type collides with it. The handles are weak: a stray copy of the extensions does
/// not prolong a turn.
#[derive(Clone, Default)]
pub(crate) struct Turns(Vec<Passed>);

#[derive(Clone)]
struct Passed {
    name: Option<Arc<str>>,
    turn: Result<WeakGuard, NotLocked>,
}

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
}

impl Turns {
    /// Notes what a layer has done.
    pub(crate) fn note(
        extensions: &mut Extensions,
        name: Option<Arc<str>>,
        turn: Result<&LockGuard, NotLocked>,
    ) {
        let turn = turn.map(LockGuard::downgrade);
        let turns = extensions.get_or_insert_default::<Self>();
        turns.0.push(Passed { name, turn });
    }

    /// The turn that the request has at this key already, and still.
    pub(crate) fn find(extensions: &Extensions, locks: &Locks, key: &LockKey) -> Option<LockGuard> {
        let turns = &extensions.get::<Self>()?.0;
        turns
            .iter()
            .filter_map(|passed| passed.turn.as_ref().ok()?.upgrade())
            .find(|guard| guard.is_for(locks, key) && guard.is_held())
    }

    /// What the last layer that the request has passed has done, whatever those further out did.
    pub(super) fn last(extensions: &Extensions) -> Result<LockGuard, NoGuard> {
        let turns = extensions.get::<Self>().ok_or(NoGuard::NoLayer)?;
        Self::guard(turns.0.last().into_iter())
    }

    fn guard<'a>(
        passed: impl DoubleEndedIterator<Item = &'a Passed>,
    ) -> Result<LockGuard, NoGuard> {
        let mut found = NoGuard::NoLayer;
        for passed in passed.rev() {
            match &passed.turn {
                Ok(turn) => return turn.upgrade().ok_or(NoGuard::Ended),
                Err(reason) if found == NoGuard::NoLayer => found = NoGuard::NotLocked(*reason),
                Err(_) => {}
            }
        }
        Err(found)
    }
}

impl LockGuard {
    /// The guard of the innermost layer that has locked this request.
    ///
    /// With axum, take a `LockGuard` as a handler's argument instead.
    ///
    /// # Errors
    ///
    /// See [`NoGuard`].
    pub fn from_extensions(extensions: &Extensions) -> Result<Self, NoGuard> {
        let turns = extensions.get::<Turns>().ok_or(NoGuard::NoLayer)?;
        Turns::guard(turns.0.iter())
    }
}

/// All guards of a request, by the [`name`](crate::DistributedLockLayer::name) of their layer. With the feature `axum` it is
/// an extractor.
#[derive(Clone, Default)]
pub struct LockGuards(Turns);

impl LockGuards {
    /// The guards of the layers that this request has passed.
    pub fn from_extensions(extensions: &Extensions) -> Self {
        Self(extensions.get().cloned().unwrap_or_default())
    }

    /// The guard of the layer with this name; the innermost, if there are several.
    ///
    /// # Errors
    ///
    /// See [`NoGuard`].
    pub fn named(&self, name: &str) -> Result<LockGuard, NoGuard> {
        let named = |passed: &&Passed| passed.name.as_deref() == Some(name);
        Turns::guard(self.0.0.iter().filter(named))
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
        }
    }
}

impl StdError for NoGuard {}
