//! The instances that receive the hints of a memory store.

use super::super::{Hint, Instance};
use crate::sync::{HashMap, Mutex, mpsc};

/// The channel to each instance. The lock of this map is the last in the lock order, and is taken
/// under the lock of a shard.
#[derive(Default)]
pub(super) struct Watchers(Mutex<HashMap<Instance, mpsc::UnboundedSender<Hint>>>);

impl Watchers {
    pub(super) fn add(&self, instance: Instance) -> mpsc::UnboundedReceiver<Hint> {
        let (sender, hints) = mpsc::unbounded_channel();
        let _ = sender.send(Hint::Listening);
        let mut watchers = self.0.lock();
        watchers.retain(|_, watcher| !watcher.is_closed());
        watchers.insert(instance, sender);
        hints
    }

    pub(super) fn tell(&self, hints: Vec<(Instance, Hint)>) {
        let watchers = self.0.lock();
        for (instance, hint) in hints {
            if let Some(watcher) = watchers.get(&instance) {
                let _ = watcher.send(hint);
            }
        }
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn tell_all_reconnected(&self) {
        for watcher in self.0.lock().values() {
            let _ = watcher.send(Hint::Reconnected);
        }
    }
}
