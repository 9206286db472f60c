//! How things are called in Redis.
//!
//! | name | type | what |
//! |---|---|---|
//! | `tdl:{b2089}:lock:orders/42` | string | the lease, or the record in its place |
//! | `tdl:{b2089}:queue:orders/42` | sorted set | who waits |
//! | `tdl:{b2089}:fence` | string | the token counter of all keys in this bucket |
//! | `tdl:hints:<instance>` | channel | hints for one instance |
//!
//! A Cluster keeps all names with the same text in braces on one node. The number of buckets is a part of the format:
//! two values of it in one fleet would be two locks on one key. The scripts know the layout too (`hint` in
//! `queue.lua`), which is why a prefix has no braces.

use crate::{LockKey, store::Instance};

/// Few enough that the token counters, one for each and never deleted, stay small; many enough to spread over a Cluster.
pub(super) const BUCKETS: usize = 4096;

/// The names of one fleet's locks.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

/// The names of one key.
#[derive(Debug)]
pub(super) struct KeyNames {
    pub(super) lock: String,
    pub(super) queue: String,
    pub(super) fence: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn of(&self, key: &LockKey) -> KeyNames {
        let (prefix, bucket) = (&self.prefix, bucket(key.as_str()));
        KeyNames {
            lock: format!("{prefix}:{{b{bucket}}}:lock:{key}"),
            queue: format!("{prefix}:{{b{bucket}}}:queue:{key}"),
            fence: format!("{prefix}:{{b{bucket}}}:fence"),
        }
    }

    pub(super) fn hints(&self, instance: Instance) -> String {
        format!("{}:hints:{instance}", self.prefix)
    }
}

/// Which bucket a key belongs to.
pub(super) fn bucket(key: &str) -> usize {
    (hash(key) % BUCKETS as u64) as usize
}

/// FNV-1a, written out: every version of this crate, on every machine, must agree on it.
pub(super) fn hash(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_never_changes() {
        let names = Names::new("tdl").of(&LockKey::new("orders/42").unwrap());
        assert_eq!(names.lock, "tdl:{b2089}:lock:orders/42");
        assert_eq!(names.queue, "tdl:{b2089}:queue:orders/42");
        assert_eq!(names.fence, "tdl:{b2089}:fence");
    }

    #[test]
    fn keys_spread_over_the_buckets() {
        let mut used: Vec<usize> = (0..40_960).map(|n| bucket(&format!("k/{n}"))).collect();
        used.sort_unstable();
        used.dedup();
        assert!(used.len() > 4000 && *used.last().unwrap() < BUCKETS);
    }
}
