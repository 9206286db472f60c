//! Leases on a majority of independent stores (Redlock), built on the [`Store`] trait alone.
//!
//! Two attempts cannot hold a key at the same time, because:
//!
//! 1. A lease is granted by a majority of nodes that remember as far back as the longest lease, or
//!    by all nodes (`ballot`). Two majorities have a node in common, and that node grants the key
//!    to one attempt at a time.
//! 2. The time of a lease counts from before the first node was asked, and a lease of which too
//!    little is left is not granted.
//! 3. An attempt that is not granted is undone on every node, including nodes that answer late. The
//!    undoing and a later grant never use the same name on a node (`attempts`), and a grant under a
//!    name that was given up does not count.
//! 4. A renewal counts nodes that hold the lease now. Nodes may be added to a lease before its
//!    deadline, but never after its deadline or its release (`renew`, `heal`).
//! 5. A turn begins when the counters of a majority have reached the last token of its block. Every
//!    later majority includes one of these counters, and its attempt uses the highest counter.
//!
//! A node that is away does not hold up the others, and is not owed an unbounded number of calls,
//! because:
//!
//! 6. A silent node is not waited for again, unless no answer is possible without that node
//!    (`health`).
//! 7. Each node keeps its own endings: of names that were given up, and of releases that have
//!    failed. They are repeated in small rounds, ride with the acquires of their key, and are
//!    forgotten after a lease's time (`node`). A node where an attempt certainly has nothing is
//!    sent no release (`attempts`).
//! 8. No call in the background is waited for longer than the [node
//!    timeout](QuorumStoreBuilder::node_timeout). Only the forwarding of hints lasts longer, until
//!    the receiver is dropped, and the repetition of releases.

mod acquire;
mod attempts;
mod ballot;
mod builder;
mod failures;
mod fence;
mod heal;
mod health;
mod hints;
mod listing;
mod node;
mod operators;
mod release;
mod renew;
mod round;
#[cfg(test)]
mod tests;
mod vote;

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

pub use builder::QuorumStoreBuilder;

use self::{attempts::Attempts, ballot::majority, health::Health, node::Node};
use super::{
    Acquire, Acquired, Answer, Expected, Hints, Inspection, Instance, KeyPage, List, Outcome,
    Release, Renew, RenewAnswers, Store, StoreFuture, home::Home, sealed::Sealed,
};
use crate::{Error, LockKey, lease::validity, sync::Mutex, time::later};

/// A [`Store`] on a majority of other stores, which keeps working while a majority of them does.
/// Its nodes are typically 3 or 5 independent Redis servers.
///
/// # Example
/// ```
/// # #[cfg(not(feature = "test-util"))]
/// # fn main() {}
/// # #[cfg(feature = "test-util")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, store::{Fault, FaultyStore, QuorumStore}};
///
/// let nodes = [FaultyStore::new(), FaultyStore::new(), FaultyStore::new()];
/// let locks = Locks::builder(QuorumStore::new(nodes.clone())?).build()?;
/// nodes[0].set_fault(Some(Fault::Unreachable));
/// let guard = locks.lock("orders/42").await?;
/// # Ok(())
/// # }
/// ```
///
/// For Redis, [`Locks::quorum`](crate::Locks::quorum) connects to the servers and creates the
/// quorum.
///
/// # Costs
///
/// Locking a key takes one round trip to all nodes at once. The turn begins as soon as a majority
/// has granted the key and the token counters of that majority agree. The counters agree while all
/// nodes answer. They differ after a node was missing, after a split vote and after a new
/// connection; a **second round trip** then raises a majority of them to the last token of the
/// block. [`fencing(false)`](QuorumStoreBuilder::fencing) avoids that round trip, but tokens
/// need not rise then.
///
/// A node that hangs costs its [timeout](QuorumStoreBuilder::node_timeout) once, and only where its
/// answer matters: a lock is granted, renewed and refused as soon as a majority has answered. An
/// idempotent key waits for all nodes, because any of them may have the record. A node that did not
/// answer is not waited for again until it has answered a call, unless the other nodes are too few.
/// Such a node still gets all calls, and so takes part again as soon as it can.
///
/// # Guarantees and their limits
///
/// - **Independence** of the nodes is the responsibility of the user. Two nodes that are one server
///   (two databases, two names of one host) are refused if the servers can be identified: Redis
///   servers are, by the `run_id` of INFO.
/// - **Exclusion** lasts while a majority of nodes has the lease. A lease that only two of three
///   nodes have granted ends when either of them loses it, until a renewal adds the third. A node
///   that restarts is recognized by its uptime and is *young* for as long as the longest lease
///   lasts; only a majority of nodes that are not young, or all nodes together, can grant a key. A
///   node that forgets in another way (FLUSHALL, an eviction, a clock that jumps, a fail-over
///   behind the same address) is not recognized, so nodes should be plain servers without replicas.
/// - **Availability** lasts while a majority of nodes does: two of five may be down. With fewer,
///   every call fails with *no quorum*, which is not the same as *held*. A young node counts as
///   down, unless all other nodes are up.
/// - **Fairness** is best effort. A waiting attempt has a place in the queue of every node, and
///   attempts are served in the order of the queue of the first node that answers in time. An
///   attempt that finds a majority of nodes free may be served earlier. Of attempts that ask for a
///   free key at the same moment, the one goes on that has the first node; the others wait, and
///   those that do not wait are refused, as if the key were held already.
/// - **Records**, which are the answers of idempotent requests, are kept by at least a majority.
///   One record on any node that answers is enough to keep a key from being granted, and an attempt
///   that finds a record copies it to the nodes that lack it. Unlike leases, records last longer
///   than a node is *young*: if a majority of nodes restarts empty, one after another, the records
///   of all keys that were not asked for in between are gone. A node that was away when a record
///   was written gets the record only when the key is asked for again; until then one empty restart
///   of another node leaves a single copy, which is missed while its node does not answer. Nodes
///   that keep records need to write to disk.
///
/// All instances of a fleet need the same nodes in the same order, and the same
/// [lease](crate::LocksBuilder::lease). If some instances use a longer lease, configure the others
/// with [`longest_lease`](QuorumStoreBuilder::longest_lease).
#[derive(Clone)]
pub struct QuorumStore(Arc<Shared>);

