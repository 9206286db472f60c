//! The names of keys and channels in Redis.
//!
//! | name | type | content |
//! |---|---|---|
//! | `tdl:2:{b2089}:lock:orders/42` | string | the exclusive lease, or the record that has replaced the lease (`value.lua`) |
//! | | or sorted set | the shared leases, or the permits (`holders.lua`) |
//! | `tdl:2:{b2089}:queue:orders/42` | sorted set | the attempts that wait (`queue.lua`) |
//! | `tdl:2:{b2089}:fence` | string | the token counter of all keys in this bucket |
//! | `tdl:2:{b2089}:none` | | never exists: in a moving slot, keeps scripts from running |
//! | `tdl:2:{b2089}:ping` | | never exists: leads `ping.lua` to the node of the bucket |
//! | `tdl:2:hints:<instance>` | channel | hints for one instance |
//!
//! A Cluster keeps all names with the same text in braces on one node. The number of buckets is a
//! part of the format: two instances with different numbers would hold two locks on one key. The
//! scripts know the layout too (`hint` in `queue.lua`), which is why a prefix must not contain
//! braces.
//!
//! The number behind the prefix is the version of the format: of these names, of the values and of
//! the queue. Stores of two versions share no name, so neither misreads the values of the other;
//! nor do two such stores exclude each other.

use std::sync::Arc;

use bytes::BufMut;

use crate::{LockKey, store::Instance};

/// The version of the format.
const FORMAT: u32 = 2;

/// The number of buckets. Each bucket has one token counter, which is never deleted: few enough
/// buckets for little memory, and many enough to spread over the nodes of a Cluster.
pub(super) const BUCKETS: usize = 4096;

/// The kinds of names that exist only while their key has a lease, a record or a queue.
const KINDS: [&str; 2] = ["lock", "queue"];

/// A name in the slot of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Name {
    /// The leases or the record.
    Lock,
    Queue,
    /// The token counter of the key's bucket.
    Fence,
    /// Never exists. While a slot of a Cluster moves to another node, no script with this name
    /// runs.
    None,
}

/// Writes the names that one fleet uses.
///
/// The methods append bytes and avoid `fmt`, because every lock writes three names.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
    /// The start of all names of keys, up to the number of the bucket.
    head: String,
    label: Option<Arc<str>>,
}

impl Name {
    /// Writes the rest of a name, behind the [start](Names::start).
    pub(super) fn write(self, key: &LockKey, to: &mut Vec<u8>) {
        let kind: &[u8] = match self {
            Self::Lock => b"lock:",
            Self::Queue => b"queue:",
            Self::Fence => b"fence",
            Self::None => b"none",
        };
        to.put_slice(kind);
        if let Self::Lock | Self::Queue = self {
            to.put_slice(key.as_str().as_bytes());
        }
    }
}

