//! A Redis Cluster of three primaries with a replica each, all gone with the test.

use std::path::PathBuf;

use redis::Value;

use super::{eventually, redis_server::RedisServer};

pub struct Cluster {
    /// Three primaries, and then their replicas, at first.
    pub nodes: Vec<RedisServer>,
    directories: Vec<PathBuf>,
}

const SLOTS: usize = 16384;

impl Cluster {
    pub async fn start() -> Self {
        let (mut nodes, mut directories) = (Vec::new(), Vec::new());
        for at in 0..6 {
            let name = format!("tdl-cluster-{}-{at}-{:x}", std::process::id(), rand());
            let directory = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&directory).unwrap();
            // The bus has a port 10,000 above: a port that is too high for that is refused, and another one tried.
            let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
            arguments.extend(["--repl-diskless-sync-delay", "0", "--dir"]);
            arguments.push(directory.to_str().unwrap());
            nodes.push(RedisServer::start_with(&arguments).await);
            directories.push(directory);
        }
        let cluster = Self { nodes, directories };
        cluster.form().await;
        cluster
    }

    async fn form(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            let epoch = (at + 1).to_string();
            let _: Value = node.send(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            let port = self.nodes[0].port().to_string();
            let _: Value = node.send(&["CLUSTER", "MEET", "127.0.0.1", &port]).await;
        }
        for (at, node) in self.nodes[..3].iter().enumerate() {
            let slots = SLOTS * at / 3..SLOTS * (at + 1) / 3;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            let _: Value = node.send(&command).await;
        }
        self.all_say("cluster_known_nodes:6").await;
        for (at, node) in self.nodes[3..].iter().enumerate() {
            let primary = self.id(at).await;
            let _: Value = node.send(&["CLUSTER", "REPLICATE", &primary]).await;
        }
        self.all_say("cluster_state:ok").await;
        for node in &self.nodes[3..] {
            eventually("a replica is in sync", async || {
                let info: String = node.send(&["INFO", "replication"]).await;
                info.contains("master_link_status:up")
            })
            .await;
        }
        // Without this, no node would miss a primary.
        for node in &self.nodes[..3] {
            eventually("a primary knows its replica", async || {
                let info: String = node.send(&["INFO", "replication"]).await;
                info.contains("state=online")
            })
            .await;
        }
    }

    async fn all_say(&self, what: &str) {
        for node in &self.nodes {
            eventually(what, async || {
                let info: String = node.send(&["CLUSTER", "INFO"]).await;
                info.contains(what)
            })
            .await;
        }
    }

    pub async fn id(&self, node: usize) -> String {
        self.nodes[node].send(&["CLUSTER", "MYID"]).await
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes[..3].iter().map(RedisServer::url).collect()
    }

    /// Which slot a name is in.
    pub async fn slot(&self, name: &str) -> String {
        let slot: u16 = self.nodes[0].send(&["CLUSTER", "KEYSLOT", name]).await;
        slot.to_string()
    }

    /// Which node has a slot, as `witness` says.
    pub async fn owner(&self, slot: &str, witness: usize) -> usize {
        // During a fail-over, a node may know of no node for a slot.
        loop {
            if let Some(owner) = self.known_owner(slot, witness).await {
                return owner;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    async fn known_owner(&self, slot: &str, witness: usize) -> Option<usize> {
        let slot: i64 = slot.parse().unwrap();
        let ranges: Vec<(i64, i64, (String, u16, String))> = {
            let all: Vec<Vec<Value>> = self.nodes[witness].send(&["CLUSTER", "SLOTS"]).await;
            let read = |range: Vec<Value>| {
                let mut range = range.into_iter().map(redis::from_redis_value);
                let mut number = || match range.next() {
                    Some(Ok(Value::Int(number))) => number,
                    other => panic!("not a slot: {other:?}"),
                };
                let (first, last) = (number(), number());
                let Some(Ok(Value::Array(node))) = range.next() else {
                    panic!("no node");
                };
                let [host, port, id]: [Value; 3] = node
                    .into_iter()
                    .take(3)
                    .collect::<Vec<_>>()
                    .try_into()
                    .unwrap();
                let text = |value| redis::from_redis_value(value).unwrap();
                (
                    first,
                    last,
                    (text(host), redis::from_redis_value(port).unwrap(), text(id)),
                )
            };
            all.into_iter().map(read).collect()
        };
        let (.., (_, port, _)) = ranges
            .iter()
            .find(|(first, last, _)| (first..=last).contains(&&slot))?;
        self.nodes.iter().position(|node| node.port() == *port)
    }

    /// Waits until all other nodes say that the slot belongs to another node. Returns that node.
    pub async fn failed_over(&self, slot: &str, from: usize) -> usize {
        let witnesses = || (0..6).filter(|node| *node != from);
        for witness in witnesses() {
            eventually("the fail-over is done", async || {
                self.owner(slot, witness).await != from
            })
            .await;
        }
        let to = self.owner(slot, (from + 1) % 3).await;
        for witness in witnesses() {
            eventually("the Cluster is well", async || {
                let info: String = self.nodes[witness].send(&["CLUSTER", "INFO"]).await;
                info.contains("cluster_state:ok")
            })
            .await;
        }
        to
    }

    /// Moves a slot, key by key, as an operator's tool does; `before` and `after` the
    /// keys are moved, while both nodes have the slot.
    pub async fn migrate(
        &self,
        slot: &str,
        from: usize,
        to: usize,
        before: impl Future<Output = ()>,
        after: impl Future<Output = ()>,
    ) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (source_id, target_id) = (self.id(from).await, self.id(to).await);
        let _: Value = target
            .send(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &source_id])
            .await;
        let _: Value = source
            .send(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &target_id])
            .await;
        before.await;
        let port = target.port().to_string();
        loop {
            let keys: Vec<String> = source.send(&["CLUSTER", "GETKEYSINSLOT", slot, "10"]).await;
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let _: Value = source
                    .send(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"])
                    .await;
            }
        }
        after.await;
        for node in [to, from, 0, 1, 2] {
            let _: Value = self.nodes[node]
                .send(&["CLUSTER", "SETSLOT", slot, "NODE", &target_id])
                .await;
        }
    }

    /// All keys of all primaries, token counters aside.
    pub async fn leftovers(&self) -> Vec<String> {
        let mut leftovers = Vec::new();
        for node in &self.nodes {
            if node.is_primary().await {
                leftovers.extend(node.leftovers().await);
            }
        }
        leftovers
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        for directory in &self.directories {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn rand() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0)
}
