//! Keeps the order of calls where no lane does: the calls for one key are made one at a time.
//!
//! 1. Calls are made in the order of [`KeyOrder::push`], which needs no runtime. Each key with calls has one task, which makes the calls
//!    one after another and ends after the last one.
//! 2. A key whose task could not be started (there is no runtime), or has ended with its runtime, is `stopped`. The next
//!    `push` or `resume` from within a runtime starts the tasks of all stopped keys. A call that was under way is lost with its runtime.
//!
//! ```text
//! waiting  orders/42: [release]       its task makes the acquire now
//!          orders/43: []              its task makes its last call now
//! stopped  []
//! ```

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
};

use tokio::runtime::Handle;

use crate::{LockKey, sync::Mutex};

/// A call, with everything that follows. The caller gets the outcome through a channel.
type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the calls for each key one at a time, and the calls for different keys side by side.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyOrder(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    /// The calls that have not begun. A key with a task has an entry, which may be empty.
    waiting: HashMap<LockKey, VecDeque<Job>>,
    /// The keys with calls and without a task.
    stopped: Vec<LockKey>,
}

/// The task of a key. If the task is dropped before its last call, the key is stopped.
struct Running {
    order: KeyOrder,
    /// `None` once the last call was made.
    key: Option<LockKey>,
}

impl KeyOrder {
    /// Makes a call once all earlier calls for the key have been made.
    pub(super) fn push(&self, key: LockKey, job: impl Future<Output = ()> + Send + 'static) {
        let mut keys = self.0.lock();
        if let Some(waiting) = keys.waiting.get_mut(&key) {
            waiting.push_back(Box::pin(job));
        } else {
            let first: Job = Box::pin(job);
            keys.waiting.insert(key.clone(), VecDeque::from([first]));
            keys.stopped.push(key);
        }
        self.start(&mut keys);
    }

    /// Resumes calls that were started outside of a runtime.
    pub(super) fn resume(&self) {
        self.start(&mut self.0.lock());
    }

    /// Starts the tasks of all stopped keys, if there is a runtime.
    fn start(&self, keys: &mut Keys) {
        if keys.stopped.is_empty() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        for key in keys.stopped.drain(..) {
            let running = Running {
                order: self.clone(),
                key: Some(key),
            };
            runtime.spawn(running.run());
        }
    }
}

impl Running {
    async fn run(mut self) {
        while let Some(job) = self.next() {
            job.await;
        }
    }

    /// The next call. `None` at the end of the task.
    ///
    /// The entry of the key is removed with the last call, so an idle key takes no memory.
    fn next(&mut self) -> Option<Job> {
        let mut keys = self.order.0.lock();
        let key = self.key.as_ref()?;
        let job = keys.waiting.get_mut(key).and_then(VecDeque::pop_front);
        if job.is_none() {
            keys.waiting.remove(key);
            self.key = None;
        }
        job
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.order.0.lock().stopped.push(key);
        }
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("waiting", &self.waiting.len())
            .field("stopped", &self.stopped.len())
            .finish()
    }
}
