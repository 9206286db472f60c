//! The locks, atomics, channels, tasks and randomness of the core, in one place so that a model
//! checker can replace them.
//!
//! The core (`locks`, `lease`, `store/memory`) takes all of its synchronization from this module,
//! and every point in time from [`time`](crate::time). A normal build uses std and tokio. With
//! `--cfg shuttle`, the same code runs under shuttle, which chooses every interleaving from a seed.

#[cfg(shuttle)]
mod from {
    pub(crate) use shuttle::{
        sync::{MutexGuard, atomic},
        thread,
    };
    pub(crate) use shuttle_tokio::{
        sync::{Notify, mpsc, oneshot},
        task::{JoinHandle, spawn},
    };
}
#[cfg(not(shuttle))]
mod from {
    pub(crate) use std::{
        sync::{MutexGuard, atomic},
        thread,
    };
    pub(crate) use tokio::{
        sync::{Notify, mpsc, oneshot},
        task::{JoinHandle, spawn},
    };
}

pub(crate) use from::*;
pub(crate) use tokio::runtime::Id as RuntimeId;
use uuid::Uuid;

/// A mutex without poisoning: no code under the lock panics while the value is inconsistent.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(
    #[cfg(shuttle)] shuttle::sync::Mutex<T>,
    #[cfg(not(shuttle))] std::sync::Mutex<T>,
);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        #[cfg(shuttle)]
        return Self(shuttle::sync::Mutex::new(value));
        #[cfg(not(shuttle))]
        return Self(std::sync::Mutex::new(value));
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The hasher of the core's maps: randomly keyed, but the same in every run under the model
/// checker.
#[cfg(shuttle)]
pub(crate) type Hasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
#[cfg(not(shuttle))]
pub(crate) type Hasher = std::hash::RandomState;

/// A map whose iteration order is the same in every run under the model checker.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Hasher>;

/// Creates a unique identity.
pub(crate) fn unique_id() -> Uuid {
    #[cfg(shuttle)]
    return Uuid::from_u64_pair(
        shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng()),
        shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng()),
    );
    #[cfg(not(shuttle))]
    return Uuid::new_v4();
}

/// Returns a random number between zero and one, for pauses that must not be in step with those of
/// other instances.
pub(crate) fn random() -> f64 {
    #[cfg(shuttle)]
    let number: u64 = shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng());
    #[cfg(not(shuttle))]
    let number = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
    number as f64 / u64::MAX as f64
}

/// A runtime that background tasks are spawned on.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    #[cfg(not(shuttle))]
    handle: tokio::runtime::Handle,
}

/// The thread of a runtime, which ends when this value is dropped.
pub(crate) struct Thread {
    #[cfg(not(shuttle))]
    _ends: oneshot::Sender<std::convert::Infallible>,
}

#[cfg(not(shuttle))]
impl Runtime {
    /// The runtime of the current task, if there is one.
    pub(crate) fn current() -> Option<Self> {
        let handle = tokio::runtime::Handle::try_current().ok()?;
        Some(Self { handle })
    }

    /// The runtime of a handle.
    pub(crate) fn of(handle: &tokio::runtime::Handle) -> Self {
        let handle = handle.clone();
        Self { handle }
    }

    /// Starts a thread with a runtime. Returns `None` if the system has no thread left.
    pub(crate) fn on_own_thread() -> Option<(Self, Thread)> {
        let (ends, ended) = oneshot::channel();
        let (sender, handle) = std::sync::mpsc::channel();
        let run = move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            if let Ok(runtime) = builder.enable_all().build() {
                let _ = sender.send(runtime.handle().clone());
                drop(runtime.block_on(ended));
            }
        };
        let thread = std::thread::Builder::new().name("distributed-lock".into());
        thread.spawn(run).ok()?;
        let handle = handle.recv().ok()?;
        Some((Self { handle }, Thread { _ends: ends }))
    }

    /// Identifies the runtime among all that the process has had.
    pub(crate) fn id(&self) -> Option<RuntimeId> {
        Some(self.handle.id())
    }

    /// Makes this the current runtime until the returned value is dropped.
    pub(crate) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.handle.enter()
    }

    /// Spawns a task. A runtime that shuts down drops the task, now or later.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }
}

#[cfg(shuttle)]
thread_local! {
    /// The tasks that were spawned on a runtime. Shuttle runs an execution on one thread.
    static TASKS: std::cell::RefCell<Vec<shuttle::future::AbortHandle>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(shuttle)]
impl Runtime {
    pub(crate) fn current() -> Option<Self> {
        Some(Self {})
    }

    pub(crate) fn of(_: &tokio::runtime::Handle) -> Self {
        Self {}
    }

    pub(crate) fn on_own_thread() -> Option<(Self, Thread)> {
        Some((Self {}, Thread {}))
    }

    pub(crate) fn id(&self) -> Option<RuntimeId> {
        None
    }

    pub(crate) fn enter(&self) {}

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = shuttle::future::spawn(task).abort_handle();
        TASKS.with_borrow_mut(|tasks| tasks.push(task));
    }

    /// Drops all tasks that were spawned on a runtime so far, as the end of that runtime does.
    pub(crate) fn end() {
        let tasks = TASKS.with(|tasks| tasks.take());
        for task in tasks {
            task.abort();
        }
    }

    /// Forgets the tasks of the execution before.
    pub(crate) fn reset() {
        TASKS.with(|tasks| tasks.take());
    }
}

/// Yields to other tasks.
pub(crate) async fn yield_now() {
    #[cfg(shuttle)]
    shuttle::future::yield_now().await;
    #[cfg(not(shuttle))]
    tokio::task::yield_now().await;
}

/// Yields once the task has used up its budget, as the futures of tokio do. For work that may
/// never have to wait.
pub(crate) async fn consume_budget() {
    #[cfg(not(shuttle))]
    tokio::task::coop::consume_budget().await;
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::{future::pending, time::Duration};

    use super::*;

    #[test]
    fn a_thread_of_a_runtime_ends_when_its_handle_is_dropped() {
        let (runtime, thread) = Runtime::on_own_thread().unwrap();
        let (sender, ended) = std::sync::mpsc::channel::<()>();
        runtime.spawn(async move {
            let _sender = sender;
            pending::<()>().await;
        });
        drop(thread);
        let ended = ended.recv_timeout(Duration::from_secs(20));
        assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}
