//! The slot map of a Cluster, as far as this process knows, and the questions to the nodes.
//!
//! ```text
//! stale ──▶ refresh: ask all known nodes at once ──▶ the answer with the latest epoch ──▶ fresh
//!   ▲                                                         │ an owner has changed: the version rises,
//!   └── MOVED, CLUSTERDOWN, a failed call                     └▶ `changed_since` resolves, and moved leases are confirmed
//!       a node has restarted: the version rises as well ───────┘
//! ```
//!
//! While a question is under way, the map of the answer before counts as fresh. Before the first
//! answer there is no such map: all callers wait for the answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::RedisResult;
use tokio::{
    sync::{Mutex as FairMutex, watch},
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    super::{
        ask_all::ask_all,
        server::{Server, without_timeouts},
    },
    slots::Slots,
};
use crate::{
    Error,
    store::{Credentials, MovedKeys, redis::explain},
};

/// The pause between two attempts at a slot that is moving or a Cluster that is down, and between
/// two questions for the slot map.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// The latest known [`Slots`], and whether they may be out of date.
#[derive(Debug)]
pub(crate) struct SlotMap {
    /// The configured nodes. The login of the first one is used for all nodes.
    seeds: Vec<Server>,
    name: Arc<str>,
    limit: Duration,
    slots: watch::Sender<Slots>,
    is_stale: AtomicBool,
    /// Whether the nodes have ever answered.
    is_known: AtomicBool,
    /// When the nodes were last asked. Locked while a question is under way.
    last_asked: FairMutex<Option<Instant>>,
}

/// A new version of the map, and the keys that have another node since an earlier version.
pub(super) struct Changed {
    pub(super) version: u64,
    pub(super) keys: MovedKeys,
}

impl SlotMap {
    /// A stale map. `seeds` must not be empty.
    pub(super) fn new(seeds: Vec<Server>, limit: Duration) -> Self {
        let mut names: Vec<_> = seeds.iter().map(|seed| &*seed.address).collect();
        names.sort();
        Self {
            name: format!("a Cluster of {}", names.join(", ")).into(),
            seeds,
            limit,
            slots: watch::Sender::new(Slots::default()),
            is_stale: AtomicBool::new(true),
            is_known: AtomicBool::new(false),
            last_asked: FairMutex::new(None),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Acquire) || !self.is_known.load(Ordering::Acquire)
    }

    /// Makes the next [`refresh`](Self::refresh) ask the nodes.
    pub(super) fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// The address of a bucket's node.
    pub(super) fn owner(&self, bucket: usize) -> Option<Arc<str>> {
        self.slots.borrow().owner(bucket).cloned()
    }

    /// The addresses of all nodes that have a bucket.
    pub(super) fn nodes(&self) -> Vec<Arc<str>> {
        self.slots.borrow().nodes()
    }

    pub(super) fn version(&self) -> u64 {
        self.slots.borrow().version
    }

    /// Resolves when the map has another version.
    pub(super) async fn changed_since(&self, version: u64) -> Changed {
        let mut slots = self.slots.subscribe();
        let changed = slots.wait_for(|slots| slots.version != version).await;
        let changed = changed.map(|slots| Changed {
            version: slots.version,
            keys: MovedKeys::new(slots.moved_since(version)),
        });
        match changed {
            Ok(changed) => changed,
            Err(_) => std::future::pending().await,
        }
    }

    /// Counts the buckets of a node as moved: the node has restarted, perhaps without its data.
    pub(crate) fn restarted(&self, node: &Arc<str>) {
        self.slots.send_modify(|slots| slots.restarted(node));
    }

    /// The node at an address, with the login of the seeds.
    pub(super) fn server(&self, address: &str) -> Server {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
        let port = port.parse().unwrap_or(6379);
        self.seeds[0].moved_to(host.to_owned(), port)
    }

    /// Asks all known nodes. The answer with the latest epoch counts, because a node that was cut
    /// off may not know that epoch.
    ///
    /// # Cancel safety
    ///
    /// The map stays stale if the future is dropped before the nodes have answered.
    pub(super) async fn refresh(&self, deadline: Instant) -> Result<(), Error> {
        match timeout_at(deadline, self.ask_if_stale()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(explain::cannot_connect_in_time(&self.name, self.limit)),
        }
    }

    async fn ask_if_stale(&self) -> Result<(), Error> {
        let mut last_asked = self.last_asked.lock().await;
        if !self.is_stale() {
            // Another call has asked meanwhile.
            return Ok(());
        }
        // While a node is down, every call to that node asks all the others, so questions keep a
        // distance. A question is delayed, not skipped, because the caller may need a fresh
        // map.
        if let Some(last_asked) = *last_asked {
            sleep_until(last_asked + PAUSE).await;
        }
        let unless_answered = MarkStale(Some(self));
        self.is_stale.store(false, Ordering::Release);
        let known = self.known_servers();
        let credentials = self.seeds[0].credentials().await?;
        let questions = known.iter().map(|node| ask(node, credentials.as_ref()));
        let asked = ask_all(questions, self.limit).await;
        *last_asked = Some(Instant::now());
        let latest = asked.answers.into_iter().max_by_key(|slots| slots.epoch);
        let latest = latest.ok_or_else(|| explain::no_node(&self.name, asked.last_error))?;
        self.slots.send_if_modified(|slots| {
            let before = slots.version;
            *slots = latest.after(slots);
            slots.version != before
        });
        self.is_known.store(true, Ordering::Release);
        unless_answered.disarm();
        Ok(())
    }

    /// The seeds, and every node that has a bucket.
    fn known_servers(&self) -> Vec<Server> {
        let mut known: Vec<_> = self.seeds.clone();
        for node in self.nodes() {
            if !known.iter().any(|server| server.address == node) {
                known.push(self.server(&node));
            }
        }
        known
    }
}

/// Marks the map as stale when dropped.
struct MarkStale<'a>(Option<&'a SlotMap>);

impl MarkStale<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for MarkStale<'_> {
    fn drop(&mut self) {
        if let Some(map) = self.0 {
            map.mark_stale();
        }
    }
}

async fn ask(node: &Server, credentials: Option<&Credentials>) -> RedisResult<Slots> {
    let client = node.client(credentials);
    let client = client.map_err(|error| std::io::Error::other(error.to_string()))?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&without_timeouts())
        .await?;
    Slots::ask(&mut connection, node.host()).await
}
