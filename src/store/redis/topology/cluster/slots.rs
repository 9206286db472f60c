//! The owner of each bucket of keys in a Cluster.
//!
//! ```text
//! CLUSTER SLOTS   0–5460 at 10.0.0.1:6379, 5461–10922 at 10.0.0.2:6379, 10923–16383 at 10.0.0.3:6379
//! owners          bucket 0 (slot 6939): 10.0.0.2:6379, bucket 1 (slot 2874): 10.0.0.1:6379, …
//! ```

use std::sync::{Arc, LazyLock};

use redis::{RedisResult, Value, aio::MultiplexedConnection, pipe};

use crate::store::redis::names::BUCKETS;

/// The owners of all buckets at one time.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Rises with every fail-over and every move of a slot.
    pub(super) epoch: u64,
    /// Rises whenever this process learns of a new owner, or of a restart.
    pub(super) version: u64,
    /// The address of each bucket's node.
    owners: Vec<Option<Arc<str>>>,
    /// The version in which each bucket got its node, or its node has restarted.
    since: Vec<u64>,
}

impl Slots {
    pub(super) fn owner(&self, bucket: usize) -> Option<&Arc<str>> {
        self.owners.get(bucket)?.as_ref()
    }

    /// Every node that has a bucket.
    pub(super) fn nodes(&self) -> Vec<Arc<str>> {
        let mut nodes: Vec<_> = self.owners.iter().flatten().cloned().collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Takes the place of an earlier map. The version rises if an owner has changed.
    pub(super) fn after(mut self, before: &Self) -> Self {
        let has_changed = self.owners != before.owners;
        self.version = before.version + u64::from(has_changed);
        let since = |bucket| {
            if self.owner(bucket) == before.owner(bucket) {
                before.since.get(bucket).copied().unwrap_or(0)
            } else {
                self.version
            }
        };
        self.since = (0..self.owners.len()).map(since).collect();
        self
    }

    /// Counts the buckets of a node as moved. The version rises.
    pub(super) fn restarted(&mut self, node: &Arc<str>) {
        self.version += 1;
        for (owner, since) in self.owners.iter().zip(&mut self.since) {
            if owner.as_ref() == Some(node) {
                *since = self.version;
            }
        }
    }

    /// For each bucket, whether its node has changed, or has restarted, since an earlier version.
    pub(super) fn moved_since(&self, version: u64) -> Vec<bool> {
        self.since.iter().map(|since| *since > version).collect()
    }

    /// Asks a node for its slots. `host` is the name under which the client has connected to the
    /// node.
    pub(super) async fn ask(
        connection: &mut MultiplexedConnection,
        host: &str,
    ) -> RedisResult<Self> {
        let mut question = pipe();
        question.cmd("CLUSTER").arg("INFO");
        question.cmd("CLUSTER").arg("SLOTS");
        let (info, slots): (String, Value) = question.query_async(connection).await?;
        let epoch = info.lines().find_map(|line| {
            let epoch = line.strip_prefix("cluster_current_epoch:")?;
            epoch.trim().parse().ok()
        });
        Ok(Self {
            epoch: epoch.unwrap_or(0),
            version: 0,
            owners: owners(&slots, host),
            since: Vec::new(),
        })
    }
}

/// Reads the reply to CLUSTER SLOTS. Each entry has the first slot, the last slot, the primary and
/// its replicas.
fn owners(slots: &Value, host: &str) -> Vec<Option<Arc<str>>> {
    let range = |range: &Value| {
        let Value::Array(range) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(primary),
            ..,
        ] = &range[..]
        else {
            return None;
        };
        let [name, Value::Int(port), ..] = &primary[..] else {
            return None;
        };
        let name = match name {
            Value::BulkString(name) => std::str::from_utf8(name).ok()?,
            _ => "",
        };
        Some((*first..=*last, address(name, &port.to_string(), host)))
    };
    let ranges: Vec<_> = match slots {
        Value::Array(ranges) => ranges.iter().filter_map(range).collect(),
        _ => Vec::new(),
    };
    let owner = |slot: &u16| {
        let slot = i64::from(*slot);
        let (_, owner) = ranges.iter().find(|(range, _)| range.contains(&slot))?;
        Some(owner.clone())
    };
    SLOTS.iter().map(owner).collect()
}

/// The address of a node. For a node that does not know its own name, `asked` is the host under
/// which the node was asked.
pub(super) fn address(name: &str, port: &str, asked: &str) -> Arc<str> {
    let name = match name {
        "" | "?" => asked,
        name => name,
    };
    format!("{name}:{port}").into()
}

/// The slot of each bucket, by the text in braces (see `names`).
static SLOTS: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let slot = |bucket| crc16(format!("b{bucket}").as_bytes()) % 16384;
    (0..BUCKETS).map(slot).collect()
});

/// CRC-16/XMODEM, the hash of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn the_buckets_that_have_moved_since_a_version_are_known() {
        let with_owners = |owners: [&str; 3]| Slots {
            owners: owners.map(|owner| Some(owner.into())).into(),
            ..Slots::default()
        };
        let first = with_owners(["a", "a", "b"]).after(&Slots::default());
        let same = with_owners(["a", "a", "b"]).after(&first);
        assert_eq!((first.version, same.version), (1, 1));
        let second = with_owners(["a", "b", "b"]).after(&same);
        let third = with_owners(["c", "b", "b"]).after(&second);
        assert_eq!(third.version, 3);
        assert_eq!(third.moved_since(0), [true; 3]);
        assert_eq!(third.moved_since(1), [true, true, false]);
        assert_eq!(third.moved_since(2), [true, false, false]);
        assert_eq!(third.moved_since(3), [false; 3]);
        let mut fourth = with_owners(["c", "b", "b"]).after(&third);
        fourth.restarted(&"b".into());
        assert_eq!(fourth.version, 4);
        assert_eq!(fourth.moved_since(3), [false, true, true]);
    }

    #[test]
    fn a_third_of_the_slots_has_about_a_third_of_the_buckets() {
        let third = SLOTS.iter().filter(|slot| **slot < 16384 / 3).count();
        assert!((BUCKETS / 4..BUCKETS / 2).contains(&third), "{third}");
    }
}
