//! The two hashes that every key carries, computed once, when the key is made.
//!
//! | hash | the same | used for |
//! |---|---|---|
//! | seeded | within one process | maps: lines, shards, slots of the memory store |
//! | stable | in all processes and versions | the bucket of a key in Redis, and so its name and node |

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hasher},
    sync::LazyLock,
};

use super::LockKey;

/// A map by key that hashes nothing anew.
pub(crate) type KeyMap<V> = HashMap<LockKey, V, BuildHasherDefault<Carried>>;

/// The hash for maps, with a random seed: a client cannot construct keys that collide.
pub(super) fn seeded(text: &str) -> u64 {
    static SEED: LazyLock<crate::sync::Hasher> = LazyLock::new(Default::default);
    SEED.hash_one(text)
}

/// FNV-1a, written out: the value must be the same in every version of this crate and on every
/// machine.
#[cfg(feature = "redis")]
pub(crate) fn stable(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash ^ (hash >> 32)
}

/// Takes the hash that a [`LockKey`] carries as it is.
#[derive(Debug, Default)]
pub(crate) struct Carried(u64);

impl Hasher for Carried {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key writes its hash only");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
