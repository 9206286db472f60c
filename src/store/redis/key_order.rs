//! Keeps the order of calls where no lane does: the calls for one key are made one at a time.
//!
//! 1. Calls are made in the order of [`KeyOrder::push`], which needs no runtime. Each key with calls has one task, which makes the calls
//!    one after another and ends after the last one.
//! 2. Tasks run at the store's [`Home`]. A key whose task could not be started (there is no runtime,
//!    or one without timers), or has ended with its runtime, is `stopped`. The next `push` or `resume`
//!    with a runtime starts the tasks of all stopped keys. A call that was under way is dropped with
//!    its runtime. The release that such a call owes to the server is put back as the key's next call
//!    ([`KeyOrder::put_back`]).
//! 3. Tasks are started when the mutex is free: a runtime that shuts down drops a new task at once, and the drop takes the mutex.
//!
//! ```text
//! waiting  orders/42: [release]       its task makes the acquire now
//!          orders/43: []              its task makes its last call now
//! stopped  []
//! ```

use std::{
    collections::{HashMap, VecDeque},
    mem,
    pin::Pin,
    sync::Arc,
};

use crate::{
    LockKey,
    store::home::Home,
    sync::{Mutex, MutexGuard},
    time::can_sleep,
};

/// A call, with everything that follows. The caller gets the outcome through a channel.
type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the calls for each key one at a time, and the calls for different keys side by side.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyOrder {
    keys: Arc<Mutex<Keys>>,
    home: Home,
}

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
    pub(super) fn new(home: Home) -> Self {
        Self {
            keys: Arc::default(),
            home,
        }
    }

    /// Makes a call once all earlier calls for the key have been made.
    pub(super) fn push(&self, key: LockKey, job: impl Future<Output = ()> + Send + 'static) {
        let mut keys = self.keys.lock();
        let new = if let Some(waiting) = keys.waiting.get_mut(&key) {
            waiting.push_back(Box::pin(job));
            None
        } else {
            let first: Job = Box::pin(job);
            keys.waiting.insert(key.clone(), VecDeque::from([first]));
            Some(key)
        };
        self.start(keys, new);
    }

    /// Makes a call before all other calls for the key that have not begun. For a call under way that is dropped with its task.
    pub(super) fn put_back(&self, key: &LockKey, job: impl Future<Output = ()> + Send + 'static) {
        // The key has an entry until its task has ended, and is stopped then.
        if let Some(waiting) = self.keys.lock().waiting.get_mut(key) {
            waiting.push_front(Box::pin(job));
        }
    }

    /// Resumes calls that wait for a runtime.
    pub(super) fn resume(&self) {
        self.start(self.keys.lock(), None);
    }

    /// Starts the task of a new key and the tasks of all stopped keys, if there is a runtime.
    fn start(&self, mut keys: MutexGuard<'_, Keys>, new: Option<LockKey>) {
        if new.is_none() && keys.stopped.is_empty() {
            return;
        }
        let Some(runtime) = self.home.runtime() else {
            keys.stopped.extend(new);
            return;
        };
        let stopped = mem::take(&mut keys.stopped);
        drop(keys);
        for key in stopped.into_iter().chain(new) {
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
        if !can_sleep() {
            // Calls need timers. The key is stopped, as by a runtime that shuts down.
            return;
        }
        while let Some(job) = self.next() {
            job.await;
        }
    }

    /// The next call. `None` at the end of the task.
    ///
    /// The entry of the key is removed with the last call, so an idle key takes no memory.
    fn next(&mut self) -> Option<Job> {
        let mut keys = self.order.keys.lock();
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
            self.order.keys.lock().stopped.push(key);
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

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::mpsc, thread, time::Duration};

    use tokio::{
        runtime::{Builder, Runtime},
        sync::oneshot,
        time::timeout,
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Starts a call when dropped, as a guard starts its release.
    struct CallOnDrop {
        order: KeyOrder,
        /// Tells that the call was made.
        made: Option<oneshot::Sender<()>>,
    }

    impl Drop for CallOnDrop {
        fn drop(&mut self) {
            let made = self.made.take();
            self.order.push(LockKey::new("k").unwrap(), async move {
                let _ = made.unwrap().send(());
            });
        }
    }

    fn runtimes() -> [Runtime; 2] {
        let mut builders = [Builder::new_current_thread(), Builder::new_multi_thread()];
        builders.each_mut().map(|builder| {
            let builder = builder.enable_all();
            builder.build().unwrap()
        })
    }

    #[test]
    fn a_call_started_while_its_runtime_shuts_down_is_made_on_the_next_runtime() {
        for runtime in runtimes() {
            let order = KeyOrder::default();
            let (made, was_made) = oneshot::channel();
            let guard = CallOnDrop {
                order: order.clone(),
                made: Some(made),
            };
            runtime.spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            });
            // On a thread of its own, so that a deadlock fails the test.
            let (ended, has_ended) = mpsc::channel();
            thread::spawn(move || {
                drop(runtime);
                let _ = ended.send(());
            });
            let has_ended = has_ended.recv_timeout(PATIENCE);
            has_ended.expect("the runtime shuts down");
            let [next, _] = runtimes();
            next.block_on(async {
                order.resume();
                let was_made = timeout(PATIENCE, was_made).await;
                was_made.expect("the call is made in time").unwrap();
            });
        }
    }
}
