//! A request in line, and the turn that it gets: one object, shared by the line, the waiter and the guards.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
};

use super::{
    inner::Inner,
    line::{NoTurn, WaitRequest},
};
use crate::{
    lease::Lease,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// A request that waits for its turn, and the turn once it has come.
pub(crate) struct Turn {
    pub(crate) inner: Arc<Inner>,
    /// Rises from the head of a line to its end.
    pub(crate) id: u64,
    pub(crate) request: WaitRequest,
    granted: OnceLock<Granted>,
    told: Mutex<Told>,
    /// How many guards hold the turn.
    guards: AtomicUsize,
    released: AtomicBool,
}

/// A turn as it was granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) lease: Arc<Lease>,
    /// Which of the lease's turns it is.
    pub(crate) number: u64,
    pub(crate) token: u64,
}

/// What the waiter has been told, apart from a grant.
#[derive(Default)]
struct Told {
    refused: Option<NoTurn>,
    waker: Option<Waker>,
}

impl Turn {
    pub(super) fn new(inner: Arc<Inner>, id: u64, request: WaitRequest) -> Arc<Self> {
        Arc::new(Self {
            inner,
            id,
            request,
            granted: OnceLock::new(),
            told: Mutex::default(),
            guards: AtomicUsize::new(0),
            released: AtomicBool::new(false),
        })
    }

    /// Begins the turn. Called once, under the lock of the line, which has taken the request out.
    pub(super) fn grant(&self, granted: Granted) {
        self.tell(|_| {
            let _ = self.granted.set(granted);
        });
    }

    /// Tells why there is no turn. Called once, under the lock of the line, which has taken the request out.
    pub(super) fn refuse(&self, why: impl Into<NoTurn>) {
        self.tell(|told| told.refused = Some(why.into()));
    }

    fn tell(&self, what: impl FnOnce(&mut Told)) {
        let mut told = self.told.lock();
        what(&mut told);
        let waker = told.waker.take();
        drop(told);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether the turn has begun, or why it will not.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<(), NoTurn>> {
        let mut told = self.told.lock();
        if self.granted.get().is_some() {
            return Poll::Ready(Ok(()));
        }
        if let Some(why) = told.refused.take() {
            return Poll::Ready(Err(why));
        }
        match &mut told.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => told.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// The turn, once it has begun.
    pub(super) fn granted(&self) -> Option<&Granted> {
        self.granted.get()
    }

    /// Counts a guard: the first, or a further one while there is one.
    pub(super) fn add_guard(&self) {
        self.guards.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a guard if there is still one.
    pub(super) fn add_guard_if_held(&self) -> bool {
        let add = |guards| (guards > 0).then_some(guards + 1);
        let added = self
            .guards
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        added.is_ok()
    }

    /// A guard is gone. Says whether it was the last.
    pub(super) fn remove_guard(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(super) fn guards(&self) -> usize {
        self.guards.load(Ordering::Acquire)
    }

    /// Whether a guard has ended the turn for all others.
    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Marks the turn as ended for all guards. Says whether it was before.
    pub(super) fn set_released(&self) -> bool {
        self.released.swap(true, Ordering::AcqRel)
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn")
            .field("request", &self.request)
            .field("granted", &self.granted)
            .finish_non_exhaustive()
    }
}
