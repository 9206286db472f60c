//! How things are called in Redis.
//!
//! | name | type | what |
//! |---|---|---|
//! | `tdl:2:{b2089}:lock:orders/42` | string | the lease, or the record in its place (`value.lua`) |
//! | `tdl:2:{b2089}:queue:orders/42` | sorted set | who waits (`queue.lua`) |
//! | `tdl:2:{b2089}:fence` | string | the token counter of all keys in this bucket |
//! | `tdl:2:hints:<instance>` | channel | hints for one instance |
//!
//! A Cluster keeps all names with the same text in braces on one node. The number of buckets is a part of the format:
//! two values of it in one fleet would be two locks on one key. The scripts know the layout too (`hint` in
//! `queue.lua`), which is why a prefix has no braces.
//!
//! The number behind the prefix is the version of the format, that is of these names, of the values and of the queue. Stores
//! of two versions share no name, so neither misreads what the other wrote; they do not exclude each other either.

use std::sync::Arc;

use crate::{LockKey, store::Instance};

/// The version of the format.
const FORMAT: u32 = 2;

/// Few enough that the token counters, one for each and never deleted, stay small; many enough to spread over a Cluster.
pub(super) const BUCKETS: usize = 4096;

/// The names of one fleet's locks.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
    label: Option<Arc<str>>,
}

/// The names of one key, and the one that this store goes by.
#[derive(Debug)]
pub(super) struct KeyNames {
    pub(super) lock: String,
    pub(super) queue: String,
    pub(super) fence: String,
    /// What operators know the owner of a lease by.
    pub(super) label: Option<Arc<str>>,
}

impl Names {
    pub(super) fn new(prefix: &str, label: Option<Arc<str>>) -> Self {
        Self {
            prefix: prefix.to_owned(),
            label,
        }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn of(&self, key: &LockKey) -> KeyNames {
        let (prefix, bucket) = (&self.prefix, bucket(key));
        KeyNames {
            lock: format!("{prefix}:{FORMAT}:{{b{bucket}}}:lock:{key}"),
            queue: format!("{prefix}:{FORMAT}:{{b{bucket}}}:queue:{key}"),
            fence: format!("{prefix}:{FORMAT}:{{b{bucket}}}:fence"),
            label: self.label.clone(),
        }
    }

    pub(super) fn hints(&self, instance: Instance) -> String {
        format!("{}:{FORMAT}:hints:{instance}", self.prefix)
    }
}

/// Which bucket a key belongs to.
pub(super) fn bucket(key: &LockKey) -> usize {
    (key.stable_hash() % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_change_only_with_the_version_of_the_format() {
        let (names, instance) = (Names::new("tdl", None), Instance::new());
        assert_eq!(names.hints(instance), format!("tdl:2:hints:{instance}"));
        let names = names.of(&LockKey::new("orders/42").unwrap());
        assert_eq!(names.lock, "tdl:2:{b2089}:lock:orders/42");
        assert_eq!(names.queue, "tdl:2:{b2089}:queue:orders/42");
        assert_eq!(names.fence, "tdl:2:{b2089}:fence");
    }

    #[test]
    fn keys_spread_over_the_buckets() {
        let mut used: Vec<usize> = (0..40_960)
            .map(|n| bucket(&LockKey::new(format!("k/{n}")).unwrap()))
            .collect();
        used.sort_unstable();
        used.dedup();
        assert!(used.len() > 4000 && *used.last().unwrap() < BUCKETS);
    }
}