/// The state that the clones of a store share.
struct Shared {
    nodes: Vec<Node>,
    node_timeout: Duration,
    fencing: bool,
    /// A node with a shorter uptime may have forgotten a lease.
    longest_lease: Mutex<Duration>,
    attempts: Attempts,
    health: Arc<Health>,
    space: Arc<str>,
    home: Home,
}

impl QuorumStore {
    /// Creates a quorum of these nodes with default settings.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{Locks, store::{MemoryStore, QuorumStore}};
    ///
    /// let nodes = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
    /// let locks = Locks::builder(QuorumStore::new(nodes)?).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an even number of nodes,
    /// fewer than three nodes, or a node given twice. Whether two nodes are one server is known
    /// only after both have answered; every lock then fails with that error.
    pub fn new(nodes: impl IntoIterator<Item = impl Store>) -> Result<Self, Error> {
        Self::builder(nodes).build()
    }

    /// Returns a builder for a quorum of these nodes.
    pub fn builder(nodes: impl IntoIterator<Item = impl Store>) -> QuorumStoreBuilder {
        QuorumStoreBuilder::new(nodes)
    }
}

impl Shared {
    fn note_lease(&self, lease: Duration) {
        let mut longest = self.longest_lease.lock();
        *longest = longest.max(lease);
    }

    /// Whether a node may have forgotten a lease that is still valid. Called after the node has
    /// answered.
    fn is_young(&self, node: usize) -> bool {
        self.nodes[node].uptime() < *self.longest_lease.lock()
    }

    /// When a lease that was asked for at `asked` ends, if at least a tenth of the lease is left.
    fn valid_until(&self, asked: Instant, lease: Duration) -> Option<Instant> {
        let valid = validity(lease);
        let left = valid.saturating_sub(asked.elapsed());
        (left >= lease / 10).then(|| later(asked, valid))
    }
}

impl Sealed for QuorumStore {}

impl Store for QuorumStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        self.0.start_acquire(request)
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        self.0.start_renewal(requests)
    }

    fn release(&self, request: Release, answer: Answer) {
        self.0.start_release(request, answer);
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.0.raise_fence(&key, floor)
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.0.inspect(&key)
    }

    fn label(&self) -> Option<Arc<str>> {
        self.0.nodes.iter().find_map(|node| node.label())
    }

    fn expect_records(&self) {
        for node in &self.0.nodes {
            node.expect_records();
        }
    }

    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        self.0.force_release(&key, expected)
    }

    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>> {
        self.0.list(&request)
    }

    /// Checks a majority of nodes.
    fn ping(&self) -> StoreFuture<Result<(), Error>> {
        self.0.ping()
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    /// For how long a majority has forgotten nothing.
    fn uptime(&self) -> Duration {
        let mut uptimes: Vec<Duration> = self.0.nodes.iter().map(|node| node.uptime()).collect();
        uptimes.sort_unstable_by(|a, b| b.cmp(a));
        uptimes[majority(uptimes.len()) - 1]
    }

    fn server_id(&self) -> Option<Arc<str>> {
        None
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.0.watch(instance)
    }
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumStore")
            .field("nodes", &self.0.nodes)
            .field("node_timeout", &self.0.node_timeout)
            .field("fencing", &self.0.fencing)
            .finish_non_exhaustive()
    }
}
