//! The turns of a request, held by a future or a body.

use std::{
    pin::Pin,
    slice,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};

use futures_util::future::{FutureExt, select_all};

use crate::{LockGuard, Loss, Status};

/// The guards that a layer has for a request: usually one.
pub(super) enum Guards {
    One(LockGuard),
    Several(Vec<LockGuard>),
}

impl Guards {
    pub(super) fn as_slice(&self) -> &[LockGuard] {
        match self {
            Self::One(guard) => slice::from_ref(guard),
            Self::Several(guards) => guards,
        }
    }

    /// Whether nobody else holds any of the turns.
    pub(super) fn are_only_ones(&self) -> bool {
        self.as_slice().iter().all(LockGuard::is_only_one)
    }

    /// Resolves when one of the turns is lost; does not keep them from ending.
    fn watch(&self) -> Watch {
        match self {
            Self::One(guard) => watch(guard),
            Self::Several(guards) => {
                Box::pin(select_all(guards.iter().map(watch)).map(|(loss, ..)| loss))
            }
        }
    }
}

impl From<Vec<LockGuard>> for Guards {
    fn from(mut guards: Vec<LockGuard>) -> Self {
        match guards.pop() {
            Some(guard) if guards.is_empty() => Self::One(guard),
            last => {
                guards.extend(last);
                Self::Several(guards)
            }
        }
    }
}

type Watch = Pin<Box<dyn Future<Output = Loss> + Send>>;

fn watch(guard: &LockGuard) -> Watch {
    let (lost, turn) = (guard.watch(), guard.downgrade());
    Box::pin(async move {
        let loss = lost.await;
        match turn.upgrade() {
            Some(guard) if guard.status() != Status::Released => loss,
            // A handler has released its turn, and the lease has gone on without it.
            _ => std::future::pending().await,
        }
    })
}

/// The turns of a request, and the future that tells of a loss.
pub(super) struct HeldTurn {
    guards: Guards,
    /// Only ever used through `&mut`: the mutex makes a body `Sync` that holds this.
    lost: Option<Mutex<Watch>>,
}

impl HeldTurn {
    pub(super) fn new(guards: Guards, watched: bool) -> Self {
        let lost = watched.then(|| Mutex::new(guards.watch()));
        Self { guards, lost }
    }

    /// Whether a turn was lost, if they are watched.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Option<Loss> {
        let watch = self.lost.as_mut()?.get_mut();
        let watch = watch.unwrap_or_else(PoisonError::into_inner);
        let Poll::Ready(loss) = watch.as_mut().poll(cx) else {
            return None;
        };
        self.lost = None;
        Some(loss)
    }

    /// Resolves when a turn is lost, if they are watched.
    pub(super) async fn lost(&mut self) -> Loss {
        std::future::poll_fn(|cx| match self.poll_lost(cx) {
            Some(loss) => Poll::Ready(loss),
            None => Poll::Pending,
        })
        .await
    }

    /// By the clock: the loss need not have been told yet.
    pub(super) fn is_lost(&self) -> bool {
        let mut guards = self.guards.as_slice().iter();
        guards.any(|guard| matches!(guard.status(), Status::Lost(_)))
    }

    pub(super) fn guards(&self) -> &[LockGuard] {
        self.guards.as_slice()
    }

    pub(super) fn into_guards(self) -> Guards {
        self.guards
    }
}