impl Names {
    pub(super) fn new(prefix: &str, label: Option<Arc<str>>) -> Self {
        Self {
            prefix: prefix.to_owned(),
            head: format!("{prefix}:{FORMAT}:{{b"),
            label,
        }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The text in the value of a lease by which operators recognize the holder.
    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The name of the store's connections in CLIENT LIST: `tdl@web-3`. Neither the prefix nor the
    /// label has a character that CLIENT SETNAME refuses.
    pub(super) fn client_name(&self) -> Arc<str> {
        match &self.label {
            Some(label) => format!("{}@{label}", self.prefix).into(),
            None => self.prefix.as_str().into(),
        }
    }

    /// Writes the start of all names in a bucket: `tdl:2:{b2089}:`.
    pub(super) fn start(&self, bucket: usize, to: &mut Vec<u8>) {
        to.put_slice(self.head.as_bytes());
        put_number(bucket as u64, to);
        to.put_slice(b"}:");
    }

    /// The glob pattern of the names whose keys start with `prefix`. Matches some other names as
    /// well, see [`key`](Self::key).
    pub(super) fn pattern(&self, prefix: &str) -> Vec<u8> {
        let mut pattern = Vec::new();
        put_escaped(&self.head, &mut pattern);
        pattern.extend_from_slice(b"*}:*:");
        put_escaped(prefix, &mut pattern);
        pattern.push(b'*');
        pattern
    }

    /// The key that a name belongs to. `None` for the name of something else, and for a name that
    /// this crate did not write.
    pub(super) fn key(&self, name: &[u8]) -> Option<LockKey> {
        let rest = std::str::from_utf8(name).ok()?;
        let (number, rest) = rest.strip_prefix(&self.head)?.split_once("}:")?;
        let (kind, key) = rest.split_once(':')?;
        let key = LockKey::new(key).ok()?;
        let is_ours = KINDS.contains(&kind) && number == bucket(&key).to_string();
        is_ours.then_some(key)
    }

    /// The channel of an instance.
    pub(super) fn hints(&self, instance: Instance) -> String {
        format!("{}:{FORMAT}:hints:{instance}", self.prefix)
    }
}

/// The bucket of a key.
pub(super) fn bucket(key: &LockKey) -> usize {
    key.bucket(BUCKETS)
}

/// Writes a text of which every character stands for itself in a glob pattern.
fn put_escaped(text: &str, to: &mut Vec<u8>) {
    for byte in text.bytes() {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\') {
            to.push(b'\\');
        }
        to.push(byte);
    }
}

/// Writes a number in decimal digits.
pub(super) fn put_number(number: u64, to: &mut impl BufMut) {
    to.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(names: &Names, key: &LockKey) -> [Vec<u8>; 3] {
        [Name::Lock, Name::Queue, Name::Fence].map(|name| {
            let mut to = Vec::new();
            names.start(bucket(key), &mut to);
            name.write(key, &mut to);
            to
        })
    }

    #[test]
    fn names_change_only_with_the_version_of_the_format() {
        let (names, instance) = (Names::new("tdl", None), Instance::new());
        assert_eq!(names.hints(instance), format!("tdl:2:hints:{instance}"));
        let key = LockKey::new("orders/42").unwrap();
        let [lock, queue, fence] = written(&names, &key);
        assert_eq!(lock, b"tdl:2:{b2089}:lock:orders/42");
        assert_eq!(queue, b"tdl:2:{b2089}:queue:orders/42");
        assert_eq!(fence, b"tdl:2:{b2089}:fence");
    }

    #[test]
    fn a_key_is_read_from_its_names_and_from_no_other() {
        let names = Names::new("a*[b", None);
        let key = LockKey::new("x:{y}:lock:* é").unwrap();
        let [lock, queue, fence] = written(&names, &key);
        assert_eq!(names.key(&lock), Some(key.clone()));
        assert_eq!(names.key(&queue), Some(key));
        assert_eq!(names.key(&fence), None);
        let text = String::from_utf8(lock).unwrap();
        for foreign in [
            text.replace(":lock:x", ":other:x"),
            text.replace("a*[b", "a"),
            text.replace("{b", "{b0"),
            text.replace("x:", "\n:"),
            text.replace(" é", ""),
        ] {
            assert_eq!(names.key(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(names.key(b"a*[b:2:{b1}:lock:\xff"), None);
    }

    #[test]
    fn a_pattern_has_no_wildcards_of_the_prefix() {
        let names = Names::new("a*", None);
        let pattern = names.pattern("[x]?\\");
        assert_eq!(pattern, br"a\*:2:{b*}:*:\[x\]\?\\*");
    }

    #[test]
    fn numbers_are_written_in_decimal_digits() {
        for number in [0, 7, 10, 99, 100, 909, 4095, 10_000, u64::MAX] {
            let mut digits = Vec::new();
            put_number(number, &mut digits);
            assert_eq!(digits, number.to_string().into_bytes());
        }
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
