//! What this process has last written at a key: a guess that saves reading it.

use bytes::Bytes;

use super::super::rules::Slot;
use crate::{LockKey, key::KeyMap, sync::Mutex};

/// After this many keys, those are forgotten that were not written since as many others were.
const GENERATION: usize = 4096;

/// A value, as it was read or written.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) tag: Option<i64>,
    pub(super) token: u64,
    pub(super) state: Bytes,
    pub(super) slot: Slot,
    /// Whether the value was read within this call.
    pub(super) is_fresh: bool,
}

/// Values by key, in two generations.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: KeyMap<View>,
    old: KeyMap<View>,
}

impl Cache {
    /// The value that this process last wrote, or none.
    pub(super) fn guess(&self, key: &LockKey) -> View {
        let cache = self.0.lock();
        let known = cache.young.get(key).or_else(|| cache.old.get(key));
        known.cloned().unwrap_or_else(|| View {
            tag: None,
            token: 0,
            state: Bytes::new(),
            slot: Slot::default(),
            is_fresh: false,
        })
    }

    /// Keeps a value that was written. One with a record is not: records may be large.
    pub(super) fn keep(&self, key: &LockKey, view: View) {
        if view.slot.record().is_some() {
            return self.forget(key);
        }
        let mut cache = self.0.lock();
        if cache.young.len() >= GENERATION {
            cache.old = std::mem::take(&mut cache.young);
        }
        cache.young.insert(key.clone(), view);
    }

    pub(super) fn forget(&self, key: &LockKey) {
        let mut cache = self.0.lock();
        cache.young.remove(key);
        cache.old.remove(key);
    }
}
