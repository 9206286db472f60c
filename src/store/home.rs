//! Where the tasks of a store run.

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use crate::sync::Mutex;

/// The runtime on which the tasks of a store run, with their connections and timers: that of the
/// last [`watch`](super::Store::watch), until it ends. Before and after that, the caller's.
#[derive(Debug, Clone, Default)]
pub(super) struct Home(Arc<Mutex<Option<Settled>>>);

#[derive(Debug)]
struct Settled {
    runtime: Handle,
    /// Gone once no [`Resident`] is left.
    residents: Weak<()>,
}

/// Keeps a runtime as the home. Held by the task of a `watch`, which is dropped with its runtime.
#[derive(Debug)]
pub(super) struct Resident {
    _counted: Arc<()>,
}

impl Home {
    /// Makes the current runtime the home. Called within a runtime.
    pub(super) fn settle(&self) -> Resident {
        let runtime = Handle::current();
        let mut settled = self.0.lock();
        let here = settled
            .as_ref()
            .filter(|it| it.runtime.id() == runtime.id());
        let counted = here.and_then(|settled| settled.residents.upgrade());
        let counted = counted.unwrap_or_default();
        *settled = Some(Settled {
            runtime,
            residents: Arc::downgrade(&counted),
        });
        Resident { _counted: counted }
    }

    /// The runtime for a new task, if there is one.
    pub(super) fn runtime(&self) -> Option<Handle> {
        self.settled().or_else(|| Handle::try_current().ok())
    }

    /// The home, if the store has one.
    pub(super) fn settled(&self) -> Option<Handle> {
        let settled = self.0.lock();
        let settled = settled.as_ref();
        let settled = settled.filter(|settled| settled.residents.strong_count() > 0)?;
        Some(settled.runtime.clone())
    }

    /// Spawns a task. Without a runtime, or on one that has ended, the task is dropped.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            runtime.spawn(task);
        }
    }
}
