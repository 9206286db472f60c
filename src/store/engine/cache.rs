//! What this process has last written at a key: a guess that saves reading it.

use super::Value;
use crate::{LockKey, key::KeyMap, sync::Mutex};

/// After this many keys, those are forgotten that were not written since as many others were.
const GENERATION: usize = 4096;

/// Values by key, in two generations.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: KeyMap<Value>,
    old: KeyMap<Value>,
}

impl Cache {
    /// The value that this process last wrote, or none.
    pub(super) fn guess(&self, key: &LockKey) -> Value {
        let cache = self.0.lock();
        let known = cache.young.get(key).or_else(|| cache.old.get(key));
        known.cloned().unwrap_or_default()
    }

    /// Keeps a value that was written. One with a record is not: records may be large.
    pub(super) fn keep(&self, key: &LockKey, value: Value) {
        if value.slot.record().is_some() {
            return self.forget(key);
        }
        let mut cache = self.0.lock();
        if cache.young.len() >= GENERATION {
            cache.old = std::mem::take(&mut cache.young);
        }
        cache.young.insert(key.clone(), value);
    }

    pub(super) fn forget(&self, key: &LockKey) {
        let mut cache = self.0.lock();
        cache.young.remove(key);
        cache.old.remove(key);
    }
}
